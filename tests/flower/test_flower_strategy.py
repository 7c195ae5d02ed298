"""FedzoStrategy as one of Flower's strategies: hooks of subclasses, wrappers, Flower's own loop."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import strategy as flower

import fedzo
from fedzo.errors import Halted, UsageError
from fedzo.flower import FedzoStrategy, FlowerSettings, InProcessGrid, make_client_app
from fedzo.problems import Quadratic
from raising import fails

PROBLEM = Quadratic(dim=6, devices=6, gradient_noise=0.0)
STEPS = fedzo.FedZO(learning_rate=0.05, directions=4, local_steps=2)
WHOLE = FlowerSettings(clip=False)


def grid_of(nodes=3, **others):
    return InProcessGrid(make_client_app(lambda context: PROBLEM), nodes, **others)


def state_dict(kind=np.float64):
    """Return six numbers as two arrays."""
    start = np.linspace(-1, 1, 6).astype(kind)
    return ArrayRecord({"weight": Array(start[:4].reshape(2, 2)), "bias": Array(start[4:])})


def numbers(arrays):
    return np.concatenate([array.ravel() for array in arrays.to_numpy_ndarrays()])


class Extended(FedzoStrategy):
    """Leaves node 3 out of the training, notes what it sees, and adds a metric."""

    def configure_train(self, server_round, arrays, config, grid):
        self.seen.append(("configure_train", server_round, numbers(arrays)))
        messages = super().configure_train(server_round, arrays, config, grid)
        return [message for message in messages if message.metadata.dst_node_id != 3]

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        nodes = sorted(reply.metadata.src_node_id for reply in replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.seen.append(("aggregate_train", nodes, numbers(arrays)))
        metrics["nodes"] = len(nodes)
        return arrays, metrics

    def aggregate_evaluate(self, server_round, replies):
        metrics = super().aggregate_evaluate(server_round, replies)
        metrics["replies"] = len(list(replies))
        return metrics


@pytest.mark.parametrize("uplink", [fedzo.Ideal(), fedzo.Seeds()])
def test_hooks_of_a_subclass_work(uplink):
    strategy = Extended(STEPS, uplink, seed=4, settings=WHOLE)
    strategy.seen = []
    assert isinstance(strategy, flower.Strategy)
    result = strategy.start(grid_of(), state_dict(), num_rounds=3)
    names = [name for name, *_ in strategy.seen]
    assert names == ["configure_train", "aggregate_train"] * 3
    assert [nodes for name, nodes, _ in strategy.seen if name == "aggregate_train"] == [[1, 2]] * 3
    # The model that a hook is shown is that of the run: devices 4 and 5 are never asked.
    asked = {one["device"] for one in result.dropped}
    assert asked == {4, 5}
    assert [m["participants"] for m in result.train_metrics_clientapp.values()] == [4] * 3
    assert [m["nodes"] for m in result.train_metrics_clientapp.values()] == [2] * 3
    assert [m["replies"] for m in result.evaluate_metrics_clientapp.values()] == [3] * 4
    assert np.array_equal(strategy.seen[1][2], strategy.seen[2][2])
    expected = mean_of_first_four(numbers(state_dict()), rounds=3)
    assert np.allclose(strategy.seen[-1][2], expected, rtol=1e-12)


def mean_of_first_four(x, rounds):
    """Run the rounds with devices 0 to 3 alone, by their own local steps."""
    from driving import steps_of

    for t in range(rounds):
        task = steps_of(STEPS, x, t, 4, devices=range(6))
        x = x + np.mean([task.reply(PROBLEM, device).delta for device in range(4)], axis=0)
    return x


def test_replies_can_be_left_out():
    class Trusting(FedzoStrategy):
        def aggregate_train(self, server_round, replies):
            own = [reply for reply in replies if reply.metadata.src_node_id != 3]
            return super().aggregate_train(server_round, own)

    result = Trusting(STEPS, seed=4, settings=WHOLE).start(grid_of(), state_dict(), num_rounds=2)
    assert {one["device"] for one in result.dropped} == {4, 5}
    expected = mean_of_first_four(numbers(state_dict()), rounds=2)
    assert np.allclose(numbers(result.arrays), expected, rtol=1e-12)


def test_evaluations_can_be_filtered():
    class Some(FedzoStrategy):
        def configure_evaluate(self, server_round, arrays, config, grid):
            messages = super().configure_evaluate(server_round, arrays, config, grid)
            return list(messages)[:2]

    result = Some(STEPS, settings=WHOLE).start(grid_of(), state_dict(), num_rounds=1)
    start = numbers(state_dict())
    assert result.evaluate_metrics_clientapp[0]["train_loss"] == pytest.approx(
        PROBLEM.losses(start, np.arange(4)).mean(), rel=1e-12
    )


class NeverCalls(FedzoStrategy):
    def aggregate_train(self, server_round, replies):
        return None, None


class Replaces(FedzoStrategy):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return ArrayRecord([2 * array for array in arrays.to_numpy_ndarrays()]), metrics


class Rebuilds(FedzoStrategy):
    def configure_train(self, server_round, arrays, config, grid):
        messages = super().configure_train(server_round, arrays, config, grid)
        given = [(m.content, m.metadata.dst_node_id, m.metadata.message_type) for m in messages]
        return [Message(*one) for one in given]


class Invents(FedzoStrategy):
    def configure_evaluate(self, server_round, arrays, config, grid):
        return ["not a message"]


class Twice(FedzoStrategy):
    def aggregate_train(self, server_round, replies):
        super().aggregate_train(server_round, replies)
        return super().aggregate_train(server_round, replies)


class TwiceEvaluated(FedzoStrategy):
    def aggregate_evaluate(self, server_round, replies):
        super().aggregate_evaluate(server_round, replies)
        return super().aggregate_evaluate(server_round, replies)


class Raises(FedzoStrategy):
    def configure_train(self, server_round, arrays, config, grid):
        raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (NeverCalls, "no-super"),
        (Replaces, "arrays-replaced"),
        (Rebuilds, "messages-replaced"),
        (Invents, "messages-replaced"),
        (Twice, "aggregated-twice"),
        (TwiceEvaluated, "aggregated-twice"),
    ],
)
def test_hooks_that_do_not_fit_are_named(kind, code, tmp_path):
    with fails(code, (UsageError, Halted)):
        kind(STEPS, run_dir=tmp_path / "run").start(grid_of(), state_dict(), num_rounds=2)
    # The folder is free again.
    kind.__bases__[0](STEPS, run_dir=tmp_path / "run", resume=True).start(
        grid_of(), state_dict(), num_rounds=3
    )


def test_an_error_of_a_hook_is_the_users():
    with pytest.raises(RuntimeError, match="mine"):
        Raises(STEPS).start(grid_of(), state_dict(), num_rounds=2)


def test_secure_sums_call_the_aggregating_hooks():
    strategy = Extended(fedzo.FedZO(shared_directions=True, directions=4), secure(), settings=WHOLE)
    strategy.seen = []
    result = strategy.start(grid_of(secure=True), state_dict(), num_rounds=2)
    assert [name for name, *_ in strategy.seen] == ["aggregate_train"] * 2
    assert [m["participants"] for m in result.train_metrics_clientapp.values()] == [6, 6]


def secure():
    return fedzo.Seeds(secure=True)


# ------------------------------------------------------------------------ Flower's own loop


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("server", [fedzo.server.Mean(), fedzo.server.Adam(learning_rate=0.1)])
def test_the_loop_of_flower_is_the_same_run(kind, server):
    algorithm = fedzo.FedZO(learning_rate=0.05, directions=4, local_steps=2, server=server)
    by_flower = flower.Strategy.start(
        FedzoStrategy(algorithm, seed=4, settings=WHOLE), grid_of(), state_dict(kind), num_rounds=3
    )
    own = FedzoStrategy(algorithm, seed=4, settings=WHOLE).start(
        grid_of(), state_dict(kind), num_rounds=3
    )
    last = own.evaluate_metrics_clientapp[3]["train_loss"]
    tolerance = 1e-4 if kind is np.float32 else 1e-9  # a model is sent in place of an update
    assert by_flower.evaluate_metrics_clientapp[3]["train_loss"] == pytest.approx(
        last, rel=tolerance
    )
    assert [m["participants"] for m in by_flower.train_metrics_clientapp.values()] == [6] * 3
    assert list(by_flower.arrays) == ["weight", "bias"]
    assert by_flower.arrays["weight"].numpy().dtype == kind


def test_fedavg_by_the_loop_of_flower():
    allowed = {"algorithms": ["fedavg"]}
    algorithm = fedzo.FedAvg(learning_rate=0.05)
    found = [
        start(
            FedzoStrategy(algorithm, settings=WHOLE), grid_of(node_config=allowed), state_dict(), 3
        )
        for start in (flower.Strategy.start, FedzoStrategy.start)
    ]
    last = [result.evaluate_metrics_clientapp[3]["train_loss"] for result in found]
    assert last[0] == pytest.approx(last[1], rel=1e-9)


class LyingGrid(InProcessGrid):
    """The model that node 1 replies with is spoiled."""

    def answer(self, message):
        reply = super().answer(message)
        if message.metadata.dst_node_id == 1 and message.metadata.message_type == "train":
            self.spoil(reply.content)
        return reply


def arrays(**changed):
    def spoil(content):
        own = {name: array.numpy() for name, array in content["arrays"].items()}
        own |= changed
        content["arrays"] = ArrayRecord({k: Array(v) for k, v in own.items() if v is not None})

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        arrays(bias=np.full(2, np.nan)),
        arrays(bias=np.full(2, 1e308)),
        arrays(bias=np.zeros(3)),
        arrays(bias=None),
        arrays(more=np.zeros(2)),
        arrays(bias=np.zeros(2, np.float32)),
        arrays(bias=np.zeros(2, int)),
        lambda content: content.pop("arrays", None),
        lambda content: content["answer"].update({"round": 7}),
        lambda content: content["answer"].update({"weights": [1.0]}),
    ],
)
def test_a_lying_node_in_the_loop_of_flower(spoil):
    grid = LyingGrid(make_client_app(lambda context: PROBLEM), 3)
    grid.spoil = spoil
    strategy = FedzoStrategy(STEPS, seed=4)
    result = flower.Strategy.start(strategy, grid, state_dict(), num_rounds=2)
    assert [m["participants"] for m in result.train_metrics_clientapp.values()] == [4, 4]
    assert np.isfinite(result.evaluate_metrics_clientapp[2]["train_loss"])


def wrapped(kind, **others):
    inner = FedzoStrategy(STEPS, seed=4, settings=WHOLE)
    return getattr(flower, kind)(inner, noise_multiplier=0.0, num_sampled_clients=3, **others)


@pytest.mark.parametrize(
    ("kind", "clip"),
    [
        ("DifferentialPrivacyServerSideFixedClipping", {"clipping_norm": 1e3}),
        ("DifferentialPrivacyServerSideAdaptiveClipping", {"initial_clipping_norm": 1e3}),
    ],
)
def test_wrappers_that_clip_on_the_server(kind, clip):
    plain = flower.Strategy.start(
        FedzoStrategy(STEPS, seed=4, settings=WHOLE), grid_of(), state_dict(), num_rounds=2
    )
    loose = wrapped(kind, **clip).start(grid_of(), state_dict(), num_rounds=2)
    assert np.allclose(numbers(loose.arrays), numbers(plain.arrays), rtol=1e-9)
    # A tight norm shortens the update of each node: here to a thousandth.
    tight = wrapped(kind, **dict.fromkeys(clip, 0.001)).start(grid_of(), state_dict(), num_rounds=1)
    assert 0 < np.linalg.norm(numbers(tight.arrays) - numbers(state_dict())) <= 1e-3 * (1 + 1e-9)


def test_noise_of_a_wrapper_is_part_of_the_model():
    noisy = flower.DifferentialPrivacyServerSideFixedClipping(
        FedzoStrategy(STEPS, seed=4, settings=WHOLE), 1.0, clipping_norm=3.0, num_sampled_clients=3
    )
    np.random.seed(5)  # noqa: NPY002 - Flower's noise is from there
    result = noisy.start(grid_of(), state_dict(), num_rounds=1)
    # Noise of standard deviation 1 in each of six numbers: the model is not the plain one, and the
    # evaluation is of the noisy model.
    loss = result.evaluate_metrics_clientapp[1]["train_loss"]
    assert loss == pytest.approx(PROBLEM.losses(numbers(result.arrays), np.arange(6)).mean())


@pytest.mark.parametrize(
    ("strategy", "code"),
    [
        (FedzoStrategy(STEPS, fedzo.Seeds()), "flower-loop"),
        (FedzoStrategy(fedzo.FedZO(learning_rate="auto")), "flower-loop"),
        (FedzoStrategy(fedzo.CMA()), "flower-loop"),
        (FedzoStrategy(fedzo.FedZO(fixed_directions=8, directions=2)), "flower-loop"),
        (FedzoStrategy(fedzo.LBFGS()), "flower-loop"),
        (FedzoStrategy(fedzo.Scaffold()), "flower-loop"),
    ],
)
def test_what_the_loop_of_flower_cannot_do(strategy, code):
    tasks = {"tasks": ["local_steps", "evaluate", "slopes"]}
    with fails(code, UsageError):
        flower.Strategy.start(strategy, grid_of(node_config=tasks), state_dict(), num_rounds=2)


def test_wrappers_that_clip_on_the_nodes_are_rejected():
    for kind, clip in (
        ("DifferentialPrivacyClientSideFixedClipping", {"clipping_norm": 1.0}),
        ("DifferentialPrivacyClientSideAdaptiveClipping", {}),
    ):
        with fails("no-mods", UsageError):
            wrapped(kind, **clip).start(grid_of(), state_dict(), num_rounds=1)
