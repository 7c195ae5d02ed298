"""Labelled texts, and the language models to train on them.

``movie-snippets``
    10,568 sentences of movie reviews, each rated by twenty people (Hutto & Gilbert, "VADER: A
    Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text", ICWSM 2014). The
    label is the sign of the mean rating. Sentences with a mean rating of 0 are omitted.
``imdb``
    50,000 movie reviews, half of them positive (Maas et al., "Learning Word Vectors for
    Sentiment Analysis", ACL 2011).
"""

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedzo.data.fetching import File, decoded, find, obtain, read_members, registered, select
from fedzo.errors import nearest, one_of, require


@dataclass(frozen=True, eq=False)
class Texts:
    """Labelled texts, in the published order.

    Attributes
    ----------
    name
        The name that :func:`fedzo.data.load_texts` accepts.
    texts
        One text per sample.
    labels
        The class of each text, an index into ``classes``.
    classes
        The names of the classes.
    """

    name: str
    texts: tuple[str, ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def _snippets(content: bytes) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    rows = [line.split("\t", 2) for line in content.decode().splitlines()]
    rated = [(text, float(rating)) for _, rating, text in rows if float(rating) != 0]
    labels = np.array([rating > 0 for _, rating in rated], np.int64)
    return tuple(text for text, _ in rated), labels


def _reviews(content: bytes) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    reviews = json.loads(content)
    labels = np.array([review["s"] for review in reviews], np.int64)
    return tuple(review["t"] for review in reviews), labels


def _nested(members: list[bytes], files: Sequence[File]) -> list[bytes]:
    """Read the snippets from the archive inside the package."""
    names = [f"hutto_ICWSM_2014/{file.name}" for file in files]
    return read_members(io.BytesIO(members[0]), names, files[0].size)


SNIPPETS = registered("movie-snippets", _snippets, {"vaderSentiment-3.3.2.tar.gz": _nested})
TEXTS = {source.name: source for source in (SNIPPETS, registered("imdb", _reviews))}
MODELS = {name: registered(name) for name in ("smollm2-135m", "minilm-l6")}


def load_texts(name: str, folder: str | os.PathLike[str] | None = None) -> Texts:
    """Return labelled texts. Download them first if they are not on this machine.

    Parameters
    ----------
    name
        ``movie-snippets`` or ``imdb``.
    folder
        The only folder to search. By default (None or empty): the cache, then a download into it.

    Raises
    ------
    InvalidValue
        The name is unknown.
    DataUnavailable
        The texts cannot be found or downloaded, or a file is damaged. The message lists every
        attempt.

    Examples
    --------
    >>> load_texts("moovie-snippets")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: data = 'moovie-snippets': must be one of 'movie-snippets', 'imdb'
    (did you mean 'movie-snippets'?)
    """
    return Texts(*decoded(select(name, TEXTS), folder))


def model_folder(name: str) -> Path:
    """Return the folder of a language model, given its registered name or the folder itself.

    A registered model that is not on this machine is downloaded into the cache.

    Examples
    --------
    >>> model_folder("smollm2")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: model = 'smollm2': must be one of 'smollm2-135m', 'minilm-l6' or a
    folder with a model (did you mean 'smollm2-135m'?)
    """
    if name in MODELS:
        folder = find(MODELS[name])
        return folder if folder is not None else obtain(MODELS[name])[0]
    folder = Path(name).expanduser()
    allowed = f"{one_of(MODELS)} or a folder with a model{nearest(name, MODELS)}"
    require(folder.is_dir(), "model", name, allowed)
    return folder
