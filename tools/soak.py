"""`make soak`: what only shows after a long time, or after many kills.

1. 100,000 rounds: memory and open files stay flat.
2. Random kills (SIGKILL) of runs of every algorithm and uplink, and of a measured rate.
3. Random kills of Flower's server app, in a federation of real processes.

Whatever was killed is resumed until it has ended, and its model and history are those of a run that
nobody killed.

The kills are drawn from a seed, so a failure can be repeated: python tools/soak.py --seed 0
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flower_federation import Federation, children

import fedzo
from fedzo.cli import main as main_of_fedzo
from fedzo.problems import Quadratic
from fedzo.runs.registry import ALGORITHMS, UPLINKS

SETTINGS = (
    "problem.dim=30",
    "problem.devices=6",
    "run.rounds=800",
    "run.evaluate_every=20",
    "run.checkpoint_every=5",
)
COMMON = (*SETTINGS, "algorithm.participants=4")
EXACT = (
    "problem.gradient_noise=0",
    "problem.condition=10000",
    "run.evaluate_every=1",
    "run.checkpoint_every=1",
)
PARTS: dict[str, tuple[str, ...]] = {
    "fedzo": COMMON,
    "fedzo, over the air": (*COMMON, "uplink.name=aircomp"),
    "fedzo, seeds": (*COMMON, "uplink.name=seeds"),
    "fedzo, shared directions": (*COMMON, "algorithm.shared_directions=true"),
    "fedzo, robust": (*COMMON, "uplink.name=robust"),
    "fedzo, robust scalars": (
        *COMMON,
        "uplink.name=robust_seeds",
        "algorithm.shared_directions=true",
    ),
    "fedzo, adam": (*COMMON, "server.name=adam"),
    "fedzo, auto": (*COMMON, "algorithm.learning_rate=auto", "algorithm.smoothing=auto"),
    "fedavg": (*COMMON, "algorithm.name=fedavg"),
    "zo_sgd": (*SETTINGS, "algorithm.name=zo_sgd"),
    "dzopa": (*SETTINGS, "algorithm.name=dzopa"),
    "zone_s": (*SETTINGS, "algorithm.name=zone_s"),
    "cma": (*COMMON, "algorithm.name=cma", "run.rounds=300"),
    "tpe": (*COMMON, "algorithm.name=tpe", "run.rounds=60"),
    # Without noise, and on long valleys, they take hundreds of rounds.
    "adaptive": (*COMMON, "algorithm.name=adaptive", *EXACT),
    "lbfgs": (*COMMON, "algorithm.name=lbfgs", *EXACT),
}
APP = Path(__file__).parents[1] / "examples" / "flower-app"
SERVED: dict[str, Any] = {  # nine devices, of which a round has all, and steps that take no time
    "config": "",
    "problem.name": "quadratic",
    "problem.devices": 9,
    "algorithm.participants": "",
    "algorithm.learning-rate": 0.01,
    "run.rounds": 12,
    "run.evaluate-every": 1,
    "flower.grace": 900.0,
    "flower.patience": 900.0,
}


def long_run(rounds: int) -> None:
    """Run very many rounds; raise if memory or open files grow."""
    seen: list[tuple[int, int]] = []

    def look(progress: fedzo.Progress) -> None:
        if progress.round % (rounds // 10) == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            seen.append((peak, len(os.listdir("/proc/self/fd"))))
            print(
                f"  round {progress.round:>7,}: {peak} MB at most, {seen[-1][1]} open files",
                flush=True,
            )

    algorithm = fedzo.FedZO(directions=2, local_steps=1, batch_size=1)
    with tempfile.TemporaryDirectory() as folder:
        fedzo.minimize(
            Quadratic(dim=5, devices=3),
            algorithm=algorithm,
            rounds=rounds,
            evaluate_every=100,
            checkpoint_every=1000,
            run_dir=f"{folder}/run",
            callback=look,
        )
    settled, last = seen[2], seen[-1]
    if last[0] > settled[0] + 20 or last[1] > settled[1]:
        raise SystemExit(f"memory or open files grow: {settled} after a fifth, {last} at the end")


def kill_and_resume(name: str, out: Path, draws: random.Random, kills: int) -> int:
    """Kill a run so many times, each time further on, and compare it with one nobody killed.

    Return how many kills found it running.
    """
    changes = [part for setting in PARTS[name] for part in ("--set", setting)]
    command = ["run", "quadratic", *changes, "--quiet"]
    whole, killed = out / "whole", out / "killed"
    started([*command, "--out", str(whole)]).join()
    records, hits = len(history(whole)), 0
    for at in (*sorted(draws.randrange(records) for _ in range(kills)), None):
        resume = ["--resume"] if (killed / "config.toml").exists() else []
        run = started([*command, "--out", str(killed), *resume])
        while at is not None and run.is_alive():
            if (killed / "config.toml").exists() and lines_of(killed) >= at:
                time.sleep(draws.uniform(0, 0.1))
                run.kill()
                break
            time.sleep(0.005)
        run.join()
        hits += run.exitcode == -signal.SIGKILL
    compare(name, out, hits)
    return hits


def started(arguments: list[str]) -> multiprocessing.Process:
    """Start a command in a process that has all modules already: most of a start is to import."""
    process = multiprocessing.get_context("fork").Process(target=quietly, args=(arguments,))
    process.start()
    return process  # type: ignore[return-value]


def quietly(arguments: list[str]) -> None:
    """Run a command; its exit code is this process's."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        sys.exit(main_of_fedzo(arguments))


def lines_of(folder: Path) -> int:
    """Return how many records a run has written."""
    path = folder / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_server_app(out: Path, draws: random.Random, kills: int) -> None:
    """Kill Flower's server app so many times, resume it, and compare likewise."""
    with Federation(out / "federation") as federation:
        node = federation.folder / "node.toml"
        node.write_text("[problems.quadratic]\ndevices = 9\n")
        federation.start_node("node", f'partition-id=0 num-partitions=1 node-file="{node}"')
        run = federation.run(APP, {**SERVED, "run-dir": str(out / "whole")})
        if federation.wait(run, 900) != "finished:completed":
            raise SystemExit(federation.log(run))
        killed = {**SERVED, "run-dir": str(out / "killed")}
        for at in sorted(draws.sample(range(1, SERVED["run.rounds"]), kills)):
            run = federation.run(APP, {**killed, "resume": (out / "killed" / ".fedzo").exists()})
            while lines_of(out / "killed") < at:
                time.sleep(0.05)
            for pid in children(federation.processes["superlink"].pid):
                if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            if federation.wait(run, 900) != "finished:failed":
                raise SystemExit(f"the server app was not killed: {federation.log(run)}")
        run = federation.run(APP, {**killed, "resume": True})
        if federation.wait(run, 900) != "finished:completed":
            raise SystemExit(federation.log(run))
    compare("Flower's server app", out, kills)


def compare(name: str, out: Path, kills: int) -> None:
    """Raise unless two runs left the same files."""
    whole, killed = out / "whole", out / "killed"
    for file in ("model.npy", "config.toml"):
        if (whole / file).read_bytes() != (killed / file).read_bytes():
            raise SystemExit(f"{name}: {file} is another one after {kills} kills: see {out}")
    if history(whole) != history(killed):
        raise SystemExit(f"{name}: the history is another one after {kills} kills: see {out}")
    print(f"  {name}: {kills} kills, the same bytes", flush=True)


def history(folder: Path) -> list[dict[str, object]]:
    """Return the records of a run, without the time that it took and Flower's own bytes."""
    varies = re.compile("seconds|message_.*|transport_.*")
    lines = (folder / "history.jsonl").read_text().splitlines()
    records = map(json.loads, lines)
    return [{k: v for k, v in record.items() if not varies.fullmatch(k)} for record in records]


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    missing = {*ALGORITHMS, *UPLINKS} - {w for part in PARTS.values() for w in words(part)}
    assert missing <= {"fedzo", "ideal"}, f"not soaked: {missing}"  # those are the defaults
    print(f"{arguments.rounds:,} rounds", flush=True)
    long_run(arguments.rounds)
    draws = random.Random(arguments.seed)
    each, hits = -(-arguments.kills // len(PARTS)), 0
    for name in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            hits += kill_and_resume(name, Path(folder), draws, each)
    print(f"{hits} kills in all, and of Flower's server app:", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        kill_server_app(Path(folder), draws, kills=3)


def words(settings: tuple[str, ...]) -> list[str]:
    """Return the values of settings."""
    return [setting.partition("=")[2] for setting in settings]


if __name__ == "__main__":
    main()
