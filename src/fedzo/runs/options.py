"""How a run goes and how a federation waits: the tables ``[run]`` and ``[flower]``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypedDict

from fedzo.core.random import check_seed
from fedzo.errors import check_count, check_counts, check_positive, require

MOST_ROUNDS = 1 << 26  # a round has so many bits in the address of a draw


class RunKeywords(TypedDict, total=False):
    """What :func:`fedzo.minimize` and its relatives take by keyword: see :class:`RunOptions`."""

    rounds: int
    seed: int
    evaluate_every: int
    checkpoint_every: int
    workers: int | None
    target: float | None


@dataclass(frozen=True)
class RunOptions:
    """The ``[run]`` table.

    Parameters
    ----------
    rounds : int
        T, how many rounds to run.
    seed : int
        Names all randomness of the run: the same seed gives the same run, bit for bit.
    data_seed : int
        Names the randomness of a problem that a configuration makes, such as its data split.
    evaluate_every : int
        f is evaluated over all devices at rounds 0, k, 2k, ... and at the end.
    checkpoint_every : int
        A run in a folder writes a checkpoint every so many rounds, and at the end.
    workers : int, optional
        Threads; all cores by default. The result does not depend on it.
    target : float, optional
        The run stops when f, as evaluated, is at most this.
    modules : str, optional
        A folder in which the user's own modules are looked for, too. By default the folder of a
        configuration that names some, or, in Python, the folder of the module.

    Examples
    --------
    >>> RunOptions(rounds=-1)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: rounds = -1: must be a whole number >= 0
    """

    rounds: int = 100
    seed: int = 0
    data_seed: int = 0
    evaluate_every: int = 10
    checkpoint_every: int = 10
    workers: int | None = None
    target: float | None = None
    modules: str | None = None

    def __post_init__(self) -> None:
        check_counts(self, *(key for key in vars(self) if key.endswith("_every")))
        check_count("rounds", self.rounds, least=0)
        allowed = f"below {MOST_ROUNDS:,}: a round is a part of the address of every draw"
        require(self.rounds < MOST_ROUNDS, "rounds", self.rounds, allowed)
        if self.workers is not None:
            check_counts(self, "workers")
        for key in ("seed", "data_seed"):
            check_seed(key, getattr(self, key))
        target: Any = self.target
        number = isinstance(target, Real) and not math.isnan(target)
        require(target is None or number, "target", target, "a number")

    def evaluates(self, t: int) -> bool:
        """Return whether f is evaluated on schedule after t rounds."""
        return t % self.evaluate_every == 0

    @property
    def evaluates_between(self) -> bool:
        """Whether f is evaluated on schedule between the start and the last round."""
        return self.evaluate_every < self.rounds

    def saves(self, t: int) -> bool:
        """Return whether a checkpoint is written after t rounds."""
        return t % self.checkpoint_every == 0 or t == self.rounds


@dataclass(frozen=True)
class FlowerSettings:
    """The ``[flower]`` table: how long a federation of real nodes waits for whom.

    Parameters
    ----------
    quorum : float
        The share of a round's devices, in (0, 1], that must answer.
    grace : float
        Seconds to wait for the others once the quorum has answered. A device that has not answered
        by then is left out of the round, and asked again when it has shown that it is alive.
    patience : float
        Seconds to wait for a quorum; then the run stops, with a checkpoint.
    max_norm : float, optional
        An update that is longer than this is left out; None: any finite one is accepted.
    clip : float or False
        An update that is longer than so many times the median of its round is shortened to
        that; losses and sample counts are kept within wider bounds. False: no limits.
    bindings : str, optional
        A file on the server that says which devices each node may claim; None: any.
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
    clip: float | Literal[False] = 5.0
    bindings: str | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "quorum", "grace", "patience")
        require(self.clip is False or self.clip >= 1, "clip", self.clip, "a number >= 1, or false")
        require(self.quorum <= 1, "quorum", self.quorum, "a number in (0, 1]")
        if self.max_norm is not None:
            check_positive(self, "max_norm")
        if self.nodes is not None:
            check_counts(self, "nodes")

    def needed(self, devices: int) -> int:
        """Return how many of so many devices are a quorum."""
        return math.ceil(self.quorum * devices)
