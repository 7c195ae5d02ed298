"""Evaluate perturbations: the queries to the attacked model, its margins and its errors."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedzo.core.batching import Answer, QueryBatcher
from fedzo.core.types import Array
from fedzo.errors import Halted, ModelError, check_choice, require
from fedzo.models import Model
from fedzo.models.base import check_columns, rounding_step
from fedzo.problems.attack.detector import Detector
from fedzo.problems.attack.inputs import (
    PIECE,
    Inputs,
    column_of_target,
    hidden_image,
    joined,
    labelled,
    listed,
    shape_of_inputs,
)
from fedzo.problems.attack.transforms import BudgetTransform, Transform, transform_of
from fedzo.variables.perturbation import Distortion, Perturbation, distortion_of

MARGINS = ("logits", "confidences")
_PREDICTIONS = "predictions "  # in the names of what a checkpoint holds
_DEVICES_AT_ONCE = 32
_EVALUATION = 0.07  # the largest share of the queries for one evaluation within a budget
_FEWEST = 40  # inputs: no evaluation has fewer, unless they are a quarter of the queries
_LOOKED_AT = 256  # inputs, to see whether they are images
_NUMBERS = 1 << 21  # in the directions of all devices at once: a few hundred MB with all else


class Question(NamedTuple):
    """Inputs to evaluate, shape (n, d)."""

    inputs: Array
    may_be_cut: bool  # whether an answer to the first of them is of use
    evaluates: bool  # whether it may use the queries that are reserved for evaluations


class Victim:
    """The attacked model, which several devices query in one batch.

    Parameters
    ----------
    model : Model
        The black box.
    shape : tuple of int
        The shape of an input, if the model does not know it.
    dim : int
        The number of values of an input.

    Attributes
    ----------
    reserved : int
        The number of queries that only evaluations may use.
    evaluated : bool
        Whether a perturbation was evaluated: from then on a failing model ends the run normally.
    failure : ModelError, optional
        The failure of the model that ended the run.
    detector : Detector, optional
        Watches the queries, for the report.
    """

    def __init__(self, model: Model, shape: tuple[int, ...], dim: int) -> None:
        self.model, self._shape = model, model.input_shape or shape
        at_once = max(1, min(_DEVICES_AT_ONCE, _NUMBERS // dim))
        self.batcher = QueryBatcher(self._answer, at_once)
        self.reserved, self.evaluated = 0, False
        self.detector: Detector | None = None
        self.failure: ModelError | None = None

    def ask(self, inputs: Array, *, may_be_cut: bool = False, evaluates: bool = False) -> Array:
        """Return the scores of the inputs, or of the first of them if the budget allows no more.

        Raises :class:`~fedzo.errors.BudgetSpent` if no input can be evaluated.
        """
        return self.batcher.ask(Question(inputs, may_be_cut, evaluates))

    def _answer(self, questions: list[Question]) -> Sequence[Answer]:
        sizes = np.array([len(question.inputs) for question in questions])
        left = self.model.meter.left
        if left is not None:
            left -= 0 if questions[0].evaluates else self.reserved  # the same for all of a group
            granted = (left - (np.cumsum(sizes) - sizes)).clip(0, sizes)
            whole = np.array([not question.may_be_cut for question in questions])
            sizes = np.where(whole & (granted < sizes), 0, granted)
        spent = self.model.meter.spent()
        if not sizes.any():
            return [spent] * len(questions)
        inputs = [q.inputs[:size] for q, size in zip(questions, sizes, strict=True)]
        scores = self._scores(inputs[0] if len(inputs) == 1 else np.concatenate(inputs))
        parts = np.split(scores, np.cumsum(sizes)[:-1])
        return [part if len(part) else spent for part in parts]

    def _scores(self, inputs: Array) -> Array:
        if self.detector is not None:
            self.detector.watch(inputs, self.model.input_range, self.model.meter.queries)
        try:
            return self.model(inputs.reshape(-1, *self._shape))
        except ModelError as error:
            if not self.evaluated:
                raise
            self.failure = error
            raise Halted(str(error)) from error


class Outcome(NamedTuple):
    """The effect of a perturbation on some inputs, each array of shape (n,)."""

    losses: Array
    fooled: Array
    predictions: Array
    l2: Array
    linf: Array


class Evaluator:
    """A model and the labelled inputs of devices, on which perturbations are evaluated.

    See :class:`fedzo.problems.attack.problem.Attack` for the parameters. The last outcome of each
    device is cached, because its loss and its metrics are evaluated one after the other. The
    predictions under each x are cached for the report.
    """

    def __init__(
        self,
        model: Model,
        inputs: Sequence[ArrayLike],
        labels: Sequence[ArrayLike],
        held_out: tuple[ArrayLike, ArrayLike] | None,
        c: float,
        eps: float | None,
        norm: str,
        target: Any,
        margin: str,
    ) -> None:
        check_choice("margin", margin, MARGINS)
        parts, names = listed("inputs", inputs), listed("labels", labels)
        every = f"a list with an entry for each of the {len(parts)} devices"
        require(len(parts) == len(names), "labels", f"a list of {len(names)}", every)
        self.model, self.margin, self.shape = model, margin, shape_of_inputs(model, parts[0])
        self.transform: Transform = transform_of(self.shape, model.input_range, c, eps, norm)
        own = [
            labelled(model, part, name, self.transform, of=f"[{device}]")
            for device, (part, name) in enumerate(zip(parts, names, strict=True))
        ]
        self.own = joined(own)
        self._starts = np.cumsum([0, *(len(part.labels) for part in own)])
        self.held_out = None if held_out is None else self._labelled_pair(held_out)
        self._evaluated = [np.arange(len(part.labels)) for part in own]  # by device
        if eps is not None and model.meter.left is not None:
            self._evaluate_fewer(model.meter.left)
        self.target = None if target is None else column_of_target(model, target)
        other = self.target is None or not np.any(self.own.labels == self.target)
        require(other, "target", target, "another class than those of the devices' inputs")
        self.within_budget, self.image = eps is not None, tuple[int, ...]()
        self.dim, self.devices = self.own.rows.shape[1], len(parts)
        self.victim = Victim(model, self.shape, self.dim)
        self._last: dict[int, tuple[str, Outcome]] = {}  # by device
        self._saved: dict[int, tuple[str, Outcome]] = {}  # of a whole evaluation
        self._predictions: dict[str, Array] = {}  # of all inputs, by perturbation

    def _labelled_pair(self, held_out: tuple[ArrayLike, ArrayLike]) -> Inputs | None:
        is_pair = isinstance(held_out, tuple | list) and len(held_out) == 2
        require(is_pair, "held_out", type(held_out).__name__, "a pair of inputs and their labels")
        if not len(held_out[0]):  # type: ignore[arg-type]
            return None
        return labelled(self.model, *held_out, self.transform, of=" held out")

    def _evaluate_fewer(self, left: int) -> None:
        """Evaluate fewer inputs, evenly spaced, if all of them cost too much of the queries."""
        fewest = max(1, min(_FEWEST, left // 4))
        most, own = max(int(_EVALUATION * left), fewest), len(self.own.labels)
        held_out = 0 if self.held_out is None else len(self.held_out.labels)
        if own + held_out <= most:
            return
        for_own = max(most - held_out, most // 2 if held_out else most)
        if self.held_out is not None and most - for_own < held_out:
            self.held_out = Inputs(
                *(part[_spread(held_out, most - for_own)] for part in self.held_out)
            )
        share = min(1.0, for_own / own)
        self._evaluated = [
            _spread(len(every), max(1, int(share * len(every)))) for every in self._evaluated
        ]

    def look_for_images(self) -> None:
        """Treat flat rows as images if they seem to be some: waves and squares fit them better."""
        found = hidden_image(self.own.rows[:_LOOKED_AT]) if len(self.shape) == 1 else None
        if found is not None and isinstance(self.transform, BudgetTransform):
            self.image, self.transform = found, replace(self.transform, image=found)

    @property
    def evaluated(self) -> Inputs:
        """The inputs of devices that evaluations take: all of them, or fewer if queries are few."""
        starts = self._starts[:-1]
        chosen = [first + some for first, some in zip(starts, self._evaluated, strict=True)]
        return Inputs(*(part[np.concatenate(chosen)] for part in self.own))

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
        perturbed = self.transform.perturbed_inputs(self.own.rows, x)
        return distortion_of(perturbed.l2, perturbed.linf)

    def margins(self, scores: Array, labels: Array, margin: str | None = None) -> Array:
        """Return the margin by which each input still resists, shape (n,).

        This is the lead of the right class over any other, or of any other class over the target.
        Within a budget, rounded probabilities are compared as confidences: logarithms would
        exaggerate the step from 0 to 0.01. The paper's form uses all scores unchanged.
        """
        model, target = self.model, self.target
        labels = labels if target is None else np.full(len(labels), target)
        check_columns(labels, scores.shape[1])  # unknown before the first answer of some models
        may_be_rounded = self.within_budget and model.outputs == "probabilities"
        rounded = may_be_rounded and rounding_step(scores) is not None
        confidences = rounded or (margin or self.margin) == "confidences"
        scores = (model.probabilities_of if confidences else model.log_scores_of)(scores)
        scores, rows = scores.astype(np.float64), np.arange(len(labels))
        own = scores[rows, labels]
        scores[rows, labels] = -np.inf
        lead = np.asarray(own - scores.max(axis=1))
        return lead if target is None else -lead

    def fooled(self, predictions: Array, labels: Array) -> Array:
        """Return which predictions are wrong, or are the target if there is one."""
        wrong = predictions != labels if self.target is None else predictions == self.target
        return np.asarray(wrong)

    def outcome_of_device(self, x: Array, device: int) -> Outcome:
        """Return the outcome for the inputs of a device; the last one is cached."""
        key = _digest(x)
        evaluated, outcome = self._last.get(device, ("", None))
        if evaluated != key or outcome is None:
            own = self._starts[device] + self._evaluated[device]
            outcome = self.outcome_of(x, Inputs(self.own.rows[own], self.own.labels[own]))
            self._last[device] = key, outcome
        return outcome

    def outcome_of(self, x: Array, inputs: Inputs) -> Outcome:
        """Return the outcome for some inputs, evaluated in pieces."""
        outcomes = []
        for start in range(0, len(inputs.labels), PIECE):
            rows, labels = (part[start : start + PIECE] for part in inputs)
            perturbed = self.transform.perturbed_inputs(rows, x)
            scores = self.victim.ask(perturbed.inputs, evaluates=True)
            losses = np.maximum(self.margins(scores, labels), 0) + perturbed.costs
            predictions = scores.argmax(axis=1)
            fooled = self.fooled(predictions, labels)
            outcomes.append(Outcome(losses, fooled, predictions, perturbed.l2, perturbed.linf))
        return joined(outcomes)

    def remember(self, x: Array, outcomes: list[Outcome]) -> None:
        """Cache the predictions of all inputs, those held out last."""
        predictions = [outcome.predictions for outcome in outcomes]
        self._predictions[_digest(x)] = np.concatenate(predictions).astype(np.int32)
        self.victim.evaluated, self._saved = True, dict(self._last)

    def memory(self) -> Mapping[str, Array]:
        """Return the last outcomes, predictions, classes and the detector, for a checkpoint."""
        known = {f"{_PREDICTIONS}{key}": found for key, found in self._predictions.items()}
        for device, (key, outcome) in self._saved.items():
            for name, found in {"key": key, **outcome._asdict()}.items():
                known[f"last_{device}_{name}"] = np.asarray(found)
        if self.model.classes is not None:
            known["classes"] = np.array(self.model.classes)
        detector = self.victim.detector
        return known if detector is None else known | detector.memory()

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Take over the state that a checkpoint holds."""
        self._predictions = {
            key.removeprefix(_PREDICTIONS): found
            for key, found in memory.items()
            if key.startswith(_PREDICTIONS)
        }
        self.victim.evaluated = bool(self._predictions)
        for name in (name for name in memory if name.startswith("last_") and name.endswith("_key")):
            found = (memory[name.removesuffix("key") + field] for field in Outcome._fields)
            self._last[int(name.split("_")[1])] = str(memory[name]), Outcome(*found)
        self._saved = dict(self._last)
        if "prints" in memory:
            self.victim.detector = Detector.recalled(memory)
        if "classes" in memory:
            self.model.classes = int(memory["classes"])

    def predictions(self, x: Array, which: slice | Array, inputs: Array) -> Array | None:
        """Return the predictions of some inputs under x: cached, or else by queries.

        None if there are not enough queries. ``which`` are the indices of the inputs among all,
        and ``inputs`` the perturbed inputs.
        """
        cached = self._predictions.get(_digest(x))
        return self.ask_predictions(inputs) if cached is None else cached[which]

    def ask_predictions(self, inputs: Array) -> Array | None:
        """Return the predictions of perturbed inputs, or None without enough queries."""
        try:
            return np.asarray(self.victim.ask(inputs, evaluates=True).argmax(axis=1))
        except Halted:
            return None


def _spread(count: int, wanted: int) -> Array:
    """Return indices of ``wanted`` of ``count`` inputs, evenly spaced.

    >>> _spread(10, 4)
    array([0, 2, 5, 7])
    """
    return np.arange(wanted) * count // wanted


def _digest(x: Array) -> str:
    return hashlib.sha256(x.astype(np.float32).tobytes()).hexdigest()
