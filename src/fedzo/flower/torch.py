"""A ClientApp for a torch module, in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp

from fedzo.core.objective import Objective
from fedzo.errors import UsageError
from fedzo.flower.client import held_devices, make_client_app
from fedzo.problems.network import Loss, TorchProblem


def torch_client(
    module: Callable[[], Any],
    loss: Loss,
    data: Callable[[int, int], Any],
    trainable: str | Sequence[str] | None = None,
    *,
    devices: int | None = None,
    metrics: Callable[[Any], Mapping[str, float]] | None = None,
    evaluation_batch: int = 64,
) -> ClientApp:
    """Return the ClientApp of nodes that train a torch module from its losses alone.

    Parameters
    ----------
    module : callable
        Returns the module, such as its class. With :class:`~fedzo.flower.FedzoStrategy` its
        parameters are the server's; where it always returns the same ones, as pretrained weights
        are, they are not even sent.
    loss : callable
        ``loss(module, batch)`` returns the loss of each sample of a batch.
    data : callable
        ``data(device, devices)`` returns what a device holds: tensors, a data set or a loader, as
        :class:`~fedzo.TorchProblem` takes them. It is asked for the devices of this node only.
    trainable : str or sequence of str, optional
        Names or patterns of the parameters to be trained; by default those that require a gradient.
    devices : int, optional
        N; Flower's ``num-partitions`` by default, one device a node.
    metrics : callable, optional
        ``metrics(module)`` returns further numbers for the history.
    evaluation_batch : int
        How many samples are evaluated at a time.

    Examples
    --------
    >>> import torch
    >>> from fedzo import FedZO, Seeds
    >>> from fedzo.flower import FedzoStrategy, InProcessGrid, torch_client
    >>> def line(device, devices):
    ...     inputs = torch.linspace(-1, 1, 40)[device::devices, None]
    ...     return inputs, 2 * inputs + 1
    >>> def squared_error(module, batch):
    ...     return (module(batch[0]) - batch[1]).square().sum(1)
    >>> app = torch_client(lambda: torch.nn.Linear(1, 1), squared_error, line)
    >>> grid = InProcessGrid(app, nodes=3)
    >>> strategy = FedzoStrategy(FedZO(learning_rate=0.1, directions=4), Seeds())
    >>> result = strategy.start(grid, num_rounds=15)
    >>> [round(float(number)) for number in result.arrays["x"].numpy()]
    [2, 1]
    """

    @lru_cache(maxsize=1)
    def made(own: tuple[int, ...], count: int) -> TorchProblem:
        samples = {device: data(device, count) for device in own}
        stand_in = samples[own[0]]  # for the devices of other nodes, which nobody asks about here
        return TorchProblem(
            module(),
            loss,
            [samples.get(device, stand_in) for device in range(count)],
            trainable,
            metrics=metrics,
            evaluation_batch=evaluation_batch,
        )

    def problem(context: Context) -> Objective:
        count = devices or context.node_config.get("num-partitions")
        if not isinstance(count, int):
            raise UsageError("torch_client needs devices, or nodes with num-partitions")
        return made(tuple(held_devices(context.node_config, count)), count)

    return make_client_app(problem)
