"""Modules with parameters that cannot be trained, or are trained in a particular way."""

import contextlib
import copy
import io

import numpy as np
import pytest

import fedzo
from raising import fails, rejects

torch = pytest.importorskip("torch")
DATA = [
    (torch.randn(20, 4, generator=torch.Generator().manual_seed(i)), torch.zeros(20).long())
    for i in (1, 2)
]
FEDZO = fedzo.FedZO(learning_rate=0.05, directions=2, batch_size=4, local_steps=2)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loss(module, batch):
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))


def with_parameter(tensor):
    module = network()
    module.register_parameter(
        "odd", torch.nn.Parameter(tensor, tensor.dtype.is_floating_point or tensor.is_complex())
    )
    return module


def test_what_cannot_be_trained_is_rejected_by_name_before_anything_runs():
    wrong = {
        "complex": torch.zeros(3, dtype=torch.complex64),
        "float8": torch.zeros(3).to(torch.float8_e4m3fn),
        "meta": torch.zeros(3, device="meta"),
        "expanded": torch.zeros(1).expand(3),
        "windows": torch.zeros(6).as_strided((3, 3), (1, 1)),
        "sparse": torch.eye(3).to_sparse(),
    }
    for kind, tensor in wrong.items():
        with rejects("trainable") as caught:
            fedzo.TorchProblem(with_parameter(tensor), loss, DATA)
        assert "odd" in str(caught.value), kind
        fedzo.TorchProblem(with_parameter(tensor), loss, DATA, "0")  # the others can be named
    with rejects("trainable"):
        fedzo.TorchProblem(with_parameter(torch.zeros(3, dtype=torch.int8)), loss, DATA, "all")


@pytest.mark.filterwarnings("ignore")
def test_quantised_layers_are_not_left_out_in_silence():
    module = torch.ao.quantization.quantize_dynamic(
        network(), {"0": torch.ao.quantization.default_dynamic_qconfig}
    )
    with rejects("trainable"):
        fedzo.TorchProblem(module, loss, DATA)
    assert fedzo.TorchProblem(module, loss, DATA, "2").dim == 20


@pytest.mark.parametrize("in_place", [False, True])
def test_two_parameters_on_one_storage_count_once_and_stay_tied(in_place):
    """The same run as with one parameter in both places."""
    runs = []
    for tied in (False, True):
        module = network()
        weight = module[0].weight
        module[2].weight = weight if tied else torch.nn.Parameter(weight.data)
        problem = fedzo.TorchProblem(module, loss, DATA, in_place=in_place)
        assert problem.dim == 16 + 4 + 4
        result = fedzo.minimize(problem, algorithm=FEDZO, rounds=3)
        assert torch.equal(module[0].weight, module[2].weight)
        runs.append(result.x.copy())
    np.testing.assert_array_equal(*runs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["weight_norm", "parametrized", "pruned"])
def test_what_changes_parameters_while_a_layer_runs_is_the_same_run_in_place(kind):
    """Hooks of the layer read its parameters before ours would, if ours were not the first."""
    from torch.nn.utils import parametrizations, prune, weight_norm

    runs = []
    for in_place in (False, True):
        module = network().double()
        match kind:
            case "weight_norm":
                weight_norm(module[0])
            case "parametrized":
                parametrizations.weight_norm(module[0])
            case "pruned":
                prune.l1_unstructured(module[0], "weight", 0.5)
        data = [(one[0].double(), one[1]) for one in DATA]
        problem = fedzo.TorchProblem(module, loss, data, in_place=in_place)
        runs.append(np.array(fedzo.minimize(problem, algorithm=FEDZO, rounds=4).x))
    np.testing.assert_allclose(*runs, rtol=1e-9)


def test_a_loss_must_be_callable():
    with rejects("loss"):
        fedzo.TorchProblem(network(), None, DATA)


def test_lazy_layers_must_have_run_once():
    module = torch.nn.Sequential(torch.nn.LazyLinear(4), network())
    with rejects("module"):
        fedzo.TorchProblem(module, loss, DATA)
    module(torch.zeros(1, 4))
    assert fedzo.TorchProblem(module, loss, DATA).dim == 60


def test_a_buffer_that_changes_is_warned_of():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, inputs):
            self.mean.mul_(0.9).add_(0.1 * inputs.mean(0))
            return self.inner(inputs - self.mean)

    problem = fedzo.TorchProblem(Counts(), loss, DATA)
    with pytest.warns(fedzo.errors.FedzoWarning, match="mean"):
        problem.losses(problem.initial(), np.arange(2))


def test_parameters_that_overlap_are_rejected_and_slices_of_one_storage_are_not():
    module = network()
    module[2].weight = torch.nn.Parameter(module[0].weight.data.t())
    with rejects("trainable"):
        fedzo.TorchProblem(module, loss, DATA)
    fedzo.TorchProblem(module, loss, DATA, ["0.bias", "2.bias"])
    flat, module = torch.randn(40), network()
    for number, layer in enumerate((module[0], module[2])):
        layer.weight = torch.nn.Parameter(flat[20 * number : 20 * number + 16].view(4, 4))
        layer.bias = torch.nn.Parameter(flat[20 * number + 16 : 20 * number + 20])
    before = copy.deepcopy(module.state_dict())
    problem = fedzo.TorchProblem(module, loss, DATA)
    result = fedzo.minimize(problem, algorithm=FEDZO, rounds=2)
    own = torch.cat([one.detach().reshape(-1) for one in module.parameters()])
    assert np.array_equal(own.numpy(), result.x)
    assert not any(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_a_stream_of_samples_is_rejected():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield torch.zeros(4), 0

    for data in (Stream(), torch.utils.data.DataLoader(Stream())):
        with rejects("data"):
            fedzo.TorchProblem(network(), loss, [data])


def mean_loss(module, batch):
    found = module(torch.as_tensor(batch["pixels"]))
    return torch.nn.functional.cross_entropy(found, batch["label"], reduction="none")


@pytest.mark.parametrize("form", ["dict", "arrays", "lists", "encoding"])
def test_dictionaries_are_the_same_data_as_tuples(form):
    def shaped(pixels, label):
        match form:
            case "dict":
                return {"pixels": pixels, "label": label}
            case "arrays":
                return {"pixels": pixels.numpy(), "label": label.numpy()}
            case "lists":
                return {"pixels": pixels.tolist(), "label": label.tolist()}
        encoding = pytest.importorskip("transformers").BatchEncoding
        return encoding({"pixels": pixels, "label": label})

    plain = fedzo.TorchProblem(network(), loss, DATA)
    named = fedzo.TorchProblem(network(), mean_loss, [shaped(*one) for one in DATA])
    assert [named.size(i) for i in range(2)] == [20, 20]
    assert list(named.contents(1)) == list(plain.contents(1))
    assert type(named.take(0, np.arange(3)).content) is type(shaped(*DATA[0]))
    runs = [fedzo.minimize(problem, algorithm=FEDZO, rounds=2).x for problem in (plain, named)]
    np.testing.assert_array_equal(*runs)


def test_dictionaries_that_do_not_fit_are_rejected():
    wrong = (
        {},
        {"pixels": torch.zeros(3, 4), "label": torch.zeros(2)},
        {"pixels": torch.zeros(3, 4), "label": ["a", "b", "c"]},
        {"pixels": [[1.0], [1.0, 2.0]]},
    )
    for data in wrong:
        with rejects("data"):
            fedzo.TorchProblem(network(), mean_loss, [data])


def test_batches_are_moved_to_the_device_of_the_module():
    problem = fedzo.TorchProblem(network(), loss, DATA, device="cpu")
    batch = problem.data[0].batch(np.arange(2), "meta")
    assert [part.device.type for part in batch] == ["meta", "meta"]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*DATA[0]))
    problem = fedzo.TorchProblem(network(), loss, [loader], device=torch.device("cpu"))
    batch = problem.data[0].batch(np.arange(2), "meta")
    assert [part.device.type for part in batch] == ["meta", "meta"]
    for wrong in ("cudaa", "cuda:99", 7):
        with rejects("device"):
            fedzo.TorchProblem(network(), loss, DATA, device=wrong)


class Experts(torch.nn.Module):
    """Each batch is sent to one expert, by the sign of its first number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.out = torch.nn.Linear(4, 4)

    def forward(self, inputs):
        chosen = self.experts[int(inputs[0, 0] > 0)]
        return self.out(torch.nn.functional.linear(inputs, chosen.weight, chosen.bias).tanh())


def compiled(kind):
    module = network()
    module = Experts() if kind == "experts" else module.double()
    match kind:
        case "script":
            return torch.jit.script(module)
        case "trace":
            return torch.jit.trace(module, torch.zeros(2, 4).double())
        case "compile":
            return torch.compile(module, backend="eager")
        case "method":
            module.compile(backend="eager")
        case "inner":
            module[0] = torch.jit.script(module[0])
    return module.double()


def in_double(module, batch):
    return loss(module, (batch[0].double(), batch[1]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["script", "trace", "inner", "experts", "compile", "method"])
def test_in_place_is_the_same_run_for_code_that_cannot_be_observed(kind):
    """Compared with plain memory, and every parameter moves."""
    runs = []
    for in_place in (False, True):
        module = compiled(kind)
        before = [one.detach().clone() for one in module.parameters()]
        problem = fedzo.TorchProblem(module, in_double, DATA, in_place=in_place)
        result = fedzo.minimize(problem, algorithm=FEDZO, rounds=6, seed=1)
        runs.append(np.array(result.x))
        after = [one.detach().clone() for one in module.parameters()]
        assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))
        assert problem.losses(result.x, np.arange(2)).mean() == pytest.approx(result.fun)
    np.testing.assert_allclose(*runs, rtol=1e-9)


@pytest.mark.parametrize("where", ["module", "layer", "there and back"])
@pytest.mark.parametrize("algorithm", [FEDZO, fedzo.FedAvg(batch_size=2)])
def test_a_loss_that_switches_to_training_mode_is_rejected(where, algorithm):
    module = torch.nn.Sequential(network(), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))

    def trains(module, batch):
        (module[1] if where == "layer" else module).train()
        losses = loss(module, batch)
        if where == "there and back":
            module.eval()
        return losses

    problem = fedzo.TorchProblem(module, trains, DATA)
    before = copy.deepcopy(module.state_dict())
    with fails("training-mode"):
        fedzo.minimize(problem, algorithm=algorithm, rounds=1)
    assert not any(layer.training for layer in module.modules())
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_a_batch_that_the_loss_changes_is_the_same_at_all_points():
    """Inputs that are scaled in place, and a label that is taken out of a dictionary."""

    def scaled(module, batch):
        return loss(module, (2 * batch["x"], batch["y"]))

    def changing(module, batch):
        labels = batch.pop("y")
        return loss(module, (batch["x"].mul_(2), labels))

    runs = []
    for one in (scaled, changing):
        problem = fedzo.TorchProblem(network(), one, [{"x": x, "y": y} for x, y in DATA])
        runs.append(fedzo.minimize(problem, algorithm=FEDZO, rounds=3).last)
    assert np.array_equal(*runs)


def test_a_new_layer_of_a_module_in_evaluation_mode_is_trained():
    """A new head is in training mode, though nobody asked for it."""
    module = torch.nn.Sequential(network(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)).eval()
    module[1], module[2] = torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)
    before = module[2].weight.detach().clone()
    fedzo.minimize(fedzo.TorchProblem(module, loss, DATA, "2"), algorithm=FEDZO, rounds=1)
    assert not torch.equal(module[2].weight, before)
    assert not any(layer.training for layer in module.modules())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("call", [1, 2, 25, 40])
def test_after_any_error_the_module_is_a_model_of_the_run_without_hooks(call, in_place, error):
    """Bit for bit one that was reached, also where an interrupt is a result."""
    module, calls, reached = network(), [], []

    def breaks(module, batch):
        calls.append(1)
        if len(calls) == call:
            raise error("now")
        return loss(module, batch)

    def numbers():
        return torch.cat([one.detach().reshape(-1) for one in module.parameters()]).numpy()

    reached.append(numbers().copy())
    file = io.BytesIO()
    torch.save(module, file)
    problem = fedzo.TorchProblem(module, breaks, DATA, in_place=in_place)
    with contextlib.suppress(BaseException):
        fedzo.minimize(
            problem,
            algorithm=FEDZO,
            rounds=4,
            evaluate_every=1,
            callback=lambda progress: reached.append(progress.x.copy()),
        )
    assert len(calls) >= call
    assert any(np.array_equal(numbers(), x) for x in reached)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())
    again = io.BytesIO()
    torch.save(module, again)
    assert abs(again.tell() - file.tell()) < 200


@pytest.mark.parametrize("in_place", [False, True])
def test_a_run_is_resumed_with_the_module_that_it_trained(in_place, tmp_path):
    def run(problem, rounds, **where):
        settings = {"algorithm": FEDZO, "rounds": rounds, "seed": 1, "evaluate_every": 2}
        return fedzo.minimize(problem, **settings, **where)

    def problem(module):
        return fedzo.TorchProblem(module, loss, DATA, in_place=in_place)

    whole = run(problem(network()), 8)
    module = network()
    same, folder = problem(module), {"run_dir": tmp_path / "run"}
    run(same, 3, **folder)
    again = run(same, 6, resume=True, **folder)  # the same problem
    again = run(problem(module), 8, resume=True, **folder)  # another of the same module
    np.testing.assert_array_equal(again.last, whole.last)
    strip = [{k: v for k, v in one.items() if k != "seconds"} for one in again.history]
    assert strip == [{k: v for k, v in one.items() if k != "seconds"} for one in whole.history]
    with fails("other-configuration"):  # a start that was given is not replaced
        run(same, 9, resume=True, x0=np.ones(same.dim, np.float32), **folder)
