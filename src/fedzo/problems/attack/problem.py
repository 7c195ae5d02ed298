r"""Federated black-box attack, section V-A of the paper: one perturbation that fools a model.

The loss of an input z with label y under the perturbation x is the paper's

.. math:: \psi(x) = \max\{\Phi_y(z') - \max_{j \ne y} \Phi_j(z'),\, 0\} + c\,\|z' - z\|^2,
          \qquad z' = \tfrac12\tanh(\tanh^{-1} 2z + x),

with z scaled to [-1/2, 1/2] (see :mod:`fedzo.variables.perturbation`). The paper calls Φ the
prediction confidence, its reference (Carlini & Wagner, 2017) takes the logits: ``margin``
says which.
The model's answers are all that is used.

With a budget ``eps`` the input is :math:`z' = \mathrm{clip}(z + \delta)` with a δ that cannot leave
the ball (:mod:`fedzo.variables.perturbation`), the loss is the first term alone, and the best
perturbation is the one that succeeds most often on the devices' inputs, images rounded to 8 bits;
what is evaluated and kept lies further out than what queries are about
(:class:`~fedzo.problems.attack.transforms.BudgetTransform`). With a
``target`` t the first term is :math:`\max\{\max_{j \ne t} \Phi_j(z') - \Phi_t(z'),\, 0\}`, and an
input succeeds if the model takes it for t.

Within a budget an estimate looks at few inputs, and one that the model errs on already has nothing
to tell: its first term is zero all around. So some are drawn in place of each, all of them are
asked about at x, and the first that does not succeed yet is taken. With a model that answers labels
only, the first term is 1 or 0, whether an input succeeds, and eq. (2) is the gradient of how
often that happens around x: the usual random smoothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.core.objective import Best, Objective
from fedzo.core.random import Draws
from fedzo.errors import InvalidValue, nearest, one_of, require
from fedzo.models import Model
from fedzo.problems.attack.evaluation import Evaluations
from fedzo.problems.attack.inputs import (
    Inputs,
    column_of_target,
    joined,
    labelled,
    listed,
    shape_of_inputs,
)
from fedzo.problems.attack.report import budgets
from fedzo.problems.attack.run_files import write_run_files
from fedzo.problems.attack.scores import MARGINS, margins
from fedzo.problems.attack.smoothing import choose_smoothing
from fedzo.problems.attack.transforms import transform_of
from fedzo.problems.attack.victim import Victim
from fedzo.variables.perturbation import Distortion, Perturbation, distortion_of

Array = NDArray[Any]

_CANDIDATES = 4  # inputs that are drawn in place of one, within a budget
# How far a round should move each number of x at least, in the root of the mean square. In the
# middle of the range an input moves by half of that: a hundredth of the range.
_REACH = 0.02


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
        every = f"a list with an entry for each of the {len(parts)} devices"
        require(len(parts) == len(names), "labels", f"a list of {len(names)}", every)
        self.model, self.margin, self.classes = model, margin, classes
        self.meter, self.shape = model.meter, shape_of_inputs(model, parts[0])
        self.transform = transform_of(self.shape, model.input_range, c, eps, norm)
        self.chosen_by = "" if eps is None else "attack_success"
        own = [
            labelled(model, part, name, self.transform, of=f"[{device}]")
            for device, (part, name) in enumerate(zip(parts, names, strict=True))
        ]
        self.own = joined(own)
        self._starts = np.cumsum([0, *(len(part.labels) for part in own)])
        self.held_out = None if held_out is None else self._labelled_pair(held_out)
        self.target = None if target is None else column_of_target(model, target)
        other = self.target is None or not np.any(self.own.labels == self.target)
        require(other, "target", target, "another class than those of the devices' inputs")
        self.dim, self.devices = self.own.rows.shape[1], len(parts)
        self.reach = _REACH * math.sqrt(self.dim)
        self.candidates = 1 if eps is None else _CANDIDATES
        self.victim = Victim(model, self.shape, self.dim)
        self.victim.reserved, self.gathering = self.evaluation_cost, self.victim.gathering
        self.evaluations = Evaluations(self)
        self.transfer_to = transfer_to

    def _labelled_pair(self, held_out: tuple[ArrayLike, ArrayLike]) -> Inputs | None:
        allowed = "a pair of inputs and their labels"
        require(isinstance(held_out, tuple | list) and len(held_out) == 2, "held_out",
                type(held_out).__name__, allowed)  # fmt: skip
        if not len(held_out[0]):  # type: ignore[arg-type]
            return None
        return labelled(self.model, *held_out, self.transform, of=" held out")

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

    def inputs_of(self, device: int) -> Inputs:
        """Return the inputs of a device."""
        own = slice(self._starts[device], self._starts[device + 1])
        return Inputs(self.own.rows[own], self.own.labels[own])

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
        inputs, costs = self.transform.query_inputs(self.own.rows[chosen], points)
        scores = self.victim.ask(inputs.reshape(-1, self.dim), may_be_cut=may_be_cut)
        count, wanted = len(scores), costs.size
        labels = np.tile(self.own.labels[chosen], len(points))
        leads = np.maximum(self.margins(scores, labels[:count]), 0)
        if count < wanted:
            at_x = leads[: len(chosen)] if at_x is None else at_x
            if len(at_x) < len(chosen):
                raise self.model.meter.spent()
            unanswered = np.tile(at_x, len(points))[count:]
            leads = np.concatenate([leads, unanswered])
        return leads.reshape(costs.shape) + costs

    def smoothing(self, draws: Draws) -> float | None:
        """Return μ for an attack within a budget: see :func:`choose_smoothing`."""
        return None if self.candidates == 1 else choose_smoothing(self, draws)

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x), the mean of ψ over all inputs of a device."""
        return np.array([self.evaluations.of_device(x, int(i)).losses.mean() for i in devices])

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return success rates and distortion over all inputs, and over those held out.

        The devices' own inputs have been seen by :meth:`losses` already, if it was asked for
        the same x just before: they cost nothing more.
        """
        own = joined([self.evaluations.of_device(x, i) for i in range(self.devices)])
        outcomes, metrics = [own], {"attack_success": float(own.fooled.mean())}
        if self.held_out is not None:
            held_out = self.evaluations.of_inputs(x, self.held_out)
            outcomes.append(held_out)
            metrics["heldout_success"] = float(held_out.fooled.mean())
        self.evaluations.remember(x, outcomes)
        self.victim.evaluated = True
        distortion = distortion_of(own.l2, own.linf)
        return metrics | {f"distortion_{k}": v for k, v in distortion._asdict().items()}

    def write_files(self, folder: Path, best: Best) -> None:
        """Write the best perturbation that was evaluated, and the report of it."""
        write_run_files(self, folder, best.x)

    def reserve_for_report(self) -> None:
        """Reserve queries for the report as well: for each ε but that of the attack itself."""
        nothing = self.perturbation(self.initial())
        others = [eps for eps in budgets(nothing) if eps != nothing.eps]
        self.victim.reserved = self.evaluation_cost + len(others) * len(self.reported.labels)

    def fooled(self, predictions: Array, labels: Array) -> Array:
        """Tell which inputs are taken for something else, or for the target."""
        wrong = predictions != labels if self.target is None else predictions == self.target
        return np.asarray(wrong)

    @property
    def reported(self) -> Inputs:
        """The inputs that a report is about: those held out, or else the devices' own."""
        return self.own if self.held_out is None else self.held_out

    def perturbation(self, x: Array) -> Perturbation:
        """Return what x is, in the shape of an input."""
        return self.transform.perturbation(x)

    def distortion(self, x: Array) -> Distortion:
        """Return how far x moves the devices' inputs; asks the model nothing."""
        perturbed = self.transform.perturbed_inputs(self.own.rows, x)
        return distortion_of(perturbed.l2, perturbed.linf)

    def margins(self, scores: Array, labels: Array) -> Array:
        """Return by how much inputs still resist, from the model's scores."""
        may_be_rounded = self.candidates > 1  # the paper's form takes all scores as they are
        return margins(self.model, scores, labels, self.target, self.margin, may_be_rounded)
