"""Split the samples of a data set among devices.

Every sample goes to exactly one device, and every device has at least one sample. The kinds:

``shards``
    Sort by label, cut into ``devices * shards_per_device`` shards, and distribute them at random
    (McMahan et al., AISTATS 2017). If the samples do not divide evenly, the first shards have one
    sample more.
``dirichlet``
    Sizes are equal up to one sample. The class mixture of each device is q ~ Dir(α K p), where p
    are the shares of the K classes in the whole (Hsu, Qi & Brown, 2019, arXiv:1909.06335). α is
    ``concentration``, counted per class as usual: in balanced data, q ~ Dir(α, ..., α). A small α
    gives each device one class, a large α the mixture of the whole. Devices are served in random
    order; once a class is used up, the remaining devices draw from the other classes.
``iid``
    At random, with sizes equal up to one sample.
``sizes``
    At random, with random sizes: every way to write the number of samples as an ordered sum of
    ``devices`` whole numbers >= 1 is equally likely.
"""

import itertools
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.core.random import Draws, Stream
from fedzo.data.images import Dataset
from fedzo.data.registry import load
from fedzo.errors import check_choice, require

KINDS = ("shards", "dirichlet", "iid", "sizes")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def load_split(
    data: str,
    folder: str | os.PathLike[str] | None,
    devices: int,
    kind: str,
    shards_per_device: int,
    concentration: float,
    seed: int,
) -> tuple[Dataset, list[Ints]]:
    """Load a data set by name and split its training samples, as a [problem] table describes it.

    Examples
    --------
    >>> images, parts = load_split("fashion-mnist-mini", None, 10, "iid", 2, 0.5, seed=0)
    >>> len(images.classes), len(parts[3])
    (10, 400)
    """
    images = load(data, folder)
    parts = partition(
        images.train_labels,
        devices,
        kind,
        seed,
        shards_per_device=shards_per_device,
        concentration=concentration,
    )
    return images, parts


def partition(
    labels: ArrayLike,
    devices: int,
    kind: str = "shards",
    seed: int = 0,
    *,
    shards_per_device: int = 2,
    concentration: float = 0.5,
) -> list[Ints]:
    """Return the samples of each device, as sorted indices into ``labels``.

    Parameters
    ----------
    labels
        The class of each sample, a whole number.
    devices
        The number N of devices, at most the number of samples.
    kind
        How to split:

        - ``shards``: by label, in ``shards_per_device`` shards per device (McMahan et al., 2017)
        - ``dirichlet``: equal sizes, with class mixtures from a Dirichlet distribution (Hsu et
          al., 2019)
        - ``iid``: at random, with equal sizes
        - ``sizes``: at random, with random sizes
    seed
        Equal seeds give equal splits.
    shards_per_device
        For ``shards``.
    concentration
        α per class, for ``dirichlet``. A small α gives each device few classes.

    Examples
    --------
    >>> from fedzo.data import partition
    >>> partition([2, 0, 1, 1, 2, 0, 0, 1], devices=2)
    [array([1, 2, 5, 6]), array([0, 3, 4, 7])]
    """
    labels = np.asarray(labels)
    count = len(labels)
    check_choice("partition", kind, KINDS)
    samples = f"{count:,} samples"
    allowed = f"a whole number from 1 to {count:,}, the number of samples"
    require(1 <= devices <= count, "devices", devices, allowed)

    fresh = (Draws(seed, Stream.PARTITION, step=step) for step in itertools.count())
    match kind:
        case "shards":
            most = count // devices
            allowed = f"a whole number from 1 to {most:,}: {devices:,} devices share {samples}"
            fits = 1 <= shards_per_device <= most
            require(fits, "shards_per_device", shards_per_device, allowed)
            owners = _shards(labels, devices, shards_per_device, fresh)
        case "dirichlet":
            allowed, fits = "a number from 1e-6 to 1e6", 1e-6 <= concentration <= 1e6
            require(fits, "concentration", concentration, allowed)
            owners = _dirichlet(labels, devices, concentration, fresh)
        case "iid":
            owners = _at_random(_even_sizes(count, devices), fresh)
        case "sizes":
            owners = _at_random(_random_sizes(count, devices, fresh), fresh)
    by_device = np.argsort(owners, kind="stable")
    return np.split(by_device, np.cumsum(np.bincount(owners))[:-1])


def _even_sizes(count: int, parts: int) -> Ints:
    return count // parts + (np.arange(parts) < count % parts)


def _random_sizes(count: int, parts: int, fresh: Iterator[Draws]) -> Ints:
    """Return a uniform random composition: parts - 1 different cuts at the count - 1 gaps."""
    cuts = next(fresh).subset(count - 1, parts - 1) + 1
    return np.diff(cuts, prepend=0, append=count)


def _at_random(sizes: Ints, fresh: Iterator[Draws]) -> Ints:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return owners[next(fresh).permutation(len(owners))]


def _shards(labels: Ints, devices: int, each: int, fresh: Iterator[Draws]) -> Ints:
    shards = devices * each
    owner_of_shard = next(fresh).permutation(shards) // each
    owners = np.empty(len(labels), np.int64)
    by_label = np.argsort(labels, kind="stable")
    owners[by_label] = np.repeat(owner_of_shard, _even_sizes(len(labels), shards))
    return owners


def _dirichlet(labels: Ints, devices: int, alpha: float, fresh: Iterator[Draws]) -> Ints:
    """Draw a class for each slot of a device by its mixture, then a sample for each slot."""
    _, classes, left = np.unique(labels, return_inverse=True, return_counts=True)
    shapes = np.tile(alpha * left / left.mean(), (devices, 1))
    log_q = _log_gammas(shapes, fresh)  # (N, K), up to a constant for each device
    served = next(fresh).permutation(devices)
    slots = np.repeat(served, _even_sizes(len(labels), devices))  # device of each
    filled = np.empty_like(slots)  # class of each
    open_slots = np.arange(len(slots))
    while open_slots.size:  # at most K times: if a slot stays open, a class has run out
        wish = _draw_classes(np.where(left > 0, log_q, -np.inf), slots[open_slots], next(fresh))
        granted = _rank_in_class(wish) < left[wish]
        filled[open_slots] = wish
        left = left - np.bincount(wish[granted], minlength=len(left))
        open_slots = open_slots[~granted]
    owners = np.empty_like(slots)
    shuffled = next(fresh).permutation(len(labels))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    owners[by_class] = slots[np.argsort(filled, kind="stable")]
    return owners


def _draw_classes(log_weights: Floats, devices: Ints, draws: Draws) -> Ints:
    """Draw a class for each slot, given its device, in proportion to the device's weights."""
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    below = np.cumsum(weights, axis=1)
    u = draws.uniform(len(devices)) * below[devices, -1]
    return np.asarray(np.count_nonzero(below[devices] <= u[:, None], axis=1))


def _rank_in_class(classes: Ints) -> Ints:
    """Return how many of the same class come before each."""
    by_class = np.argsort(classes, kind="stable")
    sizes = np.bincount(classes)
    ranks = np.empty_like(classes)
    ranks[by_class] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks


def _log_gammas(shapes: Floats, fresh: Iterator[Draws]) -> Floats:
    """Return log g, g ~ Gamma(shape, 1) independent (Marsaglia & Tsang, ACM TOMS 2000).

    Their method is for shapes >= 1. Smaller ones follow from Gamma(a) = Gamma(a + 1) U^(1/a),
    which holds for all a. Logarithms are used because U^(1/a) underflows for small a.
    """
    a = shapes.ravel()
    d = a + 1 - 1 / 3
    log_v = np.empty_like(a)  # the draw is d v
    open_ = np.arange(a.size)
    while open_.size:  # at least 95 of 100 are accepted each time
        x = next(fresh).normals(open_.size)
        log_u = np.log1p(-next(fresh).uniform(open_.size))  # 1 - u, since u may be 0
        root = 1 + x / np.sqrt(9 * d[open_])
        positive = root > 0
        log_v[open_] = 3 * np.log(np.where(positive, root, 1))
        v_bound = d[open_] * (1 - np.exp(log_v[open_]) + log_v[open_])
        open_ = open_[~(positive & (log_u < x * x / 2 + v_bound))]
    log_u = np.log1p(-next(fresh).uniform(a.size))
    return (np.log(d) + log_v + log_u / a).reshape(shapes.shape)
