"""The same run on Flower's messages as in one process, and whatever a node may do to it."""

import dataclasses

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

import fedzo
from driving import steps_of
from fedzo.algorithms import ALGORITHMS
from fedzo.config.experiment import Experiment
from fedzo.core.capabilities import HasGradient, Streamed
from fedzo.core.engine import LocalEngine
from fedzo.errors import Halted
from fedzo.flower import FlowerFederation, FlowerSettings, InProcessGrid, make_client_app, wire
from fedzo.problems import FunctionObjective, Quadratic, softmax
from fedzo.runs import Job, RunOptions, Status, run_job
from fedzo.runs.result import as_watchers
from fedzo.uplinks import UPLINKS

PROBLEM = Quadratic(dim=8, devices=6, gradient_noise=0.1, dissimilarity=0.3)
ALGORITHM = fedzo.FedZO(learning_rate=0.05, directions=4, local_steps=2, participants=4)
QUICK = FlowerSettings(grace=0.02, patience=0.2)


class Nodes(InProcessGrid):
    """Nodes that can be taken away, kept silent, and made to answer anything."""

    def __init__(self, problem=PROBLEM, nodes=3):
        super().__init__(make_client_app(lambda context: problem), nodes)
        self.away, self.silent, self.asked = set(), set(), []
        self.spoil = lambda message, reply: reply

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node not in self.away]

    def answer(self, message):
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        self.asked.append((node, kind))
        if node in self.silent | self.away:
            return None
        return self.spoil(message, super().answer(message))


def run(
    grid,
    uplink=None,
    algorithm=ALGORITHM,
    settings=QUICK,
    callback=None,
    run_dir=None,
    resume=False,
    **options,
):
    uplink = uplink or fedzo.Ideal()
    federation = FlowerFederation(grid, 5, uplink, settings)
    job = Job(
        algorithm=algorithm,
        uplink=uplink,
        options=RunOptions(seed=5, **{"rounds": 6, "evaluate_every": 3, **options}),
        tables={},
        run_dir=run_dir,
        resume=resume,
        watchers=as_watchers(callback),
    )
    return run_job(job, federation, federation.initial())


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
    waves = fedzo.algorithms.FourierSign(shape=(8, 8), divisions=2)
    algorithm, own = fedzo.FedZO(server=waves), dataclasses.replace(QUICK, clip=False)
    there = run(Nodes(problem), algorithm=algorithm, settings=own, rounds=4)
    here = fedzo.minimize(problem, algorithm=algorithm, seed=5, rounds=4, evaluate_every=3)
    assert np.array_equal(there.last, here.last)
    assert [without(r) for r in there.history] == [without(r) for r in here.history]


@pytest.mark.parametrize("kind", UPLINKS)
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_same_run_by_every_uplink(kind, weighting):
    problem = softmax(devices=8)
    shared = kind == "robust_seeds"
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


# ------------------------------------------------------------- what a node may do to a run


def edit(change, devices=frozenset({3}), kind=wire.TRAIN):
    """Return what spoils the answers of node 2, the home of devices 2 and 3."""

    def spoil(message, reply):
        if message.metadata.dst_node_id != 2 or message.metadata.message_type != kind:
            return reply
        return Message(change(reply.content) or reply.content, reply_to=message)

    return spoil


def of_device_3(change):
    """Return what changes the update of device 3 in an answer, and leaves its neighbour's."""

    def spoil(content):
        which = list(content["answer"]["devices"])
        deltas = content["arrays"]["deltas"].numpy()
        if 3 in which:
            content["arrays"] = ArrayRecord({"deltas": FlowerArray(change(deltas, which.index(3)))})

    return edit(spoil)


def put(value):
    def change(deltas, row):
        deltas = deltas.copy()
        deltas[row] = value
        return deltas

    return change


def plain(**changes):
    """Return what changes the plain values of an answer; a list, as many as there are devices."""

    def spoil(content):
        told = dict(content["answer"])
        count = len(told["devices"])
        new = {k: v[:count] if isinstance(v, list) else v for k, v in changes.items()}
        content["answer"] = ConfigRecord({**told, **new})

    return edit(spoil)


def expected(rounds, left_out):
    """Return the model of FedZO where these (round, device) have no say, computed by hand."""
    x, uplink = PROBLEM.initial(), fedzo.Ideal()
    with LocalEngine(PROBLEM, 5, workers=1) as federation:
        for t in range(rounds):
            work = steps_of(ALGORITHM, x, t, seed=5)
            devices = uplink.participants(t, 4, federation)
            deltas = [work.reply(PROBLEM, i).delta for i in devices if (t + 1, i) not in left_out]
            x = x + np.mean(deltas, axis=0) if deltas else x
    return x


def everyone_of(device, rounds=6):
    with LocalEngine(PROBLEM, 5, workers=1) as federation:
        there = [fedzo.Ideal().participants(t, 4, federation) for t in range(rounds)]
    return {(t + 1, device) for t in range(rounds) if device in there[t]}


def named(result):
    """Return who was left out of which round, and the reasons."""
    left = [one for record in result.history for one in record.get("dropped", ())]
    return {(one["round"], one["device"]) for one in left}, {one["reason"] for one in left}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (of_device_3(put(np.nan)), "its update is not finite"),
        (of_device_3(put(np.inf)), "its update is not finite"),
        (of_device_3(put(1e6)), "its update has the length 2.828e+06, more than max_norm = 10"),
        (of_device_3(put(1e200)), "its update has the length inf, more than max_norm = 10"),
    ],
)
def test_bad_update_of_one_device(spoil, reason):
    grid = Nodes()
    grid.spoil = spoil
    result = run(grid, settings=dataclasses.replace(QUICK, max_norm=10.0))
    gone = everyone_of(3)
    assert len(gone) >= 3
    assert named(result) == (gone, {reason})
    assert result.status == Status.FINISHED
    assert np.allclose(result.x, expected(6, gone), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (of_device_3(lambda deltas, _: deltas[:, :-1]), r"its update has the shape (7,) of type"),
        (of_device_3(lambda deltas, _: deltas.astype(np.float32)), "of type float32, not (8,)"),
        (of_device_3(lambda deltas, _: deltas[0]), "have the shape (8,)"),
        (plain(round=77), "its answer is of round 78"),
        (plain(devices=[0, 1]), "the node did not answer for it"),
        (plain(weights=[1e9, 1e9]), "its weight is 1e+09, not 1"),
        (plain(queries=[-5, -5]), "it claims to have asked -5 queries"),
        (plain(queries=[2**62, 2**62]), "it claims to have asked 4611686018427387904 queries"),
        (plain(weights=[np.nan, np.nan]), "its weight is nan, not 1"),
        (plain(failed=[-1], reasons=["no"], devices=[-1, 9]), "malformed: the answer names a"),
        (of_device_3(lambda deltas, _: deltas[:, :, None]), "have the shape ("),
        (edit(lambda content: RecordDict({"other": ConfigRecord({})})), "no record 'answer'"),
        (plain(queries="many"), "the node's answer is malformed"),
        (edit(lambda content: content.clear()), "has no record 'answer'"),
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
        (lambda c: c * np.nan, "its coefficients are not finite"),
        (lambda c: c[:, :1], "its coefficients are not (2, 4) of type float64"),
        (lambda c: c * 1e9, "more than max_norm = 10"),
    ],
)
def test_bad_coefficients(numbers, reason):
    def spoil(content):
        told = wire.read_answer(content, asked=2)
        updates = tuple(u._replace(coefficients=numbers(u.coefficients)) for u in told.updates)
        return wire.answer(told._replace(updates=updates), True)

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
    federation = FlowerFederation(grid, 5, fedzo.Ideal(), QUICK)
    grid.spoil = lambda message, reply: (
        Message(error, reply_to=message) if message.metadata.dst_node_id == 2 else reply
    )
    losses = federation.losses(np.zeros(8))
    assert {(o.device, o.reason) for o in federation.dropped} == {
        (2, "the node failed, with Flower's error 2"),
        (3, "the node failed, with Flower's error 2"),
    }
    assert np.array_equal(losses[[0, 1, 4, 5]], PROBLEM.losses(np.zeros(8), [0, 1, 4, 5]))


def test_loss_that_is_not_finite_is_left_out_of_the_mean():
    def spoil(content):
        content["answer"] = ConfigRecord({**content["answer"], "losses": [1.0, np.nan]})

    grid = Nodes()
    grid.spoil = edit(spoil, kind=wire.EVALUATE)
    result = run(grid, rounds=0)
    losses = PROBLEM.losses(np.zeros(8), [0, 1, 4, 5])
    assert result.fun == pytest.approx((losses.sum() + 1.0) / 5, rel=1e-14)
    assert named(result) == ({(0, 3)}, {"the loss is not finite"})


def test_metrics_are_the_first_nodes_and_cannot_break_the_history():
    def spoil(message, reply):
        if message.metadata.message_type == wire.EVALUATE:
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
    assert reasons == {"its weight is 1000, not 1"}


def test_what_a_node_says_is_one_short_line():
    def spoil(content):
        told = wire.read_answer(content, asked=2)
        failed = dict.fromkeys([u.device for u in told.updates], "no\n\x1b" + "x" * 1000)
        return wire.answer(told._replace(updates=(), failures=failed), False)

    grid = Nodes()
    grid.spoil = edit(spoil)
    assert named(run(grid))[1] == {"no ?" + "x" * 196}


def test_without_a_limit_an_update_must_still_have_a_length():
    grid = Nodes()
    grid.spoil = of_device_3(put(1.7e308))
    result = run(grid)
    assert named(result) == (everyone_of(3), {"its update has the length inf, more than 1e+150"})
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
        content["answer"] = ConfigRecord({**content["answer"], "losses": [lie, lie]})

    grid = Nodes()
    grid.spoil = edit(spoil, kind=wire.EVALUATE)
    result = run(grid, rounds=0)
    honest = PROBLEM.losses(np.zeros(8), [0, 1, 4, 5])
    told = np.sort([*honest, lie, lie])
    middle = told[2]  # the lower median of six, an honest one
    spread = max(np.sort(np.abs(told - middle))[2], abs(middle))
    bound = middle + np.sign(lie) * 5 * spread
    assert result.fun == pytest.approx((honest.sum() + 2 * bound) / 6, rel=1e-14)
    unclipped = run(grid, rounds=0, settings=dataclasses.replace(QUICK, clip=False))
    assert named(unclipped) == ({(0, 2), (0, 3)}, {"the loss is not finite"}) or lie < 0


class Echoing(Nodes):
    """Nodes whose every reply comes again, at once and when it is no longer asked for."""

    before = ()

    def pull_messages(self, message_ids):
        now = super().pull_messages(message_ids)
        again, self.before = [*self.before, *now, *now], now
        return again


def test_late_and_repeated_replies_are_passed_over():
    result = run(Echoing())
    assert named(result) == (set(), set())
    assert np.array_equal(result.x, run(Nodes()).x)
    last = result.history[-1]
    assert last["message_up_bytes"] == run(Nodes()).history[-1]["message_up_bytes"]


def test_everybody_not_finite_is_divergence():
    grid = Nodes()
    grid.spoil = lambda message, reply: (
        reply
        if message.metadata.message_type != wire.TRAIN
        else Message(spoiled(reply.content), reply_to=message)
    )

    def spoiled(content):
        deltas = content["arrays"]["deltas"].numpy() * np.nan
        content["arrays"] = ArrayRecord({"deltas": FlowerArray(deltas)})
        return content

    result = run(grid)
    assert result.status == Status.NON_FINITE
    assert result.message.startswith("the loss is not finite in round 1 on device ")


# --------------------------------------------------------------------- coming and going


def test_silent_node_costs_its_updates_and_one_grace():
    grid = Nodes()
    federation = FlowerFederation(grid, 5, fedzo.Ideal(), QUICK)
    x = federation.initial()
    grid.silent.add(2)
    grid.asked.clear()
    federation.losses(x)
    reasons = {o.device: o.reason for o in federation.dropped}
    assert reasons == dict.fromkeys([2, 3], "the node did not answer in time")
    federation.dropped.clear()
    federation.losses(x)  # it is not asked again, and not waited for
    assert [kind for node, kind in grid.asked if node == 2] == [wire.EVALUATE, wire.HELLO]
    assert {o.reason for o in federation.dropped} == {"not on any connected node"}


def test_node_that_comes_back_takes_part_again():
    grid = Nodes()

    def coming_and_going(progress):
        (grid.away.add if progress.round == 1 else grid.away.discard)(2)

    result = run(grid, rounds=6, callback=coming_and_going, evaluate_every=6)
    gone, reasons = named(result)
    assert gone == {(t, i) for i in (2, 3) for t, _ in everyone_of(i) if t == 2}
    assert gone
    assert reasons == {"not on any connected node"}
    assert np.allclose(result.x, expected(6, gone), rtol=1e-12, atol=0)


def test_node_lost_in_mid_round_and_back_is_asked_again():
    grid, lost = Nodes(), []

    def spoil(message, reply):
        if message.metadata.message_type == wire.TRAIN and not lost:
            lost.append(message.metadata.dst_node_id)
            return Message(Error(5, "Node Unavailable"), reply_to=message)
        return reply

    grid.spoil = spoil
    result = run(grid, settings=FlowerSettings(quorum=1.0, grace=0.02, patience=60.0))
    assert lost
    assert named(result) == (set(), set())
    assert np.allclose(result.x, expected(6, set()), rtol=1e-12, atol=0)


def test_another_node_takes_over_a_device():
    grid = Nodes(nodes=4)
    for node, devices in ((1, "0-3"), (2, "2-5"), (3, "4"), (4, "5")):
        grid.contexts[node].node_config = {"devices": devices}
    federation = FlowerFederation(grid, 5, fedzo.Ideal(), QUICK)
    assert federation._registry.homes(range(6)) == {1: [0, 1, 2, 3], 2: [4, 5]}
    grid.away.add(1)
    federation._registry.look()
    assert federation._registry.homes(range(6)) == {2: [2, 3, 4, 5]}


def test_node_with_another_problem_is_not_taken():
    other = Quadratic(dim=9, devices=6)
    grid = Nodes()
    grid.client_app = make_client_app(lambda c: other if c.node_id == 3 else PROBLEM)
    federation = FlowerFederation(grid, 5, fedzo.Ideal(), QUICK)
    assert federation.dim == 8
    assert federation._registry.homes(range(6)) == {1: [0, 1], 2: [2, 3]}


def introduced(node, **changes):
    """Return nodes of which one lies in its introduction."""
    grid = Nodes()

    def spoil(message, reply):
        if (message.metadata.dst_node_id, message.metadata.message_type) == (node, wire.HELLO):
            reply.content["hello"] = ConfigRecord({**reply.content["hello"], **changes})
        return reply

    grid.spoil = spoil
    return grid


@pytest.mark.parametrize("node", [1, 2, 3])
@pytest.mark.parametrize("lie", [{"dim": 9}, {"devices": 2**62}, {"cost": -1}, {"sizes": [1]}])
def test_one_node_does_not_say_what_the_problem_is(node, lie):
    result = run(introduced(node, **lie))
    gone, reasons = named(result)
    assert {device for _, device in gone} == {2 * node - 2, 2 * node - 1}
    assert reasons == {"not on any connected node"}
    assert np.allclose(result.x, expected(6, gone), rtol=1e-12, atol=0)


def test_sizes_of_devices_are_told_by_their_own_node():
    class Sized(Quadratic):
        def size(self, device):
            return device + 1

    grid = introduced(3, held=list(range(6)), sizes=[1000] * 6)
    grid.client_app = make_client_app(lambda c: Sized(dim=8, devices=6))
    federation = FlowerFederation(grid, 5, fedzo.Ideal(), QUICK)
    assert federation._registry.sizes == {0: 1, 1: 2, 2: 3, 3: 4, 4: 1000, 5: 1000}
    assert federation.evaluation_cost == 2010


def test_one_node_does_not_say_what_can_be_asked():
    federation = FlowerFederation(introduced(1, offers=[]), 5, fedzo.Ideal(), QUICK)
    assert federation.provides(HasGradient)
    assert not federation.provides(Streamed)


@pytest.mark.parametrize(
    "told",
    [
        lambda m: Message(Error(2, "no"), reply_to=m),
        lambda m: Message(RecordDict({"arrays": wire.vector(np.ones(7))}), reply_to=m),
        lambda m: Message(RecordDict({"arrays": wire.vector(np.ones(8))}), reply_to=m),
        lambda m: None,
    ],
    ids=["raises", "other shape", "other start", "silent"],
)
def test_start_is_what_most_nodes_say(told):
    grid = Nodes()
    grid.spoil = lambda m, reply: (
        told(m) if (m.metadata.message_type, m.metadata.dst_node_id) == (wire.INITIAL, 1) else reply
    )
    x0 = FlowerFederation(grid, 5, fedzo.Ideal(), QUICK).initial()
    assert np.array_equal(x0, PROBLEM.initial())
    assert x0.flags.writeable


def test_nobody_tells_a_start():
    grid = Nodes()
    grid.spoil = lambda m, reply: (
        Message(Error(2, "no"), reply_to=m) if m.metadata.message_type == wire.INITIAL else reply
    )
    with pytest.raises(Halted, match="no node answered with a start of 8 numbers"):
        FlowerFederation(grid, 5, fedzo.Ideal(), QUICK).initial()


def test_too_few_at_the_start():
    grid = Nodes()
    grid.away |= {2, 3}
    with pytest.raises(Halted, match=r"within 0.2 s: 2 of 6 devices are there, 3 are needed"):
        FlowerFederation(grid, 5, fedzo.Ideal(), QUICK)


def test_quorum_lost_halts_with_a_checkpoint_that_resumes(tmp_path):
    grid = Nodes()

    def leave(progress):
        grid.away |= {1, 2} if progress.round == 4 else set()

    settings = dataclasses.replace(QUICK, quorum=0.8)  # all four of a round
    keywords = {"run_dir": tmp_path, "evaluate_every": 6}
    halted = run(grid, callback=leave, settings=settings, **keywords)
    assert halted.status == Status.HALTED
    assert halted.nit == 4
    assert halted.message.startswith("no quorum within 0.2 s: ")
    grid.away.clear()
    resumed = run(grid, resume=True, **keywords)
    assert resumed.status == Status.FINISHED
    assert np.array_equal(resumed.x, run(Nodes()).x)


def test_quorum_is_of_the_devices_asked():
    assert FlowerSettings(quorum=0.5).needed(5) == 3
    assert FlowerSettings(quorum=1.0).needed(5) == 5
    assert FlowerSettings(quorum=0.01).needed(5) == 1


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ({"quorum": 0}, "flower.quorum = 0.0: must be a number > 0"),
        ({"quorum": 2}, "flower.quorum = 2.0: must be a number in (0, 1]"),
        ({"grace": -1}, "flower.grace = -1.0: must be a number > 0"),
        ({"patience": "long"}, "flower.patience = 'long': must be a number"),
        ({"max_norm": 0}, "flower.max_norm = 0.0: must be a number > 0"),
        ({"nodes": 0}, "flower.nodes = 0: must be a whole number >= 1"),
        ({"grase": 1}, "flower.grase = 1: unknown key (did you mean 'grace'?)"),
    ],
)
def test_bad_setting(setting, line):
    with pytest.raises(fedzo.errors.FedzoError) as caught:
        Experiment.resolve({"problem": {"name": "quadratic"}, "flower": setting})
    assert str(caught.value).startswith(line)


# ------------------------------------------------------------------------- who is believed


def test_node_of_another_version_is_not_taken(caplog):
    federation = FlowerFederation(introduced(2, version="0.0.1"), 5, fedzo.Ideal(), QUICK)
    assert federation._registry.homes(range(6)) == {1: [0, 1], 3: [4, 5]}
    assert f"it has fedzo 0.0.1, not {fedzo.__version__}" in caplog.text


def test_node_with_another_function_of_the_same_shape_is_not_taken(caplog):
    def ours(x, device):
        return float(x @ x)

    def theirs(x, device):
        return -float(x @ x)

    made = {f: FunctionObjective(f, 8, devices=6) for f in (ours, theirs)}
    grid = Nodes()
    grid.client_app = make_client_app(lambda c: made[theirs if c.node_id == 2 else ours])
    federation = FlowerFederation(grid, 5, fedzo.Ideal(), QUICK)
    assert federation._registry.homes(range(6)) == {1: [0, 1], 3: [4, 5]}
    assert "node 2 is not taken: its problem is another one" in caplog.text


def test_setting_that_is_each_nodes_own():
    made = [Quadratic(dim=8, devices=6, gradient_noise=0.1 * i) for i in range(4)]
    for own, taken in (((), 1), (("gradient_noise",), 3)):
        grid = Nodes()
        grid.client_app = make_client_app(lambda c: made[c.node_id], own=own)
        settings = dataclasses.replace(QUICK, quorum=0.3)
        federation = FlowerFederation(grid, 5, fedzo.Ideal(), settings)
        assert len(federation._registry.homes(range(6))) == taken


def test_node_that_draws_other_directions_sends_updates(caplog):
    grid = introduced(2, checksum="0" * 16)
    result = run(grid, fedzo.Seeds())
    # Whole updates come first in the sum over devices: the same to the rounding of float64 sums.
    np.testing.assert_allclose(result.x, run(Nodes(), fedzo.Seeds()).x, rtol=0, atol=1e-12)
    assert named(result) == (set(), set())
    assert "node 2 draws other directions than the server: it sends updates" in caplog.text
    whole = run(Nodes(), fedzo.Seeds()).uplink_bytes
    each = len(everyone_of(2)) + len(everyone_of(3))
    assert result.uplink_bytes - whole == each * (8 - 2 * 4) * 8  # d numbers, not H x b2


def test_devices_are_bound_to_nodes(tmp_path, caplog):
    file = tmp_path / "nodes.toml"
    file.write_text('1 = "0-1"\n2 = "2-3"\n')
    settings = dataclasses.replace(QUICK, bindings=str(file))
    grid = introduced(1, held=list(range(6)), sizes=[1] * 6)  # it claims all
    with pytest.raises(Halted, match="2 of 6 devices are there"):
        FlowerFederation(grid, 5, fedzo.Ideal(), settings)
    assert "node 1 is not taken: devices 2-5 are not bound to it" in caplog.text
    assert "node 3 is not taken: no devices are bound to it" in caplog.text
    federation = FlowerFederation(Nodes(), 5, fedzo.Ideal(), settings)
    assert federation._registry.homes(range(6)) == {1: [0, 1], 2: [2, 3]}


@pytest.mark.parametrize("content", ["x = 3", '1 = "a"', "["])
def test_bindings_that_make_no_sense(tmp_path, content):
    file = tmp_path / "nodes.toml"
    file.write_text(content)
    with pytest.raises(fedzo.errors.FedzoError, match=r"bindings|devices"):
        run(Nodes(), settings=dataclasses.replace(QUICK, bindings=str(file)))


@pytest.mark.parametrize("uplink", [fedzo.Ideal(), fedzo.Seeds()])
def test_update_of_one_device_is_shortened_to_the_others(uplink):
    """A huge update in an honest direction counts as five median ones."""

    def spoil(content):
        told = wire.read_answer(content, asked=2)
        updates = tuple(
            u._replace(
                delta=u.delta * 1e30,
                coefficients=None if u.coefficients is None else u.coefficients * 1e30,
            )
            for u in told.updates
        )
        return wire.answer(told._replace(updates=updates), isinstance(uplink, fedzo.Seeds))

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
