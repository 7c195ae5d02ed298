"""Asynchronous rounds over Flower: the server waits for K replies, and a log replays the run."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord

import fedzo
from fedzo.core.tasks import LocalSteps
from fedzo.errors import UsageError
from fedzo.flower import FedzoStrategy, FlowerEngine, FlowerSettings, InProcessGrid, make_client_app
from fedzo.flower.sync import Log, RunSpec, unpack_rounds
from fedzo.problems import FunctionObjective, Quadratic
from fedzo.runs import Job, RunOptions, run_job
from fedzo.runs.registry import describe_job
from raising import fails, rejects

PROBLEM = Quadratic(dim=6, devices=4, gradient_noise=0.1)
STEPS = {"learning_rate": 0.05, "directions": 3, "local_steps": 2}
REAL = fedzo.FedBuff(**STEPS, clock="real", buffer=2)
WHOLE = FlowerSettings(clip=False, grace=0.2, patience=30.0)


class SlowGrid(InProcessGrid):
    """Nodes that take so many looks of the server for a reply to a task."""

    def __init__(self, app, looks, **others):
        allowed = {"algorithms": ["fedzo", "fedbuff"]}
        super().__init__(app, len(looks), node_config=allowed, **others)
        self.looks, self.due, self.time, self.started = looks, {}, 0, []

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        for i, message in zip(ids, messages, strict=True):
            slow = message.metadata.message_type == "train"
            node = message.metadata.dst_node_id
            self.due[i] = self.time + (self.looks[node - 1] if slow else 0)
            self.started += [node] if slow else []
        return ids

    def pull_messages(self, message_ids):
        self.time += 1
        return super().pull_messages([i for i in message_ids if self.due[i] <= self.time])


def grid_of(looks=(1, 2, 3, 20), objective=PROBLEM, **others):
    return SlowGrid(make_client_app(lambda context: objective), looks, **others)


def run(algorithm=REAL, uplink=None, grid=None, rounds=12, settings=WHOLE, **job):
    uplink, grid = uplink or fedzo.Seeds(), grid or grid_of()
    engine = FlowerEngine(grid, 7, uplink, settings)
    options = RunOptions(seed=7, rounds=rounds, evaluate_every=4)
    tables = describe_job(algorithm, uplink, options, {"python_only": "a test"})
    made = Job(algorithm, uplink, options, tables, **job)
    x0 = engine.initial()
    engine.enable_replay(made, x0)
    return run_job(made, engine, x0), grid


def logged(folder, algorithm=REAL, devices=4):
    """Return the updates of each round from a run's log, and the model that they lead to."""
    spec = RunSpec(algorithm, fedzo.Seeds(), 7, devices, "float64")
    log, rounds = Log(folder / "coefficients.log", resume=True), 0
    while log.since(0, rounds + 1) is not None:
        rounds += 1
    shape = algorithm.coefficients_shape
    updates = unpack_rounds(log.since(0, rounds), rounds, shape, np.dtype(float))
    return updates, spec.replay(spec.start(np.zeros(6)), range(rounds), updates).x


def test_the_log_names_the_order_and_replays_the_run(tmp_path):
    result, _ = run(run_dir=tmp_path)
    updates, x = logged(tmp_path)
    assert np.array_equal(x, result.last)
    assert [len(own) for own in updates] == [2] * 12
    late = {u.device: t - u.started for t, own in enumerate(updates) for u in own}
    assert late[3] > max(late[i] for i in range(3))  # the slow node, but its update counts
    assert max(record["mean_staleness"] for record in result.history[1:]) > 0
    sizes = [record["message_up_bytes"] for record in result.history[1:]]
    assert sizes == [sizes[0]] * len(sizes)  # of two replies, also of those that came early
    assert sizes[0] > 0


def test_updates_are_weighted_by_their_age(tmp_path):
    """The rule, from the log of who arrived when: every update starts at its own round's model."""
    result, _ = run(run_dir=tmp_path, rounds=9)
    updates, _ = logged(tmp_path)
    models, plain = [PROBLEM.initial()], fedzo.FedZO(**STEPS)
    for t, own in enumerate(updates):
        total = np.zeros(6)
        for update in own:
            start = models[update.started]
            task = LocalSteps(plain, start, STEPS["learning_rate"], seed=7, round=update.started)
            delta = np.asarray(task.reply(PROBLEM, update.device).delta)
            total += delta / np.sqrt(1 + t - update.started)
        models.append(models[-1] + total / len(own))
    assert np.allclose(models[-1], result.last, rtol=1e-9)


def test_nobody_waits_for_a_slow_node():
    _, slow = run(grid=grid_of((1, 1, 1, 400)), rounds=4)
    assert sorted(slow.started)[-1] == 4
    assert slow.started.count(4) == 1  # it is still at work, or late in the last evaluation
    assert min(map(slow.started.count, (1, 2, 3))) >= 2


@pytest.mark.parametrize("uplink", [fedzo.Ideal(), fedzo.Seeds()])
def test_waiting_for_all_is_fedzo(uplink):
    waits, _ = run(fedzo.FedBuff(**STEPS, clock="real"), uplink, grid_of((1, 1, 1, 5)))
    plain, _ = run(fedzo.FedZO(**STEPS), uplink, grid_of((1, 1, 1, 1)))
    assert np.array_equal(waits.last, plain.last)


def test_whole_updates_are_late_too():
    ideal, _ = run(uplink=fedzo.Ideal())
    seeds, _ = run(uplink=fedzo.Seeds())
    assert np.allclose(ideal.last, seeds.last, rtol=1e-9)


def test_a_resumed_run_continues_its_log(tmp_path):
    run(rounds=4, run_dir=tmp_path)
    again, _ = run(rounds=11, run_dir=tmp_path, resume=True)
    updates, x = logged(tmp_path)
    assert len(updates) == 11
    assert np.array_equal(x, again.last)
    assert all(u.started >= 4 for own in updates[4:] for u in own)


def test_strategy_with_hooks():
    class Noting(FedzoStrategy):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            self.counts.append(len(replies))
            return super().aggregate_train(server_round, replies)

    strategy = Noting(REAL, fedzo.Seeds(), settings=WHOLE, evaluate_every=10)
    strategy.counts = []
    result = strategy.start(grid_of(), num_rounds=10)
    assert result.success
    assert strategy.counts == [2] * 10


# ------------------------------------------------------------------------------ bad nodes


def test_a_device_that_fails_is_replaced():
    def some(x, device):
        if device == 0:
            raise OSError("no instrument")
        return float(np.sum((x - device) ** 2))

    objective = FunctionObjective(some, dim=6, devices=4)
    result, grid = run(grid=grid_of((1, 1, 1, 1), objective))
    assert result.success
    assert {one["device"] for one in result.dropped} == {0}
    assert all(grid.started.count(node) > 2 for node in (2, 3, 4))


def test_if_all_devices_fail_the_run_ends():
    def none(x, device):
        if np.any(x):
            raise OSError("no instrument")
        return 1.0

    objective = FunctionObjective(none, dim=6, devices=4)
    result, _ = run(grid=grid_of((1, 1, 1, 1), objective), rounds=3)
    assert not result.success


class LeavingGrid(SlowGrid):
    """Node 4 leaves after some looks, with a task."""

    def get_node_ids(self):
        return [1, 2, 3] if self.time > 12 else [1, 2, 3, 4]


def test_a_node_may_leave_with_a_task(monkeypatch):
    monkeypatch.setattr("fedzo.flower.registry.Wait.time_to_look", lambda self: True)
    grid = LeavingGrid(make_client_app(lambda context: PROBLEM), (1, 1, 1, 10**6))
    result, _ = run(grid=grid, rounds=12)
    assert result.success
    assert {one["device"] for one in result.dropped} == {3}


def test_a_silent_node_costs_its_own_slot_only(monkeypatch):
    """Three of four are enough for K = 2; the fourth is dropped when its message expires."""
    grid = grid_of((1, 1, 1, 10**6))
    # A second per look of the server, so that the speed of the machine does not matter.
    clock = SimpleNamespace(monotonic=lambda: float(grid.time), sleep=lambda seconds: None)
    monkeypatch.setattr("fedzo.flower.registry.time", clock)
    settings = FlowerSettings(clip=False, grace=5.0, patience=20.0, quorum=0.5)
    result, _ = run(grid=grid, settings=settings, rounds=60)
    assert result.success
    assert {one["device"] for one in result.dropped} == {3}
    assert grid.started.count(4) > 1  # it is asked again, and costs its slot again


# -------------------------------------------------------------------------------- settings


def test_one_process_has_no_real_clock():
    with fails("clock", UsageError):
        fedzo.minimize(PROBLEM, algorithm=REAL, rounds=2)


@pytest.mark.parametrize(
    ("key", "value"), [("clock", "wall"), ("speed_spread", 2.0), ("dropout", 0.1)]
)
def test_settings_that_do_not_fit(key, value):
    with rejects(key):
        fedzo.FedBuff(**{"clock": "real", key: value})


# ------------------------------------------------------------------------ replies that lie


class LyingGrid(SlowGrid):
    """Node 1 is quick, and its replies to tasks are spoiled."""

    def __init__(self, spoil):
        super().__init__(make_client_app(lambda context: PROBLEM), (1, 2, 2, 3))
        self.spoil = spoil

    def answer(self, message):
        reply = super().answer(message)
        if message.metadata.dst_node_id == 1 and message.metadata.message_type == "train":
            self.spoil(reply.content)
        return reply


def told(**changes):
    def spoil(content):
        if "answer" in content.config_records:
            content["answer"] = ConfigRecord({**content["answer"], **changes})

    return spoil


def not_finite(content):
    if "answer" in content.config_records:
        numbers = np.frombuffer(content["answer"]["coefficients"], "<f8") * np.nan
        told(coefficients=numbers.tobytes())(content)


LIES = {
    "another round": told(round=99),
    "an earlier round": told(round=0),
    "NaN": not_finite,
    "half of the bytes": told(coefficients=b"12345678"),
    "a huge reply": told(coefficients=bytes(8 * 10**6)),
    "a million devices": told(devices=list(range(10**6))),
    "another device": told(devices=[2]),
    "a device twice": told(devices=[0, 0]),
    "another weight": told(weights=[1e300]),
    "negative queries": told(queries=[-1]),
    "another type": told(dtype="object"),
    "one step": told(steps=1),
    "no fields": lambda content: content.pop("answer", None),
    "an unknown field": told(payload=b"x"),
    "a false position": lambda content: content.update(
        {"position": ConfigRecord({"round": 10**9, "start": "0f", "differs": True})}
    ),
    "a code that is none": lambda content: content.update(
        {"refusal": ConfigRecord({"reason": "\x1b[31m" + "x" * 10**6})}
    ),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("buffer", [1, 2])
def test_one_lying_node_cannot_stop_or_spoil_the_run(lie, buffer, tmp_path):
    algorithm = fedzo.FedBuff(**STEPS, clock="real", buffer=buffer)
    result, _ = run(algorithm, grid=LyingGrid(LIES[lie]), rounds=6, run_dir=tmp_path)
    assert result.success
    updates, x = logged(tmp_path, algorithm)
    assert np.array_equal(x, result.last)
    first = [u for own in updates for u in own if u.device == 0]
    assert (all(u.started == 0 for u in first) and lie == "an earlier round") or not first
    assert all(len(one["reason"]) <= 300 for one in result.dropped)


class ForgetfulGrid(SlowGrid):
    """Flower in memory: the ids of messages that cannot be stored are missing in the list."""

    def push_messages(self, messages):
        messages = list(messages)
        return super().push_messages([m for m in messages if m.metadata.dst_node_id != 2])


@pytest.mark.parametrize("algorithm", [REAL, fedzo.FedZO(**STEPS)])
def test_messages_that_cannot_be_sent_cost_their_node_only(algorithm):
    app = make_client_app(lambda context: PROBLEM)
    result, _ = run(algorithm, grid=ForgetfulGrid(app, (1, 1, 1, 1)), rounds=3)
    assert result.success
    assert {one["device"] for one in result.dropped} <= {1}
