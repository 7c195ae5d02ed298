"""A node that a test sends single messages."""

import numpy as np
from flwr.app import Message

import fedzo
from driving import steps_of
from fedzo.flower import InProcessGrid, make_client_app, protocol
from fedzo.problems import Quadratic
from fedzo.runs.registry import ALGORITHMS

PROBLEM = Quadratic(dim=8, devices=6)
# What a node can allow; by default it does local steps of FedZO.
EVERYTHING = {"algorithms": list(ALGORITHMS), "tasks": ["local_steps", "evaluate", "slopes"]}


def node(problem=PROBLEM, nodes=1, **node_config):
    """Return a grid whose nodes have this configuration besides their part."""
    source = problem if callable(problem) or isinstance(problem, dict) else lambda c: problem
    grid = InProcessGrid(make_client_app(source), nodes, node_config=EVERYTHING)
    for context in grid.contexts.values():
        context.node_config.update({k.replace("_", "-"): v for k, v in node_config.items()})
        context.node_config.update(node_config.get("dotted", {}))
        context.node_config.pop("dotted", None)
    return grid


def limited(problem=PROBLEM, **limits):
    return node(problem, dotted={f"limits.{k}": v for k, v in limits.items()})


def ask(grid, algorithm=None, devices=(0,), x=None, kind=protocol.TRAIN, metrics=False, task=None):
    """Send one message; return the reply's content."""
    algorithm = algorithm or fedzo.FedZO(directions=4, local_steps=2, batch_size=3)
    x = np.zeros(8) if x is None else x
    content = (
        protocol.task(
            protocol.pack(task or steps_of(algorithm, x, round=0, seed=0)), devices, False
        )
        if kind == protocol.TRAIN
        else protocol.model(x, devices, metrics)
    )
    (reply,) = grid.send_and_receive([Message(content, 1, kind)])
    assert not reply.has_error()
    return reply.content


def refusal(content):
    told = protocol.read_refusal(content)
    return told and told.split()[0]
