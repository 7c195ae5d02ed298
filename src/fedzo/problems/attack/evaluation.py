"""What an attack's evaluations see: each input once under each perturbation, and remembered."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.problems.attack.inputs import PIECE, Inputs, joined

if TYPE_CHECKING:
    from fedzo.problems.attack.problem import Attack

Array = NDArray[Any]


class Outcome(NamedTuple):
    """What became of some inputs under one perturbation, each (n,)."""

    losses: Array
    fooled: Array
    predictions: Array
    l2: Array
    linf: Array


class Evaluations:
    """The evaluations of one attack.

    The last outcome of each device is remembered, since its loss and its metrics are asked for
    one after the other, and all predictions under each x, for the report.
    """

    def __init__(self, problem: Attack) -> None:
        self._problem = problem
        self._last: dict[int, tuple[str, Outcome]] = {}  # by device
        self._predictions: dict[str, Array] = {}  # for all inputs, by perturbation

    def of_device(self, x: Array, device: int) -> Outcome:
        """Return what becomes of a device's inputs, asked for once in a row for the same x."""
        key = _fingerprint(x)
        evaluated, outcome = self._last.get(device, ("", None))
        if evaluated != key or outcome is None:
            outcome = self.of_inputs(x, self._problem.inputs_of(device))
            self._last[device] = key, outcome
        return outcome

    def of_inputs(self, x: Array, inputs: Inputs) -> Outcome:
        """Return what becomes of inputs, asked for in pieces."""
        problem, outcomes = self._problem, []
        for start in range(0, len(inputs.labels), PIECE):
            rows, labels = (part[start : start + PIECE] for part in inputs)
            perturbed = problem.transform.perturbed_inputs(rows, x)
            scores = problem.victim.ask(perturbed.inputs, evaluates=True)
            losses = np.maximum(problem.margins(scores, labels), 0) + perturbed.costs
            predictions = scores.argmax(axis=1)
            fooled = problem.fooled(predictions, labels)
            outcomes.append(Outcome(losses, fooled, predictions, perturbed.l2, perturbed.linf))
        return joined(outcomes)

    def remember(self, x: Array, outcomes: list[Outcome]) -> None:
        """Keep what the model took all inputs for, those held out last."""
        predictions = [outcome.predictions for outcome in outcomes]
        self._predictions[_fingerprint(x)] = np.concatenate(predictions).astype(np.int32)

    def predictions(self, x: Array) -> Array | None:
        """Return what was remembered; None if x was not evaluated."""
        return self._predictions.get(_fingerprint(x))


def _fingerprint(x: Array) -> str:
    return hashlib.sha256(x.astype(np.float32).tobytes()).hexdigest()
