"""Train a torch module from its losses alone, on the data of several devices."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedzo.core.capabilities import Best
from fedzo.core.files import writing
from fedzo.core.importing import call_user
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum, Offset
from fedzo.core.updates_torch import tensor_of
from fedzo.errors import (
    FedzoWarning,
    UsageError,
    check_count,
    require,
)
from fedzo.models.torch import import_torch, on_device
from fedzo.problems.network_inputs import NamedBatch, map_tree, pieces_of, samples_of_devices
from fedzo.problems.network_points import ModulePoints, ThreadChoice, why_not_in_place

Module = Any  # torch.nn.Module: torch is imported where it is used
Tensor = Any
Loss = Callable[[Module, Any], Tensor]

LARGE = 1 << 20  # from so many numbers on, x is the memory of the module if it can be


class TorchProblem(Objective):
    """A torch module's parameters as x, and the mean loss over each device's samples as f_i.

    A run trains the given module, which ends with the best evaluated parameters. The module is put
    into evaluation mode and runs without gradients: dropout is off, batch norm uses its running
    statistics, and buffers do not change. If the module draws random numbers from torch, they are
    the same at all points of an estimate: a function of the batch. x is float32, or float64 if all
    parameters are. The parameters may have any precision and lie on any torch device.

    Directions are never held. A point is written into the module in one pass, as its numbers are
    drawn (:mod:`fedzo.core.updates`), so memory does not grow with b2, M or N. Besides the module
    there are a few vectors of the size of the trainable parameters.

    Parameters
    ----------
    module : torch.nn.Module
        The module to train.
    loss : callable
        ``loss(module, batch)`` returns the loss of each sample of a batch, a tensor of shape (b,).
    data : sequence
        The data of each device, one entry per device: a tuple or a dictionary of tensors with one
        sample per row, such as a ``BatchEncoding`` of Hugging Face; a torch data set or another
        sequence of samples; or a loader, of which the data set and ``collate_fn`` are used. NumPy
        arrays are accepted as tensors. Batches are moved to the module's device.
    trainable : str or sequence of str, optional
        Names of parameters or layers, patterns such as ``"*.bias"``, or a group: ``all``,
        ``norms``, ``biases``, ``head`` (:func:`fedzo.problems.network_inputs.chosen`). By default
        the parameters that require a gradient, as torch and peft mark them.
    metrics : callable, optional
        ``metrics(module)`` returns further numbers for the history, such as a test accuracy.
    evaluation_batch : int
        The number of samples per batch of an evaluation.
    in_place : bool, optional
        Whether x is the memory of the module itself, so that no second copy is held. By default so
        for a million numbers or more, where it is possible: all parameters must be on one device.
        x of a half-precision module is a float32 copy. A layer is perturbed in separate memory
        while it runs, a compiled module as a whole, so devices never change the module. Peak
        memory is that of inference, of the parameters of the largest layer, and of the server
        optimizer: nothing for the mean and for normalised steps, two float32 moments for Adam. The
        best parameters are kept in a temporary file. A local step k > 1 draws the k - 1 steps
        before it again, so H = 1 is the fastest. Over-the-air uplinks build vectors of the size of
        x.
    device : str or torch.device, optional
        Move the module there first, such as to ``"cuda"``.

    Examples
    --------
    >>> import fedzo, torch
    >>> _ = torch.manual_seed(0)
    >>> inputs = torch.randn(200, 3)
    >>> targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5]])
    >>> data = [(inputs[:100], targets[:100]), (inputs[100:], targets[100:])]
    >>> def squared_error(module, batch):
    ...     return (module(batch[0]) - batch[1]).square().sum(1)
    >>> module = torch.nn.Linear(3, 1)
    >>> problem = TorchProblem(module, squared_error, data)
    >>> algorithm = fedzo.FedZO(learning_rate=0.05, directions=4)
    >>> result = fedzo.minimize(problem, algorithm=algorithm, uplink=fedzo.Seeds(), rounds=60)
    >>> [round(weight, 1) for weight in module.weight[0].tolist()]
    [1.0, -2.0, 0.5]
    """

    own_threads = True
    exact = True

    def __init__(
        self,
        module: Module,
        loss: Loss,
        data: Sequence[Any],
        trainable: str | Sequence[str] | None = None,
        *,
        metrics: Callable[[Module], Mapping[str, float]] | None = None,
        evaluation_batch: int = 64,
        in_place: bool | None = None,
        device: Any = None,
    ) -> None:
        self.module, torch = on_device(module, device), import_torch()
        require(callable(loss), "loss", loss, "a function of the module and a batch")
        check_count("evaluation_batch", evaluation_batch)
        self.loss, self._own_metrics = loss, metrics
        self.pieces = pieces_of(module, trainable)
        self.data = samples_of_devices(data)
        self.dim, self.devices = self.pieces[-1].stop, len(self.data)
        self.evaluation_batch = evaluation_batch
        double = all(piece.tensor.dtype == torch.float64 for piece in self.pieces)
        self.dtype = np.dtype(np.float64 if double else np.float32)
        self._evaluate: Callable[..., Any] = self._first_time
        self._random = True  # until the first run
        self._changes_batch = True  # so too
        self._threads = ThreadChoice()
        if in_place is None:
            in_place = self.dim >= LARGE and not why_not_in_place(self.pieces)
        self.in_place = in_place
        self._points = ModulePoints(module, self.pieces, self.dtype, in_place)

    def initial(self) -> Array:
        """Return the parameters of the module: a copy, or its memory if ``in_place``."""
        return self._points.initial()

    def size(self, device: int) -> int:
        """Return the number of samples of a device."""
        return len(self.data[device])

    def batch(self, device: int, size: int, draws: Draws) -> NamedBatch:
        """Return samples of a device, drawn independently (with replacement)."""
        return self.take(device, draws.integers(self.size(device), size))

    def take(self, device: int, which: Array) -> NamedBatch:
        """Return the samples of a device with these indices, and their names."""
        where = next(self.module.parameters()).device
        return NamedBatch(self.data[device].batch(which, where), [(device, int(i)) for i in which])

    def contents(self, device: int) -> Iterable[bytes] | None:
        """Return the bytes of each sample of tensors; None for a data set, which may vary."""
        return self.data[device].contents()

    def records(self, batch: NamedBatch) -> Sequence[tuple[int, int]]:
        """Return the device and the index of each sample of a batch."""
        return batch.names

    def values(self, points: Array, batch: NamedBatch) -> Array:
        """Return the loss of each sample at each point."""
        return np.concatenate([self._points.values(self._losses, batch, x) for x in points])

    def values_streamed(
        self, x: Array, walked: Offset, steps: Sequence[Offset], batch: NamedBatch
    ) -> Array:
        """Return the loss of each sample at x + walked + steps[k], shape (k, b)."""
        self.place(x)
        addresses = [at for step in steps if isinstance(step, DirectionSum) for at in step.draws]
        rounding = (addresses or [Draws(0, Stream.NOISE)])[0].on(Stream.NOISE)
        return self._points.values(self._losses, batch, x, walked, steps, rounding)

    def gradient(self, x: Array, batch: NamedBatch) -> Array:
        """Return the mean gradient over a batch by autograd, in evaluation mode, shape (d,)."""
        torch, tensors = import_torch(), [piece.tensor for piece in self.pieces]
        own, found = [tensor.requires_grad for tensor in tensors], np.zeros_like(x)
        self.module.eval()
        try:
            for tensor in tensors:
                tensor.requires_grad_(True)
            with self._points.at(x, whole=True), torch.enable_grad():
                loss = self._checked(batch).mean()
                if not loss.requires_grad:
                    words = "the loss has no gradient; use FedZO, which needs only its values"
                    raise UsageError(f"loss: {words}", code="no-gradient")
                parts = torch.autograd.grad(loss, tensors, allow_unused=True)
        finally:
            for tensor, wanted in zip(tensors, own, strict=True):
                tensor.requires_grad_(wanted)
        for (_, _, start, stop), part in zip(self.pieces, parts, strict=True):
            if part is not None:
                tensor_of(found)[start:stop] = part.reshape(-1)
        return found

    def losses(self, x: Array, devices: Array) -> Array:
        """Return the mean loss over all samples of each device."""
        self.place(x)
        return np.array([self._mean_loss(x, int(device)) for device in devices])

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return ``metrics(module)`` of the caller, with these parameters."""
        if self._own_metrics is None:
            return {}
        self.place(x)
        with import_torch().inference_mode(), self._points.at(x):
            return call_user(self._own_metrics, self.module)

    def snapshot(self, x: Array) -> Array:
        """Return a copy of x, in a temporary file, if x is the memory of the module."""
        return self._points.snapshot(x)

    def to_user(self, x: Array) -> Array:
        """Return a copy of x, or x itself if it is the memory of the module or a file."""
        return self._points.to_user(x)

    def load_best(self, best: Best) -> None:
        """Load the best parameters into the module."""
        self.place(best.x)

    def close(self) -> None:
        """Leave no perturbed parameters and no hooks in the module, whatever ended the run."""
        self._points.release()

    def write_files(self, folder: Path, best: Best) -> None:
        """Write the whole module, with the best parameters, to ``model.safetensors``."""
        try:
            from safetensors.torch import save_model
        except ImportError:
            return  # model.npy has the trained parameters
        self.place(best.x)
        with writing(folder / "model.safetensors") as file:
            save_model(self.module, file.name)

    def state_dict(self, x: Array) -> dict[str, Tensor]:
        """Return the state of the module with the parameters x."""
        self.place(x)
        state: dict[str, Tensor] = self.module.state_dict()
        return state

    # -------------------------------------------------------------------------------- the module

    def place(self, x: Array) -> None:
        """Write parameters into the module."""
        self._points.place(x)

    def _losses(self, batch: NamedBatch) -> NDArray[np.float64]:
        """Return the loss of each sample with the present parameters of the module."""
        if self.module.training:
            self.module.eval()

        def losses() -> NDArray[np.float64]:
            return self._checked(batch).double().cpu().numpy()  # type: ignore[no-any-return]

        with import_torch().inference_mode():
            return self._threads.run(len(batch.names), losses)

    def _checked(self, batch: NamedBatch) -> Tensor:
        """Return the loss of each sample, a tensor of shape (b,)."""
        torch, device = import_torch(), next(self.module.parameters()).device
        others, samples = [device] if device.type != "cpu" else [], len(batch.names)
        with torch.random.fork_rng(others, enabled=self._random, device_type=device.type):
            if self._random:  # all points of an estimate have the same random numbers
                torch.manual_seed(crc32(np.array(batch.names).tobytes()))
            before = self._random and torch.get_rng_state()
            copies: list[tuple[Tensor, Tensor]] = []

            def give(one: Any) -> Any:
                if not (self._changes_batch and isinstance(one, torch.Tensor)):
                    return one
                copies.append((one, one.clone()))
                return copies[-1][1]

            # A loss may change its batch, but all points of an estimate need the same.
            content = map_tree(give, batch.content)
            losses = self._evaluate(self.loss, self.module, content)
            self._changes_batch = not all(torch.equal(*pair) for pair in copies)
            if self._random and not others:
                self._random = not torch.equal(before, torch.get_rng_state())
        found = f"a {type(losses).__name__}"
        if isinstance(losses, torch.Tensor):
            if losses.shape == (samples,) and not losses.is_complex():
                return losses
            found = f"{losses.dtype} of shape {tuple(losses.shape)}"
        right = f"a tensor of one real loss for each sample of a batch, ({samples},)"
        message = f"loss returned {found}, not {right}; torch's losses need reduction='none'"
        raise UsageError(message, code="loss-shape")

    def _first_time(self, loss: Loss, module: Module, content: Any) -> Tensor:
        """Return the loss; raise if it lets a layer run in training mode."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        module.eval()  # also a new layer of a module that is in evaluation mode already
        own, graph = set(module.modules()), import_torch().fx.GraphModule

        def check(layer: Module, _: Any) -> None:
            compiled = isinstance(layer, graph) and layer not in own  # torch.compile's own layer
            if layer.training and not compiled:  # raise before the layer changes anything
                wrong = "loss runs the module in training mode, where dropout and batch norm vary"
                raise UsageError(f"{wrong}; remove train() from it", code="training-mode")

        before = [(name, b, b._version) for name, b in module.named_buffers()]
        hook = register_module_forward_pre_hook(check)
        try:
            with warnings.catch_warnings():  # of torch.compile, about the hook
                warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)
                losses = call_user(loss, module, content, direct=False)
        finally:
            hook.remove()
            module.eval()
        if changed := [name for name, buffer, version in before if buffer._version != version]:
            message = f"the module changes its buffer {changed[0]} while it runs: losses may vary"
            warnings.warn(message, FedzoWarning, stacklevel=2)
        self._evaluate = call_user
        return losses

    def _mean_loss(self, x: Array, device: int) -> float:
        total, count = 0.0, self.size(device)
        for first in range(0, count, self.evaluation_batch):
            some = np.arange(first, min(first + self.evaluation_batch, count))
            batch = self.take(device, some)
            total += float(self._points.values(self._losses, batch, x).sum())
        return total / count
