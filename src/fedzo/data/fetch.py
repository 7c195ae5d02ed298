"""Look for a data set in one place after the other, and have it brought if it is in none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedzo.data.forms import Content, File, Files, Form
from fedzo.data.suppliers import Supplier
from fedzo.errors import DataUnavailable


@dataclass(frozen=True)
class Source:
    """Where the files of a data set may be, and what to make of them.

    Attributes
    ----------
    about
        What it is, in a line.
    files
        What it consists of.
    decode
        Makes the data set of the files' contents, given in the order of ``files``.
    forms
        How a folder may hold the files, the quickest first.
    places
        Folders in which it may lie without fedzo having put it there.
    suppliers
        Who may bring it into the cache, the best first; none: it is never in the cache.
    advice
        What to do where it cannot be had, a line each.
    """

    name: str
    about: str
    files: tuple[File, ...]
    decode: Callable[..., Any]
    forms: tuple[Form, ...] = (Files(),)
    places: tuple[Path, ...] = ()
    suppliers: tuple[Supplier, ...] = ()
    advice: tuple[str, ...] = ()


def cache_folder(name: str) -> Path:
    """Return where a downloaded data set is kept.

    That is a folder of its name in ``$FEDZO_CACHE``, or else in ``fedzo`` in the user's
    cache, ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if ours := os.environ.get("FEDZO_CACHE"):
        return Path(ours).expanduser() / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedzo" / name


def find(source: Source) -> Path | None:
    """Return the first folder that has all the files in some form, by their names only."""

    def has(place: Path) -> bool:
        return any(not form.missing(place, source.files) for form in source.forms)

    return next((place for place in _places(source) if has(place)), None)


def obtain(
    source: Source, folder: str | os.PathLike[str] | None = None
) -> tuple[Path, list[Content]]:
    """Return the checked contents of a data set's files, and the folder they are in.

    Parameters
    ----------
    source
        The data set.
    folder
        The only place to look in. None or empty: the cache, the places where it is usually
        installed, then what its suppliers bring into the cache; what is damaged in one is
        sought in the next.

    Raises
    ------
    DataUnavailable
        Naming the file and what is wrong with it, or each place tried and why it failed.
    """
    if folder:
        named = Path(folder).expanduser()
        try:
            return named, _read(named, source)
        except DataUnavailable as problem:
            raise DataUnavailable(f"{source.name}: {problem}") from None
    tried = []
    for place in _places(source):
        try:
            return place, _read(place, source)
        except DataUnavailable as problem:
            tried.append(str(problem))
    cache = cache_folder(source.name)
    for supplier in source.suppliers:
        try:
            supplier.supply(cache, source.files)
            return cache, _read(cache, source)
        except DataUnavailable as problem:
            tried.append(str(problem))
    raise DataUnavailable(
        "\n  ".join([f"{source.name} cannot be had; tried:", *tried])
        + "\n  ".join(["\nwhat to do:", *source.advice])
    )


def _places(source: Source) -> tuple[Path, ...]:
    return (cache_folder(source.name), *source.places) if source.suppliers else source.places


def _read(folder: Path, source: Source) -> list[Content]:
    """Read the first form in which the folder has the files, whole."""
    if not folder.is_dir():
        raise DataUnavailable(f"{folder}: there is no such folder")
    missing, damaged = [], []
    for form in source.forms:
        if absent := form.missing(folder, source.files):
            missing.append(absent)
            continue
        try:
            return form.read(folder, source.files)
        except DataUnavailable as problem:
            damaged.append(str(problem))
    raise DataUnavailable("; ".join(damaged) or f"{folder}: has no {', nor '.join(missing)}")
