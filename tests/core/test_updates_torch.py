"""The generator in torch's operations makes the bits of the compiled one."""

import numpy as np
import pytest

from fedzo.core.random import Draws, Stream
from fedzo.core.updates import DirectionSum, join

torch = pytest.importorskip("torch")

from fedzo.core import updates_torch  # noqa: E402

HERE = Draws(seed=2**63 + 11, stream=Stream.DIRECTIONS, round=3, device=5, step=2)


def one_step(kind, dim, coefficients, dtype=np.float32):
    return DirectionSum.of(kind, dim, [HERE], np.array([coefficients], dtype))


def by_torch(step, start, stop):
    return updates_torch.numbers(step, start, stop, torch.device("cpu")).numpy()


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("start", "stop"), [(0, 60_000), (12_345, 12_399), (255, 1025)])
def test_both_generators_agree_to_the_bit(kind, dtype, start, stop):
    step = one_step(kind, 60_000, [0.3, -0.7, 1e-3, 0.1, 0.9, -0.4], dtype)
    other = DirectionSum.of(kind, 60_000, [HERE._replace(device=1)], np.ones((1, 1), dtype), row=3)
    total = join([step.scaled(0.3), other, as_sum_of(np.linspace(0, 1, 60_000), step)]).divided(1.3)
    for own in (step, total):
        assert np.array_equal(by_torch(own, start, stop), own.part(start, stop))


def as_sum_of(dense, like):
    return DirectionSum(dense.size, like.kind, dense=dense, coefficients=like.coefficients[:0])


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
def test_both_agree_beyond_32_bits(kind):
    step = one_step(kind, 2**40, [1.0])
    made = by_torch(step, 2**40 - 1000, 2**40)
    assert np.array_equal(made, step.part(2**40 - 1000, 2**40))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["sphere", "rademacher"])
def test_tensors_of_any_precision(dtype, kind, monkeypatch):
    """Half precision is float32's sum, rounded once, whatever the pieces that it is made by."""
    monkeypatch.setattr(updates_torch, "_AT_ONCE", 1 << 12)
    kind_of = getattr(torch, dtype)
    step = one_step(kind, 30_000, [0.3, -0.7])
    weight = torch.linspace(-1, 1, 10_000).to(kind_of).view(100, 100)
    wide = torch.float64 if dtype == "float64" else torch.float32
    expected = weight.to(wide, copy=True)
    step.add_to(expected.view(-1).numpy(), 777)
    out = torch.empty_like(weight)
    updates_torch.add_to(step, out, 777, weight)
    assert torch.equal(out, expected.to(kind_of))
    updates_torch.add_to(step, weight, 777)
    assert torch.equal(weight, out)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_devices_other_than_the_cpu_take_the_torch_generator(dtype, monkeypatch):
    """No such device is needed: what is done there is done here, and must make the same bits."""
    monkeypatch.setattr(updates_torch, "_AT_ONCE", 1 << 12)
    monkeypatch.setattr(updates_torch, "_ON_DEVICE", 1 << 12)
    monkeypatch.setattr(updates_torch, "has_kernels", lambda tensor: False)
    step = one_step("gaussian", 30_000, [0.3, -0.7])
    here = torch.linspace(-1, 1, 9000).to(getattr(torch, dtype))
    there = here.clone()
    updates_torch.add_to(step, there, 777)
    monkeypatch.undo()
    updates_torch.add_to(step, here, 777)
    assert torch.equal(here, there)


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11)])
def test_rounding_at_random_keeps_the_mean(dtype, bits):
    """Of n roundings of one number between two neighbours a and b the mean is that number.

    Its standard error is at most (b - a) / 2 sqrt(n). Both neighbours are used, and no other.
    """
    n, value = 40_000, 1 + 0.3 * 2.0 ** (1 - bits)
    base, out = torch.full((n,), value), torch.empty(n, dtype=dtype)
    for sign in (1, -1):
        updates_torch.add_to(None, out, 5, sign * base, Draws(1, Stream.NOISE))
        found, unit = out.double(), 2.0 ** (1 - bits)
        assert set(found.tolist()) == {sign * 1.0, sign * (1 + unit)}
        assert abs(found.mean() - sign * value) < 4 * unit / 2 / n**0.5


def test_points_of_an_estimate_differ_by_the_step_on_average():
    """A step of a tenth of bfloat16's unit: each number moves by a unit in one of ten cases.

    The difference of two points rounded with one address has the mean of the step, and a variance
    of p (1 - p) units^2. Rounding to the nearest moves either all numbers or none.
    """
    n, unit = 100_000, 2.0**-7
    at = Draws(0, Stream.DIRECTIONS)
    step = DirectionSum.of("rademacher", n, [at], np.array([[0.1 * unit]], np.float32))
    signs = torch.from_numpy(np.sign(np.asarray(step)))
    base = 1.1 + torch.rand(n, generator=torch.Generator().manual_seed(0)) / 3
    here, there = (torch.empty(n, dtype=torch.bfloat16) for _ in range(2))
    updates_torch.add_to(None, here, 0, base, at.on(Stream.NOISE))
    updates_torch.add_to(step, there, 0, base, at.on(Stream.NOISE))
    moved = (there.double() - here.double()) * signs / unit
    assert set(moved.tolist()) == {0.0, 1.0}
    assert abs(moved.mean() - 0.1) < 4 * (0.09 / n) ** 0.5


def test_rounding_belongs_to_places_of_the_vector():
    base, at = torch.rand(1000), Draws(3, Stream.NOISE)
    whole, part = torch.empty(1000, dtype=torch.bfloat16), torch.empty(300, dtype=torch.bfloat16)
    updates_torch.add_to(None, whole, 11, base, at)
    updates_torch.add_to(None, part, 11 + 333, base[333:633], at)
    assert torch.equal(part, whole[333:633])
