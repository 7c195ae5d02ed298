"""The same run on Flower's messages as in one process."""

import dataclasses

import numpy as np
import pytest
from misbehaving import PROBLEM, QUICK, Nodes, run

import fedzo
from fedzo.problems import Quadratic, softmax
from fedzo.runs.registry import ALGORITHMS, UPLINKS


def without(record, *keys):
    gone = {"seconds", *keys}
    wire = ("message_", "transport_")  # what only a real federation has
    return {k: v for k, v in record.items() if k not in gone and not k.startswith(wire)}


SEARCHES = ("adaptive", "lbfgs", "cma", "tpe")


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("nodes", [1, 4, 9])  # nine nodes for six devices: three have none
def test_same_run_as_in_one_process(name, nodes):
    algorithm = ALGORITHMS[name]()
    # Of slopes that all devices measure, some are honest outliers, which a server would clip.
    settings = dataclasses.replace(QUICK, clip=False) if name in SEARCHES else QUICK
    there = run(Nodes(nodes=nodes), algorithm=algorithm, settings=settings)
    here = fedzo.minimize(PROBLEM, algorithm=algorithm, seed=5, rounds=6, evaluate_every=3)
    assert np.array_equal(there.x, here.x)
    assert [without(r) for r in there.history] == [without(r) for r in here.history]
    assert there.evaluation_queries == here.evaluation_queries


@pytest.mark.parametrize("name", SEARCHES)
def test_same_search_by_some_of_the_devices(name):
    algorithm, own = ALGORITHMS[name](participants=4), dataclasses.replace(QUICK, clip=False)
    there = run(Nodes(nodes=4), algorithm=algorithm, settings=own, rounds=25)
    here = fedzo.minimize(PROBLEM, algorithm=algorithm, seed=5, rounds=25, evaluate_every=3)
    assert there.x.tobytes() == here.x.tobytes()
    assert there.last.tobytes() == here.last.tobytes()
    assert [without(r) for r in there.history] == [without(r) for r in here.history]
    assert there.history[-1]["participants"] == 4


def test_same_contest_of_waves():
    problem = Quadratic(dim=64, devices=6, gradient_noise=0.5)
    waves = fedzo.server.FourierSign(shape=(8, 8), divisions=2)
    algorithm, own = fedzo.FedZO(server=waves), dataclasses.replace(QUICK, clip=False)
    there = run(Nodes(problem), algorithm=algorithm, settings=own, rounds=4)
    here = fedzo.minimize(problem, algorithm=algorithm, seed=5, rounds=4, evaluate_every=3)
    assert np.array_equal(there.last, here.last)
    assert [without(r) for r in there.history] == [without(r) for r in here.history]


@pytest.mark.parametrize("kind", UPLINKS)
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_same_run_by_every_uplink(kind, weighting):
    problem = softmax(devices=8)
    shared = UPLINKS[kind].wants_shared_directions
    algorithm = fedzo.FedZO(participants=5, weighting=weighting, shared_directions=shared)
    there = run(Nodes(problem), UPLINKS[kind](), algorithm, rounds=3)
    here = fedzo.minimize(
        problem, algorithm=algorithm, uplink=UPLINKS[kind](), seed=5, rounds=3, evaluate_every=3
    )
    assert there.x.dtype == np.float32
    assert np.array_equal(there.x, here.x)
    assert [without(r) for r in there.history] == [without(r) for r in here.history]


def test_answers_in_any_order():
    class Backwards(Nodes):
        def pull_messages(self, message_ids):
            return list(reversed(super().pull_messages(message_ids)))

    assert np.array_equal(run(Backwards()).x, run(Nodes()).x)


def test_seeds_are_fifty_times_smaller_on_the_wire():
    problem, algorithm = softmax(), fedzo.FedZO(participants=20)  # the paper's setting
    ideal, seeds = (
        run(Nodes(problem), uplink, algorithm, rounds=1).history[-1]
        for uplink in (fedzo.Ideal(), fedzo.Seeds())
    )
    assert ideal["message_up_bytes"] > 50 * seeds["message_up_bytes"]
    assert ideal["uplink_bytes"] < ideal["message_up_bytes"] < 1.01 * ideal["uplink_bytes"]
    assert seeds["message_up_bytes"] < 1.2 * seeds["uplink_bytes"]
    assert 3 * 31400 < ideal["message_down_bytes"] < 3 * 31400 + 6000  # the model, once a node
