"""What a problem must answer to, and a plain function made into one."""

import numpy as np
import pytest

import fedzo
from fedzo.core.objective import Objective, initial_of, metrics_of, size_of
from fedzo.errors import InvalidValue
from fedzo.problems.function import FunctionObjective
from fedzo.problems.quadratic import Quadratic
from fedzo.problems.softmax import softmax


class Bare:
    """The least that is an Objective."""

    dim, devices = 2, 3

    def batch(self, device, size, draws):
        return device

    def values(self, points, batch):
        return np.zeros((len(points), 1))

    def losses(self, x, devices):
        return np.zeros(len(devices))


class Full(Bare):
    def size(self, device):
        return np.int64(10 + device)

    def initial(self):
        return [1.0, 2.0]

    def metrics(self, x):
        return {"sum": float(np.sum(x))}


def shifted(x, device):
    return x[0] * 10 + device


def test_values_are_the_functions_at_each_point():
    objective = FunctionObjective(shifted, dim=2, devices=3)
    points = np.array([[1.0, 0.0], [2.0, 5.0], [-1.0, 7.0]])
    batch = objective.batch(2, size=25, draws=None)
    values = objective.values(points, batch)
    assert np.array_equal(values, [[12.0], [22.0], [-8.0]])  # one realisation, whatever b1 is
    assert values.dtype == np.float64


def test_losses_are_the_functions_on_each_device():
    objective = FunctionObjective(shifted, dim=2, devices=5)
    assert np.array_equal(objective.losses(np.array([1.0, 0.0]), np.array([4, 0])), [14.0, 10.0])


def test_function_gets_a_point_and_a_whole_number():
    seen = []

    def fun(x, device):
        seen.append((x.shape, x.dtype, type(device)))
        return 0.0

    objective = FunctionObjective(fun, dim=4, devices=2)
    objective.values(np.zeros((3, 4), np.float32), objective.batch(1, 1, None))
    objective.losses(np.zeros(4, np.float32), np.arange(2))
    assert set(seen) == {((4,), np.dtype(np.float32), int)}


@pytest.mark.parametrize(
    "answer", [2, 2.0, np.float32(2), np.float64(2), np.int8(2), np.array(2.0), True + 1]
)
def test_function_may_answer_in_any_kind_of_number(answer):
    objective = FunctionObjective(lambda x, i: answer, dim=1, devices=1)
    assert objective.values(np.zeros((1, 1)), 0).tolist() == [[2.0]]
    assert objective.losses(np.zeros(1), np.array([0])).tolist() == [2.0]


def test_function_that_answers_nothing_is_an_error():
    objective = FunctionObjective(lambda x, i: None, dim=1, devices=1)
    with pytest.raises(TypeError):
        objective.values(np.zeros((1, 1)), 0)


@pytest.mark.parametrize("devices", [0, -1])
def test_there_must_be_a_device(devices):
    with pytest.raises(InvalidValue, match=f"devices = {devices}: must be a whole number >= 1"):
        FunctionObjective(shifted, 2, devices)


@pytest.mark.parametrize(
    "objective",
    [Bare(), Full(), FunctionObjective(shifted, 2, 3), Quadratic(), softmax(devices=10)],
    ids=lambda objective: type(objective).__name__,
)
def test_is_an_objective(objective):
    assert isinstance(objective, Objective)


@pytest.mark.parametrize("missing", ["dim", "devices", "batch", "values", "losses"])
def test_is_none_without(missing):
    members = {k: v for k, v in vars(Bare).items() if k != missing}
    assert isinstance(type("Whole", (), dict(vars(Bare)))(), Objective)
    assert not isinstance(type("Part", (), members)(), Objective)


@pytest.mark.parametrize("thing", [shifted, None, np.zeros(3), Bare.batch, "softmax"])
def test_is_none(thing):
    assert not isinstance(thing, Objective)


def test_what_an_objective_may_leave_out():
    assert size_of(Bare(), 1) == 1
    assert initial_of(Bare()).tolist() == [0.0, 0.0]
    assert metrics_of(Bare(), np.ones(2)) == {}


def test_what_an_objective_may_add():
    assert size_of(Full(), 1) == 11
    assert type(size_of(Full(), 1)) is int
    assert initial_of(Full()).tolist() == [1.0, 2.0]
    assert metrics_of(Full(), np.array([3.0, 4.0])) == {"sum": 7.0}


def test_a_function_that_works_in_place_does_no_harm():
    """It is given copies, at queries and at evaluations."""
    centre = np.array([3.0, -1.0])

    def careless(x, device):
        x -= centre
        x *= x
        return float(x.sum())

    def careful(x, device):
        return float(np.sum((x - centre) ** 2))

    run = {"devices": 2, "rounds": 20, "evaluate_every": 1}
    one, two = (fedzo.minimize(fun, np.zeros(2), **run) for fun in (careless, careful))
    np.testing.assert_allclose(one.x, two.x, rtol=1e-12)
