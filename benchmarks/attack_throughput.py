"""How near an attack comes to the most that its victim can do, measured side by side."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedzo
from fedzo import models

Array = NDArray[Any]

SIZES = (1, 4, 16, 32, 64, 128, 256)
REPEATS, QUERIES = 5, 24_000


def measure(model: models.Model, images: Array, label: int) -> None:
    """Print the victim's curve, and the attack's rate over the best of it, taking turns.

    What only one of the two would see of a busy machine is averaged away by turns and medians.
    """
    batch = np.resize(images, (max(SIZES), *images.shape[1:])).astype(np.float32)
    parts = max(model.in_flight, 1)
    curve = {size: _rate(model, batch[:size], parts) for size in SIZES}
    for size, rate in curve.items():
        print(f"{size:4} inputs a thread at a time: {rate:8,.0f} a second")
    best = max(curve, key=lambda size: curve[size])
    shares = []
    for turn in range(REPEATS):
        alone = _rate(model, batch[:best], parts)
        attacked = _attack(model, images, label, turn)
        shares.append(attacked / alone)
        print(f"victim alone {alone:8,.0f} a second, under attack {attacked:8,.0f}: "
              f"{attacked / alone:.0%}", flush=True)  # fmt: skip
    print(f"median: the attack asks at {statistics.median(shares):.0%} of the victim's best")


def _rate(model: models.Model, batch: Array, parts: int) -> float:
    """Return how many inputs the victim answers in a second, a batch on each of its threads."""
    many = np.concatenate([batch] * parts)
    model(many)  # the first call is slower
    began, asked = time.perf_counter(), 0
    while time.perf_counter() - began < 1.0:
        model(many)
        asked += len(many)
    return asked / (time.perf_counter() - began)


def _attack(model: models.Model, images: Array, label: int, seed: int) -> float:
    """Return how many queries an attack makes in a second, from its start to its end."""
    rounds = QUERIES // 240
    attack = fedzo.UniversalAttack(model, eps=8 / 255, seed=seed, rounds=rounds)
    parts, before = np.array_split(images, 10), model.queries
    began = time.perf_counter()
    attack.fit(parts, label)
    return (model.queries - before) / (time.perf_counter() - began)
