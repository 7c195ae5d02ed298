"""The user's code: import objects by their names, ``module:name``, and call functions."""

import errno
import sys
import sysconfig
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from fedzo.errors import (
    Exit,
    Failure,
    FedzoError,
    InvalidValue,
    UserCodeError,
    described,
)

T = TypeVar("T")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EIO)  # no space left
REMOTE = "In a worker process:\n"  # begins the note with the traceback of an error from there
_EXIT = "own-exit"  # the code of an error for SystemExit


class Suspension(BaseException):
    """Ends a call of the user's code on purpose, to repeat it later; see :func:`call_user`."""


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
        return getattr(call_user(import_module, module), attribute)
    except ModuleNotFoundError as error:
        where = "searched: this folder, the configuration's folder and Python's path"
        raise InvalidValue(key, name, f"importable: {error}; {where}") from error
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InvalidValue(key, name, f"importable: {error}") from error


def call_user(function: Callable[..., T], *arguments: Any, direct: bool = True) -> T:
    """Call the user's code. Every call of it by a run goes through here.

    ``direct`` is False if fedzo's own code lies between the caller and the user's code.

    >>> call_user(next, iter([]))
    Traceback (most recent call last):
    fedzo.errors.UserCodeError: the user's code raised StopIteration
    """
    try:
        return function(*arguments)
    except BaseException as error:
        if (told := user_error(error, direct)) is error:
            raise
        raise told from error


def user_error(error: BaseException, direct: bool = False) -> BaseException:
    """Return the exception to raise for one that the user's code raised.

    An exception that steers Python itself would have an effect that depends on the caller:
    ``StopIteration`` ends the loop of a caller, ``SystemExit`` ends a thread or the program. Such
    an exception becomes a :class:`~fedzo.errors.UserCodeError`. So does an error of fedzo's which
    says that nothing was run, if fedzo cannot have raised it (``direct``). ``KeyboardInterrupt``
    and all other exceptions pass unchanged.
    """
    ends = StopIteration | StopAsyncIteration
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, ends):
        return _user_error(error.__cause__)  # raised inside a generator
    passed = isinstance(error, Exception | KeyboardInterrupt | Suspension)
    nothing_run = isinstance(error, FedzoError) and error.exit == Exit.NOTHING_RUN
    steers = isinstance(error, ends) or (direct and nothing_run)
    return error if passed and not steers else _user_error(error)


def ends_run(error: BaseException) -> bool:
    """Return whether an error of the user's code ends also a run that continues after failures.

    >>> try:
    ...     call_user(exit)
    ... except UserCodeError as error:
    ...     ends_run(error)
    True
    """
    return isinstance(error, UserCodeError) and error.code == _EXIT


def _user_error(error: BaseException) -> UserCodeError:
    what = described(error)
    own = own_traceback(error)
    if own is not None:
        last = traceback.extract_tb(own)[-1]
        what += f" ({last.filename}, line {last.lineno}, in {last.name})"
    code = _EXIT if isinstance(error, SystemExit) else None  # also after a pipe to a process
    return UserCodeError(f"the user's code raised {what}", code=code)


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


def failure_of(error: BaseException) -> Failure | None:  # noqa: PLR0911 - a case for each kind
    """Return what an exception means for the user, or None for a fault of fedzo's own.

    >>> from fedzo.errors import UsageError
    >>> failure_of(UsageError("no run in ./results")).code
    <Exit.NOTHING_RUN: 2>
    >>> failure_of(KeyError("a bug"))
    """
    if isinstance(error, FedzoError):
        return Failure(error.exit, str(error))
    if isinstance(error, MemoryError):
        return Failure(Exit.NO_SPACE, f"not enough memory: {error}")
    if isinstance(error, KeyboardInterrupt):
        return Failure(Exit.INTERRUPTED, "interrupted")
    if (own := own_traceback(error)) is not None:
        last = traceback.extract_tb(own, limit=1)[0]
        where = f"{last.filename}, line {last.lineno}, in {last.name}"
        return Failure(Exit.OWN_CODE, f"{type(error).__name__} in your own code: {where}")
    if any(note.startswith(REMOTE) for note in getattr(error, "__notes__", ())):
        return Failure(Exit.OWN_CODE, f"{described(error)}, in your own code in a worker process")
    if isinstance(error, OSError):
        codes = dict.fromkeys(FULL, Exit.NO_SPACE) | {errno.EPIPE: Exit.CLOSED_PIPE}
        where = f"{error.filename}: "
        if error.filename is None:
            where = "the current folder: " if error.errno == errno.ENOENT else ""
        code = codes.get(error.errno or 0, Exit.NOTHING_RUN)
        return Failure(code, f"{where}{error.strerror or error}")
    if isinstance(error, ValueError) and "null byte" in str(error):
        return Failure(Exit.NOTHING_RUN, "the name of a file contains a NUL byte")
    return None
