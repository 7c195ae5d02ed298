"""Would a defender notice? A detector of similar queries watches those of an attack."""

import itertools
from collections.abc import Mapping
from typing import Self

import numpy as np

from fedzo.core.types import Array
from fedzo.models.base import LazyBatch

_LEVELS = 6  # of the input's range: smaller changes do not show
_WINDOW = 20  # numbers in a piece of an input
_PRINTS = 50  # pieces that are compared, those with the largest hashes
_MATCH = 25  # equal pieces that make two queries similar
_WATCHED = 1000  # queries
_COMPARED = 60  # queries between which distances are measured
_FACTORS = np.cumprod(np.full(_WINDOW, 6364136223846793005, np.uint64), dtype=np.uint64)


class Detector:
    """Flags queries that share many pieces with an earlier one, as Blacklight does.

    An input is quantised, and all windows of 20 numbers are hashed. The 50 largest hashes are its
    fingerprint. A query is flagged if 25 of them are those of one earlier query (Li et al.,
    "Blacklight: Scalable Defense for Neural Networks against Query-Based Black-Box Attacks",
    USENIX Security 2022). The first 1,000 queries are watched.

    Parameters
    ----------
    first : int
        The number of queries before those that are watched.

    Examples
    --------
    >>> detector, images = Detector(), np.random.default_rng(0).uniform(size=(2, 400))
    >>> detector.watch(images, (0.0, 1.0))
    >>> detector.watch(images[:1] + 0.001, (0.0, 1.0), before=2)
    >>> detector.queries, detector.flagged
    (3, 1)
    """

    def __init__(self, first: int = 0) -> None:
        self.first, self.queries, self.flagged = first, 0, 0
        self._prints: list[list[int]] = []  # the fingerprint of each query
        self._seen: dict[int, list[int]] = {}  # queries by hash
        self._some: list[Array] = []

    def watch(
        self, inputs: Array | LazyBatch, input_range: tuple[float, float], before: int = 0
    ) -> None:
        """Look at queries, shape (n, d); ``before`` is the number of queries before them.

        A resumed run repeats queries since its checkpoint. They are watched once.
        """
        low, high = input_range
        known = max(0, self.queries - (before - self.first))
        for row in inputs[known : known + max(0, _WATCHED - self.queries)]:
            unit = (np.asarray(row, np.float64).reshape(-1) - low) / (high - low)
            self._look(np.round(unit * _LEVELS).astype(np.uint64))
            if self.queries % (_WATCHED // _COMPARED) == 1:
                self._some.append(unit.astype(np.float32))

    def _look(self, numbers: Array) -> None:
        padded = np.concatenate([numbers, np.zeros(max(0, _WINDOW - len(numbers)), np.uint64)])
        hashes = np.sort(np.correlate(padded + np.uint64(1), _FACTORS, "valid"))
        distinct = np.diff(hashes, prepend=hashes[:1] - np.uint64(1)) != 0
        prints = hashes[distinct][-_PRINTS:].tolist()  # np.unique takes eight times as long
        shared = np.zeros(self.queries + 1, int)
        for one in prints:
            shared[self._seen.get(one, [])] += 1
        self.flagged += bool(shared.max() >= min(_MATCH, len(prints)))
        self._note(prints)

    def _note(self, prints: list[int]) -> None:
        for one in prints:
            self._seen.setdefault(one, []).append(self.queries)
        self._prints.append(prints)
        self.queries += 1

    def memory(self) -> dict[str, Array]:
        """Return the state, for a checkpoint."""
        prints = [row + [0] * (_PRINTS - len(row)) for row in self._prints]
        return {
            "prints": np.array(prints, np.uint64).reshape(-1, _PRINTS),
            "counts": np.array([self.first, self.flagged]),
            "some": np.array(self._some, np.float32),
        }

    @classmethod
    def recalled(cls, memory: Mapping[str, Array]) -> Self:
        """Return the detector whose state a checkpoint holds."""
        first, flagged = (int(count) for count in memory["counts"])
        detector = cls(first)
        for row in memory["prints"]:
            detector._note([int(one) for one in row if one])
        detector.flagged, detector._some = flagged, list(memory["some"])
        return detector

    def summary(self) -> dict[str, float | None]:
        """Return the number of queries, of those flagged, and the mean distance between queries.

        It is a root mean square, in units of the range; None for fewer than two queries.
        """
        pairs = itertools.combinations(self._some, 2)
        far = [float(np.sqrt(np.mean(np.square(a - b)))) for a, b in pairs]
        distance = float(np.mean(far)) if far else None
        return {"queries": self.queries, "flagged": self.flagged, "mean_distance": distance}
