"""Networks by forward passes only: accuracy at equal queries, against the field.

    python benchmarks/networks.py [METHOD ...] [--network cnn] [--seeds 5] [--passes N] [--out FILE]

``cnn`` is a convolutional network of 96,938 weights from scratch on Fashion-MNIST (the 4,000 +
1,000 images that ship), 3,000 forward passes of 32 images. ``minilm-l6`` is MiniLM with a head on
its mean embedding, which a logistic regression on the training texts has made: all 22,566,146
weights on snippets of movie reviews (1,000 to train, 350 to choose the rate by, 1,500 to test),
240 passes of 16 texts. It needs the extra text.

Ten devices have a tenth of the training samples each. Each method has the same number of forward
passes, and its rate is the best of a few on samples that are kept apart (seed 0); then the test
accuracy is printed over the seeds, with the bytes of a device and round.

``mezo``, ``mezo, tidied`` and ``decomfl`` are those of ``benchmarks/mezo.py``; MeZO has all samples
in one place. With ``b2 = 10`` a step averages ten directions, and with ``adam`` Adam takes the
estimate in place of a gradient, with fedzo's β. ``fedzo`` is FedZO with shared directions by seeds
and scalars, one local step, with the server optimizer that is named. ``adam by gradients`` is the
first-order reference: Adam on pooled samples, where a forward and a backward pass count as three.
Results are appended to FILE, a line each, and found there again.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import fedzo
from fedzo.server import Adam, Mean, Momentum, Normalised, ServerOptimizer
from mezo import EPSILON, METHODS, Tensors, Value
from results import Kept, percent

DEVICES, TAKING_PART = 10, 2
GRADIENTS = "adam by gradients"
SERVERS: dict[str, Callable[[float], ServerOptimizer]] = {
    "fedzo, mean": lambda rate: Mean(),
    "fedzo, momentum": lambda rate: Momentum(),
    "fedzo, normalised": lambda rate: Normalised(learning_rate=rate),
    "fedzo, adam": lambda rate: Adam(learning_rate=rate),
}
OWN_RATE = ("fedzo, normalised", "fedzo, adam")  # the server's; else the rate is the devices'
VARIANTS = {  # of the field's methods: b2, and whether Adam takes the estimate
    f"{name}{words}": (directions, adam)
    for name in ("mezo", "decomfl")
    for words, directions, adam in (
        (", b2 = 10", 10, False),
        (", adam", 1, True),
        (", b2 = 10, adam", 10, True),
    )
}
Samples = tuple[torch.Tensor, torch.Tensor]


class Case(NamedTuple):
    """A network to be trained, its samples, and the settings that were not tuned for a method."""

    network: Callable[[], torch.nn.Module]
    samples: Callable[[], dict[str, Samples]]  # inputs and labels to train, to validate, to test
    passes: int
    batch: int
    directions: int  # b2 of ours; the others have one
    smoothing: float
    rates: dict[str, tuple[float, ...]]


@lru_cache(maxsize=1)
def images() -> dict[str, Samples]:
    data = fedzo.data.load("fashion-mnist-mini")

    def tensors(inputs: Any, labels: Any) -> Samples:
        pixels = torch.from_numpy(inputs).float().view(-1, 1, 28, 28) / 255
        return pixels, torch.from_numpy(labels)

    inputs, labels = tensors(data.train_inputs, data.train_labels)
    return {
        "train": (inputs[:3500], labels[:3500]),
        "validation": (inputs[3500:], labels[3500:]),
        "test": tensors(data.test_inputs, data.test_labels),
    }


def convolutional() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 160),
        torch.nn.ReLU(),
        torch.nn.Linear(160, 10),
    )


@lru_cache(maxsize=1)
def texts() -> dict[str, Samples]:
    import transformers

    from fedzo.data import load_texts, model_folder

    data = load_texts("movie-snippets")
    which = np.random.default_rng(0).permutation(len(data.texts))[:2850]
    read = transformers.AutoTokenizer.from_pretrained(str(model_folder("minilm-l6")))
    some = [data.texts[i] for i in which]
    ids = read(some, padding="max_length", truncation=True, max_length=32, return_tensors="pt")
    inputs, labels = ids["input_ids"], torch.from_numpy(data.labels[which])
    cuts = {"train": slice(1000), "validation": slice(1000, 1350), "test": slice(1350, 2850)}
    return {name: (inputs[cut], labels[cut]) for name, cut in cuts.items()}


class Sentences(torch.nn.Module):
    """MiniLM's mean embedding, and a head that a logistic regression on it has made."""

    def __init__(self) -> None:
        import transformers
        from sklearn.linear_model import LogisticRegression

        from fedzo.data import model_folder

        super().__init__()
        folder = str(model_folder("minilm-l6"))
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.encoder = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False)
        self.head = torch.nn.Linear(384, 2)
        self.eval()
        inputs, labels = texts()["train"]
        with torch.inference_mode():
            embedded = torch.cat([self.embedding(some) for some in inputs.split(100)]).numpy()
        made = LogisticRegression(max_iter=1000).fit(embedded, labels.numpy())
        weights = torch.from_numpy(np.concatenate([-made.coef_, made.coef_]) / 2)
        with torch.no_grad():  # the difference of the two scores is the regression's
            self.head.weight.copy_(weights)
            self.head.bias.copy_(torch.tensor([-1.0, 1.0]) * made.intercept_[0] / 2)

    def embedding(self, ids: torch.Tensor) -> torch.Tensor:
        mask = (ids != 0).long()  # 0 is the padding
        words = self.encoder(input_ids=ids, attention_mask=mask)[0] * mask[:, :, None]
        return words.sum(1) / mask.sum(1, keepdim=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids))


@lru_cache(maxsize=1)
def made_once() -> torch.nn.Module:
    return Sentences()


CASES = {
    "cnn": Case(
        convolutional,
        images,
        passes=3000,
        batch=32,
        directions=10,
        smoothing=0.01,
        rates={
            "mezo": (3e-4, 1e-3, 3e-3),
            "mezo, tidied": (3e-4, 1e-3, 3e-3),
            "decomfl": (3e-4, 1e-3, 3e-3, 1e-2),
            **dict.fromkeys(("mezo, b2 = 10", "decomfl, b2 = 10"), (1e-3, 3e-3, 1e-2)),
            **dict.fromkeys(
                (name for name in VARIANTS if "adam" in name), (0.0015, 0.003, 0.006, 0.012, 0.024)
            ),
            "fedzo, mean": (3e-3, 1e-2, 3e-2),
            "fedzo, momentum": (1e-3, 3e-3, 1e-2),
            "fedzo, normalised": (0.1, 0.3, 1.0),
            "fedzo, adam": (0.003, 0.006, 0.012),
            GRADIENTS: (1e-3, 3e-3),
        },
    ),
    "minilm-l6": Case(
        lambda: copy.deepcopy(made_once()),
        texts,
        passes=240,
        batch=16,
        directions=4,
        smoothing=4.75,  # 0.001 for each weight, as the others have it
        rates={
            "mezo, tidied": (1e-6, 1e-5),
            "decomfl": (1e-6, 1e-5),
            "fedzo, mean": (1e-6, 1e-5),
            "fedzo, normalised": (0.3, 1.0),
            "fedzo, adam": (1e-5, 1e-4),
            GRADIENTS: (1e-5, 1e-4),
        },
    ),
}


def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def by_field(
    case: Case, name: str, module: torch.nn.Module, rate: float, seed: int, passes: int
) -> str:
    """Train by a step of the field: two passes a step; DeComFL averages over its devices."""
    inputs, labels = case.samples()["train"]
    draw = np.random.default_rng(seed)
    parameters = list(module.parameters())
    shared = name.startswith("decomfl")
    taking_part = TAKING_PART if shared else 1
    directions, adam = VARIANTS.get(name, (1, False))
    optimiser: torch.optim.Optimizer = (
        torch.optim.Adam(parameters, rate, (0.9, 0.99), 1e-12)
        if adam
        else torch.optim.SGD(parameters, rate)
    )
    for step in range(passes // (2 * taking_part * directions)):
        # The same direction for all devices of a round: their mean slope is that of their batches.
        which = [draw.integers(len(labels), size=case.batch) for _ in range(taking_part)]
        if shared:
            which = [
                DEVICES * draw.integers(len(labels) // DEVICES, size=case.batch) + device
                for device in draw.choice(DEVICES, taking_part, replace=False)
            ]
        batch = inputs[np.concatenate(which)], labels[np.concatenate(which)]

        @torch.inference_mode()
        def value(batch: tuple[torch.Tensor, ...] = batch) -> float:
            return loss(module, batch).mean().item()

        with torch.no_grad():
            number = seed * 10**6 + step
            if name in METHODS:
                METHODS[name](parameters, value, number, rate)
            else:
                seeds = range(directions * number, directions * (number + 1))
                estimate(parameters, value, seeds)
                optimiser.step()
    return f"{4 * directions + 8}" if shared else "no devices"  # scalars and a seed


def estimate(parameters: Tensors, value: Value, seeds: Sequence[int]) -> None:
    """Write the mean of central differences along the directions of these seeds as gradients."""

    def add(to: Tensors, seed: int, scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for tensor in to:
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=scale)

    gradients = [torch.zeros_like(parameter) for parameter in parameters]
    for seed in seeds:
        add(parameters, seed, EPSILON)
        ahead = value()
        add(parameters, seed, -2 * EPSILON)
        slope = (ahead - value()) / (2 * EPSILON)
        add(parameters, seed, EPSILON)
        add(gradients, seed, slope / len(seeds))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def by_fedzo(
    case: Case, name: str, module: torch.nn.Module, rate: float, seed: int, passes: int
) -> str:
    inputs, labels = case.samples()["train"]
    data = [(inputs[i::DEVICES], labels[i::DEVICES]) for i in range(DEVICES)]
    problem = fedzo.TorchProblem(module, loss, data)
    rounds = passes // (TAKING_PART * (case.directions + 1))
    algorithm = fedzo.FedZO(
        learning_rate=1e-3 if name in OWN_RATE else rate,
        smoothing=case.smoothing,
        directions=case.directions,
        local_steps=1,
        batch_size=case.batch,
        participants=TAKING_PART,
        direction_kind="rademacher",
        shared_directions=True,
        server=SERVERS[name](rate),
    )
    result = fedzo.minimize(
        problem,
        algorithm=algorithm,
        uplink=fedzo.Seeds(),
        rounds=rounds,
        seed=seed,
        evaluate_every=rounds,
    )
    problem.place(result.last)
    return f"{result.uplink_bytes // (rounds * TAKING_PART)}"


def by_gradients(case: Case, module: torch.nn.Module, rate: float, seed: int, passes: int) -> str:
    inputs, labels = case.samples()["train"]
    draw, optimiser = np.random.default_rng(seed), torch.optim.Adam(module.parameters(), rate)
    for _ in range(passes // 3):
        which = draw.integers(len(labels), size=case.batch)
        optimiser.zero_grad()
        loss(module, (inputs[which], labels[which])).mean().backward()
        optimiser.step()
    return "no devices"


def accuracy(
    network: str, name: str, rate: float, seed: int, passes: int, split: str
) -> tuple[float, str]:
    """Return a trained network's accuracy, and the bytes that a device sends in a round."""
    torch.manual_seed(seed)
    case = CASES[network]
    module, sent = case.network(), "no devices"
    if name in METHODS or name in VARIANTS:
        sent = by_field(case, name, module, rate, seed, passes)
    elif name in SERVERS:
        sent = by_fedzo(case, name, module, rate, seed, passes)
    elif name == GRADIENTS:
        sent = by_gradients(case, module, rate, seed, passes)
    inputs, labels = case.samples()[split]
    with torch.inference_mode():
        found = torch.cat([module(some).argmax(1) for some in inputs.split(100)])
    return (found == labels).float().mean().item(), sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--network", choices=CASES, default="cnn")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes", type=int)
    parser.add_argument("--out", type=Path, help="where results are kept")
    given = parser.parse_args()
    case = CASES[given.network]
    passes = given.passes or case.passes
    found = Kept(lambda *run: accuracy(given.network, *run), given.out)
    print(f"{'':20} {'rate':>8} {'test accuracy, mean (least to most)':>38} {'bytes':>12}")
    start = 100 * found("at the start", 0.0, 0, 0, "test")[0]
    print(f"{'at the start, seed 0':29} {start:38.1f}", flush=True)
    for name in given.methods or case.rates:
        rates = case.rates[name]
        rate = max(rates, key=lambda rate: found(name, rate, 0, passes, "validation")[0])
        results = [found(name, rate, seed, passes, "test") for seed in range(given.seeds)]
        span = percent([result[0] for result in results])
        print(f"{name:20} {rate:8g} {span:>38} {results[0][1]:>12}", flush=True)


if __name__ == "__main__":
    main()
