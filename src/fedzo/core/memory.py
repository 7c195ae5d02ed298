"""What the machine has: cores and memory."""

from __future__ import annotations

import os

from fedzo.errors import InvalidValue


def memory() -> int:
    """Return the bytes of memory that this machine has; where it does not tell, very many."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


def check_memory(key: str, value: object, needed: int) -> None:
    """Raise unless so many bytes are there; the message has both numbers.

    >>> check_memory("directions", 10**9, needed=8 * 10**18)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: directions = 1000000000: must be smaller: it needs
    8,000,000,000 GB of memory, and there are ...
    """
    there = memory()
    if needed > there:
        sizes = f"it needs {needed / 1e9:,.0f} GB of memory, and there are {there / 1e9:,.0f} GB"
        raise InvalidValue(key, value, f"smaller: {sizes}")


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system can tell
        return os.cpu_count() or 1
