"""The library call of a robustness tester: one perturbation against a model known by answers."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo import models
from fedzo.algorithms import Algorithm, FedZO, WaveSigns
from fedzo.algorithms.server import contest
from fedzo.core.waves import Waves, plane_wave_count
from fedzo.errors import BudgetSpent, UsageError, require
from fedzo.models import Model
from fedzo.models.base import check_columns
from fedzo.problems.attack import Attack
from fedzo.problems.attack.inputs import check_batches, column_of_target, columns_of, listed
from fedzo.runs.minimize import minimize
from fedzo.runs.options import RunKeywords
from fedzo.runs.result import Callbacks, Result
from fedzo.variables.perturbation import Distortion, Perturbation

Array = NDArray[Any]
T = TypeVar("T")

# Those of `fedzo run attack`, but for the rate: it has the units of the model's scores.
PENALISED = FedZO(
    learning_rate="auto", smoothing=0.001, batch_size=4, directions=20, local_steps=20
)
# Within a budget: a forward difference on one image costs little more than a query a direction, and
# signs need no rate to be measured. η only scales the update, of which the signs are taken.
WITHIN = FedZO(
    learning_rate=0.001,
    smoothing="auto",
    batch_size=1,
    directions=20,
    local_steps=1,
)
SIGNS = WaveSigns(rate=0.1, last_rate=0.01, beta=0.9)
# Images have a contest of plane waves first, of as many as half of the queries beside evaluations
# is enough for; whoever starts from its winner has less far to go.
WAVES = WaveSigns(rate=0.05, last_rate=0.01, beta=0.9, amplitude=2.0)
_DIVISIONS = (8, 6, 4, 2)
_CONTEST = 0.5  # of the queries beside evaluations that it may take
_NUMBERS = 1 << 23  # in all of its waves: larger images have fewer
_FEW = 60  # rounds: with fewer the steps are longer, so that x still gets to the ball's surface
_ROUNDS = 200  # of an attack within a budget, where queries are not limited
_EVALUATIONS = 4  # of an attack within a budget at most, beside that of the start
_SHARE = 0.1  # of the queries that evaluations may take, where more than one is not needed


class UniversalAttack:
    """One perturbation that makes a classifier err on many inputs, from its answers only.

    Parameters
    ----------
    model
        A :class:`~fedzo.models.Model`; a fitted scikit-learn classifier, a torch module that
        answers logits, or what :func:`fedzo.models.load` takes are made into one.
    c : float
        What distortion costs, against the margin by which the model is right; without ``eps``.
    eps : float, optional
        The budget: how far an input may be moved at most, in units of its range, such as 8/255.
        None: the paper's form, in which distortion costs ``c``.
    norm : str
        In what ``eps`` is counted: ``inf``, the largest change of a number, or ``l2``.
    target : label, optional
        What inputs are to be taken for; None: for anything that they are not.
    margin : str
        ``logits`` or ``confidences``: see :mod:`fedzo.problems.attack.problem`.
    transfer_to : model, optional
        Another model, on which the report of a run with ``run_dir`` tries the perturbation.
    algorithm : Algorithm, optional
        How to look for it. By default FedZO: within a budget by signs, with as many rounds as
        the model's ``max_queries`` allows; else with the settings of ``fedzo run attack`` and a
        measured learning rate.
    callback, run_dir, resume, **options
        As in :func:`fedzo.minimize`; 20 rounds, each evaluated, by default. Within a budget, as
        many as ``max_queries`` allows, or 200, four of them evaluated.

    Attributes
    ----------
    noise : array
        The perturbation, of an input's shape: within a budget what is added, in units of the
        input's range; else x in the variables of :mod:`fedzo.variables.perturbation`.
    distortion : Distortion
        How far it moves the inputs that it was made from.
    queries : int
        What it has cost: how many inputs the model has answered in all.
    result : Result
        What came of the run.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> weights = rng.normal(size=(16, 3))
    >>> class Linear:
    ...     def predict_proba(self, inputs):
    ...         powers = np.exp(inputs @ weights)
    ...         return powers / powers.sum(axis=1, keepdims=True)
    >>> inputs = rng.uniform(size=(60, 16))
    >>> labels = Linear().predict_proba(inputs).argmax(axis=1)
    >>> label = np.bincount(labels).argmax()
    >>> of_one_class = inputs[labels == label]
    >>> devices = np.array_split(of_one_class, 3)
    >>> attack = UniversalAttack(Linear(), rounds=5).fit(devices, label)
    >>> attack.success_rate(of_one_class, label) > 0.5
    True

    No number of an input is moved by more than a fifth of the range:

    >>> attack = UniversalAttack(Linear(), eps=0.2).fit(devices, label)
    >>> attack.success_rate(of_one_class, label) > 0.5, attack.distortion.linf_max < 0.201
    (True, True)
    """

    def __init__(  # type: ignore[misc]  # target: a label here, where a run's is a loss
        self,
        model: Any,
        *,
        c: float = 1.0,
        eps: float | None = None,
        norm: str = "inf",
        target: Any = None,
        margin: str = "logits",
        transfer_to: Any = None,
        algorithm: Algorithm | None = None,
        callback: Callbacks = None,
        run_dir: str | os.PathLike[str] | None = None,
        resume: bool = False,
        **options: Unpack[RunKeywords],
    ) -> None:
        self.model = _model(model)
        self.c, self.eps, self.norm, self.target, self.margin = c, eps, norm, target, margin
        self.transfer_to = None if transfer_to is None else _model(transfer_to)
        self._algorithm, self._given = algorithm, options
        self._options: dict[str, Any] = {
            "callback": callback,
            "run_dir": run_dir,
            "resume": resume,
        }
        self._perturbation: Perturbation | None = None
        self._distortion: Distortion | None = None
        self._result: Result | None = None

    def fit(
        self,
        images_per_device: Sequence[ArrayLike],
        labels: Any,
        held_out: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> UniversalAttack:
        """Look for the perturbation; the best that was evaluated is kept.

        Parameters
        ----------
        images_per_device
            Each device's inputs, in the model's input range.
        labels
            Each device's labels, one for each input or one for all of them; a single label: that
            of all inputs of all devices. A label is a column of the model's scores, or for
            scikit-learn the estimator's own.
        held_out
            Inputs and labels that no device has, to measure success on as well.

        Raises
        ------
        ModelError
            The model failed, or answered what cannot be scores. If something was evaluated
            before, the best so far is kept all the same: ``noise``, ``save`` and ``result`` work.
        """
        parts = listed("images_per_device", images_per_device)
        check_batches(self.model, images_per_device, parts[0])
        of_all = np.isscalar(labels) or getattr(labels, "ndim", 1) == 0
        problem = Attack(
            self.model,
            parts,
            [labels] * len(parts) if of_all else labels,
            held_out=held_out,
            c=self.c,
            eps=self.eps,
            norm=self.norm,
            target=self.target,
            margin=self.margin,
            transfer_to=self.transfer_to,
        )
        if self._options["run_dir"] is not None:
            problem.reserve_for_report()
        self._result = minimize(problem, **self._plan(problem), **self._options)
        self._perturbation = problem.perturbation(self._result.x)
        self._distortion = problem.distortion(self._result.x)
        if problem.victim.failure is not None:
            failure = problem.victim.failure
            failure.add_note("The best perturbation so far is kept: see noise and save().")
            raise failure
        if not self.noise.any():
            self._result.success = False
            reason = self._result.message
            if next(iter(self._result.history), {}).get("attack_success") == 1:
                reason = "the model errs on all of the devices' inputs without any"
            message = f"no perturbation is better than none: {reason}"
            warnings.warn(message, UserWarning, stacklevel=2)
        return self

    def _plan(self, problem: Attack) -> dict[str, Any]:
        """Return the algorithm, and the rounds and evaluations that suit it and the budgets."""
        if self.eps is None or self._algorithm is not None:
            algorithm: Algorithm = self._algorithm or PENALISED
            # Each round is evaluated, so the best is known whenever the queries end.
            rounds, every = 20, 1
        else:
            signs = _signs(problem, self._given.get("rounds", _ROUNDS))
            affordable, evaluations = _affordable(problem, signs)
            rounds = self._given.get("rounds", affordable)
            longer = max(1.0, _FEW / max(rounds, 1))
            rates = {"rate": longer * signs.rate, "last_rate": longer * signs.last_rate}
            server = replace(signs, shape=problem.shape, rounds=max(rounds, 1), **rates)
            algorithm, every = replace(WITHIN, server=server), max(-(-rounds // evaluations), 1)
        chosen = {"algorithm": algorithm, "rounds": rounds}
        return {**chosen, "evaluate_every": every, **self._given}

    @property
    def result(self) -> Result:
        """What came of the run."""
        return _known(self._result, "fit() first: it makes a result")

    @property
    def distortion(self) -> Distortion:
        """How far the perturbation moves the inputs that it was made from."""
        advice = "fit() first, or ask perturbation.distortion(inputs) of one that was loaded"
        return _known(self._distortion, advice)

    @property
    def perturbation(self) -> Perturbation:
        """The perturbation, with the range of its inputs."""
        return _known(self._perturbation, "there is no perturbation yet: fit() or load() one first")

    @property
    def noise(self) -> Array:
        """The perturbation as an array of an input's shape."""
        return self.perturbation.noise

    @property
    def queries(self) -> int:
        """How many inputs the model has answered in all."""
        return self.model.queries

    def apply(self, inputs: ArrayLike) -> Array:
        """Return the inputs under the perturbation, in the model's input range."""
        return self.perturbation.apply(inputs)

    def success_rate(self, inputs: ArrayLike, labels: ArrayLike) -> float:
        """Return how often the model errs on the inputs, or takes them for the target.

        They are under the perturbation, images within a budget rounded to 8 bits. One label may
        stand for all. It costs a query for each input; what ``fit`` was given as ``held_out`` has
        been measured within its budget, ``result.history[-1]["heldout_success"]``.
        """
        moved = self.apply(inputs)
        right = columns_of(self.model, labels, len(moved))
        shape = self.model.input_shape or self.noise.shape
        try:
            scores = self.model(moved.reshape(-1, *shape))
        except BudgetSpent as error:
            error.add_note("fit() measures success within the budget, on its held_out=(...).")
            raise
        check_columns(right, scores.shape[1])  # which a model may not tell before it answers
        predictions = scores.argmax(axis=1)
        if self.target is not None:
            return float(np.mean(predictions == column_of_target(self.model, self.target)))
        return float(np.mean(predictions != right))

    def project(self, eps: float, norm: str = "inf") -> UniversalAttack:
        """Return the attack with its perturbation brought within a budget; asks the model nothing.

        See :meth:`fedzo.Perturbation.project`. What it is worth is another question to the
        model: :meth:`success_rate`.
        """
        projected = copy.copy(self)
        projected._perturbation = self.perturbation.project(eps, norm)
        projected.eps, projected.norm = eps, norm
        projected._distortion = projected._result = None
        return projected

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the perturbation to one file."""
        self.perturbation.save(path)

    def load(self, path: str | os.PathLike[str]) -> UniversalAttack:
        """Take a saved perturbation, to try it on this model."""
        saved, model = Perturbation.load(path), self.model
        fits = model.input_shape is None or saved.noise.size == math.prod(model.input_shape)
        of = f"for inputs of shape {saved.noise.shape} in {saved.input_range}"
        allowed = f"for those of {model.name}: {model.input_shape} in {model.input_range}"
        require(fits and saved.input_range == model.input_range, "perturbation", of, allowed)
        self._perturbation, self._distortion, self._result = saved, None, None
        return self


def _signs(problem: Attack, rounds: int) -> WaveSigns:
    """Return the server step: of images with the largest contest that queries and memory allow."""
    (left, _), sides = _left(problem), Waves(problem.shape).sides
    for divisions in _DIVISIONS if sides else ():
        waves = plane_wave_count(problem.shape, divisions)
        different = 2 * divisions <= min(sides)  # of finer ones there are no more
        enough = contest.cost(1 + waves, problem.devices) <= _CONTEST * left
        fits = waves * problem.dim <= _NUMBERS and contest.stages(1 + waves) < rounds / 4
        if different and enough and fits:
            return replace(WAVES, divisions=divisions)
    return SIGNS


def _affordable(problem: Attack, signs: WaveSigns) -> tuple[int, int]:
    """Return how many rounds the queries are enough for, the last one in part, and evaluations."""
    left, evaluations = _left(problem)
    if math.isinf(left):
        return _ROUNDS, evaluations
    points = 1 + plane_wave_count(problem.shape, signs.divisions)
    in_a_round = problem.devices * (WITHIN.directions + problem.candidates)
    steps = math.ceil((left - contest.cost(points, problem.devices)) / in_a_round)
    return contest.stages(points) + max(steps, 1), evaluations


def _left(problem: Attack) -> tuple[float, int]:
    """Return the queries beside those of evaluations, and how many evaluations there are."""
    left, each = problem.model.meter.left, problem.evaluation_cost
    if left is None:
        return math.inf, _EVALUATIONS
    evaluations = min(max(int(_SHARE * left / each) - 1, 1), _EVALUATIONS)
    return left - evaluations * each - problem.victim.reserved, evaluations


def _known(value: T | None, advice: str) -> T:
    if value is None:
        raise UsageError(advice)
    return value


def _model(model: Any) -> Model:
    """Return what a person brings as a black box, where it tells by itself what it answers."""
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return models.load(os.fspath(model))
    if hasattr(model, "predict_proba"):
        return models.SklearnModel(model)
    if any(kind.__module__.startswith("torch.nn.") for kind in type(model).__mro__):
        return models.TorchModel(model)
    raise UsageError(
        f"{type(model).__name__} does not tell what its scores are: wrap it, as in "
        "fedzo.models.FunctionModel(function, outputs='logits')"
    )
