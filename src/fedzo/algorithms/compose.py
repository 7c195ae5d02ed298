"""Variants of FedZO as wrappers: which of them a run needs, and what is inside."""

from typing import Any

from fedzo.algorithms.adaptive_rate import AdaptiveRate
from fedzo.algorithms.base import Algorithm
from fedzo.algorithms.candidates import Candidates
from fedzo.algorithms.fedzo import FedZO
from fedzo.algorithms.fixed_directions import FixedDirections
from fedzo.algorithms.server.fourier_sign import FourierSign
from fedzo.algorithms.server_rate import ServerRate
from fedzo.uplinks.base import Uplink


def compose(algorithm: Algorithm, uplink: Uplink) -> Algorithm:
    """Return the algorithm with the wrappers that its settings and the uplink ask for.

    >>> import fedzo
    >>> fixed = fedzo.FedZO(directions=2, fixed_directions=8)
    >>> type(compose(fixed, fedzo.Seeds())).__name__
    'FixedDirections'
    >>> compose(fixed, fedzo.Ideal()) is fixed
    True
    """
    if isinstance(algorithm, FedZO):
        if algorithm.fixed_directions is not None and uplink.wants_coefficients:
            return FixedDirections(fedzo=algorithm)
        if isinstance(algorithm.server, FourierSign):
            return Candidates(fedzo=algorithm)
        if algorithm.server.automatic:
            return ServerRate(fedzo=algorithm)
    return algorithm


def current(algorithm: Algorithm, state: Any) -> Algorithm:
    """Return the algorithm without wrappers, with its current numbers."""
    if isinstance(algorithm, AdaptiveRate | ServerRate):
        return algorithm.current(state)
    return algorithm.fedzo if isinstance(algorithm, FixedDirections | Candidates) else algorithm
