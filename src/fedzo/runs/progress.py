"""What a user sees during a run: one live line, or plain lines where there is no terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from fedzo.runs.result import Progress


class LiveLine:
    """A line of a stream that is rewritten, if the stream is a terminal."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream  # None: standard error is closed
        self.live = stream is not None and stream.isatty()
        self._width = 0

    def rewrite(self, *parts: str) -> None:
        """Put a text in the place of the last: of its parts, as many as fit.

        The first and the last stay longest; those between go from the right.
        """
        text = fitted(parts, _columns(self.stream) - 1)
        self.write("\r" + text.ljust(self._width))
        self._width = len(text)

    def write(self, text: str) -> None:
        """Write to the stream; one that is full or closed is not written to again."""
        if self.stream is None:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # a run must not fail because its progress cannot be shown
            self.stream = None

    def close(self) -> None:
        """Take the live line away."""
        if self.live and self._width:
            self.rewrite("")
            self.write("\r")


class ProgressLine(LiveLine):
    """A callback that shows round, loss, metric, queries a second and the time left.

    On a terminal one line is rewritten, at most ten times a second; elsewhere a plain line
    is written at evaluated rounds, about twenty in a run.

    Parameters
    ----------
    stream : text stream, optional
        Where to; standard error by default.

    Examples
    --------
    >>> import sys, fedzo
    >>> line = fedzo.ProgressLine(sys.stdout)
    >>> result = fedzo.minimize(
    ...     lambda x, device: x @ x, [1.0], devices=2, rounds=10, callback=line)
    round 0/10  train loss 1
    round 10/10  train loss ...  queries/s  0 s left
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(sys.stderr if stream is None else stream)
        self._first: Progress | None = None
        self._begin: int | None = None
        self._record: Mapping[str, Any] = {}
        self._shown = 0.0

    def __call__(self, progress: Progress) -> None:
        """Show how far the run has come."""
        if self._first is None or self._first.round == self._begin:
            self._first = progress  # the clock starts after a round: the first may compile
        self._begin = progress.round if self._begin is None else self._begin
        self._record = progress.record or self._record
        at_end = progress.round == progress.rounds
        if self.live:
            now = time.monotonic()
            if at_end or now - self._shown > 0.1:
                self._shown = now
                self.rewrite(*self._parts(progress))
        elif progress.record is not None:
            # Of the evaluated rounds, those that step over a twentieth of the run.
            twentieth = 20 * progress.round // max(progress.rounds, 1)
            if at_end or twentieth >= self._shown:
                self._shown = twentieth + 1
                self.write("  ".join(self._parts(progress)) + "\n")

    def _parts(self, progress: Progress) -> list[str]:
        assert self._first is not None
        parts = [f"round {progress.round}/{progress.rounds}"]
        parts += [
            f"{key.replace('_', ' ')} {self._record[key]:.4g}" for key in headline(self._record)
        ]
        seconds = progress.seconds - self._first.seconds
        rounds = progress.round - self._first.round
        if rounds and seconds > 0:
            speed = (progress.queries - self._first.queries) / seconds
            parts.append(f"{speed:,.3g} queries/s" if speed < 1000 else f"{speed:,.0f} queries/s")
            parts.append(f"{duration(seconds / rounds * (progress.rounds - progress.round))} left")
        return parts


def fitted(parts: Sequence[str], width: int) -> str:
    """Return parts on a line of some width; those in the middle are left out first.

    >>> fitted(["round 3/9", "train loss 1.2", "900 queries/s", "7 s left"], 40)
    'round 3/9  train loss 1.2  7 s left'
    """
    chosen = list(parts)
    while len(chosen) > 2 and len("  ".join(chosen)) > width:
        del chosen[-2]
    return "  ".join(chosen)[:width]


def _columns(stream: TextIO | None) -> int:
    """Return the width of the stream's own terminal: standard output may be elsewhere."""
    try:
        assert stream is not None
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AssertionError):  # a stream that only says that it is one
        return 80


def headline(record: Mapping[str, Any]) -> list[str]:
    """Return the keys of a record that a person wants to see first: the loss and a metric.

    >>> headline({"round": 3, "train_loss": 1.0, "test_loss": 1.1, "test_accuracy": 0.6})
    ['train_loss', 'test_accuracy']
    """
    first = ("train_loss", "test_accuracy", "optimality_gap", "attack_success", "heldout_success")
    return [key for key in first if key in record]


def duration(seconds: float) -> str:
    """Word a time.

    >>> duration(7.4), duration(125), duration(7500)
    ('7 s', '2 min 05 s', '2 h 05 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
