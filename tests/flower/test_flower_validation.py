"""The server validates replies: what it rejects, what it clips, and what it leaves unchanged."""

import dataclasses

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from misbehaving import (
    ALGORITHM,
    PROBLEM,
    QUICK,
    Nodes,
    edit,
    everyone_of,
    expected,
    named,
    of_device_3,
    plain,
    put,
    run,
)

import fedzo
from driving import steps_of
from fedzo.core.tasks import Evaluate, Losses, Slopes, Update
from fedzo.flower import FlowerEngine, protocol
from fedzo.flower.validation import InvalidUpdate, UpdateValidator, clipped_losses
from fedzo.problems import Quadratic
from fedzo.runs import Status
from fedzo.runs.registry import ALGORITHMS
from fedzo.uplinks import Robust


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (of_device_3(put(np.nan)), "not finite"),
        (of_device_3(put(np.inf)), "not finite"),
        (of_device_3(put(1e6)), "length 2.828e+06, more than max_norm = 10"),
        (of_device_3(put(1e200)), "length inf, more than max_norm = 10"),
    ],
)
def test_bad_update_of_one_device(spoil, reason):
    grid = Nodes()
    grid.spoil = spoil
    result = run(grid, settings=dataclasses.replace(QUICK, max_norm=10.0))
    gone = everyone_of(3)
    assert len(gone) >= 3
    left_out, reasons = named(result)
    assert left_out == gone
    assert all(reason in one for one in reasons), reasons
    assert result.status == Status.FINISHED
    assert np.allclose(result.x, expected(6, gone), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (of_device_3(lambda deltas, _: deltas[:, :-1]), "shape (7,)"),
        (
            of_device_3(lambda deltas, _: deltas.astype(np.float32)),
            "of type float32, expected (8,)",
        ),
        (of_device_3(lambda deltas, _: deltas[0]), "shape (8,)"),
        (plain(round=77), "round 78"),
        (plain(devices=[0, 1]), "did not reply for it"),
        (plain(weights=[1e9, 1e9]), "weight 1e+09, expected 1"),
        (plain(queries=[-5, -5]), "-5 queries"),
        (plain(queries=[2**62, 2**62]), "4611686018427387904 queries"),
        (plain(queries=[251, 251]), "251 queries, at most 250 are needed"),
        (plain(weights=[np.nan, np.nan]), "weight nan, expected 1"),
        (plain(failed=[-1], reasons=["no"], devices=[-1, 9]), "malformed"),
        (of_device_3(lambda deltas, _: deltas[:, :, None]), "malformed"),
        (edit(lambda content: RecordDict({"other": ConfigRecord({})})), "malformed"),
        (plain(queries="many"), "malformed"),
        (edit(lambda content: content.clear()), "malformed"),
    ],
)
def test_bad_answer_of_a_node(spoil, reason):
    grid = Nodes()
    grid.spoil = spoil
    result = run(grid)
    _, reasons = named(result)
    assert reasons
    assert all(reason in one for one in reasons), reasons
    gone, _ = named(result)
    assert {device for _, device in gone} <= {2, 3}
    assert np.allclose(result.x, expected(6, gone), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        (lambda c: c * np.nan, "coefficients: not finite"),
        (lambda c: c[:, :1], "coefficients: shape (2, 1)"),
        (lambda c: None, "sent no coefficients"),
        (lambda c: c * 1e9, "more than max_norm = 10"),
    ],
)
def test_bad_coefficients(numbers, reason):
    def spoil(content):
        told = protocol.read_answer(content, asked=2)
        updates = tuple(u._replace(coefficients=numbers(u.coefficients)) for u in told.updates)
        return protocol.answer(told._replace(updates=updates), True)

    grid = Nodes()
    grid.spoil = edit(spoil)
    result = run(grid, fedzo.Seeds(), settings=dataclasses.replace(QUICK, max_norm=10.0))
    gone, reasons = named(result)
    assert gone == everyone_of(2) | everyone_of(3)
    assert all(reason in one for one in reasons), reasons
    assert np.allclose(result.x, expected(6, gone), rtol=1e-12, atol=0)


class Moody(Quadratic):
    """A problem that fails on one device."""

    def __init__(self, error):
        super().__init__(dim=8, devices=6, gradient_noise=0.1, dissimilarity=0.3)
        self.error = error

    def values(self, points, batch):
        if batch.device == 3:
            raise self.error
        return super().values(points, batch)


def test_device_that_raises_costs_nobody_else():
    result = run(Nodes(Moody(OSError("the disk is full"))))
    gone, reasons = named(result)
    assert gone == everyone_of(3)
    assert reasons == {"the problem raised an error"}
    assert np.allclose(result.x, expected(6, gone), rtol=1e-12, atol=0)


def test_client_app_that_raises():
    grid = Nodes()
    error = Error(2, "ValueError: SMITH")
    engine = FlowerEngine(grid, 5, fedzo.Ideal(), QUICK)
    grid.spoil = lambda message, reply: (
        Message(error, reply_to=message) if message.metadata.dst_node_id == 2 else reply
    )
    losses = engine.ask(Losses(np.zeros(8))).losses
    assert {o.device for o in engine.dropped} == {2, 3}
    assert all("error 2" in o.reason and "SMITH" not in o.reason for o in engine.dropped)
    assert np.array_equal(losses[[0, 1, 4, 5]], PROBLEM.losses(np.zeros(8), [0, 1, 4, 5]))


def test_loss_that_is_not_finite_is_left_out_of_the_mean():
    def spoil(content):
        content["answer"] = ConfigRecord(
            {**content["answer"], "values": np.array([1.0, np.nan]).tobytes()}
        )

    grid = Nodes()
    grid.spoil = edit(spoil, kind=protocol.EVALUATE)
    result = run(grid, rounds=0)
    losses = PROBLEM.losses(np.zeros(8), [0, 1, 4, 5])
    assert result.fun == pytest.approx((losses.sum() + 1.0) / 5, rel=1e-14)
    assert named(result) == ({(0, 3)}, {"the loss is not finite"})


def test_metrics_are_the_first_nodes_and_cannot_break_the_history():
    def spoil(message, reply):
        if message.metadata.message_type == protocol.EVALUATE:
            mine = {"optimality_gap": float(message.metadata.dst_node_id), "round": 99.0}
            reply.content["metrics"] = MetricRecord(mine)
        return reply

    grid = Nodes()
    grid.spoil = spoil
    (record,) = run(grid, rounds=0).history
    assert record["optimality_gap"] == 1.0
    assert record["round"] == 0


def test_claimed_size_is_no_weight_in_a_uniform_mean():
    class Large(Quadratic):
        def size(self, device):
            return 1000 if device == 3 else 1

    grid = Nodes(Large(dim=8, devices=6, gradient_noise=0.1, dissimilarity=0.3))
    grid.spoil = plain(weights=[1000.0, 1000.0])
    gone, reasons = named(run(grid))
    assert gone == everyone_of(2) | everyone_of(3)
    assert reasons == {"reported weight 1000, expected 1"}


def test_what_a_node_says_is_one_short_line():
    def spoil(content):
        told = protocol.read_answer(content, asked=2)
        failed = dict.fromkeys([u.device for u in told.updates], "no\n\x1b" + "x" * 1000)
        return protocol.answer(told._replace(updates=(), failures=failed), False)

    grid = Nodes()
    grid.spoil = edit(spoil)
    (line,) = named(run(grid))[1]
    assert line.startswith("no ")
    assert line.isprintable()
    assert len(line) <= 200


def test_without_a_limit_an_update_must_still_have_a_length():
    grid = Nodes()
    grid.spoil = of_device_3(put(1.7e308))
    result = run(grid)
    assert named(result) == (everyone_of(3), {"update: length inf, more than 1e+150"})
    assert np.allclose(result.x, expected(6, everyone_of(3)), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("share", "taken"), [(1 - 1e-9, True), (1 + 1e-9, False)])
def test_limit_of_an_update(share, taken):
    grid = Nodes()
    grid.spoil = of_device_3(put(share * 0.5 / np.sqrt(8)))
    result = run(grid, settings=dataclasses.replace(QUICK, max_norm=0.5))
    assert named(result)[0] == (set() if taken else everyone_of(3))


@pytest.mark.parametrize("lie", [1.7e308, -1e300])
def test_vast_loss_is_kept_within_bounds(lie):
    def spoil(content):
        content["answer"] = ConfigRecord({**content["answer"], "values": np.full(2, lie).tobytes()})

    grid = Nodes()
    grid.spoil = edit(spoil, kind=protocol.EVALUATE)
    result = run(grid, rounds=0)
    honest = PROBLEM.losses(np.zeros(8), [0, 1, 4, 5])
    told = np.sort([*honest, lie, lie])
    middle = told[2]  # the lower median of six, an honest one
    spread = max(np.sort(np.abs(told - middle))[2], abs(middle))
    bound = middle + np.sign(lie) * 5 * spread
    assert result.fun == pytest.approx((honest.sum() + 2 * bound) / 6, rel=1e-14)
    unclipped = run(grid, rounds=0, settings=dataclasses.replace(QUICK, clip=False))
    assert named(unclipped) == ({(0, 2), (0, 3)}, {"the loss is not finite"}) or lie < 0


def test_everybody_not_finite_is_divergence():
    grid = Nodes()
    grid.spoil = lambda message, reply: (
        reply
        if message.metadata.message_type != protocol.TRAIN
        else Message(spoiled(reply.content), reply_to=message)
    )

    def spoiled(content):
        deltas = content["arrays"]["deltas"].numpy() * np.nan
        content["arrays"] = ArrayRecord({"deltas": FlowerArray(deltas)})
        return content

    result = run(grid)
    assert result.status == Status.NON_FINITE
    assert result.message.startswith("the loss is not finite in round 1 on device ")


@pytest.mark.parametrize("uplink", [fedzo.Ideal(), fedzo.Seeds()])
def test_update_of_one_device_is_shortened_to_the_others(uplink):
    """A huge update in an honest direction counts as five median ones."""

    def spoil(content):
        told = protocol.read_answer(content, asked=2)
        updates = tuple(
            u._replace(
                delta=u.delta * 1e30,
                coefficients=None if u.coefficients is None else u.coefficients * 1e30,
            )
            for u in told.updates
        )
        return protocol.answer(told._replace(updates=updates), isinstance(uplink, fedzo.Seeds))

    grid, algorithm = Nodes(), dataclasses.replace(ALGORITHM, participants=None, local_steps=1)
    grid.spoil = edit(spoil)
    x = run(grid, uplink, algorithm, rounds=1).last
    work = steps_of(algorithm, np.zeros(8), 0, seed=5)
    updates = [work.reply(PROBLEM, i) for i in range(6)]
    deltas = [u.delta for u in updates]
    lengths = [
        np.linalg.norm(u.delta)
        if isinstance(uplink, fedzo.Ideal)
        else np.sqrt(8) * np.linalg.norm(u.coefficients)
        for u in updates
    ]
    vast = [1e30 if i in (2, 3) else 1.0 for i in range(6)]
    most = 5 * np.sort([n * v for n, v in zip(lengths, vast, strict=True)])[2]
    shares = [min(v, most / n) for n, v in zip(lengths, vast, strict=True)]
    expected = sum(s * d for s, d in zip(shares, deltas, strict=True)) / 6
    assert np.allclose(x, expected, rtol=1e-9, atol=0)
    assert max(shares) > 1


def test_count_of_samples_is_believed_up_to_five_times_the_median():
    class Sized(Quadratic):
        def size(self, device):
            return 10**9 if device == 3 else 100

    problem = Sized(dim=8, devices=6)
    algorithm = dataclasses.replace(ALGORITHM, participants=None, weighting="size")
    x = run(Nodes(problem), algorithm=algorithm, rounds=1).last
    deltas = [steps_of(algorithm, np.zeros(8), 0, seed=5).reply(problem, i).delta for i in range(6)]
    weights = [500 if i == 3 else 100 for i in range(6)]
    assert np.allclose(x, np.average(deltas, axis=0, weights=weights), rtol=1e-12, atol=0)


# ------------------------------------------------------------------- the values of searches


def validated(question, changes, settings=QUICK):
    """Return the validated values by device, the values before, and the rejected devices."""
    work = dataclasses.replace(question, seed=5)
    found = {i: work.reply(PROBLEM, i) for i in range(6)}
    for device, values in changes.items():
        found[device] = found[device]._replace(values=values(found[device].values))
    checked = UpdateValidator(work, 8, fedzo.Ideal(), settings, dict.fromkeys(range(6), 1), 6)
    kept = {update.device: update.values for update in checked.updates(found)}
    return kept, {i: u.values for i, u in found.items()}, checked.refused


POINTS = Evaluate(np.array([np.zeros(8), np.ones(8)]))
QUESTIONS = {
    "points": POINTS,
    "stencil": Slopes(np.ones(8), np.full(8, 0.1), everyone=True, central=True),
    "shared out": Slopes(np.ones(8), np.full(8, 0.1), everyone=False, central=False),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_honest_answers_are_taken_as_they_are(question):
    kept, told, refused = validated(question, {})
    assert not refused
    for device, values in told.items():
        assert np.array_equal(kept[device], values)


@pytest.mark.parametrize("lie", [-1e300, 1e300])
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_vast_value_is_kept_within_bounds(question, lie):
    """Five times the spread around the median, at every point by itself."""

    def first(values):
        return np.concatenate([[lie], values[1:]])

    kept, told, _ = validated(question, {3: first})
    column = np.sort([told[i][0] for i in told])
    middle = column[2]  # the lower median of six
    spread = max(np.sort(np.abs(column - middle))[2], abs(middle))
    assert kept[3][0] == pytest.approx(middle + np.sign(lie) * 5 * spread, rel=1e-12)
    assert np.array_equal(kept[3][1:], told[3][1:])
    unclipped, _, _ = validated(question, {3: first}, dataclasses.replace(QUICK, clip=False))
    assert unclipped[3][0] == lie


def test_most_losses_are_zero():
    """The others' are not to be taken for lies."""
    losses = np.array([0.0, 0.0, 0.0, 0.0, 3.0, 5.0])
    assert np.array_equal(clipped_losses(losses, 5.0), losses)


def test_slopes_of_others_are_not_taken():
    def claims_all(values):
        return np.concatenate([values[:9], np.ones(8)])

    def adds_slopes(values):
        return values + np.concatenate([[0.0], np.ones(8), np.zeros(8)])

    _, _, refused = validated(QUESTIONS["shared out"], {1: claims_all, 4: adds_slopes})
    assert set(refused) == {1, 4}


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "clipped_mean"])
def test_slopes_that_are_shared_out_have_no_median(rule):
    """Each is one device's own: the others' zeros must not outvote it."""
    problem = Quadratic(dim=8, devices=6, dissimilarity=0.3)
    plain, robust = (
        fedzo.minimize(problem, algorithm=ALGORITHMS["lbfgs"](), uplink=uplink, rounds=30)
        for uplink in (fedzo.Ideal(), Robust(rule))
    )
    # The slopes that all devices measure at the start have another centre than their mean.
    assert robust.fun == pytest.approx(plain.fun, rel=0.05)
    assert robust.fun < 0.5 * robust.history[0]["train_loss"]


@pytest.mark.parametrize("name", ["fedzo", "zo_sgd", "zone_s", "dzopa", "fedavg"])
@pytest.mark.parametrize("difference", ["forward", "central"])
def test_a_claim_of_queries_is_at_most_what_the_task_can_cost(name, difference):
    """The bound is what an honest device with full batches reports: not one query more."""
    kind = ALGORITHMS[name]
    given = {"directions": 3, "batch_size": 4, "local_steps": 2, "difference": difference}
    algorithm = kind(**{k: v for k, v in given.items() if k in kind.__dataclass_fields__})
    task = steps_of(algorithm, np.zeros(8), 0, seed=5)
    sizes = dict.fromkeys(range(6), 1)
    validator = UpdateValidator(task, 8, fedzo.Ideal(), QUICK, sizes, 6)
    honest = Update(0, np.zeros(8), 1, validator.most_queries)
    assert task.reply(PROBLEM, 0).queries == validator.most_queries
    validator.check(honest)
    for claim in (-1, validator.most_queries + 1, 10**12):
        with pytest.raises(InvalidUpdate, match=f"{claim} queries"):
            validator.check(honest._replace(queries=claim))


def test_one_claim_of_queries_does_not_spoil_the_count_of_a_secure_sum():
    problem = Quadratic(dim=8, devices=10)
    algorithm = dataclasses.replace(ALGORITHM, participants=None, shared_directions=True)
    honest, lied = (Nodes(problem, 5, secure=True) for _ in range(2))
    lied.spoil = plain(queries=10**12)
    uplink = fedzo.Seeds(secure=True)
    right, found = (run(grid, uplink, algorithm, rounds=1) for grid in (honest, lied))
    assert found.queries == right.queries * 8 // 10  # without the two devices of the node
    assert found.dropped
