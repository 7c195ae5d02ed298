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
from fedzo.core.waves import axes_of, plane_wave_count
from fedzo.errors import BudgetSpent, FedzoWarning, UsageError, normalises, require
from fedzo.models import Model
from fedzo.models.base import check_columns
from fedzo.problems.attack import Attack
from fedzo.problems.attack.inputs import (
    check_batches,
    column_of_target,
    columns_of,
    hidden_image,
    listed,
)
from fedzo.runs.minimize import minimize
from fedzo.runs.options import RunKeywords
from fedzo.runs.result import Callbacks, Result
from fedzo.variables.perturbation import Distortion, Perturbation

T = TypeVar("T")

# As `fedzo run attack`, except for the learning rate, which has the units of the model's scores.
PENALISED = FedZO(
    learning_rate="auto", smoothing=0.001, batch_size=4, directions=20, local_steps=20
)
# Divisions of waves, and the fewest samples per wave, for images of 16 pixels a side and more.
_DIVISIONS = ((8, 8), (6, 8), (4, 4), (3, 3), (2, 2), (1, 1))
# Divisions, random patterns and samples of other inputs; those below 8 pixels have no waves.
_FEW_WAVES = ((4, 20, 1), (2, 20, 1), (0, 20, 1), (0, 8, 1), (0, 4, 1))
_SIDE, _LARGE_SIDE = 8, 16
_LOOKED_AT = 256  # flat rows, to see whether they are images
_HALVED, _COMPARED = 0.4, 30  # the share of the queries for the halving; samples of its first stage
_OF_WAVES = 0.7  # the share for a large image's waves, which get all of few queries
_FEW = 2_000
_MANY = 20  # rounds of sampling: with few queries on fewer samples
_NUMBERS = 1 << 24  # in all starts together: larger images have fewer waves
_ROUNDS = 200  # of an attack within eps and without max_queries
_EVALUATIONS, _SHARE = 3, 0.1  # at most, after the winner's; and the share of the queries for these


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
        By default FedZO. With ``eps`` it begins at the best of many patterns, and ends when
        nothing better is found; else the settings of ``fedzo run attack`` and a measured learning
        rate.
    callback, run_dir, resume, **options
        As in :func:`fedzo.minimize`. By default 20 rounds, each evaluated. With ``eps``, at most
        as many as ``max_queries`` allows, or 200, with up to eight evaluations.

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

    @normalises
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
        self.model = as_model(model)
        self.c, self.eps, self.norm, self.target, self.margin = c, eps, norm, target, margin
        self.transfer_to = None if transfer_to is None else as_model(transfer_to)
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
            server, rounds, every = _within(problem, self._given.get("rounds"))
            # A new beginning loses what was not evaluated just before.
            restart = 0 if "evaluate_every" in self._given else every
            algorithm = FedZO(smoothing=1.0, server=replace(server, restart=restart))
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


def _within(problem: Attack, wanted: int | None) -> tuple[FourierSign, int, int]:
    """Return the server optimizer within eps, the rounds, and how often to evaluate."""
    model, each = problem.model, problem.evaluation_cost
    left = math.inf if model.meter.left is None else model.meter.left
    # The start and the winner are evaluated; the last evaluation is one of the reserved queries.
    left -= each + max(problem.victim.reserved, each)
    server = _starts(problem, left, _ROUNDS if wanted is None else wanted)
    left -= halving.cost(server.starts, problem.devices, server.samples)
    compared = int(min(max(left / (_MANY * server.sampled), 1), server.compared))
    server = replace(server, compared=compared)
    in_a_round = server.sampled * math.prod(halving.shared_out(compared, problem.devices))
    evaluations, rounds = _EVALUATIONS, _ROUNDS
    if not math.isinf(left):  # evaluations share what is left
        evaluations = min(max(int(_SHARE * left / each), 1), evaluations)
        rounds = max(math.ceil((left - (evaluations - 1) * each) / in_a_round), 1)
    rounds = server.first_step + rounds if wanted is None else wanted
    every = max(-(-(rounds - server.first_step) // evaluations), server.first_step + 1)
    return server, rounds, every


def _starts(problem: Attack, left: float, rounds: int) -> FourierSign:
    """Return the server optimizer, with as many starts as queries, rounds and memory allow."""
    shape = problem.shape
    if len(shape) == 1:  # waves and squares fit images better, also those that come as flat rows
        shape = hidden_image(problem.own.rows[:_LOOKED_AT]) or shape
    side = min((shape[axis] for axis in axes_of(shape)), default=0)
    textures, sampling = side >= _LARGE_SIDE, FourierSign(shape=shape, sampled=10)
    choices = [(n, max(4, plane_wave_count(shape, n) // 13), least) for n, least in _DIVISIONS]
    if not textures:
        choices = [each for each in _FEW_WAVES if side >= _SIDE or not each[0]]

    def affordable(server: FourierSign, most: int, share: float) -> int:
        """Return the samples of the first stage that this share of the queries allows."""
        costs = ((n, halving.cost(server.starts, problem.devices, n)) for n in range(most, 0, -1))
        return next((n for n, cost in costs if cost <= share * left), 0)

    for divisions, patterns, fewest in choices:
        server = replace(sampling, divisions=divisions, patterns=patterns)
        samples = affordable(server, _COMPARED, _HALVED)
        if textures:  # these are worth most queries
            share = _OF_WAVES if left >= _FEW else 1.0
            samples = max(samples, affordable(server, halving.FIRST, share))
        fits = server.starts * problem.dim <= _NUMBERS and server.first_step < rounds
        if samples >= fewest and fits:
            return replace(server, samples=samples)
    return sampling


def _known(value: T | None, advice: str) -> T:
    if value is None:
        raise UsageError(advice, code="not-fitted")
    return value


def as_model(model: Any, **options: Any) -> Model:
    """Return a model, an estimator, a torch module or a file as a Model.

    ``options`` are those of the model's class; a Model has its own.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return models.load(os.fspath(model), **options)
    if hasattr(model, "predict_proba") or (
        hasattr(model, "predict") and hasattr(model, "classes_")
    ):
        return models.SklearnModel(model, **options)
    if any(kind.__module__.startswith("torch.nn.") for kind in type(model).__mro__):
        return models.TorchModel(model, **options)
    raise UsageError(
        f"the scores of {type(model).__name__} are unknown: wrap it, for example in "
        "fedzo.models.FunctionModel(function, outputs='logits')",
        code="unknown-outputs",
    )
