"""Real processes on loopback: a SuperLink, SuperNodes, a proxy; each ended by its own id.

They are slow, since Flower starts a process for each message; ``pytest -m processes`` runs them.
"""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import fedzo
from fedzo.config import Experiment
from fedzo.folder import RunFolder, read_history

HERE = Path(__file__).parents[2]
sys.path.append(str(HERE / "tools"))

from flower_federation import NAME, Federation, children, make_node_key  # noqa: E402

pytestmark = pytest.mark.processes

APP = HERE / "examples" / "flower-app"
LIMIT = 900  # seconds that anything may take at most: a machine may be busy
PATIENT = {"flower.grace": 900.0, "flower.patience": 900.0}  # where nobody is to be left out
SMALL = {  # nine devices, of which a round has all, and steps that take no time
    "config": "",
    "problem.name": "quadratic",
    "problem.devices": 9,
    "algorithm.participants": "",
    "algorithm.learning-rate": 0.01,
}


@pytest.fixture(scope="module", autouse=True)
def _found_by_its_children():
    """Let the processes import the fedzo that is tested, and its compiled kernels."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(fedzo.__file__).parents[1])
    yield
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Return a federation of three nodes, not secured."""
    with Federation(tmp_path_factory.mktemp("plain")) as made:
        for i in range(3):
            made.start_node(f"node-{i}", f"partition-id={i} num-partitions=3")
        yield made


def here(settings):
    """Return the run of the same settings in this process."""
    from fedzo.flower.app_config import experiment_of

    return experiment_of(settings).run()


def until(what, seconds=LIMIT):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)
    return found


def rounds_done(folder):
    checkpoint = RunFolder(folder).load()
    return -1 if checkpoint is None else checkpoint.round


def without(record):
    return {k: v for k, v in record.items() if k not in ("seconds", *WIRE)}


WIRE = ("wire_up_bytes", "wire_down_bytes")


def settings_of(**changes):
    """Return the app's run configuration with changes, flat as Flower has it."""
    import tomllib

    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    flat = {}
    for key, value in config.items():
        inner = value.items() if isinstance(value, dict) else ()
        flat.update({f"{key}.{k}": v for k, v in inner} or {key: value})
    return {**flat, **changes}


def test_same_run_as_in_one_process(federation, tmp_path):
    runs = {
        "ideal": {"uplink.kind": "ideal"},
        "seeds": {"uplink.kind": "seeds"},
        "fedavg": {"algorithm.name": "fedavg"},
    }
    for name, changes in runs.items():  # in turn: a task that is not begun in time is dropped
        run = federation.run(APP, {**changes, **PATIENT, "run-dir": str(tmp_path / name)})
        assert federation.wait(run, LIMIT) == "finished:completed", federation.log(run)
        result = here(settings_of(**changes))
        x = np.load(tmp_path / name / "model.npy")
        assert np.abs(x - result.x).max() <= 1e-6 * np.abs(result.x).max()
        there = list(read_history(tmp_path / name / "history.jsonl"))
        for one, two in zip(there, result.history, strict=True):
            assert without(one) == pytest.approx(without(two), rel=1e-6)
    ideal, seeds = (
        list(read_history(tmp_path / name / "history.jsonl"))[-1] for name in ("ideal", "seeds")
    )
    assert ideal["wire_up_bytes"] > 50 * seeds["wire_up_bytes"]


def command(pid):
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().decode()
    except OSError:
        return ""


def test_killed_server_resumes_to_the_same_model(federation, tmp_path):
    settings = {**SMALL, **PATIENT, "run.rounds": 6, "run-dir": str(tmp_path / "run")}
    first = federation.run(APP, settings)
    until(lambda: rounds_done(tmp_path / "run") >= 2)
    below = children(federation.processes["superlink"].pid)
    (server,) = [pid for pid in below if "flwr-serverapp" in command(pid)]
    os.kill(server, signal.SIGKILL)
    assert federation.wait(first, LIMIT) == "finished:failed"
    assert rounds_done(tmp_path / "run") < 6
    second = federation.run(APP, {**settings, "resume": True})
    assert federation.wait(second, LIMIT) == "finished:completed", federation.log(second)
    result = here(settings_of(**SMALL, **{"run.rounds": 6}))
    x = np.load(tmp_path / "run" / "model.npy")
    assert np.abs(x - result.x).max() <= 1e-6 * np.abs(result.x).max()


def test_killed_node_costs_its_updates_and_comes_back(federation, tmp_path):
    folder = tmp_path / "run"
    settings = {"run.rounds": 40, "run.evaluate-every": 1, "flower.grace": 30.0}
    run = federation.run(APP, {**SMALL, **settings, "run-dir": str(folder)})

    def history():
        return list(read_history(folder / "history.jsonl"))

    until(lambda: len(history()) > 2)
    federation.end("node-2", signal.SIGKILL)
    until(lambda: history()[-1]["participants"] == 6)
    federation.start_node("node-2", "partition-id=2 num-partitions=3")
    gone = len(history())
    until(lambda: any(r["participants"] == 9 for r in history()[gone:]))
    federation.flwr("stop", run, NAME)
    without_it = [r for r in history() if r["participants"] == 6]
    assert without_it
    assert {r["participants"] for r in history()[1:]} == {6, 9}
    named = [one for r in history() for one in r.get("left_out", ())]
    assert {one["device"] for one in named} == {6, 7, 8}
    assert all(np.isfinite(r["train_loss"]) for r in history())
    assert history()[-1]["train_loss"] < history()[0]["train_loss"]


def test_no_quorum_ends_with_a_checkpoint(federation, tmp_path):
    folder = tmp_path / "run"
    settings = {"run.rounds": 50, "flower.quorum": 1.0, "flower.patience": 60.0}
    run = federation.run(APP, {**SMALL, **settings, "run-dir": str(folder)})
    until(lambda: rounds_done(folder) >= 1)
    federation.end("node-1", signal.SIGKILL)
    assert federation.wait(run, LIMIT) == "finished:failed"
    assert "no quorum within 60 s: 6 of 9 devices have answered after round" in federation.log(run)
    assert 1 <= rounds_done(folder) < 50


# --------------------------------------------------------------------------- who gets in


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """Return a federation with TLS, node keys and the proxy, and one node with a key."""
    if shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("nginx is not installed")
    with Federation(tmp_path_factory.mktemp("secured"), secure=True) as made:
        key, public = make_node_key(made.folder, "key")
        made.register(public)
        made.start_node("node", "partition-id=0 num-partitions=1", key)
        until(lambda: online(made) == 1)
        yield made


def online(federation):
    told = federation.flwr("supernode", "list", NAME, "--format", "json")
    nodes = json.loads(told[told.index("{") :])["nodes"]
    return sum(node["status"] == "online" for node in nodes)


def refusals(federation):
    """Return the status codes of the fleet calls that were not let through."""
    lines = (federation.folder / "traffic.log").read_text().splitlines()
    return [line for line in lines if "/v1/fleet/" in line and " 200 " not in line]


@pytest.mark.parametrize(
    ("key", "tls"), [(None, True), ("stranger", True), (None, False), ("stranger", False)]
)
def test_stranger_is_not_let_in(secured, key, tls):
    private = None if key is None else make_node_key(secured.folder, f"{key}-{tls}")[0]
    process = secured.start_node(
        f"stranger-{key}-{tls}", "partition-id=0 num-partitions=1", private, tls
    )
    before = len(refusals(secured))
    assert process.wait(LIMIT) != 0
    if (key, tls) != ("stranger", False):  # that one, Flower does not even try
        assert len(refusals(secured)) > before
    assert online(secured) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/runtime/get-nodes",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/",
    ],
)
def test_nothing_but_the_fleet_api_is_forwarded(secured, path):
    trust = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    request = urllib.request.Request(
        f"https://localhost:{secured.proxy_port}{path}", data=b"", method="POST"
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, context=trust)
    assert caught.value.code == 403
    caught.value.close()


def test_run_through_the_proxy(secured, tmp_path):
    folder = tmp_path / "run"
    settings = {**PATIENT, "uplink.kind": "seeds", "run.rounds": 1, "run-dir": str(folder)}
    log = secured.folder / "traffic.log"

    def sent():
        """Return the bytes of what the node pushed, with HTTP's headers and hashes."""
        lines = [line.split() for line in log.read_text().splitlines()]
        return sum(int(length) for path, _, length, _ in lines if "/push-" in path)

    before = sent()
    run = secured.run(APP, settings)
    assert secured.wait(run, LIMIT) == "finished:completed", secured.log(run)
    last = list(read_history(folder / "history.jsonl"))[-1]
    result = here(settings_of(**{"uplink.kind": "seeds", "run.rounds": 1}))
    assert np.allclose(np.load(folder / "model.npy"), result.x, rtol=0, atol=1e-7)
    # One round's answer, an introduction, a start (31 kB) and two evaluations.
    assert last["wire_up_bytes"] < sent() - before < 150_000


# ----------------------------------------------------------------- the simulation engine


CLI = "import sys; from fedzo.cli import main; sys.exit(main())"


def fedzo_run(*arguments):
    process = subprocess.run(
        [sys.executable, "-c", CLI, "run", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize(
    "changes",
    [[], ["uplink.kind=seeds"], ["algorithm.name=fedavg"]],
    ids=["ideal", "seeds", "fedavg"],
)
def test_simulation_is_the_same_run(tmp_path, changes):
    overrides = ["run.rounds=10", "flower.nodes=3", *changes]
    out = tmp_path / "run"
    fedzo_run("softmax", "--engine", "flower", "--out", str(out), *set_all(overrides))
    experiment = Experiment.load("softmax", overrides)
    result = experiment.run(tmp_path / "here")
    x = np.load(out / "model.npy")
    assert np.abs(x - result.x).max() <= 1e-6 * np.abs(result.x).max()
    for one, two in zip(read_history(out / "history.jsonl"), result.history, strict=True):
        assert without(one) == pytest.approx(without(two), rel=1e-6)
    assert sorted(p.name for p in out.iterdir()) == sorted(
        p.name for p in (tmp_path / "here").iterdir()
    )


def test_interrupted_simulation_leaves_a_checkpoint(tmp_path):
    out = tmp_path / "run"
    words = ["quadratic", "--engine", "flower", "--out", str(out), "--quiet"]
    words += set_all(["run.rounds=100000", "run.checkpoint_every=1"])
    process = subprocess.Popen(
        [sys.executable, "-c", CLI, "run", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # who starts the tests in the background has them ignore this
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    until(lambda: rounds_done(out) >= 2)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "interrupted after round" in stdout
    assert stderr.splitlines()[-1] == (
        f"to go on: fedzo run {out}/config.toml --resume --engine flower"
    )
    assert 2 <= rounds_done(out) < 100000


def set_all(overrides):
    return [word for override in overrides for word in ("--set", override)]


def test_simulation_of_a_thousand_devices(tmp_path):
    overrides = ["problem.devices=1000", "algorithm.participants=50", "run.rounds=3"]
    overrides += ["run.evaluate_every=3", "flower.nodes=1000"]
    out = tmp_path / "run"
    fedzo_run("quadratic", "--engine", "flower", "--out", str(out), "--quiet", *set_all(overrides))
    last = list(read_history(out / "history.jsonl"))[-1]
    assert (last["round"], last["participants"]) == (3, 50)
    assert "left_out" not in last
