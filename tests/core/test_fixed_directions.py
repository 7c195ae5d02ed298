"""A fixed set of directions: the model is its start and K sums, and nothing else."""

import numpy as np
import pytest

import fedzo
from driving import begin, play, steps_of
from fedzo import server as steps
from fedzo.core.directions import KINDS, DirectionBuffer
from fedzo.core.engine import LocalEngine
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.problems import Quadratic, softmax
from raising import fails, rejects

K, B2 = 12, 3
PROBLEM = Quadratic(dim=300, devices=6)
NUMBERS = {"learning_rate": 0.01, "directions": B2, "local_steps": 2, "batch_size": 2}


def fixed(**settings):
    return fedzo.FedZO(**{**NUMBERS, "fixed_directions": K, **settings})


def run(algorithm, problem=PROBLEM, rounds=7, uplink=None, x0=None):
    """Return the states before and after each round, and what the devices answered."""
    uplink, states, answers = uplink or fedzo.Seeds(), [], []
    with LocalEngine(problem, seed=3) as federation:
        x0 = np.zeros(problem.dim) if x0 is None else x0
        state = begin(algorithm, x0, federation, uplink)
        states.append(state)
        for t in range(rounds):
            work = steps_of(algorithm, state.x, t, 3)
            devices = uplink.participants(t, algorithm.participants, federation)
            answers.append((work, [work.reply(problem, int(i)) for i in devices]))
            state, info = play(algorithm, t, state, federation, uplink)
            states.append(state)
    return states, answers, info


def directions(kind, dim, dtype, seed=3):
    """Return the rows of all K directions, drawn by a buffer, one group after the other."""
    buffer, rows = DirectionBuffer(kind, B2, dim, dtype), []
    for group in range(K // B2):
        buffer.draw(Draws(seed, Stream.DIRECTIONS, round=group, device=2**32 - 1))
        rows.append(buffer.rows.copy())
    return np.concatenate(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_model_is_its_start_and_a_sum_of_k_directions(kind, dtype):
    """x_T = x_0 + sum_j a_j g_j, with a_j the mean coefficients that were heard of g_j."""
    x0 = np.linspace(-1, 1, 300).astype(dtype)
    algorithm = fixed(direction_kind=kind, participants=4)
    states, answers, _ = run(algorithm, x0=x0)
    heard = np.zeros((K // B2, B2))
    for work, updates in answers:
        for update in updates:
            for k, own in enumerate(update.coefficients):
                at = Draws(3, Stream.CHOICES, work.round, update.device, k)
                heard[at.integers(K // B2, 1)[0]] += own.astype(float) / len(updates)
    x, start, sums = states[-1]
    assert x.dtype == sums.dtype == dtype
    assert np.array_equal(start, x0)
    tolerance = 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(sums, heard, atol=tolerance * np.abs(heard).max())
    rows = directions(kind, 300, dtype)
    np.testing.assert_allclose(x, x0 + heard.reshape(-1) @ rows, atol=20 * tolerance)
    assert np.linalg.matrix_rank(np.array([s.x - x0 for s in states[1:]], float), tol=1e-3) <= K


def test_no_more_than_k_directions_are_ever_drawn():
    """Whichever device, round and step: an address of the set, all of them about as often."""
    estimator = Estimator(smoothing=0.1, directions=B2, fixed=K)
    places = [
        estimator.address(Draws(3, Stream.DIRECTIONS, t, i, k))
        for t in range(20)
        for i in range(10)
        for k in range(10)
    ]
    counts = [places.count(place) for place in set(places)]
    assert len(counts) == K // B2
    assert max(abs(count - 500) for count in counts) < 4 * 500**0.5  # four deviations


def test_shared_and_fixed_directions_are_those_of_all_devices():
    algorithm = fixed(shared_directions=True)
    (*_, last), answers, _ = run(algorithm)
    work, updates = answers[-1]
    assert len({algorithm.estimator.address(work.draws(u.device)) for u in updates}) == 1
    rows = directions("sphere", 300, np.float64)
    np.testing.assert_allclose(last.x, last.sums.reshape(-1) @ rows, atol=1e-12)


@pytest.mark.parametrize("shared", [False, True])
def test_the_mean_of_the_paper_to_rounding(shared):
    """The ideal uplink adds whole updates along the same directions."""
    options = {"algorithm": fixed(shared_directions=shared, participants=3), "rounds": 20}
    ideal = fedzo.minimize(PROBLEM, uplink=fedzo.Ideal(), **options)
    seeds = fedzo.minimize(PROBLEM, uplink=fedzo.Seeds(), **options)
    np.testing.assert_allclose(seeds.last, ideal.last, atol=1e-12)
    assert np.abs(seeds.last).max() > 0.01


def test_the_compiled_step_draws_from_the_set():
    algorithm = fedzo.FedZO(directions=4, local_steps=3, fixed_directions=8)
    work = steps_of(algorithm, np.zeros(7850, np.float32), round=1, seed=4)
    update = work.reply(softmax(), 7)
    assert np.array_equal(work.rebuild(update), update.delta)


def test_bytes_down_are_bounded_by_k_numbers():
    """However long the run, and however long a device was away."""
    algorithm = fixed(participants=2)
    result = fedzo.minimize(
        PROBLEM,
        np.zeros(300),
        algorithm=algorithm,
        uplink=fedzo.Seeds(),
        rounds=60,
        evaluate_every=1,
    )
    down = np.diff([line["downlink_bytes"] for line in result.history])
    assert down.max() <= 2 * K * 8
    grown = fedzo.minimize(
        PROBLEM,
        np.zeros(300),
        algorithm=fedzo.FedZO(**NUMBERS, participants=2),
        uplink=fedzo.Seeds(),
        rounds=60,
        evaluate_every=1,
    )
    assert np.diff([line["downlink_bytes"] for line in grown.history]).max() > 2 * K * 8


def test_a_resumed_run_is_the_same(tmp_path):
    options = {"algorithm": fixed(participants=3), "uplink": fedzo.Seeds()}
    whole = fedzo.minimize(PROBLEM, rounds=9, **options)
    fedzo.minimize(PROBLEM, rounds=4, run_dir=tmp_path / "run", **options)
    resumed = fedzo.minimize(PROBLEM, rounds=9, run_dir=tmp_path / "run", resume=True, **options)
    assert np.array_equal(resumed.last, whole.last)


def test_a_round_that_nobody_answers_changes_nothing():
    class Silent(Quadratic):
        def batch(self, device, size, draws):
            if draws.round == 1:
                raise fedzo.errors.NoAnswer("away")
            return super().batch(device, size, draws)

    states = run_silent(Silent(dim=300, devices=6))
    assert np.array_equal(states[2].x, states[1].x)
    assert not np.array_equal(states[3].x, states[2].x)


def run_silent(problem):
    algorithm, uplink, states = fixed(), fedzo.Seeds(), []
    with LocalEngine(problem, seed=3) as federation:
        state = begin(algorithm, np.zeros(300), federation, uplink)
        for t in range(3):
            states.append(state)
            state, _ = play(algorithm, t, state, federation, uplink)
    return [*states, state]


def test_robust_seeds_add_up_their_centre():
    algorithm = fixed(shared_directions=True)
    (*_, last), _, _ = run(algorithm, uplink=fedzo.RobustSeeds("median"))
    rows = directions("sphere", 300, np.float64)
    np.testing.assert_allclose(last.x, last.sums.reshape(-1) @ rows, atol=1e-12)


@pytest.mark.parametrize("settings", [{"fixed_directions": 10}, {"fixed_directions": 0}])
def test_what_cannot_be_is_refused(settings):
    with rejects(*settings):
        fixed(**settings)


def test_the_server_must_be_the_mean_over_coefficients():
    with fails("not-mean"):
        run(fixed(server=steps.Adam()), rounds=1)
    run(fixed(server=steps.Adam()), rounds=1, uplink=fedzo.Ideal())
