"""Philox against its published answers; the shapes of the distributions drawn from it."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit, uint64
from scipy import stats

from fedzo.core.random import Draws, Stream, circle, exponential, fill_normals, philox
from raising import rejects

HERE = Draws(seed=11, stream=Stream.DIRECTIONS, round=3, device=5, step=2)


@njit
def _philox_words(counter, key):
    words = philox(
        uint64(counter[0]),
        uint64(counter[1]),
        uint64(counter[2]),
        uint64(counter[3]),
        uint64(key[0]),
        uint64(key[1]),
    )
    return [word & uint64(0xFFFFFFFF) for word in words]


ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES,) * 4, (ONES,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers(counter, key, answer):
    """The vectors published with Random123 (Salmon et al. 2011)."""
    words = _philox_words(np.array(counter, np.uint64), np.array(key, np.uint64))
    assert " ".join(f"{word:08x}" for word in words) == answer


def test_words_are_the_known_answers_too():
    """Address 0 with stream 0 is counter 0 and key 0: the whole path from address to words."""
    words = Draws(0, 0).words(4)
    assert [f"{word:08x}" for word in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def test_address_packs_without_overlap():
    """seed -> key, (step, stream, device, round) -> counter, each in bits of its own."""
    draws = Draws(seed=0xFEDCBA9876543210, stream=Stream.NOISE, round=7, device=9, step=0xABCDEF)
    assert draws.address() == (0x76543210, 0xFEDCBA98, 0xABCDEF << 8 | 8, 9, 7)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**64 - 1),
            st.sampled_from(list(Stream)),
            st.integers(0, 2**26 - 1),
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**24 - 1),
            st.integers(0, 2**6 - 1),
        ),
        min_size=2,
        max_size=2,
        unique=True,
    )
)
def test_different_addresses_are_different(pair):
    first, second = (Draws(*address).address() for address in pair)
    assert first != second


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", -1), ("seed", 2**64), ("round", 2**32), ("device", -3), ("step", 2**24)],
)
def test_addresses_out_of_range_are_refused(field, value):
    with rejects(field):
        HERE._replace(**{field: value}).words(1)


@pytest.mark.parametrize("field", ["seed", "stream", "round", "device", "step"])
def test_every_part_of_the_address_matters(field):
    other = HERE._replace(**{field: Stream.BATCHES if field == "stream" else 77})
    assert not np.array_equal(HERE.normals(100), other.normals(100))


def test_global_generators_are_left_alone():
    np.random.seed(5)  # noqa: NPY002 - the point is the global generator
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    HERE.normals(10), HERE.uniform(10), HERE.subset(9, 3), HERE.integers(5, 5)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


N = 10_000_000


@pytest.fixture(scope="module")
def normals():
    return HERE.normals(40, N // 40, dtype=np.float32).reshape(-1).astype(np.float64)


def test_moments_of_normals(normals):
    """The k-th sample moment lies within 5 standard errors, sqrt((E z^2k - (E z^k)^2) / n)."""
    even = {0: 1.0, 2: 1.0, 4: 3.0, 6: 15.0, 8: 105.0, 10: 945.0, 12: 10395.0}
    for k in range(1, 7):
        expected = even.get(k, 0.0)
        error = math.sqrt((even[2 * k] - expected**2) / N)
        assert abs(np.mean(normals**k) - expected) < 5 * error


def test_normals_pass_kolmogorov_and_smirnov(normals):
    """p > 1e-4: a right generator fails this fixed-seed test once in 10,000 choices of seed."""
    assert stats.kstest(normals, "norm").pvalue > 1e-4


@pytest.mark.parametrize("sigma", [2.0, 3.0, 4.0, 5.0])
def test_tails_of_normals(normals, sigma):
    """How many exceed sigma is Poisson to good measure: within 5 standard deviations."""
    for tail in (np.count_nonzero(normals > sigma), np.count_nonzero(normals < -sigma)):
        expected = N * stats.norm.sf(sigma)
        assert abs(tail - expected) < 5 * math.sqrt(expected)
    assert np.abs(normals).max() < 6.9  # sqrt(2 * 33 ln 2) is the most a length can be


def test_the_two_numbers_of_a_pair_are_independent():
    """Of a tile of 256, entries j and 128 + j share a length; all mixed moments are products.

    Checked: E[u^a v^b] for a, b <= 4, within 5 standard errors.
    """
    tiles = HERE.normals(20_000, 256)
    u, v = tiles[:, :128].reshape(-1), tiles[:, 128:].reshape(-1)
    moment = [1, 0, 1, 0, 3, 0, 15, 0, 105]
    for a in range(1, 5):
        for b in range(1, 5):
            expected = moment[a] * moment[b]
            error = math.sqrt((moment[2 * a] * moment[2 * b] - expected**2) / u.size)
            assert abs(np.mean(u**a * v**b) - expected) < 5 * error


def test_neighbours_are_uncorrelated():
    """Lags 1, 2, 16 and 64 within a row, and row to row: |r| < 5 / sqrt(n)."""
    rows = HERE.normals(64, 50_000)
    for lag in (1, 2, 16, 64, 128):
        r = np.mean(rows[:, lag:] * rows[:, :-lag])
        assert abs(r) < 5 / math.sqrt(rows[:, lag:].size)
    assert abs(np.mean(rows[1:] * rows[:-1])) < 5 / math.sqrt(rows[1:].size)


@pytest.mark.parametrize("dim", [1, 3, 255, 256, 257, 512, 7850])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_norms_and_rows(dim, dtype):
    rows = np.full((5, dim), np.nan, dtype)
    squares = fill_normals(rows, HERE)
    exact = np.sum(rows.astype(np.float64) ** 2, axis=1)
    # Sums of up to 256 squares in the rows' precision, then float64: a few roundings.
    np.testing.assert_allclose(squares, exact, rtol=20 * np.finfo(dtype).eps)
    # A longer row begins like a shorter one only tile by tile, but rows never depend on count.
    alone = np.empty((1, dim), dtype)
    fill_normals(alone, HERE)
    assert np.array_equal(alone[0], rows[0])


@pytest.mark.parametrize("dim", [100, 255, 256, 700])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_do_not_depend_on_where_the_memory_lies(dim, dtype):
    """Sums of floats depend on their order, and compilers like to pick it by alignment."""
    seen, kept = set(), []
    for offset in range(150):
        kept.append(np.empty(17 * offset % 200 + 1))  # so that the next scratch lies elsewhere
        memory = np.empty(4 * dim + 64, dtype)
        rows = memory[offset % 50 : offset % 50 + 4 * dim].reshape(4, dim)
        seen.add(fill_normals(rows, HERE).tobytes() + rows.tobytes())
    assert len(seen) == 1


def test_both_precisions_are_the_same_numbers():
    assert np.array_equal(HERE.normals(3, 1000, dtype=np.float32), HERE.normals(3, 1000))


def test_integers_are_uniform():
    """Chi-square over 12 cells on 120,000 draws; p > 1e-4 as above."""
    counts = np.bincount(HERE.integers(12, 120_000), minlength=12)
    assert counts.size == 12
    assert stats.chisquare(counts).pvalue > 1e-4


def test_uniform_has_all_its_bits():
    u = HERE.uniform(200_000)
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-4
    low_bits = (u * 2**53).astype(np.int64) & 0xFF
    assert stats.chisquare(np.bincount(low_bits, minlength=256)).pvalue > 1e-4


@given(st.integers(1, 60), st.data())
def test_subsets_are_sorted_and_distinct(population, data):
    size = data.draw(st.integers(0, population))
    chosen = HERE._replace(round=data.draw(st.integers(0, 1000))).subset(population, size)
    assert chosen.size == size
    assert np.all(np.diff(chosen) > 0)
    assert size == 0 or (chosen[0] >= 0 and chosen[-1] < population)


def test_subsets_are_uniform():
    """All 10 subsets of 2 out of 5 come equally often: chi-square on 20,000, p > 1e-4."""
    seen: dict[tuple[int, ...], int] = {}
    for t in range(20_000):
        key = tuple(HERE._replace(round=t).subset(5, 2).tolist())
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 10
    assert stats.chisquare(list(seen.values())).pvalue > 1e-4


def test_a_subset_of_a_huge_population_is_cheap():
    """Time and memory do not grow with the population: 2^50 would not fit anywhere."""
    assert HERE.subset(2**50, 20).size == 20


def test_permutations_are_uniform():
    seen: dict[tuple[int, ...], int] = {}
    for t in range(12_000):
        key = tuple(HERE._replace(round=t).permutation(3).tolist())
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 6
    assert stats.chisquare(list(seen.values())).pvalue > 1e-4


def test_too_many_numbers_for_one_address_are_refused():
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2**32, 2**15), (0, 0))
    with rejects("directions x dim"):
        fill_normals(huge, HERE)


@njit
def _each(function, inputs, out):
    for i in range(inputs.size):
        out[i] = function(inputs[i])


def test_exponential():
    """-2 ln((w + 1/2) / 2^32): words near both ends, powers of two, and all in between."""
    words = np.unique(
        np.concatenate(
            [
                np.arange(1000),
                2**32 - 1 - np.arange(1000),
                2 ** np.arange(32),
                np.linspace(0, 2**32 - 1, 200_001).astype(np.int64),
            ]
        )
    ).astype(np.uint32)
    out = np.empty(words.size, np.float32)
    _each(exponential, words, out)
    # The kernel rounds (w + 1/2) / 2^32 to float32 first; that is part of its argument.
    factor = np.float32(2.0**-32 * (1 - 2.0**-24))
    x = words.astype(np.float32) * factor + np.float32(2.0**-33)
    assert x.max() < 1
    exact = -2 * np.log(x.astype(np.float64))
    assert np.all(out > 0)
    np.testing.assert_allclose(out, exact, rtol=6e-7, atol=0)


def test_circle():
    """All 2^16 points: on the circle, evenly spaced, moments of the circle exact."""

    @njit
    def points(out):
        for w in range(-32768, 32768):
            out[w + 32768] = circle(np.int16(w))

    out = np.empty((65536, 2))
    points(out)
    sine, cosine = out.T
    np.testing.assert_allclose(sine**2 + cosine**2, 1, atol=4e-7)
    angles = np.sort(np.arctan2(sine, cosine))
    np.testing.assert_allclose(np.diff(angles), 2 * math.pi / 65536, atol=1e-6)
    for k in (2, 4, 6, 8):
        assert np.mean(cosine**k) == pytest.approx(math.comb(k, k // 2) / 2**k, abs=1e-7)
        assert np.mean(sine**k) == pytest.approx(math.comb(k, k // 2) / 2**k, abs=1e-7)
    for k in (1, 3, 5):
        assert abs(np.mean(cosine**k)) < 1e-7
        assert abs(np.mean(sine**k)) < 1e-7


RUN_AND_COUNT = """
import sys
import fedzo
from fedzo.problems import softmax
fedzo.minimize(softmax(devices=5), rounds=1, algorithm=fedzo.FedZO(directions=2))
print(sum(
    sum(kernel.stats.cache_misses.values())
    for name, module in list(sys.modules.items()) if name.startswith("fedzo")
    for kernel in vars(module).values() if hasattr(kernel, "stats")
))
"""


@pytest.mark.slow
def test_the_second_start_compiles_nothing(tmp_path):
    """Kernels are cached on disk: a new process finds all of them there."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    misses = [
        int(
            subprocess.run(
                [sys.executable, "-c", RUN_AND_COUNT],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for _ in range(2)
    ]
    assert misses[0] > 0
    assert misses[1] == 0
