"""Sentiment of movie reviews: the upper layers of a language model, trained across devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.objective import described
from fedzo.core.random import Draws, Stream
from fedzo.data.partition import partition as deal_out
from fedzo.data.text import load, model_folder
from fedzo.errors import check_count, require
from fedzo.models.language import UpperLayers, pad
from fedzo.problems.network import TorchProblem

Array = NDArray[Any]
Tensor = Any

WORDS = (" negative", " positive")


@described
def text(
    model: str = "smollm2-135m",
    data: str = "movie-snippets",
    data_dir: str = "",
    devices: int = 8,
    partition: str = "dirichlet",
    shards_per_device: int = 2,
    concentration: float = 0.5,
    train_samples: int = 800,
    test_samples: int = 1500,
    layers: int = 12,
    trainable: str = "*norm*",
    prompt: str = "Review: {}\nSentiment:",
    longest: int = 96,
    seed: int = 0,
) -> TorchProblem:
    """Return the problem of telling good reviews from bad by the word that follows a prompt.

    The loss is the cross-entropy between the scores of " negative" and " positive" after the
    prompt. Lower layers are frozen: they are run once for each text, before the run, and what
    they make is kept in memory (4 bytes times tokens times width), so a query takes the
    upper layers only.

    Parameters
    ----------
    model
        ``smollm2-135m``, or a folder with a decoder of Llama's form: Hugging Face's files, or
        ``.gguf``.
    data, data_dir
        ``movie-snippets`` or ``imdb``, and the folder with it if it is not to be fetched.
    devices, partition, shards_per_device, concentration
        N, and how labels are dealt: see :mod:`fedzo.data.partition`.
    train_samples, test_samples
        How many texts are dealt to devices, and how many are kept for the test accuracy.
    layers
        How many upper layers may be trained.
    trainable
        Which of their parameters are: a pattern, by default the gains of all norms.
    prompt
        What the model reads, with {} in the text's place.
    longest
        Tokens of a prompt that are kept, the last ones.
    seed
        Of the choice of texts and of the split.
    """
    for key, value in (("train_samples", train_samples), ("test_samples", test_samples)):
        check_count(key, value)
    check_count("longest", longest)
    require("{}" in prompt, "prompt", prompt, "a text with {} in it")
    texts = load(data, data_dir or None)
    wanted = train_samples + test_samples
    allowed = f"at most {len(texts.texts) - test_samples}, what {data} has besides the test's"
    require(wanted <= len(texts.texts), "train_samples", train_samples, allowed)
    which = Draws(seed, Stream.PROBLEM).permutation(len(texts.texts))[:wanted]
    labels = texts.labels[which]
    parts = deal_out(
        labels[:train_samples],
        devices,
        partition,
        Draws(seed, Stream.PARTITION),
        shards_per_device=shards_per_device,
        concentration=concentration,
    )
    upper = UpperLayers(model_folder(model), layers, WORDS)
    features = upper.features([prompt.format(texts.texts[i]) for i in which], longest)
    return _problem(upper, features, labels, parts, trainable)


def _problem(
    upper: UpperLayers,
    features: Sequence[Tensor],
    labels: Array,
    parts: Sequence[Array],
    trainable: str,
) -> TorchProblem:
    import torch

    samples = list(zip(features, labels.tolist(), strict=True))
    test = samples[sum(len(part) for part in parts) :]

    def together(some: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
        return *pad([hidden for hidden, _ in some]), torch.tensor([label for _, label in some])

    def loss(module: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        hidden, lengths, label = batch
        scores = upper.scores(hidden, lengths)
        return torch.nn.functional.cross_entropy(scores.double(), label, reduction="none")

    def accuracy(module: Any) -> Mapping[str, float]:
        right = []
        for first in range(0, len(test), 64):
            hidden, lengths, label = together(test[first : first + 64])
            right += (upper.scores(hidden, lengths).argmax(1) == label).tolist()
        return {"test_accuracy": float(np.mean(right))}

    data = [
        torch.utils.data.DataLoader([samples[int(i)] for i in part], collate_fn=together)
        for part in parts
    ]
    return TorchProblem(upper.module, loss, data, trainable, metrics=accuracy)
