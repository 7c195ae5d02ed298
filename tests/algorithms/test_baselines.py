"""The baselines: a round of each by hand, and a quadratic to its optimum."""

import numpy as np
import pytest

import fedzo
from driving import begin, play
from fedzo.core.directions import DirectionBuffer
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue
from fedzo.problems import Quadratic
from raising import fails, rejects

SEED, T = 5, 3
QUIET = Quadratic(dim=6, devices=4, condition=5.0, gradient_noise=0.0, dissimilarity=0.7)
NOISY = Quadratic(dim=6, devices=4, condition=5.0, gradient_noise=0.5, dissimilarity=0.7)
# b2 = d central differences along the axes are the exact gradient of a quadratic.
EXACT = {"directions": 6, "direction_kind": "coordinate", "difference": "central", "batch_size": 1}


def estimate(problem, x, i, b1, b2, mu, at=None):
    """Eq. (2) written out, at the address of (round T, device i, step 0)."""
    batch = problem.batch(i, b1, Draws(SEED, Stream.BATCHES, T, i)) if at is None else at
    buffer = DirectionBuffer("sphere", b2, 6, np.float64)
    buffer.draw(Draws(SEED, Stream.DIRECTIONS, T, i))
    total = np.zeros(6)
    for v in buffer.vectors():
        slopes = (problem.values((x + mu * v)[None], batch) - problem.values(x[None], batch)) / mu
        total += 6 * v * slopes.mean() / b2
    return total


def one_round(problem, algorithm, state=None):
    with LocalEngine(problem, SEED, 1) as federation:
        if state is None:
            state = begin(algorithm, np.full(6, 0.3), federation, fedzo.Ideal())
        return play(algorithm, T, state, federation, fedzo.Ideal())


def test_fedavg_round():
    """The same participants and batches as FedZO, gradients in place of estimates."""
    algorithm = fedzo.FedAvg(learning_rate=0.1, batch_size=3, local_steps=2, participants=2)
    x0, total = np.full(6, 0.3), np.zeros(6)
    chosen = Draws(SEED, Stream.PARTICIPANTS, round=T).subset(4, 2)
    for i in chosen.tolist():
        x = x0.copy()
        for k in range(2):
            batch = NOISY.batch(i, 3, Draws(SEED, Stream.BATCHES, T, i, k))
            x = x - 0.1 * NOISY.gradient(x, batch)
        total += x - x0
    state, info = one_round(NOISY, algorithm)
    np.testing.assert_allclose(state.x, x0 + total / 2, rtol=1e-12)
    assert info.queries == 2 * 2 * 3
    assert info.uplink_bytes == 2 * 6 * 8


def test_fedavg_and_fedzo_agree_where_the_estimate_is_exact():
    """Same seed, same batches: with b2 = d central differences the two are one algorithm."""
    shared = {"learning_rate": 0.05, "local_steps": 3, "participants": 2}
    exact = {k: v for k, v in EXACT.items() if k != "batch_size"}
    first = fedzo.minimize(
        NOISY, algorithm=fedzo.FedZO(**shared, **exact, batch_size=4), rounds=20, seed=SEED
    )
    second = fedzo.minimize(
        NOISY, algorithm=fedzo.FedAvg(**shared, batch_size=4), rounds=20, seed=SEED
    )
    np.testing.assert_allclose(first.x, second.x, rtol=1e-9)


def test_fedavg_reaches_the_optimum():
    result = fedzo.minimize(QUIET, algorithm=fedzo.FedAvg(learning_rate=0.2), rounds=100)
    np.testing.assert_allclose(result.x, QUIET.optimum, atol=1e-6)


@pytest.mark.parametrize("kind", [fedzo.FedAvg, fedzo.FedProx, fedzo.Scaffold])
def test_baselines_need_gradients(kind):
    with fails("no-gradient"):
        fedzo.minimize(lambda x, i: 0.0, np.zeros(2), devices=2, algorithm=kind())


def test_fedadam_is_fedavg_with_adam_at_the_server():
    """Two rounds by hand: the moments of the mean updates of plain FedAvg."""
    settings = {"learning_rate": 0.1, "batch_size": 2, "local_steps": 3}
    adam = fedzo.server.Adam(learning_rate=0.05, eps=1e-3)
    algorithm = fedzo.FedAvg(**settings, server=adam)
    x, m, v = np.full(6, 0.3), np.zeros(6), np.zeros(6)
    with LocalEngine(NOISY, SEED, 1) as federation:
        state = begin(algorithm, x, federation, fedzo.Ideal())
        for t in range(2):
            plain = begin(fedzo.FedAvg(**settings), x, federation, fedzo.Ideal())
            after, _ = play(fedzo.FedAvg(**settings), t, plain, federation, fedzo.Ideal())
            delta = after.x - x
            m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
            unbiased = m / (1 - 0.9 ** (t + 1)), np.sqrt(v / (1 - 0.99 ** (t + 1)))
            x = x + 0.05 * unbiased[0] / (unbiased[1] + 1e-3)
            state, _ = play(algorithm, t, state, federation, fedzo.Ideal())
            np.testing.assert_allclose(state.x, x, rtol=1e-6)  # moments are float32


def test_fedprox_round():
    """Eq. (2) of Li et al.: the gradient of F_i + λ/2 |x - x^t|², two steps of two devices."""
    algorithm = fedzo.FedProx(
        learning_rate=0.1, batch_size=3, local_steps=2, participants=2, proximal=0.7
    )
    x0, total = np.full(6, 0.3), np.zeros(6)
    for i in Draws(SEED, Stream.PARTICIPANTS, round=T).subset(4, 2).tolist():
        x = x0.copy()
        for k in range(2):
            batch = NOISY.batch(i, 3, Draws(SEED, Stream.BATCHES, T, i, k))
            x = x - 0.1 * (NOISY.gradient(x, batch) + 0.7 * (x - x0))
        total += x - x0
    state, _ = one_round(NOISY, algorithm)
    np.testing.assert_allclose(state.x, x0 + total / 2, rtol=1e-12)


def test_fedprox_without_a_pull_is_fedavg():
    settings = {"learning_rate": 0.1, "batch_size": 2}
    runs = [
        fedzo.minimize(NOISY, algorithm=algorithm, rounds=5, seed=SEED).x
        for algorithm in (fedzo.FedAvg(**settings), fedzo.FedProx(**settings, proximal=0.0))
    ]
    np.testing.assert_array_equal(*runs)


def test_scaffold_rounds():
    """Algorithm 1 of Karimireddy et al. with option II, written out, for three rounds."""
    settings = {"learning_rate": 0.1, "batch_size": 3, "local_steps": 2, "participants": 2}
    algorithm = fedzo.Scaffold(**settings)
    x, c, controls = np.full(6, 0.3), np.zeros(6), np.zeros((4, 6))
    with LocalEngine(NOISY, SEED, 1) as federation:
        state = begin(algorithm, x, federation, fedzo.Ideal())
        for t in range(3):
            moves, changes = [], []
            for i in Draws(SEED, Stream.PARTICIPANTS, round=t).subset(4, 2).tolist():
                y = x.copy()
                for k in range(2):
                    batch = NOISY.batch(i, 3, Draws(SEED, Stream.BATCHES, t, i, k))
                    y = y - 0.1 * (NOISY.gradient(y, batch) - controls[i] + c)
                new = controls[i] - c + (x - y) / (2 * 0.1)
                moves.append(y - x)
                changes.append(new - controls[i])
                controls[i] = new
            x = x + np.mean(moves, axis=0)
            c = c + 2 / 4 * np.mean(changes, axis=0)
            state, info = play(algorithm, t, state, federation, fedzo.Ideal())
            np.testing.assert_allclose(state.x, x, rtol=1e-12)
            np.testing.assert_allclose(state.controls, controls, atol=1e-12)
    assert info.queries == 2 * 2 * 3
    assert (info.uplink_bytes, info.downlink_bytes) == (2 * 6 * 8, 2 * 2 * 6 * 8)


@pytest.mark.parametrize(
    ("algorithm", "uplink", "code"),
    [
        (fedzo.Scaffold(), fedzo.AirComp(), "no-updates"),
        (fedzo.Scaffold(), fedzo.Digital(), "no-updates"),
        (fedzo.Scaffold(), fedzo.Seeds(), "no-coefficients"),
        (fedzo.FedProx(), fedzo.Seeds(), "no-coefficients"),
    ],
)
def test_parts_that_do_not_fit_are_rejected(algorithm, uplink, code):
    with fails(code):
        fedzo.minimize(QUIET, algorithm=algorithm, uplink=uplink, rounds=1)


def test_baselines_reject_wrong_settings():
    with rejects("proximal"):
        fedzo.FedProx(proximal=-1.0)
    with rejects("weighting"):
        fedzo.Scaffold(weighting="size")
    with rejects("server"):
        fedzo.FedAvg(server="adam")


def test_zo_sgd_round():
    """One step; ξ_m belongs to a device drawn uniformly, directions are those of device 0."""
    algorithm = fedzo.ZOSGD(learning_rate=0.1, smoothing=0.2, batch_size=5, directions=2)
    x = np.full(6, 0.3)
    at = Draws(SEED, Stream.BATCHES, T)
    owners = at.on(Stream.PARTICIPANTS).integers(4, 5)
    buffer = DirectionBuffer("sphere", 2, 6, np.float64)
    buffer.draw(Draws(SEED, Stream.DIRECTIONS, T))
    expected, weights = np.zeros(6), 0
    for i in range(4):
        count = int(np.count_nonzero(owners == i))
        if not count:
            continue
        batch = NOISY.batch(i, count, at._replace(device=i))
        for v in buffer.vectors():
            difference = NOISY.values((x + 0.2 * v)[None], batch) - NOISY.values(x[None], batch)
            expected += 6 * v * difference.sum() / 0.2 / (5 * 2)
        weights += count
    state, info = one_round(NOISY, algorithm)
    np.testing.assert_allclose(state.x, x - 0.1 * expected, rtol=1e-10)
    assert weights == 5
    assert info.queries == 5 * 3
    assert info.uplink_bytes == info.downlink_bytes == info.channel_uses == 0


def test_zo_sgd_samples_devices_uniformly():
    """E[estimate] is the gradient of the mean of the f_i: 5 standard errors of 4000 rounds."""
    algorithm = fedzo.ZOSGD(learning_rate=1.0, **{**EXACT, "batch_size": 2})
    x = np.full(6, 0.3)
    moves = []
    with LocalEngine(QUIET, 1, 1) as federation:
        state = begin(algorithm, x, federation, fedzo.Ideal())
        for t in range(4000):
            new, _ = play(algorithm, t, state, federation, fedzo.Ideal())
            moves.append(x - new.x)
    gradient = QUIET.hessian(x - QUIET.optimum)
    error = np.std(moves, axis=0) / np.sqrt(4000)
    assert np.all(np.abs(np.mean(moves, axis=0) - gradient) < 5 * error)


def test_zo_sgd_reaches_the_optimum():
    same = Quadratic(dim=6, devices=4, condition=5.0, gradient_noise=0.0, dissimilarity=0.0)
    result = fedzo.minimize(same, algorithm=fedzo.ZOSGD(learning_rate=0.5, **EXACT), rounds=200)
    np.testing.assert_allclose(result.x, same.optimum, atol=1e-6)


@pytest.mark.parametrize(
    ("graph", "coupling"),
    [("complete", None), ("complete", 0.1), ("ring", None), ("ring", 0.2), ("matrix", 0.15)],
)
def test_dzopa_round(graph, coupling):
    """x_i - γ sum_j L_ij x_j - η g_i, with the Laplacian written out."""
    weights = {
        "complete": [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]],
        "ring": [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]],
        "matrix": [[0, 0.5, 0, 2], [0.5, 0, 1, 0], [0, 1, 0, 0], [2, 0, 0, 0]],
    }[graph]
    gamma = coupling or {"complete": 1 / 4, "ring": 1 / 3}[graph]
    algorithm = fedzo.DZOPA(
        learning_rate=0.1,
        smoothing=0.2,
        batch_size=3,
        directions=2,
        coupling=coupling,
        graph=weights if graph == "matrix" else graph,
    )
    models = Draws(0, Stream.INIT).normals(4, 6)
    expected = np.zeros((4, 6))
    for i in range(4):
        laplacian = sum(weights[i][j] * (models[i] - models[j]) for j in range(4))
        g = estimate(NOISY, models[i], i, 3, 2, 0.2)
        expected[i] = models[i] - gamma * laplacian - 0.1 * g
    from fedzo.algorithms.dzopa import State

    state, info = one_round(NOISY, algorithm, State(models))
    np.testing.assert_allclose(state.models, expected, rtol=1e-10)
    np.testing.assert_allclose(algorithm.model(state), expected.mean(axis=0), rtol=1e-10)
    spread = np.sqrt(np.mean(np.sum((expected - expected.mean(axis=0)) ** 2, axis=1)))
    assert info.metrics["disagreement"] == pytest.approx(spread)
    edges = sum(w > 0 for row in weights for w in row)
    assert info.uplink_bytes == edges * 6 * 8
    assert info.queries == 4 * 3 * 3


def test_dzopa_on_the_complete_graph_averages_exactly():
    """γ = 1/N: after a round the devices differ by their own last steps alone."""
    algorithm = fedzo.DZOPA(learning_rate=1e-12, **EXACT)
    from fedzo.algorithms.dzopa import State

    models = Draws(0, Stream.INIT).normals(4, 6)
    state, info = one_round(QUIET, algorithm, State(models))
    np.testing.assert_allclose(state.models, np.tile(models.mean(axis=0), (4, 1)), atol=1e-10)
    assert info.metrics["disagreement"] < 1e-10


@pytest.mark.parametrize("graph", ["complete", "ring"])
def test_dzopa_reaches_the_optimum(graph):
    """A quadratic with one Hessian: the mean of the x_i descends as if it were one point."""
    algorithm = fedzo.DZOPA(learning_rate=0.3, graph=graph, **EXACT)
    result = fedzo.minimize(QUIET, algorithm=algorithm, rounds=400)  # (1 - 0.3 * 0.2)^400 is 2e-11
    np.testing.assert_allclose(result.x, QUIET.optimum, atol=1e-6)
    assert result.history[-1]["disagreement"] > 0.01  # each is pulled to its own centre


@pytest.mark.parametrize(
    "graph",
    [
        [[0, 1], [1, 0]],
        [[0, 1, 0, 0]] * 4,
        [[0, -1, 0, 0], [-1, 0, 0, 0], [0] * 4, [0] * 4],
        [[0, 1], [1]],
        [["a"]],
        [[0, np.inf, 0, 0], [np.inf, 0, 0, 0], [0] * 4, [0] * 4],
    ],
)
def test_dzopa_refuses_what_is_no_graph(graph):
    with pytest.raises(InvalidValue, match="a symmetric matrix, 4 x 4"):
        fedzo.minimize(QUIET, algorithm=fedzo.DZOPA(graph=graph), rounds=1)


@pytest.mark.parametrize(("normalisation", "among"), [("mean", 4), ("sum", 1)])
def test_zone_s_round(normalisation, among):
    """The five formulas as they are published, with x_j = z for all others."""
    rho, n = 2.0, 4
    algorithm = fedzo.ZoneS(
        penalty=rho, smoothing=0.2, batch_size=3, directions=2, normalisation=normalisation
    )
    from fedzo.algorithms.zone_s import State

    z = np.full(6, 0.3)
    multipliers = 0.1 * Draws(0, Stream.INIT).normals(4, 6)
    i = int(Draws(SEED, Stream.PARTICIPANTS, round=T).integers(4, 1)[0])
    alpha = 1 / n
    g = estimate(NOISY, z, i, 3, 2, 0.2)
    x = np.tile(z, (4, 1))
    x[i] = z - (multipliers[i] + g / among) / (alpha * rho)
    new_z = sum(rho * x[j] + multipliers[j] for j in range(4)) / (n * rho)
    new_multipliers = multipliers.copy()
    new_multipliers[i] += alpha * rho * (x[i] - z)
    state, info = one_round(NOISY, algorithm, State(z, multipliers))
    np.testing.assert_allclose(state.z, new_z, rtol=1e-10)
    np.testing.assert_allclose(state.multipliers, new_multipliers, rtol=1e-10)
    assert (info.participants, info.queries) == (1, 3 * 3)


@pytest.mark.parametrize(("normalisation", "among"), [("mean", 4), ("sum", 1)])
def test_zone_s_is_saga(normalisation, among):
    """Against SAGA with a table of the last gradients, 50 rounds, exact gradients."""
    rho = 2.0
    algorithm = fedzo.ZoneS(penalty=rho, normalisation=normalisation, **EXACT)
    z, table = np.full(6, 0.3), np.zeros((4, 6))
    with LocalEngine(QUIET, SEED, 1) as federation:
        state = begin(algorithm, z, federation, fedzo.Ideal())
        for t in range(50):
            i = int(Draws(SEED, Stream.PARTICIPANTS, round=t).integers(4, 1)[0])
            g = QUIET.gradient(z, QUIET.batch(i, 1, Draws(0, Stream.BATCHES)))
            step = g - table[i] + table.mean(axis=0)
            z = z - step / (among * rho)
            table[i] = g
            state, _ = play(algorithm, t, state, federation, fedzo.Ideal())
            np.testing.assert_allclose(state.z, z, rtol=1e-7)
            np.testing.assert_allclose(state.multipliers, -table / among, atol=1e-7)


def test_zone_s_default_is_the_mean():
    """Which is the sum with N times the penalty: the same run, up to rounding."""
    mean = fedzo.minimize(NOISY, algorithm=fedzo.ZoneS(penalty=1.0), rounds=30, seed=SEED)
    told = fedzo.ZoneS(penalty=1.0, normalisation="mean")
    assert (fedzo.minimize(NOISY, algorithm=told, rounds=30, seed=SEED).x == mean.x).all()
    longer = fedzo.ZoneS(penalty=4.0, normalisation="sum")
    total = fedzo.minimize(NOISY, algorithm=longer, rounds=30, seed=SEED)
    np.testing.assert_allclose(total.x, mean.x, rtol=1e-9)


def test_zone_s_refuses_another_normalisation():
    with pytest.raises(InvalidValue, match=r"normalisation = 'summ': must be .*did you mean 'sum'"):
        fedzo.ZoneS(normalisation="summ")


def test_zone_s_reaches_the_optimum_not_a_neighbourhood():
    """Devices differ, one is drawn at a time, and still the distance goes to zero."""
    algorithm = fedzo.ZoneS(penalty=0.75, **EXACT)  # steps of 1/3, L = 1
    result = fedzo.minimize(QUIET, algorithm=algorithm, rounds=1500, seed=2)
    np.testing.assert_allclose(result.x, QUIET.optimum, atol=1e-8)
    plain = fedzo.FedAvg(learning_rate=1 / 3, local_steps=1, participants=1, batch_size=1)
    without_table = fedzo.minimize(QUIET, algorithm=plain, rounds=1500, seed=2)
    assert np.linalg.norm(without_table.x - QUIET.optimum) > 1e-2


@pytest.mark.parametrize("kind", [fedzo.ZOSGD, fedzo.DZOPA, fedzo.ZoneS])
def test_algorithms_without_an_uplink_say_so(kind):
    with fails("uplink-not-used"):
        fedzo.minimize(QUIET, algorithm=kind(directions=2), uplink=fedzo.AirComp(), rounds=1)


def test_fedavg_has_no_coefficients_to_send():
    with fails("no-coefficients"):
        fedzo.minimize(QUIET, algorithm=fedzo.FedAvg(), uplink=fedzo.Seeds(), rounds=1)
