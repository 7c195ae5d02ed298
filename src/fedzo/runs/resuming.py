"""A run resumed from its folder: where it was, what it had found, and whether it is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedzo.algorithms import RoundInfo
from fedzo.core.telling import tell
from fedzo.errors import UsageError
from fedzo.runs.checkpoint import Checkpoint
from fedzo.runs.folder import RunFolder
from fedzo.runs.position import Position
from fedzo.runs.states import unflatten
from fedzo.runs.tables import differences

if TYPE_CHECKING:
    from fedzo.runs.loop import Loop


def reopen(loop: Loop, files: RunFolder) -> None:
    """Bring a run that has not begun to where its folder's checkpoint is, or raise."""
    checkpoint = files.load()
    if checkpoint is None:
        files.keep_history(-1, loop.options.evaluates)  # killed before its first checkpoint
        return
    _check_same(loop, files, checkpoint)
    last = RoundInfo(**checkpoint.last)
    if _has_more_queries(checkpoint, loop):  # a search may have ended for want of them
        last = last._replace(done="")
    state = unflatten(loop.position.state, checkpoint.state)
    loop.position = Position(checkpoint.round, state, **checkpoint.totals, last=last)
    loop.best, loop.left_out = checkpoint.best, checkpoint.left_out
    _read_history(loop, files, checkpoint)
    loop.began -= checkpoint.seconds
    if loop.engine.meter is not None:
        loop.engine.meter.queries = checkpoint.spent


def _check_same(loop: Loop, files: RunFolder, checkpoint: Checkpoint) -> None:
    """Raise unless the checkpoint is of this configuration and start, and not beyond its end."""
    changed = differences(checkpoint.config, loop.job.tables)
    if changed or checkpoint.start != loop.start:
        what = "; ".join(changed) or "another starting point"
        raise UsageError(f"{files.checkpoint} is of another configuration: {what}")
    if checkpoint.round > loop.options.rounds:
        raise UsageError(
            f"{files.path} has already run {checkpoint.round} rounds, "
            f"more than {loop.options.rounds}"
        )


def _has_more_queries(checkpoint: Checkpoint, loop: Loop) -> bool:
    tables = (checkpoint.config, loop.job.tables)
    had, has = (table.get("problem", {}).get("max_queries") for table in tables)
    return had is not None and (has is None or has > had)


def _read_history(loop: Loop, files: RunFolder, checkpoint: Checkpoint) -> None:
    """Read the records up to the checkpoint; with ``repair``, those that are left of them."""
    lenient = loop.job.repair
    upto = checkpoint.round if lenient else files.check_history(checkpoint)
    loop.history = files.keep_history(upto, loop.options.evaluates, lenient)
    for record in loop.history:
        loop.sealed.add(record)
        left_out = record.get("left_out", ())
        absent = {one["device"] for one in left_out if one["round"] == record["round"]}
        loop.silent = absent if loop.silent is None else loop.silent & absent
    found = (loop.sealed.count, loop.sealed.digest())
    if lenient and found != (checkpoint.records, checkpoint.digest):
        left = f"{loop.sealed.count} records where {checkpoint.records} were written"
        tell(f"fedzo: {files.history} was repaired: it has {left}")
