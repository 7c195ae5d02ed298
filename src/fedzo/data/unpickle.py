"""Read a pickle of plain values and byte arrays, and nothing else.

A pickle is a program: it may call whatever it can name. Here it can name four things, none of
which is NumPy's own: stand-ins take down what an array is made of, and do nothing.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.errors import DataUnavailable


def unpickle(content: bytes) -> Any:
    """Return what a pickle holds; strings of Python 2 are bytes, and so is each array's type.

    Parameters
    ----------
    content
        Plain values, containers and arrays of bytes, as pickled by any version of Python and
        NumPy up to protocol 4.

    Raises
    ------
    DataUnavailable
        It is not a pickle, or it names something else.

    Examples
    --------
    >>> unpickle(pickle.dumps({"data": np.array([[1, 2]], np.uint8)}, protocol=4))
    {'data': array([[1, 2]], dtype=uint8)}
    >>> unpickle(pickle.dumps(print))
    Traceback (most recent call last):
    fedzo.errors.DataUnavailable: refused: the pickle asks for builtins.print
    """
    try:
        return _arrays(_Plain(io.BytesIO(content), encoding="bytes").load())
    except DataUnavailable:
        raise
    except Exception as problem:  # a broken pickle may raise anything
        raise DataUnavailable(f"cannot be read: not a pickle of byte arrays: {problem}") from None


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise DataUnavailable(f"refused: the pickle asks for {module}.{name}") from None


class _Array:
    """What an array is made of."""

    def __init__(self, *_: object) -> None:
        """Take what an empty array is made with, which does not matter."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, self.columns_first, self.content = state

    def array(self) -> NDArray[np.uint8]:
        if self.dtype.code not in (b"u1", "u1"):
            raise ValueError(f"an array of {self.dtype.code!r}")
        flat: NDArray[np.uint8] = np.frombuffer(self.content, np.uint8)
        return flat.reshape(tuple(self.shape), order="F" if self.columns_first else "C")


class _Type:
    """The type of an array's elements; NumPy's own warns of how Python 2 wrote it."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Take the order of the bytes, of which there is one each."""


def _encode(text: str, _: str) -> bytes:
    return text.encode("latin1")


_KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,  # how Python 3 writes bytes for Python 2
}


def _arrays(value: Any) -> Any:
    """Put the arrays in place, at the top and in a dictionary."""
    if isinstance(value, dict):
        return {key: _arrays(inner) for key, inner in value.items()}
    return value.array() if isinstance(value, _Array) else value
