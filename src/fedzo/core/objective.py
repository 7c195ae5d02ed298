"""What every problem provides: batches of a device's randomness, and the loss of points on them.

How the values are computed, such as in BLAS, in ONNX Runtime or behind an HTTP endpoint, is up to
the problem. What only some problems can do is in :mod:`fedzo.core.capabilities`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, ParamSpec, Self, TypeVar, cast

import numpy as np

from fedzo.core.budget import Meter
from fedzo.core.capabilities import HasEvaluationCost, Metered, ValuesAlong, members
from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.errors import UsageError, check_unmasked, normalises, shown

C = TypeVar("C")


class Objective:
    """f(x) = 1/N sum_i f_i(x) with f_i(x) = E[F_i(x, ξ)], eq. (1), seen through its values.

    A problem is a subclass. It sets ``dim`` and ``devices`` and defines :meth:`batch`,
    :meth:`values` and :meth:`losses`. :meth:`initial`, :meth:`size` and :meth:`metrics` have
    defaults. Methods and attributes of a protocol in :mod:`fedzo.core.capabilities`, such as
    ``gradient``, give a problem that capability.

    A problem that cannot evaluate one device for now raises :class:`~fedzo.errors.NoAnswer`. The
    round then continues without that device.

    Attributes
    ----------
    dim, devices : int
        d and N.
    exact : bool
        Whether ``losses`` always returns the same numbers at one x. By default this is unknown:
        a run of an algorithm such as FedZO then evaluates its start twice to find out.
    factory, factory_kwargs : str, mapping
        The class or function that made the problem, as ``module:name``, and its arguments.

    Examples
    --------
    >>> from fedzo.core.capabilities import HasGradient
    >>> class Distance(Objective):
    ...     dim, devices = 2, 3
    ...     def batch(self, device, size, draws):
    ...         return device
    ...     def values(self, points, batch):
    ...         return np.sum((points - batch) ** 2, axis=1, keepdims=True)
    ...     def losses(self, x, devices):
    ...         return np.array([np.sum((x - i) ** 2) for i in devices])
    >>> problem = Distance()
    >>> problem.initial(), problem.size(0), problem.capability(HasGradient)
    (array([0., 0.]), 1, None)
    """

    dim: int
    devices: int
    exact: bool = False
    factory: str
    _called_with: tuple[Any, Any]

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """Record the arguments, so that a configuration can make the object again."""
        self = super().__new__(cls)
        self.factory, self._called_with = name_of(cls), (arguments, keywords)
        return self

    def __init__(self) -> None:  # or a class without one would take any arguments
        pass

    @functools.cached_property
    def factory_kwargs(self) -> Mapping[str, Any]:
        """All arguments by name; bound on first use, because most objects never need them."""
        return _arguments(type(self), *self._called_with)

    def batch(self, device: int, size: int, draws: Draws) -> Any:
        """Return ``size`` independent realisations ξ of a device's randomness."""
        raise NotImplementedError

    def values(self, points: Array, batch: Any) -> Array:
        """Return F_i(x_k, ξ_m) of each point and each realisation: (k, d) -> (k, b)."""
        raise NotImplementedError

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x) of the given devices, each over all its data, shape (n_devices,)."""
        raise NotImplementedError

    def initial(self) -> Array:
        """Return the default start, shape (d,): zero."""
        return np.zeros(self.dim)

    def size(self, device: int) -> int:
        """Return the number of samples of a device: 1 for problems without samples."""
        return 1

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return further numbers to record at an evaluation, such as a test accuracy."""
        return {}

    def capability(self, kind: type[C]) -> C | None:
        """Return an implementation of a protocol of :mod:`fedzo.core.capabilities`, or None.

        It is the problem itself if it defines all members of the protocol, with other values than
        None and False. The defaults of :class:`Objective` do not count.
        """
        protocol: Any = kind
        return cast(C, self) if all(map(self._defines, members(protocol))) else None

    def _defines(self, name: str) -> bool:
        if name in vars(Objective) and getattr(type(self), name) is getattr(Objective, name):
            return False
        value = getattr(self, name, None)
        return value is not None and value is not False


class ObjectiveWrapper(Objective):
    """A problem seen through another one, ``inner``.

    A subclass declares every protocol of :mod:`fedzo.core.capabilities` in exactly one of four
    tuples. A test fails for a protocol that is not declared, and the wrapper hides it: a fused step
    that bypasses a wrapper would return values that the wrapper must change.

    Attributes
    ----------
    passes : tuple of protocols
        Those of the inner problem are returned unchanged.
    transforms : tuple of protocols
        The wrapper implements them if the inner problem does.
    adds : tuple of protocols
        The wrapper implements them, whatever the inner problem has.
    hides : tuple of protocols
        The wrapper does not have them.
    """

    passes: ClassVar[tuple[type[Any], ...]] = ()
    transforms: ClassVar[tuple[type[Any], ...]] = ()
    adds: ClassVar[tuple[type[Any], ...]] = ()
    hides: ClassVar[tuple[type[Any], ...]] = ()

    def __init__(self, inner: Objective) -> None:
        self.inner, self.dim, self.devices = inner, inner.dim, inner.devices

    def capability(self, kind: type[C]) -> C | None:
        """Return the implementation that the declarations allow, or None."""
        if kind in self.adds:
            return cast(C, self)
        found = self.inner.capability(kind) if kind in self.passes + self.transforms else None
        return cast(C, self) if found is not None and kind in self.transforms else found

    def batch(self, device: int, size: int, draws: Draws) -> Any:
        """Return a batch of the inner problem."""
        return self.inner.batch(device, size, draws)

    def initial(self) -> Array:
        """Return the start of the inner problem."""
        return self.inner.initial()

    def size(self, device: int) -> int:
        """Return the number of samples of a device."""
        return self.inner.size(device)


def values_along(
    objective: Objective, x: Array, directions: Array, rows: Array, steps: Array, batch: Any
) -> Array:
    """Return the values at the k points x + steps[k] * directions[rows[k]], shape (k, b).

    The problem's own method is used if it has one (:class:`~fedzo.core.capabilities.ValuesAlong`).
    Otherwise the points are built in the precision of x.
    """
    if (quick := objective.capability(ValuesAlong)) is not None:
        return quick.values_along(x, directions, rows, steps, batch)
    return objective.values(x + steps[:, None].astype(x.dtype) * directions[rows], batch)


def returned(name: str, found: Any, shape: tuple[int, ...]) -> Array:
    """Return what a user's function or method returned; raise unless it is real numbers.

    A size of -1 in ``shape`` stands for any.
    """
    try:
        check_unmasked(name, found)
        array = np.asarray(found.detach() if hasattr(found, "detach") else found)
        if array.dtype == object and not any(v is None or isinstance(v, str) for v in array.flat):
            array = array.astype(np.float64)
    # Masked, ragged, complex, too large, or a list of tensors that have gradients.
    except (TypeError, ValueError, OverflowError, RuntimeError):
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        words = f"{name} returned {shown(found)}, not real numbers"
        raise UsageError(words, code="not-numbers")
    if len(array.shape) != len(shape) or any(
        w not in (-1, n) for n, w in zip(array.shape, shape, strict=True)
    ):
        wanted = str(shape).replace("-1", "samples")
        words = f"{name} returned the shape {array.shape}, not {wanted}"
        raise UsageError(words, code="shape")
    return array


def meter_of(objective: Objective) -> Meter | None:
    """Return the meter of a problem that counts its queries itself, or None."""
    metered = objective.capability(Metered)
    return None if metered is None else metered.meter


def evaluation_cost(objective: Objective) -> int:
    """Return the number of values that one evaluation takes: one per sample by default."""
    own = objective.capability(HasEvaluationCost)
    if own is not None:
        return own.evaluation_cost
    return sum(objective.size(i) for i in range(objective.devices))


P = ParamSpec("P")
O = TypeVar("O", bound=Objective)


def check_objective(candidate: object, source: str) -> Objective:
    """Return the candidate if it is a complete objective, or raise.

    >>> check_objective(3, "problem.name = 'mine:make' made")
    Traceback (most recent call last):
    fedzo.errors.UsageError: problem.name = 'mine:make' made an object of type int, which is not an
    Objective: it must be an object of a subclass of fedzo.Objective with dim, devices, batch,
    values and losses
    """
    kind = type(candidate)
    needed = "a subclass of fedzo.Objective with dim, devices, batch, values and losses"
    if not isinstance(candidate, Objective):
        of_class = f"the class {candidate.__name__}" if isinstance(candidate, type) else None
        found = of_class or f"an object of type {kind.__name__}"
        words = f"{source} {found}, which is not an Objective: it must be an object of {needed}"
        raise UsageError(words, code="not-an-objective")
    lacks = [name for name in ("dim", "devices") if not hasattr(candidate, name)]
    needed_methods = ("batch", "values", "losses")
    lacks += [m for m in needed_methods if getattr(kind, m) is getattr(Objective, m)]
    if lacks:
        raise UsageError(
            f"{source} {kind.__name__}, which lacks {', '.join(lacks)}", code="incomplete-objective"
        )
    return candidate


def problem_factory(function: Callable[P, O]) -> Callable[P, O]:
    """Decorate a function that makes a problem, to record it and its arguments in the problem.

    >>> from fedzo.problems import softmax
    >>> problem = softmax(devices=10, partition="iid")
    >>> problem.factory, problem.factory_kwargs["partition"]
    ('fedzo.problems.softmax_regression:softmax', 'iid')
    """
    normalising = normalises(function)

    @functools.wraps(function)
    def make(*arguments: P.args, **keywords: P.kwargs) -> O:
        made: O = normalising(*arguments, **keywords)
        made.factory = name_of(function)
        made.factory_kwargs = _arguments(function, arguments, keywords)
        return made

    return make


def signature_of(maker: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of what makes a problem; a class without ``__init__`` takes nothing.

    >>> class Still(Objective): ...
    >>> str(signature_of(Still)), str(signature_of(lambda dim: None))
    ('()', '(dim)')
    """
    if inspect.isclass(maker) and maker.__init__ is Objective.__init__:
        return inspect.Signature()  # not that of Objective.__new__, which takes anything
    return inspect.signature(maker)


def _arguments(maker: Any, arguments: Any, keywords: Any) -> dict[str, Any]:
    """Return all arguments of a call by name, defaults included."""
    try:
        bound = signature_of(maker).bind(*arguments, **keywords)
    except (TypeError, ValueError):  # the call itself reports what is wrong
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
