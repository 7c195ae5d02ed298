r"""FedZO with a learning rate that adapts during the run: ``learning_rate = "auto"``."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedzo.algorithms.base import Round, RoundInfo
from fedzo.algorithms.candidates import Candidates
from fedzo.algorithms.fedzo import FedZO, State, Variant
from fedzo.algorithms.server.optimizers import ServerState
from fedzo.core.tasks import Evaluate
from fedzo.core.types import Array
from fedzo.errors import NonFinite
from fedzo.uplinks.base import RunSetting, sample_uniformly

SHARE = 16  # probes take a sixteenth of the queries, or less
DEVICES = 5  # at least so many devices per probe, if there are
PATIENCE = 4  # probes that may see a rise
MUCH = 0.1  # of all that was gained: a rise that is not waited for
FURTHEST = 4.0  # the largest factor of the rate that a probe suggests
EPS = float(np.finfo(np.float64).eps)


class AdaptiveState(NamedTuple):
    """What is carried from round to round."""

    x: Array  # x^t
    server: ServerState
    good_x: Array  # the best model that a probe has seen, to return to after a rise
    good_server: ServerState
    numbers: Array  # see Numbers


class Numbers(NamedTuple):
    """The numbers of a state, in its order."""

    rate: float  # η
    smoothing: float  # μ
    variance: float = math.nan  # of the difference that a probe sees
    ceiling: float = math.inf  # the rate that failed last
    usual: float = math.nan  # how far rounds go
    gained: float = 0.0  # by how much f has fallen, from one best model to the next
    rises: float = 0.0  # probes since the best model that saw a rise


@dataclass(frozen=True, kw_only=True)
class AdaptiveRate(Variant):
    r"""FedZO with probes of f, which adapt the learning rate.

    A probe evaluates f at the current model x, at the best model y so far, and at a point as far
    beyond, :math:`2x - y`. It does so twice, each time on the same devices and samples for all
    three points. The difference of the two measures the noise.

    * f has risen if both halves agree and the rise is more than three times the noise. The run
      returns to y and halves η after four rises in a row, or at once if the rise is a tenth of the
      total decrease or f is not finite. The rate that failed becomes a ceiling, which grows by a
      tenth per probe. A single rise may come from the choice of devices.
    * If f has fallen by more than twice the noise, the parabola through the three points has its
      minimum at v of the way from y to x. If v > 1, η is multiplied by :math:`\sqrt{v}`. It is not
      reduced if v < 1: the best rate for one round is lower than the best rate for many.

    Probes take about a sixteenth of the queries. A round that moves four times as far as usual is
    probed immediately. The results do not depend on the units of f and x.

    Parameters
    ----------
    fedzo : FedZO
        The algorithm, with the rate and smoothing of the first round.
    adapts : bool
        Whether to adapt the rate. A rate that the user has chosen is not changed.
    """

    adapts: bool = True

    def init(self, x0: Array, setting: RunSetting) -> AdaptiveState:
        """Return the state before round 0."""
        start = Candidates(fedzo=self.fedzo).init(x0, setting)
        numbers = Numbers(float(self.fedzo.learning_rate), float(self.fedzo.smoothing))
        return AdaptiveState(start.x, start.server, start.x.copy(), start.server, np.array(numbers))

    def current(self, state: AdaptiveState) -> FedZO:
        """Return FedZO with the numbers of this state."""
        rate, smoothing, *_ = numbers_of(state)
        return replace(self.fedzo, learning_rate=rate, smoothing=smoothing)

    def round(self, t: int, state: AdaptiveState, setting: RunSetting) -> Round[AdaptiveState]:
        """Yield the tasks of FedZO's round, and those of a probe if it is time for one."""
        try:
            fedzo = Candidates(fedzo=self.current(state))
            after, info = yield from fedzo.round(t, State(*state[:2]), setting)
        except NonFinite:
            if not self.adapts:
                raise
            count = self.fedzo.participants or setting.devices
            moved, info, finite = state, RoundInfo(count, self._cost(setting)), False
        else:
            moved = state._replace(x=after.x, server=after.server)
            finite = bool(np.isfinite(after.x).all())
        if not self.adapts:
            return moved, info
        if finite:
            far, moved = went_far(state, moved)
            if far or (t + 1) % self.interval(setting) == 0:
                moved, info = yield from self._probe(t, moved, setting, info)
        else:
            moved = gone_back(moved)
        metrics = {**info.metrics, "learning_rate": numbers_of(moved).rate}
        return moved, info._replace(metrics=metrics)

    def interval(self, setting: RunSetting) -> int:
        """Return the number of rounds between two probes."""
        count, size = self._probe_size(setting)
        return max(1, math.ceil(SHARE * 6 * count * size / self._cost(setting)))

    def _cost(self, setting: RunSetting) -> int:
        """Return the number of values in a round."""
        points = self.fedzo.estimator.stencil[0].size
        devices = self.fedzo.participants or setting.devices
        return devices * self.fedzo.local_steps * points * self.fedzo.batch_size

    def _probe_size(self, setting: RunSetting) -> tuple[int, int]:
        """Return the devices, and the samples per device, of half a probe."""
        enough = self._cost(setting) // (6 * SHARE)
        count = min(setting.devices, max(enough, DEVICES))
        return count, max(1, min(self.fedzo.batch_size, enough // count))

    def _probe(
        self, t: int, state: AdaptiveState, setting: RunSetting, info: RoundInfo
    ) -> Round[AdaptiveState]:
        """Return the state after a probe, and the costs of the round with those of the probe."""
        x, good = state.x, state.good_x
        points = np.stack([good, x, x + (x - good)])
        count, size = self._probe_size(setting)
        halves = []
        for index in (1, 2):
            devices = sample_uniformly(t, count, setting, task=index)
            replies = yield Evaluate(
                points, size, seed=setting.seed, round=t, index=index, devices=devices
            )
            values = np.array([update.values for update in replies])
            halves.append(values.mean(axis=0) if len(values) else np.full(3, np.nan))
            info = info._replace(
                queries=info.queries + replies.queries,
                uplink_bytes=info.uplink_bytes + values.nbytes,
                downlink_bytes=info.downlink_bytes + len(values) * points.nbytes,
            )
        return judged(state, np.array(halves)), info


def numbers_of(state: AdaptiveState) -> Numbers:
    """Return the numbers of a state by their names."""
    return Numbers(*state.numbers.tolist())


def went_far(before: AdaptiveState, after: AdaptiveState) -> tuple[bool, AdaptiveState]:
    """Return whether a round went much further than rounds do, and note how far they do."""
    numbers = numbers_of(after)
    length, usual = float(np.linalg.norm(after.x - before.x)), numbers.usual
    if math.isnan(usual):
        return False, after._replace(numbers=np.array(numbers._replace(usual=length)))
    usual = 0.7 * usual + 0.3 * min(length, 4 * usual)
    far = length > 4 * numbers.usual > 0
    return far, after._replace(numbers=np.array(numbers._replace(usual=usual)))


def judged(state: AdaptiveState, values: Array) -> AdaptiveState:
    """Return the state after a probe, whose two halves have a value at each of its three points.

    >>> state = AdaptiveState(np.ones(1), (), np.zeros(1), (), np.array(Numbers(0.1, 1e-3, 0.0)))
    >>> parabola = np.array([[4.0, 1.0, 0.0]] * 2)  # (2 - v)^2: twice the way would be best
    >>> round(numbers_of(judged(state, parabola)).rate, 6), judged(state, parabola).good_x
    (0.141421, array([1.]))
    >>> back = judged(state, np.array([[1.0, 9.0, 25.0]] * 2))
    >>> numbers_of(back).rate, back.x
    (0.05, array([0.]))
    """
    down, beyond = (values[:, 1:] - values[:, :1]).mean(axis=0)
    if not np.isfinite(values[:, 0]).all():  # nobody was heard
        return state
    if not math.isfinite(down):
        return gone_back(state)
    numbers = numbers_of(state)
    apart, before = float(np.ptp(values[:, 1] - values[:, 0]) / 2) ** 2, numbers.variance
    # What soars does so unevenly: one probe must not pass for much more noise than there was.
    variance = apart if math.isnan(before) else 0.7 * before + 0.3 * min(apart, 4 * before)
    risen = (values[:, 1] > values[:, 0]).all()
    if risen and down > 3 * math.sqrt(variance) + 8 * EPS * abs(values[:, 0]).max():
        numbers = numbers._replace(variance=variance, rises=numbers.rises + 1)
        state = state._replace(numbers=np.array(numbers))
        back = numbers.rises >= PATIENCE or down > MUCH * numbers.gained
        return gone_back(state) if back else state
    ceiling = 1.1 * numbers.ceiling
    longer = 1.0 if down**2 < 4 * variance else math.sqrt(max(lowest_at(down, beyond), 1.0))
    rate = min(numbers.rate * longer, max(ceiling / 1.5, numbers.rate))
    numbers = numbers._replace(rate=rate, variance=variance, ceiling=ceiling)
    if down < 0:
        numbers = numbers._replace(gained=numbers.gained - down, rises=0.0)
        state = state._replace(good_x=state.x.copy(), good_server=state.server)
    return state._replace(numbers=np.array(numbers))


def gone_back(state: AdaptiveState) -> AdaptiveState:
    """Return the best state that a probe has seen, with half the rate."""
    rate = numbers_of(state).rate
    numbers = np.array(numbers_of(state)._replace(rate=rate / 2, ceiling=rate, rises=0.0))
    return state._replace(x=state.good_x.copy(), server=state.good_server, numbers=numbers)


def lowest_at(down: float, beyond: float) -> float:
    """Return where the parabola through 0, ``down`` at 1 and ``beyond`` at 2 is lowest.

    >>> lowest_at(-3.0, -4.0), lowest_at(-3.0, -8.0), lowest_at(-1.0, float("inf"))
    (2.0, 4.0, 0.25)
    """
    if not math.isfinite(beyond):
        return 1 / FURTHEST
    bend, slope = (beyond - 2 * down) / 2, (4 * down - beyond) / 2
    if bend <= 0:
        return FURTHEST if down < 0 else 1 / FURTHEST
    return min(max(-slope / (2 * bend), 1 / FURTHEST), FURTHEST)
