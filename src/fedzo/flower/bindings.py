"""Which devices a node may claim: a file on the server, so that nobody answers for another's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedzo.core.files import read_toml
from fedzo.errors import InvalidValue, UsageError, shown

MOST_DEVICES = 10**7


def read_bindings(file: str | None) -> Mapping[int, frozenset[int]] | None:
    """Return the devices that each node may claim, by the node's id; None: any.

    A node's id is what ``flwr supernode register`` answers for its key, and stays the key's own.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile("w") as file:
    ...     _ = file.write('1234 = "0-2,7"')
    ...     _ = file.seek(0)
    ...     read_bindings(file.name)
    {1234: frozenset({0, 1, 2, 7})}
    """
    if file is None:
        return None
    lines = read_toml(Path(file))
    try:
        return {int(node): frozenset(listed(str(devices))) for node, devices in lines.items()}
    except ValueError as error:
        allowed = f'a file of lines like 1234 = "0-2,7", a node and its devices: {error}'
        raise InvalidValue("bindings", file, allowed) from error


def listed(text: str) -> list[int]:
    """Return the devices of a list like ``0-2,7``.

    >>> listed("0-2, 7")
    [0, 1, 2, 7]
    """
    return sorted({i for piece in text.split(",") for i in span(piece)})


def span(piece: str) -> range:
    """Return the numbers of a piece like ``0-2`` or ``7``."""
    first, dash, last = piece.strip().partition("-")
    try:
        found = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        found = range(0)
    if not found:
        raise UsageError(f"devices: {shown(piece)} is neither a number nor a range like 0-3")
    if found.stop > MOST_DEVICES:
        raise UsageError(f"devices: {shown(piece)} goes beyond {MOST_DEVICES:,} devices")
    return found
