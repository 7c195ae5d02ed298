"""The generator in torch's operations makes the bits of the compiled one."""

import numpy as np
import pytest

from fedzo.core.random import Draws, Stream
from fedzo.core.streams import Combination

torch = pytest.importorskip("torch")

from fedzo.core import streams_torch  # noqa: E402

HERE = Draws(seed=2**63 + 11, stream=Stream.DIRECTIONS, round=3, device=5, step=2)


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
@pytest.mark.parametrize(("start", "stop"), [(0, 60_000), (12_345, 12_399), (255, 1025)])
def test_both_generators_agree_to_the_bit(kind, start, stop):
    step = Combination.of(kind, 60_000, HERE, np.array([0.3, -0.7, 1e-3]))
    compiled = np.zeros(stop - start, np.float32)
    step.add_to(compiled, start)
    made = streams_torch.numbers(step, start, stop, torch.zeros(1))
    assert np.array_equal(made.numpy(), compiled)


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
def test_both_agree_beyond_32_bits(kind):
    step = Combination.of(kind, 2**40, HERE, np.ones(1))
    compiled = np.zeros(1000, np.float32)
    step.add_to(compiled, 2**40 - 1000)
    made = streams_torch.numbers(step, 2**40 - 1000, 2**40, torch.zeros(1))
    assert np.array_equal(made.numpy(), compiled)


def test_a_product_and_a_sum_are_rounded_once():
    """Against rational arithmetic, with sums of all sizes and signs, cancellation among them."""
    from fractions import Fraction

    draws = Draws(1, Stream.PROBLEM)
    a, b, c = draws.normals(3, 4000, dtype=np.float32)
    c[::3] = -(a[::3] * b[::3])  # what is left is the product's own rounding error
    c[1::3] *= np.float32(2.0**-24)  # ties and what is just beside them
    fused = streams_torch._fma(*map(torch.from_numpy, (a, b, c))).numpy()
    for i in range(a.size):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        around = [np.nextafter(fused[i], np.float32(side)) for side in (-np.inf, np.inf)]
        error = abs(Fraction(float(fused[i])) - exact)
        assert all(error <= abs(Fraction(float(other)) - exact) for other in around)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["sphere", "rademacher"])
def test_tensors_of_any_precision(dtype, kind, monkeypatch):
    """Half precision is float32's sum, rounded once, whatever the pieces that it is made by."""
    monkeypatch.setattr(streams_torch, "_AT_ONCE", 1 << 12)
    kind_of = getattr(torch, dtype)
    step = Combination.of(kind, 30_000, HERE, np.array([0.3, -0.7]))
    weight = torch.linspace(-1, 1, 10_000).to(kind_of).view(100, 100)
    wide = torch.float64 if dtype == "float64" else torch.float32
    expected = weight.to(wide, copy=True)
    step.add_to(expected.view(-1).numpy(), 777)
    out = torch.empty_like(weight)
    streams_torch.add_to(step, out, 777, weight)
    assert torch.equal(out, expected.to(kind_of))
    streams_torch.add_to(step, weight, 777)
    assert torch.equal(weight, out)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_devices_other_than_the_cpu_take_the_torch_generator(dtype, monkeypatch):
    """No such device is needed: what is done there is done here, and must make the same bits."""
    monkeypatch.setattr(streams_torch, "_AT_ONCE", 1 << 12)
    monkeypatch.setattr(streams_torch, "_on_cpu", lambda tensor: False)
    step = Combination.of("gaussian", 30_000, HERE, np.array([0.3, -0.7]))
    here = torch.linspace(-1, 1, 9000).to(getattr(torch, dtype))
    there = here.clone()
    streams_torch.add_to(step, there, 777)
    monkeypatch.undo()
    streams_torch.add_to(step, here, 777)
    assert torch.equal(here, there)
