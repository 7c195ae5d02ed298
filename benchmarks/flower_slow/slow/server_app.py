"""The server's side: rounds that wait for all nodes, then asynchronous ones, by the real clock."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import fedzo
from fedzo.flower import FedzoStrategy, FlowerSettings
from slow.client_app import DIM, value

app = ServerApp()


class ReachedError(Exception):
    """The target is reached."""


class Timed(FedzoStrategy):
    """Notes the time and the loss after each round, which the server can compute here."""

    target = 0.0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        found = super().aggregate_train(server_round, replies)
        loss = value(found[0].to_numpy_ndarrays()[0])
        self.marks.append((time.monotonic(), loss))
        if loss <= self.target:
            raise ReachedError
        return found


def run(grid: Grid, buffer: int | None, rounds: int, target: float = 0.0) -> list[Any]:
    """Return seconds and loss after each round, up to the one that reaches the target."""
    numbers = {"learning_rate": 0.05, "directions": 10, "local_steps": 2}
    steps = fedzo.FedBuff(**numbers, clock="real", buffer=buffer)
    # One evaluation at the start: another one would wait for slow nodes.
    settings = FlowerSettings(grace=300, patience=900)
    strategy = Timed(steps, fedzo.Seeds(), settings=settings, evaluate_every=10**6)
    strategy.marks, strategy.target = [], target
    start = time.monotonic()
    with contextlib.suppress(ReachedError):
        strategy.start(grid, ArrayRecord([np.zeros(DIM)]), num_rounds=rounds)
    return [(at - start, loss) for at, loss in strategy.marks]


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    rounds = int(settings["rounds"])
    waits = run(grid, None, rounds)
    buffered = run(grid, int(settings["buffer"]), 100 * rounds, target=waits[-1][1])
    Path(str(settings["out"])).write_text(json.dumps([waits, buffered]))
