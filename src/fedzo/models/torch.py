"""A PyTorch module as a black box, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

from numpy.typing import ArrayLike

from fedzo.errors import InvalidValue, MissingExtra, UsageError, first_line, require
from fedzo.models.base import Array, Common, Model


class TorchModel(Model):
    """A ``torch.nn.Module`` in evaluation mode, without gradients.

    The module is the caller's own, not a copy. Each call finds it in evaluation mode or puts
    it there, since a module in training mode would answer at random and learn from the
    queries; whoever goes on training it calls ``module.train()``, as after any evaluation.

    The number of threads of an operation on the CPU is a setting of the whole process, which
    is left alone. With several workers, ``torch.set_num_threads(1)`` keeps them from waiting
    for each other.

    Parameters
    ----------
    module
        Takes a batch along the first axis and returns a row of scores for each input.
    outputs
        What the scores are: "logits", "probabilities", "log-probabilities" or "labels".
    device
        Where to move the module, such as "cpu" or "cuda:1"; None: it stays where it is.
    mean, std
        What the module wants inputs to be normalised by, (z - mean) / std: a number for each
        channel, the first axis of an input. None: it takes inputs as they are.
    **common
        ``input_range``, ``input_shape``, ``max_queries``, ``max_batch`` and ``classes`` of
        :class:`~fedzo.models.Model`.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(2, 3, bias=False)
    >>> _ = torch.nn.init.ones_(layer.weight)
    >>> model = TorchModel(layer, input_shape=(2,))
    >>> model([[0.25, 0.5]])
    array([[0.75, 0.75, 0.75]], dtype=float32)
    """

    def __init__(
        self,
        module: Any,
        outputs: str = "logits",
        *,
        device: str | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        **common: Unpack[Common],
    ) -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtra("PyTorch models need torch", "torch") from None
        if not isinstance(module, torch.nn.Module):
            raise UsageError(f"{type(module).__name__} is not a torch.nn.Module")
        super().__init__(type(module).__name__, outputs, **common)
        self.module = module
        if device is not None:
            try:
                module.to(device)
            except (RuntimeError, AssertionError) as error:
                allowed = f"a device of this machine: {first_line(error)}"
                raise InvalidValue("device", device, allowed) from None
        both = (mean is None) == (std is None)
        require(both, "std", std, "given where mean is, and only there")
        self._moments = None if mean is None or std is None else _moments(mean, std)
        tensors = [*module.parameters(), *module.buffers()]
        floats = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        self._dtype = floats[0] if floats else torch.get_default_dtype()
        self._device = tensors[0].device if tensors else torch.device(device or "cpu")

    def _scores(self, batch: Array) -> ArrayLike:
        import torch

        if self.module.training:
            self.module.eval()
        with torch.inference_mode():
            # A copy, which costs little beside the module: it may work in place.
            tensor = torch.tensor(batch, dtype=self._dtype, device=self._device)
            if self._moments is not None:
                tensor = self._normalised(tensor)
            try:
                scores = self.module(tensor)
            except RuntimeError as error:  # the batch does not fit the module's layers
                raise self._error(first_line(error)) from error
            if not isinstance(scores, torch.Tensor):
                raise self._error(f"answered a {type(scores).__name__}, not a tensor")
            if scores.dtype == torch.bfloat16:  # NumPy has no such type
                scores = scores.float()
            return scores.cpu().numpy()  # type: ignore[no-any-return]

    def _normalised(self, batch: Any) -> Any:
        """Return (z - mean) / std of each channel."""
        import torch

        assert self._moments is not None
        channels, given = len(self._moments[0]), tuple(batch.shape[1:])
        if given[0] != channels:
            raise self._error(f"mean has {channels} numbers, but inputs are of shape {given}")
        apart = (-1, *[1] * (len(given) - 1))
        mean, std = (
            torch.tensor(part, dtype=self._dtype, device=self._device).reshape(apart)
            for part in self._moments
        )
        return (batch - mean) / std


def _moments(mean: Sequence[float], std: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return numbers for each channel, or refuse them."""
    parts = []
    for key, given in (("mean", mean), ("std", std)):
        part = [given] if isinstance(given, int | float) else list(given)
        fits = len(part) > 0 and all(isinstance(p, int | float) and math.isfinite(p) for p in part)
        require(fits, key, given, "finite numbers, one for each channel")
        parts.append([float(p) for p in part])
    require(len(parts[0]) == len(parts[1]), "std", std, f"{len(parts[0])} numbers, as mean has")
    require(min(parts[1]) > 0, "std", std, "numbers above 0")
    return parts[0], parts[1]
