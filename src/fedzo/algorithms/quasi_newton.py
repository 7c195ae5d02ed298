"""L-BFGS at the server, from differences that the devices measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedzo.algorithms.account import Account
from fedzo.algorithms.descent import Descent, curvature, typical_scale
from fedzo.algorithms.questions import Asking
from fedzo.algorithms.searching import Search
from fedzo.errors import check_counts

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class LBFGS(Search):
    r"""L-BFGS at the server, from differences that the devices share out among them.

    .. math:: x^{k+1} = x^k - \alpha_k H_k g^k

    as :mod:`fedzo.algorithms.descent` describes it. For smooth functions of up to a few
    thousand numbers, whose noise is small; it ends where no step improves on x any more.

    Parameters
    ----------
    memory : int
        How many pairs (s, y) make H_k.
    batch_size, participants, weighting
        See :class:`~fedzo.algorithms.searching.Search`.

    References
    ----------
    J. Nocedal, "Updating quasi-Newton matrices with limited storage", Mathematics of Computation
    35, 1980. A. S. Berahas, R. H. Byrd and J. Nocedal, "Derivative-Free Optimization of Noisy
    Functions via Quasi-Newton Methods", SIAM Journal on Optimization 29, 2019. H.-J. M. Shi,
    Y. Xie, R. Byrd and J. Nocedal, "A Noise-Tolerant Quasi-Newton Algorithm for Unconstrained
    Optimization", SIAM Journal on Optimization 32, 2022.

    Examples
    --------
    >>> import fedzo
    >>> import numpy as np
    >>> from fedzo.algorithms.quasi_newton import LBFGS
    >>> def valley(x, device):
    ...     return 100 * (x[1] - x[0] ** 2) ** 2 + (1 + 0.1 * device - x[0]) ** 2
    >>> result = fedzo.minimize(valley, np.zeros(2), devices=3, algorithm=LBFGS(), rounds=300)
    >>> result.x.round(3)  # the mean of 1, 1.1 and 1.2, and its square
    array([1.1 , 1.21])
    """

    settles: ClassVar[bool] = True

    memory: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "memory")

    def search(self, account: Account, scale: Array | None) -> Asking:
        """Descend until nothing improves."""
        scale = typical_scale(account.x, scale)
        yield from account.start()
        curved = yield from curvature(account, scale)
        if curved is None:
            return "no slope stands out of the noise"
        descent = Descent(account, scale, curved.second, self.memory)
        x0, f0 = account.x, account.fun
        yield from descent.run()
        if account.noise:
            account.x, account.fun = (descent.x, descent.fun) if descent.fun < f0 else (x0, f0)
        return "no step improves on x any more"
