r"""Perturbations within a budget ε: an optimiser's x to a δ in the ball, and δ in grey levels.

ε and δ are in units of the input's range, as the field counts: 8/255 is eight grey levels of an
8-bit image. The maps are onto the open ball, whatever x is, and about as steep in both norms:

.. math:: \delta = \varepsilon \tanh x \quad (L_\infty), \qquad
          \delta = \varepsilon\, \frac{u}{\sqrt{1 + \lVert u \rVert^2}}, \quad
          u = x / \sqrt d \quad (L_2).

An x whose numbers are about one is well on its way to the ball's surface. Of images this is x in
pixels; an attack's own x has their waves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.waves import is_image
from fedzo.errors import InvalidValue, nearest, one_of, require

Array = NDArray[Any]

NORMS = ("inf", "l2")
LEVELS = 255  # steps of an 8-bit image


def check_ball(eps: object, norm: object, shape: tuple[int, ...]) -> None:
    """Raise unless there is such a ball, with a grey level inside where inputs are images.

    >>> check_ball(8, "inf", (3, 32, 32))
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: eps = 8: must be a number in (0, 1], in units of the input's range,
    such as 8/255
    """
    if norm not in NORMS:
        raise InvalidValue("norm", norm, one_of(NORMS) + nearest(str(norm), NORMS))
    number = isinstance(eps, int | float | np.number) and not isinstance(eps, bool)
    most, bounds = (1.0, "in (0, 1]") if norm == "inf" else (math.inf, "above 0")
    fits = number and 0 < float(eps) <= most and math.isfinite(float(eps))  # type: ignore[arg-type]
    require(fits, "eps", eps, f"a number {bounds}, in units of the input's range, such as 8/255")
    if is_image(shape):
        level = float(eps) * LEVELS >= 1 - 1e-6  # type: ignore[arg-type]
        require(level, "eps", eps, "1/255 at least, one grey level, for images")


def inside(points: Array, eps: float, norm: str) -> Array:
    """Return the δ of each point x, (k, d) -> (k, d) float32, in the ball by construction.

    >>> inside(np.array([[0.0, 100.0]]), 0.25, "inf")
    array([[0.  , 0.25]], dtype=float32)
    >>> inside(np.array([[3.0, 4.0]]) * np.sqrt(2), 1.0, "l2").round(3)  # 5 / sqrt(1 + 5²) long
    array([[0.588, 0.784]], dtype=float32)
    """
    if norm == "inf":
        delta = np.tanh(points.astype(np.float32, copy=False))
        delta *= np.float32(eps)
        return delta
    u = points.astype(np.float64) / math.sqrt(points.shape[1])
    lengths = np.sqrt(1 + np.square(u).sum(axis=1, keepdims=True))
    return np.asarray(eps * u / lengths, np.float32)


def projected(delta: Array, eps: float, norm: str) -> Array:
    """Return the point of the ball that is nearest to δ.

    >>> projected(np.array([0.3, -0.04]), 0.1, "inf"), projected(np.array([3.0, -4.0]), 1.0, "l2")
    (array([ 0.1 , -0.04]), array([ 0.6, -0.8]))
    """
    if norm == "inf":
        return delta.clip(-eps, eps)
    return delta * min(1.0, eps / max(float(np.linalg.norm(delta)), 1e-300))


def in_levels(delta: Array, eps: float, norm: str) -> Array:
    """Return δ in whole grey levels (float32), in the ball still.

    Rounding may lead out of it: then the levels are cut off (L∞), or δ is made shorter (L2).

    >>> in_levels(np.array([0.0301, -0.03, 0.001]), 7.6 / 255, "inf")
    array([ 7., -7.,  0.], dtype=float32)
    """
    levels = delta.astype(np.float64) * LEVELS
    radius = eps * LEVELS + 1e-6  # 8/255 is not a number of the machine
    if norm == "inf":
        return np.rint(levels).clip(-math.floor(radius), math.floor(radius)).astype(np.float32)
    while (length := float(np.linalg.norm(np.rint(levels)))) > radius:
        levels *= min(radius / length, 0.999)
    return np.rint(levels).astype(np.float32)
