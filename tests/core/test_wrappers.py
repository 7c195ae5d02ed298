"""Wrappers of problems: each declares every capability, and rounds keep what a budget has paid."""

import inspect

import numpy as np
import pytest

from driving import begin, play, steps_of
from fedzo.algorithms import FedZO
from fedzo.algorithms.zo_sgd import Pooled
from fedzo.core import capabilities
from fedzo.core.batching import QueryBatcher
from fedzo.core.budget import Meter
from fedzo.core.capabilities import BatchesQueries, FusedStep, HasGradient, members
from fedzo.core.engine import LocalEngine
from fedzo.core.objective import Objective, ObjectiveWrapper
from fedzo.errors import BudgetSpent
from fedzo.uplinks import Ideal

try:
    from fedzo.flower.privacy import Privacy, Private
except ImportError:  # without the extra
    Private = None

PROTOCOLS = [
    kind
    for _, kind in inspect.getmembers(capabilities, inspect.isclass)
    if kind.__module__ == capabilities.__name__ and getattr(kind, "_is_protocol", False)
]


class Nothing(Objective):
    """A problem without capabilities."""

    dim, devices = 3, 2

    def batch(self, device, size, draws):
        return device

    def values(self, points, batch):
        return np.sum((points - batch) ** 2, axis=1, keepdims=True)

    def losses(self, x, devices):
        return np.array([np.sum((x - i) ** 2) for i in devices])


class Recorded(Nothing):
    """A problem that names its records."""

    def records(self, batch):
        return [batch]


Everything = type(
    "Everything",
    (Nothing,),
    {name: staticmethod(lambda *_: None) for kind in PROTOCOLS for name in members(kind)},
)


def wrapped(kind, inner):
    if kind is Private:  # which needs the names of records, and hides them
        inner = Recorded() if type(inner) is Nothing else inner
        return Private(inner, Privacy(epsilon=1.0, noise=1.0, difference_clip=1.0, loss_clip=1.0))
    return kind(inner)


def every_wrapper(kind=ObjectiveWrapper):
    found = [each for each in kind.__subclasses__() if each.__module__.startswith("fedzo.")]
    return found + [deeper for each in found for deeper in every_wrapper(each)]


def test_the_tests_see_all_wrappers():
    assert Pooled in set(every_wrapper())
    assert len(PROTOCOLS) >= 19


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("kind", every_wrapper(), ids=lambda kind: kind.__name__)
def test_every_wrapper_declares_every_capability(kind, protocol):
    declared = [*kind.passes, *kind.transforms, *kind.adds, *kind.hides]
    assert declared.count(protocol) == 1, f"{kind.__name__} must declare {protocol.__name__} once"
    inner = Everything()
    found = wrapped(kind, inner).capability(protocol)
    absent = wrapped(kind, Nothing()).capability(protocol)
    if protocol in kind.passes:
        assert found is inner
        assert absent is None
    elif protocol in kind.hides:
        assert found is absent is None
    else:
        assert isinstance(found, kind)
        assert (absent is not None) == (protocol in kind.adds)
        for name in members(protocol):
            assert getattr(kind, name, None) is not getattr(Objective, name, None)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda kind: kind.__name__)
def test_an_undeclared_capability_is_hidden(protocol):
    class Careless(ObjectiveWrapper):
        gradient = values_along = lambda *_: None

    assert Careless(Everything()).capability(protocol) is None


@pytest.mark.skipif(Private is None, reason="needs flwr")
def test_nothing_passes_the_private_wrapper_without_noise():
    private = wrapped(Private, Everything())
    assert private.capability(FusedStep) is private.capability(HasGradient) is None
    released = {*Private.passes, *Private.transforms, *Private.adds}
    evaluates = {
        kind
        for kind in released
        for name in members(kind)
        if inspect.isfunction(method := getattr(kind, name, None))
        if {"batch", "draws", "folder"} & set(inspect.signature(method).parameters)
    }
    assert evaluates == {*Private.transforms, *Private.adds}


class Budgeted(Nothing):
    """A problem that batches queries, with a budget of values."""

    def __init__(self, max_queries):
        self.meter = Meter(max_queries)
        self.batcher = QueryBatcher(lambda asked: [self._evaluate(*one) for one in asked], most=2)

    def _evaluate(self, points, batch):
        granted = self.meter.take(len(points))
        if granted < len(points):
            return self.meter.spent()
        return super().values(points, batch)

    def values(self, points, batch):
        return self.batcher.ask((points, batch))


def test_steps_before_the_end_of_a_budget_are_an_update():
    """Three values per step and a budget of seven: two of three steps are taken."""
    algorithm = FedZO(directions=2, local_steps=3, batch_size=1)
    work = steps_of(algorithm, np.ones(3), round=0, seed=1)
    cut, whole = (work.reply(Budgeted(limit), 1) for limit in (7, None))
    assert cut.queries == 6
    assert np.array_equal(cut.coefficients[:2], whole.coefficients[:2])
    assert not cut.coefficients[2].any()
    assert np.linalg.norm(cut.delta - whole.delta) > 0


def test_a_round_that_a_budget_cuts_short_is_used():
    """2 devices x 3 steps x 3 values, and a budget for two steps."""
    algorithm = FedZO(directions=2, local_steps=3, batch_size=1)
    problem = Budgeted(2 * 2 * 3)
    with LocalEngine(problem, seed=1) as federation:
        state = begin(algorithm, np.ones(3), federation, Ideal())
        after, info = play(algorithm, 0, state, federation, Ideal())
    assert info.queries == problem.meter.queries == 12
    assert not np.array_equal(algorithm.model(after), np.ones(3))


def test_a_problem_that_does_not_batch_discards_the_round():
    class Threaded(Budgeted):
        batcher = None

        def __init__(self, max_queries):
            self.meter = Meter(max_queries)

        def values(self, points, batch):
            found = self._evaluate(points, batch)
            if isinstance(found, BudgetSpent):
                raise found
            return found

    problem = Threaded(7)
    assert problem.capability(BatchesQueries) is None
    work = steps_of(FedZO(directions=2, local_steps=3, batch_size=1), np.ones(3), round=0, seed=1)
    with pytest.raises(BudgetSpent):
        work.reply(problem, 1)
