"""What Flower costs: time of a round's messages in one process, and bytes on the wire.

python benchmarks/flower.py
"""

import logging
import statistics
import time

import fedzo
from fedzo.core.federation import Federation, LocalFederation
from fedzo.core.objective import Objective
from fedzo.flower import FlowerFederation, InProcessGrid, make_client_app
from fedzo.problems.quadratic import Quadratic
from fedzo.problems.softmax import softmax
from fedzo.runs.job import Job, drive
from fedzo.runs.options import RunOptions
from fedzo.uplinks import Uplink

ROUNDS = 40


def rounds(federation: Federation, problem: Objective, algorithm: fedzo.FedZO) -> float:
    """Return the median seconds of a round, of this process: whoever else computes is left out."""
    x, uplink, times = problem.initial(), fedzo.Ideal(), []
    with federation:
        state = algorithm.init(x, federation, uplink)
        for t in range(ROUNDS):
            began = time.process_time()
            state, _ = algorithm.round(t, state, federation, uplink)
            times.append(time.process_time() - began)
    return statistics.median(times)


def on_flower(problem: Objective, nodes: int, uplink: Uplink) -> FlowerFederation:
    return FlowerFederation(
        InProcessGrid(make_client_app(lambda context: problem), nodes), 0, uplink
    )


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    small, algorithm = Quadratic(dim=100, devices=10), fedzo.FedZO()
    here = rounds(LocalFederation(small, 0, workers=1), small, algorithm)
    there = rounds(on_flower(small, 10, fedzo.Ideal()), small, algorithm)
    print("a round of 10 devices, d = 100, on 10 nodes of the in-process grid, CPU time")
    print(f"  on one thread, without Flower {here * 1e3:8.1f} ms")
    print(f"  with Flower's messages        {there * 1e3:8.1f} ms")
    print(f"  overhead                      {(there - here) * 1e3:8.1f} ms\n")

    problem, algorithm = softmax(), fedzo.FedZO(participants=20)
    print("a round of the paper's softmax setting, M = 20, d = 7850: bytes up, bytes down")
    for nodes in (3, 50):
        for uplink in (fedzo.Ideal(), fedzo.Seeds()):
            federation = on_flower(problem, nodes, uplink)
            job = Job(algorithm, uplink, RunOptions(rounds=1), tables={})
            result = drive(job, federation, problem.initial())
            last = result.history[-1]
            print(
                f"  {nodes:>2} nodes, {type(uplink).__name__:<6}"
                f" counted {last['uplink_bytes']:>9,} {last['downlink_bytes']:>9,}"
                f"   messages {last['message_up_bytes']:>9,.0f} {last['message_down_bytes']:>9,.0f}"
                f"   with HTTP {last['transport_up_bytes']:>9,.0f}"
                f" {last['transport_down_bytes']:>9,.0f}"
            )


if __name__ == "__main__":
    main()
