"""Who is killed: the server, a node, one node too many; real processes on loopback."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
from flower_federation import NAME
from loopback import APP, LIMIT, PATIENT, here, node_config, rounds_done, settings_of, until

from fedzo.runs import read_history

pytestmark = pytest.mark.processes

SMALL = {  # nine devices, of which a round has all, and steps that take no time
    "config": "",
    "problem.name": "quadratic",
    "problem.devices": 9,
    "algorithm.participants": "",
    "algorithm.learning-rate": 0.01,
}


def kept(federation, name):
    """Return the round and the model that a node has followed a run to."""
    states = (federation.folder / f"{name}-home" / "fedzo-models").glob("*.state")
    with max(states, key=lambda path: path.stat().st_mtime_ns).open("rb") as file:
        return json.loads(file.readline())["round"], np.load(file)


def test_killed_server_and_a_new_node_come_to_the_same_model(federation, tmp_path):
    """Nodes follow the run by its coefficients; one of them is killed and comes with nothing."""
    changes = {"uplink.name": "seeds", "algorithm.local-steps": 1, "run.rounds": 4}
    settings = {**changes, **PATIENT, "run-dir": str(tmp_path / "run")}
    first = federation.run(APP, settings)
    until(lambda: rounds_done(tmp_path / "run") >= 1)
    (server,) = federation.server_apps()
    os.kill(server, signal.SIGKILL)
    federation.end("node-2", signal.SIGKILL)
    shutil.rmtree(federation.folder / "node-2-home" / "fedzo-models")
    assert federation.wait(first, LIMIT) == "finished:failed"
    assert rounds_done(tmp_path / "run") < 4
    federation.start_node("node-2", node_config(federation.folder, 2, 3))
    second = federation.run(APP, {**settings, "resume": True})
    assert federation.wait(second, LIMIT) == "finished:completed", federation.log(second)
    result = here(settings_of(**changes))
    x = np.load(tmp_path / "run" / "model.npy")
    assert np.abs(x - result.last).max() <= 1e-6 * np.abs(result.last).max()
    for name in ("node-0", "node-1", "node-2"):
        round, own = kept(federation, name)
        assert round == 4
        assert np.array_equal(own, x)
    assert "sent the model" not in federation.log(second)
    last = list(read_history(tmp_path / "run" / "history.jsonl"))[-1]
    assert last["message_down_bytes"] < 3 * 4000  # a round's coefficients; the model has 31,400


def test_killed_node_costs_its_updates_and_comes_back(federation, tmp_path):
    folder = tmp_path / "run"
    settings = {"run.rounds": 40, "run.evaluate-every": 1, "flower.grace": 30.0}
    run = federation.run(APP, {**SMALL, **settings, "run-dir": str(folder)})

    def history():
        return list(read_history(folder / "history.jsonl"))

    until(lambda: len(history()) > 2)
    federation.end("node-2", signal.SIGKILL)
    until(lambda: history()[-1]["participants"] == 6)
    federation.start_node("node-2", node_config(federation.folder, 2, 3))
    gone = len(history())
    until(lambda: any(r["participants"] == 9 for r in history()[gone:]))
    federation.flwr("stop", run, NAME)
    without_it = [r for r in history() if r["participants"] == 6]
    assert without_it
    assert {r["participants"] for r in history()[1:]} == {6, 9}
    named = [one for r in history() for one in r.get("dropped", ())]
    assert {one["device"] for one in named} == {6, 7, 8}
    assert all(np.isfinite(r["train_loss"]) for r in history())
    assert history()[-1]["train_loss"] < history()[0]["train_loss"]


def test_no_quorum_ends_with_a_checkpoint(federation, tmp_path):
    folder = tmp_path / "run"
    settings = {"run.rounds": 50, "flower.quorum": 1.0, "flower.patience": 30.0}
    run = federation.run(APP, {**SMALL, **settings, "run-dir": str(folder)})
    until(lambda: rounds_done(folder) >= 1)
    federation.end("node-1", signal.SIGKILL)
    assert federation.wait(run, LIMIT) == "finished:failed"
    assert "no quorum within 30 s: 6 of 9 devices" in federation.log(run)
    assert 1 <= rounds_done(folder) < 50
