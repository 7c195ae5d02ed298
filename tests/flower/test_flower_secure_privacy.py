"""Secure sums with differential privacy: noise that every node adds, or that nodes share."""

import math

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("opendp", reason="needs the extra flower")

from misbehaving import QUICK, Nodes

import fedzo
from driving import steps_of
from fedzo.core.capabilities import TakesRecords
from fedzo.core.fixed_point import grid_step
from fedzo.core.objective import Objective
from fedzo.core.tasks import Losses
from fedzo.errors import InvalidValue
from fedzo.flower import FlowerEngine, protocol, secure
from fedzo.flower.ledger import Ledger
from fedzo.flower.privacy import Event, Privacy, record_digests
from fedzo.problems import softmax

NODES, CLIP = 5, 0.01
PROBLEM = softmax(devices=50)  # 80 records each
ASKED = (0, 10, 20, 30, 40)  # one per node
SECURE = fedzo.Seeds(secure=True, clip=1e9)
TABLE = {"epsilon": 1e300, "noise": 1e-9, "difference_clip": CLIP, "loss_clip": 5.0}


def algorithm(directions=6, local_steps=1, **changes):
    size = PROBLEM.size(0) - 1  # nearly all records are in a batch, but which is a secret
    options = {"learning_rate": 1e-3, "batch_size": size, "shared_directions": True, **changes}
    return fedzo.FedZO(directions=directions, local_steps=local_steps, **options)


def nodes(**privacy):
    grid = Nodes(PROBLEM, NODES, secure=True)
    for context in grid.contexts.values():
        table = {**TABLE, **privacy}
        context.node_config.update({f"privacy.{k}": v for k, v in table.items()})
    return grid


def task_of(engine, made, round=0):
    return steps_of(made, engine.initial(), round=round, seed=5, devices=ASKED)


@pytest.fixture
def totals(monkeypatch):
    """Collect the whole numbers that the server computes from masked ones."""
    found, total = [], secure.SumServer.total

    def spy(self, *args):
        found.append(total(self, *args))
        return found[-1]

    monkeypatch.setattr(secure.SumServer, "total", spy)
    return found


class Chosen(Objective):
    """The same problem, with chosen records of a device in every batch."""

    def __init__(self, records):
        self.dim, self.devices, self.records = PROBLEM.dim, PROBLEM.devices, np.array(records)

    def batch(self, device, size, draws):
        return PROBLEM.capability(TakesRecords).take(device, self.records)

    def values(self, points, batch):
        return PROBLEM.values(points, batch)


@pytest.mark.parametrize("difference", ["forward", "central"])
@pytest.mark.parametrize("honest", [None, 0.8])
def test_without_noise_it_is_the_mean_of_clipped_differences(honest, difference):
    """It is the mean over all records, up to the record per batch that is not drawn."""
    grid = nodes(difference_clip=1e3, **({"honest": honest} if honest else {}))
    engine, made = FlowerEngine(grid, 5, SECURE, QUICK), algorithm(difference=difference)
    task = task_of(engine, made)
    (update,) = engine.ask(task)
    rows = np.array([task.reply(Chosen(range(80)), i).coefficients for i in ASKED])
    error = np.linalg.norm(update.coefficients - rows.mean(axis=0))
    # A record is in a batch with probability q = 79/80, and its part of the sum is divided by 79.
    single = [task.reply(Chosen([k]), i).coefficients for i in ASKED for k in range(80)]
    deviation = math.sqrt(79 / 80 / 80 * sum(np.sum(one**2.0) for one in single)) / 79 / 5
    assert 10 * deviation < 0.3 * np.linalg.norm(rows.mean(axis=0))  # else it shows nothing
    assert error < 10 * deviation
    assert update.contributors == 5
    assert update.coefficients.dtype == np.float32


@pytest.mark.parametrize("lost", [None, protocol.SHARES, protocol.TRAIN, protocol.UNMASK])
def test_noise_is_shared_among_the_honest_nodes(lost, totals):
    """Each node has 1/sqrt(3) of the deviation that three must have, also if one drops out."""
    noise, count = 50.0, 600
    grid = nodes(noise=noise, honest=0.8)

    def spoil(message, reply):  # it has stored its state, and is killed before it replies
        where = message.metadata.dst_node_id, message.metadata.message_type
        return None if where == (2, lost) else reply

    grid.spoil = spoil
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    (update,) = engine.ask(task_of(engine, algorithm(count)))
    there = NODES if lost in (None, protocol.UNMASK) else NODES - 1
    assert update.contributors == there
    deviation = noise * CLIP / grid_step(CLIP) * math.sqrt(there / 3)
    # The differences themselves have at most the length 400 C, over all records.
    ratio = np.std(totals[-1][:-1].astype(float)) / deviation
    most = 400 * CLIP / grid_step(CLIP) / math.sqrt(count) / deviation
    assert abs(ratio - 1) < 6 / math.sqrt(2 * count) + most


def test_part_of_a_node_has_its_deviation():
    privacy, count = Privacy(**{**TABLE, "noise": 3.0}, honest=0.9), 20_000
    for members in (3, 5, 10):
        part = privacy.part_of_noise(members, count) * grid_step(CLIP) / CLIP
        expected = 3.0 / math.sqrt(privacy.honest_nodes(members))
        assert part.std() == pytest.approx(expected, rel=6 / math.sqrt(2 * count))
    # Of the nodes in the smallest sum, those that are honest have the whole noise.
    for members in range(3, 40):
        for honest in (0.7, 0.8, 0.9, 1.0):
            own = Privacy(**TABLE, honest=honest)
            lying = math.floor((1 - honest) * members + 1e-9)
            assert own.honest_nodes(members) == max(1, secure.threshold(members) - lying)


@pytest.mark.parametrize(
    ("changes", "shares"),
    [({}, True), ({"local_steps": 2}, False), ({"weighting": "size"}, False)],
)
def test_noise_is_shared_only_where_the_proof_holds(changes, shares, monkeypatch):
    asked, part = [], Privacy.part_of_noise
    monkeypatch.setattr(Privacy, "part_of_noise", lambda *args: asked.append(1) or part(*args))
    engine = FlowerEngine(nodes(noise=1.0, honest=0.8), 5, SECURE, QUICK)
    (update,) = engine.ask(task_of(engine, algorithm(**changes)))
    assert update.contributors == 5
    assert len(asked) == (NODES if shares else 0)


@pytest.mark.parametrize("honest", [None, 0.8])
def test_steps_and_losses_are_charged(honest):
    grid = nodes(noise=30.0, **({"honest": honest} if honest else {}))
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    for t in range(3):
        list(engine.ask(task_of(engine, algorithm(), round=t)))
    engine.ask(Losses(engine.initial()))
    privacy, rate = Privacy(**{**TABLE, "noise": 30.0}), 79 / 80
    spent = privacy.epsilon_of({Event(30.0, rate): 3, Event(30.0, 1.0): 1})
    ledger = Ledger(grid.contexts[1].node_config["ledger"])
    assert ledger.epsilon(record_digests(PROBLEM, 0), privacy) == pytest.approx(spent)


def test_spent_epsilon_ends_a_secure_run():
    engine = FlowerEngine(nodes(noise=30.0, epsilon=0.2, honest=0.8), 5, SECURE, QUICK)
    found = [list(engine.ask(task_of(engine, algorithm(), round=t))) for t in range(12)]
    assert found[0]
    assert not found[-1]
    assert "privacy budget" in engine.dropped[-1].reason


@pytest.mark.parametrize("change", [{"noise": 2.0}, {"difference_clip": 0.02}, {"honest": 0.9}])
def test_nodes_that_share_noise_agree_on_it(change):
    """A node that would add less noise than the others rely on is in no sum with them."""
    grid = nodes(noise=1.0, honest=0.8)
    grid.contexts[2].node_config.update({f"privacy.{k}": v for k, v in change.items()})
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    assert list(engine.ask(task_of(engine, algorithm()))) == []
    assert "rejects this request of a secure sum" in engine.dropped[0].reason


def test_device_with_few_records_takes_no_part_in_shared_noise():
    engine = FlowerEngine(nodes(honest=0.8), 5, SECURE, QUICK)
    made = algorithm(batch_size=PROBLEM.size(0))
    assert list(engine.ask(task_of(engine, made))) == []
    assert "fewer records" in engine.dropped[0].reason


def test_losses_are_noised_by_every_device(totals):
    engine = FlowerEngine(nodes(noise=100.0, honest=0.8), 5, SECURE, QUICK)
    found = engine.ask(Losses(engine.initial()))
    true = float(PROBLEM.losses(PROBLEM.initial(), np.arange(50)).mean())
    deviation = 100.0 * 5.0 / 80 / math.sqrt(50)
    assert 0 < abs(found.mean - true) < 6 * deviation


@pytest.mark.parametrize("honest", [0.5, 2 / 3, 1.01, 0.0])
def test_shares_of_honest_nodes_that_make_no_sense(honest):
    with pytest.raises(InvalidValue):
        Privacy(**TABLE, honest=honest)
