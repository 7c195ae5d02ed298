"""The numba pieces: exact enough, and compiled once."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from fedzo.core.simd import circle, exp, exponential


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
    exact_x = words.astype(np.float32).astype(np.float64) * factor + 2.0**-33
    x = exact_x.astype(np.float32)  # one rounding: the kernel's is a fused product and sum
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


def test_exp():
    x = np.concatenate([-np.logspace(-18, np.log10(699), 20_001), [0.0, -0.0]])
    out = np.empty(x.size)
    _each(exp, x, out)
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-15)
    for value, expected in ((-1e6, math.exp(-700)), (-math.inf, math.exp(-700))):
        _each(exp, np.array([value]), out)
        assert out[0] == pytest.approx(expected)
    _each(exp, np.array([math.nan]), out)
    assert math.isnan(out[0])


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
