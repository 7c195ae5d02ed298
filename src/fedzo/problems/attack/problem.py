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
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.core.objective import Best, Objective, described
from fedzo.core.random import Draws, Stream
from fedzo.data import load
from fedzo.data.partition import partition as split_samples
from fedzo.errors import (
    Halted,
    InvalidValue,
    ModelError,
    UsageError,
    nearest,
    one_of,
    require,
)
from fedzo.models import Model
from fedzo.models.base import check_columns
from fedzo.problems.attack.forms import form_of
from fedzo.problems.attack.inputs import (
    PIECE,
    Inputs,
    columns_named,
    columns_of,
    gets_right,
    joined,
    labelled,
    listed,
    shape_of_inputs,
    victim_of,
)
from fedzo.variables.ball import is_image
from fedzo.variables.perturbation import Distortion, Perturbation, distortion_of

Array = NDArray[Any]

MARGINS = ("logits", "confidences")
_SHOWN = 12  # inputs in the picture
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
        The labels' names, for the picture.

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
        self._own = joined(own)
        self._starts = np.cumsum([0, *(len(part.labels) for part in own)])
        self._held_out = None if held_out is None else self._apart(held_out)
        self._target = None if target is None else int(columns_of(model, [target], 1, "target")[0])
        other = self._target is None or not np.any(self._own.labels == self._target)
        require(other, "target", target, "another class than those of the devices' inputs")
        self.dim, self.devices = self._own.rows.shape[1], len(parts)
        self.reach = _REACH * math.sqrt(self.dim)
        self.failure: ModelError | None = None  # what ended the run, if the model did
        self._seen: dict[int, tuple[str, Seen]] = {}  # by device, of the last evaluation
        self._shown: dict[str, Array] = {}  # predictions for the picture, by perturbation

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
        held_out = 0 if self._held_out is None else len(self._held_out.labels)
        return len(self._own.labels) + held_out

    def initial(self) -> Array:
        """Start from no perturbation."""
        return np.zeros(self.dim, np.float32)

    def size(self, device: int) -> int:
        """Return how many inputs a device holds."""
        return int(self._starts[device + 1] - self._starts[device])

    def batch(self, device: int, size: int, draws: Draws) -> Array:
        """Return which inputs: of a device, independent and uniform (with replacement)."""
        first = int(self._starts[device])
        return first + draws.integers(self.size(device), size)

    def values(self, points: Array, batch: Array) -> Array:
        """Return ψ of each input at each perturbation, (k, d) -> (k, b): one call of the model."""
        own, count = self._own, len(points)
        inputs, costs = self.form.queried(own.rows, batch, points)
        scores = self._scores(inputs)
        labels = np.tile(own.labels[batch], count)
        margins = self._margins(scores, labels).reshape(count, -1)
        return np.maximum(margins, 0) + costs

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
        predictions = [seen.predictions[self._shown_own()]]
        if self._held_out is not None:
            held_out = self._look(x, self._held_out, slice(None))
            told["heldout_success"] = float(held_out.fooled.mean())
            predictions.append(held_out.predictions[: self._shown_held_out()])
        self._shown[_fingerprint(x)] = np.concatenate(predictions)
        return told | {f"distortion_{k}": v for k, v in distortion._asdict().items()}

    def write_files(self, folder: Path, best: Best) -> None:
        """Write the best perturbation that was evaluated, and a picture of what it does."""
        perturbation = self.perturbation(best.x)
        perturbation.save(folder / "perturbation.npz")
        pictures = self._pictures(self.initial()), self._pictures(best.x)
        from fedzo.problems.attack.images import draw_images

        if is_image(self.shape):
            draw_images(*pictures, perturbation, self.classes, folder / "images.png")

    def perturbation(self, x: Array) -> Perturbation:
        """Return what x is, in the shape of an input."""
        return self.form.perturbation(x)

    def distortion(self, x: Array) -> Distortion:
        """Return how far x moves the devices' inputs; asks the model nothing."""
        moved = self.form.moved(self._own.rows, np.arange(len(self._own.labels)), x)
        return distortion_of(moved.l2, moved.linf)

    def _pictures(self, x: Array) -> tuple[Array, Array, Array | None]:
        """Return the inputs of the picture under x, their labels, and what the model says."""
        inputs = self._inputs_shown()
        images = self.form.moved(inputs.rows, np.arange(len(inputs.labels)), x).inputs
        predictions = self._shown.get(_fingerprint(x))
        if predictions is None:  # a resumed run: the evaluation was in its first part
            try:
                predictions = self._scores(images).argmax(axis=1)
            except Halted:
                predictions = None
        return images.reshape(-1, *self.shape), inputs.labels, predictions

    def _inputs_shown(self) -> Inputs:
        own = self._shown_own()
        inputs = [Inputs(self._own.rows[own], self._own.labels[own])]
        if self._held_out is not None:
            first = slice(self._shown_held_out())
            inputs.append(Inputs(self._held_out.rows[first], self._held_out.labels[first]))
        return joined(inputs)

    def _shown_own(self) -> Array:
        count = len(self._own.labels)
        wanted = min(count, _SHOWN - self._shown_held_out())
        return np.arange(wanted) * count // wanted  # of as many devices as may be

    def _shown_held_out(self) -> int:
        return 0 if self._held_out is None else min(_SHOWN // 2, len(self._held_out.labels))

    def _evaluate(self, x: Array, device: int) -> Seen:
        """Look at all inputs of a device, once for each x."""
        key = _fingerprint(x)
        last, seen = self._seen.get(device, ("", None))
        if last == key and seen is not None:
            return seen
        own = slice(self._starts[device], self._starts[device + 1])
        seen = self._look(x, self._own, own)
        self._seen[device] = key, seen
        return seen

    def _look(self, x: Array, inputs: Inputs, which: slice) -> Seen:
        every = np.arange(len(inputs.labels))[which]
        parts = []
        for start in range(0, len(every), PIECE):
            chosen = every[start : start + PIECE]
            labels = inputs.labels[chosen]
            moved = self.form.moved(inputs.rows, chosen, x)
            scores = self._scores(moved.inputs)
            losses = np.maximum(self._margins(scores, labels), 0) + moved.costs
            predictions = scores.argmax(axis=1)
            fooled = predictions != labels if self._target is None else predictions == self._target
            parts.append(Seen(losses, fooled, predictions, moved.l2, moved.linf))
        return joined(parts)

    def _scores(self, inputs: Array) -> Array:
        """Ask the model; that it fails where it has answered before ends the run in order."""
        shape = self.model.input_shape or self.shape
        try:
            return self.model(inputs.reshape(-1, *shape))
        except ModelError as error:
            if not self._shown:  # nothing was evaluated yet: there is nothing to keep
                raise
            self.failure = error
            raise Halted(str(error)) from error

    def _margins(self, scores: Array, labels: Array) -> Array:
        """Return by how much the right class leads any other, or any other the target."""
        if self._target is not None:
            labels = np.full(len(labels), self._target)
        check_columns(labels, scores.shape[1])  # which a model may not tell before it answers
        by_logits = self.margin == "logits"
        of = self.model.log_scores_of if by_logits else self.model.probabilities_of
        scores = of(scores).astype(np.float64)
        rows = np.arange(len(labels))
        own = scores[rows, labels]
        scores[rows, labels] = -np.inf
        lead = np.asarray(own - scores.max(axis=1))
        return lead if self._target is None else -lead


@described
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
    seed: int = 0,
) -> Attack:
    """Make the problem from the names of a model and a data set: the [problem] table.

    Of the data set's training images of one class, those that the model gets right are dealt
    to the devices, as in the paper; of its test images, likewise, are those held out. Finding
    out which they are is one query for each image, and counts. ``label`` may be a list of
    classes, or "all" but the ``target``: then each image has the label of its own class.

    ``model``, ``model_kind`` and ``model_options`` are what :func:`fedzo.models.load` takes.

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
    of_it = [
        (inputs[mask], labels[mask])
        for inputs, labels in (
            (images.train_inputs, images.train_labels),
            (images.test_inputs, images.test_labels),
        )
        for mask in [np.isin(labels, wanted)]
    ]
    cost = sum(len(labels) for _, labels in of_it)
    allowed = f">= {cost:,}: a query for each image, to find those that the model gets right"
    require(
        victim.max_queries is None or victim.max_queries >= cost,
        "max_queries",
        victim.max_queries,
        allowed,
    )
    (train, labels), test = (gets_right(victim, *part) for part in of_it)
    if not len(train):
        raise UsageError(f"{model} gets no training image of the class {label!r} of {data} right")
    parts = split_samples(labels, devices, partition, Draws(seed, Stream.PARTITION))
    return Attack(
        victim,
        [train[part] for part in parts],
        [labels[part] for part in parts],
        held_out=test,
        c=c,
        eps=eps,
        norm=norm,
        target=aim,
        margin=margin,
        classes=images.classes,
    )


def _fingerprint(x: Array) -> str:
    return hashlib.sha256(x.astype(np.float32).tobytes()).hexdigest()
