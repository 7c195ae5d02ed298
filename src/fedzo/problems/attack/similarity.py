"""How alike two images look: the structural similarity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def ssim(before: Array, after: Array) -> Array:
    r"""Return the mean structural similarity of pairs of images in [0, 1], (n,); 1: the same.

    .. math:: \frac{(2\mu_x\mu_y + c_1)(2\sigma_{xy} + c_2)}
              {(\mu_x^2 + \mu_y^2 + c_1)(\sigma_x^2 + \sigma_y^2 + c_2)}

    with means, variances and the covariance under a Gaussian window of σ = 1.5 pixels (11 x 11),
    c₁ = 0.01² and c₂ = 0.03², as its authors have it (Z. Wang, A. Bovik, H. Sheikh and
    E. Simoncelli, "Image Quality Assessment: From Error Visibility to Structural Similarity",
    2004); the mean is over pixels and colours.

    Parameters
    ----------
    before, after
        (n, h, w), or with colours: (n, 3, h, w) or (n, h, w, 3).

    Examples
    --------
    Of flat images only the first factor is left:

    >>> flat = np.full((1, 16, 16), 0.5)
    >>> ssim(flat, flat), ssim(flat, flat / 2).round(4)  # (2 / 8 + 1e-4) / (1 / 4 + 1 / 16 + 1e-4)
    (array([1.]), array([0.8001]))
    """
    from scipy.ndimage import gaussian_filter1d

    x, y = (_planes(images).astype(np.float64) for images in (before, after))

    def windowed(images: Array) -> Array:
        for axis in (-2, -1):
            images = gaussian_filter1d(images, 1.5, axis=axis, truncate=5 / 1.5)
        return images

    mean_x, mean_y = windowed(x), windowed(y)
    variances = windowed(x * x) - mean_x**2 + windowed(y * y) - mean_y**2
    covariance = windowed(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    alike = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    alike /= (mean_x**2 + mean_y**2 + c1) * (variances + c2)
    return np.asarray(alike.reshape(len(alike), -1).mean(axis=1))


def _planes(images: Array) -> Array:
    """Return images with their colours, if any, before height and width."""
    last = images.ndim == 4 and images.shape[1] not in (1, 3)
    return np.moveaxis(images, -1, 1) if last else images
