"""Ask and tell is `minimize`, to the bit, whatever happens between two batches."""

import json
import pickle

import numpy as np
import pytest

import fedzo
from fedzo.errors import UsageError
from fedzo.runs import Status
from raising import rejects

ALGORITHMS = [
    fedzo.FedZO(learning_rate=0.05, directions=3, local_steps=3, participants=2),
    fedzo.FedZO(learning_rate=0.05, directions=2, local_steps=2, difference="central"),
    fedzo.ZOSGD(learning_rate=0.05, batch_size=6, directions=3),
    fedzo.DZOPA(learning_rate=0.05, directions=3),
    fedzo.ZoneS(penalty=1.0, directions=3),
    fedzo.Adaptive(),
    fedzo.CMA(population=4),
]
SETTINGS = {"devices": 4, "rounds": 7, "seed": 3, "evaluate_every": 3}


def distance(x, device):
    return float(np.sum((x - device) ** 2) + np.sin(x[0]))


def answer(opt):
    opt.tell([distance(x, device) for x, device in opt.ask()])


def drain(opt):
    while opt.ask():
        answer(opt)
    return opt.result()


def same(one, two):
    assert one.x.tobytes() == two.x.tobytes()
    assert one.x.dtype == two.x.dtype
    assert one.last.tobytes() == two.last.tobytes()
    for key in ("fun", "status", "message", "nit", "queries", "evaluation_queries"):
        assert getattr(one, key) == getattr(two, key)
    strip = [{k: v for k, v in r.items() if k != "seconds"} for r in one.history]
    assert strip == [{k: v for k, v in r.items() if k != "seconds"} for r in two.history]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_the_same_run_as_minimize(algorithm, dtype):
    x0 = np.full(3, 0.5, dtype)
    whole = fedzo.minimize(distance, x0, algorithm=algorithm, **SETTINGS)
    opt = fedzo.AskTell(x0, algorithm=algorithm, **SETTINGS)
    same(drain(opt), whole)
    assert opt.ask() == []
    assert opt.x.tobytes() == whole.last.tobytes()


@pytest.mark.parametrize("uplink", [fedzo.Seeds(), fedzo.AirComp(snr_db=10.0)])
def test_with_other_uplinks_bounds_and_a_target(uplink):
    given = {**SETTINGS, "uplink": uplink, "bounds": [(0, 2), (None, 5), (None, None)]}
    given |= {"algorithm": ALGORITHMS[0], "target": 6.0, "rounds": 50}
    whole = fedzo.minimize(distance, np.full(3, 0.5), **given)
    assert whole.status is Status.STOPPED
    opt = fedzo.AskTell(np.full(3, 0.5), **given)
    seen = []
    while batch := opt.ask():
        seen += [x for x, _ in batch]
        answer(opt)
    same(opt.result(), whole)
    assert (np.array(seen)[:, 0] >= 0).all()
    assert (np.array(seen)[:, 0] <= 2).all()


@pytest.mark.parametrize("again", [False, True])
def test_the_plain_call_with_a_budget_is_that_of_minimize(again, tmp_path):
    given = {"devices": 3, "max_queries": 150, "scale": ["log", "linear", "linear"]}
    x0 = np.array([0.01, 0.0, 1.0])
    whole = fedzo.minimize(distance, x0, x_scale=2.0, **given)
    opt, told = fedzo.AskTell(x0, x_scale=2.0, **given), 0
    while batch := opt.ask():
        told += len(batch)
        answer(opt)
        opt = through_json(opt, tmp_path) if again else opt
    same(opt.result(), whole)
    assert told == opt.result().nfev <= 150


@pytest.mark.parametrize("budget", [4, 5, 19, 20, 43, 44, 47, 48, 100])
def test_nothing_is_asked_that_a_budget_is_not_enough_for(budget):
    """An evaluation takes 4 values, a local step 2 (3 + 1) and a round three of these."""
    opt = fedzo.AskTell(np.ones(3), max_queries=budget, algorithm=ALGORITHMS[0], **SETTINGS)
    told = 0
    while batch := opt.ask():
        told += len(batch)
        answer(opt)
    result = opt.result()
    assert told == result.nfev <= budget < told + 8
    assert "the budget" in result.message
    assert result.nit == min((budget - 4) // 24, 3)


def test_a_batch_holds_what_all_devices_want():
    """Two evaluations of the start, then each local step of all participants at once."""
    opt = fedzo.AskTell(np.ones(3), algorithm=ALGORITHMS[0], **SETTINGS)
    for _ in range(2):
        assert [device for _, device in opt.ask()] == [0, 1, 2, 3]
        assert all(np.array_equal(x, np.ones(3)) for x, _ in opt.ask())
        answer(opt)
    for _ in range(3):  # H
        devices = [device for _, device in opt.ask()]
        assert len(devices) == 2 * (3 + 1)
        assert len(set(devices)) == 2
        answer(opt)
    assert opt.result().nit == 1


def test_what_is_asked_is_the_callers_own():
    opt = fedzo.AskTell(np.ones(3), **SETTINGS)
    opt.ask()[0].x[:] = 99
    assert opt.ask()[0].x.tolist() == [1, 1, 1]


def through_json(opt, folder):
    opt.save(folder / "run.json")
    return fedzo.AskTell.load(folder / "run.json")


def through_pickle(opt, folder):
    return pickle.loads(pickle.dumps(opt))


@pytest.mark.parametrize("again", [through_json, through_pickle])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_goes_on_next_week(again, algorithm, tmp_path):
    x0 = np.full(3, 0.5, np.float32)
    given = {**SETTINGS, "bounds": [(0, 1), (None, None), (-1, None)], "algorithm": algorithm}
    whole = fedzo.minimize(distance, x0, **given)
    opt = fedzo.AskTell(x0, **given)
    while opt.ask():
        opt = again(opt, tmp_path)
        answer(opt)
    same(again(opt, tmp_path).result(), whole)


class Mine(fedzo.FedZO):
    """Somebody's own algorithm."""


def test_an_algorithm_of_ones_own_is_found_again(tmp_path):
    opt = fedzo.AskTell(np.ones(3), algorithm=Mine(learning_rate=0.01), **SETTINGS)
    answer(opt)
    assert type(through_json(opt, tmp_path)._loop.job.algorithm) is Mine


def test_a_value_that_could_not_be_had(tmp_path):
    """Its device is left out of that round, as a function that fails leaves it out."""
    algorithm = fedzo.FedZO(learning_rate=0.05, directions=3, local_steps=2)
    opt = fedzo.AskTell(np.ones(3), algorithm=algorithm, **SETTINGS)
    answer(opt)
    answer(opt)
    first = [np.nan if i == 1 else distance(x, i) for x, i in opt.ask()]
    opt.tell(first)
    assert {device for _, device in opt.ask()} == {0, 2, 3}  # step two, of the others
    opt = through_json(opt, tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["values"].count(None) == 4
    result = drain(opt)
    assert result.history[1]["dropped"] == [
        {"round": 1, "device": 1, "reason": "the function returned nan"}
    ]
    assert result.queries == 7 * 4 * 8 - 4  # of the step that it was left out of


def test_a_run_that_waits_tells_so():
    opt = fedzo.AskTell(np.ones(3), **SETTINGS)
    result = opt.result()
    assert (result.status, result.success, result.nit) == (Status.INTERRUPTED, False, 0)
    assert result.message == "waiting for 4 values after round 0"


@pytest.mark.parametrize("values", [3.0, [None, 1, 2, 3], ["a", 1, 2, 3], [[1], [2], [3], [4]]])
def test_values_are_numbers(values):
    opt = fedzo.AskTell(np.ones(3), **SETTINGS)
    with rejects("values"):
        opt.tell(values)
    assert len(opt.ask()) == 4  # as before


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_auto_is_the_same_run_too(tmp_path, scale):
    """The measurement before the run is asked for like anything else."""
    auto = fedzo.FedZO(learning_rate="auto", smoothing="auto", directions=2, local_steps=2)
    start, count = scale * np.ones(3), 0
    expected = fedzo.minimize(
        lambda x, i: distance(x / scale, i), start, algorithm=auto, **SETTINGS
    )
    opt = fedzo.AskTell(start, algorithm=auto, **SETTINGS)
    assert opt.x.tobytes() == start.tobytes()
    assert opt.result().message == "waiting for 16 values after round 0"  # two at x0, two beside
    while batch := opt.ask():
        count += len(batch)
        opt.tell([distance(x / scale, i) for x, i in batch])
        opt = through_json(opt, tmp_path) if count < 150 else opt
    result = opt.result()
    assert result.last.tobytes() == expected.last.tobytes()
    assert count == result.nfev == expected.nfev
    assert [r["queries"] for r in result.history] == [r["queries"] for r in expected.history]


@pytest.mark.parametrize("count", [0, 3, 5])
def test_values_are_told_for_the_whole_batch(count):
    opt = fedzo.AskTell(np.ones(3), **SETTINGS)
    with rejects("values"):
        opt.tell([0.0] * count)
    assert len(opt.ask()) == 4


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError):
        fedzo.AskTell.load(tmp_path / "none.json")
    for text in ('{"x0": [1', "{}", "[1]"):
        (tmp_path / "half.json").write_text(text)
        with pytest.raises(UsageError):
            fedzo.AskTell.load(tmp_path / "half.json")


def test_a_difference_that_is_not_finite_ends_the_run_as_in_minimize():
    """The error is raised in the run, not to the caller of tell."""
    algorithm = fedzo.FedZO(learning_rate=0.01, directions=2, local_steps=2)
    opt = fedzo.AskTell(np.ones(3), devices=2, algorithm=algorithm, rounds=5)
    while opt.result().nit < 2:
        opt.tell([float(x @ x) for x, _ in opt.ask()])
    while batch := opt.ask():  # the slope between two such values overflows
        opt.tell([(k % 2) * 1.7e308 for k in range(len(batch))])
    assert opt.result().status is fedzo.Status.NON_FINITE
    assert not opt.result().success
