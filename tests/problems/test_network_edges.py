"""Modules with parameters that cannot be trained, or are trained in a particular way."""

import copy

import numpy as np
import pytest

import fedzo
from raising import rejects

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
