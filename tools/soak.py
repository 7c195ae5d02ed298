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
import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flower_federation import Federation, children

import fedzo
from fedzo.algorithms import ALGORITHMS
from fedzo.problems.quadratic import Quadratic
from fedzo.uplinks import UPLINKS

SETTINGS = (
    "problem.dim=30",
    "problem.devices=6",
    "run.rounds=4000",
    "run.evaluate_every=100",
    "run.checkpoint_every=20",
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
    "cma": (*COMMON, "algorithm.name=cma", "run.rounds=1000"),
    "tpe": (*COMMON, "algorithm.name=tpe", "run.rounds=150"),
    # Without noise, and on long valleys, they take hundreds of rounds.
    "adaptive": (*COMMON, "algorithm.name=adaptive", *EXACT),
    "lbfgs": (*COMMON, "algorithm.name=lbfgs", *EXACT),
}
APP = Path(__file__).parents[1] / "examples" / "flower-app"
SERVED = {  # nine devices, of which a round has all, and steps that take no time
    "config": "",
    "problem.name": "quadratic",
    "problem.devices": 9,
    "algorithm.participants": "",
    "algorithm.learning-rate": 0.01,
    "run.rounds": 12,
    "run.evaluate-every": 2,
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


def kill_and_resume(name: str, out: Path, draws: random.Random) -> int:
    """Kill a run until it gets to its end, and compare it with one that nobody killed."""
    changes = [part for setting in PARTS[name] for part in ("--set", setting)]
    command = [sys.executable, "-m", "fedzo", "run", "quadratic", *changes, "--quiet"]
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
    compare(name, out, kills)
    return kills


def kill_server_app(out: Path, draws: random.Random, kills: int) -> None:
    """Kill Flower's server app so many times, resume it, and compare likewise."""
    with Federation(out / "federation") as federation:
        node = federation.folder / "node.toml"
        node.write_text("[problems.quadratic]\ndevices = 9\n")
        federation.start_node("node", f'partition-id=0 num-partitions=1 node-file="{node}"')
        run = federation.run(APP, {**SERVED, "run-dir": str(out / "whole")})
        began = time.monotonic()
        if federation.wait(run, 900) != "finished:completed":
            raise SystemExit(federation.log(run))
        seconds = time.monotonic() - began
        killed = {**SERVED, "run-dir": str(out / "killed")}
        for _ in range(kills):
            run = federation.run(APP, {**killed, "resume": (out / "killed" / ".fedzo").exists()})
            time.sleep(draws.uniform(0.3, 1.0) * seconds)
            for pid in children(federation.processes["superlink"].pid):
                if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            federation.wait(run, 900)
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
    draws, kills = random.Random(arguments.seed), 0
    print(f"{arguments.kills} kills", flush=True)
    for turn, name in enumerate(itertools.cycle(PARTS)):
        if turn >= len(PARTS) and kills >= arguments.kills:
            break
        with tempfile.TemporaryDirectory() as folder:
            kills += kill_and_resume(name, Path(folder), draws)
    with tempfile.TemporaryDirectory() as folder:
        kill_server_app(Path(folder), draws, kills=3)


def words(settings: tuple[str, ...]) -> list[str]:
    """Return the values of settings."""
    return [setting.partition("=")[2] for setting in settings]


if __name__ == "__main__":
    main()
