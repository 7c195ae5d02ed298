"""Splits: what holds for every one, what each kind promises, and the laws it draws from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats

from fedzo.core.random import Draws, Stream
from fedzo.data import partition
from fedzo.data.splits import KINDS, _log_gammas, _random_sizes
from raising import rejects

HERE = Draws(seed=0, stream=Stream.PARTITION)
BALANCED = np.arange(60_000) * 7 % 10  # labels in no particular order, 6,000 of each


def fresh(seed: int = 0) -> itertools.chain[Draws]:
    return itertools.chain(HERE._replace(seed=seed, step=step) for step in itertools.count())


def counts(parts: list[NDArray[np.int64]], labels: NDArray[np.int64] = BALANCED) -> NDArray:
    return np.stack([np.bincount(labels[part], minlength=10) for part in parts])


# ---- every kind


@settings(deadline=None)  # the first draw compiles
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=80),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**64 - 1),
    concentration=st.sampled_from([1e-6, 0.01, 0.5, 3.0, 1e6]),
    data=st.data(),
)
def test_every_sample_goes_to_one_device_and_no_device_goes_without(
    labels: list[int], kind: str, seed: int, concentration: float, data: st.DataObject
) -> None:
    devices = data.draw(st.integers(1, len(labels)))
    shards = data.draw(st.integers(1, len(labels) // devices))

    def split() -> list[NDArray[np.int64]]:
        return partition(
            labels, devices, kind, seed, shards_per_device=shards, concentration=concentration
        )

    parts = split()
    assert len(parts) == devices
    assert all(part.dtype == np.int64 and len(part) >= 1 for part in parts)
    assert all(np.all(np.diff(part) > 0) for part in parts)  # sorted
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    sizes = [len(part) for part in parts]
    if kind in ("iid", "dirichlet"):
        assert max(sizes) - min(sizes) <= 1
    if kind == "shards":
        assert max(sizes) - min(sizes) <= shards  # each shard one more at most
    assert all(np.array_equal(a, b) for a, b in zip(parts, split(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_is_what_the_split_depends_on(kind: str) -> None:
    def owners(seed: int) -> list[list[int]]:
        return [part.tolist() for part in partition(BALANCED[:500], 10, kind, seed)]

    assert owners(0) == owners(0)
    assert owners(0) != owners(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("devices", [-1, 0, 6])
def test_impossible_number_of_devices(kind: str, devices: int) -> None:
    with rejects("devices"):
        partition([0, 1, 0, 1, 1], devices, kind)


def test_impossible_settings() -> None:
    with rejects("partition"):
        partition([0, 1], 1, "shard")
    for shards in (0, 3):
        with rejects("shards_per_device"):
            partition([0, 1, 0, 1, 1], 2, "shards", shards_per_device=shards)
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with rejects("concentration"):
            partition([0, 1], 1, "dirichlet", concentration=alpha)


# ---- shards


def test_the_papers_split() -> None:
    """Two of 100 shards of 600 on each of 50 devices: Sec. V-B's."""
    parts = partition(BALANCED, 50, "shards")
    assert {len(part) for part in parts} == {1_200}
    by_label = np.argsort(BALANCED, kind="stable").reshape(100, 600)
    shard_of = np.empty(60_000, np.int64)
    shard_of[by_label] = np.arange(100)[:, None]
    dealt = [np.unique(shard_of[part], return_counts=True) for part in parts]
    assert all(sizes.tolist() == [600, 600] for _, sizes in dealt)
    assert sorted(itertools.chain(*(shards.tolist() for shards, _ in dealt))) == list(range(100))
    assert max(np.count_nonzero(row) for row in counts(parts)) == 2


def test_shards_that_do_not_come_out_even() -> None:
    labels = np.array([1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1])  # 11 samples, 4 shards of 3, 3, 3, 2
    parts = partition(labels, 4, "shards", shards_per_device=1)
    whole = {tuple(part.tolist()) for part in parts}
    assert whole == {(1, 3, 5), (0, 7, 9), (2, 4, 6), (8, 10)}


def test_every_shard_goes_everywhere_equally_often() -> None:
    labels = np.arange(8)
    owner = np.zeros((8, 4))
    for seed in range(4_000):
        for device, part in enumerate(partition(labels, 4, "shards", seed)):
            owner[part, device] += 1
    assert np.all(np.abs(owner - 1_000) < 5 * np.sqrt(4_000 * 0.25 * 0.75))  # five deviations


# ---- iid and sizes


def test_iid_is_hypergeometric() -> None:
    """In each of 1,000 devices of 60, the number of a class is nearly binomial(60, 1/10)."""
    table = counts(partition(BALANCED, 1_000, "iid"))
    variance = 60 * 0.1 * 0.9 * (60_000 - 60) / (60_000 - 1)
    assert table.mean() == 6
    assert table.var() == pytest.approx(variance, rel=0.07)  # 5 deviations of 10^4 counts


def test_sizes_are_uniform_over_compositions() -> None:
    """5 = a + b + c has six solutions with whole numbers >= 1."""
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(6_000):
        sizes = tuple(_random_sizes(5, 3, fresh(seed)).tolist())
        seen[sizes] = seen.get(sizes, 0) + 1
    assert set(seen) == {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    assert stats.chisquare(list(seen.values())).pvalue > 1e-4


def test_sizes_vary_and_the_samples_are_at_random() -> None:
    parts = partition(BALANCED, 100, "sizes")
    sizes = np.array([len(part) for part in parts])
    # Uniform spacings: nearly exponential of mean 600.
    assert stats.kstest(sizes, "expon", args=(0, 600)).pvalue > 1e-4
    largest = parts[int(sizes.argmax())]
    assert stats.chisquare(np.bincount(BALANCED[largest], minlength=10)).pvalue > 1e-4


# ---- dirichlet


@pytest.mark.parametrize("shape", [0.05, 0.5, 1.0, 7.3, 1e4])
def test_gamma_draws_follow_their_law(shape: float) -> None:
    n = 200_000
    log_g = _log_gammas(np.full(n, shape), fresh())
    g = np.exp(log_g)
    # Closed forms, each to five standard errors of its estimate.
    assert g.mean() == pytest.approx(shape, abs=5 * np.sqrt(shape / n))
    assert g.var() == pytest.approx(shape, abs=5 * np.sqrt((2 * shape**2 + 6 * shape) / n))
    spread = np.sqrt(special.polygamma(1, shape) / n)
    assert log_g.mean() == pytest.approx(special.digamma(shape), abs=5 * spread)
    assert stats.kstest(g, "gamma", args=(shape,)).pvalue > 1e-4


def test_mixtures_have_the_moments_of_dirichlet() -> None:
    a = np.array([0.1, 0.5, 2.0, 0.4])
    n, total = 100_000, a.sum()
    g = np.exp(_log_gammas(np.tile(a, (n, 1)), fresh()))
    q = g / g.sum(axis=1, keepdims=True)
    variance = a * (total - a) / (total**2 * (total + 1))
    assert np.all(np.abs(q.mean(axis=0) - a / total) < 5 * np.sqrt(variance / n))
    assert q.var(axis=0) == pytest.approx(variance, rel=0.03)
    covariance = -a[0] * a[2] / (total**2 * (total + 1))
    assert np.cov(q[:, 0], q[:, 2])[0, 1] == pytest.approx(covariance, rel=0.05)


@pytest.mark.parametrize(("alpha", "tolerance"), [(0.05, 0.04), (0.5, 0.022), (10.0, 0.0045)])
def test_devices_are_as_mixed_as_the_concentration_says(alpha: float, tolerance: float) -> None:
    """Two samples of a device have one class with probability E[sum q^2] = (1 + α) / (1 + 10 α).

    The tolerance is five deviations of the mean over 1,000 devices (0.007, 0.0034 and 0.0006,
    over 150 seeds) and what the leftovers of those served last add (0.004, 0.005 and 0.0015).
    """
    table = counts(partition(BALANCED, 1_000, "dirichlet", concentration=alpha))
    same = np.mean(np.sum(table * (table - 1), axis=1) / (60 * 59))
    assert same == pytest.approx((1 + alpha) / (1 + 10 * alpha), abs=tolerance)


def test_mixtures_follow_the_classes_of_the_whole() -> None:
    """Rare classes are rare on (nearly) every device where the concentration is large."""
    labels = np.repeat(np.arange(10), [27_000, 15_000, 12_000, 600, 900, 900, 900, 900, 900, 900])
    table = counts(partition(labels, 10, "dirichlet", concentration=1e6), labels)
    expected = np.bincount(labels) / 10
    # Who is served last has what nine draws left over: three times the deviation of one.
    assert np.all(np.abs(table - expected) < 5 * 3 * np.sqrt(expected))


def test_which_of_a_class_is_at_random() -> None:
    """A device's samples of a class are spread over all of that class."""
    parts = partition(BALANCED, 10, "dirichlet", concentration=0.5)
    assert all(stats.kstest(part / 60_000, "uniform").pvalue > 1e-4 for part in parts)


def test_tiny_concentration_gives_one_class_to_a_device() -> None:
    """Ten devices fill a class exactly, so who comes too late for one has all of another."""
    table = counts(partition(BALANCED, 100, "dirichlet", concentration=1e-6))
    assert table.max(axis=1).tolist() == [600] * 100
    assert table.sum(axis=0).tolist() == [6_000] * 10
