"""The options of a run and of a federation: the tables ``[run]`` and ``[flower]``."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypedDict

from fedzo.core.random import check_seed
from fedzo.errors import Parameters, check_count, check_counts, check_positive, require

MOST_ROUNDS = 1 << 26  # a round has so many bits in the address of a draw

UNLIMITED = 1_000_000  # rounds, of a search that ends by itself


class RunKeywords(TypedDict, total=False):
    """The keywords of :func:`fedzo.minimize` and similar calls: see :class:`RunOptions`."""

    rounds: int
    seed: int
    evaluate_every: int
    checkpoint_every: int
    workers: int | Literal["processes"] | tuple[Literal["processes"], int] | None
    target: float | None


@dataclass(frozen=True)
class RunOptions(Parameters):
    """The ``[run]`` table.

    Parameters
    ----------
    rounds : int
        T, the number of rounds.
    seed : int
        The seed of all random draws: the same seed gives the same run, bit for bit.
    data_seed : int
        The seed of a problem that a configuration makes, such as its data split.
    evaluate_every : int
        Evaluate f over all devices at rounds 0, k, 2k, ... and at the end.
    checkpoint_every : int
        Write a checkpoint at rounds 0, k, 2k, ... and at the end, if the run has a folder.
    workers : int, optional
        The number of threads, by default one per core. The result does not depend on it.
    target : float, optional
        Stop when an evaluated f is at most this.
    max_queries : int, optional
        The budget of queries. A function, a training and a model behind an API stop exactly there,
        evaluations included. A simulation, whose evaluations are free, never exceeds it: it ends
        before a round that would, if that costs as much as the last one. A run is not a success if
        its budget does not cover one round.
    modules : str, optional
        A folder with the user's own modules. By default the folder of the configuration that
        names a module, or, in Python, the folder of the module.

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
    max_queries: int | None = None
    modules: str | None = None

    def __post_init__(self) -> None:
        check_counts(self, *(key for key in vars(self) if key.endswith("_every")))
        check_count("rounds", self.rounds, least=0)
        allowed = f"below {MOST_ROUNDS:,}: a round is a part of the address of every draw"
        require(self.rounds < MOST_ROUNDS, "rounds", self.rounds, allowed)
        check_counts(self, optional=["workers", "max_queries"])
        for key in ("seed", "data_seed"):
            check_seed(key, getattr(self, key))
        target: Any = self.target
        number = isinstance(target, Real) and not math.isnan(target)
        require(target is None or number, "target", target, "a number")

    def evaluates(self, t: int) -> bool:
        """Return whether f is evaluated on schedule after t rounds."""
        return t % self.evaluate_every == 0

    @property
    def reserved_evaluations(self) -> int:
        """How many evaluations a budget has queries for: the last one, and one on schedule.

        It does not depend on the number of rounds, which a resume may raise.
        """
        return 1 + (self.evaluate_every < UNLIMITED)

    def saves(self, t: int) -> bool:
        """Return whether a checkpoint is written after t rounds."""
        return t % self.checkpoint_every == 0 or t == self.rounds


@dataclass(frozen=True)
class FlowerSettings(Parameters):
    """The ``[flower]`` table: how long the server waits for nodes, and what it accepts.

    Parameters
    ----------
    quorum : float
        The share of a round's devices, in (0, 1], that must reply.
    grace : float
        Seconds to wait for the other devices once the quorum has replied. A device without a
        reply by then is dropped from the round, and its node is not asked for some rounds.
    patience : float
        Seconds to wait for a quorum. Then the run stops, with a checkpoint.
    max_norm : float, optional
        Reject updates with a larger norm; None accepts any finite update.
    clip : float or False
        Shorten updates to at most this many times the median norm of their round. Losses and
        sample counts have wider bounds. False: no limits.
    bindings : str, optional
        A file on the server with the devices that each node may claim; None: any.
    nodes : int, optional
        The number of nodes of a simulation, by default one per core. A real federation has
        the nodes that connect.

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
        check_positive(self, optional=["max_norm"])
        check_counts(self, optional=["nodes"])

    def needed(self, devices: int) -> int:
        """Return the size of a quorum of this many devices."""
        return math.ceil(self.quorum * devices)
