"""Exceptions and warnings of fedzo, and checks that raise them."""

from __future__ import annotations

import enum
import inspect
import math
import operator
import os
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import lru_cache, wraps
from numbers import Integral, Real
from typing import Any, NamedTuple

F = typing.TypeVar("F", bound=Callable[..., Any])

TABLES = ("problem", "algorithm", "server", "uplink", "run", "flower")  # of a configuration
LARGEST_COUNT = 2**62  # beyond it, sums of counts no longer fit a machine's integers


class Exit(enum.IntEnum):
    """The exit codes of every command; ``docs/configuration.md`` explains them."""

    DONE = 0
    OWN_CODE = 1  # the user's code raised an error
    NOTHING_RUN = 2  # bad input
    NO_SUCCESS = 3  # the run diverged, or did not improve on the start
    HALTED = 4  # the run could not continue
    NO_SPACE = 5  # memory or disk space ran out, or a folder has gone
    INTERRUPTED = 130  # it can be resumed
    CLOSED_PIPE = 141  # the reader of the output has ended


class Failure(NamedTuple):
    """Why a run has no result: its exit code, and the reason in one line."""

    code: Exit
    message: str


class FedzoError(Exception):
    """Base class of all errors that fedzo raises on purpose. The message is one printable line.

    Parameters
    ----------
    *args
        The message, or the parts that a subclass makes its message from.
    code : str, optional
        A stable name of the cause, for programs and tests: wording may change, codes do not.

    Attributes
    ----------
    code : str
        The given code, or the default of the class.
    exit : Exit
        The exit code of a command that ends with this error.

    Examples
    --------
    >>> UsageError("no run in ./results", code="no-run").code, UsageError("no").code
    ('no-run', 'usage')
    """

    code = "error"
    exit = Exit.NOTHING_RUN

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*args)
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return one_line(self.words(), 2000)

    def words(self) -> str:
        """Return the message in full."""
        return super().__str__()


class InvalidValue(FedzoError, ValueError):  # noqa: N818 - reads as the sentence it prints
    """An invalid setting: names the key, the value and what is allowed.

    >>> raise InvalidValue("smoothing", 0, "a number > 0")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: smoothing = 0: must be a number > 0
    """

    code = "invalid-value"

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(key, value, allowed)
        self.key, self.value, self.allowed = key, value, allowed

    def words(self) -> str:
        """Return the sentence."""
        return f"{self.key} = {shown(self.value)}: must be {self.allowed}"

    def under(self, table: str) -> InvalidValue:
        """Return the same complaint with the key's table in front, as a configuration names it.

        A key that has its table stays as it is.
        """
        if self.key.partition(".")[0] in TABLES:
            return self
        return InvalidValue(f"{table}.{self.key}", self.value, self.allowed)


class UsageError(FedzoError):
    """The request cannot be carried out; nothing has been run or written."""

    code = "usage"


class FedzoWarning(UserWarning):
    """The category of all warnings of fedzo."""


class MissingExtra(UsageError):  # noqa: N818 - reads as the sentence it prints
    """An optional library is not installed; the message says how to install it.

    >>> raise MissingExtra("TPE needs optuna", "tune")
    Traceback (most recent call last):
    fedzo.errors.MissingExtra: TPE needs optuna: pip install 'fedzo[tune]'
    """

    code = "missing-extra"

    def __init__(self, need: str, extra: str) -> None:
        super().__init__(f"{need}: pip install 'fedzo[{extra}]'")


class CannotWrite(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """A file could not be written: the disk is full, or writing is not allowed."""

    code = "cannot-write"
    exit = Exit.NO_SPACE

    def __init__(self, path: object, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror or error}")


class DataUnavailable(UsageError):  # noqa: N818 - reads as the sentence it prints
    """A data set is missing or damaged. The message lists the attempts, one per line."""

    code = "data-unavailable"

    def __str__(self) -> str:
        return "\n".join(one_line(line, 2000) for line in self.words().split("\n"))


class Halted(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """The run cannot continue; it ends with a checkpoint of its last whole round."""

    code = "halted"
    exit = Exit.HALTED


class BudgetSpent(Halted):
    """The query budget is spent: a normal end of a run."""

    code = "budget-spent"


class NoAnswer(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """A device did not reply; the round continues without it.

    ``answered`` has the values of a request before the one that failed, if they are known.
    """

    code = "no-answer"
    exit = Exit.HALTED
    answered: Any = None


class UserCodeError(FedzoError):
    """The user's code raised an exception that would end or steer Python, such as SystemExit.

    The exception is the ``__cause__``. Other exceptions of the user's code are passed on.
    """

    code = "own-code"
    exit = Exit.OWN_CODE


class NotANumber(UserCodeError, TypeError):  # noqa: N818 - reads as the sentence it prints
    """The user's function returned something that is not a number."""

    code = "not-a-number"


class ModelError(FedzoError):
    """A black box failed, or what it answered cannot be scores; names the model and what is wrong.

    >>> raise ModelError("classifier", "1 of 20 scores is not finite")
    Traceback (most recent call last):
    fedzo.errors.ModelError: classifier: 1 of 20 scores is not finite
    """

    code = "model"
    exit = Exit.HALTED

    def __init__(self, model: str, problem: str, code: str | None = None) -> None:
        super().__init__(model, problem, code=code)
        self.model, self.problem = model, problem

    def words(self) -> str:
        """Return the sentence."""
        return f"{self.model}: {self.problem}"


class NonFinite(FedzoError, ArithmeticError):  # noqa: N818 - reads as the sentence it prints
    """A loss or the model stopped being a finite number; says where.

    ``round`` counts from 1, as in ``history.jsonl``; ``device`` is None for the global model.
    """

    code = "non-finite"
    exit = Exit.NO_SUCCESS

    def __init__(self, what: str, round: int, device: int | None = None) -> None:
        super().__init__(what, round, device)
        self.what, self.round, self.device = what, round, device

    def words(self) -> str:
        """Return the sentence."""
        where = "" if self.device is None else f" on device {self.device}"
        return f"{self.what} is not finite in round {self.round}{where}"


def real_array(key: str, value: Any) -> Any:
    """Return a copy of an array of real numbers, in float32 or float64; raise InvalidValue.

    Lists, ranges, tensors, series of pandas and arrays of objects that are numbers are taken. Text,
    complex numbers, ragged lists and masked numbers are not.

    >>> real_array("x0", range(3))
    array([0., 1., 2.])
    >>> real_array("x0", [1, [2]])
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: x0 = [1, [2]]: must be an array of real numbers
    """
    import numpy as np

    try:
        array = np.array(value.detach().numpy() if hasattr(value, "detach") else value)
        if array.dtype == object and all(isinstance(one, Real) for one in array.flat):
            array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # ragged, on another device
        array = np.empty(0, object)
    check_unmasked(key, value)
    require(array.dtype.kind in "biuf", key, value, "an array of real numbers")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def check_unmasked(key: str, value: Any) -> None:
    """Raise if a value is masked, or an array or a list of which some are.

    >>> import numpy as np
    >>> check_unmasked("x0", [np.ma.masked])
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: x0 = [masked]: must be without masked numbers
    """
    require(not _is_masked(value), key, value, "without masked numbers")


def _is_masked(value: Any) -> bool:
    import numpy as np

    several = isinstance(value, list | tuple)
    return any(map(_is_masked, value)) if several else bool(np.ma.is_masked(value))


class _Short(reprlib.Repr):
    """What a person typed, on a part of a line, however long or deep it is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlong = 40

    def repr_int(self, value: int, level: int) -> str:
        if abs(value) < 10**40:
            return repr(value)
        return f"a number of about {int(value.bit_length() * 0.30103) + 1:,} digits"


_SHORT = _Short()


def shown(value: object) -> str:
    """Word a value for a message, cut to a part of a line.

    >>> shown(3), shown("x" * 500)[:9], shown(10**400)
    ('3', "'xxxxxxxx", 'a number of about 401 digits')
    """
    return _SHORT.repr(value)


def one_line(text: str, length: int = 600, word: int = 120) -> str:
    r"""Return a text on one line, without what would move a terminal's cursor, cut to a length.

    Of a word longer than ``word``, such as a path, the middle is left out.

    >>> one_line("a\nb\x1b[2Jc"), one_line("cannot read " + "x" * 99 + ".csv", word=11)
    ('a b [2Jc', 'cannot read xxxx...csv')
    """
    clean = "".join(c if c.isprintable() else " " for c in text)
    if len(clean) > word:
        clean = " ".join(_shortened(part, word) for part in clean.split(" "))
    return clean if len(clean) <= length else clean[: length - 3] + "..."


def _shortened(word: str, length: int) -> str:
    if len(word) <= length:
        return word
    end = (length - 3) // 2
    return f"{word[: length - 3 - end]}...{word[-end:]}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest what a mistyped word may have meant.

    >>> nearest("learning_rat", ["learning_rate", "smoothing"])
    " (did you mean 'learning_rate'?)"
    >>> nearest("RUN", ["run"]), nearest("zzz", ["learning_rate"])
    (" (did you mean 'run'?)", '')
    """
    names = list(known)
    close = get_close_matches(word, names, n=1) or get_close_matches(word.lower(), names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def first_line(error: Exception) -> str:
    r"""Word what another library raised, in a line.

    >>> first_line(RuntimeError("wrong shape\nat layer 3")), first_line(KeyError())
    ('wrong shape', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def described(error: BaseException) -> str:
    """Return the type and the message of an exception, also if its ``__str__`` fails.

    >>> described(ValueError("too large")), described(KeyError())
    ('ValueError: too large', 'KeyError')
    """
    try:
        text = str(error)
    except BaseException:  # of the user's code
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_of(known: Iterable[object]) -> str:
    """Word a choice for an error message.

    >>> one_of(["forward", "central"])
    "one of 'forward', 'central'"
    """
    return "one of " + ", ".join(repr(k) for k in known)


def check_positive(settings: object, *keys: str, optional: Sequence[str] = ()) -> None:
    """Raise unless these settings are finite numbers > 0; ``optional`` ones may be None."""
    for key in (*keys, *_given(settings, optional)):
        value = getattr(settings, key)
        require(is_number(value) and value > 0, key, value, "a number > 0")


def check_counts(settings: object, *keys: str, optional: Sequence[str] = ()) -> None:
    """Raise unless these settings are whole numbers >= 1; ``optional`` ones may be None."""
    for key in (*keys, *_given(settings, optional)):
        check_count(key, getattr(settings, key))


def _given(settings: object, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if getattr(settings, key) is not None]


def check_count(key: str, value: Any, least: int = 1) -> None:
    """Raise unless the value is a whole number, and not too small.

    >>> check_count("rounds", 2.5)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: rounds = 2.5: must be a whole number >= 1
    """
    whole = not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least
    require(whole, key, value, f"a whole number >= {least}")
    require(int(value) < LARGEST_COUNT, key, value, f"below {LARGEST_COUNT}")


def check_not_negative(key: str, value: Any) -> None:
    """Raise unless the value is a finite number >= 0.

    >>> check_not_negative("c", "1")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: c = '1': must be a number >= 0
    """
    require(is_number(value) and value >= 0, key, value, "a number >= 0")


def is_number(value: Any) -> bool:
    """Return whether this is a finite real number that a float can hold.

    >>> is_number(2), is_number(float("nan")), is_number(10**400), is_number("2")
    (True, False, False, False)
    """
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def check_choice(key: str, value: Any, known: Collection[str]) -> None:
    """Raise unless the value is one of the known words.

    >>> check_choice("norm", "int", ["inf", "l2"])
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: norm = 'int': must be one of 'inf', 'l2' (did you mean 'inf'?)
    """
    if not isinstance(value, str) or value not in known:
        raise InvalidValue(key, value, one_of(known) + nearest(str(value), known))


def check_memory(key: str, value: object, needed: int) -> None:
    """Raise unless this machine has ``needed`` bytes of memory.

    >>> check_memory("directions", 10**9, needed=8 * 10**18)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: directions = 1000000000: must be smaller: it needs
    8,000,000,000 GB of memory, and there are ...
    """
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system without sysconf
        return
    sizes = f"it needs {needed / 1e9:,.0f} GB of memory, and there are {there / 1e9:,.0f} GB"
    require(needed <= there, key, value, f"smaller: {sizes}")


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise :class:`InvalidValue` unless the condition holds."""
    if not condition:
        raise InvalidValue(key, value, allowed)


# ------------------------------------------------------- normalised by the type of a parameter


class Parameters:
    """Base class of dataclasses whose fields are normalised when an object is made.

    Every field becomes what a configuration would have given, by :func:`normalised`. This happens
    before the checks of the subclass, its ``__post_init__``.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Line(Parameters):
    ...     slope: float = 1.0
    >>> Line(2)
    Line(slope=2.0)
    >>> Line("2")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: slope = '2': must be a number
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if (checks := vars(cls).get("__post_init__")) is not None:

            @wraps(checks)
            def check(self: Any) -> None:
                Parameters.__post_init__(self)
                checks(self)

            cls.__post_init__ = check  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        kind: Any = type(self)
        hints = type_hints(kind)
        for field in fields(kind):
            value = getattr(self, field.name)
            if field.init and value is not field.default:
                value = normalised(field.name, value, hints.get(field.name, Any))
                object.__setattr__(self, field.name, value)


def normalises(function: F) -> F:
    """Decorate a function, to normalise its arguments by their types.

    >>> @normalises
    ... def line(slope: float): return slope
    >>> line(2)
    2.0
    """
    parameters = inspect.signature(function).parameters

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        hints = type_hints(function)
        for hint in list(hints.values()):  # the keywords of **options
            if typing.get_origin(hint) is typing.Unpack:
                hints = {**type_hints(typing.get_args(hint)[0]), **hints}
        named = {**dict(zip(parameters, arguments, strict=False)), **keywords}
        given = {
            key: value
            if key in parameters and value is parameters[key].default
            else normalised(key, value, hints.get(key, Any))
            for key, value in named.items()
        }
        first = [given.pop(key) for key in list(parameters)[: len(arguments)]]
        return function(*first, *arguments[len(first) :], **given)

    return typing.cast(F, call)


def normalised(key: str, value: Any, hint: Any) -> Any:
    """Return a value in the type of its parameter; raise InvalidValue unless it fits.

    Numbers of NumPy and torch become Python's, and whole numbers become floats where a float is
    needed. Lists, ranges and arrays become tuples or lists, as the parameter has them. Strings are
    never read as numbers.

    >>> import numpy as np
    >>> normalised("dim", np.int32(3), int), normalised("shape", np.array([2, 3]), tuple[int, ...])
    (3, (2, 3))
    >>> normalised("smoothing", "aut", float | typing.Literal["auto"])
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: smoothing = 'aut': must be a number or 'auto'
    """
    for option in type_options(hint):
        try:
            return _as(value, option)
        except (TypeError, ValueError, OverflowError, RecursionError):
            continue
    raise InvalidValue(key, value, type_name(hint))


def _as(value: Any, option: Any) -> Any:  # noqa: PLR0911 - a case for each type
    """Return a value as one type of a union; raise TypeError unless it fits."""
    kind = typing.get_origin(option) or option
    if option is Any:
        return value
    if kind in _PLAIN and hasattr(value, "tolist"):
        check_unmasked("", value)  # tolist has None for what is masked
        value = value.tolist()
    if kind is typing.Literal:
        known = [one for one in typing.get_args(option) if type(one) is type(value)]
        return known[known.index(value)]
    number = not isinstance(value, bool)
    if kind is int and number:
        return operator.index(value)
    if kind is float and number and isinstance(value, Real):
        return float(value)
    if kind is str and isinstance(value, str | os.PathLike):
        return str(value)
    if kind in (list, tuple, Sequence) and isinstance(value, list | tuple | range):
        return _items(value, list if kind is list else tuple, typing.get_args(option))
    if kind in (int, float, list, tuple, Sequence):
        raise TypeError
    known_class = inspect.isclass(kind) and not getattr(kind, "_is_protocol", False)
    if known_class and not isinstance(value, kind):
        raise TypeError
    return value


def _items(values: Sequence[Any], kind: type, hints: tuple[Any, ...]) -> Any:
    """Return a list or tuple whose items have the given types."""
    if kind is tuple and hints and hints[-1] is not Ellipsis and len(hints) > 1:
        return tuple(normalised("", v, hint) for v, hint in zip(values, hints, strict=True))
    return kind(normalised("", value, hints[0] if hints else Any) for value in values)


_PLAIN = (int, float, bool, str, list, tuple, Sequence, types.NoneType, typing.Literal)


@lru_cache(maxsize=256)
def type_hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a factory's parameters by name; empty if they cannot be resolved."""
    # Hints of a dataclass's fields are resolved in the modules of their own classes.
    whole = is_dataclass(factory) or typing.is_typeddict(factory) or not inspect.isclass(factory)
    try:
        return typing.get_type_hints(factory if whole else factory.__init__)
    except (NameError, TypeError):  # hints for type checkers only, or an object without hints
        return {}


def type_options(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union of types.

    >>> type_options(int | None), type_options(float)
    ((<class 'int'>, <class 'NoneType'>), (<class 'float'>,))
    """
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def type_name(hint: Any) -> str:
    """Return a type as an error message names it.

    >>> type_name(int | None), type_name(float | typing.Literal["auto"])
    ('a whole number', "a number or 'auto'")
    >>> type_name(str | os.PathLike[str]), type_name(Callable[..., Any])
    ('a string or a path', 'a function')
    """
    names: dict[Any, str] = {int: "a whole number", float: "a number", str: "a string"}
    names |= {bool: "true or false", dict: "a table", Mapping: "a table", Any: "a value"}
    names |= {Callable: "a function", os.PathLike: "a path"}
    items = {int: "a list of whole numbers", float: "a list of numbers", str: "a list of strings"}
    found = []
    for option in type_options(hint):
        kind = typing.get_origin(option) or option
        if kind is typing.Literal:
            values = [str(value) for value in typing.get_args(option)]
            found.append(one_of(values) if len(values) > 1 else repr(values[0]))
        elif kind is not types.NoneType:
            name = names.get(kind, getattr(kind, "__name__", str(kind)))
            if inspect.isclass(kind) and issubclass(kind, Parameters):
                name = f"a table ({name})"
            listed = kind in (list, tuple, Sequence)
            item: Any = next(iter(typing.get_args(option)), None)
            found.append(items.get(item, "a list") if listed else name)
    return " or ".join(dict.fromkeys(found))


@contextmanager
def naming(table: str) -> Iterator[None]:
    """Put a table's name in front of the key that is complained about.

    >>> with naming("run"):
    ...     check_count("rounds", 0)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: run.rounds = 0: must be a whole number >= 1
    """
    try:
        yield
    except InvalidValue as error:
        raise error.under(table) from error
