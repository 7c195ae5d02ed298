"""The server optimizers. Moments are float32."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedzo.core.types import Array
from fedzo.core.updates import SIGNS, DirectionSum, as_sum, share_out
from fedzo.errors import Parameters, check_counts, check_positive, require

ServerState = tuple[Array, ...]
Moved = tuple[Array, ServerState]  # x^{t+1}, and the next state

_PIECE = 16 * SIGNS  # numbers that apply is given at a time: they stay in a core's cache
_ON_DEVICE = 1 << 21  # on an accelerator, where each operation costs a launch


class ServerOptimizer(Parameters):
    """A frozen dataclass: its fields are hyper-parameters, its state is a tuple of arrays.

    A subclass defines :meth:`apply`, and :meth:`init` if it has a state. Its state follows from the
    updates alone, so the coefficients of all rounds are enough to replay the server.

    Attributes
    ----------
    elementwise : bool
        Whether each number of the result depends on the same number of x, the update and all arrays
        of the state only, which then have x's shape. A lazy update of a large model is then drawn
        and applied piece by piece, on all cores, and never exists as a whole. False by default: it
        is always right, and takes two more vectors of the model's size.
    """

    elementwise: ClassVar[bool] = False

    @property
    def first_step(self) -> int:
        """The number of rounds that choose the start."""
        return 0

    @property
    def automatic(self) -> bool:
        """Whether the rate has to be measured during the run."""
        return False

    def init(self, x0: Array) -> ServerState:
        """Return the state before round 0."""
        return ()

    def apply(self, t: int, state: ServerState, x: Array, delta: Array) -> Moved:
        """Return x^{t+1} and the next state, from the mean update Δ^t as float64 numbers.

        The arguments must not be changed, and x^{t+1} has the precision of x.
        """
        raise NotImplementedError

    def step(self, t: int, state: ServerState, x: Array, delta: Any) -> tuple[Array, ServerState]:
        """Return the same as :meth:`apply`, for an update that may be lazy.

        If x is the problem's own memory, x and the arrays of the state are overwritten: no second
        model and no second state are held.
        """
        update = as_sum(delta)
        if not (self.elementwise and update.streamed):
            return self.apply(t, state, x, np.asarray(delta))
        after = (x, *state)
        if not update.in_place:
            after = tuple(np.empty_like(array) for array in after)
        self.apply_parts(t, state, x, update, after)
        return after[0], after[1:]

    def apply_parts(
        self, t: int, state: ServerState, x: Array, update: Any, out: ServerState, start: int = 0
    ) -> None:
        """Write :meth:`apply` of numbers ``start``, ... into ``out``, part by part on all cores.

        ``x`` and the first array of ``out`` hold these numbers only. The further arrays of ``out``
        are those of the next state, if it is wanted. ``update`` is an array or a lazy sum.
        """
        held = isinstance(x, np.ndarray)  # in main memory
        most = _PIECE if held else _ON_DEVICE

        def work(first: int, last: int) -> None:
            for low in range(first, last, most):
                part = slice(low, min(low + most, last))
                here = slice(start + part.start, start + part.stop)
                own = tuple(array[here] for array in state)
                delta = _part(update, here.start, here.stop, x)
                out[0][part], own = self.apply(t, own, x[part], delta)
                for array, new in zip(out[1:], own, strict=False):
                    array[here] = new

        share_out(work, x.size, start) if held else work(0, x.size)


def _part(update: Any, first: int, last: int, x: Any) -> Any:
    """Return some numbers of an update, which may be lazy, where x lies."""
    if not isinstance(update, DirectionSum):
        return update[first:last]
    held = isinstance(x, np.ndarray)
    return update.part(first, last) if held else x.part_of(update, first, last)


def check_share(settings: object, *keys: str) -> None:
    """Raise unless these settings are numbers in [0, 1).

    >>> from fedzo.server import Momentum
    >>> Momentum(beta=1.0)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: beta = 1.0: must be a number in [0, 1)
    """
    for key in keys:
        value = getattr(settings, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number and 0 <= value < 1, key, value, "a number in [0, 1)")


@dataclass(frozen=True)
class Mean(ServerOptimizer):
    r"""The paper's server: :math:`x^{t+1} = x^t + \Delta^t`.

    Examples
    --------
    >>> import numpy as np
    >>> Mean().apply(0, (), np.array([1.0, 2.0]), np.array([0.5, -1.0]))
    (array([1.5, 1. ]), ())
    """

    elementwise: ClassVar[bool] = True

    def apply(self, t: int, state: ServerState, x: Array, delta: Array) -> Moved:
        """Add the mean update in float64."""
        return (x + delta).astype(x.dtype), state


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    r"""Heavy ball at the server: the part that past rounds have in common adds up.

    .. math:: m^t = \beta m^{t-1} + \Delta^t, \qquad x^{t+1} = x^t + \eta_s m^t

    Parameters
    ----------
    learning_rate : float
        η_s. Updates that stay the same move x by η_s / (1 - β) times an update per round.
    beta : float
        β in [0, 1).

    References
    ----------
    T.-M. H. Hsu, H. Qi and M. Brown, "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", 2019.

    Examples
    --------
    >>> server = Momentum(beta=0.5)
    >>> x, state = server.apply(0, server.init(np.zeros(1)), np.zeros(1), np.array([2.0]))
    >>> server.apply(1, state, x, np.array([1.0]))[0]  # 2, and then 0.5 * 2 + 1
    array([4.])
    """

    learning_rate: float = 1.0
    beta: float = 0.9
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "learning_rate")
        check_share(self, "beta")

    def init(self, x0: Array) -> ServerState:
        """Return m = 0."""
        return (np.zeros_like(x0, np.float32),)

    def apply(self, t: int, state: ServerState, x: Array, delta: Array) -> Moved:
        """Add the sum of past updates, each β times its share of a round ago."""
        m = self.beta * state[0] + delta
        return (x + self.learning_rate * m).astype(x.dtype), (m.astype(np.float32),)


@dataclass(frozen=True)
class Adam(ServerOptimizer):
    r"""Adam at the server: each number moves by its update relative to the usual size of that.

    .. math:: m^t = \beta_1 m^{t-1} + (1 - \beta_1) \Delta^t, \qquad
              v^t = \beta_2 v^{t-1} + (1 - \beta_2) (\Delta^t)^2, \qquad
              x^{t+1} = x^t + \eta_s \frac{\hat m^t}{\sqrt{\hat v^t} + \epsilon}

    with :math:`\hat m^t = m^t / (1 - \beta_1^{t+1})` and
    :math:`\hat v^t = v^t / (1 - \beta_2^{t+1})`, which are not biased towards the initial zeros.
    η_s is in the units of x. The learning rate of the local steps only determines how far devices
    move between two rounds.

    Parameters
    ----------
    learning_rate : float or "auto"
        η_s, about how far each number moves in a round. "auto" measures it before the first step
        and again during the run (:mod:`fedzo.algorithms.server_rate`).
    beta1, beta2 : float
        β_1 and β_2 in [0, 1).
    eps : float
        ε, the size of an update that counts as zero.

    Notes
    -----
    This departs from FedAdam of Reddi et al. in three ways. FedAdam does not correct the bias of m
    and v; here both are corrected, as Kingma and Ba do. FedAdam starts with :math:`v \ge \tau^2`;
    here v starts at zero. FedAdam's :math:`\tau` is a tuned number such as 1e-3, which limits the
    steps of small updates; here ε = 1e-12 only avoids a division by zero, because updates of few
    losses may have any size.

    References
    ----------
    S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021. D. P. Kingma and J. Ba,
    "Adam: A Method for Stochastic Optimization", ICLR 2015.

    Examples
    --------
    The first step has the length η_s in each number, whatever the units of the updates:

    >>> server = Adam(learning_rate=0.1)
    >>> x, state = server.apply(0, server.init(np.zeros(2)), np.zeros(2), np.array([5.0, -0.001]))
    >>> x.round(6)
    array([ 0.1, -0.1])
    """

    learning_rate: float | Literal["auto"] = 0.03
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-12
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, *["learning_rate"] * (not self.automatic), "eps")
        check_share(self, "beta1", "beta2")

    @property
    def automatic(self) -> bool:
        """Whether the rate has to be measured during the run."""
        return self.learning_rate == "auto"

    def init(self, x0: Array) -> ServerState:
        """Return m = v = 0."""
        return np.zeros_like(x0, np.float32), np.zeros_like(x0, np.float32)

    def apply(self, t: int, state: ServerState, x: Array, delta: Array) -> Moved:
        """Move by the mean update over the root of its mean square."""
        m = self.beta1 * state[0] + (1 - self.beta1) * delta
        v = self.second_moment(state[1], np.square(delta, dtype=np.float64))
        mean = m / (1 - self.beta1 ** (t + 1))
        size = np.sqrt(self.unbiased(v, t)) + self.eps
        moved = (x + float(self.learning_rate) * mean / size).astype(x.dtype)
        return moved, (m.astype(np.float32), v.astype(np.float32))

    def second_moment(self, v: Array, square: Array) -> Array:
        """Return v^t from v^{t-1} and (Δ^t)²: where the relatives of Adam differ."""
        return self.beta2 * v + (1 - self.beta2) * square

    def unbiased(self, v: Array, t: int) -> Array:
        """Return v̂^t."""
        return v / (1 - self.beta2 ** (t + 1))


@dataclass(frozen=True)
class Yogi(Adam):
    r"""Yogi at the server: as :class:`Adam`, but v falls as slowly as it rises.

    .. math:: v^t = v^{t-1} - (1 - \beta_2)\, (\Delta^t)^2\, \mathrm{sign}(v^{t-1} - (\Delta^t)^2)

    Notes
    -----
    This departs from FedYogi of Reddi et al. as :class:`Adam` does from FedAdam: corrected m and v,
    v = 0 at the start, and a tiny ε. Dividing v by :math:`1 - \beta_2^{t+1}` is exact in the first
    round, and in the limit. Between them v of equal updates rises linearly, so v̂ is too large: by a
    factor of up to 1.58 with β_2 = 0.99, around round 100, which shortens steps by a fifth.

    References
    ----------
    S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021.

    Examples
    --------
    >>> Yogi(beta2=0.75).second_moment(np.array([9.0]), np.array([4.0]))  # Adam: 7.75
    array([8.])
    """

    def second_moment(self, v: Array, square: Array) -> Array:
        """Change v by (1 - β_2) (Δ^t)² towards (Δ^t)²."""
        return np.asarray(v - (1 - self.beta2) * square * np.sign(v - square))


@dataclass(frozen=True)
class Adagrad(Adam):
    r"""Adagrad at the server: as :class:`Adam`, but v is the sum, so steps get shorter.

    .. math:: v^t = v^{t-1} + (\Delta^t)^2

    Notes
    -----
    This departs from FedAdagrad of Reddi et al. as follows. m is corrected for its bias, and β_1 is
    0.9 by default; their experiments with FedAdagrad have β_1 = 0. v starts at zero, not at
    :math:`\tau^2`, so the first step has the length η_s in each number. ε is tiny, as in
    :class:`Adam`.

    References
    ----------
    S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021.

    Examples
    --------
    >>> server = Adagrad(learning_rate=1.0, beta1=0.0)
    >>> x, state = server.apply(0, server.init(np.zeros(1)), np.zeros(1), np.array([3.0]))
    >>> x, server.apply(1, state, np.zeros(1), np.array([4.0]))[0]  # 3/3, and 4/5
    (array([1.]), array([0.8]))
    """

    def second_moment(self, v: Array, square: Array) -> Array:
        """Add (Δ^t)²."""
        return v + square

    def unbiased(self, v: Array, t: int) -> Array:
        """Return v: a sum has no bias."""
        return v


@dataclass(frozen=True)
class Normalised(ServerOptimizer):
    r"""Steps of equal length, in the direction of the mean update.

    .. math:: x^{t+1} = x^t + \eta_s \frac{\Delta^t}{\lVert \Delta^t \rVert}

    FZOO divides its estimate by the spread σ of the losses :math:`l_n` at its b2 points. An
    estimate is a sum of directions with the coefficients :math:`l_n - l_0`. Where the directions
    are orthogonal, or nearly so as in many dimensions, its norm is the spread around :math:`l_0`,
    times a constant. One device and one local step make FZOO's step with
    :math:`\eta_s = \eta / \sqrt{b_2}`. A server can take the norm over every uplink. The norm of
    the mean of many devices is also small where they disagree.

    Parameters
    ----------
    learning_rate : float
        η_s, how far the model moves in a round.

    References
    ----------
    S. Dang et al., "FZOO: Fast Zeroth-Order Optimizer for Fine-Tuning Large Language Models towards
    Adam-Scale Speed", 2025.

    Examples
    --------
    >>> Normalised(learning_rate=10.0).apply(0, (), np.zeros(2), np.array([0.3, -0.4]))[0]
    array([ 6., -8.])
    """

    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, "learning_rate")

    def apply(self, t: int, state: ServerState, x: Array, delta: Array) -> Moved:
        """Move by η_s along the mean update; stay if that is zero."""
        return self._along(x, delta).apply(t, state, x, delta)

    def step(self, t: int, state: ServerState, x: Array, delta: Any) -> Moved:
        """Draw a lazy update twice, part by part: for its norm, and for the step."""
        return self._along(x, delta).step(t, state, x, delta)

    def _along(self, x: Array, delta: Any) -> ServerOptimizer:
        update, square = as_sum(delta), 0.0
        numbers = update if update.streamed else np.asarray(delta)
        for low in range(0, update.dim, _PIECE):
            square += float(
                np.sum(np.square(_part(numbers, low, min(low + _PIECE, update.dim), x)))
            )
        return _Multiple(self.learning_rate / math.sqrt(square) if square else 0.0)


@dataclass(frozen=True)
class _Multiple(ServerOptimizer):
    """x + c Δ^t."""

    factor: float
    elementwise: ClassVar[bool] = True

    def apply(self, t: int, state: ServerState, x: Array, delta: Array) -> Moved:
        return (x + self.factor * delta).astype(x.dtype), state


@dataclass(frozen=True)
class SignMomentum(ServerOptimizer):
    r"""Signs of the momentum, in steps that get shorter.

    With ``beta = 0`` these are the signs of the mean update (signSGD).

    .. math:: m^t = \beta m^{t-1} + \Delta^t, \qquad x^{t+1} = x^t + \eta_t\, \mathrm{sign}(m^t),
              \qquad \eta_t = \eta_0 \left(\frac{\eta_T}{\eta_0}\right)^{\min(t / T,\, 1)}

    Parameters
    ----------
    learning_rate, last_learning_rate : float
        η_0 and η_T, how far each number moves in the first round, and from round T on.
    beta : float
        β in [0, 1).
    rounds : int
        T, the rounds of the run.

    References
    ----------
    J. Bernstein, Y.-X. Wang, K. Azizzadenesheli and A. Anandkumar, "signSGD: Compressed
    Optimisation for Non-Convex Problems" (there Signum), ICML 2018; S. Liu, P.-Y. Chen, X. Chen and
    M. Hong, "signSGD via Zeroth-Order Oracle", ICLR 2019.

    Examples
    --------
    >>> server = SignMomentum(learning_rate=0.4, last_learning_rate=0.1, beta=0.5, rounds=2)
    >>> x, state = server.apply(0, server.init(np.zeros(1)), np.zeros(1), np.array([7.0]))
    >>> x, server.apply(1, state, x, np.array([-1.0]))[0]  # by 0.4, and then, m = 2.5, by 0.2
    (array([0.4]), array([0.6]))
    """

    learning_rate: float = 0.1
    last_learning_rate: float = 0.01
    beta: float = 0.9
    rounds: int = 200
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "learning_rate", "last_learning_rate")
        check_share(self, "beta")
        check_counts(self, "rounds")

    def init(self, x0: Array) -> ServerState:
        """Return m = 0."""
        return (np.zeros_like(x0, np.float32),)

    def apply(self, t: int, state: ServerState, x: Array, delta: Array) -> Moved:
        """Move each number by η_t."""
        m = self.beta * state[0] + delta
        moved = (x + self.learning_rate_at(t) * np.sign(m)).astype(x.dtype)
        return moved, (m.astype(np.float32),)

    def learning_rate_at(self, t: int) -> float:
        """Return η_t."""
        ratio = self.last_learning_rate / self.learning_rate
        return float(self.learning_rate * ratio ** min(t / self.rounds, 1.0))
