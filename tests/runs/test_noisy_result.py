"""The value of a result is not a lucky one where evaluations are noisy."""

import numpy as np
import pytest

import fedzo

FEDZO = fedzo.FedZO(learning_rate=0.01, smoothing=0.1, directions=2, local_steps=1)


def run(level, seed, slope=0.0, **options):
    noise = np.random.default_rng(seed)

    def fun(x, device):
        return slope * float(np.sum((x - 1) ** 2)) + level * noise.normal()

    keywords = {"rounds": 30, "evaluate_every": 3, "workers": 1, "seed": seed, "algorithm": FEDZO}
    return fedzo.minimize(fun, np.zeros(3), devices=4, **keywords, **options)


def test_a_flat_noisy_function_is_rarely_a_success():
    """Each is one by chance with 2.5 %: more than 5 of 60 have a chance of 0.4 %."""
    results = [run(1.0, seed) for seed in range(60)]
    assert sum(result.success for result in results) <= 5


def test_the_value_is_unbiased():
    """The mean of 60 results of a standard error of 1 / sqrt(4 * 4) each, within 4 errors."""
    found = [result.fun for seed in range(60) if (result := run(1.0, seed)).best.round]
    assert abs(np.mean(found)) < 4 / 4 / np.sqrt(len(found))


def test_a_real_improvement_is_a_success():
    assert all(run(0.01, seed, slope=1.0).success for seed in range(10))


def test_an_exact_function_takes_no_further_evaluations():
    result = run(0.0, 0, slope=1.0)
    assert result.evaluation_queries == 11 * 4


def test_fresh_evaluations_count_and_keep_to_the_budget(tmp_path):
    result = run(1.0, 0)
    assert result.evaluation_queries == 11 * 4 + 8 * 4
    limited = run(1.0, 0, max_queries=result.queries + 11 * 4 + 3)
    assert limited.evaluation_queries == 11 * 4


@pytest.mark.parametrize("again", [1, 2])
def test_a_resume_of_a_finished_run_repeats_the_result(again, tmp_path):
    first = run(1.0, 3, run_dir=tmp_path / "run")
    for _ in range(again):  # another seed of the noise: nothing is asked
        other = run(1.0, 3, run_dir=tmp_path / "run", resume=True)
    assert (other.fun, other.success, other.nfev) == (first.fun, first.success, first.nfev)
