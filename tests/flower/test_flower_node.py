"""A node protects itself: what it computes, how much of it, and what leaves it."""

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
from packaging.requirements import Requirement

import fedzo
from driving import steps_of
from fedzo.cli import main
from fedzo.cli.common import Exit
from fedzo.core.tasks import Evaluate, Slopes
from fedzo.errors import Halted, NoAnswer, UsageError
from fedzo.flower import (
    FlowerFederation,
    FlowerSettings,
    InProcessGrid,
    make_client_app,
    make_server_app,
    pinned,
    reasons,
    wire,
)
from fedzo.flower.ledger import Ledger, Spent
from fedzo.flower.node import Node
from fedzo.flower.reasons import Reason
from fedzo.problems import FunctionObjective, Quadratic, softmax

PROBLEM = Quadratic(dim=8, devices=6)
POINTS = Evaluate(np.zeros((3, 8)), batch_size=25)
STENCIL = Slopes(np.zeros(8), np.ones(8), everyone=True, batch_size=25)  # 9 points
QUICK = FlowerSettings(grace=0.02, patience=0.1)


def node(problem=PROBLEM, nodes=1, **node_config):
    """Return a grid whose nodes have this configuration besides their part."""
    source = problem if callable(problem) or isinstance(problem, dict) else lambda c: problem
    grid = InProcessGrid(make_client_app(source), nodes)
    for context in grid.contexts.values():
        context.node_config.update({k.replace("_", "-"): v for k, v in node_config.items()})
        context.node_config.update(node_config.get("dotted", {}))
        context.node_config.pop("dotted", None)
    return grid


def limited(problem=PROBLEM, **limits):
    return node(problem, dotted={f"limits.{k}": v for k, v in limits.items()})


def ask(grid, algorithm=None, devices=(0,), x=None, kind=wire.TRAIN, metrics=False, task=None):
    """Send one message; return the reply's content."""
    algorithm = algorithm or fedzo.FedZO(directions=4, local_steps=2, batch_size=3)
    x = np.zeros(8) if x is None else x
    content = (
        wire.task(wire.pack(task or steps_of(algorithm, x, round=0, seed=0)), devices, False)
        if kind == wire.TRAIN
        else wire.model(x, devices, metrics)
    )
    (reply,) = grid.send_and_receive([Message(content, 1, kind)])
    assert not reply.has_error()
    return reply.content


def refusal(content):
    told = wire.read_refusal(content)
    return told and told.split()[0]


# ------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize(
    ("limits", "asked", "reason"),
    [
        ({}, {"algorithm": fedzo.FedZO(local_steps=20_000)}, "steps"),
        ({}, {"algorithm": fedzo.FedZO(directions=10**9)}, "directions"),
        ({}, {"algorithm": fedzo.FedZO(batch_size=10**9)}, "batch"),
        ({}, {"devices": [0] * 20_000}, "devices"),
        ({}, {"devices": [0, 0]}, "devices"),
        ({}, {"x": np.zeros(9)}, "dimension"),
        ({"dim": 7}, {}, "dimension"),
        ({"local_steps": 1}, {}, "steps"),
        ({"directions": 3}, {}, "directions"),
        ({"devices": 1}, {"devices": [0, 1]}, "devices"),
        ({"memory": 4 * (8 + 3) * 8 - 1}, {}, "memory"),  # b2 rows of d numbers and b1 values
        ({"memory": 4 * (8 + 3) * 8}, {}, None),
        ({"records": 4}, {}, "records"),  # b1 = 3
        ({"directions": 2}, {"task": POINTS}, "directions"),
        ({"queries": 3 * 25 - 1}, {"task": POINTS}, "queries"),
        ({"queries": 3 * 25}, {"task": POINTS}, None),
        ({"directions": 8}, {"task": STENCIL}, "directions"),
        ({"queries": 9 * 25 - 1}, {"task": STENCIL}, "queries"),
        ({}, {"task": STENCIL}, None),
        ({}, {"task": Slopes(np.zeros(7), np.ones(7))}, "dimension"),
        ({}, {"task": Slopes(np.zeros(8), np.ones(7))}, "malformed"),
        ({"queries": 2 * 5 * 3 - 1}, {}, "queries"),  # H = 2, b2 + 1 = 5 points, b1 = 3
        ({"queries": 2 * 5 * 3}, {}, None),
        ({"queries_per_day": 29}, {}, "queries"),
        ({"queries_per_run": 29}, {}, "queries"),
        ({"queries": 5}, {"kind": wire.EVALUATE, "devices": list(range(6))}, "queries"),
        ({"queries": 6}, {"kind": wire.EVALUATE, "devices": list(range(6))}, None),
        ({"devices": 5}, {"kind": wire.EVALUATE, "devices": list(range(6))}, "devices"),
        ({}, {"kind": wire.EVALUATE, "x": np.zeros(3)}, "dimension"),
    ],
)
def test_beyond_a_limit_nothing_is_asked(limits, asked, reason):
    calls = []

    class Counted(Quadratic):
        def values(self, points, batch):
            calls.append(len(points))
            return super().values(points, batch)

        def losses(self, x, devices):
            calls.append(len(devices))
            return super().losses(x, devices)

    content = ask(limited(Counted(dim=8, devices=6), **limits), **asked)
    assert refusal(content) == reason
    assert bool(calls) == (reason is None)


def test_queries_are_counted_over_messages_and_runs():
    grid = limited(queries=100, queries_per_run=70)
    assert [refusal(ask(grid)) for _ in range(3)] == [None, None, "queries"]  # 30 each
    grid.contexts[1].run_id = 2
    assert [refusal(ask(grid)) for _ in range(2)] == [None, "queries"]
    ledger = Ledger(grid.contexts[1].node_config["ledger"])
    assert ledger.spent("2") == Spent(run=30, day=90, total=90)


def test_budget_of_a_function_holds_over_processes():
    def problem(context):  # made anew for every message, as by a process of its own
        return FunctionObjective(lambda x, device: float(x @ x), 8, devices=6, max_queries=15)

    grid = node(problem)
    assert [refusal(ask(grid)) for _ in range(2)] == [None, "queries"]  # two steps of 5 calls
    assert Ledger(grid.contexts[1].node_config["ledger"]).spent("1").total == 10


def test_what_was_not_asked_is_given_back():
    def moody(x, device):
        raise NoAnswer("not today")

    grid = node(FunctionObjective(moody, 8, devices=6, retries=2))
    ask(grid)  # one point, asked three times, of at most 2 x 5 x 3
    assert Ledger(grid.contexts[1].node_config["ledger"]).spent("1").total == 3


def test_time_is_limited():
    go_on = threading.Event()

    def slow(x, device):
        if device == 1:
            go_on.wait(60)
        return float(x @ x)

    grid = limited(FunctionObjective(slow, 8, devices=6), seconds=1)
    told = wire.read_answer(ask(grid, devices=[0, 1, 2]), asked=3)
    go_on.set()
    assert 0 in {update.device for update in told.updates}
    assert {i: why.split()[0] for i, why in told.failures.items()}[1] == "seconds"


def test_time_of_an_evaluation_and_its_metrics_is_limited():
    go_on = threading.Event()

    class Slow(Quadratic):
        def metrics(self, x):
            go_on.wait(60)
            return {"secret": 1.0}

    grid = limited(Slow(dim=8, devices=6), seconds=1)
    content = ask(grid, devices=[0, 1], kind=wire.EVALUATE, metrics=True)
    losses, failures, metrics = wire.read_losses(content, asked=2)
    go_on.set()
    assert (set(losses) - {1}, metrics) == (set(), {})  # with one core, device 1 waits for 0
    assert failures[0].startswith("seconds ")


def test_metrics_are_paid_for():
    class Telling(Quadratic):
        def metrics(self, x):
            return {"told": 1.0}

    grid = limited(Telling(dim=8, devices=6), queries=2)
    told = [
        wire.read_losses(ask(grid, devices=devices, kind=wire.EVALUATE, metrics=True), asked=1)[2]
        for devices in ([], [0])
    ]
    assert told == [{}, {"told": 1.0}]
    assert Ledger(grid.contexts[1].node_config["ledger"]).spent("1").total == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only there the system sees to it")
def test_memory_of_the_problem_is_limited():
    class Greedy(Quadratic):
        def values(self, points, batch):
            return np.ones((2**33, 1))  # 64 GiB

    told = wire.read_answer(ask(limited(Greedy(dim=8, devices=6))), asked=1)
    assert told.failures[0].startswith("memory ")


def test_device_with_few_records_answers_nothing():
    problem = softmax(devices=20)
    grid = limited(problem, records=problem.size(0) + 1)
    content = ask(grid, kind=wire.EVALUATE, x=problem.initial(), metrics=True)
    losses, failures, metrics = wire.read_losses(content, asked=1)
    assert (losses, metrics) == ({}, {})
    assert failures[0].startswith("records ")


def test_clock_that_was_put_back_frees_nothing(tmp_path, monkeypatch):
    ledger = Ledger(str(tmp_path / "ledger.sqlite"))
    ledger.reserve("1", 8, Spent(100, 10, 100))
    monkeypatch.setattr("fedzo.flower.ledger._today", lambda: "2001-01-01")
    with pytest.raises(reasons.Refused, match="11 of 10 of today"):
        ledger.reserve("2", 3, Spent(100, 10, 100))


def test_ledger_survives_a_kill(tmp_path):
    path = str(tmp_path / "ledger.sqlite")
    script = (
        "import sys, time; from fedzo.flower.ledger import *\n"
        "ledger = Ledger(sys.argv[1])\n"
        "while True:\n"
        "    ledger.reserve('1', 1, Spent(10**9, 10**9, 10**9))\n"
        "    print('charged', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
    said = sum(bool(process.stdout.readline()) for _ in range(5))
    os.kill(process.pid, signal.SIGKILL)
    said += len(process.stdout.read().splitlines())
    process.wait()
    process.stdout.close()
    assert said <= Ledger(path).spent("1").total <= said + 1  # charged before it was said


def test_ledger_is_one_for_all_who_charge_it(tmp_path):
    ledger = Ledger(str(tmp_path / "ledger.sqlite"))
    taken = []

    def charge():
        for _ in range(5):
            try:
                ledger.reserve("1", 1, Spent(12, 12, 12))
                taken.append(1)
            except reasons.Refused:
                pass

    threads = [threading.Thread(target=charge) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == ledger.spent("1").total == 12


@pytest.mark.parametrize("damage", ["a folder", "no database", "cut short", "overwritten"])
def test_no_answer_without_a_ledger(tmp_path, damage):
    path = tmp_path / "ledger.sqlite"
    if damage == "a folder":
        path.mkdir()
    elif damage == "no database":
        path.write_text("not a database" * 100)
    else:
        Ledger(str(path)).reserve("1", 1, Spent(10, 10, 10))
        whole = path.read_bytes()
        path.write_bytes(whole[:5000] if damage == "cut short" else whole[:4096] + b"\0" * 9000)
    assert refusal(ask(node(ledger=str(path)))) == "ledger"
    assert refusal(ask(node(ledger=str(path)), kind=wire.EVALUATE)) == "ledger"


# ------------------------------------------------------------------------- what it computes


@pytest.mark.parametrize("name", ["os:abort", "subprocess:getoutput", "tuning", "quadratic "])
def test_run_names_a_problem_but_cannot_import_one(name):
    settings = {"problem.name": name, "run.rounds": 1, "flower.patience": 0.1}
    grid = InProcessGrid(make_client_app({"quadratic": {}, "softmax": {}}), 1, settings)
    (reply,) = grid.send_and_receive([Message(wire.greeting({}), 1, wire.HELLO)])
    assert refusal(reply.content) == "unknown-problem"


def test_run_cannot_have_a_file_opened(tmp_path):
    secret = tmp_path / "passwd"
    secret.write_text("root:x:0:0")
    settings = {"config": str(secret), "problem.data-dir": str(tmp_path)}
    grid = InProcessGrid(make_client_app({"quadratic": {}, "softmax": {}}), 1, settings)
    (reply,) = grid.send_and_receive([Message(wire.greeting({}), 1, wire.HELLO)])
    assert refusal(reply.content) == "unknown-problem"
    assert "root" not in str(reply.content)


def test_algorithm_that_a_node_does_not_know():
    content = wire.task(wire.pack(steps_of(fedzo.FedZO(), np.zeros(8), 0, 0)), [0], False)
    task = dict(content["task"])
    task["algorithm"] = json.dumps({**json.loads(task["algorithm"]), "name": "os:abort"})
    content["task"] = type(content["task"])(task)
    (reply,) = node().send_and_receive([Message(content, 1, wire.TRAIN)])
    assert refusal(reply.content) == "unknown-algorithm"


@dataclass(frozen=True, kw_only=True)
class Proximal(fedzo.FedZO):
    """FedZO with a pull back to where the round began."""

    pull: float = 0.5

    coefficients_shape = None  # corrected steps are not sums of directions

    def local(self, objective, device, task, draws):
        pull = lambda x: self.pull * (x - task.x)  # noqa: E731
        return super().local(objective, device, task, draws, pull)


def test_algorithm_of_ones_own(tmp_path):
    """An algorithm named module:Class in a configuration, over messages and in one process."""
    from fedzo.config.experiment import Experiment
    from fedzo.flower.server import run_on

    tables = {
        "problem": {"name": "quadratic", "devices": 6},
        "algorithm": {"name": f"{__name__}:Proximal", "pull": 0.25, "learning_rate": 0.01},
        "run": {"rounds": 4, "evaluate_every": 2},
    }
    whole, half = Experiment.resolve(tables), {"rounds": 2, "evaluate_every": 2}
    app = make_client_app({"quadratic": {"devices": 6}}, algorithms=[Proximal])
    grid = InProcessGrid(app, 2)
    run_on(grid, Experiment.resolve({**tables, "run": half}), tmp_path / "there")
    run_on(grid, whole, tmp_path / "there", resume=True)
    whole.run(tmp_path / "here")
    for name in ("model.npy", "config.toml"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    strangers = InProcessGrid(make_client_app({"quadratic": {"devices": 6}}), 2)
    assert run_on(strangers, whole).message.endswith("in which no device took part")


def test_node_settles_the_settings_of_its_problem(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text(
        """
        devices = "0-1"
        [limits]
        local_steps = 7
        [problems.quadratic]
        devices = 4
        dim = 5
        """
    )
    config = {"node-file": str(file), "problem.dim": 6, "limits.directions": 9}
    read = Node.read(config)
    assert (read.limits.local_steps, read.limits.directions) == (7, 9)
    made = read.problem({"quadratic": {"dim": 2}}, {"problem.name": "quadratic"})
    assert (made.dim, made.devices) == (6, 4)


def test_node_with_problems_of_its_own_computes_no_others():
    config = {"devices": "0", "problems.quadratic": {"dim": 5, "devices": 6}}
    with pytest.raises(reasons.Refused, match="this node allows quadratic"):
        Node.read(config).problem({"softmax": {}}, {"problem.name": "softmax"})


@pytest.fixture
def client_process(monkeypatch):
    """Return Flower's client process, as far as loading the app; and what was unpacked and loaded.

    The archive stands for the client, so that a test can choose what the server has sent.
    """
    from flwr.supernode.runtime import run_clientapp as flower

    unpacked, loaded = [], []
    config = {"apps": [hashlib.sha256(b"ours").hexdigest()]}
    context = Context(1, 1, config, RecordDict(), {})

    def install(archive, install_dir=None, **_):
        unpacked.append(archive)
        return install_dir / "apps" / "ours"

    def loader(app_path, **_):
        return lambda *_: loaded.append(app_path)

    def process(archive=b"ours", version="1.0.0"):
        *_, fab = flower.pull_task_input(archive)
        flower.install_from_fab(fab, skip_prompt=True)
        folder = flower.get_project_dir("fedzo/app", version, "0" * 8)
        flower.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)("", "", "")
        return folder

    monkeypatch.setattr(flower, "pull_task_input", lambda client: (None, context, None, client))
    monkeypatch.setattr(flower, "install_from_fab", install)
    monkeypatch.setattr(flower, "get_load_client_app_fn", loader)
    monkeypatch.setattr(flower, "get_project_dir", flower.get_project_dir)
    monkeypatch.setattr(pinned, "_enforced", False)
    return process, unpacked, loaded


def test_only_listed_apps_are_run(monkeypatch, client_process):
    """In Flower's own client process: an app that is not listed is not even unpacked."""
    process, unpacked, loaded = client_process

    def both():
        process()
        with pytest.raises(UsageError, match="does not run the app with the SHA-256"):
            process(b"theirs")

    monkeypatch.setattr("flwr.supernode.cli.flwr_clientapp", both)
    pinned.run_listed()
    assert unpacked == [b"ours"]
    assert len(loaded) == 1


def test_app_is_loaded_from_an_empty_folder(monkeypatch, client_process):
    """A run's version must not lead Flower to a folder with other code in it."""
    process, _, loaded = client_process
    folders = []

    def traversing():
        folders.append(process(version="../../../srv/other"))
        assert folders[0].parents[1].is_dir()

    monkeypatch.setattr("flwr.supernode.cli.flwr_clientapp", traversing)
    pinned.run_listed()
    assert [Path(path) for path in loaded] == folders
    assert "other" not in str(folders[0])
    assert not folders[0].parents[1].exists()  # it is removed with its process


@pytest.mark.parametrize("command", ["flwr-agentapp", "flwr-serverapp", "flwr-model", "flwr-new"])
def test_other_tasks_are_rejected_even_for_listed_apps(monkeypatch, client_process, command):
    process, unpacked, loaded = client_process

    def one():
        with pytest.raises(UsageError, match=f"runs flwr-clientapp tasks only, not {command}"):
            process()

    monkeypatch.setattr("flwr.supernode.cli.flwr_clientapp", one)
    pinned.run_task(command)
    assert (unpacked, loaded) == ([], [])


def test_error_of_a_broken_configuration_tells_the_server_nothing(monkeypatch, client_process):
    process, *_ = client_process
    monkeypatch.setattr(Node, "read", lambda config: 1 / 0)

    def one():
        with pytest.raises(UsageError, match=r"^this node cannot read its configuration$"):
            process()

    monkeypatch.setattr("flwr.supernode.cli.flwr_clientapp", one)
    pinned.run_listed()


@pytest.mark.parametrize("kind", [wire.HELLO, wire.INITIAL, wire.TRAIN, wire.EVALUATE])
def test_listed_apps_that_nobody_enforces(monkeypatch, kind):
    """Flower's own command runs any app; ours says so, rather than seem to be protected."""
    listing = node(apps=["0" * 64])

    def send():
        if kind in (wire.TRAIN, wire.EVALUATE):
            return ask(listing, kind=kind)
        (reply,) = listing.send_and_receive([Message(wire.greeting({}), 1, kind)])
        return reply.content

    assert refusal(send()) == "not-pinned"
    monkeypatch.setattr(pinned, "_enforced", True)
    assert refusal(send()) is None


def test_every_task_command_has_a_launcher_first_in_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    pinned.put_launchers_first()
    for command in TASK_TYPE_TO_COMMAND.values():
        launcher = Path(shutil.which(command))
        assert launcher.parent == tmp_path / "fedzo-launchers"
        assert f"-m fedzo.flower.pinned {command} " in launcher.read_text()
    assert shutil.which("flower-superexec")  # which Flower starts by its name, too


def test_supported_versions_of_flower_are_those_of_the_project():
    needed = [r for r in requires("fedzo") if r.startswith("flwr")]
    assert all(Requirement(r).specifier.contains(f"{v}.0")
               for r in needed for v in pinned.FLOWER)  # fmt: skip
    newest = pinned.FLOWER[-1].split(".")
    after = f"{newest[0]}.{int(newest[1]) + 1}.0"
    assert not any(Requirement(r).specifier.contains(after) for r in needed)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "apps: missing; list the SHA-256"),
        (["--node-config", "devices=3"], "apps: missing; list the SHA-256"),
        (["--node-config", "a=[}"], "--node-config 'a=[}': must be pairs such as"),
        (["--node-config", 'node-file="nowhere.toml"'], "cannot read nowhere.toml: No such file"),
        (["--isolation", "process"], "unrecognized arguments: --isolation process"),
        (["--port", "abc"], "argument --port: invalid int value: 'abc'"),
    ],
)
def test_node_that_would_run_any_app_does_not_start(options, line, capsys):
    assert main(["node", "start", *options]) == Exit.NOTHING_RUN
    assert capsys.readouterr().err.startswith(f"fedzo: error: {line}")


def test_other_versions_of_flower_are_rejected(monkeypatch):
    monkeypatch.setattr("flwr.__version__", "1.50.0")
    with pytest.raises(UsageError, match=r"supports Flower 1\.41 and 1\.42, not 1\.50\.0"):
        pinned.start_node("", [])


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"limits.step": 3}, "limits.step = 3: unknown key"),
        ({"limits.seconds": 0}, "limits.seconds = 0: must be a whole number >= 1"),
        ({"limits": 3}, "limits = 3: must be a table"),
        ({"problems.quadratic": 3}, "problems.quadratic = 3: must be a table of settings"),
        ({"apps": "0" * 64}, f"apps = '{'0' * 64}': must be a list of SHA-256 sums"),
        ({"apps": ["9f0f68b3..."]}, "apps = '9f0f68b3...': must be a list of SHA-256 sums"),
        ({"ledgre": "x"}, "ledgre = 'x': unknown key (did you mean 'ledger'?)"),
        ({"node-file": "nowhere.toml"}, "cannot read nowhere.toml: No such file"),
    ],
)
def test_bad_configuration_of_a_node(config, line):
    with pytest.raises((UsageError, ValueError)) as caught:
        Node.read(config)
    assert str(caught.value).startswith(line)


def test_run_with_other_settings_than_the_nodes():
    settings = {"problem.name": "quadratic", "problem.dim": 7, "flower.patience": 0.1}
    grid = InProcessGrid(make_client_app({"quadratic": {"dim": 8}}), 2, settings)
    with pytest.raises(Halted, match="has other settings of the problem than the run"):
        make_server_app()(grid, Context(1, 0, {}, RecordDict(), settings))


# ---------------------------------------------------------------------------- what leaves it

SECRET = "database of ward 7 patient SMITH is offline"


@pytest.mark.parametrize("kind", [wire.TRAIN, wire.EVALUATE, wire.HELLO, wire.INITIAL])
@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_text_of_an_exception_stays_here(kind, error, caplog):
    def fails(x, device):
        raise error(SECRET)

    def cannot_begin(context):
        raise error(SECRET)

    objective = FunctionObjective(fails, 8, devices=6)
    grid = node(objective if kind in (wire.TRAIN, wire.EVALUATE) else cannot_begin)
    if kind in (wire.TRAIN, wire.EVALUATE):
        content = ask(grid, kind=kind)
        told = (
            wire.read_answer(content, asked=1).failures[0]
            if kind == wire.TRAIN
            else wire.read_losses(content, asked=1)[1][0]
        )
    else:
        (reply,) = grid.send_and_receive([Message(wire.greeting({}), 1, kind)])
        assert not reply.has_error()
        content, told = reply.content, wire.read_refusal(reply.content)
    assert "SMITH" not in str(content)
    code, reference = told.split()
    assert code in ("raised", "cannot-begin")
    said = [record.getMessage() for record in caplog.records]
    assert any(reference in one and SECRET in one for one in said)  # the node's own log


@pytest.mark.parametrize("kind", ["query", "query.secret", "train.other", "evaluate.x"])
def test_message_of_another_type_gets_a_code(kind):
    """Flower's own answer would be the text of its exception."""
    work = wire.pack(steps_of(fedzo.FedZO(), np.zeros(8), round=0, seed=0))
    (reply,) = node().send_and_receive([Message(wire.task(work, [0], False), 1, kind)])
    assert not reply.has_error()
    assert refusal(reply.content) == "malformed"


def test_every_reason_has_words():
    for reason in Reason:
        assert reasons.read(f"{reason.value} 01234567") == (reason.words, "01234567")


def test_history_has_the_words_of_a_code_and_the_log_its_reference(caplog):
    def fails(x, device):
        if device == 3:
            raise OSError(SECRET)
        return float(x @ x)

    objective = FunctionObjective(fails, 8, devices=6)
    federation = FlowerFederation(node(objective, nodes=3), 0, fedzo.Ideal(), QUICK)
    with caplog.at_level(logging.WARNING, "flwr"):
        federation.losses(np.ones(8))
    assert federation.dropped == [(3, "the problem raised an error")]
    at_once = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert len(at_once) == 1
    assert at_once[0].startswith("device 3 is left out: the problem raised an error (")
    assert "SMITH" not in at_once[0]
