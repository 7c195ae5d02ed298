"""``fedzo.UniversalAttack``: one perturbation against a model that is only queried."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedzo import models
from fedzo.algorithms import Algorithm, FedZO
from fedzo.algorithms.server import FourierSign, halving
from fedzo.core.types import Array
from fedzo.core.waves import Waves, plane_wave_count
from fedzo.errors import BudgetSpent, FedzoWarning, UsageError, require
from fedzo.models import Model
from fedzo.models.base import check_columns
from fedzo.problems.attack import Attack
from fedzo.problems.attack.inputs import check_batches, column_of_target, columns_of, listed
from fedzo.runs.minimize import minimize
from fedzo.runs.options import RunKeywords
from fedzo.runs.result import Callbacks, Result
from fedzo.variables.perturbation import Distortion, Perturbation

T = TypeVar("T")

# As `fedzo run attack`, except for the learning rate, which has the units of the model's scores.
PENALISED = FedZO(
    learning_rate="auto", smoothing=0.001, batch_size=4, directions=20, local_steps=20
)
# Within a budget: a forward difference on one image costs about one query per direction, and signs
# need no measured rate. η only scales the update, whose signs are used.
WITHIN = FedZO(learning_rate=0.001, smoothing="auto", batch_size=1, directions=20, local_steps=1)
SIGNS = FourierSign(learning_rate=0.1, last_learning_rate=0.01, beta=0.9)
# Images begin with successive halving over plane waves, with at most half of the queries that
# evaluations leave. The winner is a better start.
WAVES = FourierSign(learning_rate=0.05, last_learning_rate=0.01, beta=0.9, amplitude=2.0)
_DIVISIONS = (8, 6, 4, 2)
_CONTEST = 0.5  # the share of the queries, without evaluations, that the halving may use
_NUMBERS = 1 << 23  # in all waves together: larger images have fewer waves
_FEW = 60  # rounds: with fewer the steps are longer, so that x still reaches the ball's surface
_ROUNDS = 200  # of an attack within eps and without max_queries
_EVALUATIONS = 4  # at most, of an attack within eps, without the evaluation of the start
_SHARE = 0.1  # the share of the queries for evaluations, if more than one fits


class UniversalAttack:
    """One perturbation that makes a classifier err on many inputs, from its scores only.

    Parameters
    ----------
    model
        A :class:`~fedzo.models.Model`, a fitted scikit-learn classifier, a torch module that
        returns logits, or any argument of :func:`fedzo.models.load`.
    c : float
        The weight of the distortion against the margin by which the model is right. It is used
        without ``eps``.
    eps : float, optional
        The budget: the largest change of an input, in units of its range, such as 8/255.
        None: the paper's form, in which distortion costs ``c``.
    norm : str
        The norm of ``eps``: ``inf``, the largest change of a number, or ``l2``.
    target : label, optional
        The class that the model shall predict; None: any wrong class.
    margin : str
        ``logits`` or ``confidences``: see :mod:`fedzo.problems.attack.problem`.
    transfer_to : model, optional
        Another model. The report of a run with ``run_dir`` evaluates the perturbation on it.
    algorithm : Algorithm, optional
        By default FedZO. With ``eps`` it uses signs, and as many rounds as the model's
        ``max_queries`` allows; else the settings of ``fedzo run attack`` and a measured learning
        rate.
    callback, run_dir, resume, **options
        As in :func:`fedzo.minimize`. By default 20 rounds, each evaluated. With ``eps``, as many
        as ``max_queries`` allows, or 200, with four evaluations.

    Attributes
    ----------
    noise : array
        The perturbation, with the shape of an input. With ``eps`` it is added to inputs, in
        units of the input's range; else it is x in the variables of
        :mod:`fedzo.variables.perturbation`.
    distortion : Distortion
        The change of the inputs that the perturbation was fitted on.
    queries : int
        The number of inputs that the model has evaluated.
    result : Result
        The result of the run.

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
        self._options: dict[str, Any] = {"callback": callback, "run_dir": run_dir, "resume": resume}
        self._perturbation: Perturbation | None = None
        self._distortion: Distortion | None = None
        self._result: Result | None = None

    def fit(
        self,
        images_per_device: Sequence[ArrayLike],
        labels: Any,
        held_out: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> UniversalAttack:
        """Find a perturbation: the best evaluated one.

        Parameters
        ----------
        images_per_device
            Each device's inputs, in the model's input range.
        labels
            For each device one label per input, or one for all of its inputs. A single label is
            that of all inputs of all devices. A label is a column of the model's scores, or for
            scikit-learn a class of the estimator.
        held_out
            Inputs and labels that no device has, for a second success rate.

        Raises
        ------
        ModelError
            The model failed, or returned invalid scores. The best perturbation evaluated before
            remains available: ``noise``, ``save`` and ``result`` work.
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
            failure.add_note("The best perturbation so far is available: see noise and save().")
            raise failure
        if not self.noise.any():
            self._result.success = False
            reason = self._result.message
            if next(iter(self._result.history), {}).get("attack_success") == 1:
                reason = "the model errs on all inputs without a perturbation"
            message = f"the perturbation does not raise the error rate: {reason}"
            warnings.warn(message, FedzoWarning, stacklevel=2)
        return self

    def _plan(self, problem: Attack) -> dict[str, Any]:
        """Return the algorithm, and the rounds and evaluations that fit the budgets."""
        if self.eps is None or self._algorithm is not None:
            algorithm: Algorithm = self._algorithm or PENALISED
            # Each round is evaluated, so that the best is known when the queries end.
            rounds, every = 20, 1
        else:
            signs = _signs(problem, self._given.get("rounds", _ROUNDS))
            affordable, evaluations = _affordable(problem, signs)
            rounds = self._given.get("rounds", affordable)
            longer = max(1.0, _FEW / max(rounds, 1))
            rates = {
                "learning_rate": longer * signs.learning_rate,
                "last_learning_rate": longer * signs.last_learning_rate,
            }
            server = replace(signs, shape=problem.shape, rounds=max(rounds, 1), **rates)
            algorithm, every = replace(WITHIN, server=server), max(-(-rounds // evaluations), 1)
        chosen = {"algorithm": algorithm, "rounds": rounds}
        return {**chosen, "evaluate_every": every, **self._given}

    @property
    def result(self) -> Result:
        """The result of the run."""
        return _known(self._result, "call fit() first: there is no result yet")

    @property
    def distortion(self) -> Distortion:
        """The change of the inputs that the perturbation was fitted on."""
        advice = "call fit() first; for a loaded one, call perturbation.distortion(inputs)"
        return _known(self._distortion, advice)

    @property
    def perturbation(self) -> Perturbation:
        """The perturbation, with the range of its inputs."""
        return _known(self._perturbation, "no perturbation yet: call fit() or load() first")

    @property
    def noise(self) -> Array:
        """The perturbation as an array with the shape of an input."""
        return self.perturbation.noise

    @property
    def queries(self) -> int:
        """The number of inputs that the model has evaluated."""
        return self.model.queries

    def apply(self, inputs: ArrayLike) -> Array:
        """Return the perturbed inputs, in the model's input range."""
        return self.perturbation.apply(inputs)

    def success_rate(self, inputs: ArrayLike, labels: ArrayLike) -> float:
        """Return the share of perturbed inputs that the model gets wrong, or predicts as target.

        With ``eps``, images are rounded to 8 bits. ``labels`` may be one label for all inputs. It
        costs one query per input. For the ``held_out`` inputs of ``fit``, use
        ``result.history[-1]["heldout_success"]``, which is within the budget.
        """
        moved = self.apply(inputs)
        right = columns_of(self.model, labels, len(moved))
        shape = self.model.input_shape or self.noise.shape
        try:
            scores = self.model(moved.reshape(-1, *shape))
        except BudgetSpent as error:
            error.add_note("fit(held_out=(...)) measures success within the budget.")
            raise
        check_columns(right, scores.shape[1])  # known only after the first query
        predictions = scores.argmax(axis=1)
        if self.target is not None:
            return float(np.mean(predictions == column_of_target(self.model, self.target)))
        return float(np.mean(predictions != right))

    def project(self, eps: float, norm: str = "inf") -> UniversalAttack:
        """Return the attack with its perturbation projected onto a budget, without queries.

        See :meth:`fedzo.Perturbation.project`, and :meth:`success_rate` for the success of the
        projected perturbation.
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
        """Load a saved perturbation, for this model."""
        saved, model = Perturbation.load(path), self.model
        fits = model.input_shape is None or saved.noise.size == math.prod(model.input_shape)
        of = f"for inputs of shape {saved.noise.shape} in {saved.input_range}"
        allowed = f"for those of {model.name}: {model.input_shape} in {model.input_range}"
        require(fits and saved.input_range == model.input_range, "perturbation", of, allowed)
        self._perturbation, self._distortion, self._result = saved, None, None
        return self


def _signs(problem: Attack, rounds: int) -> FourierSign:
    """Return the server optimizer: for images with as many waves as queries and memory allow."""
    (left, _), sides = _left(problem), Waves(problem.shape).sides
    for divisions in _DIVISIONS if sides else ():
        waves = plane_wave_count(problem.shape, divisions)
        different = 2 * divisions <= min(sides)  # finer waves repeat these
        enough = halving.cost(1 + waves, problem.devices) <= _CONTEST * left
        fits = waves * problem.dim <= _NUMBERS and halving.stages(1 + waves) < rounds / 4
        if different and enough and fits:
            return replace(WAVES, divisions=divisions)
    return SIGNS


def _affordable(problem: Attack, signs: FourierSign) -> tuple[int, int]:
    """Return how many rounds the queries allow, the last one in part, and how many evaluations."""
    left, evaluations = _left(problem)
    if math.isinf(left):
        return _ROUNDS, evaluations
    points = 1 + plane_wave_count(problem.shape, signs.divisions)
    in_a_round = problem.devices * (WITHIN.directions + problem.candidates)
    steps = math.ceil((left - halving.cost(points, problem.devices)) / in_a_round)
    return halving.stages(points) + max(steps, 1), evaluations


def _left(problem: Attack) -> tuple[float, int]:
    """Return the queries without those for evaluations, and the number of evaluations."""
    left, each = problem.model.meter.left, problem.evaluation_cost
    if left is None:
        return math.inf, _EVALUATIONS
    evaluations = min(max(int(_SHARE * left / each) - 1, 1), _EVALUATIONS)
    return left - evaluations * each - problem.victim.reserved, evaluations


def _known(value: T | None, advice: str) -> T:
    if value is None:
        raise UsageError(advice, code="not-fitted")
    return value


def _model(model: Any) -> Model:
    """Return a model, an estimator, a torch module or a file as a Model."""
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return models.load(os.fspath(model))
    if hasattr(model, "predict_proba"):
        return models.SklearnModel(model)
    if any(kind.__module__.startswith("torch.nn.") for kind in type(model).__mro__):
        return models.TorchModel(model)
    raise UsageError(
        f"the scores of {type(model).__name__} are unknown: wrap it, for example in "
        "fedzo.models.FunctionModel(function, outputs='logits')",
        code="unknown-outputs",
    )
