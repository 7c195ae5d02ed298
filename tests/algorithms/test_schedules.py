"""Schedules of the learning rate, by hand, from TOML, resumed and on Flower's nodes."""

import numpy as np
import pytest

import fedzo
from fedzo.algorithms.schedules import Cosine, Linear, Step
from fedzo.config.experiment import Experiment
from fedzo.problems import Quadratic
from fedzo.runs.registry import SCHEDULES, describe_parts, make_parts
from raising import rejects

PROBLEM = Quadratic(dim=6, devices=4, gradient_noise=0.1)
SETTINGS = {
    "constant": {"warmup": 3},
    "cosine": {"rounds": 8, "warmup": 2},
    "linear": {"rounds": 6, "last": 0.5},
    "step": {"every": 2, "gamma": 0.5},
}


def run(algorithm, rounds=8, **options):
    return fedzo.minimize(PROBLEM, algorithm=algorithm, rounds=rounds, seed=3, **options)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    "make",
    [
        lambda rate, **more: fedzo.FedZO(learning_rate=rate, directions=3, batch_size=2, **more),
        lambda rate, **more: fedzo.FedAvg(learning_rate=rate, batch_size=2, **more),
    ],
)
def test_each_round_has_the_rate_of_its_schedule(make, name):
    """One round at a time, each started where the last has ended, with the rate of that round."""
    schedule = SCHEDULES[name](**SETTINGS[name])
    from driving import begin, play
    from fedzo.core.engine import LocalEngine

    with LocalEngine(PROBLEM, 3, 1) as engine:
        state = begin(make(0.05), np.zeros(6), engine, fedzo.Ideal())
        for t in range(8):
            algorithm = make(0.05 * schedule.factor(t))
            state, _ = play(algorithm, t, state, engine, fedzo.Ideal())
    scheduled = run(make(0.05, schedule=schedule))
    np.testing.assert_array_equal(scheduled.last, state.x)
    factors = [record.get("learning_rate_factor") for record in scheduled.history[1:]]
    assert factors[-1] == pytest.approx(schedule.factor(7))


def test_with_adam_the_rate_of_the_server_follows():
    """The first step of Adam has the length of its rate, whatever the updates are."""
    server = fedzo.server.Adam(learning_rate=0.1)
    algorithm = fedzo.FedZO(server=server, schedule=Linear(rounds=10, warmup=4), batch_size=2)
    moved = run(algorithm, rounds=1).last
    np.testing.assert_allclose(abs(moved), 0.1 / 5, rtol=1e-6)


@pytest.mark.parametrize("uplink", [fedzo.Ideal(), fedzo.Seeds()])
@pytest.mark.parametrize("fixed", [None, 8])
def test_a_resumed_run_is_the_same_run(uplink, fixed, tmp_path):
    algorithm = fedzo.FedZO(
        learning_rate=0.05, directions=2, fixed_directions=fixed, schedule=Cosine(rounds=8)
    )
    whole = run(algorithm, uplink=uplink)
    run(algorithm, 5, uplink=uplink, run_dir=tmp_path / "run")
    resumed = run(algorithm, uplink=uplink, run_dir=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.last, whole.last)


def test_a_configuration_has_a_table_for_it(tmp_path):
    changes = {
        "algorithm": {"schedule": {"name": "cosine", "rounds": 6}, "learning_rate": 0.02},
        "uplink": {"name": "seeds"},
        "run": {"rounds": 6},
    }
    experiment = Experiment.load("quadratic", changes)
    assert experiment.algorithm.schedule == Cosine(rounds=6)
    tables = describe_parts(experiment.algorithm, experiment.uplink)
    assert tables["algorithm"]["schedule"]["name"] == "cosine"
    assert make_parts(tables)[0] == experiment.algorithm
    experiment.run(tmp_path / "here")
    again = Experiment.load(str(tmp_path / "here"))
    assert again.algorithm == experiment.algorithm


@pytest.mark.parametrize("fixed", [None, 8])
def test_nodes_that_replay_the_rounds_have_the_rates_of_the_server(fixed):
    pytest.importorskip("flwr")
    from flwr.app import ArrayRecord

    from fedzo.flower import FedzoStrategy, InProcessGrid, make_client_app

    algorithm = fedzo.FedZO(
        learning_rate=0.05,
        directions=2,
        shared_directions=True,
        fixed_directions=fixed,
        schedule=Cosine(rounds=6, warmup=1),
    )
    grid = InProcessGrid(make_client_app(lambda context: PROBLEM), 2)
    strategy = FedzoStrategy(algorithm, fedzo.Seeds(), seed=3)
    found = strategy.start(grid, ArrayRecord([np.zeros(6)]), num_rounds=6)
    here = run(algorithm, 6, uplink=fedzo.Seeds()).last
    np.testing.assert_array_equal(found.arrays.to_numpy_ndarrays()[0], here)


def test_mistakes():
    for key, make in [
        ("rounds", lambda: Cosine(rounds=0)),
        ("last", lambda: Cosine(rounds=5, last=0.0)),
        ("warmup", lambda: Linear(rounds=5, warmup=-1)),
        ("gamma", lambda: Step(every=2, gamma=2.0)),
        ("schedule", lambda: fedzo.FedZO(schedule="cosine")),
        ("schedule", lambda: fedzo.FedZO(schedule=Cosine(rounds=5), learning_rate="auto")),
        (
            "schedule",
            lambda: fedzo.FedZO(
                schedule=Cosine(rounds=5), server=fedzo.server.Adam(learning_rate="auto")
            ),
        ),
        (
            "server.learning_rate",
            lambda: fedzo.FedAvg(server=fedzo.server.Adam(learning_rate="auto")),
        ),
    ]:
        with rejects(key):
            make()
    for table in (
        "cosine",
        "cosin",
        3,
        {"name": "cosin", "rounds": 3},
        {"name": "cosine", "round": 3},
    ):
        with pytest.raises(fedzo.errors.FedzoError, match="schedule"):
            Experiment.load("quadratic", {"algorithm": {"schedule": table}})
