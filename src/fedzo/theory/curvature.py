"""The largest curvature of a function that gives values only: L of Assumption 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.directions import Frame
from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue
from fedzo.theory.probe import Probe

Array = NDArray[Any]


def climb(probe: Probe, x: Array, device: int, queries: int) -> tuple[float, float, int]:
    """Return the largest curvature found of one F_i(., ξ), and how sure that is.

    How sure: what the last half of the turns gained, and along how many directions was looked.

    Each turn of v finds where its curvature grows, and then takes the best of the span of v,
    that, and the last turn: a matrix of at most 3 x 3 from second differences. Two turns at
    least are made, on all d axes if the queries that are left are enough for that.
    """
    batch = probe.batch(probe.plan.points, device, 0, size=1)
    at = probe.at(Stream.DIRECTIONS, probe.plan.points)
    count = min(x.size, max(1, (queries - probe.queries) // 5 - 8))
    patience = 2 + math.ceil(x.size / count)
    v = at.normals(x.size, dtype=x.dtype)
    v /= np.linalg.norm(v)
    last = np.zeros((0, x.size), x.dtype)
    history: list[float] = []
    while probe.queries + 2 * count + 15 + 2 * count // probe.plan.directions <= queries:
        ascent = _ascent(probe, x, v, batch, count, at._replace(step=len(history) + 1))
        basis, _ = np.linalg.qr(np.concatenate((v[None], ascent[None], last)).T)
        values, vectors = np.linalg.eigh(_projected(probe, x, basis.T, batch))
        top = np.argmax(np.abs(values))
        turn = vectors[:, top].astype(x.dtype)
        v, last = basis @ turn, (basis[:, 1:] @ turn[1:])[None]
        history.append(abs(float(values[top])))
        if len(history) > patience and history[-1] <= 1.0001 * history[-1 - patience]:
            break
    if not history:
        raise InvalidValue("queries", queries, "larger: none are left to measure L with")
    halfway = history[(len(history) - 1) // 2]
    return max(history), max(history) - halfway, count * len(history)


def _ascent(probe: Probe, x: Array, v: Array, batch: Any, count: int, at: Draws) -> Array:
    """Return the sum of u (u^T ∇²F v) over all d axes u, or over fewer random directions.

    The mixed derivatives are one-sided differences, of a few directions at a time: memory
    is that of K vectors.
    """
    total, h = np.zeros_like(x), probe.step
    for chunk, first in enumerate(range(0, count, probe.plan.directions)):
        size = min(probe.plan.directions, count - first)
        if count == x.size:
            rows = np.eye(size, x.size, first, dtype=x.dtype)
        else:
            frame = Frame("sphere", size, x.size, x.dtype)
            frame.draw(at._replace(device=chunk))
            rows = frame.vectors()
        directions = np.concatenate((v[None], v[None], rows, rows + v))
        steps = np.concatenate(([0.0], np.full(2 * size + 1, h)))
        values = probe.values(x, directions, steps, batch).mean(axis=1)
        mixed = (values[2 + size :] - values[2 : 2 + size] - values[1] + values[0]) / h**2
        total += mixed.astype(x.dtype) @ rows
    return total


def _projected(probe: Probe, x: Array, basis: Array, batch: Any) -> Array:
    """Return B ∇²F B^T for orthonormal rows B: e_i + e_j has curvature H_ii + H_jj + 2 H_ij."""
    size = len(basis)
    i, j = np.triu_indices(size, 1)
    directions = np.concatenate((basis, basis[i] + basis[j]))
    curves = probe.differences(x, directions, batch)[2].mean(axis=1)
    matrix = np.diag(curves[:size])
    matrix[i, j] = matrix[j, i] = (curves[size:] - curves[i] - curves[j]) / 2
    return matrix
