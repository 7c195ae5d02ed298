"""The same run in one process and on a SuperLink with three SuperNodes, on loopback."""

import numpy as np
import pytest
from loopback import APP, LIMIT, PATIENT, here, settings_of, without

from fedzo.flower.ledger import Ledger
from fedzo.runs import read_history

pytestmark = pytest.mark.processes


def test_same_run_as_in_one_process(federation, tmp_path):
    runs = {
        kind: {"uplink.name": kind, "run.rounds": 3, "run.evaluate-every": 3}
        for kind in ("ideal", "seeds")
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
        asked = there[-1]["queries"] + there[-1]["evaluation_queries"]
        spent = sum(ledger(federation, i).spent(run).run for i in range(3))
        # A node is charged for the directions that it draws to catch up, with headers of the log.
        drawn = 3 * 3 * 20 * (100 + 4) if name == "seeds" else 0  # nodes, rounds, devices, H b2
        assert asked <= spent <= asked + 2 * drawn
    ideal, seeds = (
        list(read_history(tmp_path / name / "history.jsonl"))[-1] for name in ("ideal", "seeds")
    )
    assert ideal["message_up_bytes"] > 50 * seeds["message_up_bytes"]


def ledger(federation, node):
    """Return what a node has spent: every message was another process."""
    return Ledger(str(federation.folder / f"node-{node}-home" / "fedzo-ledger.sqlite"))


def test_nothing_of_a_run_is_imported_on_a_node(federation, tmp_path):
    """A run that names os:abort finds no quorum, and the nodes live on."""
    settings = {"problem.name": "os:abort", "flower.patience": 30.0}
    run = federation.run(APP, {**settings, "run-dir": str(tmp_path / "run")})
    assert federation.wait(run, LIMIT) == "finished:failed"
    assert "the node does not allow this problem" in federation.log(run)
    assert all(process.poll() is None for process in federation.processes.values())
    logs = "".join((federation.folder / f"node-{i}.log").read_text() for i in range(3))
    assert "problem.name = 'os:abort': this node allows softmax" in logs
