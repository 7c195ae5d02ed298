"""Nodes that replay a run from its coefficients: the server's model, to the bit."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

import fedzo
from driving import steps_of
from fedzo.algorithms import server as steps
from fedzo.core.tasks import Update
from fedzo.flower import FlowerEngine, FlowerSettings, InProcessGrid, make_client_app, protocol
from fedzo.flower.errors import Malformed, Rejected
from fedzo.flower.protocol import object_sizes
from fedzo.flower.sync import (
    Log,
    OutOfSync,
    RunSpec,
    SyncMessage,
    catch_up,
    checksum,
    pack_round,
    read_out_of_sync,
    unpack_rounds,
)
from fedzo.problems import Quadratic
from fedzo.runs import Job, RunOptions, run_job
from raising import fails

SETTINGS = FlowerSettings(quorum=0.1, grace=0.01, clip=False)
ALGORITHM = {"learning_rate": 0.01, "directions": 3, "local_steps": 2, "batch_size": 2}


class Nodes(InProcessGrid):
    """Nodes of which some are away in some rounds; ``told`` are the messages to each of them."""

    def __init__(self, problem, nodes=3, away=lambda node, round: False):
        super().__init__(make_client_app(lambda context: problem), nodes)
        self.away, self.round, self.told = away, 0, []

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if not self.away(node, self.round)]

    def push_messages(self, messages):
        for message in messages:
            self.told.append((message.metadata.dst_node_id, message))
            if message.metadata.message_type == protocol.TRAIN:
                self.round = message.content["task"]["round"] + 1
        return super().push_messages(messages)

    def trained(self):
        """Return who was sent what in training: node, round, bytes of the log, arrays."""
        trained = [
            (n, m.content) for n, m in self.told if m.metadata.message_type == protocol.TRAIN
        ]
        return [(n, c["task"]["round"], c["task"].get("log"), "arrays" in c) for n, c in trained]

    def kept(self, node):
        """Return the path of what a node keeps."""
        (path,) = self._shelf(node)
        return path

    def forget(self, node):
        for path in self._shelf(node):
            path.unlink()

    def _shelf(self, node):
        from fedzo.flower.policy import NodeConfig

        shelf = NodeConfig.read(self.contexts[node].node_config).states
        return list(Path(shelf.folder).glob(f"*-{shelf.owner}.state"))


def run(grid, algorithm, uplink, rounds, folder=None, resume=False, x0=None, **options):
    engine = FlowerEngine(grid, 5, uplink, SETTINGS)
    x0 = engine.initial() if x0 is None else x0
    settings = RunOptions(rounds=rounds, seed=5, **{"evaluate_every": 10, **options})
    job = Job(algorithm, uplink, settings, {}, folder, resume)
    engine.enable_replay(job, x0)
    return run_job(job, engine, x0)


def held(path):
    """Return the round and the model of what a node keeps."""
    with path.open("rb") as file:
        return json.loads(file.readline())["round"], np.load(file)


WAYS = {
    "mean": (fedzo.FedZO(**ALGORITHM, participants=4), fedzo.Seeds()),
    "shared": (fedzo.FedZO(**ALGORITHM, shared_directions=True), fedzo.Seeds()),
    "sizes": (fedzo.FedZO(**ALGORITHM, weighting="size"), fedzo.Seeds()),
    "momentum": (fedzo.FedZO(**ALGORITHM, server=steps.Momentum(beta=0.5)), fedzo.Seeds()),
    "adam": (
        fedzo.FedZO(**ALGORITHM, server=steps.Adam(learning_rate=0.01), shared_directions=True),
        fedzo.Seeds(),
    ),
    "robust": (fedzo.FedZO(**ALGORITHM, shared_directions=True), fedzo.RobustSeeds("median")),
    "air": (
        fedzo.FedZO(**ALGORITHM, shared_directions=True),
        fedzo.AirCompSeeds(snr_db=0.0, channel="rician"),
    ),
    "digital": (
        fedzo.FedZO(**ALGORITHM, participants=4),
        fedzo.Digital(payload="coefficients", access="outage", attempts=2),
    ),
    "orthogonal": (fedzo.FedZO(**ALGORITHM, direction_kind="orthogonal"), fedzo.Seeds()),
    "fixed": (fedzo.FedZO(**ALGORITHM, fixed_directions=30, participants=4), fedzo.Seeds()),
    "signs": (fedzo.FedZO(**ALGORITHM, direction_kind="rademacher"), fedzo.Seeds()),
}


@pytest.mark.parametrize("way", WAYS)
def test_server_and_nodes_are_equal_to_the_bit(way, tmp_path):
    """A node joins late and leaves for a while, one forgets all, and the server is killed."""
    algorithm, uplink = WAYS[way]
    problem = Quadratic(dim=300 if way == "orthogonal" else 4000, devices=6)
    rounds = 50 if way == "mean" else 10

    def away(node, round):
        return node == 3 and (round < rounds // 5 or 2 * rounds <= 5 * round < 3 * rounds)

    grid = Nodes(problem, away=away)
    run(grid, algorithm, uplink, 2 * rounds // 3, tmp_path)
    grid.forget(2)
    result = run(grid, algorithm, uplink, rounds, tmp_path, resume=True)
    assert result.nit == rounds
    for node in (1, 2, 3):
        round, x = held(grid.kept(node))
        assert round == rounds
        assert np.array_equal(x, result.last)
    if way != "orthogonal":  # whose log is longer than its model
        assert not any(arrays for *_, arrays in grid.trained())


@pytest.mark.parametrize("shared", [False, True])
def test_along_fixed_directions_the_log_never_grows(shared, tmp_path):
    """Who was away for long, or is new, is told K sums; the disk has the last round only."""
    algorithm = fedzo.FedZO(**ALGORITHM, fixed_directions=30, shared_directions=shared)
    problem, uplink = Quadratic(dim=4000, devices=6), fedzo.Seeds()
    grid = Nodes(problem, away=lambda node, round: node == 3 and round < 25)
    run(grid, algorithm, uplink, 20, tmp_path)
    grid.forget(2)
    result = run(grid, algorithm, uplink, 30, tmp_path, resume=True)
    for node in (1, 2, 3):
        round, x = held(grid.kept(node))
        assert round == 30
        assert np.array_equal(x, result.last)
    tasks = [m.content["task"] for _, m in grid.told if "task" in m.content.config_records]
    assert not any(arrays for *_, arrays in grid.trained())
    assert max(len(task.get("log") or b"") for task in tasks) <= 30 * 8
    assert {len(task["sums"]) for task in tasks if "sums" in task} == {30 * 8}
    one_round = 16 + 6 * (4 + 2 * 3 * 8)  # a frame, and of each device its number and H b2
    assert (tmp_path / "coefficients.log").stat().st_size <= one_round
    everybody = run(Nodes(problem), algorithm, uplink, 5)
    local = fedzo.minimize(problem, algorithm=algorithm, uplink=uplink, rounds=5, seed=5)
    assert np.array_equal(local.last, everybody.last)


def test_sums_that_are_not_of_the_run_are_refused():
    problem, algorithm = Quadratic(dim=50, devices=3), fedzo.FedZO(**ALGORITHM, fixed_directions=9)
    spec = RunSpec(algorithm, fedzo.Seeds(), 5, 3, "float64")
    start = problem.initial()

    def told(sums, spec=spec):
        message = SyncMessage("r", 4, "0" * 16, 4, sums=sums, spec=spec.text)
        known = {"fedzo": fedzo.FedZO}
        return catch_up(message, None, lambda: start, known, lambda *_: None, lambda _: None)

    for sums in (b"1234", np.full(9, np.nan).tobytes(), np.zeros(12).tobytes()):
        with pytest.raises(Malformed, match="the sums are not"):
            told(sums)
    with pytest.raises(OutOfSync):  # the model that they make is another one
        told(np.ones(9).tobytes())
    plain = RunSpec(fedzo.FedZO(**ALGORITHM), fedzo.Seeds(), 5, 3, "float64")
    with pytest.raises(Malformed, match="the sums are not"):
        told(np.ones(9).tobytes(), plain)
    too_many = fedzo.FedZO(**{**ALGORITHM, "directions": 1}, fixed_directions=10**10)
    with pytest.raises(Malformed, match="too long to draw"):
        told(np.ones(9).tobytes(), RunSpec(too_many, fedzo.Seeds(), 5, 3, "float64"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_run_as_without_replay(dtype):
    algorithm, problem = fedzo.FedZO(**ALGORITHM), Quadratic(dim=400, devices=6)
    x0 = np.linspace(-1, 1, 400).astype(dtype)
    grid = Nodes(problem)
    there = run(grid, algorithm, fedzo.Seeds(), 8, x0=x0)
    here = fedzo.minimize(problem, x0, algorithm=algorithm, rounds=8, seed=5, evaluate_every=10)
    assert np.array_equal(there.last, here.last)
    # Its start is not that of the nodes: each is sent it once, and nobody after that.
    sent = [m for _, m in grid.told if "arrays" in m.content.array_records]
    assert len(sent) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_bytes_do_not_grow_with_the_model(shared):
    bytes_of = {}
    for dim in (400, 40_000):
        grid = Nodes(Quadratic(dim=dim, devices=3))
        algorithm = fedzo.FedZO(**ALGORITHM, shared_directions=shared)
        run(grid, algorithm, fedzo.Seeds(), 4, evaluate_every=4)
        last = [m for _, m in grid.told if m.metadata.message_type == protocol.TRAIN][-3:]
        bytes_of[dim] = [sum(object_sizes(message)) for message in last]
        lengths = {len(log) for _, t, log, _ in grid.trained() if t > 0}
        numbers = 8 * 2 * 3
        assert lengths == {4 + 4 + numbers} if shared else {4 + 3 * (4 + numbers)}
    assert max(abs(a - b) for a, b in zip(*bytes_of.values(), strict=True)) < 20
    assert max(bytes_of[40_000]) < 1100


def test_a_resumed_run_goes_on_from_its_own_round(tmp_path, caplog):
    """Nobody is sent a model, and what comes out is what a run without a pause comes to."""
    grid, algorithm = Nodes(Quadratic(dim=4000, devices=6)), fedzo.FedZO(**ALGORITHM)
    run(grid, algorithm, fedzo.Seeds(), 4, tmp_path)
    grid.told.clear()
    result = run(grid, algorithm, fedzo.Seeds(), 6, tmp_path, resume=True)
    assert "sent the model" not in caplog.text
    assert not any(message.content.array_records for _, message in grid.told)
    whole = run(Nodes(Quadratic(dim=4000, devices=6)), algorithm, fedzo.Seeds(), 6)
    assert np.array_equal(result.last, whole.last)
    assert np.array_equal(held(grid.kept(1))[1], result.last)


def test_the_model_is_sent_where_the_log_is_longer():
    grid = Nodes(Quadratic(dim=5, devices=3), away=lambda node, round: node == 3 and round == 1)
    run(grid, fedzo.FedZO(**ALGORITHM), fedzo.Seeds(), 3, evaluate_every=3)
    late = [(t, log, arrays) for node, t, log, arrays in grid.trained() if t > 0]
    assert late
    assert all(log is None and arrays for _, log, arrays in late[1:])


def spoil(path):
    """Change one number of the model that a node keeps."""
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(bytes(content))


def test_another_model_is_found_out_and_replaced(caplog):
    grid = Nodes(Quadratic(dim=400, devices=6))

    class Spoiling(fedzo.Seeds):
        def aggregate(self, t, updates, engine):
            found = super().aggregate(t, updates, engine)
            if t == 3:
                spoil(grid.kept(2))
            return found

    algorithm = fedzo.FedZO(**ALGORITHM)
    engine = FlowerEngine(grid, 5, fedzo.Seeds(), SETTINGS)
    x0 = engine.initial()
    job = Job(algorithm, Spoiling(), RunOptions(rounds=8, seed=5, evaluate_every=8), {})
    engine.enable_replay(job, x0)
    result = run_job(job, engine, x0)
    assert "node 2 reached another model than the server: it is sent the model" in caplog.text
    assert [(n, t) for n, t, _, arrays in grid.trained() if arrays] == [(2, 4)]
    assert np.array_equal(held(grid.kept(2))[1], result.last)


def test_a_half_written_file_is_as_good_as_none():
    grid = Nodes(Quadratic(dim=400, devices=6))
    run(grid, fedzo.FedZO(**ALGORITHM), fedzo.Seeds(), 3)
    path = grid.kept(1)
    path.write_bytes(path.read_bytes()[:-100])
    result = run(grid, fedzo.FedZO(**ALGORITHM), fedzo.Seeds(), 3)
    assert np.array_equal(held(path)[1], result.last)


def test_a_node_keeps_two_runs_at_most():
    grid = Nodes(Quadratic(dim=40, devices=3))
    for rate in (0.01, 0.02, 0.03):
        run(grid, fedzo.FedZO(**{**ALGORITHM, "learning_rate": rate}), fedzo.Seeds(), 1)
    assert len(grid._shelf(1)) == 2


def test_the_model_always_if_asked_for():
    grid = Nodes(Quadratic(dim=400, devices=6))
    run(grid, fedzo.FedZO(**ALGORITHM), fedzo.Seeds(downlink="model"), 2)
    assert all(arrays for *_, arrays in grid.trained())


# --------------------------------------------------------------------------------- what is let in


def sync_message(**changes):
    problem = Quadratic(dim=20, devices=3)
    x = problem.initial()
    spec = RunSpec(fedzo.FedZO(**ALGORITHM), fedzo.Seeds(), 5, 3, "float64")
    numbers = np.ones((2, 3))
    log = pack_round([Update(0, None, 1, 0, numbers)])
    message = SyncMessage("abc", 1, checksum(x), 0, log, spec.text)
    return problem, replace(message, **changes)


def reply_to(problem, content, **node_config):
    grid = InProcessGrid(make_client_app(lambda context: problem), 1)
    grid.contexts[1].node_config.update(node_config)
    kind = protocol.EVALUATE if "metrics" in content["task"] else protocol.TRAIN
    (reply,) = grid.send_and_receive([Message(content, 1, kind)])
    return reply.content


SPEC = json.loads(sync_message()[1].spec)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"log": b"abc"}, "malformed"),
        ({"log": sync_message()[1].log[:-1]}, "malformed"),
        ({"log": sync_message()[1].log + b"x"}, "malformed"),
        ({"log": b"\xff" * 60}, "malformed"),
        ({"log": bytes(10_000)}, "malformed"),
        ({"round": 10**7, "log": b""}, "malformed"),
        ({"round": 10**6 + 1, "log": bytes(4 * 10**6 + 4)}, "malformed"),  # rounds of nobody
        ({"since": 2}, "malformed"),
        ({"since": -1}, "malformed"),
        ({"sums": bytes(16), "log": b""}, "malformed"),
        ({"run": "../../x"}, "malformed"),
        ({"spec": "[" * 9_999}, "unknown-algorithm"),
        ({"spec": json.dumps({**SPEC, "uplink": {"name": "os:abort"}})}, "unknown-algorithm"),
        ({"spec": json.dumps({**SPEC, "server": {"name": "a:b"}})}, "unknown-algorithm"),
        ({"spec": json.dumps({**SPEC, "seed": -1})}, "unknown-algorithm"),
        ({"spec": json.dumps({**SPEC, "dtype": "object"})}, "unknown-algorithm"),
        ({"state": (np.zeros(3),), "log": b""}, "malformed"),
        ({"state": (np.full(20, np.nan),), "log": b""}, "malformed"),
    ],
)
def test_malformed_sync_message(changes, code):
    problem, told = sync_message(**changes)
    content, nothing = protocol.task(told, [0], True), {"limits.queries": 1}
    refusal = protocol.read_refusal(reply_to(problem, content, **nothing))
    assert refusal is not None
    assert refusal.split()[0] == code  # and not that no queries are left: it charges none


def test_message_from_another_round_charges_nothing():
    problem, told = sync_message(round=3, since=2)
    reply = reply_to(problem, protocol.task(told, [0], True), **{"limits.queries": 1})
    assert read_out_of_sync(reply).round == -1


def test_limits_hold_for_a_replayed_run():
    many = json.dumps({**SPEC, "algorithm": {**SPEC["algorithm"], "local_steps": 10**6}})
    problem, told = sync_message(spec=many)
    assert (
        protocol.read_refusal(reply_to(problem, protocol.task(told, [0], True))).split()[0]
        == "steps"
    )


def test_a_wrong_checksum_is_told():
    problem, told = sync_message(check="0" * 16)
    assert read_out_of_sync(reply_to(problem, protocol.task(told, [0], True))).differs


def test_spec_knows_only_what_is_known_here():
    text = sync_message()[1].spec
    with fails("unknown-algorithm", Rejected):
        RunSpec.read(text, {})


def test_rounds_without_anybody():
    packed = pack_round([]) + pack_round([Update(1, None, 2.5, 0, np.ones((1, 2)))])
    nobody, somebody = unpack_rounds(packed, 2, (1, 2), np.dtype(np.float64))
    assert nobody == []
    assert somebody[0].weight == 2.5
    with pytest.raises(Malformed):
        unpack_rounds(packed, 3, (1, 2), np.dtype(np.float64))


def test_log_survives_a_kill_in_the_midst_of_writing(tmp_path):
    file = tmp_path / "log"
    log = Log(file)
    for t in range(3):
        log.append(t, bytes([t]) * 10)
    file.write_bytes(file.read_bytes()[:-4])
    again = Log(file, resume=True)
    assert again.since(0, 2) == b"\0" * 10 + b"\1" * 10
    assert again.since(0, 3) is None
    again.append(1, b"new")
    assert Log(file, resume=True).since(0, 2) == b"\0" * 10 + b"new"
    assert Log(file).since(0, 1) is None


def test_a_server_that_sends_what_it_has_not(caplog):
    """A record that only looks like a sync message."""
    problem, told = sync_message()
    content = protocol.task(told, [0], True)
    content["task"] = ConfigRecord({**content["task"], "run": 7})
    assert protocol.read_refusal(reply_to(problem, content)).split()[0] == "malformed"


def test_an_entry_of_the_log_may_stand_for_several_devices_or_an_older_round():
    numbers = np.array([[0.5, -1.0]], np.float32)
    updates = [
        Update(3, None, 2.0, 0, numbers, contributors=5),
        Update(7, None, 1.0, 0, 2 * numbers, started=4),
    ]
    [again] = unpack_rounds(pack_round(updates), 1, (1, 2), np.dtype(np.float32))
    assert [(u.device, u.weight, u.contributors, u.started) for u in again] == [
        (3, 2.0, 5, None), (7, 1.0, 1, 4)
    ]  # fmt: skip
    task = steps_of(fedzo.FedZO(directions=2, local_steps=1), np.zeros(6, np.float32), 9, 1)
    older = steps_of(fedzo.FedZO(directions=2, local_steps=1), np.zeros(6, np.float32), 4, 1)
    assert np.array_equal(task.rebuild(again[1]), older.rebuild(again[1]._replace(started=None)))


@pytest.mark.parametrize("evaluation", [False, True])
def test_time_to_catch_up_counts(monkeypatch, evaluation):
    """Replay runs on a thread, as the problem's own code does: the node replies in time."""
    problem, told = sync_message()
    go_on = threading.Event()
    replay = RunSpec.replay
    monkeypatch.setattr(RunSpec, "replay", lambda *arguments: go_on.wait(60) and replay(*arguments))
    content = protocol.model(told, [0]) if evaluation else protocol.task(told, [0], True)
    began = time.monotonic()
    refusal = protocol.read_refusal(reply_to(problem, content, **{"limits.seconds": 1}))
    took = time.monotonic() - began
    go_on.set()
    assert refusal.split()[0] == "seconds"
    assert took < 30  # not the 60 s of the replay


def test_directions_of_a_replay_are_charged():
    problem, told = sync_message()
    drawn = len(told.log) // problem.initial().itemsize
    assert drawn > 6
    content = protocol.task(told, [0], True)
    for limit, code in ((drawn - 1, "queries"), (10**6, None)):
        refusal = protocol.read_refusal(reply_to(problem, content, **{"limits.queries": limit}))
        assert (refusal and refusal.split()[0]) == code
