"""Values that are not finite end a run, and leave a checkpoint from before them."""

import re
import threading

import numpy as np
import pytest
from running import Spoiled, untimed

from fedzo import FedZO, Status, minimize
from fedzo.cli import main
from fedzo.problems import Quadratic
from fedzo.runs import RunFolder


@pytest.mark.parametrize(("bad", "workers"), [(np.nan, 1), (np.inf, 2), (-np.inf, 2)])
def test_bad_value_in_a_round(bad, workers, tmp_path):
    def run(rounds, **options):
        return minimize(
            Spoiled(bad, round=7, device=4),
            rounds=rounds,
            workers=workers,
            algorithm=FedZO(learning_rate=0.01, directions=2, local_steps=2),
            checkpoint_every=4,
            evaluate_every=3,
            run_dir=tmp_path,
            **options,
        )

    result = run(20)
    assert (result.status, result.success) == (Status.NON_FINITE, False)
    assert result.message == "the loss is not finite in round 7 on device 4"
    assert result.nit == 6
    assert [record["round"] for record in result.history] == [0, 3, 6]
    assert np.array_equal(np.load(tmp_path / "model.npy"), result.last)
    checkpoint = RunFolder(tmp_path).load()
    assert checkpoint.at.round == 4
    assert np.all(np.isfinite(checkpoint.at.state[0]))
    # The checkpoint is good: from there one gets as far as before, and no further.
    again = run(20, resume=True)
    assert again.message == result.message
    assert again.last.tobytes() == result.last.tobytes()
    assert untimed(again.history) == untimed(result.history)
    assert run(6, resume=True).status == Status.FINISHED


def test_of_several_bad_devices_the_first_is_named():
    """Whichever worker was quicker."""
    other = threading.Event()

    class Worse(Spoiled):
        def values(self, points, batch):
            device, _ = batch
            if device == 5:
                other.set()
            if device == 2:
                assert other.wait(10)
            return np.full((len(points), 1), np.nan if device in (2, 5) else 0.0)

    result = minimize(Worse(), rounds=3, workers=4)
    assert result.message == "the loss is not finite in round 1 on device 2"


def test_bad_loss_at_an_evaluation(tmp_path):
    result = minimize(
        Spoiled(bad_loss=2),
        rounds=9,
        evaluate_every=5,
        checkpoint_every=2,
        algorithm=FedZO(directions=2, local_steps=1),
        run_dir=tmp_path,
    )
    assert result.status == Status.NON_FINITE
    assert result.message == "the loss is not finite in round 5 on device 2"
    assert [record["round"] for record in result.history] == [0]
    assert result.fun == 3.0  # the last that was a number
    assert RunFolder(tmp_path).load().at.round == 4


def test_bad_loss_at_the_end_leaves_the_checkpoint_of_a_longer_run(tmp_path):
    """A run of more rounds does not evaluate there, and a resume continues as that run."""
    result = minimize(
        Spoiled(bad_loss=0),
        rounds=5,
        evaluate_every=100,
        checkpoint_every=2,
        algorithm=FedZO(directions=2, local_steps=1),
        run_dir=tmp_path,
    )
    assert result.message == "the loss is not finite in round 5 on device 0"
    assert RunFolder(tmp_path).load().at.round == 5


def test_bad_loss_at_the_start(tmp_path):
    result = minimize(
        Spoiled(np.inf, bad_loss=5, from_start=True), rounds=5, run_dir=tmp_path / "run"
    )
    assert (result.status, result.nit, result.history) == (Status.NON_FINITE, 0, [])
    assert result.message == "the loss is not finite in round 0 on device 5"
    assert np.isnan(result.fun)
    assert np.array_equal(result.last, np.zeros(3))
    assert not (tmp_path / "run" / "curves.png").exists()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("learning_rate", [1e160, 1e305])
def test_divergence(learning_rate, workers, tmp_path):
    """Without NumPy's warnings: they would be errors here.

    (A rate of 1e100 is not huge enough: at |x| = 1e100 all differences of losses are rounded to
    zero, so that x stays where it is, finite.)
    """
    result = minimize(
        Quadratic(dim=6, devices=4),
        algorithm=FedZO(learning_rate=learning_rate, directions=2, local_steps=2),
        rounds=20,
        workers=workers,
        checkpoint_every=1,
        run_dir=tmp_path,
    )
    assert result.status == Status.NON_FINITE
    named = re.fullmatch(
        r"(the loss|the model) is not finite in round (\d+)( on device \d+)?", result.message
    )
    assert named
    assert int(named[2]) in (result.nit, result.nit + 1)
    assert np.all(np.isfinite(result.last))
    assert np.isfinite(result.fun)
    assert np.all(np.isfinite(RunFolder(tmp_path).load().at.state[0]))


def test_float32_model_may_overflow_where_the_losses_do_not():
    class Steep(Spoiled):
        def values(self, points, batch):
            return 1e30 * points.astype(float).sum(axis=1)[:, None]

        def losses(self, x, devices):
            return np.zeros(len(devices))

    result = minimize(
        Steep(),
        np.zeros(3, np.float32),
        rounds=3,
        algorithm=FedZO(learning_rate=1e10, directions=2, local_steps=1),
    )
    assert result.status == Status.NON_FINITE
    assert result.message == "the model is not finite in round 1"
    assert np.array_equal(result.last, np.zeros(3, np.float32))


@pytest.mark.pictures
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("method", ["adaptive", "cma", "lbfgs"])
def test_a_search_from_a_start_without_a_value_can_be_resumed_and_drawn(method, bad, tmp_path):
    def half(x):
        return bad if x[0] < 1 else float((x - 2) @ (x - 2))

    def interrupt(progress):
        if progress.round == 3:
            raise KeyboardInterrupt

    def run(folder, **options):
        return minimize(
            half, [0.9, 0.0], method=method, max_queries=200, run_dir=tmp_path / folder, **options
        )

    whole = run("whole")
    first = run("other", callback=interrupt)
    resumed = run("other", resume=True)
    assert first.status is Status.INTERRUPTED
    assert (resumed.fun, resumed.nfev) == (whole.fun, whole.nfev)
    assert resumed.history[0]["train_loss"] == np.inf
    models = [(tmp_path / folder / "model.npy").read_bytes() for folder in ("whole", "other")]
    assert models[0] == models[1]
    assert (tmp_path / "other" / "curves.png").exists()
    assert main(["plot", str(tmp_path / "other"), "--out", str(tmp_path / "x.png")]) == 0
    assert main(["report", str(tmp_path)]) == 0
