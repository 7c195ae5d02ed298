"""A secure run on a SuperLink with four SuperNodes, which are killed in mid-run."""

import os
import signal

import numpy as np
import pytest
from flower_federation import Federation
from loopback import APP, LIMIT, PATIENT, here, rounds_done, settings_of, until, without

from fedzo.flower.ledger import Ledger
from fedzo.runs import read_history

pytestmark = pytest.mark.processes

NODES = 4
SECURE = {  # eight devices, of which a round has all, and steps that take no time
    "config": "",
    "problem.name": "quadratic",
    "problem.devices": 8,
    "algorithm.participants": "",
    "algorithm.learning-rate": 0.01,
    "algorithm.local-steps": 2,
    "uplink.name": "seeds",
    "set": "algorithm.shared-directions=true uplink.secure=true",
}
METRICS = ("optimality_gap", "gradient_norm_squared")  # a secure sum has none


def node_config(folder, part):
    file = folder / f"node-{part}.toml"
    return f'partition-id={part} num-partitions={NODES} node-file="{file}"'


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Return a federation whose nodes know each other's keys."""
    folder = tmp_path_factory.mktemp("secure")
    ledgers = [Ledger(str(folder / f"node-{i}.sqlite")) for i in range(NODES)]
    for ledger in ledgers:
        ledger.create()
    peers = ", ".join(f'"{ledger.member().key.hex()}"' for ledger in ledgers)
    for i, ledger in enumerate(ledgers):
        (folder / f"node-{i}.toml").write_text(
            f'ledger = "{ledger.path}"\n[secure]\npeers = [{peers}]\n'
            "[problems.quadratic]\ndevices = 8\n"
        )
    with Federation(folder) as made:
        for i in range(NODES):
            made.start_node(f"node-{i}", node_config(made.folder, i))
        yield made


def test_same_bits_as_in_one_process_after_kills(federation, tmp_path):
    """The server is killed after two rounds, and a node with it; both return."""
    changes = {**SECURE, "run.rounds": 4, "run.evaluate-every": 2}
    settings = {**changes, **PATIENT, "run-dir": str(tmp_path / "run")}
    first = federation.run(APP, settings)
    until(lambda: rounds_done(tmp_path / "run") >= 0)
    until(lambda: len(list(read_history(tmp_path / "run" / "history.jsonl"))) > 1)
    (server,) = federation.server_apps()
    os.kill(server, signal.SIGKILL)
    federation.end("node-2", signal.SIGKILL)
    assert federation.wait(first, LIMIT) == "finished:failed"
    federation.start_node("node-2", node_config(federation.folder, 2))
    second = federation.run(APP, {**settings, "resume": True})
    assert federation.wait(second, LIMIT) == "finished:completed", federation.log(second)
    result = here(settings_of(**changes))
    assert np.array_equal(np.load(tmp_path / "run" / "model.npy"), result.last)
    there = list(read_history(tmp_path / "run" / "history.jsonl"))
    for one, two in zip(there, result.history, strict=True):
        assert without(one) == {k: v for k, v in without(two).items() if k not in METRICS}
    assert "cannot validate the updates of single devices" in federation.log(second)


def test_killed_node_costs_its_own_devices(federation, tmp_path):
    """One of four nodes is killed in mid-run: the sums continue over the other three."""
    settings = {**SECURE, "run.rounds": 6, "run.evaluate-every": 6, "run.checkpoint-every": 1}
    settings |= {"flower.grace": 5.0, "flower.patience": 900.0, "run-dir": str(tmp_path / "run")}
    run = federation.run(APP, settings)
    until(lambda: rounds_done(tmp_path / "run") >= 2)
    federation.end("node-1", signal.SIGKILL)
    try:
        assert federation.wait(run, LIMIT) == "finished:completed", federation.log(run)
    finally:
        federation.start_node("node-1", node_config(federation.folder, 1))
    last = list(read_history(tmp_path / "run" / "history.jsonl"))[-1]
    assert last["participants"] == 6
    assert {one["device"] for one in last["dropped"]} == {2, 3}
