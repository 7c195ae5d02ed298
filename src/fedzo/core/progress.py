"""Progress on standard error. A stream that is full or closed never makes a run fail."""

import os
import sys
import unicodedata
from collections.abc import Sequence
from itertools import zip_longest
from typing import TextIO


def show(text: str, end: str = "\n") -> None:
    """Write a line to standard error, if that is open.

    >>> import contextlib, sys
    >>> with contextlib.redirect_stderr(sys.stdout):
    ...     show("fetching 3 MB")
    fetching 3 MB
    """
    LiveLine(sys.stderr).write(text + end)


class LiveLine:
    """A line of a stream, which is rewritten if the stream is a terminal.

    Parameters
    ----------
    stream : text stream or None
        None in a process that was started without standard error.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.stream, self._width = stream, 0
        try:
            self.live = stream is not None and stream.isatty()
        except ValueError:  # closed
            self.live = False

    def rewrite(self, *parts: str) -> None:
        """Replace the line by as many of the parts as fit.

        The first and the last part stay longest. The others are removed from the right.
        """
        text = fitted(parts, _columns(self.stream) - 1)
        self.write("\r" + text.ljust(self._width))
        self._width = len(text)

    def write(self, text: str) -> None:
        """Write to the stream, until it fails once."""
        if self.stream is None:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self.stream = None

    def close(self) -> None:
        """Remove the live line."""
        if self.live and self._width:
            self.rewrite("")
            self.write("\r")


def fitted(parts: Sequence[str], width: int) -> str:
    """Return parts on a line of at most ``width`` characters; the middle is dropped first.

    >>> fitted(["round 3/9", "train loss 1.2", "900 queries/s", "7 s left"], 40)
    'round 3/9  train loss 1.2  7 s left'
    """
    chosen = list(parts)
    while len(chosen) > 2 and len("  ".join(chosen)) > width:
        del chosen[-2]
    return "  ".join(chosen)[:width]


def duration(seconds: float) -> str:
    """Return a duration as text.

    >>> duration(7.4), duration(125), duration(7500)
    ('7 s', '2 min 05 s', '2 h 05 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def aligned(rows: Sequence[Sequence[str]], right: int = 1 << 30) -> list[str]:
    """Return rows as lines of aligned columns; those from number ``right`` on are right-aligned.

    Combining characters, as in c̃, take no room. Rows may have fewer cells than the first one.

    >>> aligned([("run", "loss"), ("softmax", "2")], right=1)
    ['run      loss', 'softmax     2']
    """
    widths = [max(map(_width, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = []
    for row in rows:
        cells = []
        for i, (cell, width) in enumerate(zip(row, widths, strict=False)):
            space = " " * (width - _width(cell))
            cells.append(space + cell if i >= right else cell + space)
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    return sum(not unicodedata.combining(letter) for letter in text)


def _columns(stream: TextIO | None) -> int:
    """Return the width of the stream's own terminal: standard output may be another one."""
    try:
        return 80 if stream is None else os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # isatty() is True, but there is no terminal
        return 80
