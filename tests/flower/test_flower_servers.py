"""Every server optimizer over Flower's messages is the run in one process, over every uplink."""

import numpy as np
import pytest

import fedzo
from fedzo.algorithms.adaptive_rate import AdaptiveRate
from fedzo.core.engine import LocalEngine
from fedzo.flower import FlowerEngine, FlowerSettings, InProcessGrid, make_client_app
from fedzo.problems import Quadratic
from fedzo.runs import Job, RunOptions, run_job
from fedzo.runs.registry import SERVER_OPTIMIZERS, UPLINKS

PROBLEM = Quadratic(dim=8, devices=6, gradient_noise=0.1, dissimilarity=0.3)


@pytest.mark.parametrize("kind", UPLINKS)
@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_same_run_as_in_one_process(name, kind):
    algorithm = fedzo.FedZO(
        learning_rate=0.05,
        directions=4,
        local_steps=2,
        participants=4,
        shared_directions=True,
        server=SERVER_OPTIMIZERS[name](),
    )
    uplink, options = UPLINKS[kind](), RunOptions(seed=5, rounds=4)
    grid = InProcessGrid(make_client_app(lambda context: PROBLEM), nodes=3)
    settings = FlowerSettings(clip=False)
    engine = FlowerEngine(grid, 5, uplink, settings)
    remote = run_job(Job(algorithm, uplink, options, {}), engine, engine.initial())
    here = fedzo.minimize(PROBLEM, algorithm=algorithm, uplink=uplink, rounds=4, seed=5)
    assert np.array_equal(remote.last, here.last)


@pytest.mark.parametrize("kind", ["ideal", "seeds"])
def test_auto_adapts_over_flower_as_it_does_here(kind):
    uplink, options = UPLINKS[kind](), RunOptions(seed=5, rounds=12)
    chosen = fedzo.FedZO(learning_rate=0.001, directions=4, local_steps=2, participants=4)
    algorithm = AdaptiveRate(fedzo=chosen)
    app = make_client_app(lambda context: PROBLEM)
    grid = InProcessGrid(app, nodes=3, node_config={"tasks": ["local_steps", "evaluate"]})
    engine = FlowerEngine(grid, 5, uplink, FlowerSettings(clip=False))
    remote = run_job(Job(algorithm, uplink, options, {}), engine, engine.initial())
    here = run_job(Job(algorithm, uplink, options, {}), LocalEngine(PROBLEM, 5), np.zeros(8))
    assert np.array_equal(remote.last, here.last)
    assert here.algorithm.learning_rate > chosen.learning_rate
