"""Nodes that come and go, and which of them the server admits."""

import dataclasses

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from misbehaving import (
    ALGORITHM,
    PROBLEM,
    QUICK,
    Nodes,
    everyone_of,
    expected,
    introduced,
    named,
    run,
)

import fedzo
from fedzo.config.experiment import Experiment
from fedzo.core.capabilities import HasGradient, Streamed
from fedzo.core.tasks import Losses
from fedzo.errors import FedzoError, Halted, UsageError
from fedzo.flower import FlowerEngine, FlowerSettings, InProcessGrid, make_client_app, protocol
from fedzo.flower.errors import Malformed
from fedzo.flower.registry import asked_again, device_ranges
from fedzo.problems import FunctionObjective, Quadratic
from fedzo.runs import Status
from raising import fails, rejects


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


def test_silent_node_costs_its_updates_and_one_grace():
    grid = Nodes()
    engine = FlowerEngine(grid, 5, fedzo.Ideal(), QUICK)
    x = engine.initial()
    grid.silent.add(2)
    grid.asked.clear()
    engine.ask(Losses(x))
    assert {o.device for o in engine.dropped} == {2, 3}
    assert {"grace period" in o.reason for o in engine.dropped} == {True}
    engine.dropped.clear()
    engine.ask(Losses(x))  # it is not asked again, and not waited for
    assert [kind for node, kind in grid.asked if node == 2] == [protocol.EVALUATE, protocol.HELLO]
    assert {o.reason for o in engine.dropped} == {"not on any connected node"}


class Deaf(Nodes):
    """Nodes of which some reply to greetings and to nothing else: the others are not disturbed."""

    def __init__(self, deaf=(2,), nodes=3, **keywords):
        super().__init__(nodes=nodes, **keywords)
        self.deaf, self.deaf_since = set(deaf), 0

    def answer(self, message):
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        self.asked.append((node, kind))
        return None if node in self.deaf and kind != protocol.HELLO else InProcessGrid.answer(
            self, message
        )  # fmt: skip


def graces(result):
    """Return the rounds in which the server waited for a silent node."""
    dropped = [one for record in result.history for one in record.get("dropped", ())]
    return sorted({one["round"] for one in dropped if "grace period" in one["reason"]})


ALL = dataclasses.replace(ALGORITHM, participants=None)


@pytest.mark.parametrize("algorithm", [ALGORITHM, ALL], ids=["some", "all"])
@pytest.mark.parametrize("deaf", [{2}, {1, 3}])
def test_deaf_nodes_cost_two_grace_periods_in_ten_rounds(deaf, algorithm):
    """They answer greetings, so each round could wait for them again."""
    grid = Deaf(deaf, nodes=6)
    result = run(grid, algorithm=algorithm, rounds=40, evaluate_every=1)
    assert result.success
    assert result.nit == 40
    waited = graces(result)
    assert waited
    assert all(len([s for s in waited if t <= s < t + 10]) <= 2 for t in range(40))
    assert len([t for t in waited if t >= 20]) <= 2  # and less and less
    assert {one["device"] for one in result.dropped} == {node - 1 for node in deaf}


def test_node_that_can_hear_again_takes_part_within_ten_rounds():
    grid = Deaf({2})

    def heal(progress):
        if progress.round == 3:
            grid.deaf.clear()

    result = run(grid, algorithm=ALL, rounds=14, evaluate_every=1, callback=heal)
    taking_part = [record["participants"] for record in result.history]
    assert taking_part[4] == 4
    assert taking_part[-1] == 6


def test_paused_nodes_are_asked_if_the_quorum_needs_them():
    grid = Deaf({2})

    def heal(progress):
        if progress.round == 2:
            grid.deaf.clear()
            grid.away |= {1}

    settings = dataclasses.replace(QUICK, patience=5.0)
    result = run(grid, algorithm=ALL, rounds=4, evaluate_every=1, callback=heal, settings=settings)
    assert result.success
    assert result.history[-1]["participants"] == 4  # of nodes 2 and 3


@given(st.lists(st.integers(0, 200), max_size=12))
def test_pauses_grow_and_end_together(silences):
    found = sorted(set(silences))
    again = [asked_again(found[: i + 1]) for i in range(len(found))]
    for t, after in zip(found, again, strict=True):
        assert 5 <= after - t <= 160
        assert after % 5 == 0
    assert asked_again(reversed(found)) == asked_again(found)


def test_node_that_claims_millions_of_devices_costs_nothing():
    """The list is rejected by its length, before its items are looked at."""
    held = list(range(protocol.MOST_HELD + 1))
    hello = {"version": "1", "fingerprint": "f", "checksum": "c", "dim": 8, "devices": 10**9}
    hello |= {"held": held, "sizes": held, "offers": [], "cost": 0}
    content = RecordDict({"hello": ConfigRecord(hello)})
    with pytest.raises(Malformed) as caught:
        protocol.read_hello(content)
    assert caught.value.key in ("held", "sizes")


def test_list_of_devices_in_a_message_is_short():
    assert len(device_ranges(range(0, 10**6, 2))) < 200
    assert device_ranges([]) == "none"
    assert device_ranges([4, 3, 9]) == "3-4, 9"


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
        if message.metadata.message_type == protocol.TRAIN and not lost:
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
        grid.contexts[node].node_config["devices"] = devices  # in place of its part
    engine = FlowerEngine(grid, 5, fedzo.Ideal(), QUICK)
    assert engine._registry.homes(range(6)) == {1: [0, 1, 2, 3], 2: [4, 5]}
    grid.away.add(1)
    engine._registry.look()
    assert engine._registry.homes(range(6)) == {2: [2, 3, 4, 5]}


def test_node_with_another_problem_is_not_taken():
    other = Quadratic(dim=9, devices=6)
    grid = Nodes()
    grid.client_app = make_client_app(lambda c: other if c.node_id == 3 else PROBLEM)
    engine = FlowerEngine(grid, 5, fedzo.Ideal(), QUICK)
    assert engine.dim == 8
    assert engine._registry.homes(range(6)) == {1: [0, 1], 2: [2, 3]}


@pytest.mark.parametrize("node", [1, 2, 3])
@pytest.mark.parametrize("lie", [{"dim": 9}, {"devices": 2**62}, {"cost": -1}, {"sizes": [1]}])
def test_one_node_does_not_say_what_the_problem_is(node, lie):
    result = run(introduced(node, **lie))
    gone, reasons = named(result)
    assert {device for _, device in gone} == {2 * node - 2, 2 * node - 1}
    assert reasons == {"not on any connected node"}
    assert np.allclose(result.x, expected(6, gone), rtol=1e-12, atol=0)


def test_node_that_is_alone_at_the_start_does_not_say_how_many_devices_there_are(tmp_path):
    """With N = 1 its device would be all of them, before another node is there."""
    grid = introduced(1, devices=1, held=[0], sizes=[1])
    file = tmp_path / "nodes.toml"
    file.write_text('1 = "0-1"\n2 = "2-3"\n3 = "4-5"')
    grid.away.update((2, 3))
    looks = []

    def ids():
        looks.append(None)
        if len(looks) == 3:
            grid.away.clear()
        return [node for node in grid.contexts if node not in grid.away]

    grid.get_node_ids = ids
    engine = FlowerEngine(grid, 5, fedzo.Ideal(), dataclasses.replace(QUICK, bindings=str(file)))
    assert len(looks) >= 3
    assert (engine.devices, engine.dim) == (6, 8)
    assert engine._registry.homes(range(6)) == {2: [2, 3], 3: [4, 5]}


def test_sizes_of_devices_are_told_by_their_own_node():
    class Sized(Quadratic):
        def size(self, device):
            return device + 1

    grid = introduced(3, held=list(range(6)), sizes=[1000] * 6)
    grid.client_app = make_client_app(lambda c: Sized(dim=8, devices=6))
    engine = FlowerEngine(grid, 5, fedzo.Ideal(), QUICK)
    assert engine._registry.sizes == {0: 1, 1: 2, 2: 3, 3: 4, 4: 1000, 5: 1000}
    assert engine.evaluation_cost == 2010


def test_one_node_does_not_say_what_can_be_asked():
    engine = FlowerEngine(introduced(1, offers=[]), 5, fedzo.Ideal(), QUICK)
    assert engine.provides(HasGradient)
    assert not engine.provides(Streamed)


@pytest.mark.parametrize(
    "told",
    [
        lambda m: Message(Error(2, "no"), reply_to=m),
        lambda m: Message(RecordDict({"arrays": protocol.vector(np.ones(7))}), reply_to=m),
        lambda m: Message(RecordDict({"arrays": protocol.vector(np.ones(8))}), reply_to=m),
        lambda m: None,
    ],
    ids=["raises", "other shape", "other start", "silent"],
)
def test_start_is_what_most_nodes_say(told):
    grid = Nodes()
    grid.spoil = lambda m, reply: (
        told(m)
        if (m.metadata.message_type, m.metadata.dst_node_id) == (protocol.INITIAL, 1)
        else reply
    )
    x0 = FlowerEngine(grid, 5, fedzo.Ideal(), QUICK).initial()
    assert np.array_equal(x0, PROBLEM.initial())
    assert x0.flags.writeable


def test_nobody_tells_a_start():
    grid = Nodes()
    grid.spoil = lambda m, reply: (
        Message(Error(2, "no"), reply_to=m)
        if m.metadata.message_type == protocol.INITIAL
        else reply
    )
    with pytest.raises(Halted):
        FlowerEngine(grid, 5, fedzo.Ideal(), QUICK).initial()


def test_too_few_at_the_start():
    grid = Nodes()
    grid.away |= {2, 3}
    with fails("no-quorum", Halted):
        FlowerEngine(grid, 5, fedzo.Ideal(), QUICK)


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
    ("key", "value"),
    [
        ("quorum", 0),
        ("quorum", 2),
        ("grace", -1),
        ("patience", "long"),
        ("max_norm", 0),
        ("nodes", 0),
    ],
)
def test_bad_setting(key, value):
    with rejects(f"flower.{key}"):
        Experiment.resolve({"problem": {"name": "quadratic"}, "flower": {key: value}})


def test_unknown_setting():
    with pytest.raises(UsageError):
        Experiment.resolve({"problem": {"name": "quadratic"}, "flower": {"grase": 1}})


def test_node_of_another_version_is_not_taken(caplog):
    engine = FlowerEngine(introduced(2, version="0.0.1"), 5, fedzo.Ideal(), QUICK)
    assert engine._registry.homes(range(6)) == {1: [0, 1], 3: [4, 5]}
    assert f"it has fedzo 0.0.1, not {fedzo.__version__}" in caplog.text


def test_node_with_another_function_of_the_same_shape_is_not_taken(caplog):
    def ours(x, device):
        return float(x @ x)

    def theirs(x, device):
        return -float(x @ x)

    made = {f: FunctionObjective(f, 8, devices=6) for f in (ours, theirs)}
    grid = Nodes()
    grid.client_app = make_client_app(lambda c: made[theirs if c.node_id == 2 else ours])
    engine = FlowerEngine(grid, 5, fedzo.Ideal(), QUICK)
    assert engine._registry.homes(range(6)) == {1: [0, 1], 3: [4, 5]}
    assert "node 2 is rejected: it has another problem" in caplog.text


def test_setting_that_is_each_nodes_own():
    made = [Quadratic(dim=8, devices=6, gradient_noise=0.1 * i) for i in range(4)]
    for own, taken in (({}, 1), ({"problem.gradient-noise": 0.1}, 3)):
        grid = Nodes()
        grid.client_app = make_client_app(lambda c: made[c.node_id])
        for context in grid.contexts.values():
            context.node_config.update(own)
        settings = dataclasses.replace(QUICK, quorum=0.3)
        engine = FlowerEngine(grid, 5, fedzo.Ideal(), settings)
        assert len(engine._registry.homes(range(6))) == taken


@pytest.mark.parametrize("uplink", [fedzo.Ideal(), fedzo.Seeds()])
def test_node_that_draws_other_directions_is_rejected(caplog, uplink):
    settings = dataclasses.replace(QUICK, quorum=0.3)
    engine = FlowerEngine(introduced(2, checksum="0" * 16), 5, uplink, settings)
    assert engine._registry.homes(range(6)) == {1: [0, 1], 3: [4, 5]}
    assert "node 2 is rejected: it draws other directions than the server" in caplog.text


def test_devices_are_bound_to_nodes(tmp_path, caplog):
    file = tmp_path / "nodes.toml"
    file.write_text('1 = "0-1"\n2 = "2-3"\n')
    settings = dataclasses.replace(QUICK, bindings=str(file))
    grid = introduced(1, held=list(range(6)), sizes=[1] * 6)  # it claims all
    with fails("no-quorum", Halted):
        FlowerEngine(grid, 5, fedzo.Ideal(), settings)
    assert "node 1 is rejected: devices 2-5 are not bound to it" in caplog.text
    assert "node 3 is rejected: no devices are bound to it" in caplog.text
    engine = FlowerEngine(Nodes(), 5, fedzo.Ideal(), settings)
    assert engine._registry.homes(range(6)) == {1: [0, 1], 2: [2, 3]}


@pytest.mark.parametrize("content", ["x = 3", '1 = "a"', "["])
def test_bindings_that_make_no_sense(tmp_path, content):
    file = tmp_path / "nodes.toml"
    file.write_text(content)
    with pytest.raises(FedzoError):
        run(Nodes(), settings=dataclasses.replace(QUICK, bindings=str(file)))


def test_node_without_a_binding_has_no_vote(tmp_path, caplog):
    """Two strangers that hold nothing would outvote the one node that holds all."""
    file = tmp_path / "nodes.toml"
    file.write_text('1 = "0-5"\n')
    grid = Nodes()

    def spoil(message, reply):
        if message.metadata.message_type == protocol.HELLO:
            told = dict(reply.content["hello"])
            one = message.metadata.dst_node_id == 1
            changes = {} if one else {"fingerprint": "f" * 16, "dim": 3}
            held = list(range(6)) if one else []
            changes |= {"held": held, "sizes": [1] * len(held)}
            reply.content["hello"] = ConfigRecord({**told, **changes})
        return reply

    grid.spoil = spoil
    for settings in (QUICK, dataclasses.replace(QUICK, bindings=str(file))):
        assert FlowerEngine(grid, 5, fedzo.Ideal(), settings).dim == 8
    assert "node 2 is rejected: no devices are bound to it" in caplog.text
    grid.away = {1}
    with pytest.raises(Halted):
        FlowerEngine(grid, 5, fedzo.Ideal(), QUICK)
