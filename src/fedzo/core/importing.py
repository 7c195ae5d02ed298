"""Import the objects that a configuration names as ``module:name``."""

import sys
import sysconfig
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from fedzo.errors import InvalidValue


def import_path(folder: Path) -> None:
    """Append a folder to the places where Python searches for modules."""
    where = str(folder.resolve())
    if where not in sys.path and not Path(__file__).is_relative_to(where):
        sys.path.append(where)


def import_object(key: str, name: str) -> Any:
    """Import the object ``module:name``.

    The module may lie in the working directory, or beside the configuration that names it.
    ``key`` is the setting that an error message names.

    Examples
    --------
    >>> import_object("problem.name", "math:hypot")(3.0, 4.0)
    5.0
    >>> import_object("problem.name", "math:nothing")
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
            raise ImportError(f"{module!r} is not the name of a module")
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        where = "searched: this folder, the configuration's folder and Python's path"
        raise InvalidValue(key, name, f"importable: {error}; {where}") from error
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InvalidValue(key, name, f"importable: {error}") from error


def own_traceback(error: BaseException) -> TracebackType | None:
    """Return an error's traceback from the user's code on; None if it has no frame there.

    The user's code is all code outside fedzo, Python and the installed packages.

    Examples
    --------
    >>> try:
    ...     import_object("problem.name", "json:loads")("{")
    ... except ValueError as error:
    ...     own_traceback(error) is None
    True
    """
    at = error.__traceback__
    while at is not None and not _is_own(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return at


def own_folder(module: str) -> Path | None:
    """Return the folder of a module that the user wrote; None for any other module.

    >>> own_folder("json") is None
    True
    """
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    if file is None or not _is_own(file):
        return None
    path = Path(file).resolve()
    return path.parents[1] if path.name == "__init__.py" else path.parent


def _is_own(file: str) -> bool:
    paths = sysconfig.get_paths()
    others = [Path(paths[key]) for key in ("stdlib", "purelib", "platlib")]
    others.append(Path(__file__).parents[1])  # fedzo
    return not file.startswith("<") and not any(Path(file).is_relative_to(o) for o in others)
