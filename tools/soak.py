"""`make soak`: what only shows after a long time, or after many kills.

1. 100,000 rounds: memory and open files stay flat.
2. Random kills (SIGKILL) of runs of every algorithm and uplink, of a measured rate and of Flower's
   engine: each is resumed until it has ended, and its model and history are those of a run that
   nobody killed.

The kills are drawn from a seed, so a failure can be repeated: python tools/soak.py --seed 0
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import fedzo
from fedzo.problems.quadratic import Quadratic

SETTINGS = (
    "problem.dim=30",
    "problem.devices=6",
    "run.rounds=4000",
    "run.evaluate_every=100",
    "run.checkpoint_every=20",
)
COMMON = (*SETTINGS, "algorithm.participants=4")
PARTS: dict[str, tuple[str, ...]] = {
    "fedzo": COMMON,
    "fedzo, over the air": (*COMMON, "uplink.kind=aircomp"),
    "fedzo, seeds": (*COMMON, "uplink.kind=seeds"),
    "fedzo, shared directions": (*COMMON, "algorithm.shared_directions=true"),
    "fedzo, robust": (*COMMON, "uplink.kind=robust"),
    "fedzo, robust scalars": (
        *COMMON,
        "uplink.kind=robust_seeds",
        "algorithm.shared_directions=true",
    ),
    "fedzo, hiso": (*COMMON, "server.name=hiso"),
    "fedzo, adam": (*COMMON, "server.name=adam"),
    "fedzo, auto": (*COMMON, "algorithm.learning_rate=auto", "algorithm.smoothing=auto"),
    "fedavg": (*COMMON, "algorithm.name=fedavg"),
    "zo_sgd": (*SETTINGS, "algorithm.name=zo_sgd"),
    "dzopa": (*SETTINGS, "algorithm.name=dzopa"),
    "zone_s": (*SETTINGS, "algorithm.name=zone_s"),
}


def long_run(rounds: int) -> None:
    """Run very many rounds; raise if memory or open files grow."""
    seen: list[tuple[int, int]] = []

    def look(progress: fedzo.Progress) -> None:
        if progress.round % (rounds // 10) == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            seen.append((peak, len(os.listdir("/proc/self/fd"))))
            print(f"  round {progress.round:>7,}: {peak} MB at most, {seen[-1][1]} open files")

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


def kill_and_resume(name: str, out: Path, draws: random.Random, engine: str = "local") -> int:
    """Kill a run until it gets to its end, and compare it with one that nobody killed."""
    changes = [part for setting in PARTS[name] for part in ("--set", setting)]
    command = [sys.executable, "-m", "fedzo", "run", "quadratic", *changes, "--quiet"]
    command += ["--engine", engine]
    whole, killed = out / "whole", out / "killed"
    began = os.times().elapsed
    subprocess.run([*command, "--out", str(whole)], check=False, stdout=subprocess.DEVNULL)
    seconds, kills = os.times().elapsed - began, 0
    while True:
        resume = ["--resume"] if (killed / "config.toml").exists() else []
        with subprocess.Popen(
            [*command, "--out", str(killed), *resume], stdout=subprocess.DEVNULL
        ) as run:
            try:
                # The start takes much of the time; after a few kills it may get to its end.
                run.wait(draws.uniform(0.4, 1.0) * seconds if kills < 4 else None)
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGKILL)
                kills += 1
                continue
        break
    for file in ("model.npy", "config.toml"):
        if (whole / file).read_bytes() != (killed / file).read_bytes():
            raise SystemExit(f"{name}: {file} is another one after {kills} kills: see {out}")
    if history(whole) != history(killed):
        raise SystemExit(f"{name}: the history is another one after {kills} kills: see {out}")
    return kills


def history(folder: Path) -> list[dict[str, object]]:
    """Return the records of a run, without the time that it took."""
    lines = (folder / "history.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def main() -> None:
    """Do both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{arguments.rounds:,} rounds")
    long_run(arguments.rounds)
    draws, kills = random.Random(arguments.seed), 0
    names = [*PARTS] * arguments.kills
    print(f"{arguments.kills} kills")
    while kills < arguments.kills:
        name = names.pop(0)
        with tempfile.TemporaryDirectory() as folder:
            count = kill_and_resume(name, Path(folder), draws)
        kills += count
        print(f"  {name}: {count} kills, the same bytes")
    with tempfile.TemporaryDirectory() as folder:
        count = kill_and_resume("fedzo", Path(folder), draws, engine="flower")
    print(f"  fedzo on Flower's engine: {count} kills, the same bytes")


if __name__ == "__main__":
    main()
