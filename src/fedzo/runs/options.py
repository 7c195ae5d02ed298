"""How a run goes and how a federation waits: the tables ``[run]`` and ``[flower]``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedzo.core.random import check_seed
from fedzo.errors import check_count, check_counts, check_positive, require


@dataclass(frozen=True)
class RunSettings:
    """The ``[run]`` table; ``data_seed`` names the problem's randomness, ``seed`` the rest."""

    rounds: int = 100
    seed: int = 0
    data_seed: int = 0
    evaluate_every: int = 10
    checkpoint_every: int = 10
    workers: int | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        check_counts(self, "evaluate_every", "checkpoint_every")
        check_count("rounds", self.rounds, least=0)
        if self.workers is not None:
            check_counts(self, "workers")
        for key in ("seed", "data_seed"):
            check_seed(key, getattr(self, key))
        wanted = self.target is None or not math.isnan(self.target)
        require(wanted, "target", self.target, "a number")


@dataclass(frozen=True)
class FlowerSettings:
    """The ``[flower]`` table: how long a federation of real nodes waits for whom.

    Parameters
    ----------
    quorum : float
        The share of a round's devices, in (0, 1], whose answers the round cannot do without.
    grace : float
        Seconds that the others are waited for once the quorum is there. Who has not answered
        by then is left out of the round, and asked again when it has shown that it is alive.
    patience : float
        Seconds that a quorum is waited for; then the run stops, with a checkpoint.
    max_norm : float, optional
        An update that is longer than this is left out; None: any finite one is taken.
    nodes : int, optional
        How many nodes a simulation has; as many as this machine has cores by default. A real
        federation has those that connect.

    Examples
    --------
    >>> FlowerSettings(quorum=1.5)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: quorum = 1.5: must be a number in (0, 1]
    >>> FlowerSettings().needed(20)
    10
    """

    quorum: float = 0.5
    grace: float = 30.0
    patience: float = 600.0
    max_norm: float | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "quorum", "grace", "patience")
        require(self.quorum <= 1, "quorum", self.quorum, "a number in (0, 1]")
        if self.max_norm is not None:
            check_positive(self, "max_norm")
        if self.nodes is not None:
            check_counts(self, "nodes")

    def needed(self, devices: int) -> int:
        """Return how many of so many devices are a quorum."""
        return math.ceil(self.quorum * devices)
