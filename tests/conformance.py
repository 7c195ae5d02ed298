"""What every algorithm must satisfy; `algorithms/test_conformance.py` runs it over all of them.

Whoever adds an algorithm adds it to `ALGORITHMS` and is covered.
"""

import dataclasses
import inspect
import re

import numpy as np

from driving import begin, play, steps_of
from fedzo.core.engine import LocalEngine
from fedzo.problems import Quadratic
from fedzo.runs import describe_parts, flatten, make_parts, unflatten
from fedzo.uplinks import Ideal

PROBLEM = Quadratic(dim=8, devices=5, gradient_noise=0.1, dissimilarity=0.3)


class Counting(Quadratic):
    """The same problem, which counts the values or gradients of realisations that are asked for."""

    def __init__(self):
        super().__init__(dim=8, devices=5, gradient_noise=0.1, dissimilarity=0.3)
        self.answered = 0

    def values(self, points, batch):
        values = super().values(points, batch)
        self.answered += values.size
        return values

    def gradient(self, x, batch):
        self.answered += len(batch.noise)
        return super().gradient(x, batch)


def rounds(algorithm, dtype=np.float64, count=3, seed=1, workers=1, uplink=None, problem=PROBLEM):
    """Run a few rounds by hand; return the states and what was told of the rounds."""
    with LocalEngine(problem, seed, workers) as engine:
        states = [begin(algorithm, np.full(8, 0.5, dtype), engine, uplink or Ideal())]
        infos = []
        for t in range(count):
            state, info = play(algorithm, t, states[-1], engine, uplink or Ideal())
            states.append(state)
            infos.append(info)
    return states, infos


def check_is_a_frozen_dataclass_with_plain_fields(algorithm):
    """Hyper-parameters are fields that a configuration can hold."""
    assert dataclasses.is_dataclass(algorithm)
    assert type(algorithm).__dataclass_params__.frozen
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if field.name == "server":  # a table of its own
            assert dataclasses.is_dataclass(value)
        else:
            assert value is None or isinstance(value, int | float | str | bool | list | tuple)


def check_signatures(algorithm):
    """The run loop calls these by position, people by name."""
    assert list(inspect.signature(algorithm.init).parameters) == ["x0", "setting"]
    names = list(inspect.signature(algorithm.round).parameters)
    assert names == ["t", "state", "setting"]
    assert list(inspect.signature(algorithm.model).parameters) == ["state"]
    names = list(inspect.signature(algorithm.local).parameters)
    assert names[:4] == ["objective", "device", "task", "draws"]


def check_docstring(algorithm):
    """Equation, parameters, reference, example."""
    text = inspect.getdoc(type(algorithm))
    for part in (".. math::", "Parameters", "References", "Examples", ">>> "):
        assert part in text, part
    # What is inherited is explained where it comes from.
    texts = [kind.__doc__ for kind in type(algorithm).__mro__ if kind.__doc__]
    for field in dataclasses.fields(algorithm):
        explained = re.compile(rf"^ +(\w+, )*{field.name}(, \w+)* : ", re.MULTILINE)
        assert any(explained.search(text) for text in texts), field.name


def check_state_is_arrays(algorithm):
    """A checkpoint stores a state as the arrays that it is a tuple of."""
    states, _ = rounds(algorithm)
    for state in states:
        assert isinstance(state, tuple)
        arrays = flatten(state)
        assert all(isinstance(array, np.ndarray) for array in arrays)
        rebuilt = unflatten(states[0], [array.copy() for array in arrays])
        assert type(rebuilt) is type(state)
        assert np.array_equal(algorithm.model(rebuilt), algorithm.model(state))
        assert len(flatten(rebuilt)) == len(arrays)


def check_model(algorithm):
    """One vector of the problem's dimension, in the precision of the start."""
    for dtype in (np.float32, np.float64):
        states, _ = rounds(algorithm, dtype)
        for state in states:
            x = algorithm.model(state)
            assert x.shape == (8,)
            assert x.dtype == dtype
            assert np.isfinite(x).all()
    assert np.array_equal(algorithm.model(states[0]), np.full(8, 0.5))


def check_rounds_are_pure(algorithm):
    """The same round of the same state is the same, and the old state is left as it was."""
    with LocalEngine(PROBLEM, 1, 2) as engine:
        start = begin(algorithm, np.full(8, 0.5), engine, Ideal())
        before = [array.copy() for array in flatten(start)]
        one, info = play(algorithm, 0, start, engine, Ideal())
        two, same_info = play(algorithm, 0, start, engine, Ideal())
        other, _ = play(algorithm, 1, start, engine, Ideal())
    for array, old in zip(flatten(start), before, strict=True):
        assert np.array_equal(array, old)
    for a, b in zip(flatten(one), flatten(two), strict=True):
        assert np.array_equal(a, b)
    assert info == same_info
    assert not same_state(one, other)
    assert not same_state(one, start)


def same_state(one, other):
    """Tell whether two states hold the same numbers."""
    pairs = zip(flatten(one), flatten(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def check_seed_and_workers(algorithm):
    """Another seed is another run; other workers are the same run, to the bit."""
    one, _ = rounds(algorithm, workers=1)
    three, _ = rounds(algorithm, workers=3)
    other, _ = rounds(algorithm, seed=2)
    assert same_state(one[-1], three[-1])
    assert not same_state(one[-1], other[-1])


def check_no_global_generator(algorithm):
    """Neither NumPy's nor Python's own generator is read or written."""
    import random

    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    numpy_before, python_before = np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first, _ = rounds(algorithm)
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002
    assert python_before == random.getstate()
    np.random.seed(2)  # noqa: NPY002
    random.seed(2)
    second, _ = rounds(algorithm)
    assert np.array_equal(algorithm.model(first[-1]), algorithm.model(second[-1]))


def check_info(algorithm):
    """What a round tells is counted, not estimated: as many queries as the problem has answered."""
    problem = Counting()
    _, infos = rounds(algorithm, problem=problem)
    assert sum(info.queries for info in infos) == problem.answered
    for info in infos:
        assert 1 <= info.participants <= 5
        for count in (info.queries, info.uplink_bytes, info.downlink_bytes):
            assert isinstance(count, int)
            assert count >= 0


def check_coefficients_rebuild_the_update(algorithm):
    """What a device says its update is made of is what it is made of, to the bit."""
    if algorithm.coefficients_shape is None:
        return
    for dtype in (np.float32, np.float64):
        task = steps_of(algorithm, np.full(8, 0.5, dtype), round=2, seed=3)
        if algorithm_has_own_models(algorithm):
            task = steps_of(algorithm, np.full((5, 8), 0.5, dtype), 2, 3)
        update = task.reply(PROBLEM, 1)
        if update.coefficients is None or task.x.ndim == 2:
            continue
        assert update.coefficients.shape == algorithm.coefficients_shape
        assert np.array_equal(task.rebuild(update), update.delta)


def algorithm_has_own_models(algorithm):
    """Tell whether each device keeps a model of its own."""
    with LocalEngine(PROBLEM, 1, 1) as engine:
        state = begin(algorithm, np.full(8, 0.5), engine, Ideal())
    return state[0].ndim == 2


def check_travels(algorithm):
    """Described and made again, as a configuration, a node and a saved run have it, it is equal."""
    _, _, resolved = make_parts(describe_parts(algorithm, Ideal()))
    again, _, _ = make_parts(resolved)
    assert again == algorithm


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]
