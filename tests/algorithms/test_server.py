"""Server optimizers against rounds worked out by hand, and runs of each over all uplinks."""

import dataclasses
import inspect
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedzo
from conformance import CHECKS, check_docstring
from driving import begin, play, steps_of
from fedzo.algorithms.fedzo import State
from fedzo.algorithms.server.halving import FIRST, Halving, cost, stages
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Update
from fedzo.core.updates import UpdateMean
from fedzo.core.waves import pattern, plane_waves
from fedzo.problems import FunctionObjective, Quadratic
from fedzo.runs import describe_parts, flatten, make_parts, unflatten
from fedzo.runs.registry import SERVER_OPTIMIZERS, UPLINKS
from fedzo.server import (
    Adagrad,
    Adam,
    FourierSign,
    Mean,
    Momentum,
    Normalised,
    SignMomentum,
    Yogi,
)
from raising import fails, rejects

ROUNDS_OF_FEDZO = [check for check in CHECKS if check is not check_docstring]


def follow(step, updates):
    x = np.zeros(len(updates[0]))
    kept = step.init(x)
    for t, delta in enumerate(updates):
        x, kept = step.apply(t, kept, x, np.array(delta))
    return x


def test_momentum_adds_up_to_the_geometric_sum():
    x = follow(Momentum(learning_rate=0.5, beta=0.5), [[1.0]] * 3)
    # m = 1, 1.5, 1.75
    assert x == pytest.approx([0.5 * (1 + 1.5 + 1.75)])


def test_two_rounds_of_adam():
    x = follow(Adam(learning_rate=0.1, beta1=0.5, beta2=0.75), [[2.0], [-1.0]])
    m, v = 0.5 * (0.5 * 2) + 0.5 * -1, 0.75 * (0.25 * 4) + 0.25 * 1
    second = 0.1 * (m / 0.75) / np.sqrt(v / (1 - 0.75**2))
    assert x == pytest.approx([0.1 + second])


def test_two_rounds_of_yogi():
    x = follow(Yogi(learning_rate=0.1, beta1=0.0, beta2=0.75), [[2.0], [0.5]])
    v = 1.0 - 0.25 * 0.25  # 0 + 0.25 * 4, and then less, for 0.25 < 1
    assert x == pytest.approx([0.1 + 0.1 * 0.5 / np.sqrt(v / (1 - 0.75**2))])


def test_adagrad_shortens_equal_updates_by_the_root_of_the_round():
    x = follow(Adagrad(learning_rate=1.0, beta1=0.0), [[7.0]] * 4)
    assert x == pytest.approx([1 + 2**-0.5 + 3**-0.5 + 0.5])


def test_signs_of_the_momentum_in_steps_that_shrink_geometrically_and_then_stay():
    step = SignMomentum(learning_rate=0.8, last_learning_rate=0.1, beta=0.5, rounds=3)
    x = follow(step, [[4.0, -1.0], [-1.0, 0.25], [-2.0, 0.25], [-1.0, 0.0], [0.0, 0.0]])
    # m = 4, 1, -1.5, ... and -1, -0.25, 0.125, ...; the rates are 0.8, 0.4, 0.2, 0.1, 0.1
    assert x == pytest.approx([0.8 + 0.4 - 0.2 - 0.2, -0.8 - 0.4 + 0.2 + 0.2])


def test_fourier_sign_of_another_shape_are_refused():
    with rejects("server.shape"):
        FourierSign(shape=(3, 4, 4), patterns=2).init(np.zeros(50))


def test_fourier_sign_without_a_shape_are_signs_of_the_momentum():
    deltas = np.random.default_rng(0).standard_normal((9, 4))
    settings = {"learning_rate": 0.8, "last_learning_rate": 0.1, "beta": 0.5, "rounds": 5}
    assert follow(FourierSign(**settings), deltas) == pytest.approx(
        follow(SignMomentum(**settings), deltas)
    )


WAVES = FourierSign(shape=(8, 8), divisions=2, amplitude=3.0, learning_rate=0.01)
FROM_WAVES = fedzo.FedZO(directions=2, local_steps=1, server=WAVES)


def far_from(point):
    return FunctionObjective(lambda x, device: np.sum((x - point) ** 2), 64, devices=4)


def test_steps_begin_at_the_wave_that_wins():
    """Ten waves and none: eleven, three and one of them are left."""
    wanted = 3.0 * plane_waves((8, 8), 2)[6]
    result = fedzo.minimize(far_from(wanted), algorithm=FROM_WAVES, rounds=3, evaluate_every=1)
    lengths = [record["train_loss"] for record in result.history]
    assert lengths[:3] == pytest.approx([np.sum(wanted**2), np.sum(wanted**2), 0.0])
    # Four devices with three samples each, and with five: of a function one query each.
    assert [record["queries"] for record in result.history][:3] == [0, 11 * 4, (11 + 3) * 4]
    assert [record["downlink_bytes"] for record in result.history][:3] == [
        0,
        11 * 64 * 4 * 4,
        (11 + 3) * 64 * 4 * 4,
    ]
    assert np.abs(result.last - wanted) == pytest.approx(WAVES.learning_rate_at(2), rel=1e-4)


def test_where_no_wave_is_better_than_none_steps_begin_at_x():
    start = np.full(64, 1e-3)
    result = fedzo.minimize(far_from(0.0), start, algorithm=FROM_WAVES, rounds=2, evaluate_every=1)
    assert result.last == pytest.approx(np.zeros(64))  # no wave at all was among them


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_halving_that_was_stopped_goes_on(tmp_path, rounds):
    def run(rounds, **where):
        problem = Quadratic(dim=64, devices=4, gradient_noise=0.5)
        return fedzo.minimize(problem, algorithm=FROM_WAVES, rounds=rounds, **where)

    run(rounds, run_dir=tmp_path)
    resumed = run(5, run_dir=tmp_path, resume=True)
    assert resumed.last.tobytes() == run(5).last.tobytes()


SAMPLED = FourierSign(shape=(8, 8), patterns=20, sampled=10, amplitude=1.0)


@pytest.mark.parametrize("shape", [(8, 8), (64,), (4, 4, 4)])
def test_sampled_perturbations_lead_to_a_pattern(shape):
    """Signs of 64 numbers are found, which no start has."""
    wanted = np.where(np.random.default_rng(1).random(64) < 0.5, -1.0, 1.0)
    problem = FunctionObjective(lambda x, device: np.sum((x - wanted) ** 2), 64, devices=2)
    server = dataclasses.replace(SAMPLED, shape=shape)
    result = fedzo.minimize(
        problem, algorithm=fedzo.FedZO(server=server), rounds=103, evaluate_every=50
    )
    losses = [record["train_loss"] for record in result.history]
    assert losses[-1] < 4 * 64 * 0.1  # at random half of the signs are right
    rounds = [record["round"] for record in result.history]
    assert server.first_step == 3 in rounds  # the winner is evaluated


@pytest.mark.parametrize(
    ("t", "sure", "anew"), [(6, 3.0, True), (6, 0.1, False), (5, 3.0, False), (3, 3.0, False)]
)
def test_sampling_begins_anew_only_where_it_is_sure(t, sure, anew):
    server = dataclasses.replace(SAMPLED, restart=3)
    state = (np.full(64, sure), np.ones(64), *Halving.of(server.starts))
    after = server.restarted(t, state)
    for old, new, cleared in zip(state, after, (anew, anew, False, False), strict=True):
        np.testing.assert_array_equal(new, np.zeros(64) if cleared else old)
    assert dataclasses.replace(server, restart=0).restarted(t, state) is state


def test_restarts_leave_a_local_optimum():
    """Two basins, the nearer one worse: of several beginnings more reach the better one."""
    rng = np.random.default_rng(5)
    a, b = np.where(rng.random((2, 64)) < 0.5, -1.0, 1.0)
    problem = FunctionObjective(
        lambda x, device: -max(np.maximum(x @ a, 0) ** 2, 1.2 * np.maximum(x @ b, 0) ** 2) / 64,
        64,
        devices=2,
    )

    def best(seed, restart):
        server = dataclasses.replace(SAMPLED, restart=restart)
        result = fedzo.minimize(
            problem, algorithm=fedzo.FedZO(server=server), rounds=241, evaluate_every=40, seed=seed
        )
        return result.fun

    seeds = range(8)
    assert sum(best(s, 40) for s in seeds) < sum(best(s, 0) for s in seeds) - 8


@pytest.mark.parametrize("stop", [2, 3, 7])
@pytest.mark.parametrize("restart", [0, 4])
def test_sampling_that_was_stopped_goes_on(tmp_path, stop, restart):
    def run(rounds, **where):
        problem = Quadratic(dim=64, devices=4, gradient_noise=0.5)
        algorithm = fedzo.FedZO(server=dataclasses.replace(SAMPLED, restart=restart))
        return fedzo.minimize(problem, algorithm=algorithm, rounds=rounds, **where)

    run(stop, run_dir=tmp_path)
    resumed = run(9, run_dir=tmp_path, resume=True)
    assert resumed.last.tobytes() == run(9).last.tobytes()


def test_patterns_are_signs():
    for number, shape in itertools.product(range(6), [(3, 9, 12), (9, 12, 3), (10, 7), (30,)]):
        signs = pattern(shape, number, Draws(number, Stream.SEARCH, 0, 0, 2 * number))
        assert set(signs) <= {-1.0, 1.0}


def test_halving_needs_an_uplink_that_takes_values():
    for uplink in (fedzo.Seeds(), fedzo.AirComp()):
        with fails("no-values"):
            fedzo.minimize(far_from(0.0), algorithm=FROM_WAVES, uplink=uplink, rounds=1)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40, unique=True))
def test_the_lowest_of_values_without_noise_wins(values):
    halving, values, asked = Halving.of(len(values)), np.array(values), 0
    while halving.winner is None:
        asked += len(halving.left) * FIRST * halving.growth
        halving = halving.after(values[halving.left])
    assert halving.winner == np.argmin(values)
    assert int(halving.stage[0]) == stages(len(values))
    assert asked == cost(len(values), devices=1)


def test_what_is_not_finite_loses_and_silence_does_not_count():
    halving = Halving.of(5).after(np.array([np.nan, 3.0, 1.0, 2.0, np.inf]))
    assert halving.left.tolist() == [2, 3]
    assert halving.after(np.full(2, np.nan)) is halving


def test_normalised_steps_are_fzoo_where_directions_are_orthogonal():
    """FZOO: x - η g / σ, σ the spread of the losses around the one at x, g = mean (l_n - l_0) u_n.

    Along b2 orthogonal unit vectors ||g|| = σ / sqrt(b2), so η_s = η / sqrt(b2).
    """
    a, mu = np.array([1.0, -2.0, 3.0, 0.5]), 1e-3
    problem = FunctionObjective(lambda x, device: float(a @ x), 4, devices=1)
    algorithm = fedzo.FedZO(
        smoothing=mu,
        learning_rate=7.0,
        directions=3,
        direction_kind="orthogonal",
        local_steps=1,
        batch_size=1,
        server=Normalised(learning_rate=0.1 / np.sqrt(3)),
    )
    with LocalEngine(problem, 0, 1) as federation:
        state, _ = play(algorithm, 0, State(np.zeros(4)), federation, fedzo.Ideal())
    buffer = algorithm.estimator.buffer(4, np.float64)
    buffer.draw(steps_of(algorithm, np.zeros(4), 0, 0).draws(0))
    directions = buffer.rows * buffer.scales[:, None]
    rises = mu * directions @ a
    by_fzoo = -0.1 * (rises @ directions / 3) / np.sqrt(np.mean(rises**2))
    assert state.x == pytest.approx(by_fzoo, rel=1e-6)


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad", "normalised", "sign_momentum"])
def test_units_of_the_updates_do_not_matter(name):
    updates = np.array([[1.0, -3.0], [0.5, 2.0], [-1.0, 0.1]])
    step = SERVER_OPTIMIZERS[name]()
    assert follow(step, 1e6 * updates) == pytest.approx(follow(step, 1e-3 * updates), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_precision_and_arguments_are_left_as_they_are(name, dtype):
    step = SERVER_OPTIMIZERS[name]()
    x, delta = np.ones(3, dtype), np.array([0.1, 0.0, -0.2])
    kept = step.init(x)
    before = [array.copy() for array in kept]
    after, _ = step.apply(0, kept, x, delta)
    assert after.dtype == dtype
    assert np.array_equal(x, np.ones(3))
    for array, old in zip(kept, before, strict=True):
        assert np.array_equal(array, old)


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_each_travels_resumes_and_lowers_a_quadratic(name, tmp_path):
    problem = Quadratic(dim=8, devices=4, gradient_noise=0.0, dissimilarity=0.1)
    algorithm = fedzo.FedZO(
        learning_rate=0.02,
        directions=8,
        direction_kind="orthogonal",
        batch_size=1,
        server=SERVER_OPTIMIZERS[name](),
    )
    assert make_parts(describe_parts(algorithm, fedzo.Ideal()))[0] == algorithm
    at_once = fedzo.minimize(problem, algorithm=algorithm, rounds=30)
    fedzo.minimize(problem, algorithm=algorithm, rounds=13, run_dir=tmp_path)
    resumed = fedzo.minimize(problem, algorithm=algorithm, rounds=30, run_dir=tmp_path, resume=True)
    assert np.array_equal(at_once.last, resumed.last)
    assert at_once.fun < at_once.history[0]["train_loss"]


@pytest.mark.parametrize("check", ROUNDS_OF_FEDZO, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_conformance_of_fedzo_with_each(name, check):
    server = SERVER_OPTIMIZERS[name]()
    check(fedzo.FedZO(learning_rate=0.02, directions=3, batch_size=2, local_steps=2, server=server))


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_each_is_explained(name):
    """An equation, its numbers, the reference, an example."""
    kind = SERVER_OPTIMIZERS[name]
    text = " ".join(inspect.getdoc(one) or "" for one in kind.__mro__[:2])
    for part in (":math:" if kind is Mean else ".. math::", ">>> "):
        assert part in text, part
    if kind is not Mean:
        assert "References" in text
    for field in dataclasses.fields(kind):
        assert field.name in text


def shared(server, **changes):
    return fedzo.FedZO(
        **{
            "learning_rate": 0.02,
            "directions": 3,
            "batch_size": 2,
            "local_steps": 2,
            "participants": 3,
            "shared_directions": True,
            "server": server,
            **changes,
        }
    )


@pytest.mark.parametrize("kind", UPLINKS)
@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_each_goes_on_exactly_from_what_it_keeps_over_every_uplink(name, kind):
    """What a checkpoint holds of a state is its arrays; a run of each from a folder is above."""
    problem = Quadratic(dim=8, devices=5, gradient_noise=0.1, dissimilarity=0.3)
    algorithm, uplink = shared(SERVER_OPTIMIZERS[name]()), UPLINKS[kind]()
    with LocalEngine(problem, 0, workers=1) as federation:
        start = state = begin(algorithm, np.zeros(8), federation, uplink)
        resumed = None
        for t in range(7):
            state, _ = play(algorithm, t, state, federation, uplink)
            if t == 3:
                resumed = unflatten(start, [array.copy() for array in flatten(state)])
            elif resumed is not None:
                resumed, _ = play(algorithm, t, resumed, federation, uplink)
    for one, other in zip(flatten(state), flatten(resumed), strict=True):
        assert np.array_equal(one, other)
    assert not np.array_equal(state.x, np.zeros(8))


@dataclasses.dataclass(frozen=True)
class Logging(fedzo.Seeds):
    """Seeds and scalars, with every message written down as it would be sent."""

    log: list = dataclasses.field(default_factory=list, compare=False)

    def aggregate(self, t, updates, federation):
        original = updates._updates

        def noted():
            for update in original:
                self.log.append((t, update.device, update.weight, update.coefficients.tobytes()))
                yield update

        updates._updates = noted()
        return super().aggregate(t, updates, federation)


@pytest.mark.parametrize("shared_directions", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_whoever_has_the_scalars_can_follow_the_server_to_the_bit(name, dtype, shared_directions):
    problem = Quadratic(dim=40, devices=5, gradient_noise=0.1, dissimilarity=0.3)
    algorithm = shared(SERVER_OPTIMIZERS[name](), shared_directions=shared_directions)
    x0, uplink, seed = np.full(40, 0.5, dtype), Logging(), 3
    with LocalEngine(problem, seed, workers=2) as federation:
        state = begin(algorithm, x0, federation, uplink)
        for t in range(6):
            state, _ = play(algorithm, t, state, federation, uplink)

    # From here on: the algorithm, the start, the seed and the messages, and no problem.
    x, kept = x0, algorithm.server.init(x0)
    for t in range(6):
        work, heard = steps_of(algorithm, x, t, seed), []
        for message in uplink.log:
            of, device, weight, numbers = message
            if of == t:
                own = np.frombuffer(numbers, dtype).reshape(algorithm.coefficients_shape)
                heard.append(Update(device, np.empty(0), weight, 0, own))
        mean = UpdateMean(40)
        for update in fedzo.Seeds().compress(heard, work, None):  # one, where directions are shared
            mean.add(work.rebuilt(update), update.weight)
        x, kept = algorithm.server.step(t, kept, x, mean.value())
    for mine, theirs in zip(flatten(State(x, kept)), flatten(state), strict=True):
        assert np.array_equal(mine, theirs)


def test_the_public_module_shows_the_optimizers_only():
    kinds = {kind.__name__ for kind in SERVER_OPTIMIZERS.values()}
    assert set(dir(fedzo.server)) == kinds | {"ServerOptimizer"}


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_moments_are_float32_and_element_wise_is_true_of_pieces(name):
    server, x = SERVER_OPTIMIZERS[name](), np.linspace(-1, 1, 6)
    deltas = np.random.default_rng(0).standard_normal((3, 6))
    whole, halves = x, [x[:2], x[2:]]
    state, parts = server.init(x), [server.init(half) for half in halves]
    assert all(array.dtype == np.float32 for array in state if array.shape == x.shape)
    for t, delta in enumerate(deltas):
        whole, state = server.apply(t, state, whole, delta)
        moved = [
            server.apply(t, own, half, piece)
            for own, half, piece in zip(parts, halves, (delta[:2], delta[2:]), strict=True)
        ]
        halves, parts = [own[0] for own in moved], [own[1] for own in moved]
    same = np.array_equal(np.concatenate(halves), whole)
    assert same or not server.elementwise
    assert all(array.dtype == np.float32 for array in state if array.shape == x.shape)
