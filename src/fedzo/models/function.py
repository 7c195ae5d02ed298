"""Any Python function as a black box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from numpy.typing import ArrayLike

from fedzo.errors import UsageError
from fedzo.models.base import Array, Common, Model


class FunctionModel(Model):
    """A function that takes a batch of inputs and returns a row of scores for each.

    It is given a copy of the batch, so it may work in place. It must be safe to call from
    several threads if it is used with several workers. What it raises is passed on.

    Parameters
    ----------
    fun
        batch -> scores: (n, ...) of the model's input shape to (n, classes).
    outputs
        What the scores are: "logits", "probabilities", "log-probabilities" or "labels".
    **common
        ``input_range``, ``input_shape``, ``max_queries``, ``max_batch`` and ``classes`` of
        :class:`~fedzo.models.Model`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = np.array([[1.0, -1.0], [0.0, 2.0]])
    >>> model = FunctionModel(lambda batch: batch @ weights, input_shape=(2,))
    >>> model([[1.0, 0.0], [0.5, 0.5]])
    array([[ 1. , -1. ],
           [ 0.5,  0.5]])
    """

    def __init__(
        self,
        fun: Callable[[Array], ArrayLike],
        outputs: str = "logits",
        **common: Unpack[Common],
    ) -> None:
        if not callable(fun):
            raise UsageError(f"{fun!r} is not a function of a batch of inputs")
        super().__init__(getattr(fun, "__name__", type(fun).__name__), outputs, **common)
        self.fun = fun

    def _scores(self, batch: Array) -> ArrayLike:
        return self.fun(batch.copy())
