"""``fedzo.minimize`` as a function: its arguments, its result, its configuration."""

import tomllib

import numpy as np
import pytest
import scipy.optimize
from running import CENTRES, SMALL, Spoiled, distance

import fedzo
from fedzo import FedZO, Status, minimize
from fedzo.errors import NonFinite
from raising import fails, rejects


def test_finds_the_minimum():
    result = minimize(
        distance,
        np.zeros(3),
        devices=4,
        rounds=80,
        algorithm=FedZO(
            learning_rate=0.05,
            smoothing=1e-6,
            directions=3,
            direction_kind="coordinate",
            local_steps=1,
        ),
    )
    # The full finite difference is the gradient, 2 (x - mean centre), to μ: after 80 steps of
    # x <- x - 0.1 (x - mean) there is 0.9^80 of the way left.
    assert result.success
    assert result.message == "finished 80 rounds"
    assert (result.nit, result.status) == (80, Status.FINISHED)
    mean = CENTRES.mean(axis=0)
    np.testing.assert_allclose(result.x, mean * (1 - 0.9**80), atol=1e-5)
    assert result.fun == np.mean([distance(result.x, i) for i in range(4)])


def test_result_has_scipys_names():
    ours = minimize(distance, np.ones(3), devices=4, rounds=2)
    theirs = scipy.optimize.minimize(lambda x: x @ x, np.ones(3), method="Nelder-Mead")
    for name in ("x", "fun", "success", "status", "message", "nfev", "nit"):
        kind = float if name == "fun" else type(getattr(theirs, name))
        assert isinstance(getattr(ours, name), kind), name
    assert int(Status.FINISHED) == theirs.status == 0


@pytest.mark.parametrize(
    ("x0", "dtype"),
    [
        (np.ones(3, np.float32), np.float32),
        (np.ones(3, np.float64), np.float64),
        (np.ones(3, np.float16), np.float64),
        (np.ones(3, np.int64), np.float64),
        ([1, 1, 1], np.float64),
        ((1.0, 1.0, 1.0), np.float64),
    ],
)
def test_precision_is_that_of_x0(x0, dtype):
    kinds = set()

    def fun(x, device):
        kinds.add(x.dtype)
        return distance(x, device)

    before = np.array(x0)
    result = minimize(fun, x0, devices=4, rounds=2, algorithm=FedZO())
    assert result.x.dtype == dtype
    assert kinds == {np.dtype(dtype)}
    assert np.array_equal(np.array(x0), before)
    assert not np.array_equal(result.last, before)


def test_the_default_search_asks_at_float64_points_and_returns_the_precision_of_x0():
    kinds = set()

    def fun(x):
        kinds.add(x.dtype)
        return float(((x - 0.1) ** 2).sum())

    result = minimize(fun, np.ones(3, np.float32), max_queries=100)
    assert np.dtype(np.float64) in kinds  # differences of float32 points would be rounding
    assert result.x.dtype == np.float32
    assert result.fun == fun(result.x)  # not the value at the float64 point before rounding
    assert result.success


def test_precision_is_kept_in_the_files_and_over_a_resume(tmp_path):
    for rounds, resume in ((2, False), (4, True)):
        result = minimize(
            distance,
            np.zeros(3, np.float32),
            devices=4,
            rounds=rounds,
            run_dir=tmp_path,
            resume=resume,
        )
    model = np.load(tmp_path / "model.npy")
    assert model.dtype == result.x.dtype == np.float32
    assert np.array_equal(model, result.last)


def test_no_rounds_at_all():
    x0 = np.array([1.0, 2.0, 3.0])
    result = minimize(distance, x0, devices=4, rounds=0)
    assert (result.nit, result.queries, result.status) == (0, 0, Status.FINISHED)
    assert np.array_equal(result.x, x0)
    assert result.x is not x0
    assert [record["round"] for record in result.history] == [0]


def test_objective_knows_its_start():
    class Started(Spoiled):
        def initial(self):
            return np.array([1.0, 2.0, 3.0], np.float32)

    result = minimize(Started(), rounds=0)
    assert np.array_equal(result.x, [1, 2, 3])
    assert result.x.dtype == np.float32
    assert np.array_equal(minimize(Started(), [4, 5, 6], rounds=0).x, [4, 5, 6])
    assert np.array_equal(minimize(Spoiled(), rounds=0).x, [0, 0, 0])


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"x0": np.zeros((3, 1))}, "x0"),
        ({"x0": []}, "x0"),
        ({"x0": [0, np.nan, 0]}, "x0"),
        ({"x0": None}, "x0"),
        ({"x0": ["a", "b", "c"]}, "x0"),
        ({"devices": None}, "fun"),
        ({"devices": 0}, "devices"),
        ({"devices": 2.5}, "devices"),
        ({"fun": Spoiled(), "devices": 7}, "devices"),
        ({"fun": Spoiled(), "devices": None, "x0": np.zeros(4)}, "x0"),
        ({"fun": Spoiled(), "devices": None, "retries": 9}, "retries"),
        ({"rounds": -1}, "rounds"),
        ({"rounds": 1.5}, "rounds"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"workers": 0}, "workers"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"algorithm": FedZO(participants=5)}, "participants"),
        ({"algorithm": FedZO(directions=4, direction_kind="orthogonal")}, "directions"),
    ],
)
def test_impossible_arguments_are_rejected(arguments, key, tmp_path):
    given = {"fun": distance, "x0": np.zeros(3), "devices": 4} | arguments
    with rejects(key):
        minimize(**given, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unknown_options_and_other_objects_are_rejected():
    with fails("unknown-option"):
        minimize(distance, np.zeros(3), devices=4, round=3)
    for fun in (3, Spoiled):
        with fails("not-a-function"):
            minimize(fun, np.zeros(3), devices=4)


def test_impossible_objectives_are_refused():
    class Nobody(Spoiled):
        devices = 0

    class Elsewhere(Spoiled):
        def initial(self):
            return np.zeros(5)

    with fails("invalid-objective"):
        minimize(Nobody())
    with fails("invalid-objective"):
        minimize(Elsewhere())


def test_a_number_is_a_start_of_one_dimension():
    result = minimize(lambda x: float((x[0] - 3) ** 2), 0.0)
    assert result.x.shape == (1,)
    assert result.x == pytest.approx([3.0], abs=1e-6)


def test_numpy_numbers_are_fine_as_arguments(tmp_path):
    result = minimize(
        distance,
        np.zeros(3),
        devices=np.int64(4),
        rounds=np.int64(2),
        seed=np.int64(3),
        algorithm=FedZO(learning_rate=np.float32(0.5), directions=np.int64(2)),
        run_dir=tmp_path,
    )
    assert result.nit == 2
    with (tmp_path / "config.toml").open("rb") as file:
        config = tomllib.load(file)
    assert config["algorithm"]["learning_rate"] == 0.5
    assert config["algorithm"]["directions"] == 2
    assert (config["run"]["rounds"], config["run"]["seed"]) == (2, 3)


def own_function(x, device):
    return distance(x, device)


def test_config_of_a_function_tells_what_was_run(tmp_path):
    minimize(
        own_function,
        np.zeros(3),
        devices=4,
        rounds=2,
        run_dir=tmp_path,
        algorithm=SMALL.__class__(directions=3),
    )
    with (tmp_path / "config.toml").open("rb") as file:
        config = tomllib.load(file)
    assert config["problem"] == {
        "name": f"{__name__}:own_function",
        "dim": 3,
        "devices": 4,
        "python_only": "its problem is a function that was given in Python",
    }
    assert config["algorithm"]["name"] == "fedzo"
    assert config["algorithm"]["directions"] == 3
    assert "participants" not in config["algorithm"]  # None: all
    assert config["uplink"] == {"name": "ideal"}
    every = {"evaluate_every": 10, "checkpoint_every": 10}
    assert config["run"] == {"rounds": 2, "seed": 0, "data_seed": 0, **every}


def test_names_of_the_package():
    """What a user imports is there, and is what it says."""
    for name in fedzo.__all__:
        assert getattr(fedzo, name) is not None
    assert set(fedzo.__all__) == set(dir(fedzo))
    assert fedzo.minimize is minimize
    for module in (fedzo.random, fedzo.callbacks):
        assert dir(module) == sorted(module.__all__)
    with pytest.raises(AttributeError):
        _ = fedzo.nothing


def test_non_finite_says_where():
    assert str(NonFinite("the model", 4)) == "the model is not finite in round 4"
    assert str(NonFinite("the loss", 4, 0)) == "the loss is not finite in round 4 on device 0"
