"""What a user names as ``module:name`` in a configuration."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from fedzo.errors import InvalidValue


def named(key: str, name: str) -> Any:
    """Import what ``module:name`` names; the module may lie beside where the command was given.

    ``key`` is the setting to complain about.

    Examples
    --------
    >>> named("problem.name", "math:hypot")(3.0, 4.0)
    5.0
    >>> named("problem.name", "math:nothing")
    Traceback (most recent call last):
        ...
    fedzo.errors.InvalidValue: problem.name = 'math:nothing': must be importable: module 'math'
    has no attribute 'nothing'
    """
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if module.partition(".")[0] != "fedzo" and here not in sys.path:
        sys.path.insert(0, here)  # and it stays: the module may import others when it is called
    try:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ImportError(f"{module!r} is no name of a module")
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidValue(key, name, f"importable: {error}") from error
