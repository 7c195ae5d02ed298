"""Whether a run that ended normally was a success."""

from __future__ import annotations

from collections.abc import Sequence

from fedzo.core.objective import Best
from fedzo.runs.result import Status


def shortcoming(
    rounds: int,
    queries: int,
    idle: int,
    losses: Sequence[float],
    best: Best,
    moved: bool,
    silent: Sequence[int],
) -> tuple[Status, str] | None:
    """Return why a run is not a success, as a status and in words, if it is not.

    Parameters
    ----------
    rounds, queries, idle : int
        How many rounds there were, values asked for, rounds in which no device took part.
    losses : sequence of float
        As evaluated, the first at the start.
    best : Best
        The best of them.
    moved : bool
        Whether the model differs from the start.
    silent : sequence of int
        Devices that have answered no evaluation.

    Examples
    --------
    >>> best = Best(x=None, fun=1.0, round=0)
    >>> shortcoming(9, 90, 0, [1.0, 7.0], best, moved=True, silent=[])
    (<Status.DIVERGED: 5>, ', but the loss rose from 1 to 7')
    """
    if not losses:
        return Status.STALLED, ", before anything was evaluated"
    first, last = losses[0], losses[-1]
    kept = f"; the best, {best.fun:.4g}, is of round {best.round}" if best.round else ""
    flat = "μ is below the precision of x, or the loss is flat around it"
    numbers = ", ".join(map(str, silent[:5]))
    reasons = (
        (not queries, Status.HALTED, ", in which no device took part"),
        (silent, Status.HALTED, f", but device {numbers} never answered"),
        (2 * idle > rounds, Status.STALLED, f", but in {idle} of {rounds} no device took part"),
        # Less than one per cent is noise around a good start.
        (
            last - first > 0.01 * abs(first),
            Status.DIVERGED,
            f", but the loss rose from {first:.4g} to {last:.4g}{kept}",
        ),
        (not moved, Status.STALLED, f", but no two values differed: {flat}"),
        (
            best.round == 0,
            Status.STALLED,
            f", but no evaluated model is better than the start, {first:.4g}",
        ),
    )
    met = ((status, words) for holds, status, words in reasons if holds)
    return next(met, None) if rounds else None
