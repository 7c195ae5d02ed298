"""Whether a run that ended normally was a success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedzo.core.capabilities import Best
from fedzo.runs.result import Status


def shortcoming(
    rounds: int,
    queries: int,
    idle: int,
    still: int,
    losses: Sequence[float],
    best: Best,
    moved: bool,
    silent: Sequence[int],
    left_out: Sequence[int],
) -> tuple[Status | None, str] | None:
    """Return why a run is not a success, as a status and in words, if it is not.

    Where there is no status, it is one that has something to say.

    Parameters
    ----------
    rounds, queries, idle, still : int
        How many rounds there were, values asked for, rounds in which no device took part, and
        rounds in which some did and the model stayed the same.
    losses : sequence of float
        As evaluated, the first at the start.
    best : Best
        The best of them.
    moved : bool
        Whether the model differs from the start.
    silent : sequence of int
        Devices that have answered no evaluation.
    left_out : sequence of int
        Devices that every round had to do without.

    Examples
    --------
    >>> best = Best(x=None, fun=1.0, round=0)
    >>> shortcoming(9, 90, 0, 0, [1.0, 7.0], best, moved=True, silent=[], left_out=[])
    (<Status.DIVERGED: 5>, ', but the loss rose from 1 to 7')
    """
    if not losses:
        return Status.STALLED, ", before anything was evaluated"
    first, last = losses[0], losses[-1]
    kept = f"; the best, {best.fun:.4g}, is of round {best.round}" if best.round else ""
    flat = "μ or the step is below the precision of x, or the loss is flat around it"
    reasons = (
        (not queries, Status.HALTED, ", in which no device took part"),
        (silent, Status.HALTED, f", but device {_listed(silent)} never answered"),
        (2 * idle > rounds, Status.STALLED, f", but in {idle} of {rounds} no device took part"),
        (left_out, Status.HALTED, f", but device {_listed(left_out)} was left out in every round"),
        # Less than one per cent is noise around a good start.
        (
            last - first > 0.01 * abs(first),
            Status.DIVERGED,
            f", but the loss rose from {first:.4g} to {last:.4g}{kept}",
        ),
        (not moved, Status.STALLED, f", but the model did not move: {flat}"),
        (
            best.round == 0,
            Status.STALLED,
            f", but no evaluated model is better than the start, {first:.4g}",
        ),
        # As good as it gets, perhaps: whoever reads it knows.
        (
            2 * still > rounds,
            None,
            f"; in {still} of {rounds} rounds the model stood still: {flat}",
        ),
    )
    met = ((status, words) for holds, status, words in reasons if holds)
    return next(met, None) if rounds else None


def always_left_out(
    rounds: int, history: Sequence[Mapping[str, Any]], since: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Return the devices that every round had to do without.

    ``since`` names those left out after the last record of the history.

    >>> always_left_out(2, [{"left_out": [{"round": 1, "device": 7}]}], [{"round": 2, "device": 7}])
    [7]
    """
    absent: dict[int, set[int]] = {}
    named = (one for record in history for one in record.get("left_out", ()))
    for one in (*named, *since):
        absent.setdefault(one["device"], set()).add(one["round"])
    every = set(range(1, rounds + 1))
    return sorted(device for device, missed in absent.items() if every <= missed)


def _listed(devices: Sequence[int]) -> str:
    return ", ".join(map(str, devices[:5])) + (", ..." if len(devices) > 5 else "")
