"""Algorithm 1: a round by hand, participation, weights, and what theory says of the end."""

import numpy as np
import pytest

import fedzo
from driving import begin, play, steps_of
from fedzo.core.directions import DirectionBuffer
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue
from fedzo.problems import Quadratic
from fedzo.uplinks import Ideal


def one_round(problem, algorithm, t=0, seed=3):
    with LocalEngine(problem, seed, 1) as federation:
        state = begin(algorithm, problem.initial(), federation, Ideal())
        state, info = play(algorithm, t, state, federation, Ideal())
        return state.x, info


@pytest.mark.parametrize("difference", ["forward", "central"])
@pytest.mark.parametrize("kind", ["sphere", "rademacher", "orthogonal"])
def test_a_round_written_out(difference, kind):
    """The paper's pseudocode with loops and eq. (2) to (6), against the real one."""
    problem = Quadratic(dim=6, devices=4, gradient_noise=0.5, dissimilarity=0.7)
    eta, mu, b1, b2, steps, seed, t = 0.05, 0.1, 3, 2, 4, 3, 7
    algorithm = fedzo.FedZO(
        learning_rate=eta,
        smoothing=mu,
        batch_size=b1,
        directions=b2,
        local_steps=steps,
        participants=3,
        direction_kind=kind,
        difference=difference,
    )
    x0 = problem.initial()
    chosen = Draws(seed, Stream.PARTICIPANTS, round=t).subset(4, 3)
    total = np.zeros(6)
    for i in chosen.tolist():
        x = x0.copy()
        for k in range(steps):
            batch = problem.batch(i, b1, Draws(seed, Stream.BATCHES, t, i, k))
            buffer = DirectionBuffer(kind, b2, 6, np.float64)
            buffer.draw(Draws(seed, Stream.DIRECTIONS, t, i, k))
            estimate = np.zeros(6)
            for v in buffer.vectors():
                ahead = problem.values((x + mu * v)[None], batch)[0]
                if difference == "forward":
                    slopes = (ahead - problem.values(x[None], batch)[0]) / mu
                else:
                    slopes = (ahead - problem.values((x - mu * v)[None], batch)[0]) / (2 * mu)
                estimate += 6 * v * slopes.sum() / (b1 * b2)
            x = x - eta * estimate
        total += x - x0
    got, info = one_round(problem, algorithm, t, seed)
    np.testing.assert_allclose(got, x0 + total / 3, rtol=1e-10)
    per_sample = b2 + 1 if difference == "forward" else 2 * b2
    assert info.queries == 3 * steps * b1 * per_sample
    assert info.uplink_bytes == info.downlink_bytes == 3 * 6 * 8


def test_reaches_a_quadratic_s_optimum():
    """No noise, no dissimilarity: plain descent, to rounding of the forward difference."""
    problem = Quadratic(dim=10, devices=4, condition=5.0, gradient_noise=0.0, dissimilarity=0.0)
    algorithm = fedzo.FedZO(
        learning_rate=0.2, smoothing=1e-6, directions=10, direction_kind="orthogonal", local_steps=5
    )
    result = fedzo.minimize(problem, algorithm=algorithm, rounds=60, workers=1)
    assert result.history[-1]["optimality_gap"] < 1e-9
    np.testing.assert_allclose(result.x, problem.optimum, atol=1e-4)


@pytest.mark.slow
def test_smaller_steps_end_nearer_with_noise():
    """With noise the end is a neighbourhood that shrinks in proportion to η: halve it, and
    the gap of the later half falls by a factor near two, here at least 1.5."""
    problem = Quadratic(dim=10, devices=4, condition=2.0, gradient_noise=1.0, dissimilarity=0.0)
    gaps = []
    for rate in (0.02, 0.01):
        algorithm = fedzo.FedZO(
            learning_rate=rate, directions=5, batch_size=1, local_steps=1, smoothing=1e-4
        )
        result = fedzo.minimize(problem, algorithm=algorithm, rounds=3000, workers=1)
        late = [r["optimality_gap"] for r in result.history if r["round"] > 1500]
        gaps.append(np.mean(late))
    assert gaps[0] / gaps[1] > 1.5


def test_weighting_by_size():
    """Two devices with 1 and 3 samples: the second's update counts three times."""

    class Sized(fedzo.Objective):
        dim, devices = 1, 2

        def batch(self, device, size, draws):
            return device

        def values(self, points, batch):
            return points * (1.0 if batch == 0 else -5.0)  # slopes 1 and -5

        def losses(self, x, devices):
            return np.zeros(len(devices))

        def size(self, device):
            return (1, 3)[device]

    def end(weighting):
        algorithm = fedzo.FedZO(
            learning_rate=1.0, directions=1, local_steps=1, batch_size=1, weighting=weighting
        )
        return fedzo.minimize(Sized(), np.zeros(1), algorithm=algorithm, rounds=1).last[0]

    assert end("uniform") == pytest.approx((-1 + 5) / 2)
    assert end("size") == pytest.approx((-1 + 3 * 5) / 4)


def test_weighting_by_size_needs_sizes():
    with pytest.raises(InvalidValue, match="weighting"):
        fedzo.minimize(
            lambda x, i: 0.0, np.zeros(2), devices=2, algorithm=fedzo.FedZO(weighting="size")
        )


def test_participants_are_uniform_over_rounds():
    """Each of 10 devices is in 3/10 of 4000 rounds: binomial, 5 standard deviations."""
    federation = LocalEngine(Quadratic(dim=2, devices=10), seed=8)
    counts = np.zeros(10)
    for t in range(4000):
        chosen = Ideal().participants(t, 3, federation)
        assert len(set(chosen.tolist())) == 3
        counts[chosen] += 1
    assert np.abs(counts - 1200).max() < 5 * np.sqrt(4000 * 0.3 * 0.7)


def test_everyone_takes_part_by_default():
    federation = LocalEngine(Quadratic(dim=2, devices=10), seed=8)
    assert Ideal().participants(0, None, federation).tolist() == list(range(10))


def test_small_updates_are_not_lost_in_a_large_model():
    """Δ is summed by itself: steps of 2^-30 on a float32 model at 1.0 survive to the update."""

    class Slope(fedzo.Objective):
        dim, devices = 1, 1

        def batch(self, device, size, draws):
            return None

        def values_along(self, x, directions, rows, steps, batch):
            return (steps * directions[rows, 0])[:, None].astype(np.float64)

        def values(self, points, batch):
            raise AssertionError

        def losses(self, x, devices):
            return np.zeros(1)

    algorithm = fedzo.FedZO(learning_rate=2.0**-30, directions=1, local_steps=4, batch_size=1)
    x = np.ones(1, np.float32)
    update = steps_of(algorithm, x, round=0, seed=0).reply(Slope(), 0)
    assert update.delta[0] == pytest.approx(-4 * 2.0**-30)


@pytest.mark.parametrize(
    "bad",
    [
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"batch_size": 0},
        {"local_steps": 0},
        {"participants": 0},
        {"smoothing": 0.0},
        {"directions": 0},
        {"directions": 2.5},
        {"local_steps": 1.5},
        {"direction_kind": "cube"},
        {"difference": "both"},
        {"weighting": "loudness"},
    ],
)
def test_impossible_settings_name_the_key(bad):
    with pytest.raises(InvalidValue, match=next(iter(bad))):
        fedzo.FedZO(**bad)
