r"""Federated black-box attack, section V-A of the paper: one perturbation that fools a model.

The loss of an input z with label y under the perturbation x is

.. math:: \psi(x) = \max\{\Phi_y(z') - \max_{j \ne y} \Phi_j(z'),\, 0\} + c\,\|z' - z\|^2,
          \qquad z' = \tfrac12\tanh(\tanh^{-1} 2z + x),

with z scaled to [-1/2, 1/2] (see :mod:`fedzo.variables.perturbation`). The paper calls Φ the
prediction confidence; its reference (Carlini & Wagner, 2017) uses logits. ``margin`` chooses
between them. Only the scores of the model are used.

**Budget.** With ``eps`` the input is :math:`z' = \mathrm{clip}(z + \delta)` with a δ inside the
ball (:mod:`fedzo.variables.perturbation`), and the loss is the first term alone. The best
perturbation is the one that succeeds most often on the inputs of the devices, with images rounded
to 8 bits.
Evaluated perturbations lie further out than those of queries
(:class:`~fedzo.problems.attack.transforms.Transform`).

**Target.** With ``target`` t the first term is
:math:`\max\{\max_{j \ne t} \Phi_j(z') - \Phi_t(z'),\, 0\}`. An input succeeds if the model predicts
t.

**Labels only.** For a model that returns labels only, the first term is 1 or 0, and eq. (2) is the
gradient of the error rate around x (random smoothing).
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedzo.core.capabilities import Best
from fedzo.core.objective import Objective, problem_factory
from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.core.waves import is_image
from fedzo.data import load
from fedzo.data import partition as split_samples
from fedzo.errors import UsageError, check_choice, require
from fedzo.models import Model
from fedzo.models.base import check_columns, rounding_step
from fedzo.problems.attack.detector import Detector
from fedzo.problems.attack.inputs import (
    PIECE,
    Inputs,
    column_of_target,
    columns_named,
    fooled,
    gets_right,
    joined,
    labelled,
    listed,
    other_of,
    shape_of_inputs,
    victim_of,
)
from fedzo.problems.attack.page import Reported
from fedzo.problems.attack.report import PROCESSED, PROCESSES, budgets, write_run_files
from fedzo.problems.attack.transforms import Transform
from fedzo.problems.attack.victim import Victim
from fedzo.variables.perturbation import Distortion, MovedInputs, Perturbation

MARGINS = ("logits", "confidences")
# The least root-mean-square move of x per round. In the middle of the range an input moves by half
# of that: a hundredth of the range.
_MIN_MOVE = 0.02
_NUMBERS = 1 << 23  # in the inputs of one call of values(), of one device
_EVALUATION = 0.07  # the largest share of the queries for one evaluation within a budget
_FEWEST = 40  # inputs: no evaluation has fewer, unless they are a quarter of the queries
_PROCESSING = 0.1  # the largest share of the queries for processed images
_EVALUATED = "evaluated "  # in the names of what a checkpoint holds


class Attack(Objective):
    """A universal perturbation against a model, from the inputs of several devices.

    Devices query the model in one batch (:class:`fedzo.problems.attack.victim.Victim`). The
    steps of a round before the end of the query budget are used. Queries for a last evaluation are
    reserved.

    Parameters
    ----------
    model : Model
        The black box; see :mod:`fedzo.models`. It counts all queries, those of evaluations
        included, and its budget ends the run.
    inputs : sequence of arrays
        The inputs of each device, in the input range of the model.
    labels : sequence of arrays
        The labels of each device: columns of the model's scores, or the classes of a scikit-learn
        estimator. One label may stand for all inputs of a device.
    held_out : (inputs, labels), optional
        Inputs that no device has, to measure success on; one label may stand for all.
    c : float
        The weight of distortion, without a budget.
    eps : float, optional
        The budget: how far an input may move, in units of its range. None: the paper's form.
    norm : str
        The norm of ``eps``: ``inf`` or ``l2``.
    target : label, optional
        The class that inputs shall be mistaken for; None: any wrong class.
    margin : str
        ``logits`` (of probabilities, their logarithm), or ``confidences``.
    classes : sequence of str, optional
        The names of the labels, for the report.
    transfer_to : Model, optional
        Another model with the same inputs and classes, on which the final perturbation is tested.

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

    own_threads = True  # the model uses all cores for a batch
    exact = True

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
        check_choice("margin", margin, MARGINS)
        given, names = listed("inputs", inputs), listed("labels", labels)
        every = f"a list with an entry for each of the {len(given)} devices"
        require(len(given) == len(names), "labels", f"a list of {len(names)}", every)
        self.model, self.margin, self.shape = model, margin, shape_of_inputs(model, given[0])
        self.transform = Transform(self.shape, model.input_range, c, eps, norm)
        nothing = self.perturbation(np.zeros(math.prod(self.shape)))
        own = [
            labelled(model, part, name, nothing, of=f"[{device}]")
            for device, (part, name) in enumerate(zip(given, names, strict=True))
        ]
        self.own = joined(own)
        self._starts = np.cumsum([0, *(len(part.labels) for part in own)])
        self.held_out: Inputs | None = None
        if held_out is not None:
            is_pair = isinstance(held_out, tuple | list) and len(held_out) == 2
            what = type(held_out).__name__
            require(is_pair, "held_out", what, "a pair of inputs and their labels")
            if len(held_out[0]):  # type: ignore[arg-type]
                self.held_out = labelled(model, *held_out, nothing, of=" held out")
        self._evaluated = [np.arange(len(part.labels)) for part in own]  # by device
        if eps is not None and model.meter.left is not None:
            self._evaluate_fewer(model.meter.left)
        self.target = None if target is None else column_of_target(model, target)
        other = self.target is None or not np.any(self.own.labels == self.target)
        require(other, "target", target, "another class than those of the devices' inputs")
        self.dim, self.devices = self.own.rows.shape[1], len(given)
        self._evaluations: dict[str, Array] = {}  # losses and predictions, by perturbation
        self.classes, self.transfer_to = classes, transfer_to
        self.victim = Victim(model, self.shape, self.dim)
        self.meter, self.batcher = model.meter, self.victim.batcher
        self.within_budget = eps is not None
        self.best_metric = "attack_success" if self.within_budget else None
        self.min_move = _MIN_MOVE * math.sqrt(self.dim)
        self.victim.reserved = self.evaluation_cost

    def _evaluate_fewer(self, left: int) -> None:
        """Evaluate fewer inputs, evenly spaced, if all of them cost too much of the queries."""
        fewest = max(1, min(_FEWEST, left // 4))
        most, own = max(int(_EVALUATION * left), fewest), len(self.own.labels)
        held_out = 0 if self.held_out is None else len(self.held_out.labels)
        if own + held_out <= most:
            return
        for_own = max(most - held_out, most // 2 if held_out else most)
        if self.held_out is not None and most - for_own < held_out:
            self.held_out = self.held_out.some(_spread(held_out, most - for_own))
        share = min(1.0, for_own / own)
        self._evaluated = [
            _spread(len(every), max(1, int(share * len(every)))) for every in self._evaluated
        ]

    @property
    def evaluated(self) -> Inputs:
        """The inputs of devices that evaluations take: all of them, or fewer if queries are few."""
        starts = zip(self._starts[:-1], self._evaluated, strict=True)
        return self.own.some(np.concatenate([first + some for first, some in starts]))

    @property
    def evaluation_cost(self) -> int:
        """The number of queries per evaluation: inputs of the devices and those held out."""
        held_out = 0 if self.held_out is None else len(self.held_out.labels)
        return sum(map(len, self._evaluated)) + held_out

    @property
    def reported(self) -> Inputs:
        """The inputs of the report: those held out, or else those of the devices."""
        return self.evaluated if self.held_out is None else self.held_out

    def initial(self) -> Array:
        """Return no perturbation."""
        return np.zeros(self.dim, np.float32)

    def size(self, device: int) -> int:
        """Return the number of inputs of a device."""
        return int(self._starts[device + 1] - self._starts[device])

    def perturbation(self, x: Array) -> Perturbation:
        """Return the perturbation x in the shape of an input."""
        return self.transform.perturbation(x)

    def distortion(self, x: Array) -> Distortion:
        """Return how far x moves the inputs of the devices; takes no queries."""
        return self.perturbation(x).moved(self.own.rows).distortion

    def batch(self, device: int, size: int, draws: Draws) -> Array:
        """Return indices of inputs of a device, independent and uniform (with replacement)."""
        return self.take(device, draws.integers(self.size(device), size))

    def take(self, device: int, which: Array) -> Array:
        """Return the indices of chosen inputs of a device."""
        return np.asarray(self._starts[device] + which)

    def contents(self, device: int) -> Iterable[bytes]:
        """Return the numbers and the label of each input."""
        for i in range(self._starts[device], self._starts[device + 1]):
            yield self.own.rows[i].tobytes() + self.own.labels[i].tobytes()

    def values(self, points: Array, batch: Array) -> Array:
        """Return ψ of each input at each perturbation, (k, d) -> (k, b), by few model calls.

        Within a budget this is the lead in confidence, or of logits ψ / (1 + ψ): points are
        compared by how many inputs they fool, and not by inputs that are far from it.
        """
        if not self.within_budget:
            return self._values(points, batch)
        size = max(1, _NUMBERS // (len(batch) * self.dim))
        pieces = [points[at : at + size] for at in range(0, len(points), size)]
        likely = self.model.outputs in ("probabilities", "labels")
        margin = "confidences" if likely else self.margin
        values = np.concatenate([self._values(piece, batch, margin=margin) for piece in pieces])
        return values if likely else values / (1 + values)

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: Array
    ) -> Array:
        """Return the values; of forward differences the budget may cut off the last.

        The values along directions that were cut off are those at x.
        """
        points = directions[rows]
        points *= steps[:, None].astype(x.dtype)
        points += x
        return self._values(points, batch, may_be_cut=not steps[0])

    def _values(
        self, points: Array, batch: Array, may_be_cut: bool = False, margin: str | None = None
    ) -> Array:
        """Return ψ, (k, b). If the answers are cut short, fill in ψ at the first point."""
        write, costs = self.transform.query_inputs(self.own.rows[batch], points)
        least = len(batch) if may_be_cut else costs.size  # f at x, to fill in
        scores = self.victim.ask(costs.size, write, least)
        count = len(scores)
        labels = np.tile(self.own.labels[batch], len(points))
        leads = np.maximum(self.margins(scores, labels[:count], margin), 0)
        if count < costs.size:
            at_x = np.tile(leads[: len(batch)], len(points))
            leads = np.concatenate([leads, at_x[count:]])
        return leads.reshape(costs.shape) + costs

    def margins(self, scores: Array, labels: Array, margin: str | None = None) -> Array:
        """Return the margin by which each input still resists, shape (n,).

        This is the lead of the right class over any other, or of any other class over the target.
        Within a budget, rounded probabilities are compared as confidences: logarithms would
        exaggerate the step from 0 to 0.01. The paper's form uses all scores unchanged.
        """
        model, target = self.model, self.target
        labels = labels if target is None else np.full(len(labels), target)
        key = "labels" if target is None else "target"
        check_columns(labels, scores.shape[1], key)  # unknown before some models' first answer
        may_be_rounded = self.within_budget and model.outputs == "probabilities"
        rounded = may_be_rounded and rounding_step(scores) is not None
        confidences = rounded or (margin or self.margin) == "confidences"
        scores = (model.probabilities_of if confidences else model.log_scores_of)(scores)
        scores, rows = scores.astype(np.float64), np.arange(len(labels))
        own = scores[rows, labels]
        scores[rows, labels] = -np.inf
        lead = np.asarray(own - scores.max(axis=1))
        return lead if target is None else -lead

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x), the mean of ψ over all inputs of a device."""
        return np.array([self._evaluate(x, int(i))[0].mean() for i in devices])

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return success rates and distortion on the inputs of devices and on those held out.

        The inputs of devices take no queries if :meth:`losses` was called at the same x before.
        """
        own, held_out = self.evaluated, self.held_out
        found = [self._evaluate(x, device)[1] for device in range(self.devices)]
        rate = fooled(np.concatenate(found), own.labels, self.target).mean()
        metrics = {"attack_success": float(rate)}
        if held_out is not None:
            predictions = self._evaluate(x, self.devices)[1]
            rate = fooled(predictions, held_out.labels, self.target).mean()
            metrics["heldout_success"] = float(rate)
        self.victim.evaluated = True
        distortion = self.perturbation(x).moved(own.rows).distortion
        return metrics | {f"distortion_{k}": v for k, v in distortion._asdict().items()}

    def _evaluate(self, x: Array, part: int) -> Array:
        """Return ψ and the prediction of each input of a device, (2, n), by queries or cached.

        The part after the last device has the inputs held out.
        """
        sizes = [*map(len, self._evaluated)]
        at, end = sum(sizes[:part]), sum(sizes[: part + 1]) if part < self.devices else None
        unknown = np.full((2, self.evaluation_cost), np.nan)
        found = self._evaluations.setdefault(_digest(x), unknown)[:, at:end]
        if not np.isnan(found).any():
            return found
        inputs, perturbation = self.held_out, self.perturbation(x)
        if part < self.devices or inputs is None:
            inputs = self.own.some(self._starts[part] + self._evaluated[part])
        for start in range(0, len(inputs.labels), PIECE):
            rows, labels = inputs.some(slice(start, start + PIECE))
            moved = perturbation.moved(rows)
            scores = self.victim.evaluate(moved.inputs)
            losses = np.maximum(self.margins(scores, labels), 0)
            if not self.within_budget:
                losses += self.transform.c * moved.squares
            found[:, start : start + PIECE] = losses, scores.argmax(axis=1)
        return found

    def memory(self) -> Mapping[str, Array]:
        """Return whole evaluations, the number of classes and the detector, for a checkpoint."""
        known = {
            f"{_EVALUATED}{key}": found
            for key, found in self._evaluations.items()
            if not np.isnan(found).any()
        }
        if self.model.classes is not None:
            known["classes"] = np.array(self.model.classes)
        detector = self.victim.detector
        return known if detector is None else known | detector.memory()

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Take over the state that a checkpoint holds."""
        self._evaluations = {
            key.removeprefix(_EVALUATED): np.array(found)
            for key, found in memory.items()
            if key.startswith(_EVALUATED)
        }
        self.victim.evaluated = bool(self._evaluations)
        if "prints" in memory:
            self.victim.detector = Detector.recalled(memory)
        if "classes" in memory:
            self.model.classes = int(memory["classes"])

    def write_files(self, folder: Path, best: Best) -> None:
        """Write the best evaluated perturbation and its report."""
        count = self.model.classes or int(self.own.labels.max()) + 1
        (clean, before), (moved, after) = map(self._answered, (self.initial(), best.x))
        inputs = Reported(
            whose="own" if self.held_out is None else "held out",
            clean=clean.inputs.reshape(-1, *self.shape),
            perturbed=moved.inputs.reshape(-1, *self.shape),
            distortion=moved.distortion,
            labels=self.reported.labels,
            before=before,
            after=after,
            classes=list(self.classes or map(str, range(count))),
            target=self.target,
        )
        write_run_files(self.victim, folder, inputs, self.perturbation(best.x), self.transfer_to)

    def _answered(self, x: Array) -> tuple[MovedInputs, Array | None]:
        """Return the reported inputs under x, and their predictions: cached, or by queries.

        The predictions are None if there are not enough queries.
        """
        moved = self.perturbation(x).moved(self.reported.rows)
        found = self._evaluations.get(_digest(x), np.full((2, self.evaluation_cost), np.nan))
        found = found[1, -len(moved.inputs) :]  # those held out are the last
        if np.isnan(found).any():
            return moved, self.victim.predictions(moved.inputs)
        return moved, found.astype(np.int64)

    def reserve_for_report(self) -> None:
        """Reserve queries for the report, too: for each ε but that of the attack itself.

        Images after JPEG and resizing are included if they take few of the queries. A
        detector of similar queries begins to watch.
        """
        self.victim.detector = Detector(self.model.queries)
        nothing = self.perturbation(self.initial())
        others = [eps for eps in budgets(nothing) if eps != nothing.eps]
        count = len(self.reported.labels)
        processed = 2 * len(PROCESSES) * min(count, PROCESSED) if is_image(self.shape) else 0
        left = self.model.meter.left
        if left is not None and processed > _PROCESSING * left:
            processed = 0
        self.victim.reserved = self.evaluation_cost + len(others) * count + processed

    def suggest_smoothing(self, draws: Draws) -> float | None:
        """Return μ for an attack within a budget: 1, half of the way to the ball's surface."""
        return 1.0 if self.within_budget else None


def _spread(count: int, wanted: int) -> Array:
    """Return indices of ``wanted`` of ``count`` inputs, evenly spaced.

    >>> _spread(10, 4)
    array([0, 2, 5, 7])
    """
    return np.arange(wanted) * count // wanted


def _digest(x: Array) -> str:
    return hashlib.sha256(x.astype(np.float32).tobytes()).hexdigest()


@problem_factory
def attack(
    model: str = "cifar10-resnet8",
    data: str = "cifar10-deer-mini",
    data_dir: str | None = None,
    label: str | list[str] = "deer",
    devices: int = 10,
    partition: str = "sizes",
    c: float = 1.0,
    eps: float | None = None,
    norm: str = "inf",
    target: str | None = None,
    margin: str = "logits",
    max_queries: int | None = None,
    model_kind: str | None = None,
    model_options: dict[str, Any] | None = None,
    transfer_to: str | None = None,
    seed: int = 0,
) -> Attack:
    """Make the problem from the names of a model and a data set: the [problem] table.

    The devices receive the training images of one class that the model classifies correctly, as in
    the paper. Correctly classified test images of the class are held out. Finding these images
    takes one query per image, which counts. ``label`` may be a list of classes, or "all" except the
    ``target``: then each image has the label of its class.

    ``model``, ``model_kind`` and ``model_options`` are arguments of :func:`fedzo.models.load`, and
    so is ``transfer_to``, another model on which the final perturbation is tested.

    >>> attack(devices=5).devices
    5
    """
    victim = victim_of(model, model_kind, model_options or {}, max_queries)
    images = load(data, data_dir)
    aim = None if target is None else columns_named(target, images.classes, "target")[0]
    wanted = columns_named(label, images.classes, "label")
    if label == "all":
        wanted = [column for column in wanted if column != aim]
    require(aim not in wanted, "target", target, f"another class than label = {label!r}")
    train, test = (np.isin(part, wanted) for part in (images.train_labels, images.test_labels))
    cost = int(train.sum() + test.sum())
    enough = victim.max_queries is None or victim.max_queries >= cost
    allowed = f">= {cost:,}: one query per image, to find those that the model gets right"
    require(enough, "max_queries", victim.max_queries, allowed)
    inputs, labels = gets_right(victim, images.train_inputs[train], images.train_labels[train])
    held_out = gets_right(victim, images.test_inputs[test], images.test_labels[test])
    if not len(inputs):
        message = f"{model} gets no training image of the class {label!r} of {data} right"
        raise UsageError(message, code="no-right-images")
    parts = split_samples(labels, devices, partition, seed)
    problem = Attack(
        victim,
        [inputs[part] for part in parts],
        [labels[part] for part in parts],
        held_out=held_out,
        c=c,
        eps=eps,
        norm=norm,
        target=aim,
        margin=margin,
        classes=images.classes,
        transfer_to=None if transfer_to is None else other_of(transfer_to),
    )
    problem.reserve_for_report()  # the run of a configuration has a folder
    return problem
