"""Sentiment of movie reviews: train the upper layers of a language model across devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedzo.core.objective import problem_factory
from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.data import load_texts, model_folder
from fedzo.data import partition as split_samples
from fedzo.errors import check_count, require
from fedzo.models.language import Batch, Prepared, UpperLayers, as_batch, check_installed, prepare
from fedzo.problems import TorchProblem

Tensor = Any
Sample = tuple[Prepared, int]

WORDS = (" negative", " positive")


@problem_factory
def text(
    model: str = "smollm2-135m",
    data: str = "movie-snippets",
    data_dir: str = "",
    devices: int = 8,
    partition: str = "dirichlet",
    shards_per_device: int = 2,
    concentration: float = 0.5,
    train_samples: int = 400,
    validation_samples: int = 350,
    test_samples: int = 1500,
    layers: int = 12,
    trainable: str = "norms",
    read: int = 1,
    prompt: str = "Review: {}\nSentiment:",
    longest: int = 96,
    seed: int = 0,
) -> TextProblem:
    """Classify reviews as positive or negative by the word that follows a prompt.

    The loss is the cross-entropy between the scores of " negative" and " positive" after the
    prompt. Frozen parts run once per text before the run, and a cache file keeps their outputs for
    later runs. These are the lower layers, and the upper ones on all tokens but the last ``read``
    (see :class:`~fedzo.models.language.UpperLayers`). The best model has the highest accuracy on
    the validation texts; the test texts choose nothing.

    Parameters
    ----------
    model
        ``smollm2-135m``, or a folder with a decoder of Llama's form: Hugging Face's files, or
        ``.gguf``.
    data, data_dir
        ``movie-snippets`` or ``imdb``, and a folder that has it already.
    devices, partition, shards_per_device, concentration
        N, and how to split the texts by label: see :func:`fedzo.data.partition`.
    train_samples, validation_samples, test_samples
        The number of texts for all devices, to choose the best model, and to test it.
    layers
        The number of upper layers that may be trained.
    trainable
        The trained parameters of these layers: a group or a pattern of :class:`TorchProblem`.
    read
        The number of last tokens of a prompt that the trained layers read; the original model reads
        those before. 0: all tokens, which takes longer in proportion to their number.
    prompt
        The prompt, with {} for the text.
    longest
        The largest number of tokens of a prompt; the first ones are cut off.
    seed
        The seed of the choice of texts and of the split.
    """
    counts = {"train_samples": train_samples, "validation_samples": validation_samples}
    for key, value in {**counts, "test_samples": test_samples, "longest": longest}.items():
        check_count(key, value)
    require(read >= 0, "read", read, "a number of tokens, or 0 for all")
    require("{}" in prompt, "prompt", prompt, "a text with {} in it")
    check_installed()  # before anything is fetched
    texts = load_texts(data, data_dir or None)
    wanted = train_samples + validation_samples + test_samples
    allowed = f"at most {len(texts.texts) + train_samples - wanted}, what {data} has besides those "
    allowed += "to validate and to test"
    require(wanted <= len(texts.texts), "train_samples", train_samples, allowed)
    which = Draws(seed, Stream.PROBLEM).permutation(len(texts.texts))[:wanted]
    labels = texts.labels[which]
    parts = split_samples(
        labels[:train_samples],
        devices,
        partition,
        seed,
        shards_per_device=shards_per_device,
        concentration=concentration,
    )
    folder = model_folder(model)
    upper = UpperLayers(folder, layers, WORDS)
    prepared = prepare(upper, folder, [prompt.format(texts.texts[i]) for i in which], longest, read)
    samples = list(zip(prepared, labels.tolist(), strict=True))
    test = train_samples + validation_samples
    return TextProblem(
        upper,
        [[samples[int(i)] for i in part] for part in parts],
        {"validation": samples[train_samples:test], "test": samples[test:]},
        trainable,
    )


class TextProblem(TorchProblem):
    """Train upper layers on prepared texts, and measure the accuracy on further texts.

    Parameters
    ----------
    upper
        The layers.
    texts
        The labelled texts of each device.
    others
        Further texts by name; ``validation`` chooses the best model.
    trainable
        As for :class:`TorchProblem`.

    Attributes
    ----------
    reported
        The further texts whose accuracy each evaluation measures: all by default.
    """

    best_metric = "validation_accuracy"

    def __init__(
        self,
        upper: UpperLayers,
        texts: Sequence[Sequence[Sample]],
        others: Mapping[str, Sequence[Sample]],
        trainable: str,
    ) -> None:
        import torch

        self.upper, self.texts, self.others = upper, texts, others
        self.reported = tuple(others)
        loaders = [torch.utils.data.DataLoader(own, collate_fn=_collate) for own in texts]
        super().__init__(upper.module, self._cross_entropy, loaders, trainable)

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return the accuracies on further texts."""
        return {f"{name}_accuracy": self.accuracy(name, x) for name in self.reported}

    def accuracy(self, name: str, x: Array) -> float:
        """Return the share of texts whose label has the higher score."""
        import torch

        self.place(x)
        right, samples = [], self.others[name]
        with torch.inference_mode():
            for first in range(0, len(samples), self.evaluation_batch):
                batch, labels = _collate(samples[first : first + self.evaluation_batch])
                right += (self.upper.scores(batch).argmax(1) == labels).tolist()
        return float(np.mean(right))

    def _cross_entropy(self, module: Any, batch: tuple[Batch, Tensor]) -> Tensor:
        import torch

        scores = self.upper.scores(batch[0]).double()
        return torch.nn.functional.cross_entropy(scores, batch[1], reduction="none")


def _collate(some: Sequence[Sample]) -> tuple[Batch, Tensor]:
    import torch

    return as_batch([text for text, _ in some]), torch.tensor([label for _, label in some])
