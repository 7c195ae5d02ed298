"""How near an attack comes to the most that its victim can do, measured side by side."""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import fedzo
from fedzo import data, models

Array = NDArray[Any]

SIZES = (1, 4, 16, 32, 64, 128, 256)
REPEATS, QUERIES = 3, 12_000


class Speed(NamedTuple):
    """Inputs that are answered in a second: of the clock, and of all cores' work together."""

    clock: float
    work: float


def quick() -> tuple[models.Model, Array, int]:
    """Return two small convolutions with random weights, and images of the most frequent answer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(3, 24, 3, 2), nn.ReLU(), nn.Conv2d(24, 48, 3, 2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(48 * 49, 10)),
    )
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an older way to export, which needs nothing else
        torch.onnx.export(
            network,
            (torch.zeros(1, 3, 32, 32),),
            f"{folder}/quick.onnx",
            input_names=["images"],
            dynamic_axes={"images": {0: "n"}},
            dynamo=False,
        )
        model = models.OnnxModel(f"{folder}/quick.onnx")
    images = data.load("cifar10-deer-mini").train_inputs.reshape(-1, 3, 32, 32) / np.float32(255)
    answers = model.predict(images)
    label = int(np.bincount(answers).argmax())
    return model, images[answers == label], label


def measure(model: models.Model, images: Array, label: int) -> None:
    """Print the victim's curve, and the attack's speed over the best of it, taking turns.

    What only one of the two would see of a busy machine is averaged away by turns and medians. On
    a machine that others use, too, only the second share says something.
    """
    batch = np.resize(images, (max(SIZES), *images.shape[1:])).astype(np.float32)
    parts = max(model.in_flight, 1)
    curve = {size: _alone(model, batch[:size], parts) for size in SIZES}
    for size, speed in curve.items():
        print(f"{size:4} inputs a thread at a time: {speed.clock:8,.0f} a second")
    best = max(curve, key=lambda size: curve[size].clock)
    _attacked(model, images, label, REPEATS)  # the first call of anything is slower
    shares = []
    for turn in range(REPEATS):
        alone = _alone(model, batch[:best], parts)
        attacked = _attacked(model, images, label, turn)
        shares.append(Speed(attacked.clock / alone.clock, attacked.work / alone.work))
        print(f"victim alone {alone.clock:8,.0f} a second, under attack {attacked.clock:8,.0f}: "
              f"{shares[-1].clock:.0%}; by the cores' work {shares[-1].work:.0%}",
              flush=True)  # fmt: skip
    clock, work = (statistics.median(column) for column in zip(*shares, strict=True))
    print(f"median: the attack asks at {clock:.0%} of the victim's best; "
          f"of the cores' work {work:.0%} is the victim's")  # fmt: skip


def _alone(model: models.Model, batch: Array, parts: int) -> Speed:
    """Return the victim's speed with a batch on each of its threads, for a second."""
    many = np.concatenate([batch] * parts)
    model(many)  # the first call is slower

    def ask() -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < 1.0:
            model(many)

    return _speed(model, ask)


def _attacked(model: models.Model, images: Array, label: int, seed: int) -> Speed:
    """Return how fast an attack asks, from its start to its end."""
    attack = fedzo.UniversalAttack(model, eps=8 / 255, seed=seed, rounds=QUERIES // 240)
    parts = np.array_split(images, 10)
    return _speed(model, lambda: attack.fit(parts, label))


def _speed(model: models.Model, action: Callable[[], object]) -> Speed:
    before, began, worked = model.queries, time.perf_counter(), time.process_time()
    action()
    asked = model.queries - before
    return Speed(asked / (time.perf_counter() - began), asked / (time.process_time() - worked))
