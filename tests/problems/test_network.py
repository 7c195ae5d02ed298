"""A module is trained by streamed directions as it would be by held ones, and by nothing else."""

import copy

import numpy as np
import pytest

import fedzo
from driving import local, steps_of
from fedzo.core import estimator as estimator_module
from fedzo.core.capabilities import NamesRecords
from fedzo.core.directions import STREAMABLE
from fedzo.core.random import Draws, Stream
from fedzo.core.updates import DirectionSum
from fedzo.runs import RunFolder
from raising import fails, rejects

torch = pytest.importorskip("torch")
TorchProblem = fedzo.TorchProblem


@pytest.fixture(autouse=True)
def one_thread():
    """Threads would only wait for each other: a batch takes microseconds here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


AT = Draws(seed=3, stream=Stream.DIRECTIONS, round=4, device=1)


def loss(module, batch):
    inputs, labels = batch
    return torch.nn.functional.cross_entropy(module(inputs).float(), labels, reduction="none")


def network(dtype=torch.float64):
    """A small network with everything that behaves differently in training mode."""
    torch.manual_seed(0)
    layers = (
        torch.nn.Linear(4, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.Dropout(0.5),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 3),
    )
    return torch.nn.Sequential(*layers).to(dtype)


def samples(devices=3, count=20, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(devices, count, 4, generator=generator, dtype=torch.float64)
    labels = inputs[..., :3].argmax(-1)
    return [(inputs[i].to(dtype), labels[i]) for i in range(devices)]


class Held(TorchProblem):
    """The same problem, with directions that are held and points that are built."""

    values_streamed = None


def test_a_batch_names_its_records():
    problem = TorchProblem(network(), loss, samples())
    batch = problem.batch(1, 50, AT)
    names = problem.capability(NamesRecords).records(batch)
    assert {device for device, _ in names} == {1}
    own = samples()[1][0]
    assert all(
        torch.equal(own[i], row) for (_, i), row in zip(names, batch.content[0], strict=True)
    )


@pytest.mark.parametrize("kind", STREAMABLE)
@pytest.mark.parametrize("difference", ["forward", "central"])
def test_streamed_steps_are_the_held_ones(kind, difference, monkeypatch):
    """In float64 the two differ by the rounding of sums: far below 1e-7 of the coefficients."""
    algorithm = fedzo.FedZO(
        learning_rate=0.1,
        smoothing=1e-3,
        directions=5,
        local_steps=3,
        batch_size=6,
        direction_kind=kind,
        difference=difference,
    )
    held = Held(network(), loss, samples())
    expected = local(algorithm, held, 1, held.initial(), AT)
    monkeypatch.setattr(estimator_module, "DirectionBuffer", None)  # nothing may be held now
    streamed = TorchProblem(network(), loss, samples())
    update = local(algorithm, streamed, 1, streamed.initial(), AT)
    assert update.queries == expected.queries == 3 * 6 * (6 if difference == "forward" else 10)
    np.testing.assert_allclose(update.coefficients, expected.coefficients, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(update.delta, expected.delta, rtol=1e-7, atol=1e-10)


def test_the_estimate_of_a_linear_loss_has_its_gradient_for_expectation():
    """Over 4000 directions: within 5 standard errors, |a| sqrt(1 + 1/d) / sqrt(n) each."""

    def linear(module, batch):
        return batch[0] @ module.weight[0]

    module = torch.nn.Linear(6, 1, bias=False).double()
    a = torch.arange(1.0, 7.0, dtype=torch.float64)[None]
    problem = TorchProblem(module, linear, [(a,)])
    algorithm = fedzo.FedZO(learning_rate=1.0, directions=4000, local_steps=1, batch_size=1)
    delta = local(algorithm, problem, 0, problem.initial(), AT._replace(device=0)).delta
    error = 5 * float(a.norm()) * np.sqrt(1 + 1 / 6) / np.sqrt(4000) * np.sqrt(6)
    assert np.linalg.norm(delta + a[0].numpy()) < error


def test_every_parameter_gets_its_own_numbers():
    module, data = network(torch.float32), samples(dtype=torch.float32)
    problem = TorchProblem(module, loss, data, trainable=["0.*", "4.weight"])
    x, seen = problem.initial(), []

    def watch(module, batch):
        seen.append(
            torch.cat([module[0].weight.flatten(), module[0].bias, module[4].weight.flatten()])
        )
        return loss(module, batch)

    problem.loss = watch
    step = DirectionSum.of("gaussian", problem.dim, [AT], np.array([[0.1, -0.2]], np.float32))
    problem.values_streamed(x, None, [step, None], problem.batch(0, 2, AT))
    expected = x.copy()
    step.add_to(expected)
    assert np.array_equal(seen[-2].numpy(), expected)
    assert np.array_equal(seen[-1].numpy(), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_any_precision_is_trained(dtype):
    kind = getattr(torch, dtype)
    module = torch.nn.Linear(4, 3).to(kind)
    problem = TorchProblem(module, loss, samples(dtype=kind))
    algorithm = fedzo.FedZO(learning_rate=0.1, smoothing=0.3, directions=8)
    result = fedzo.minimize(problem, algorithm=algorithm, rounds=30, evaluate_every=10)
    assert result.fun < 0.6 * result.history[0]["train_loss"]
    assert module.weight.dtype == kind
    assert torch.equal(module.weight.flatten(), torch.from_numpy(result.x[:12]).to(kind))


def test_the_rest_of_the_module_stays_as_it_is():
    module = network()
    before = copy.deepcopy(module.state_dict())
    problem = TorchProblem(module, loss, samples(), trainable="4.*")
    fedzo.minimize(problem, algorithm=fedzo.FedZO(learning_rate=0.05), rounds=3, evaluate_every=1)
    after = module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"4.weight", "4.bias"}  # not batch norm's statistics, nor its counter
    assert not module.training


def test_tied_parameters_are_one():
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    module["b"].weight = module["a"].weight
    problem = TorchProblem(module, loss, samples(), trainable="*.weight")
    assert problem.dim == 9


def test_seeds_and_the_ideal_uplink_train_alike_and_count_what_they_send():
    algorithm = fedzo.FedZO(learning_rate=0.05, directions=2, participants=2)
    run = {"algorithm": algorithm, "rounds": 4, "evaluate_every": 4}
    results = {
        uplink: fedzo.minimize(TorchProblem(network(), loss, samples()), uplink=uplink, **run)
        for uplink in (fedzo.Ideal(), fedzo.Seeds())
    }
    ideal, seeds = results.values()
    assert np.array_equal(ideal.last, seeds.last)
    assert ideal.uplink_bytes == 4 * 2 * ideal.x.nbytes
    assert seeds.uplink_bytes == 4 * 2 * (33 + 5 * 2 * 8)  # whatever d is


def test_a_resumed_run_is_the_same_run(tmp_path):
    algorithm = fedzo.FedZO(learning_rate=0.05, directions=2)

    def run(rounds, folder, **more):
        problem = TorchProblem(network(), loss, samples())
        options = {"rounds": rounds, "run_dir": tmp_path / folder, "evaluate_every": 2}
        return fedzo.minimize(problem, algorithm=algorithm, **options, **more)

    whole = run(4, "whole")
    run(2, "parts")
    assert np.array_equal(run(4, "parts", resume=True).last, whole.last)


def test_the_folder_has_the_whole_module(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    module = network()
    problem = TorchProblem(module, loss, samples(), trainable="4.*")
    algorithm = fedzo.FedZO(learning_rate=0.05)
    result = fedzo.minimize(problem, algorithm=algorithm, rounds=2, run_dir=tmp_path)
    written = safetensors.load_file(tmp_path / "model.safetensors")
    state = result.state_dict()
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], state[name]) for name in state)
    assert RunFolder(tmp_path).model.exists()


def test_a_result_has_the_state_of_its_own_module():
    module = network()
    problem = TorchProblem(module, loss, samples(), trainable="4")
    algorithm = fedzo.FedZO(learning_rate=0.05)
    first = fedzo.minimize(problem, algorithm=algorithm, rounds=2)
    fedzo.minimize(problem, algorithm=algorithm, rounds=2, seed=1)  # moves the module on
    state = first.state_dict()
    assert state.keys() == module.state_dict().keys()
    assert np.array_equal(state["4.weight"].flatten(), first.x[: state["4.weight"].numel()])
    with fails("no-state-dict"):
        fedzo.minimize(lambda x, device: float(x @ x), np.ones(2), devices=1).state_dict()


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        ("head", {"4.weight", "4.bias"}),
        ("norms", {"1.weight", "1.bias"}),
        ("biases", {"0.bias", "1.bias", "4.bias"}),
        ("0", {"0.weight", "0.bias"}),
        (["norms", "4.weight"], {"1.weight", "1.bias", "4.weight"}),
    ],
)
def test_what_is_trained_can_be_named(trainable, expected):
    problem = TorchProblem(network(), loss, samples(), trainable=trainable)
    assert {piece.name for piece in problem.pieces} == expected


def test_a_layer_called_head_comes_before_the_group_and_tied_layers_are_found():
    module = torch.nn.ModuleDict({"head": torch.nn.Linear(4, 3), "last": torch.nn.Linear(4, 3)})
    module["last"].weight = module["head"].weight
    problem = TorchProblem(module, loss, samples(), trainable="head")
    assert {piece.name for piece in problem.pieces} == {"head.weight", "head.bias"}
    problem = TorchProblem(module, loss, samples(), trainable="last")
    assert {piece.name for piece in problem.pieces} == {"head.weight", "last.bias"}


def test_data_in_all_its_forms():
    inputs, labels = samples()[0]
    rows = [(inputs[i], labels[i]) for i in range(len(labels))]
    loader = torch.utils.data.DataLoader(rows, batch_size=7)
    problem = TorchProblem(network(), loss, [(inputs, labels), rows, loader])
    batches = [problem.batch(i, 5, AT) for i in range(3)]
    assert all(torch.equal(batches[0].content[0], other.content[0]) for other in batches)
    f = problem.losses(problem.initial(), np.arange(3))
    np.testing.assert_allclose(f, f[0], rtol=1e-12)


def test_the_mean_loss_does_not_depend_on_how_many_are_evaluated_at_a_time():
    few = TorchProblem(network(), loss, samples(), evaluation_batch=3)
    all_ = TorchProblem(network(), loss, samples(), evaluation_batch=100)
    x, devices = few.initial(), np.arange(3)
    np.testing.assert_allclose(few.losses(x, devices), all_.losses(x, devices), rtol=1e-12)


def test_adapters_of_peft_are_what_is_trained():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    module = peft.get_peft_model(base, peft.LoraConfig(target_modules=["0", "2"], r=2))
    problem = TorchProblem(module, loss, samples(dtype=torch.float32))
    assert all("lora" in piece.name for piece in problem.pieces)
    assert problem.dim == 2 * (4 + 8) + 2 * (8 + 3)
    algorithm = fedzo.FedZO(learning_rate=0.1, directions=8)
    result = fedzo.minimize(problem, algorithm=algorithm, rounds=20, evaluate_every=20)
    assert result.fun < result.history[0]["train_loss"]


class Endless(torch.utils.data.IterableDataset):
    """Samples without numbers."""

    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    "arguments",
    [
        {"trainable": "4.wieght"},
        {"data": []},
        {"data": [(torch.zeros(0, 4), torch.zeros(0))]},
        {"data": [3]},
        {"data": samples()[0]},
        {"data": torch.utils.data.TensorDataset(*samples()[0])},
        {"data": [Endless()]},
        {"data": [torch.utils.data.DataLoader(Endless())]},
        {"data": [torch.utils.data.DataLoader([torch.zeros(4)], batch_size=None)]},
        {"data": [(torch.zeros(5, 4), torch.zeros(4))]},
        {"data": [(torch.tensor(1.0), torch.tensor(1))]},
        {"trainable": 3},
        {"trainable": []},
        {"evaluation_batch": 0},
    ],
)
def test_what_does_not_fit_is_refused(arguments):
    given = {"module": network(), "loss": loss, "data": samples(), **arguments}
    with rejects(*arguments):
        TorchProblem(**given)


def test_what_is_not_a_module_or_not_a_loss_for_each_sample_is_refused():
    with fails("not-a-module"):
        TorchProblem(lambda x: x, loss, samples())
    problem = TorchProblem(network(), lambda module, batch: torch.zeros(()), samples())
    with fails("loss-shape"):
        problem.losses(problem.initial(), np.arange(1))
    problem = TorchProblem(network(), lambda module, batch: torch.zeros(3), samples())
    with fails("loss-shape"):
        fedzo.minimize(problem, algorithm=fedzo.FedZO(), rounds=1)


def test_arrays_of_numpy_are_taken_for_tensors():
    arrays = [(inputs.numpy(), labels.numpy()) for inputs, labels in samples()]
    tensors = TorchProblem(network(), loss, samples())
    found = TorchProblem(network(), loss, arrays).losses(tensors.initial(), np.arange(3))
    assert np.array_equal(found, tensors.losses(tensors.initial(), np.arange(3)))


class Odd(torch.nn.Module):
    """Parameters that are read in all the ways that make trouble."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Linear(4, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)  # reads out_proj's
        self.gain = torch.nn.Parameter(torch.ones(8))  # the module's own, around other layers
        self.lstm = torch.nn.LSTM(8, 8, batch_first=True)
        self.out = torch.nn.Linear(8, 4, bias=False)
        self.out.weight = torch.nn.Parameter(self.embed.weight.T.contiguous())
        self.tied = torch.nn.Linear(4, 8)
        self.tied.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.ones(1))  # read by the loss, outside all layers

    def forward(self, inputs):
        hidden = self.embed(inputs)[:, None] * self.gain
        hidden = hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0]
        hidden = self.lstm(hidden)[0][:, 0] + self.tied(inputs)
        return self.out(hidden)[:, :3]


def scaled_loss(module, batch):
    return loss(module, batch) * module.scale


@pytest.mark.parametrize("make", [network, lambda: Odd().double()])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_in_place_is_the_same_run_and_x_is_the_modules_memory(make, local_steps):
    """Sums are rounded in another order: coefficients agree to 1e-7 in float64."""
    odd = isinstance(make(), Odd)
    run = {
        "algorithm": fedzo.FedZO(
            learning_rate=0.05, directions=3, local_steps=local_steps, direction_kind="gaussian"
        ),
        "rounds": 4,
        "evaluate_every": 1,
        "uplink": fedzo.Seeds(),
    }
    kind = scaled_loss if odd else loss
    plain = fedzo.minimize(TorchProblem(make(), kind, samples()), **run)
    module = make()
    problem = TorchProblem(module, kind, samples(), in_place=True)
    first = problem.pieces[0].tensor.data_ptr()
    result = fedzo.minimize(problem, **run)
    np.testing.assert_allclose(result.last, plain.last, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(result.x, plain.x, rtol=1e-6, atol=1e-9)
    assert result.queries == plain.queries
    assert result.uplink_bytes == plain.uplink_bytes
    assert problem.pieces[0].tensor.data_ptr() == first == problem.initial().ctypes.data
    assert np.array_equal(problem.initial(), result.x)  # the module ends with the best


@pytest.mark.parametrize("kind", STREAMABLE)
def test_along_fixed_directions_streamed_held_and_in_place_are_one_run(kind):
    """In place, x is built in the module's own memory from a start that is kept beside it."""
    algorithm = fedzo.FedZO(
        learning_rate=0.05, directions=2, local_steps=2, direction_kind=kind, fixed_directions=6
    )
    found = []
    for make, options in ((Held, {}), (TorchProblem, {}), (TorchProblem, {"in_place": True})):
        problem = make(network(), loss, samples(), **options)
        memory, first = problem.initial(), problem.initial().copy()
        result = fedzo.minimize(problem, algorithm=algorithm, uplink=fedzo.Seeds(), rounds=5)
        found.append(result.last.copy())
        assert np.shares_memory(memory, problem.initial()) == bool(options)
    assert not np.allclose(found[0], first)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found[2], found[1], rtol=1e-12, atol=1e-14)


def test_in_place_a_device_leaves_the_module_as_it_was():
    module = network()
    problem = TorchProblem(module, loss, samples(), in_place=True)
    before = problem.initial().copy()
    algorithm = fedzo.FedZO(learning_rate=0.5, smoothing=0.5, directions=4, local_steps=2)
    update = local(algorithm, problem, 1, problem.initial(), AT)
    assert isinstance(update.delta, DirectionSum)
    assert np.array_equal(problem.initial(), before)  # to the bit
    largest = max(layer.weight.numel() + layer.bias.numel() for layer in (module[0], module[4]))
    assert problem._points._spare.numel() == largest


@pytest.mark.parametrize("kind", STREAMABLE)
def test_wrapped_problems_are_streamed_held_and_in_place_one_run(kind):
    """ZO-SGD pools devices: it wraps the problem."""
    algorithm = fedzo.ZOSGD(learning_rate=0.05, directions=2, direction_kind=kind)
    found = []
    for make, options in ((Held, {}), (TorchProblem, {}), (TorchProblem, {"in_place": True})):
        problem = make(network(), loss, samples(), **options)
        found.append(fedzo.minimize(problem, algorithm=algorithm, rounds=4).last.copy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found[2], found[1], rtol=1e-10, atol=1e-12)


def test_in_place_a_round_builds_no_points_and_leaves_the_start(monkeypatch):
    problem = TorchProblem(network(), loss, samples(), in_place=True)
    monkeypatch.setattr(TorchProblem, "values", None)  # (k, d) points
    before = problem.initial().copy()
    algorithm = fedzo.FedZO(smoothing=0.5, directions=4, local_steps=2)
    work = steps_of(algorithm, problem.initial(), round=0, seed=3)
    assert np.isfinite(work.reply(problem, 1).coefficients).all()
    assert np.array_equal(problem.initial(), before)  # to the bit


def test_in_place_after_a_failing_loss_the_module_is_as_it_was():
    module = network()
    problem = TorchProblem(module, loss, samples(), in_place=True)
    algorithm = fedzo.FedZO(directions=2)
    local(algorithm, problem, 1, problem.initial(), AT)
    before, data = problem.initial().copy(), [piece.tensor.data_ptr() for piece in problem.pieces]

    def fail(*_):
        raise ZeroDivisionError

    module[3].register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        local(algorithm, problem, 1, problem.initial(), AT)
    assert [piece.tensor.data_ptr() for piece in problem.pieces] == data
    assert np.array_equal(problem.initial(), before)


def test_in_place_works_with_what_needs_vectors(tmp_path):
    """Over the air, and resumed: x is then an array beside the module, and the run the same."""
    algorithm = fedzo.FedZO(learning_rate=0.05, directions=2)

    def run(rounds, folder, **more):
        problem = TorchProblem(network(), loss, samples(), in_place=True)
        options = {"rounds": rounds, "run_dir": tmp_path / folder, "evaluate_every": 2}
        return fedzo.minimize(problem, algorithm=algorithm, **options, **more)

    whole = run(4, "whole")
    run(2, "parts")
    assert np.array_equal(run(4, "parts", resume=True).last, whole.last)
    assert np.isfinite(run(2, "air", uplink=fedzo.AirComp()).last).all()
