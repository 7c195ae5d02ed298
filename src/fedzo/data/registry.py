"""The registry of data sets and language models: list, load or download them by name."""

import os
from pathlib import Path
from typing import NamedTuple

from fedzo.data import images, text
from fedzo.data.fetching import Source, decoded, find, obtain, select

IMAGES = {source.name: source for source in images.SOURCES}


class Entry(NamedTuple):
    """A line of the catalogue: ``folder`` has the files, or equals None before a download."""

    name: str
    about: str
    folder: Path | None


def names() -> tuple[str, ...]:
    """Return the names that :func:`load` accepts.

    Examples
    --------
    >>> names()
    ('fashion-mnist-mini', 'fashion-mnist', 'cifar10-deer-mini', 'cifar10')
    """
    return tuple(IMAGES)


def catalogue() -> list[Entry]:
    """Return one entry per data set and language model: name, description and folder.

    Folders are searched for file names only. :func:`load` checks the content of the files.

    Examples
    --------
    >>> mini = catalogue()[0]
    >>> mini.name, mini.folder.name
    ('fashion-mnist-mini', 'files')
    """
    return [Entry(name, source.about, find(source)) for name, source in _all_sources().items()]


def load(name: str, folder: str | os.PathLike[str] | None = None) -> images.Dataset:
    """Return a data set of images. Download it first if it is not on this machine.

    Parameters
    ----------
    name
        One of :func:`names`.
    folder
        The only folder to search. By default (None or empty): the cache, then the folder of the
        system's package, then a download into the cache.

    Raises
    ------
    InvalidValue
        The name is unknown.
    DataUnavailable
        The data set cannot be found or downloaded, or a file is damaged. The message lists every
        attempt.

    Examples
    --------
    >>> mini = load("fashion-mnist-mini")
    >>> mini.train_inputs.shape, mini.test_inputs.shape
    ((4000, 784), (1000, 784))
    >>> mini.classes[mini.train_labels[0]]
    'Ankle boot'
    """
    return images.Dataset(*decoded(select(name, IMAGES), folder))


def get(name: str) -> Path:
    """Check that all files of a data set or model are on this machine, and return their folder.

    Missing files are downloaded into the cache. On a terminal, a progress bar is shown on standard
    error.

    Examples
    --------
    >>> get("fashion-mnist-mini").name
    'files'
    """
    folder, _ = obtain(select(name, _all_sources()))
    return folder


def _all_sources() -> dict[str, Source]:
    return {**IMAGES, **text.TEXTS, **text.MODELS}
