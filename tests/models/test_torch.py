"""PyTorch modules: mode, type, device, and whose they are."""

import sys

import numpy as np
import pytest

from fedzo.errors import MissingExtra
from fedzo.models import TorchModel
from raising import fails, rejects

torch = pytest.importorskip("torch")


def test_queries_find_the_module_in_evaluation_mode_and_leave_it_unchanged():
    """Batch statistics of one query would make others' answers depend on it."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2), torch.nn.Dropout(0.5)
    )
    inputs = np.random.default_rng(3).random((8, 3))
    model = TorchModel(module, input_shape=(3,))
    module.train()
    first = model(inputs)
    assert not module.training
    assert module[0].num_batches_tracked == 0
    np.testing.assert_allclose(model(inputs[:1]), first[:1], rtol=0, atol=1e-6)
    assert all(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize(
    ("dtype", "answered", "atol"),
    [(torch.float64, "float64", 1e-14), (torch.bfloat16, "float32", 0.05)],
)
def test_inputs_are_cast_to_the_type_of_the_parameters(dtype, answered, atol):
    module = torch.nn.Linear(2, 2, bias=False, dtype=dtype)
    module.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=dtype)
    scores = TorchModel(module)(np.array([[0.3, 0.7]], np.float32))
    assert scores.dtype == answered
    np.testing.assert_allclose(scores, [[1.7, 3.7]], rtol=0, atol=max(atol, 1e-6))


def test_a_module_that_works_in_place_and_has_no_parameters():
    class Negative(torch.nn.Module):
        def forward(self, x):
            return x.neg_()

    inputs = np.array([[0.25, 0.5]], np.float32)
    np.testing.assert_array_equal(TorchModel(Negative())(inputs), [[-0.25, -0.5]])
    np.testing.assert_array_equal(inputs, [[0.25, 0.5]])


def test_the_module_goes_to_the_device_and_the_inputs_after_it():
    """The meta device computes shapes only: what comes back from it cannot be numbers."""
    module = torch.nn.Linear(2, 2)
    model = TorchModel(module, device="meta")
    assert module.weight.device.type == "meta"
    with pytest.raises(NotImplementedError):
        model(np.zeros((1, 2)))
    with rejects("device"):
        TorchModel(torch.nn.Linear(2, 2), device="warp:0")


def test_what_is_no_module_or_answers_no_tensor(monkeypatch):
    with fails("not-a-module"):
        TorchModel(lambda x: x)

    class Pair(torch.nn.Module):
        def forward(self, x):
            return x, x

    with fails("dtype"):
        TorchModel(Pair())(np.zeros((1, 2)))
    with fails("run-failed"):
        TorchModel(torch.nn.Linear(3, 2))(np.zeros((1, 2)))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"fedzo\[torch\]"):
        TorchModel(Pair())


def test_inputs_are_normalised_channel_by_channel():
    """The sum of (z - mean) / std over a 2-channel image of two pixels each, by hand."""

    class Sums(torch.nn.Module):
        def forward(self, batch):
            return batch.sum(dim=(2, 3))

    model = TorchModel(Sums(), mean=[0.5, 0.25], std=[0.5, 0.1])
    scores = model(np.array([[[[0.5, 1.0]], [[0.25, 0.35]]]]))
    np.testing.assert_allclose(scores, [[0.0 + 1.0, 0.0 + 1.0]], atol=1e-6)
    with fails("channels"):
        model(np.zeros((1, 3, 1, 2)))


@pytest.mark.parametrize(
    ("moments", "key"),
    [
        ({"mean": [0.5]}, "std"),
        ({"mean": [0.5], "std": [0.0]}, "std"),
        ({"mean": [0.5], "std": [1.0, 1.0]}, "std"),
        ({"mean": ["a"], "std": [1.0]}, "mean"),
    ],
)
def test_moments_that_cannot_be_are_rejected(moments, key):
    with rejects(key):
        TorchModel(torch.nn.Linear(2, 2), **moments)
