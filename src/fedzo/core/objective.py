"""What a problem answers to: values at points, and what else it may offer.

An optimiser asks for a batch of a device's randomness and for the loss of points on that
batch. How the values are made, in BLAS, in ONNX Runtime, behind an HTTP endpoint, is the
problem's own business.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedzo.core.budget import Meter
from fedzo.core.gathering import Gathering
from fedzo.core.random import Draws
from fedzo.errors import UsageError

if TYPE_CHECKING:
    from fedzo.core.directions import Frame
    from fedzo.core.streams import Combination

Array = NDArray[Any]


class Best(NamedTuple):
    """The best evaluated model so far: that of the lowest loss, unless a problem says otherwise."""

    x: Array
    fun: float
    round: int


class _Made:
    """Notes how an object was made, so that a run's configuration can make it again."""

    made_by: str
    _called_with: tuple[Any, Any]

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """Note the arguments of the constructor."""
        self = super().__new__(cls)
        self.made_by, self._called_with = name_of(cls), (arguments, keywords)
        return self

    @functools.cached_property
    def made_with(self) -> Mapping[str, Any]:
        """All arguments by name; found out when asked for, since few of the many made are."""
        return _arguments(type(self), *self._called_with)


class Objective(_Made):
    """f(x) = 1/N sum_i f_i(x) with f_i(x) = E[F_i(x, ξ)], eq. (1), seen through its values.

    A problem is a subclass. It must set ``dim``, which is d, and ``devices``, which is
    N, and define :meth:`batch`, :meth:`values` and :meth:`losses`. Everything else here has a
    default, and is what a problem *may* offer: quicker values, a start, metrics, files.

    A problem that cannot answer for one device, for now, raises
    :class:`~fedzo.errors.NoAnswer`: the round goes on without that device.

    Attributes
    ----------
    dim, devices : int
        d and N.
    meter : Meter, optional
        Counts every query, and may end the run at a budget.
    scale : array, optional
        The typical length of each number in x, where it is known: adaptive algorithms begin by it.
    reach : float
        How far x should go in a round at least, where the problem knows the scale of its x:
        ``learning_rate = "auto"`` goes by it.
    own_threads : bool
        Whether the problem uses all cores itself, and must be asked by one thread at a time, as
        a network is.
    gathering : Gathering, optional
        Joins what devices ask at the same moment, where a larger batch is quicker: then devices
        work side by side, and a round that a budget cuts short is used as far as it came.
    chosen_by : str
        The metric that is largest for the best model, ties broken by the loss; empty: the loss.
    in_place : bool
        Whether x is memory of the problem's own, which a round moves in place.

    Examples
    --------
    >>> class Distance(Objective):
    ...     dim, devices = 2, 3
    ...     def batch(self, device, size, draws):
    ...         return device
    ...     def values(self, points, batch):
    ...         return np.sum((points - batch) ** 2, axis=1, keepdims=True)
    ...     def losses(self, x, devices):
    ...         return np.array([np.sum((x - i) ** 2) for i in devices])
    >>> problem = Distance()
    >>> problem.initial(), problem.size(0), problem.offers("gradient")
    (array([0., 0.]), 1, False)
    """

    dim: int
    devices: int
    meter: Meter | None = None
    scale: Array | None = None
    reach: float = 0.0
    own_threads: bool = False
    gathering: Gathering | None = None
    chosen_by: str = ""
    in_place: bool = False

    def __init__(self) -> None:  # or a class without one would take any arguments
        pass

    # ------------------------------------------------------------------------ what it must answer

    def batch(self, device: int, size: int, draws: Draws) -> Any:
        """Return ``size`` independent realisations ξ of a device's randomness."""
        raise NotImplementedError

    def values(self, points: Array, batch: Any) -> Array:
        """Return F_i(x_k, ξ_m) of each point and each realisation: (k, d) -> (k, b)."""
        raise NotImplementedError

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x) of the given devices, each over all that it holds."""
        raise NotImplementedError

    # -------------------------------------------------------------------------- quicker values

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: Any
    ) -> Array:
        """Return the (k, b) values at the k points x + steps[k] * directions[rows[k]].

        The default builds the points. Whoever need not build them overrides this: for a linear
        model it is one matrix product. ``directions`` is lent, and overwritten after the call.
        """
        points = x + steps[:, None].astype(x.dtype) * directions[rows]
        return self.values(points, batch)

    def fused_step(
        self,
        x: Array,
        frame: Frame,
        rows: Array,
        offsets: Array,
        factor: float,
        addresses: tuple[Draws, Draws],
        size: int,
        delta: Array,
        start: Array,
    ) -> tuple[Array, Array, int]:
        """Take a whole step on the sphere in one compiled call, which needs no GIL for it.

        It draws a batch and the frame by their two addresses, takes the values at
        x + offsets[k] * v[rows[k]], makes the moves factor * scale * sum of differences (see
        :func:`fedzo.core.estimator.scale_slopes`), adds them up into ``delta``, and returns the
        moves, start + delta and the number of values. It is used only where it is overridden.
        """
        raise NotImplementedError

    def values_streamed(
        self,
        x: Array,
        walked: Combination | None,
        steps: Sequence[Combination | None],
        batch: Any,
    ) -> Array:
        """Return the (k, b) values at the k points x + walked + steps[k]; None stands for zero.

        For models that are too large for their directions to be held: the sums are added as they
        are drawn. It is used only where it is overridden, for directions that can be streamed.
        """
        raise NotImplementedError

    def gradient(self, x: Array, batch: Any) -> Array:
        """Return the mean gradient over a batch, for first-order baselines, where there is one."""
        raise NotImplementedError

    # ------------------------------------------------------------------------ what it is about

    def initial(self) -> Array:
        """Return where to start when the caller does not say: at zero, if nothing else is said."""
        return np.zeros(self.dim)

    def size(self, device: int) -> int:
        """Return how many samples a device holds: 1 where there is no notion of samples."""
        return 1

    @property
    def evaluation_cost(self) -> int:
        """How many values one evaluation takes: one for each sample, if nothing else is said."""
        return sum(self.size(i) for i in range(self.devices))

    def smoothing(self, draws: Draws) -> float | None:
        """Return the μ that suits the problem, which ``smoothing = "auto"`` takes; None: any."""
        return None

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return further numbers to record at an evaluation, such as a test accuracy."""
        return {}

    def constants(self) -> Mapping[str, float]:
        """Return L, gap, sigma_g, sigma_h, c_g and c_h of the paper's assumptions, where known."""
        return {}

    def point(self, x: Array) -> Array:
        """Return what the optimiser's x is to a person: what a result and ``model.npy`` hold."""
        return x.copy()

    def snapshot(self, x: Array) -> Array:
        """Return x as it is now, to be kept: a copy where x is moved in place."""
        return x

    # --------------------------------------------------------------------------- when it ends

    def keep(self, best: Best) -> None:
        """Take the best model of a run that has ended, where the problem holds one itself."""

    def state_dict(self, x: Array) -> dict[str, Any]:
        """Return the state of the module that has x for parameters, where there is a module."""
        raise NotImplementedError

    def write_files(self, folder: Path, best: Best) -> None:
        """Write further files into the folder of a run that has ended."""

    def close(self) -> None:
        """Let go of what is held for a run, such as processes, when it has ended."""

    # ----------------------------------------------------------------------------------------

    def offers(self, name: str) -> bool:
        """Return whether the problem has its own version of one of the optional methods."""
        return getattr(type(self), name) is not getattr(Objective, name)


P = ParamSpec("P")
O = TypeVar("O", bound=Objective)


def check_objective(candidate: object, source: str) -> Objective:
    """Return the candidate if it is an objective with all that it needs, or raise.

    >>> check_objective(3, "problem.name = 'mine:make' made")
    Traceback (most recent call last):
    fedzo.errors.UsageError: problem.name = 'mine:make' made an object of type int, which is not an
    Objective: it must be a subclass of fedzo.Objective with dim, devices, batch, values and losses
    """
    kind = type(candidate)
    needed = "a subclass of fedzo.Objective with dim, devices, batch, values and losses"
    if isinstance(candidate, type):
        raise UsageError(f"{source} the class {candidate.__name__}, not an object of it")
    if not isinstance(candidate, Objective):
        raise UsageError(
            f"{source} an object of type {kind.__name__}, which is not an Objective: "
            f"it must be {needed}"
        )
    lacks = [name for name in ("dim", "devices") if not hasattr(candidate, name)]
    lacks += [name for name in ("batch", "values", "losses") if not candidate.offers(name)]
    if lacks:
        raise UsageError(f"{source} {kind.__name__}, which lacks {', '.join(lacks)}")
    return candidate


def described(factory: Callable[P, O]) -> Callable[P, O]:
    """Decorate a function that makes a problem, so that the problem knows how it was made.

    >>> from fedzo.problems.softmax import softmax
    >>> problem = softmax(devices=10, partition="iid")
    >>> problem.made_by, problem.made_with["partition"]
    ('fedzo.problems.softmax:softmax', 'iid')
    """

    @functools.wraps(factory)
    def make(*arguments: P.args, **keywords: P.kwargs) -> O:
        made = factory(*arguments, **keywords)
        made.made_by, made.made_with = name_of(factory), _arguments(factory, arguments, keywords)
        return made

    return make


def _arguments(maker: Any, arguments: Any, keywords: Any) -> dict[str, Any]:
    """Return all arguments of a call by name, defaults included."""
    try:
        bound = inspect.signature(maker).bind(*arguments, **keywords)
    except (TypeError, ValueError):  # the call is about to say what is wrong
        return {}
    bound.apply_defaults()
    return dict(bound.arguments)


def is_plain(value: object) -> bool:
    """Return whether a configuration can hold a value.

    >>> is_plain([1, "a", None]), is_plain(print)
    (True, False)
    """
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(value, str | bool | int | float | np.number)


def name_of(fun: object) -> str:
    """Name a function, or an object by its class, as ``module:name``."""
    kind = fun if hasattr(fun, "__qualname__") else type(fun)
    return f"{kind.__module__}:{kind.__qualname__}"
