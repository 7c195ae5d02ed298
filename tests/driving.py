"""Rounds by hand: what tests of algorithms, uplinks and engines share."""

from fedzo.algorithms.compose import compose
from fedzo.core.engine import drive
from fedzo.core.tasks import LocalSteps
from fedzo.uplinks import Ideal
from fedzo.uplinks.base import RunSetting


def begin(algorithm, x0, engine, uplink=None):
    """Return an algorithm's state before round 0."""
    uplink = uplink or Ideal()
    return compose(algorithm, uplink).init(x0, RunSetting(engine, uplink))


def play(algorithm, t, state, engine, uplink=None):
    """Do one round; return the state after it and its RoundInfo."""
    uplink = uplink or Ideal()
    algorithm = compose(algorithm, uplink)
    return drive(algorithm.round(t, state, RunSetting(engine, uplink)), engine)


def local(algorithm, problem, device, x, draws):
    """Return a device's update from x, with the draws of an address."""
    return algorithm.local(problem, device, steps_of(algorithm, x), draws)


def steps_of(algorithm, x, round=0, seed=0, **settings):
    """Return the task of a round in which all devices start from x."""
    rate = {"ZoneS": 1.0}.get(type(algorithm).__name__) or algorithm.learning_rate
    devices = range(len(x)) if x.ndim == 2 else ()
    return LocalSteps(
        algorithm, x, rate, **{"round": round, "seed": seed, "devices": devices, **settings}
    )
