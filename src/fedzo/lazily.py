"""Names of a package that are fetched from their modules when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def fetched(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names live in these modules.

    Examples
    --------
    >>> fetch = fetched("shapes", {"hypot": "math"})
    >>> fetch("hypot")(3.0, 4.0)
    5.0
    >>> fetch("area")
    Traceback (most recent call last):
        ...
    AttributeError: module 'shapes' has no attribute 'area'
    """

    def fetch(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return fetch
