"""Data sets: which there are, where they are, and how to load them.

How the samples are split among devices is in :mod:`fedzo.data.partition`. May import: core.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedzo.data import cifar10, fashion_mnist, text
from fedzo.data.dataset import Dataset
from fedzo.data.fetching import Source, find, obtain
from fedzo.errors import InvalidValue, nearest, one_of

__all__ = ["Dataset", "Entry", "catalogue", "get", "load", "names"]

_SOURCES = {
    source.name: source
    for source in (fashion_mnist.MINI, fashion_mnist.WHOLE, cifar10.MINI, cifar10.WHOLE)
}


class Entry(NamedTuple):
    """A line of the catalogue; ``folder`` is None where the data set is not on this machine."""

    name: str
    about: str
    folder: Path | None


def names() -> tuple[str, ...]:
    """Return the names that :func:`load` knows.

    Examples
    --------
    >>> names()
    ('fashion-mnist-mini', 'fashion-mnist', 'cifar10-deer-mini', 'cifar10')
    """
    return tuple(_SOURCES)


def catalogue() -> list[Entry]:
    """Return what each data set, and each model to be trained, is, and the folder it is in.

    Files are looked for by their names; their content is checked when they are loaded.

    Examples
    --------
    >>> mini = catalogue()[0]
    >>> mini.name, mini.folder.name
    ('fashion-mnist-mini', 'files')
    """
    return [Entry(name, source.about, find(source)) for name, source in _fetched().items()]


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Return a data set, downloaded first if it is nowhere on this machine.

    Parameters
    ----------
    name
        One of :func:`names`.
    folder
        The folder with its files: they are looked for there and nowhere else. None or empty:
        the cache, where the system's package puts it, then a download into the cache.

    Raises
    ------
    InvalidValue
        No data set has that name.
    DataUnavailable
        It cannot be found or downloaded, or a file is damaged; the message says what was tried.

    Examples
    --------
    >>> mini = load("fashion-mnist-mini")
    >>> mini.train_inputs.shape, mini.test_inputs.shape
    ((4000, 784), (1000, 784))
    >>> mini.classes[mini.train_labels[0]]
    'Ankle boot'
    """
    source = _source(name, _SOURCES)
    _, contents = obtain(source, folder)
    data: Dataset = source.decode(*contents)
    return data


def get(name: str) -> Path:
    """Make sure that a data set or a model is on this machine, whole; return the folder it is in.

    What is not found is downloaded into the cache, with a progress bar on standard error if
    that is a terminal.

    Examples
    --------
    >>> get("fashion-mnist-mini").name
    'files'
    """
    folder, _ = obtain(_source(name, _fetched()))
    return folder


def _fetched() -> dict[str, Source]:
    """Return all that can be fetched: data sets to load, texts and language models."""
    return {**_SOURCES, **text.TEXTS, **text.MODELS}


def _source(name: str, known: Mapping[str, Source]) -> Source:
    if name not in known:
        raise InvalidValue("data", name, one_of(known) + nearest(name, known))
    return known[name]
