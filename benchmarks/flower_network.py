"""MiniLM on three real nodes: bytes a round and node at a proxy, and what a kill -9 does.

    python benchmarks/flower_network.py FOLDER [--rounds 5] [--no-kill]

starts a SuperLink with TLS behind an nginx and three SuperNodes with keys in FOLDER, fine-tunes all
weights of MiniLM there from losses alone, kills a node and the server app in between (-9), resumes,
and prints the bytes that the proxy has counted. The model of each node is then that of the server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tools"))

from flower_federation import Federation, children, make_node_key  # noqa: E402

from fedzo.runs import read_history  # noqa: E402

DIM, NODES, LIMIT = 22_566_000, 3, 3600


def traffic(folder: Path) -> dict[str, np.ndarray]:
    """Return requests, bytes up and bytes down by address, as the proxy has counted them."""
    total: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(3, int))
    for line in (folder / "log" / "traffic.log").read_text().splitlines():
        address, _, up, down = line.split()
        total[address.rpartition("/")[2]] += (1, int(up), int(down))
    return dict(total)


def kept(folder: Path) -> list[tuple[int, np.ndarray]]:
    """Return the round and the model that each node keeps."""
    found = []
    for path in sorted(folder.glob("node-*-home/fedzo-models/*.state")):
        with path.open("rb") as file:
            found.append((json.loads(file.readline())["round"], np.load(file)))
    return found


def kill_server_app(federation: Federation) -> None:
    for pid in children(federation.processes["superlink"].pid):
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-kill", action="store_true")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    run_dir = given.folder.resolve() / "run"
    with Federation(given.folder, secure=True, dim=DIM) as federation:
        keys = {}
        for i in range(NODES):
            keys[i], public = make_node_key(federation.folder, f"node-{i}")
            federation.register(public)
            start(federation, i, keys[i])
        settings = {"rounds": given.rounds, "run-dir": str(run_dir)}
        run = federation.run(HERE / "flower_network", settings)
        if not given.no_kill:
            while not (run_dir / "coefficients.log").exists():
                time.sleep(1)
            federation.end("node-1", signal.SIGKILL)
            kill_server_app(federation)
            print("killed a node and the server app; waiting for Flower to see it", flush=True)
            federation.wait(run, LIMIT)
            start(federation, 1, keys[1])
            run = federation.run(HERE / "flower_network", {**settings, "resume": True})
        print(federation.wait(run, LIMIT))
        report(federation, run_dir, given.rounds)


def start(federation: Federation, i: int, key: Path) -> None:
    federation.start_node(f"node-{i}", f"partition-id={i} num-partitions={NODES}", key)


def report(federation: Federation, run_dir: Path, rounds: int) -> None:
    last = list(read_history(run_dir / "history.jsonl"))[-1]
    x = np.load(run_dir / "model.npy")
    same = [t == rounds and np.array_equal(own, x) for t, own in kept(federation.folder)]
    print(f"{x.size:,} weights; nodes whose model is the server's, to the bit: {sum(same)}")
    for kind in ("message", "transport"):
        up, down = (last[f"{kind}_{way}_bytes"] / NODES for way in ("up", "down"))
        print(f"{kind:<10} bytes of the last round and node: {up:8,.0f} up {down:8,.0f} down")
    print("at the proxy, over the whole run: requests, bytes up, bytes down")
    for address, (count, up, down) in traffic(federation.folder).items():
        print(f"  {address:<26} {count:6,} {up:12,} {down:12,}")
    largest = (run_dir / "coefficients.log").stat().st_size
    print(f"the log of all rounds: {largest:,} bytes; the model: {x.nbytes:,}")


if __name__ == "__main__":
    main()
