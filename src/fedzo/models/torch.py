"""A PyTorch module, on any device."""

from typing import Any, Unpack

from numpy.typing import ArrayLike

from fedzo.core.types import Array
from fedzo.errors import InvalidValue, MissingExtra, UsageError, first_line
from fedzo.models.base import NETWORK_NUMBERS, Common, Model


def import_torch() -> Any:
    """Return torch, or raise an error that names the extra."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("PyTorch models need torch", "torch") from None
    return torch


def on_device(module: Any, device: Any) -> Any:
    """Return a module, moved to a device unless that is None."""
    if not isinstance(module, import_torch().nn.Module):
        kind = type(module).__name__
        raise UsageError(f"{kind} is not a torch.nn.Module", code="not-a-module")
    try:
        return module if device is None else module.to(device)
    except Exception as error:
        allowed = f"a device of this machine: {first_line(error)}"
        raise InvalidValue("device", device, allowed) from error


class TorchModel(Model):
    """A ``torch.nn.Module`` in evaluation mode, without gradients.

    The module is not copied. Each call sets it to evaluation mode, because in training mode its
    answers could be random, and queries could change its statistics. To continue training, call
    ``module.train()``, as after any evaluation.

    The number of CPU threads is a setting of the whole process, which is not changed. With several
    workers, ``torch.set_num_threads(1)`` prevents them from waiting for each other.

    Parameters
    ----------
    module
        Takes a batch along the first axis and returns one row of scores per input.
    outputs
        The kind of scores: "logits", "probabilities", "log-probabilities" or "labels".
    device
        The device to move the module to, such as "cpu" or "cuda:1"; None: do not move it.
    **common
        ``input_range``, ``input_shape``, ``max_queries``, ``max_batch``, ``classes``, ``mean`` and
        ``std`` of :class:`~fedzo.models.Model`.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(2, 3, bias=False)
    >>> _ = torch.nn.init.ones_(layer.weight)
    >>> model = TorchModel(layer, input_shape=(2,))
    >>> model([[0.25, 0.5]])
    array([[0.75, 0.75, 0.75]], dtype=float32)
    """

    _most_numbers = NETWORK_NUMBERS

    def __init__(
        self,
        module: Any,
        outputs: str = "logits",
        *,
        device: str | None = None,
        **common: Unpack[Common],
    ) -> None:
        self.module, torch = on_device(module, device), import_torch()
        super().__init__(type(module).__name__, outputs, **common)
        tensors = [*module.parameters(), *module.buffers()]
        floats = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        self._dtype = floats[0] if floats else torch.get_default_dtype()
        self._device = tensors[0].device if tensors else torch.device(device or "cpu")

    def _scores(self, batch: Array) -> ArrayLike:
        import torch

        if self.module.training:
            self.module.eval()
        with torch.inference_mode():
            # A copy, since the module may work in place.
            tensor = torch.tensor(batch, dtype=self._dtype, device=self._device)
            try:
                scores = self.module(tensor)
            except RuntimeError as error:  # the batch does not fit the module's layers
                raise self._error(first_line(error), "run-failed") from error
            if not isinstance(scores, torch.Tensor):
                raise self._error(f"answered a {type(scores).__name__}, not a tensor", "dtype")
            if scores.dtype == torch.bfloat16:  # not a type of NumPy
                scores = scores.float()
            return scores.cpu().numpy()  # type: ignore[no-any-return]
