r"""Averaged descent: for slopes that noise, or devices which differ, make uncertain.

The coordinates are shared out as in :mod:`~fedzo.algorithms.search.descent`, but the shares are
passed on from round to round, so that in N rounds every device has measured every slope. Each
number in x moves by the mean of its past slopes over the root of their mean square (Adam with
Nesterov's momentum: Kingma & Ba 2015, Dozat 2016),

.. math:: m^t = \beta_1 m^{t-1} + (1 - \beta_1) g^t, \qquad
          v^t = \beta_2 v^{t-1} + (1 - \beta_2) (g^t)^2, \qquad
          x^{t+1} = x^t - r_t \frac{\beta_1 \hat m^{t} + (1 - \beta_1) \hat g^t}{\sqrt{\hat v^t}}

and r_t is the best of three lengths, under noise the longest that brings half of the best over some
rounds. To evaluate f at three points takes 3 N values of the federation, few compared with the d of
a gradient. If f has not fallen beyond the noise for some rounds, r_t is halved. Where the queries
are enough for few gradients only, a round measures and moves one block of the coordinates.
"""

import math

import numpy as np

from fedzo.algorithms.search.base import EPS, Asking, ProgressMonitor, SearchContext
from fedzo.algorithms.search.descent import difference_step
from fedzo.core.types import Array

BETA_1 = (0.5, 0.8)  # for few rounds, and for many: an average over 2 rounds, or over 5
BETA_2 = 0.99
LENGTHS = np.array([0.4, 1.0, 2.5])  # of r_t, that f is looked at
FIRST_LENGTHS = 10.0 ** np.arange(-4, 2.1, 0.5)  # in units of the scale
ROUNDS = 80  # that the queries shall be enough for, by blocks of coordinates
LEAST_BLOCK = 50  # coordinates
PATIENCE = 8  # rounds in which f must fall


class AveragedDescent:
    """A descent along averaged slopes that can be paused and resumed, in units of ``scale``."""

    def __init__(self, context: SearchContext, scale: Array, curved: float) -> None:
        self.context, self.scale, self.curved = context, scale, curved
        self.x, self.fun = context.x, context.fun
        self.mean = np.zeros(context.dim)  # m
        self.square = np.zeros(context.dim)  # v
        self.rounds, self.rate = 0, 0.0  # t, and r
        ahead = context.left / ((1 + (context.noise > 0)) * max(context.dim, context.devices))
        self.beta = min(max(1 - 20 / ahead, BETA_1[0]), BETA_1[1]) if ahead > 0 else BETA_1[0]
        most = context.dim // max(context.devices, LEAST_BLOCK)
        self.blocks = max(1, min(round(ROUNDS / max(ahead, 1)), most))
        self.block = np.arange(context.dim) // context.devices % self.blocks
        self.luckiest: list[Array] = []  # it trusts no single value
        self.looks: list[Array] = []  # what steps of some lengths would have brought
        self.seen: list[float] = []  # f(x) of the last rounds, as it was measured

    def run(
        self, limit: float = math.inf, window: float = math.inf, slow: float = 0.0
    ) -> Asking[bool]:
        """Descend; return True when the steps have become negligible.

        Returns False after ``limit`` queries, or where the last ``window`` queries have brought
        at most a share ``slow`` of the descent so far.
        """
        begun, pace = self.context.asked, ProgressMonitor(self.context.asked, self.fun)
        while self.context.asked - begun + self.cost <= limit:
            yield from self._step()
            if self.rate < EPS:
                return True
            if pace.is_slow(self.context.asked, self.fun, window, slow):
                return False
        return False

    def _step(self) -> Asking[None]:
        """Measure the slopes, and go along their average as far as f falls."""
        p = yield from self._direction()
        first = not self.rate
        lengths = FIRST_LENGTHS if first else self.rate * LENGTHS
        here, there = yield from self._look(p, lengths)
        noisy = self.context.noise > 0
        # Noise does not let us tell lengths apart at one look: all of them at this rate count.
        self.looks = [*self.looks, there - here] if noisy else [there - here]
        rises = np.mean(self.looks, axis=0)
        error = self._error() / math.sqrt(len(self.looks)) if noisy else 0.0
        best = int(np.argmin(rises))
        if not rises[best] <= 2 * error:  # a rise beyond noise
            self.rate, self.looks = float(lengths[0] if first else self.rate / 4), []
            self.mean[:] = 0.0
            self._keep(here)
            return
        if noisy and not first:  # the longest that brings half of the best: averages go farther
            longest = int(np.flatnonzero(rises <= rises[best] / 2)[-1]) if rises[best] < 0 else best
            best = max(longest, 1) if rises[1] - rises[best] <= 2 * error else longest
        if first or best != 1:
            self.rate, self.looks = float(lengths[best]), []
        self.x = self.x + self.rate * p * self.scale
        self._keep(here if self.context.noise else float(there[best]))

    def _direction(self) -> Asking[Array]:
        """Return the direction of the averages, with the slopes at x in them."""
        context = self.context
        noisy = context.noise > 0
        h = difference_step(context, self.fun, self.curved, central=noisy)
        turn, part = divmod(self.rounds, self.blocks)
        steps = np.maximum(h * self.scale, 8 * EPS * np.abs(self.x)) * (self.block == part)
        measured = yield from context.slopes(
            self.x, steps, everyone=False, central=noisy, turn=turn
        )
        here = (steps != 0) & np.isfinite(measured.own)  # but for those that nobody could measure
        self.rounds += 1
        t = turn + 1
        slopes = (measured.own * self.scale)[here]
        beta = self.beta
        self.mean[here] = mean = beta * self.mean[here] + (1 - beta) * slopes
        self.square[here] = square = BETA_2 * self.square[here] + (1 - BETA_2) * slopes**2
        ahead = beta * mean / (1 - beta ** (t + 1)) + (1 - beta) * slopes / (1 - beta**t)
        size = np.sqrt(square / (1 - BETA_2**t))
        p = np.zeros(context.dim)
        p[here] = -np.divide(ahead, size, out=np.zeros_like(ahead), where=size > 0)
        return p

    def _look(self, p: Array, lengths: Array) -> Asking[tuple[float, Array]]:
        """Return f(x), and f at some lengths along p; under noise the means of repeats."""
        points = self.x + lengths[:, None] * p * self.scale
        if not self.context.noise:
            values = yield from self.context.values(points)
            return self.fun, values
        points = np.concatenate([self.x[None], points])
        values = yield from self.context.values(np.repeat(points, self.repeats, axis=0))
        means = values.reshape(len(points), -1).mean(axis=1)
        return float(means[0]), means[1:]

    @property
    def cost(self) -> int:
        """The number of queries per step."""
        context, noisy = self.context, self.context.noise > 0
        looks = len(LENGTHS if self.rate else FIRST_LENGTHS) + noisy
        gradient = context.devices + (1 + noisy) * max(self.measured, context.devices)
        return gradient + looks * (self.repeats if noisy else 1) * context.devices

    @property
    def repeats(self) -> int:
        """How often a point is asked under noise: looks shall cost little beside a gradient."""
        return max(1, min(4, round(self.measured / (16 * self.context.devices))))

    @property
    def measured(self) -> int:
        """How many slopes a round measures, at most."""
        return -(-self.context.dim // self.blocks)

    def _error(self) -> float:
        return self.context.noise / math.sqrt(self.repeats)

    def _keep(self, fun: float) -> None:
        """Keep f(x), and halve the rate where noise hides that f falls."""
        self.fun = fun
        if not self.context.noise:
            return
        self.seen.append(fun)
        recent, before = self.seen[-PATIENCE:], self.seen[-2 * PATIENCE : -PATIENCE]
        self.fun = float(np.mean(recent))
        self.context.suggest(self.x, self.fun, self._error() / math.sqrt(len(recent)))
        if len(before) == PATIENCE:
            fallen = float(np.mean(before)) - self.fun
            if not fallen > 2 * self._error() / math.sqrt(PATIENCE):
                self.rate /= 2
                self.seen = []
