"""Updates from their coefficients on all cores, in no more memory than the update itself.

:meth:`fedzo.core.federation.Work.rebuild` draws whole directions, b2 x d numbers. A server that
rebuilds the updates of M devices of a large model goes by columns instead: a core draws a few
thousand columns of all directions, adds them up, and goes on to the next few thousand. The numbers
and the order of each sum are the same, and so is every bit of the result.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.directions import advance_kernel
from fedzo.core.federation import Update, Work
from fedzo.core.random import COLUMNS, fill_columns

Array = NDArray[Any]


def rebuild(work: Work, update: Update, threads: Executor) -> Array:
    """Return the Δ_i^t that an update's coefficients make, on these threads.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from fedzo import FedZO
    >>> work = Work(FedZO(directions=3, local_steps=2), np.zeros(10_000), round=1, seed=2)
    >>> update = Update(5, np.empty(0), 1, 8, coefficients=np.arange(6.0).reshape(2, 3))
    >>> with ThreadPoolExecutor(2) as threads:
    ...     bool((rebuild(work, update, threads) == work.rebuild(update)).all())
    True
    """
    dim, estimator = work.x.size, work.algorithm.estimator
    if estimator.kind not in ("sphere", "gaussian") or dim <= COLUMNS:
        return work.rebuild(update)
    coefficients = update.coefficients
    assert coefficients is not None
    delta, at = np.zeros(dim, coefficients.dtype), work.at(update.device)
    addresses = [estimator.address(at._replace(step=k)) for k in range(len(coefficients))]

    def part(first: int) -> None:
        own = delta[first : first + COLUMNS]
        rows = np.empty((estimator.directions, own.size), own.dtype)
        start, x = np.zeros((2, own.size), own.dtype)
        for moves, address in zip(coefficients, addresses, strict=True):
            fill_columns(rows, address, dim, first)
            advance_kernel(moves, rows, own, start, x)

    list(threads.map(part, range(0, dim, COLUMNS)))
    return delta
