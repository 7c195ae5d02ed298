"""What a problem must answer to, and a plain function made into one."""

import inspect

import numpy as np
import pytest

import fedzo
from fedzo.core import capabilities
from fedzo.core.capabilities import (
    HasEvaluationCost,
    HasGradient,
    HasSizes,
    InPlace,
    Metered,
    members,
)
from fedzo.core.objective import (
    Objective,
    check_objective,
    evaluation_cost,
    is_plain,
    meter_of,
    values_along,
)
from fedzo.errors import UsageError
from fedzo.problems import FunctionObjective, Quadratic, Softmax, TorchProblem, Tuning, softmax
from fedzo.problems.attack import Attack
from raising import fails, rejects


class Bare(fedzo.Objective):
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
    with rejects("devices"):
        FunctionObjective(shifted, 2, devices)


@pytest.mark.parametrize(
    "objective",
    [Bare(), Full(), FunctionObjective(shifted, 2, 3), Quadratic(), softmax(devices=10)],
    ids=lambda objective: type(objective).__name__,
)
def test_is_an_objective(objective):
    assert isinstance(objective, Objective)


@pytest.mark.parametrize("missing", ["dim", "devices", "batch", "values", "losses"])
def test_what_is_missing_is_named(missing):
    members = {k: v for k, v in vars(Bare).items() if k != missing}
    whole = type("Whole", (Objective,), dict(vars(Bare)))()
    assert check_objective(whole, "made") is whole
    with pytest.raises(UsageError, match=f"made Part, which lacks {missing}$"):
        check_objective(type("Part", (Objective,), members)(), "made")


@pytest.mark.parametrize("thing", [shifted, None, np.zeros(3), Bare.batch, "softmax"])
def test_what_is_not_an_objective(thing):
    with fails("not-an-objective"):
        check_objective(thing, "made")


def test_a_class_is_not_an_objective():
    with fails("not-an-objective"):
        check_objective(Bare, "made")


def test_the_defaults():
    bare = Bare()
    assert bare.size(1) == 1
    assert evaluation_cost(bare) == 3
    assert bare.initial().tolist() == [0.0, 0.0]
    assert bare.metrics(np.ones(2)) == {}
    assert meter_of(bare) is None
    points = values_along(bare, np.ones(2), np.eye(2), np.array([1]), np.array([0.5]), 0)
    assert points.shape == (1, 1)


def test_values_along_builds_the_points():
    """x + steps[k] directions[rows[k]], in the precision of x."""

    class Echo(Bare):
        def values(self, points, batch):
            self.points = points
            return points[:, :1]

    echo, x = Echo(), np.array([1.0, 2.0], np.float32)
    directions = np.array([[1.0, 0.0], [0.0, -1.0]], np.float32)
    values_along(echo, x, directions, np.array([1, 0, 1]), np.array([2.0, 3.0, 0.0]), 0)
    assert echo.points.dtype == np.float32
    assert echo.points.tolist() == [[1.0, 0.0], [4.0, 2.0], [1.0, 2.0]]


def test_a_capability_is_what_a_problem_defines():
    bare, full = Bare(), Full()
    assert full.capability(HasSizes) is full
    for kind in (HasSizes, HasGradient, HasEvaluationCost, Metered, InPlace):
        assert bare.capability(kind) is None, kind


@pytest.mark.parametrize("value", [None, False])
def test_an_attribute_that_is_none_or_false_is_no_capability(value):
    class Torch(Bare):
        in_place = True

        def snapshot(self, x):
            return x.copy()

    problem = Torch()
    assert problem.capability(InPlace) is problem
    problem.in_place = value
    assert problem.capability(InPlace) is None


PROBLEMS = [FunctionObjective, Quadratic, Softmax, Attack, Tuning, TorchProblem]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda kind: kind.__name__)
def test_problems_have_the_signatures_of_the_protocols(problem):
    """A capability is found by names only, so the arguments must agree, too."""
    found = inspect.getmembers(capabilities, inspect.isclass)
    kinds = [k for _, k in found if k.__module__ == capabilities.__name__]
    for kind in kinds:
        for name in members(kind):
            wanted, found = getattr(kind, name, None), getattr(problem, name, None)
            if inspect.isfunction(wanted) and inspect.isfunction(found):
                assert list(inspect.signature(wanted).parameters) == list(
                    inspect.signature(found).parameters
                ), (kind, name)


def test_how_a_problem_was_made_is_known():
    problem = Quadratic(7, gradient_noise=0.5)
    assert problem.factory == "fedzo.problems.quadratic:Quadratic"
    assert problem.factory_kwargs["dim"] == 7
    assert problem.factory_kwargs["gradient_noise"] == 0.5
    assert problem.factory_kwargs["devices"] == 10
    made = softmax(devices=10)
    assert (made.factory, made.factory_kwargs["devices"]) == (
        "fedzo.problems.softmax_regression:softmax",
        10,
    )


@pytest.mark.parametrize("value", [1, 2.5, "a", True, None, [1, [2]], np.float64(3)])
def test_what_a_configuration_can_hold(value):
    assert is_plain(value)
    assert not is_plain([value, object()])


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
