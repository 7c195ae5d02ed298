"""The rate of the server optimizer is measured on nodes with their default configuration, too."""

import numpy as np
import pytest

import fedzo
from fedzo.server import Adam

torch = pytest.importorskip("torch")
flower = pytest.importorskip("flwr.app")


def line(device, devices):
    inputs = torch.linspace(-1, 1, 60)[device::devices, None]
    return inputs, 2 * inputs + 1


def squared_error(module, batch):
    return (module(batch[0]) - batch[1]).square().sum(1)


@pytest.mark.parametrize("tasks", [None, ["local_steps", "evaluate"]])
def test_nodes_that_evaluate_no_points_learn_by_rounds(tasks):
    """By default a node does local steps only: rates are tried in rounds."""
    from fedzo.flower import FedzoStrategy, InProcessGrid, torch_client

    app = torch_client(lambda: torch.nn.Linear(1, 1), squared_error, line)
    grid = InProcessGrid(app, nodes=3, **({"node_config": {"tasks": tasks}} if tasks else {}))
    torch.manual_seed(0)
    start = flower.ArrayRecord(torch.nn.Linear(1, 1).state_dict())
    algorithm = fedzo.FedZO(
        local_steps=1, batch_size=8, directions=4, smoothing=1e-3, server=Adam("auto")
    )
    result = FedzoStrategy(algorithm).start(grid, start, num_rounds=60)
    records = list(result.evaluate_metrics_clientapp.values())
    losses = [record["train_loss"] for record in records]
    assert min(losses) < 0.1 * losses[0]
    rates = [record["learning_rate"] for record in records[1:]]
    assert len(set(rates)) > 3
    assert np.isfinite(rates).all()
