r"""Federated black-box attack, section V-A of the paper: one perturbation that fools a model.

The loss of an input z with label y under the perturbation x is the paper's

.. math:: \psi(x) = \max\{\Phi_y(z') - \max_{j \ne y} \Phi_j(z'),\, 0\} + c\,\|z' - z\|^2,
          \qquad z' = \tfrac12\tanh(\tanh^{-1} 2z + x),

with z scaled to [-1/2, 1/2] (see :mod:`fedzo.variables.perturbation`). The paper calls Φ the
prediction confidence, its reference (Carlini & Wagner, 2017) takes the logits: ``margin``
says which.
The model's answers are all that is used.

With a budget ``eps`` the input is :math:`z' = \mathrm{clip}(z + \delta)` with a δ that cannot leave
the ball (:mod:`fedzo.variables.ball`), the loss is the first term alone, and the best perturbation
is the one that succeeds most often on the devices' inputs, images rounded to 8 bits. With a
``target`` t the first term is :math:`\max\{\max_{j \ne t} \Phi_j(z') - \Phi_t(z'),\, 0\}`, and an
input succeeds if the model takes it for t.

Within a budget an estimate looks at few inputs, and one that the model errs on already has nothing
to tell: its first term is zero all around. So some are drawn in place of each, all of them are
asked about at x, and the first that does not succeed yet is taken. With a model that answers labels
only, the first term is 1 or 0, whether an input succeeds, and eq. (2) is the gradient of how
often that happens around x: the usual random smoothing.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.core.directions import Frame
from fedzo.core.objective import Best, Objective
from fedzo.core.random import Draws, Stream
from fedzo.errors import BudgetSpent, InvalidValue, nearest, one_of, require
from fedzo.models import Model
from fedzo.problems.attack.forms import form_of
from fedzo.problems.attack.hand_in import hand_in
from fedzo.problems.attack.inputs import (
    PIECE,
    Inputs,
    columns_of,
    joined,
    labelled,
    listed,
    shape_of_inputs,
)
from fedzo.problems.attack.report import budgets
from fedzo.problems.attack.scores import MARGINS, margins, step_of
from fedzo.problems.attack.victim import Victim
from fedzo.variables.perturbation import Distortion, Perturbation, distortion_of

Array = NDArray[Any]

_CANDIDATES = 4  # inputs that are drawn in place of one, within a budget
_LOOKED_AT = 32  # inputs, to see whether scores are rounded
_TRIES = 8  # inputs and directions, to see whether differences stand out
# How far a round should move each number of x at least, in the root of the mean square. In the
# middle of the range an input moves by half of that: a hundredth of the range.
_REACH = 0.02


class Seen(NamedTuple):
    """What an evaluation saw of some inputs under one perturbation."""

    losses: Array
    fooled: Array
    predictions: Array
    l2: Array
    linf: Array


class Attack(Objective):
    """A universal perturbation against a model, sought by devices that keep their inputs.

    Devices ask the model together (:mod:`fedzo.problems.attack.victim`). A round that the budget
    cuts short is used as far as it came, and what an evaluation needs is left for it.

    Parameters
    ----------
    model : Model
        The black box; see :mod:`fedzo.models`. It counts the queries, those of evaluations
        too, and its budget ends the run.
    inputs : sequence of arrays
        Each device's inputs, in the model's input range.
    labels : sequence of arrays
        Each device's labels, as the model knows them: columns of its scores, or for
        scikit-learn the estimator's own. One label may stand for all inputs of a device.
    held_out : (inputs, labels), optional
        Inputs that no device has, on which success is measured too; one label may stand for all.
    c : float
        What distortion costs, without a budget.
    eps : float, optional
        The budget: how far an input may be moved, in units of its range; None: the paper's form.
    norm : str
        In what ``eps`` is counted: ``inf`` or ``l2``.
    target : label, optional
        What inputs are to be taken for; None: for anything that they are not.
    margin : str
        ``logits`` (from probabilities by their logarithm), or ``confidences``.
    classes : sequence of str, optional
        The labels' names, for the report.
    transfer_to : Model, optional
        Another model of the same inputs and classes, on which the perturbation is tried in the end.

    Examples
    --------
    >>> from fedzo.models import FunctionModel
    >>> model = FunctionModel(lambda z: np.hstack([z, 1 - z]), outputs="logits")
    >>> problem = Attack(model, [np.array([[0.7], [0.9]]), np.array([[0.6]])], [[0, 0], [0]])
    >>> problem.dim, problem.devices, problem.size(0)
    (1, 2, 2)
    >>> problem.losses(np.zeros(1, np.float32), np.arange(2)).round(3)  # (.4 + .8) / 2 and .2
    array([0.6, 0.2])
    """

    own_threads = True  # the model shares a batch among all cores

    def __init__(
        self,
        model: Model,
        inputs: Sequence[ArrayLike],
        labels: Sequence[ArrayLike],
        *,
        held_out: tuple[ArrayLike, ArrayLike] | None = None,
        c: float = 1.0,
        eps: float | None = None,
        norm: str = "inf",
        target: Any = None,
        margin: str = "logits",
        classes: Sequence[str] | None = None,
        transfer_to: Model | None = None,
    ) -> None:
        if margin not in MARGINS:
            raise InvalidValue("margin", margin, one_of(MARGINS) + nearest(str(margin), MARGINS))
        parts, names = listed("inputs", inputs), listed("labels", labels)
        require(len(parts) == len(names), "labels", len(names), f"for {len(parts)} devices")
        self.model, self.margin, self.classes = model, margin, classes
        self.meter, self.shape = model.meter, shape_of_inputs(model, parts[0])
        self.form = form_of(self.shape, model.input_range, c, eps, norm)
        self.chosen_by = "" if eps is None else "attack_success"
        own = [
            labelled(model, part, name, self.form, of=f"[{device}]")
            for device, (part, name) in enumerate(zip(parts, names, strict=True))
        ]
        self.own = joined(own)
        self._starts = np.cumsum([0, *(len(part.labels) for part in own)])
        self.held_out = None if held_out is None else self._apart(held_out)
        self.target = None if target is None else int(columns_of(model, [target], 1, "target")[0])
        other = self.target is None or not np.any(self.own.labels == self.target)
        require(other, "target", target, "another class than those of the devices' inputs")
        self.dim, self.devices = self.own.rows.shape[1], len(parts)
        self.reach = _REACH * math.sqrt(self.dim)
        self.candidates = 1 if eps is None else _CANDIDATES
        self.victim = Victim(model, self.shape, self.dim)
        self.victim.kept_back, self.gathering = self.evaluation_cost, self.victim.gathering
        self._seen: dict[int, tuple[str, Seen]] = {}  # by device, of the last evaluation
        self._taken_for: dict[str, Array] = {}  # predictions for all inputs, by perturbation
        self.transfer_to = transfer_to

    def _apart(self, held_out: tuple[ArrayLike, ArrayLike]) -> Inputs | None:
        allowed = "a pair of inputs and their labels"
        require(isinstance(held_out, tuple | list) and len(held_out) == 2, "held_out",
                type(held_out).__name__, allowed)  # fmt: skip
        if not len(held_out[0]):  # type: ignore[arg-type]
            return None
        return labelled(self.model, *held_out, self.form, of=" held out")

    @property
    def evaluation_cost(self) -> int:
        """How many queries an evaluation takes: each input of all devices, and those held out."""
        held_out = 0 if self.held_out is None else len(self.held_out.labels)
        return len(self.own.labels) + held_out

    def initial(self) -> Array:
        """Start from no perturbation."""
        return np.zeros(self.dim, np.float32)

    def size(self, device: int) -> int:
        """Return how many inputs a device holds."""
        return int(self._starts[device + 1] - self._starts[device])

    def batch(self, device: int, size: int, draws: Draws) -> Array:
        """Return which inputs: of a device, independent and uniform (with replacement).

        Within a budget they are (size, candidates): one of each row is looked at.
        """
        first, count = int(self._starts[device]), self.candidates
        chosen: Array = first + draws.integers(self.size(device), size * count)
        return chosen if count == 1 else chosen.reshape(size, count)

    def values(self, points: Array, batch: Array) -> Array:
        """Return ψ of each input at each perturbation, (k, d) -> (k, b): one call of the model."""
        return self._values(points, batch if batch.ndim == 1 else batch[:, 0])

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: Array
    ) -> Array:
        """Return the values; of forward differences only the first have to be answered.

        Directions that the budget was not enough for count as if nothing changed along them.
        """
        forward, at_x = not steps[0], None
        chosen = batch if batch.ndim == 1 else batch[:, 0]
        if forward and batch.ndim == 2:
            chosen, at_x = self._promising(x, batch)
            rows, steps = rows[1:], steps[1:]
        points = directions[rows]
        points *= steps[:, None].astype(x.dtype)
        points += x
        values = self._values(points, chosen, forward, at_x)
        return values if at_x is None else np.concatenate([at_x[None], values])

    def _promising(self, x: Array, batch: Array) -> tuple[Array, Array]:
        """Return of each row the first input that does not succeed at x yet, and its ψ there."""
        at_x = self._values(x[None], batch.reshape(-1)).reshape(batch.shape)
        rows, first = np.arange(len(batch)), np.argmax(at_x > 0, axis=1)  # 0 where all succeed
        return batch[rows, first], at_x[rows, first]

    def _values(
        self,
        points: Array,
        chosen: Array,
        may_be_cut: bool = False,
        at_x: Array | None = None,
    ) -> Array:
        """Return ψ, (k, b); where the answers are cut short, ψ at x, which is else the first."""
        inputs, costs = self.form.queried(self.own.rows, chosen, points)
        scores = self.victim.ask(inputs.reshape(-1, self.dim), may_be_cut=may_be_cut)
        count, wanted = len(scores), costs.size
        labels = np.tile(self.own.labels[chosen], len(points))
        first = np.maximum(self._margins(scores, labels[:count]), 0)
        if count < wanted:
            known = first[: len(chosen)] if at_x is None else at_x
            if len(known) < len(chosen):
                raise self.model.meter.spent()
            left_out = np.tile(known, len(points))[count:]
            first = np.concatenate([first, left_out])
        return first.reshape(costs.shape) + costs

    def smoothing(self, draws: Draws) -> float | None:
        """Return μ for an attack within a budget: 1, or more where answers are rounded.

        It is doubled until half of the differences along some directions are not zero, or
        until the directions reach the ball's surface.
        """
        if self.candidates == 1:
            return None
        x, smoothing = self.initial(), 1.0
        most = math.sqrt(self.dim)
        try:
            count = len(self.own.labels)
            some = np.unique(np.arange(_LOOKED_AT) * count // _LOOKED_AT)
            scores = self.victim.ask(self.form.queried(self.own.rows, some, x[None])[0][0])
            step = step_of(scores)
            if step is None:
                return smoothing
            at_x = np.maximum(self._margins(scores, self.own.labels[some]), 0)
            near = np.argsort(np.where(at_x > 0, at_x, np.inf), kind="stable")[:_TRIES]
            frame = Frame("sphere", _TRIES, self.dim, x.dtype)
            frame.draw(draws.on(Stream.DIRECTIONS))
            directions = frame.scales[:, None] * frame.rows
            while smoothing < most:
                values = self._values((smoothing * directions).astype(x.dtype), some[near])
                if np.mean(values != at_x[near]) >= 0.5:
                    break
                smoothing *= 2
        except BudgetSpent:
            return smoothing
        if smoothing == 1:  # coarse, but fine enough
            return smoothing
        smoothing = min(smoothing, most)
        kind = "labels only" if self.model.outputs == "labels" else f"scores in steps of {step:g}"
        told = f"{self.model.name} answers {kind}: smoothing is raised from 1 to {smoothing:g}"
        warnings.warn(f"{told}, so that differences stand out", UserWarning, stacklevel=2)
        return smoothing

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x), the mean of ψ over all inputs of a device."""
        return np.array([self._evaluate(x, int(i)).losses.mean() for i in devices])

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return success rates and distortion over all inputs, and over those held out.

        The devices' own inputs have been seen by :meth:`losses` already, if it was asked for
        the same x just before: they cost nothing more.
        """
        seen = joined([self._evaluate(x, i) for i in range(self.devices)])
        distortion = distortion_of(seen.l2, seen.linf)
        told = {"attack_success": float(seen.fooled.mean())}
        predictions = [seen.predictions]
        if self.held_out is not None:
            held_out = self._look(x, self.held_out, slice(None))
            told["heldout_success"] = float(held_out.fooled.mean())
            predictions.append(held_out.predictions)
        self._taken_for[_fingerprint(x)] = np.concatenate(predictions).astype(np.int32)
        self.victim.started = True
        return told | {f"distortion_{k}": v for k, v in distortion._asdict().items()}

    def write_files(self, folder: Path, best: Best) -> None:
        """Write the best perturbation that was evaluated, and what there is to tell of it."""
        hand_in(self, folder, best.x)

    def keep_for_report(self) -> None:
        """Keep queries back for the report as well: for each ε but that of the attack itself."""
        nothing = self.perturbation(self.initial())
        others = [eps for eps in budgets(nothing) if eps != nothing.eps]
        self.victim.kept_back = self.evaluation_cost + len(others) * len(self.reported.labels)

    def fooled(self, predictions: Array, labels: Array) -> Array:
        """Tell which inputs are taken for something else, or for the target."""
        wrong = predictions != labels if self.target is None else predictions == self.target
        return np.asarray(wrong)

    def seen_under(self, x: Array) -> Array | None:
        """Return what the model took all inputs for, those held out last, if x was evaluated."""
        return self._taken_for.get(_fingerprint(x))

    @property
    def reported(self) -> Inputs:
        """The inputs that a report is about: those held out, or else the devices' own."""
        return self.own if self.held_out is None else self.held_out

    def perturbation(self, x: Array) -> Perturbation:
        """Return what x is, in the shape of an input."""
        return self.form.perturbation(x)

    def distortion(self, x: Array) -> Distortion:
        """Return how far x moves the devices' inputs; asks the model nothing."""
        moved = self.form.moved(self.own.rows, np.arange(len(self.own.labels)), x)
        return distortion_of(moved.l2, moved.linf)

    def _evaluate(self, x: Array, device: int) -> Seen:
        """Look at all inputs of a device, once for each x."""
        key = _fingerprint(x)
        last, seen = self._seen.get(device, ("", None))
        if last == key and seen is not None:
            return seen
        own = slice(self._starts[device], self._starts[device + 1])
        seen = self._look(x, self.own, own)
        self._seen[device] = key, seen
        return seen

    def _look(self, x: Array, inputs: Inputs, which: slice) -> Seen:
        every = np.arange(len(inputs.labels))[which]
        parts = []
        for start in range(0, len(every), PIECE):
            chosen = every[start : start + PIECE]
            labels = inputs.labels[chosen]
            moved = self.form.moved(inputs.rows, chosen, x)
            scores = self.victim.ask(moved.inputs, evaluates=True)
            losses = np.maximum(self._margins(scores, labels), 0) + moved.costs
            predictions = scores.argmax(axis=1)
            fooled = self.fooled(predictions, labels)
            parts.append(Seen(losses, fooled, predictions, moved.l2, moved.linf))
        return joined(parts)

    def _margins(self, scores: Array, labels: Array) -> Array:
        rounded = self.candidates > 1  # the paper's form takes all scores as they are
        return margins(self.model, scores, labels, self.target, self.margin, rounded)


def _fingerprint(x: Array) -> str:
    return hashlib.sha256(x.astype(np.float32).tobytes()).hexdigest()
