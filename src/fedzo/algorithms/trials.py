"""Rounds in which a server step has points tried, in place of a step."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fedzo.algorithms.base import RoundInfo
from fedzo.algorithms.population import CMA
from fedzo.algorithms.server import Trial
from fedzo.algorithms.server.contest import shared_out
from fedzo.core.federation import Federation
from fedzo.core.work import Work
from fedzo.uplinks.base import Uplink

Array = NDArray[Any]


def values_of(
    t: int, trial: Trial, federation: Federation, uplink: Uplink
) -> tuple[Array, RoundInfo]:
    """Return the mean value at each point of a trial, and what the round cost.

    A device is asked for one sample at least, so with few samples not all devices are asked. Their
    part is that of any search: values at points, all on the same samples of the device.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.core.federation import LocalFederation
    >>> from fedzo.problems import FunctionObjective
    >>> from fedzo.uplinks import Ideal
    >>> objective = FunctionObjective(lambda x, device: x[0] + device, dim=1, devices=3)
    >>> with LocalFederation(objective, seed=0) as federation:
    ...     trial = Trial(np.array([[1.0], [5.0]]), samples=10)
    ...     values, info = values_of(0, trial, federation, Ideal())
    >>> values, info.participants, info.queries
    (array([2., 6.]), 3, 6)
    """
    count, samples = shared_out(trial.samples, federation.devices)
    work = Work(CMA(batch_size=samples), trial.points, t, federation.seed)
    updates = federation.map(work, uplink.participants(t, count, federation))
    values, sent = uplink.average_values(updates)
    return values, RoundInfo.of(updates, sent)
