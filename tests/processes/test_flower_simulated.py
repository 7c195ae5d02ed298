"""The app of a federation, simulated by Flower on one machine: ``flwr run``."""

import numpy as np
import pytest
from flower_federation import Federation
from loopback import APP, LIMIT, PATIENT, here, settings_of, without

from fedzo.runs import read_history

pytest.importorskip("ray", reason="needs Flower's simulation engine")
pytestmark = pytest.mark.processes


@pytest.mark.parametrize("uplink", ["ideal", "seeds"])
def test_the_same_app_runs_simulated(uplink, tmp_path):
    """It is the app that test_flower_deployment runs on real nodes."""
    changes = {"uplink.name": uplink, "run.rounds": 2, "run.evaluate-every": 2}
    with Federation(tmp_path / "made", simulated=True) as made:
        run = made.run(APP, {**changes, **PATIENT, "run-dir": str(tmp_path / "run")})
        assert made.wait(run, LIMIT) == "finished:completed", made.log(run)
    result = here(settings_of(**changes))
    x = np.load(tmp_path / "run" / "model.npy")
    assert np.abs(x - result.x).max() <= 1e-6 * np.abs(result.x).max()
    there = read_history(tmp_path / "run" / "history.jsonl")
    for one, two in zip(there, result.history, strict=True):
        assert without(one) == pytest.approx(without(two), rel=1e-6)
