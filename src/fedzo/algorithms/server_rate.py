r"""FedZO with a server optimizer whose rate is measured: ``Adam(learning_rate="auto")``."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedzo.algorithms.adaptive_rate import lowest_at
from fedzo.algorithms.base import Round, RoundInfo, check_uplink
from fedzo.algorithms.fedzo import FedZO, State, Variant
from fedzo.algorithms.server.optimizers import Adam, ServerOptimizer, ServerState
from fedzo.core.capabilities import InPlace
from fedzo.core.files import in_file
from fedzo.core.tasks import Evaluate, Losses, Offsets
from fedzo.core.types import Array
from fedzo.core.updates import as_sum
from fedzo.errors import NonFinite
from fedzo.uplinks.base import RunSetting, sample_uniformly

EVERY = 8  # rounds between two probes; half as many in the first 16
SAMPLES = 128  # at least so many in a probe, over all its devices
LADDER = 32 * 4.0 ** -np.arange(12).reshape(3, 4)  # rates of the first probe, in perturbations
BEYOND = np.array([[6.0, 12.0], [24.0, 48.0]])  # those of later ones, in present rates
_PROBE = 40  # the task's index


class RateState(NamedTuple):
    """What is carried from round to round."""

    x: Array  # x^t
    server: ServerState
    good_x: Array  # the best model that a probe has seen, to return to
    numbers: Array  # η_s; f at the start and at the best model; 1 if probes fail; η and μ


@dataclass(frozen=True)
class ServerMove:
    """How far a server optimizer moves x in round t: an offset from x, made part by part."""

    server: ServerOptimizer
    t: int
    state: ServerState
    update: Any

    def add_to(self, out: Array, start: int = 0, base: Array | None = None) -> None:
        """Write ``base`` plus the move of numbers ``start``, ... into ``out``."""
        base = out if base is None else base
        self.server.apply_parts(self.t, self.state, base, self.update, (out,), start)


@dataclass(frozen=True, kw_only=True)
class ServerRate(Variant):
    r"""FedZO with probes of f, which measure the rate of an adaptive server optimizer.

    A probe evaluates f at x and at points along the step of this round, as if the server took it at
    other rates: :math:`x + s u^t`. All probes use the same devices and samples.

    * The first one descends a ladder of rates, from 32 times the perturbation of a number by
      factors of four, to the first at which f falls. It takes this rate, or less if the parabola
      through neighbouring rates has its minimum before it. If f rises in proportion to the rate, no
      rate helps: the update is mostly noise, and the next round has a first probe again.
    * Later ones evaluate s = 6 η_s and 12 η_s; if f falls beyond these, 24 η_s and 48 η_s, too. The
      parabola has its minimum at :math:`s^*`. The average of past updates has less noise than each
      of them, so at a good rate f falls for several steps along the same line. From 2 to 8 steps
      η_s stays. Otherwise it is multiplied by :math:`s^* / 2 \eta_s`, at least 3/4, or by
      :math:`s^* / 8 \eta_s`. In the first rounds there is less to average: there it stays from
      1 + t / 4 to 2 t + 2 steps.

    The run returns to the best model that a probe has seen, without momentum and with half the
    rate, if f is not finite or has risen too much: by half of all that was gained since the start,
    plus the smallest rise on the ladder.

    Where no device evaluates points that a run chooses, as a Flower node by default does not, the
    rounds themselves are the probes: the current model is evaluated in their place, as in every
    run, and the rate doubles while f falls.

    Points are offsets from x, made part by part from the optimizer's state and the update: no
    vector of the model's size is held. A probe takes three or six values per sample, the first one
    five or more. There is one in rounds 0, 1 and 2, in every fourth to 16, and in every eighth.

    Parameters
    ----------
    fedzo : FedZO
        The algorithm; its server optimizer has ``learning_rate = "auto"``.
    """

    def init(self, x0: Array, setting: RunSetting) -> RateState:
        """Return the state before round 0."""
        start = self.fedzo.init(x0, setting)
        check_uplink(self, setting, "values")
        own = float(self.fedzo.learning_rate), float(self.fedzo.smoothing)
        numbers = np.array([own[1] / math.sqrt(x0.size), math.inf, math.inf, 0.0, *own])
        return RateState(start.x, start.server, x0[:0], numbers)

    def current(self, state: RateState) -> FedZO:
        """Return FedZO with the numbers of this state."""
        rate, smoothing = state.numbers[4:].tolist()
        server = self._server(float(state.numbers[0]))
        return replace(self.fedzo, learning_rate=rate, smoothing=smoothing, server=server)

    def _server(self, rate: float) -> ServerOptimizer:
        assert isinstance(self.fedzo.server, Adam)
        return replace(self.fedzo.server, learning_rate=rate)

    def round(self, t: int, state: RateState, setting: RunSetting) -> Round[RateState]:
        """Yield FedZO's tasks, and those of a probe if it is time for one."""
        fedzo, uplink = self.current(state), setting.uplink
        devices = uplink.participants(t, fedzo.participants, setting)
        try:
            updates = yield fedzo.task(t, State(*state[:2]), devices, setting)
            delta, sent = uplink.aggregate(t, updates, setting)
        except NonFinite:
            if not state.good_x.size:
                raise
            cost = len(devices) * self.fedzo.estimator.stencil[0].size * self.fedzo.batch_size
            return self._gone_back(state, setting), RoundInfo(len(devices), cost)
        info = RoundInfo.of(updates, sent)
        begins = math.isinf(state.numbers[1])
        if begins or t in (1, 2) or t % (EVERY if t > 2 * EVERY else EVERY // 2) == 0:
            before = state
            state, info = yield from self._probe(t, state, delta, setting, info)
            if state.server is not before.server:
                return state, info
        rate = float(state.numbers[0])
        with setting.commit():
            x, server = self._server(rate).step(t, state.server, state.x, delta)
        metrics = {**info.metrics, "learning_rate": rate}
        return state._replace(x=x, server=server), info._replace(metrics=metrics)

    def _probe(
        self, t: int, state: RateState, delta: Any, setting: RunSetting, info: RoundInfo
    ) -> Round[RateState]:
        """Return the state with a measured rate, and the costs with those of the probe."""
        rate, first, best, refused, *own = state.numbers.tolist()
        begins, least, f = math.isinf(first), math.inf, math.nan
        unit, steps = own[1] / math.sqrt(state.x.size), math.nan  # the perturbation of a number
        for rates in () if refused else unit * LADDER if begins else rate * BEYOND:
            values, info = yield from self._values(t, state, delta, rates, setting, info)
            if not values.size:
                refused = 1.0
                break
            f = float(values[0])
            rises = np.where(np.isfinite(values), values, np.inf)[1:] - f
            if not begins:
                steps = float(rates[0]) / rate * lowest_at(*rises.tolist())
                if steps > rates[1] / rate:
                    continue  # f may be lowest further on
                break
            least, falls = min([least, *rises[rises > 0]]), np.flatnonzero(rises < 0)
            rate = float(rates[-1]) if rises[-1] > 0 else unit
            if falls.size:
                at = max(int(falls[0]), 1)
                high, low = rises[at - 1 : at + 1].tolist()  # of four times the rate, and of it
                bend = high - 4 * low
                lowest = 0.5 - 6 * low / bend if bend > 0 else math.inf  # in this rate
                rate = min(float(rates[falls[0]]), lowest * float(rates[at]))
                break
            if rises[-1] > rises[-2] / 8:  # a quarter of the rate: half as a line, half as a bowl
                least, f = math.inf, math.nan
                break
        if not math.isnan(steps):
            fewest, most = min(1 + t / 4, 2), min(2 * t + 2, 8)
            rate *= min(max(steps / fewest, 0.75), 1.0) * max(steps / most, 1.0)
        if refused:
            evaluation = yield Losses(state.x)  # type: ignore[misc]
            f = float(np.nanmean(evaluation.losses))  # type: ignore[attr-defined]
            rate *= 1.0 if begins else 2.0 if f < best else 0.7
        if begins and math.isfinite(f):
            first = f + (2 * least if math.isfinite(least) else 0.0)
        elif state.good_x.size and not f - best <= (first - best) / 2:  # it may be NaN
            return self._gone_back(state, setting), info
        if f < best:
            best, kept = f, in_file(state.x) if setting.provides(InPlace) else state.x
            state = state._replace(good_x=kept)
        return state._replace(numbers=np.array([rate, first, best, refused, *own])), info

    def _values(
        self,
        t: int,
        state: RateState,
        delta: Any,
        rates: Array,
        setting: RunSetting,
        info: RoundInfo,
    ) -> Round[Array]:
        """Return f at x and after this round's step at these rates; nothing without a reply."""
        update = as_sum(delta)
        lazy = update if update.streamed else np.asarray(delta)
        moves = [ServerMove(self._server(float(one)), t, state.server, lazy) for one in rates]
        count = min(self.fedzo.participants or setting.devices, setting.devices)
        dropped = len(setting.engine.dropped)
        replies = yield Evaluate(
            Offsets(state.x, (None, *moves)),
            -(-SAMPLES // count),
            seed=setting.seed,
            index=_PROBE,
            devices=sample_uniformly(0, count, setting, task=_PROBE),
        )
        values, sent = setting.uplink.aggregate_values(t, replies, setting)
        del setting.engine.dropped[dropped:]  # of no round
        info = info._replace(
            queries=info.queries + replies.queries,
            uplink_bytes=info.uplink_bytes + sent.uplink_bytes,
            downlink_bytes=info.downlink_bytes + sent.downlink_bytes,
        )
        return values if replies.count else values[:0], info

    def _gone_back(self, state: RateState, setting: RunSetting) -> RateState:
        """Return the best model that a probe has seen, without momentum and with half the rate."""
        x, (m, *others), numbers = state.good_x, state.server, state.numbers * [0.5, 1, 1, 1, 1, 1]
        if setting.provides(InPlace):
            with setting.commit():
                state.x[:] = x
            x = state.x
        return state._replace(x=x, server=(np.zeros_like(m), *others), numbers=numbers)
