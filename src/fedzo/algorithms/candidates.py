"""Rounds in which candidate points are compared before the first step."""

from dataclasses import dataclass

from fedzo.algorithms.base import Round, RoundInfo, check_uplink
from fedzo.algorithms.fedzo import State, Variant
from fedzo.algorithms.server.fourier_sign import FourierSign
from fedzo.algorithms.server.halving import shared_out
from fedzo.core.tasks import Evaluate
from fedzo.core.types import Array
from fedzo.errors import UsageError
from fedzo.uplinks.base import RunSetting


@dataclass(frozen=True, kw_only=True)
class Candidates(Variant):
    """FedZO that begins at the best of some points, found by successive halving.

    While the server optimizer (:class:`~fedzo.server.FourierSign`) has candidates, a round
    evaluates them. Each device evaluates at least one sample, so with few samples not all devices
    are asked. The winner is evaluated on all inputs. If nothing is better in two further
    evaluations, the run ends.

    Parameters
    ----------
    fedzo : FedZO
        With a server optimizer that has candidates.
    """

    def init(self, x0: Array, setting: RunSetting) -> State:
        """Return the state before round 0."""
        state, server = self.fedzo.init(x0, setting), self.fedzo.server
        if not (isinstance(server, FourierSign) and (server.starts > 1 or server.sampled)):
            return state
        check_uplink(server, setting, "values")
        if setting.uplink.wants_coefficients:
            words = f"{type(server).__name__} compares values of candidate points"
            hint = "set uplink.name = 'ideal', or server.divisions = 0"
            raise UsageError(f"uplink.name: {words}; {hint}", code="no-values")
        return state

    def round(self, t: int, state: State, setting: RunSetting) -> Round[State]:
        """Yield the evaluation of the candidates; without candidates, FedZO's round."""
        server = self.fedzo.server
        if not isinstance(server, FourierSign):
            return (yield from self.fedzo.round(t, state, setting))
        state = state._replace(server=server.restarted(t, state.server))
        some = server.candidates(t, state.server, state.x, setting.seed)
        if some is None:
            return (yield from self.fedzo.round(t, state, setting))
        count, samples = shared_out(some.samples, setting.devices)
        devices = setting.uplink.participants(t, count, setting)
        replies = yield Evaluate(some.points, samples, seed=setting.seed, round=t, devices=devices)
        values, sent = setting.uplink.aggregate_values(t, replies, setting)
        x, kept = server.choose(state.server, state.x, some.points, values)
        return State(x, kept), RoundInfo.of(replies, sent)
