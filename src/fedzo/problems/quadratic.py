r"""A random quadratic with known constants, to check theory against.

.. math:: F_i(x, \xi) = \tfrac12 (x - c_i)^T A (x - c_i) + \xi^T x,
          \qquad \xi \sim N(0, \tfrac{\sigma_g^2}{d} I)

All devices share the Hessian A and differ in their centres c_i, so every constant of the
paper's assumptions is known, not bounded:

* L is the largest eigenvalue of A (Assumption 2);
* :math:`E\|\nabla F_i\|^2 = \|\nabla f_i\|^2 + \sigma_g^2`, so c_g = 1 (Assumption 3);
* :math:`\nabla f_i - \nabla f = A (\bar c - c_i)`, so c_h = 0 and
  :math:`\sigma_h^2 = \max_i \|A (\bar c - c_i)\|^2` (Assumption 4);
* the minimum is at the mean centre, and f* is what the centres' spread leaves (Assumption 1).
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.errors import check_count, check_memory, check_not_negative, require


class Batch(NamedTuple):
    """A device and its realisations of the gradient noise."""

    device: int
    noise: Array  # (b1, d), each row a ξ


class Quadratic(Objective):
    """Random quadratic functions f_i with one Hessian.

    Parameters
    ----------
    dim, devices : int
        d and N.
    smoothness : float
        L, the largest eigenvalue of A.
    condition : float
        L over the smallest eigenvalue; the eigenvalues are spaced evenly on a log scale,
        and A is not diagonal.
    gradient_noise : float
        σ_g.
    dissimilarity : float
        σ_h, exactly: the centres are scaled to it. 0 makes all devices the same.
    seed : int
        Where the centres and A's eigenvectors come from.

    Examples
    --------
    >>> problem = Quadratic(dim=10, devices=4, smoothness=2.0, dissimilarity=0.5)
    >>> gap = problem.losses(problem.optimum, np.arange(4)).mean() - problem.minimum
    >>> bool(abs(gap) < 1e-12)
    True
    """

    exact = True

    def __init__(
        self,
        dim: int = 100,
        devices: int = 10,
        smoothness: float = 1.0,
        condition: float = 10.0,
        gradient_noise: float = 1.0,
        dissimilarity: float = 1.0,
        seed: int = 0,
    ) -> None:
        check_count("dim", dim)
        check_count("devices", devices)
        value, key = max((dim, "dim"), (devices, "devices"))
        check_memory(key, value, 8 * dim * (devices + 4))
        require(0 < smoothness < np.inf, "smoothness", smoothness, "a number > 0")
        require(1 <= condition < np.inf, "condition", condition, "a number >= 1")
        check_not_negative("gradient_noise", gradient_noise)
        check_not_negative("dissimilarity", dissimilarity)
        allowed = "0 when there is one device: it cannot differ from itself"
        require(devices > 1 or dissimilarity == 0, "dissimilarity", dissimilarity, allowed)
        self.dim, self.devices = dim, devices
        self.smoothness, self.gradient_noise = float(smoothness), float(gradient_noise)
        self.dissimilarity = float(dissimilarity)
        self._eigenvalues = smoothness * np.logspace(0, -1, dim, base=condition)
        draws = Draws(seed, Stream.PROBLEM)
        mirror = draws.normals(dim)
        self._mirror = mirror / np.linalg.norm(mirror)
        self.optimum = draws._replace(step=1).normals(dim)
        centres = draws._replace(step=2).normals(devices, dim)
        centres -= centres.mean(axis=0)
        if dissimilarity > 0:
            centres *= dissimilarity / np.linalg.norm(self.hessian(centres), axis=1).max()
        else:
            centres[:] = 0
        self._centres = self.optimum + centres
        self.minimum = float(np.mean(0.5 * np.sum(centres * self.hessian(centres), axis=1)))

    def hessian(self, vectors: Array) -> Array:
        """Return A v for each row v: A = Q Λ Q with Q the reflection I - 2 u u^T."""
        return self._reflect(self._eigenvalues * self._reflect(vectors))

    def _reflect(self, vectors: Array) -> Array:
        return np.asarray(vectors - 2 * np.multiply.outer(vectors @ self._mirror, self._mirror))

    def size(self, device: int) -> int:
        """Return 1: each device's distribution counts alike."""
        return 1

    def batch(self, device: int, size: int, draws: Draws) -> Batch:
        """Return independent gradient noise ξ ~ N(0, σ_g²/d I)."""
        return Batch(device, self.gradient_noise / self.dim**0.5 * draws.normals(size, self.dim))

    def records(self, batch: Batch) -> list[int]:
        """Return the device for each ξ: the device is one record."""
        return [batch.device] * len(batch.noise)

    def values(self, points: Array, batch: Batch) -> Array:
        """Return F_i(x_k, ξ_m), (k, d) -> (k, b)."""
        means = self._mean_values(points, batch.device)
        return np.asarray(means[:, None] + points @ batch.noise.T)

    def gradient(self, x: Array, batch: Batch) -> Array:
        """Return the mean gradient over a batch, (d,)."""
        return np.asarray(self.hessian(x - self._centres[batch.device]) + batch.noise.mean(axis=0))

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x): the noise has mean zero."""
        return np.array([self._mean_values(x[None], int(i))[0] for i in devices])

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return f(x) - f* and the squared gradient norm, what the theorems bound."""
        away = x - self.optimum
        slope = self.hessian(away)
        return {
            "optimality_gap": float(0.5 * away @ slope),
            "gradient_norm_squared": float(slope @ slope),
        }

    def constants(self) -> Mapping[str, float]:
        """Return what the paper's assumptions say of this problem, all of it known exactly."""
        return {
            "L": self.smoothness,
            "gap": self.metrics(self.initial())["optimality_gap"],
            "sigma_g": self.gradient_noise,
            "sigma_h": self.dissimilarity,
            "c_g": 1.0,
            "c_h": 0.0,
        }

    def _mean_values(self, points: Array, device: int) -> Array:
        away = points - self._centres[device]
        return np.asarray(0.5 * np.sum(away * self.hessian(away), axis=1))
