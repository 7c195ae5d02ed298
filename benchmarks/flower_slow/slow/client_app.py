"""The nodes' side: the same function on each, and a pause that depends on the node."""

import time

import numpy as np
from flwr.app import Context

from fedzo.flower import make_client_app
from fedzo.problems import FunctionObjective

DIM, NODES, SPREAD = 20, 4, 10.0
POINTS = 2 * (10 + 1)  # of a device in a round: H (b2 + 1)


def value(x: np.ndarray) -> float:
    """Return the loss, whose minimum 0 is at 1."""
    return float(np.sum((x - 1) ** 2 * np.linspace(0.2, 1, DIM)))


def problem(context: Context) -> FunctionObjective:
    """Return the problem of a node whose ``seconds`` a round of the fastest device takes."""
    fastest = float(context.node_config["seconds"])

    def measured(x: np.ndarray, device: int) -> float:
        if np.any(x):  # evaluations of the start are free
            time.sleep(fastest * SPREAD ** (device / (NODES - 1)) / POINTS)
        return value(x)

    return FunctionObjective(measured, DIM, devices=NODES)


app = make_client_app(problem)
