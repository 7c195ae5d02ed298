"""What a run came to: a success, or in which way it is none; the best model and the last."""

from dataclasses import dataclass

import numpy as np
import pytest

import fedzo
from fedzo import FedZO, Status, minimize
from fedzo.runs import RunFolder
from raising import fails

EXACT = {"directions": 2, "direction_kind": "coordinate", "smoothing": 1e-4, "local_steps": 1}


def bowl(x, device):
    return 1.0 + float(x @ x)


def run(fun=bowl, x0=(1.0, -1.0), rate=0.1, rounds=6, **options):
    return minimize(
        fun,
        np.array(x0),
        devices=2,
        rounds=rounds,
        evaluate_every=options.pop("evaluate_every", 1),
        algorithm=FedZO(learning_rate=rate, **EXACT),
        **options,
    )


def test_a_success():
    result = run()
    assert (result.success, result.status) == (True, Status.FINISHED)
    assert result.message == "finished 6 rounds"
    assert result.best.round == 6
    assert np.array_equal(result.x, result.last)
    assert result.fun == result.history[-1]["train_loss"] == bowl(result.x, 0)


def test_diverged(tmp_path):
    """A step of 1.1 times the way and more turns x to -1.2 x: f grows from the first round on."""
    result = run(rate=1.1, run_dir=tmp_path)
    assert (result.success, result.status) == (False, Status.DIVERGED)
    assert result.status == 5
    last = bowl(result.last, 0)
    assert last == pytest.approx(1 + 2 * 1.2**12, rel=1e-2)
    assert result.message == f"finished 6 rounds, but the loss rose from 3 to {last:.4g}"
    assert result.x.tolist() == [1, -1]  # the start is the best
    assert (result.fun, result.best.round) == (3.0, 0)
    assert np.array_equal(np.load(tmp_path / "model.npy"), result.last)
    assert np.array_equal(np.load(tmp_path / "best.npy"), result.x)


def test_diverged_after_something_better():
    """What was better on the way is kept, and named."""

    def narrow(x, device):  # falls along x[0] at first, and rises ever more along x[1]
        return float(x[0] ** 2 + 9 * x[1] ** 2)

    result = run(narrow, (4.0, 0.1), rate=0.13, rounds=30)
    losses = [record["train_loss"] for record in result.history]
    best = int(np.argmin(losses))
    assert 0 < best < 30
    assert result.status is Status.DIVERGED
    assert result.message.endswith(f"; the best, {min(losses):.4g}, is of round {best}")
    assert (result.best.round, result.fun) == (best, min(losses))
    assert narrow(result.x, 0) == result.fun


def test_not_everything_that_rises_has_diverged():
    """Less than one per cent above the start is noise around it; nothing is better than it, too."""
    result = run(x0=(0.0, 0.0))
    assert 1 < result.history[-1]["train_loss"] < 1.01
    assert (result.success, result.status) == (False, Status.STALLED)
    assert result.message == (
        "finished 6 rounds, but no evaluated model is better than the start, 1"
    )
    assert result.x.tolist() == [0, 0]
    assert result.last.tolist() != [0, 0]


def test_a_flat_loss_has_stalled():
    result = run(lambda x, device: 2.0)
    assert (result.success, result.status) == (False, Status.STALLED)
    assert result.message.startswith("finished 6 rounds, but the model did not move: ")
    assert result.last.tolist() == [1, -1]


def test_smoothing_below_the_precision_of_x_has_stalled():
    """1e9 + 1e-4 is 1e9 in float32, so no value tells anything."""
    result = minimize(
        bowl,
        np.full(2, 1e9, np.float32),
        devices=2,
        rounds=3,
        algorithm=FedZO(learning_rate=0.1, **EXACT),
    )
    assert result.status is Status.STALLED
    assert "μ or the step is below the precision of x" in result.message


def test_nobody_took_part():
    result = run(uplink=fedzo.AirComp(h_min=1e6))
    assert (result.success, result.status) == (False, Status.HALTED)
    assert result.message == "finished 6 rounds, in which no device took part"
    assert result.queries == 0


@dataclass(frozen=True)
class Seldom(fedzo.Ideal):
    """Everybody in the first rounds, and then nobody."""

    until: int = 1

    def participants(self, t, wanted, federation):
        return super().participants(t, wanted, federation)[: None if t < self.until else 0]


@pytest.mark.parametrize(("until", "status"), [(2, Status.STALLED), (3, Status.FINISHED)])
def test_most_rounds_must_have_had_somebody(until, status):
    result = run(uplink=Seldom(until))
    assert result.status is status
    idle = f", but in {6 - until} of 6 no device took part"
    assert result.message == "finished 6 rounds" + (idle if status else "")


def test_a_verdict_is_the_same_after_a_resume(tmp_path):
    """The first record, the idle rounds and the best are those of the whole run."""
    whole = run(rate=1.1, rounds=6)
    run(rate=1.1, rounds=3, run_dir=tmp_path)
    resumed = run(rate=1.1, rounds=6, run_dir=tmp_path, resume=True)
    assert (resumed.status, resumed.message) == (whole.status, whole.message)
    assert resumed.x.tobytes() == whole.x.tobytes()
    assert resumed.last.tobytes() == whole.last.tobytes()


def test_idle_rounds_are_counted_over_a_resume(tmp_path):
    options = {"uplink": Seldom(2), "run_dir": tmp_path}
    run(rounds=4, **options)
    resumed = run(rounds=6, resume=True, **options)
    assert resumed.message == "finished 6 rounds, but in 4 of 6 no device took part"


def test_an_interrupted_run_is_not_judged():
    def stop(progress):
        if progress.round == 3:
            raise KeyboardInterrupt

    result = run(rate=1.1, callback=stop)
    assert result.status is Status.INTERRUPTED
    assert result.message == "interrupted after round 3"


def test_no_rounds_are_no_failure():
    assert run(rounds=0).success


def test_the_best_is_evaluated_and_the_last_may_not_be():
    """Evaluations at 0, 4 and the end: the best is one of these, whatever lies between."""
    whole = run(rate=0.1, rounds=6, evaluate_every=4)
    assert [record["round"] for record in whole.history] == [0, 4, 6]
    assert whole.best.round == 6
    seen = {}
    run(rate=0.1, callback=lambda progress: seen.update({progress.round: progress.x}))
    assert np.array_equal(whole.x, seen[6])


def test_a_search_that_finds_nothing_better_does_not_speak_of_smoothing():
    pytest.importorskip("optuna")
    result = minimize(bowl, [0.0, 0.0], devices=2, rounds=4, algorithm=fedzo.TPE(batch_size=1))
    assert result.status is Status.STALLED
    assert "no evaluated model is better than the start" in result.message


def test_a_device_dropped_in_every_round_is_named():
    """It answers evaluations, which ask at x itself, and fails wherever a round asks."""
    start = np.array([1.0, -1.0])

    def moody(x, device):
        if device == 1 and not np.array_equal(x, start):
            raise OSError("offline")
        return bowl(x, device)

    result = minimize(
        moody, start, devices=3, rounds=3, evaluate_every=9, on_failure="leave_out",
        algorithm=FedZO(learning_rate=0.1, **EXACT),
    )  # fmt: skip
    assert result.success
    assert result.message.startswith("finished 3 rounds; device 1 was dropped")
    assert {one["device"] for one in result.dropped} == {1}


@pytest.mark.parametrize("damage", ["lost", "empty", "cut", "shuffled", "changed"])
def test_a_history_that_does_not_fit_is_refused(damage, tmp_path):
    folder, history = tmp_path / "run", tmp_path / "run" / "history.jsonl"
    run(rounds=4, run_dir=folder)
    lines = history.read_text().splitlines(keepends=True)
    other = lines[1].replace('"round": 1', '"round": 9')
    assert other != lines[1]
    found = {"cut": lines[:-1], "shuffled": lines[::-1], "changed": [lines[0], other, *lines[2:]]}
    history.unlink() if damage == "lost" else history.write_text("".join(found.get(damage, [])))
    before = history.read_text() if history.exists() else None
    with fails("history-mismatch"):
        run(rounds=6, run_dir=folder, resume=True)
    assert (history.read_text() if history.exists() else None) == before


def test_what_follows_the_records_of_the_checkpoint_is_replaced(tmp_path):
    """As after a kill between a record and the next checkpoint; here it is even damaged."""
    folder, whole = tmp_path / "run", run(rounds=6)
    run(rounds=4, run_dir=folder)
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"round": 5, "train_loss": "?"}\nno JSON\n')
    result = run(rounds=6, run_dir=folder, resume=True)
    without = [[{**r, "seconds": 0} for r in each.history] for each in (result, whole)]
    assert without[0] == without[1]


@pytest.mark.parametrize("last", [0, 3])
def test_killed_between_a_record_and_its_checkpoint(last, tmp_path, monkeypatch):
    """The first checkpoint is from before the first record; a resumed run makes that again."""

    class KilledError(RuntimeError):
        pass

    def append(self, record, write=RunFolder.append):
        write(self, record)
        if record["round"] == last:
            raise KilledError

    whole = run(rounds=6)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", append)
        with pytest.raises(KilledError):
            run(rounds=6, run_dir=tmp_path / "run")
    result = run(rounds=6, run_dir=tmp_path / "run", resume=True)
    assert np.array_equal(result.last, whole.last)
    without = [[{**r, "seconds": 0} for r in each.history] for each in (result, whole)]
    assert without[0] == without[1]


def test_an_optimal_start_is_a_success():
    """The search ended on its own; one whose budget ended cannot tell."""
    keywords = {"devices": 2, "algorithm": fedzo.LBFGS()}
    result = fedzo.minimize(lambda x, device: float(x @ x), np.zeros(3), **keywords)
    assert (result.success, result.fun) == (True, 0)


def test_an_interrupted_search_returns_the_best_that_it_knows():
    def interrupt(progress):
        if progress.round == 17:  # off the schedule
            raise KeyboardInterrupt

    result = fedzo.minimize(
        lambda x, device: float(np.sum((x - 1) ** 2)),
        np.zeros(3),
        devices=2,
        evaluate_every=1000,
        callback=interrupt,
    )
    assert result.status is fedzo.Status.INTERRUPTED
    assert result.fun < 3
    assert result.fun == np.sum((result.x - 1) ** 2)
