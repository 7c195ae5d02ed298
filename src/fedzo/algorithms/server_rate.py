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

EVERY = 8  # rounds between two probes; half as many in the first 32
SAMPLES = 128  # at least so many in a probe, over all its devices
BEYOND = 3.0  # at a good rate f falls for about so many steps in a row along the same step
GRID = tuple(4.0**k for k in range(-3, 7))  # the rates of the first probe, in perturbations
_PROBE = 40  # the task's index


class RateState(NamedTuple):
    """What is carried from round to round."""

    x: Array  # x^t
    server: ServerState
    good_x: Array  # the best model that a probe has seen, to return to
    # η_s or 0 if unknown; f at the start and at the best model; 1 if probes fail; η and μ
    numbers: Array


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

    A probe evaluates f at x and at two or more points along the step of this round, as if the
    server took it at other rates: :math:`x + s u^t` for s = 0, 3 η_s and 6 η_s. The parabola
    through the three has its minimum at :math:`s^*`. At a good rate f falls for about three steps
    along the same line, early in a run and late: so η_s is multiplied by the root of
    :math:`s^* / 3 \eta_s`, between 1/2 and 2. At first s runs through ten powers of four, times the
    perturbation of a number. All probes use the same devices and samples.

    If f is not finite, or has risen by half of all that was gained since the start, the run returns
    to the best model that a probe has seen, with half the rate.

    Where no device evaluates points that a run chooses, as a Flower node by default does not, the
    rounds themselves are the probes: the current model is evaluated in their place, as in every
    run, and the rate doubles while f falls.

    Points are offsets from x, made part by part from the optimizer's state and the update: no
    vector of the model's size is held. A probe takes three values per sample, in every eighth
    round, and in every fourth of the first 32.

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
        numbers = np.array([0.0, math.inf, math.inf, 0.0, *own])
        return RateState(start.x, start.server, x0[:0], numbers)

    def current(self, state: RateState) -> FedZO:
        """Return FedZO with the numbers of this state."""
        rate, smoothing = state.numbers[4:].tolist()
        server = self._server(self._rates(state)[0])
        return replace(self.fedzo, learning_rate=rate, smoothing=smoothing, server=server)

    def _server(self, rate: float) -> ServerOptimizer:
        assert isinstance(self.fedzo.server, Adam)
        return replace(self.fedzo.server, learning_rate=rate)

    def _rates(self, state: RateState) -> list[float]:
        """Return the current rate, or all that come into question if none is known."""
        if state.numbers[0]:
            return [float(state.numbers[0])]
        unit = float(state.numbers[5]) / math.sqrt(state.x.size)
        return [unit * factor for factor in GRID]

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
        if t % (EVERY if t > 4 * EVERY else EVERY // 2) == 0 or t in (1, 2):
            before = state
            state, info = yield from self._probe(t, state, delta, setting, info)
            if state.x is not before.x or state.server is not before.server:
                return state, info
        rate = self._rates(state)[0]
        with setting.commit():
            x, server = self._server(rate).step(t, state.server, state.x, delta)
        metrics = {**info.metrics, "learning_rate": rate}
        return state._replace(x=x, server=server), info._replace(metrics=metrics)

    def _probe(
        self, t: int, state: RateState, delta: Any, setting: RunSetting, info: RoundInfo
    ) -> Round[RateState]:
        """Return the state with a measured rate, and the costs with those of the probe."""
        update, (rate, first, best, refused, *own) = as_sum(delta), state.numbers.tolist()
        lazy = update if update.streamed else np.asarray(delta)
        rates = [rate, 2 * rate]
        if not rate or t == EVERY // 2:
            rates = self._rates(state._replace(numbers=np.array([0.0, 0.0, 0.0, 0.0, *own])))
        moves = [ServerMove(self._server(BEYOND * one), t, state.server, lazy) for one in rates]
        count = min(self.fedzo.participants or setting.devices, setting.devices)
        values = np.empty(0)
        if not refused:
            dropped = len(setting.engine.dropped)
            replies = yield Evaluate(
                Offsets(state.x, (None, *moves)),
                max(self.fedzo.batch_size, -(-SAMPLES // count)),
                seed=setting.seed,
                index=_PROBE,
                devices=sample_uniformly(0, count, setting, task=_PROBE),
            )
            values, sent = setting.uplink.aggregate_values(t, replies, setting)
            info = info._replace(
                queries=info.queries + replies.queries,
                uplink_bytes=info.uplink_bytes + sent.uplink_bytes,
                downlink_bytes=info.downlink_bytes + sent.downlink_bytes,
            )
            refused = float(not replies.count)
            del setting.engine.dropped[dropped:]  # of no round
        if refused:
            evaluation = yield Losses(state.x)  # type: ignore[misc]
            values = np.array([np.nanmean(evaluation.losses)])  # type: ignore[attr-defined]
        f = float(values[0])
        first = f if math.isinf(first) else first
        if not math.isfinite(f) or f - best > (first - best) / 2:
            return self._gone_back(state, setting), info
        fell = f < best
        if fell:
            best, kept = f, in_file(state.x) if setting.provides(InPlace) else state.x
            state = state._replace(good_x=kept)
        falls = np.where(np.isfinite(values), values, np.inf)[1:] - f
        if refused:
            unit = own[1] / math.sqrt(setting.dim)
            rate = (2.0 if fell else 0.7) * rate if rate else unit
        elif len(rates) > 2:
            rate = rates[int(falls.argmin())] if falls.min() < 0 else rate
        else:
            rate *= math.sqrt(lowest_at(*falls.tolist()))
        return state._replace(numbers=np.array([rate, first, best, refused, *own])), info

    def _gone_back(self, state: RateState, setting: RunSetting) -> RateState:
        """Return the best model that a probe has seen, with new moments and half the rate."""
        x, numbers = state.good_x, state.numbers * [0.5, 1, 1, 1, 1, 1]
        if setting.provides(InPlace):
            with setting.commit():
                state.x[:] = x
            x = state.x
        return state._replace(x=x, server=self.fedzo.server.init(x), numbers=numbers)
