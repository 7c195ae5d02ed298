"""Secure sums over Flower's messages: the same run, and nodes and servers that fail or lie."""

import dataclasses
import os
import random
import signal
import sqlite3
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.app import ConfigRecord, Message, RecordDict
from misbehaving import PROBLEM, QUICK, Nodes, run
from one_node import ask, refusal
from one_node import node as one_node
from test_flower_engine import without

import fedzo
from driving import steps_of
from fedzo.cli import main
from fedzo.core.engine import LocalEngine
from fedzo.core.tasks import Evaluate, Losses, Replies
from fedzo.errors import Exit, FedzoWarning, InvalidValue, UsageError
from fedzo.flower import FlowerEngine, FlowerSettings, protocol, sums
from fedzo.flower.errors import ErrorCode, Rejected
from fedzo.flower.ledger import Ledger
from fedzo.flower.policy import NodeConfig
from fedzo.flower.protocol import EVALUATE, SHARES, TRAIN, UNMASK, SumRequest
from fedzo.flower.secure import MOST_GROUPED, NAME, SumServer
from fedzo.problems import Quadratic, softmax
from fedzo.runs.result import Status

SECURE = fedzo.Seeds(secure=True)
SHARED = fedzo.FedZO(
    learning_rate=0.05, directions=4, local_steps=2, participants=4, shared_directions=True
)
TEN = Quadratic(dim=8, devices=20, gradient_noise=0.1, dissimilarity=0.3)
METRICS = ("optimality_gap", "gradient_norm_squared", "test_loss", "test_accuracy")  # of one node


# ------------------------------------------------------------------------------- the same numbers


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weighting": "size"},
        {"fixed_directions": 8},
        {"server": fedzo.server.Adam()},
        {"direction_kind": "orthogonal", "difference": "central"},
    ],
    ids=str,
)
@pytest.mark.parametrize("downlink", ["log", "model"])
def test_same_bits_as_in_one_process(changes, downlink):
    problem, uplink = softmax(devices=8), fedzo.Seeds(secure=True, downlink=downlink)
    algorithm = fedzo.FedZO(participants=6, shared_directions=True, **{"directions": 4, **changes})
    there = run(Nodes(problem, 4, secure=True), uplink, algorithm, rounds=3)
    here = fedzo.minimize(
        problem, algorithm=algorithm, uplink=uplink, seed=5, rounds=3, evaluate_every=3
    )
    assert there.x.dtype == np.float32
    assert np.array_equal(there.x, here.x)
    mine, theirs = ([without(r, *METRICS) for r in h.history] for h in (there, here))
    assert mine == theirs


@pytest.mark.parametrize("nodes", [3, 5, 6])
def test_result_does_not_depend_on_the_nodes(nodes):
    algorithm = fedzo.FedZO(learning_rate=0.05, directions=4, shared_directions=True)
    there = run(Nodes(nodes=nodes, secure=True), SECURE, algorithm)
    here = fedzo.minimize(PROBLEM, algorithm=algorithm, uplink=SECURE, seed=5, rounds=6)
    assert np.array_equal(there.last, here.last)


@pytest.mark.parametrize("d", [2, 50, 3000])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_error_of_the_fixed_point_is_below_its_bound(d, size):
    """Each mean coefficient is within half a step of the exact mean; a step is 2^-39 of clip."""
    clip, count = 4 * size, 7
    generator = np.random.default_rng(d)
    task = steps_of(fedzo.FedZO(directions=5, local_steps=3, shared_directions=True), np.zeros(d))
    rows = generator.normal(size=(count, 3, 5))
    rows *= size / np.sqrt(15 * d)
    updates = [fedzo.core.tasks.Update(i, np.zeros(d), 1, 0, row) for i, row in enumerate(rows)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (mean,) = fedzo.Seeds(secure=True, clip=clip).compress(updates, task, None)
    error = np.abs(mean.coefficients - rows.mean(axis=0)).max()
    rounding = 2**-52 * np.abs(rows).max()  # of the exact mean itself
    assert 0 < error <= 2**-40 * clip / np.sqrt(d) + rounding
    assert mean.contributors == count


def test_long_updates_and_losses_are_clipped_with_a_warning():
    problem = fedzo.problems.FunctionObjective(lambda x, i: 1e3 * (x @ x + i), 4, devices=6)
    uplink = fedzo.Seeds(secure=True, clip=1e-3, loss_clip=100.0)
    with pytest.warns(FedzoWarning, match="were clipped to uplink") as here_warned:
        here = fedzo.minimize(
            problem, np.ones(4), algorithm=SHARED, uplink=uplink, rounds=2, seed=5
        )
    with pytest.warns(FedzoWarning, match="were clipped to uplink") as there_warned:
        there = run(Nodes(problem, secure=True), uplink, SHARED, rounds=2)
    told = [{str(w.message) for w in warned} for warned in (here_warned, there_warned)]
    assert any("4 updates were clipped to uplink.clip = 0.001" in text for text in told[0])
    assert any("losses were clipped to uplink.loss_clip = 100" in text for text in told[1])
    assert here.history[0]["train_loss"] == pytest.approx(100, abs=1e-3)
    assert there.history[0]["train_loss"] <= 100
    assert np.linalg.norm(here.last - 1) <= 2 * 1.3e-3 * np.sqrt(2)  # two updates


def test_one_process_resumes_to_the_same_bytes(tmp_path):
    options = {"uplink": SECURE, "algorithm": SHARED, "rounds": 6, "checkpoint_every": 2}
    whole = fedzo.minimize(PROBLEM, run_dir=tmp_path / "whole", **options)
    part = tmp_path / "part"
    fedzo.minimize(PROBLEM, run_dir=part, callback=lambda p: p.round == 3, **options)
    again = fedzo.minimize(PROBLEM, run_dir=part, resume=True, **options)
    assert np.array_equal(whole.last, again.last)


# --------------------------------------------------------------------------------------- dropouts


class Dropping(Nodes):
    """Nodes of which some do not reply to one kind of message."""

    def __init__(self, kind, lost, after=False, problem=TEN, nodes=10):
        super().__init__(problem, nodes, secure=True)
        self.kind, self.lost, self.after = kind, lost, after

    def answer(self, message):
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        drops = kind == self.kind and node in self.lost
        if drops and not self.after:
            return None
        reply = super().answer(message)
        return None if drops else reply  # "after": the node has stored its state


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [SHARES, TRAIN, UNMASK])
def test_three_of_ten_nodes_drop_out_in_the_midst_of_a_round(kind, after):
    grid = Dropping(kind, lost={2, 5, 9}, after=after)
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    task = steps_of(SHARED, engine.initial(), round=0, seed=5, devices=range(20))
    (update,) = engine.ask(task)
    gone = set() if kind == UNMASK else {2, 3, 8, 9, 16, 17}  # two devices each
    with LocalEngine(TEN, 5) as local:
        replies = [each for each in local.ask(task) if each.device not in gone]
    (expected,) = SECURE.compress(replies, task, None)
    assert np.array_equal(update.coefficients, expected.coefficients)
    assert update.contributors == 20 - len(gone)
    assert {one.device for one in engine.dropped} == gone


@pytest.mark.parametrize("kind", [SHARES, TRAIN, UNMASK])
def test_more_dropouts_cost_the_round_but_not_the_run(kind):
    grid = Dropping(kind, lost={1, 2, 5, 9})
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    task = steps_of(SHARED, engine.initial(), round=0, seed=5, devices=range(20))
    assert list(engine.ask(task)) == []
    assert {one.device for one in engine.dropped} == set(range(20))
    grid.kind = None
    engine.dropped.clear()
    again = steps_of(SHARED, engine.initial(), round=5, seed=5, devices=range(20))
    (update,) = engine.ask(again)
    assert update.contributors >= 12


def test_dropouts_of_an_evaluation():
    grid = Dropping(EVALUATE, lost={2, 5, 9})
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    x = engine.initial()
    found = engine.ask(Losses(x))
    away = [2, 3, 8, 9, 16, 17]
    assert sorted(one.device for one in engine.dropped) == away
    assert np.flatnonzero(np.isnan(found.losses)).tolist() == away
    true = np.delete(TEN.losses(x, np.arange(20)), away)
    assert found.mean == pytest.approx(true.mean(), abs=2**-40 * SECURE.loss_clip)
    assert len(set(found.losses[~np.isnan(found.losses)])) == 1  # nothing of a single device


def test_model_that_did_not_move_is_evaluated_once():
    """Nodes that are back would make it a sum over others, which the nodes reject."""
    grid = Dropping(EVALUATE, lost={2, 5, 9})
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    first = engine.ask(Losses(engine.initial()))
    grid.kind = None
    engine.dropped.clear()
    again = engine.ask(Losses(engine.initial()))
    assert again.mean == first.mean
    assert np.isfinite(again.losses).all()
    assert np.isfinite(engine.ask(Losses(engine.initial() + 1)).mean)


def test_failing_device_costs_its_own_update(monkeypatch):
    def sick(x, device):
        if device == 4:
            raise OSError("patient 7")
        return float(x @ x) + (np.nan if device == 5 else device)

    problem = fedzo.problems.FunctionObjective(sick, 3, devices=9)
    engine = FlowerEngine(Nodes(problem, 3, secure=True), 5, SECURE, QUICK)
    found = engine.ask(Losses(np.ones(3)))
    assert sorted(one.device for one in engine.dropped) == [4, 5]
    assert found.mean == pytest.approx(np.mean([3 + i for i in (0, 1, 2, 3, 6, 7, 8)]))


def test_killed_server_resumes_to_the_same_bits(tmp_path):
    """The rounds since the checkpoint are summed again, over the same nodes."""
    algorithm = fedzo.FedZO(learning_rate=0.05, directions=4, shared_directions=True)
    whole = run(Nodes(secure=True), SECURE, algorithm, run_dir=tmp_path / "whole")
    grid = Nodes(secure=True)

    def killed(progress):
        if progress.round == 5:
            raise SystemError

    with pytest.raises(SystemError):
        run(grid, SECURE, algorithm, run_dir=tmp_path / "part", callback=killed, checkpoint_every=3)
    again = run(grid, SECURE, algorithm, run_dir=tmp_path / "part", resume=True, checkpoint_every=3)
    assert np.array_equal(again.last, whole.last)
    mine, theirs = ([without(r) for r in h.history] for h in (again, whole))
    assert mine == theirs


# ----------------------------------------------------------------------------------- many nodes

MANY = Quadratic(dim=8, devices=32, gradient_noise=0.1, dissimilarity=0.3)


@pytest.mark.parametrize("nodes", [14, 15, 16, 28, 29, 100, 255, 1000])
def test_groups_have_a_threshold_that_survives_dropouts(nodes):
    found = sums.grouped(range(nodes))
    assert [node for group in found for node in group] == list(range(nodes))
    assert all(7 <= len(group) <= MOST_GROUPED for group in found)
    assert min(map(len, found)) >= max(map(len, found)) - 1


def test_many_nodes_have_the_same_bits_and_send_two_kilobytes():
    """Two groups of eight nodes; the payload is that of the messages beyond a plain round."""
    algorithm = fedzo.FedZO(learning_rate=0.05, directions=4, shared_directions=True)
    here = fedzo.minimize(MANY, algorithm=algorithm, uplink=SECURE, seed=5, rounds=3)
    there = run(Nodes(MANY, 16, secure=True), SECURE, algorithm, rounds=3)
    assert np.array_equal(there.last, here.last)
    for nodes in (14, 15, 32):
        sizes = []
        for secure in (False, True):
            grid = Nodes(MANY, nodes, secure=secure)
            engine = FlowerEngine(grid, 5, fedzo.Seeds(secure=secure), QUICK)
            task = steps_of(algorithm, engine.initial(), round=0, seed=5, devices=range(32))
            list(engine.ask(task))
            records = (
                value
                for message in (*engine.nodes.sent, *engine.nodes.received)
                for record in message.content.config_records.values()
                for value in record.values()
            )
            sizes.append(sum(len(v) if isinstance(v, bytes) else 8 for v in records))
        assert sizes[1] - sizes[0] < 2048 * nodes


@pytest.mark.parametrize("kind", [SHARES, TRAIN, UNMASK])
def test_dropouts_of_one_group_cost_that_group_only(kind):
    grid = Dropping(kind, lost=set(), problem=MANY, nodes=16)
    names = members_of(grid)
    first = sorted(names, key=names.get)[:8]
    grid.lost = set(first[:3])  # of 8, 6 are needed
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    task = steps_of(SHARED, engine.initial(), round=0, seed=5, devices=range(32))
    (update,) = engine.ask(task)
    gone = {device for node in first for device in (2 * node - 2, 2 * node - 1)}
    assert {one.device for one in engine.dropped} == gone
    with LocalEngine(MANY, 5) as local:
        replies = [each for each in local.ask(task) if each.device not in gone]
    (expected,) = SECURE.compress(replies, task, None)
    assert np.array_equal(update.coefficients, expected.coefficients)


# ------------------------------------------------------------------ servers and nodes that lie


def members_of(grid):
    ledgers = [Ledger(c.node_config["ledger"]) for c in grid.contexts.values()]
    return {n: ledger.member().name for n, ledger in zip(grid.contexts, ledgers, strict=True)}


class Server:
    """A server that sends single messages to nodes with [secure]."""

    def __init__(self, nodes=5, problem=None):
        self.problem = problem or Quadratic(dim=8, devices=10)
        self.grid = Nodes(self.problem, nodes, secure=True)
        self.names = members_of(self.grid)
        self.sum = SumServer(sorted(self.names.values()))

    def send(self, node, kind, request, content=None):
        content = protocol.with_sum(content or RecordDict(), request)
        (reply,) = self.grid.send_and_receive([Message(content, node, kind)])
        assert not reply.has_error()
        told = refusal(reply.content)
        return told or protocol.read_sum_reply(reply.content, range(10), most=1000)[0]

    def begin(self, number, members=None):
        for node, name in self.names.items():
            reply = self.send(node, SHARES, SumRequest(number, members or self.sum.members))
            if isinstance(reply, str):
                return reply
            self.sum.shares[name] = reply.shares
        return None

    def steps(self, node, number, round=0, devices=None):
        task = steps_of(SHARED, np.zeros(8), round=round, seed=0)
        own = [2 * node - 2, 2 * node - 1] if devices is None else devices
        content = protocol.task(protocol.pack(task), own, True)
        present, inbox = self.sum.inbox(self.names[node])
        return self.send(node, TRAIN, SumRequest(number, b"", present, inbox, 1.0), content)

    def unmask(self, node, number, nodes):
        bits = self.sum.bits(self.names[n] for n in nodes)
        return self.send(node, UNMASK, SumRequest(number, survivors=bits))


EVERYONE = range(1, 6)


WHOLE = st.integers(-(2**63), 2**63 - 1)
BYTES = st.one_of(st.binary(max_size=40), st.just(b"\xff"), st.just(b"\xf8"))


@pytest.fixture(scope="module")
def begun():
    """Return a server and its nodes in an attempt whose shares were sent."""
    server = Server()
    server.begin(7)
    return server


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([SHARES, TRAIN, EVALUATE, UNMASK]),
    attempt=st.one_of(WHOLE, st.sampled_from([6, 7, 8])),
    parts=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("present", "inbox", "survivors"), BYTES)
    ),
    members=st.one_of(BYTES, st.none(), st.just(b"")),
    bound=st.floats(),
    devices=st.lists(WHOLE, max_size=3),
)
def test_whatever_a_server_sends_a_node_gives_a_reply_or_a_code(
    begun, kind, attempt, parts, members, bound, devices
):
    """An error code for what no check foresaw is "raised"."""
    members = begun.sum.members[: 8 * 4] if members is None else members
    request = SumRequest(attempt, members, bound=bound, **parts)
    content = RecordDict()
    if kind == TRAIN:
        task = steps_of(SHARED, np.zeros(8), round=0, seed=0)
        content = protocol.task(protocol.pack(task), devices, True)
    elif kind == EVALUATE:
        content = protocol.model(np.zeros(8), devices)
    reply = begun.send(1, kind, request, content)
    if isinstance(reply, str):
        assert reply in ("secure", "peers", "malformed", "devices")
    else:
        assert kind == SHARES  # five names that fit are not guessed: nothing is masked or revealed
        assert not reply.masked


def test_attempts_cannot_be_repeated():
    server = Server()
    assert server.begin(7) is None
    for number in (7, 6, -1):
        assert server.begin(number) == "secure"
    reply = server.steps(1, 7)
    assert len(reply.masked) == 8 * (2 * 4 + 1)
    assert server.steps(1, 7) == "secure"
    assert server.steps(1, 8) == "secure"  # was not begun
    first = server.unmask(1, 7, EVERYONE)
    assert server.unmask(1, 7, EVERYONE) == first
    assert server.unmask(1, 7, EVERYONE[:4]) == "secure"
    assert server.begin(8) is None


def test_one_task_of_a_run_is_revealed_for_one_set_of_nodes():
    """Two sums that differ in a node, or in a device, would reveal its numbers by a difference."""
    server = Server()
    server.begin(1), server.steps(1, 1), server.unmask(1, 1, EVERYONE)
    server.begin(2)
    assert not isinstance(server.steps(1, 2), str)
    assert server.unmask(1, 2, EVERYONE[:4]) == "secure"
    assert not isinstance(server.unmask(1, 2, EVERYONE), str)  # the same sum again: a resume
    server.begin(3), server.steps(1, 3, devices=[0])
    assert server.unmask(1, 3, EVERYONE) == "secure"
    server.begin(4), server.steps(1, 4, round=1)
    assert not isinstance(server.unmask(1, 4, EVERYONE[:4]), str)  # another round


def test_device_that_failed_is_in_no_second_sum_of_a_task():
    """The difference of the two sums would be its own numbers: after a resume, or by intent."""

    class Failing(Quadratic):
        broken = True

        def batch(self, device, size, draws):
            if device == 1 and self.broken:
                raise OSError("busy")
            return super().batch(device, size, draws)

    server = Server(problem=Failing(dim=8, devices=10))
    server.begin(1)
    assert server.steps(1, 1).failed == (1,)
    assert not isinstance(server.unmask(1, 1, EVERYONE), str)
    server.begin(2)  # the same devices, and it still fails
    assert server.steps(1, 2).devices == (0,)
    assert not isinstance(server.unmask(1, 2, EVERYONE), str)
    server.problem.broken = False
    server.begin(3)
    assert server.steps(1, 3).devices == (0, 1)
    assert server.unmask(1, 3, EVERYONE) == "secure"


def test_a_new_attempt_ends_the_earlier_ones_and_deletes_their_secrets():
    server = Server()
    server.begin(1), server.steps(1, 1)
    server.begin(2), server.steps(1, 2)
    assert server.unmask(1, 1, EVERYONE) == "secure"
    server.begin(5)
    ledger = sqlite3.connect(server.grid.contexts[1].node_config["ledger"], uri=True)
    rows = ledger.execute("select number, length(seed), length(inbox) from attempts").fetchall()
    assert rows == [(1, 0, 0), (2, 0, 0), (5, 16, 0)]


def test_a_killed_node_has_stored_what_it_revealed(tmp_path):
    """The process is killed after its state is on disk, before the reply leaves."""
    server = Server()
    ledger = Ledger(str(tmp_path / "ledger.sqlite"))
    ledger.create()
    server.grid.contexts[1].node_config["ledger"] = ledger.path
    keys = [
        Ledger(c.node_config["ledger"]).member().key.hex() for c in server.grid.contexts.values()
    ]
    for context in server.grid.contexts.values():
        context.node_config["secure.peers"] = keys
    server.names = members_of(server.grid)
    server.sum = SumServer(sorted(server.names.values()))

    def in_a_child(send):
        if (child := os.fork()) == 0:
            protocol.sum_reply = lambda reply: os.kill(os.getpid(), signal.SIGKILL)
            send()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    server.begin(1)
    in_a_child(lambda: server.steps(1, 1))
    assert server.steps(1, 1) == "secure"  # it may have been sent
    in_a_child(lambda: server.unmask(1, 1, EVERYONE))
    assert server.unmask(1, 1, EVERYONE[:4]) == "secure"
    assert not isinstance(server.unmask(1, 1, EVERYONE), str)


def test_node_with_secure_sends_nothing_else():
    grid = Server().grid
    for content in (
        ask(grid),
        ask(grid, SHARED),
        ask(grid, kind=EVALUATE),
        ask(grid, kind=EVALUATE, metrics=True),
        ask(grid, task=Evaluate(np.zeros((1, 8)))),
    ):
        assert refusal(content) == "secure-only"
    server = Server()
    server.begin(1)
    content = protocol.task(protocol.pack(Evaluate(np.zeros((1, 8)))), [0], True)
    present, inbox = server.sum.inbox(server.names[1])
    assert server.send(1, TRAIN, SumRequest(1, b"", present, inbox, 1.0), content) == "secure"


def test_metrics_of_a_node_are_not_part_of_a_sum():
    there = run(Nodes(secure=True), SECURE, SHARED, rounds=1)
    assert not set(METRICS) & set(there.history[0])


def test_node_without_secure_takes_part_in_no_sum():
    server = Server()
    plain = one_node(server.problem)
    (reply,) = plain.send_and_receive(
        [Message(protocol.with_sum(RecordDict(), SumRequest(1, b"12345678")), 1, SHARES)]
    )
    assert refusal(reply.content) == "not-secure"
    engine = FlowerEngine(Nodes(), 5, SECURE, QUICK)
    assert list(engine.ask(steps_of(SHARED, np.zeros(8), devices=range(6)))) == []
    (reason,) = {one.reason for one in engine.dropped}
    assert "[secure]" in reason


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_bounds_that_make_no_sense(bound):
    server = Server()
    server.begin(1)
    content = protocol.model(np.zeros(8), [0])
    present, inbox = server.sum.inbox(server.names[1])
    request = SumRequest(1, b"", present, inbox, bound)
    assert server.send(1, EVALUATE, request, content) == "malformed"


def test_node_whose_key_is_not_listed_is_left_out():
    """The others reject a sum with it, so the server finds no sum."""
    grid = Nodes(nodes=4, secure=True)
    strange = members_of(grid)[4]
    for n in (1, 2, 3):
        peers = grid.contexts[n].node_config["secure.peers"]
        grid.contexts[n].node_config["secure.peers"] = [
            k for k in peers if bytes.fromhex(k)[:NAME] != strange
        ]
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    assert list(engine.ask(steps_of(SHARED, np.zeros(8), devices=range(6)))) == []
    assert "does not list" in engine.dropped[0].reason


def test_sum_that_is_too_long_is_not_used():
    """No node is validated, but the mean is at most clip: a lie beyond it costs the round."""
    grid = Nodes(secure=True)

    def lie(message, reply):
        if (message.metadata.dst_node_id, message.metadata.message_type) == (2, TRAIN):
            told = dict(reply.content["answer"])
            numbers = np.frombuffer(told["masked"], "<u8") + np.uint64(2**60)
            reply.content["answer"] = ConfigRecord({**told, "masked": numbers.tobytes()})
        return reply

    grid.spoil = lie
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    assert list(engine.ask(steps_of(SHARED, np.zeros(8), devices=range(6)))) == []
    assert "a node lies" in engine.dropped[0].reason
    assert {one.device for one in engine.dropped} == set(range(6))


class Liar(Nodes):
    """Nodes of which the first rewrites its replies to a secure sum."""

    def __init__(self, rewrite, nodes=8, sends=(SHARES, TRAIN, EVALUATE, UNMASK)):
        super().__init__(Quadratic(dim=8, devices=8), nodes, secure=True)
        self.rewrite, self.sends, self.earlier = rewrite, sends, []

    def answer(self, message):
        task = dict(message.content.config_records.get("task", {}))
        reply, kind = super().answer(message), message.metadata.message_type
        if message.metadata.dst_node_id != 1 or kind not in self.sends:
            return reply
        empty = {"shares": b"", "masked": b"", "step": 0.0, "queries": 0}
        lists = {"devices": [], "failed": [], "reasons": []}
        told = {**empty, **lists, **reply.content.config_records.get("answer", {})}
        told = self.rewrite(kind, told, task, self.earlier)
        self.earlier.append(told)
        reply.content.config_records.clear()
        reply.content["answer"] = ConfigRecord(told)
        return reply


@pytest.mark.parametrize("size", [0, 7, 8, 56, 71, 73, 80, 4096])
@pytest.mark.parametrize("kind", [SHARES, TRAIN, UNMASK])
def test_reply_of_a_wrong_length_costs_its_own_node(kind, size):
    """A node that is dropped has its name in the history: no loss is simply missing."""
    name = "masked" if kind == TRAIN else "shares"
    kinds = (TRAIN, EVALUATE) if kind == TRAIN else (kind,)
    grid = Liar(lambda kind, told, *_: {**told, name: bytes(size)}, sends=kinds)
    algorithm = dataclasses.replace(SHARED, local_steps=1, participants=8)
    result = run(grid, SECURE, algorithm, rounds=2, evaluate_every=1)
    assert result.success
    assert {one["device"] for one in result.dropped} == ({0} if kind != UNMASK else set())
    assert [record["participants"] for record in result.history[1:]] == [7 + (kind == UNMASK)] * 2


VALUES = [b"", bytes(7), bytes(72), 0, -1, 2**63 - 1, -(2**63), 1e308, np.nan, -np.inf, "x", True]
VALUES += [[], [0], [0, 0], [2**62], [1.5], ["a"], [b""]]


@pytest.mark.parametrize("seed", range(24))
def test_a_lying_node_does_not_make_a_run_diverge(seed):
    """It changes fields, repeats earlier replies, and makes up some of the right lengths."""
    draw = random.Random(seed)

    def rewrite(kind, told, task, earlier):
        act = draw.random()
        if act < 0.3:
            return told
        if act < 0.45 and earlier:
            return draw.choice(earlier)
        if act < 0.7:
            lengths = {SHARES: 64 * (len(task.get("sum.members", b"")) // 8), UNMASK: 16 * nodes}
            made = draw.randbytes(lengths.get(kind, 8 * (2 if kind == EVALUATE else 4)))
            named = "masked" if kind in (TRAIN, EVALUATE) else "shares"
            devices = [int(i) for i in task.get("devices", [])]
            return {**told, named: made, "devices": devices, "step": draw.choice([0.0, 1e300])}
        changes = {name: draw.choice(VALUES) for name in draw.sample(sorted(told), 2)}
        for name in ("shares", "masked"):
            if told[name] and draw.random() < 0.5:
                wrong = bytearray(told[name])
                wrong[draw.randrange(len(wrong))] ^= 1 << draw.randrange(8)
                changes[name] = bytes(wrong)
        return {**told, **changes}

    nodes = draw.choice([2, 4, 8])
    algorithm = dataclasses.replace(SHARED, local_steps=1, directions=3, participants=8)
    settings = FlowerSettings(grace=0.01, patience=0.05, quorum=0.4)
    grid = Liar(rewrite, nodes)
    result = run(grid, SECURE, algorithm, settings, rounds=3, evaluate_every=1)
    assert "finite" not in result.message
    assert np.isfinite(result.last).all()


@pytest.mark.parametrize("claim", [2**62, 2**23, 0])
def test_a_claim_of_samples_does_not_halt_a_run(claim):
    """Weights of a sum have 22 bits. One claim beyond them halted the run."""

    class Sized(Quadratic):
        def size(self, device):
            return 3

    grid = Nodes(Sized(dim=8, devices=10), 5, secure=True)

    def spoil(message, reply):
        if (message.metadata.dst_node_id, message.metadata.message_type) == (2, protocol.HELLO):
            told = {**reply.content["hello"], "sizes": [claim, claim]}
            reply.content["hello"] = ConfigRecord(told)
        return reply

    grid.spoil = spoil
    by_size = dataclasses.replace(SHARED, participants=None, weighting="size")
    result = run(grid, SECURE, by_size)
    assert result.success, result.message
    assert {one["device"] for one in result.dropped} == ({2, 3} if claim else set())
    assert all("claims more samples" in one["reason"] for one in result.dropped)


def test_lost_sum_of_losses_is_asked_for_again():
    """A single loss of the sum, as by a killed node, does not end the run."""

    def once(kind, told, task, earlier):
        return {**told, "masked": bytes(16)} if len(earlier) < 1 else told

    result = run(Liar(once, 3, sends=[EVALUATE]), SECURE, SHARED, rounds=2)
    assert result.success
    assert result.dropped == []


def test_sum_of_losses_that_stays_lost_halts_the_run():
    def lie(kind, told, *_):
        return {**told, "masked": b"\x10" * 16}

    result = run(Liar(lie, 3, sends=[EVALUATE]), SECURE, SHARED, rounds=2)
    assert result.status == Status.HALTED
    assert "the losses have no sum" in result.message
    assert "a node lies" in result.message


def test_replies_about_devices_that_were_not_asked():
    grid = Nodes(secure=True)

    def lie(message, reply):
        if (message.metadata.dst_node_id, message.metadata.message_type) == (2, TRAIN):
            told = {**reply.content["answer"], "devices": [0, 1, 2, 3]}
            reply.content["answer"] = ConfigRecord(told)
        return reply

    grid.spoil = lie
    engine = FlowerEngine(grid, 5, SECURE, QUICK)
    list(engine.ask(steps_of(SHARED, np.zeros(8), devices=range(6))))
    assert any("malformed" in one.reason for one in engine.dropped)


# ------------------------------------------------------------------------ before anything runs


@pytest.mark.parametrize(
    ("uplink", "algorithm", "code"),
    [
        (SECURE, fedzo.FedZO(), "directions-not-shared"),
        (SECURE, fedzo.CMA(), "no-values"),
        (SECURE, fedzo.FedZO(learning_rate="auto", shared_directions=True), "no-values"),
        (SECURE, fedzo.FedAvg(), None),
    ],
)
def test_what_cannot_be_summed_is_rejected_before_anything_runs(uplink, algorithm, code):
    calls = []
    problem = fedzo.problems.FunctionObjective(lambda x, i: calls.append(1) or 0.0, 2, devices=3)
    with pytest.raises(UsageError) as error:
        fedzo.minimize(problem, np.zeros(2), algorithm=algorithm, uplink=uplink, rounds=1)
    assert code in (error.value.code, None)
    assert not calls


def test_rules_that_need_single_updates_are_rejected_with_the_reason():
    for kind in (fedzo.Robust, fedzo.RobustSeeds):
        with pytest.raises(InvalidValue, match="compare single updates"):
            kind(secure=True)
    with pytest.raises(UsageError, match="needs single updates") as error:
        FlowerEngine(Nodes(secure=True), 5, SECURE, FlowerSettings(max_norm=1.0))
    assert error.value.code == "secure-max-norm"


@pytest.mark.parametrize(
    "table",
    [
        {"peers": "abc"},
        {"peers": ["xyz"]},
        {"peers": []},
        {"peers": ["ab" * 32], "min_peers": 2},
        {"peers": ["00" * 32, "ab" * 32, "cd" * 32]},  # of low order: all secrets are known
    ],
)
def test_secure_tables_that_make_no_sense(table, tmp_path):
    with pytest.raises((UsageError, InvalidValue), match="secure"):
        NodeConfig.read({f"secure.{k}": v for k, v in table.items()})


@pytest.mark.parametrize(("nodes", "most"), [(14, 13), (15, 6), (16, 6)])
def test_min_peers_beyond_the_groups_is_rejected_at_the_start(nodes, most, tmp_path, capsys):
    grid = Nodes(Quadratic(dim=8, devices=nodes), nodes, secure=True)
    config = {**grid.contexts[1].node_config, "secure.min-peers": most}
    assert NodeConfig.read(config).member().min_peers == most
    assert all(len(group) > most for group in sums.grouped(range(nodes)))
    config["secure.min-peers"] = most + 1
    if nodes == 14:
        return  # with one node more than peers, which every sum rejects by itself
    with pytest.raises(Rejected, match="must be at most 6") as error:
        NodeConfig.read(config).member()
    assert error.value.code == ErrorCode.PEERS
    secure = f"[secure]\nmin_peers = {most + 1}\npeers = {config['secure.peers']}\n"
    text = f'apps = ["{"0" * 64}"]\nledger = "{config["ledger"]}"\n{secure}'
    (tmp_path / "node.toml").write_text(text)
    assert main(["node", "start", "--dir", str(tmp_path)]) == Exit.NOTHING_RUN
    (said,) = capsys.readouterr().err.splitlines()
    assert "min_peers = 7: must be at most 6" in said


# ------------------------------------------------------------------------------------------ bytes


def payload(messages):
    """Return the bytes of the values in messages, without Flower's own."""
    size = {bytes: len, str: len, float: lambda v: 8, int: lambda v: 8, bool: lambda v: 1}
    total = 0
    for message in messages:
        for record in message.content.config_records.values():
            for value in record.values():
                items = value if isinstance(value, list) else [value]
                total += sum(size[type(item)](item) for item in items)
    return total


@pytest.mark.parametrize("dim", [10, 20_000])
@pytest.mark.parametrize("nodes", [3, 10, 14])
def test_payload_per_node_and_round_is_below_two_kilobytes_more(dim, nodes):
    """In both directions together, for any d and up to 14 nodes."""
    problem = Quadratic(dim=dim, devices=nodes)
    algorithm = fedzo.FedZO(learning_rate=1e-6, directions=4, local_steps=2, shared_directions=True)
    sizes = {}
    for secure in (False, True):
        grid, kept = Nodes(problem, nodes, secure=secure), []
        engine = FlowerEngine(grid, 5, fedzo.Seeds(secure=secure), QUICK)
        task = steps_of(algorithm, engine.initial(), round=0, seed=5, devices=range(nodes))
        list(engine.ask(task))
        kept = [*engine.nodes.sent, *engine.nodes.received]
        sizes[secure] = payload(kept) / nodes
    assert 0 < sizes[True] - sizes[False] <= 2048


def test_replay_stands_for_many_devices():
    task = steps_of(SHARED, np.zeros(8), devices=range(6), seed=5)
    with LocalEngine(PROBLEM, 5) as local:
        replies = list(local.ask(task))
    (one,) = SECURE.compress(replies, task, None)
    assert SECURE.compress([one], task, None) == [one]
    many = SECURE._sum(replies, task)
    assert Replies([one]).count == 0
    assert many.contributors == 6
