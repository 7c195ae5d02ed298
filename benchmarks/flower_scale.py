"""A round of FedZO and one of Flower's FedAvg, side by side, for growing federations.

    python benchmarks/flower_scale.py nodes 100 300 1000     # one device on each simulated node
    python benchmarks/flower_scale.py packed 1000 10000 100000   # devices, packed on 100 nodes
    python benchmarks/flower_scale.py asynchronous 0 1 2         # seeds
    python benchmarks/flower_scale.py real 4 6 2   # seconds of the fastest node, rounds, K

Both strategies train and evaluate on all nodes in each round, with d = 100. FedAvg's client only
scales x, so its round is all messages. A run is a process of its own; the first round starts Ray's
workers and is left out. The two take turns, three times, and medians are shown. CPU time is that
of all processes of the run, and of the driver's thread alone; memory is that of the driver.
"""

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

import fedzo
from fedzo.flower import FedzoStrategy, InProcessGrid, make_client_app
from fedzo.flower.errors import quiet_log
from fedzo.problems import Quadratic, softmax
from fedzo.runs.options import FlowerSettings

HERE = Path(__file__).resolve().parent
ROUNDS = 5
REPEATS = 3
DIM = 100


def fedavg_client() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x = message.content["arrays"]["x"].numpy()
        arrays = ArrayRecord({"x": Array(x * 0.9)})
        content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        x = message.content["arrays"]["x"].numpy()
        numbers = {"num-examples": 1, "loss": float(x @ x)}
        return Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)

    return app


def fedzo_strategy() -> FedzoStrategy:
    waits = FlowerSettings(grace=600, patience=600, clip=False)
    steps = fedzo.FedZO(local_steps=1, directions=2, learning_rate=0.01)
    return FedzoStrategy(steps, settings=waits)


def simulated(nodes: int, name: str) -> None:
    """Print the median round of one strategy, as JSON."""
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore.telemetry import EventType

    problem = {"quadratic": {"devices": nodes, "dim": DIM}}
    client = fedavg_client() if name == "FedAvg" else make_client_app(problem, guarded=False)
    marks: list[tuple[float, float, float]] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < nodes:
            time.sleep(0.2)
        every: Strategy | FedzoStrategy = fedzo_strategy()
        if name == "FedAvg":
            every = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)

        def note(server_round: int, arrays: ArrayRecord) -> None:
            marks.append((time.perf_counter(), time.thread_time(), cpu_of_all()))

        start = ArrayRecord({"x": Array(np.ones(DIM))})
        every.start(grid, start, num_rounds=ROUNDS, evaluate_fn=note)

    with quiet_log():
        _run_simulation(
            server_app=app,
            client_app=client,
            num_supernodes=nodes,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"log_to_driver": False},
            },
            exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
        )
    columns = np.diff(np.array(marks), axis=0)[1:].T
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([*map(statistics.median, columns), memory]))


def cpu_of_all() -> float:
    """Return the CPU time of this process and of Ray's, which are its children."""
    import psutil

    driver, total = psutil.Process(), 0.0
    for process in (driver, *driver.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:2])
    return total


def compare(counts: list[int]) -> None:
    print("per round: seconds, CPU of the driver's thread, CPU of all; memory of the driver")
    for nodes in counts:
        found: dict[str, list[list[float]]] = {"FedAvg": [], "FedZO": []}
        for name in [*found] * REPEATS:
            words = [sys.executable, __file__, "one", str(nodes), name]
            env = {**os.environ, "RAY_worker_niceness": "0"}  # else other programs starve them
            told = subprocess.run(words, text=True, capture_output=True, check=True, env=env).stdout
            found[name].append(json.loads(told.splitlines()[-1]))
            wall, driver, cpu, memory = found[name][-1]
            print(
                f"  {nodes:5d} nodes, {name:6s} {wall:7.2f} s {driver:7.2f} s {cpu:7.2f} s "
                f"{memory:7.0f} MB",
                flush=True,
            )
        pairs = np.array(found["FedZO"]) / np.array(found["FedAvg"])
        wall, _, cpu, _ = np.median(pairs, axis=0)
        print(
            f"  {nodes:5d} nodes, median ratio: seconds {wall:.2f}, CPU of all {cpu:.2f}",
            flush=True,
        )


def packed(counts: list[int], nodes: int = 100) -> None:
    print(
        f"CPU time of a round (steps and evaluation), devices packed on {nodes} nodes, in process"
    )
    before = None
    for devices in counts:
        problem = Quadratic(dim=DIM, devices=devices)
        grid = InProcessGrid(make_client_app(lambda _, own=problem: own, guarded=False), nodes)
        times: list[float] = []
        fedzo_strategy().start(
            grid, num_rounds=3, evaluate_fn=lambda *_, t=times: t.append(time.process_time())
        )
        seconds = statistics.median(np.diff(times))
        slope = ""
        if before is not None:
            slope = f"slope {np.log(seconds / before[1]) / np.log(devices / before[0]):.2f}"
        each = f"{seconds / devices * 1e6:6.0f} us per device"
        print(f"  {devices:7,} devices {seconds:8.2f} s, {each} {slope}", flush=True)
        before = devices, seconds


def asynchronous(seeds: list[int], rounds: int = 60) -> None:
    print("virtual seconds to the loss of 60 rounds that wait for all, speeds spread over 10")
    steps = {"learning_rate": 0.01, "participants": 16, "speed_spread": 10.0}
    for name, problem in (("quadratic", Quadratic(dim=DIM, devices=64)), ("softmax", softmax())):
        for seed in seeds:
            run = {"seed": seed, "evaluate_every": 2}
            clock = {**steps, "clock_seed": seed}
            if name == "softmax":
                clock["learning_rate"] = 0.001
            waits = fedzo.minimize(problem, algorithm=fedzo.FedBuff(**clock), rounds=rounds, **run)
            target, all_in = waits.history[-1]["train_loss"], waits.history[-1]["clock_seconds"]
            for buffer in (2, 4, 8):
                quick = fedzo.minimize(
                    problem,
                    algorithm=fedzo.FedBuff(**clock, buffer=buffer),
                    rounds=20 * rounds,
                    target=target,
                    **run,
                )
                seconds = quick.history[-1]["clock_seconds"]
                there = quick.history[-1]["train_loss"] <= target
                ratio = f"{all_in / seconds:.1f} times sooner" if there else "not reached"
                print(
                    f"  {name}, seed {seed}, K = {buffer}: {all_in:.0f} s, {seconds:.0f} s, {ratio}"
                )


def real(numbers: list[int]) -> None:
    """Run the app of four slow nodes: rounds that wait for all, then K at a time."""
    sys.path.append(str(HERE.parent / "tools"))
    from flower_federation import Federation

    seconds, rounds, buffer = numbers
    with tempfile.TemporaryDirectory() as name, Federation(Path(name)) as made:
        out = made.folder / "marks.json"
        file = made.folder / "node.toml"
        file.write_text('algorithms = ["fedzo", "fedbuff"]')
        for i in range(4):
            config = f'partition-id={i} num-partitions=4 seconds={seconds:.1f} node-file="{file}"'
            made.start_node(f"node-{i}", config)
        settings = {"rounds": rounds, "buffer": buffer, "out": str(out)}
        run = made.run(HERE / "flower_slow", settings)
        if not made.wait(run, 3600).endswith("completed"):
            sys.exit(made.log(run))
        waits, buffered = json.loads(out.read_text())
    print(f"four nodes, {seconds} to {10 * seconds} s per round, until f = {waits[-1][1]:.3g}")
    print(f"  waiting for all: {len(waits)} rounds, {waits[-1][0]:.0f} s")
    ratio = f"{waits[-1][0] / buffered[-1][0]:.1f} times sooner"
    print(f"  K = {buffer}: {len(buffered)} rounds, {buffered[-1][0]:.0f} s, {ratio}")


if __name__ == "__main__":
    part, *numbers = sys.argv[1:] or ["nodes", "100", "300", "1000"]
    if part == "one":
        simulated(int(numbers[0]), numbers[1])
    else:
        parts = {"nodes": compare, "packed": packed, "asynchronous": asynchronous, "real": real}
        parts[part]([int(one) for one in numbers])
