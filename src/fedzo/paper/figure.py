"""What a figure is: the runs that it shows, how it shows them, and what they must bear out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedzo.paper.claims import Claim

if TYPE_CHECKING:
    from fedzo.config.experiment import Experiment, Tables


@dataclass(frozen=True)
class Scale:
    """How large the runs of a figure are: the paper's own size, or one to try.

    Of each run about ``points`` rounds are evaluated. What differs from the paper's scale is told
    by :func:`fedzo.paper.caption.smaller`, from the configurations.
    """

    config: str
    rounds: int
    seeds: int
    changes: tuple[str, ...] = ()
    points: int = 30


@dataclass(frozen=True)
class Curve:
    """One curve: how its runs differ from the scale's configuration.

    ``rounds`` is in units of the scale's, for runs that are compared at equal cost and not
    at equal rounds. Curves of one ``colour`` have one marker too.
    """

    label: str
    changes: tuple[str, ...] = ()
    colour: int = 0
    dashed: bool = False
    rounds: float = 1.0

    def experiment(self, scale: Scale) -> Experiment:
        """Return the configuration of its runs, with seed 0.

        Examples
        --------
        >>> scale = Scale("quadratic", rounds=200, seeds=3, points=20)
        >>> curve = Curve("H = 2", ("algorithm.local_steps=2",), rounds=0.5)
        >>> curve.experiment(scale).options.rounds
        100
        """
        from fedzo.config.experiment import Experiment

        rounds = max(1, round(self.rounds * scale.rounds))
        every = max(1, rounds // scale.points)
        # One worker: runs go side by side, and the result does not depend on it.
        run = {"rounds": rounds, "evaluate_every": every, "checkpoint_every": -(-rounds // 20)}
        run |= {"workers": 1, "seed": 0}
        overrides = [f"run.{key}={value}" for key, value in run.items()]
        return Experiment.load(scale.config, [*scale.changes, *self.changes, *overrides])


@dataclass(frozen=True)
class Panel:
    """Axes with a curve for each of ``curves`` (all by default), mean and range over seeds."""

    y: str
    x: str = "round"
    title: str = ""
    log_x: bool = False
    curves: tuple[str, ...] | None = None
    lines: Mapping[str, Mapping[float, float]] | None = None  # what is computed, not run


@dataclass(frozen=True)
class Points:
    """Axes with a point for each curve: what it came to, against a setting.

    ``at`` has the lines that points are joined to, and for each where on the x axis a curve's
    point is. What a curve came to is the mean over the second half of its rounds.
    """

    y: str
    x: str
    at: Mapping[str, Mapping[str, float]]
    title: str = ""
    log_y: bool = True
    lines: Mapping[str, Mapping[float, float]] | None = None


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, or one of our own.

    ``title`` and ``about`` have no settings: those are told from the configurations.
    """

    name: str
    title: str
    about: str
    curves: tuple[Curve, ...]
    panels: tuple[Panel | Points, ...]
    claims: tuple[Claim, ...]
    scales: Mapping[str, Scale]

    def tables(self, scale: str) -> dict[str, Tables]:
        """Return the resolved configuration of each curve, with seed 0."""
        return {c.label: c.experiment(self.scales[scale]).tables for c in self.curves}
