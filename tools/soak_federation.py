"""`make soak-federation`: an hour of a real federation, a node of which is killed every minute.

    python tools/soak_federation.py FOLDER [--minutes 60] [--every 60]

A SuperLink with TLS and node keys, nginx, and four nodes of two devices each, as `docs/deploy.md`
has them, run FedZO by seeds and scalars on a function that takes its time. Every minute one of
three nodes is killed (SIGKILL, with all that it has started), and started again 75 seconds later,
as the systemd unit does. When the hour is over the server app is stopped, too, and resumed for
three more rounds. The run must

* finish;
* be exact: a run in one process that leaves out the same devices in the same rounds must end at the
  same model, to the bit;
* take no more memory at the end than after its first third: SuperLink, server app, proxy, and the
  node that nobody kills.

FOLDER/memory.jsonl has a line for each minute. The kills are drawn from a seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flower_federation import Federation, children, make_node_key

import fedzo
from fedzo.core.engine import LocalEngine
from fedzo.core.tasks import Task
from fedzo.problems import FunctionObjective
from fedzo.runs import Job, RunFolder, RunOptions, read_history, run_job
from fedzo.uplinks import Seeds

NODES, DEVICES, DIM = 4, 8, 50
BACK = 75  # seconds after a kill: see examples/flower-app/deploy/fedzo-node@.service
GROWTH = 1.1  # of the memory of any process, at most
ALGORITHM = {"learning_rate": 0.02, "local_steps": 2, "directions": 4}
APP = Path(__file__).parents[1] / "examples" / "flower-app"


def problem(seconds: float = 0.0) -> FunctionObjective:
    """Make a problem whose values take some time: each device's optimum is its own."""

    def distance(x: Any, device: int) -> float:
        time.sleep(seconds)
        return float(np.sum((x - 1 - np.sin(device + np.arange(DIM))) ** 2)) / DIM

    return FunctionObjective(distance, DIM, devices=DEVICES)


class Replayed(LocalEngine):
    """The devices in this process, without those that a round had to do without."""

    def __init__(self, absent: Mapping[int, set[int]]) -> None:
        super().__init__(problem(), seed=0)
        self.absent = absent

    def ask(self, task: Any) -> Any:
        """Ask the devices that replied."""
        if isinstance(task, Task):
            gone = self.absent.get(task.round + 1, set())
            task = task.only([i for i in task.devices if i not in gone])
        return super().ask(task)


def replay(history: Sequence[Mapping[str, Any]], rounds: int) -> Any:
    """Return the model that a run in one process comes to without the same devices."""
    absent: dict[int, set[int]] = {}
    for record in history:
        named = record.get("dropped", ())
        here = [one["device"] for one in named if one["round"] == record["round"]]
        for one in named:
            if one["round"] < record["round"]:
                absent.setdefault(one["round"], set()).add(one["device"])
        # Of an evaluated round, those of the round itself come first, then those of the evaluation.
        absent[record["round"]] = set(here[: DEVICES - record["participants"]])
    options = RunOptions(rounds=rounds, evaluate_every=rounds)
    job = Job(fedzo.FedZO(**ALGORITHM), Seeds(), options, tables={})  # type: ignore[arg-type]
    return run_job(job, Replayed(absent), np.zeros(DIM)).last


class Nodes:
    """The nodes, and who is to be killed or started next."""

    def __init__(self, federation: Federation, seconds: float, every: float, seed: int) -> None:
        self.federation, self.every, self.draws = federation, every, random.Random(seed)
        self.down: dict[int, float] = {}  # since when
        self.kills, self.next = 0, time.monotonic() + every
        lines = []
        for i in range(NODES):
            _, public = make_node_key(federation.folder, f"node-{i}-key")
            told = federation.flwr("supernode", "register", str(public), "here", "--format", "json")
            own = f"{2 * i}-{2 * i + 1}"
            lines.append(f'{json.loads(told[told.index("{") :])["node-id"]} = "{own}"')
            (federation.folder / f"node-{i}.toml").write_text(
                f'devices = "{own}"\nledger = "{federation.folder}/node-{i}.sqlite"\n'
                f'[problems."soak_federation:problem"]\nseconds = {seconds}\n'
            )
            self.start(i)
        self.bindings = federation.folder / "nodes.toml"
        self.bindings.write_text("\n".join(lines))

    def start(self, i: int) -> None:
        """Start a node."""
        folder = self.federation.folder
        config = f'node-file="{folder}/node-{i}.toml"'
        self.federation.start_node(f"node-{i}", config, folder / f"node-{i}-key" / "node-key")
        self.down.pop(i, None)

    def tend(self, kill: bool = True) -> None:
        """Start who was killed long enough ago; kill somebody, if it is time to."""
        now = time.monotonic()
        for i in [i for i, since in self.down.items() if now - since >= BACK]:
            self.start(i)
        for i in set(range(NODES)) - self.down.keys():
            if self.federation.processes[f"node-{i}"].poll() is not None:
                print(f"  node {i} has ended by itself", flush=True)
                self.federation.end(f"node-{i}")
                self.down[i] = now
        if kill and now >= self.next:
            self.next += self.every
            i = self.draws.choice(sorted({1, 2, 3} - self.down.keys()))
            self.federation.end(f"node-{i}", signal.SIGKILL)
            self.down[i], self.kills = now, self.kills + 1


def memory(federation: Federation) -> dict[str, int]:
    """Return the resident kilobytes of who runs all the time, by name."""
    own = {name: process.pid for name, process in federation.processes.items()}
    watched = {name: own[name] for name in ("superlink", "proxy", "node-0")}
    for pid in children(own["superlink"]):
        try:
            if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                watched["server app"] = pid
        except OSError:  # it has ended in the meantime
            continue
    return {name: resident(pid) for name, pid in watched.items()}


def resident(pid: int) -> int:
    """Return the resident kilobytes of a process and, of nginx, its workers."""
    total = 0
    for one in (pid, *children(pid)):
        try:
            name = Path(f"/proc/{one}/comm").read_text()
            lines = Path(f"/proc/{one}/status").read_text().splitlines()
        except OSError:
            continue
        if one == pid or "nginx" in name:
            total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return total


def check_memory(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raise if anybody takes more memory in the last sixth than after the first third."""
    sixth = max(len(lines) // 6, 1)
    for name in ("superlink", "server app", "proxy", "node-0"):
        seen = [line["memory"][name] for line in lines if name in line["memory"]]
        early = statistics.median(seen[2 * sixth : 3 * sixth] or seen)
        late = statistics.median(seen[-sixth:])
        print(f"  {name}: {early / 1024:.0f} MB after a third, {late / 1024:.0f} MB at the end")
        if late > GROWTH * early:
            raise SystemExit(f"the memory of {name} grows")


def soak(folder: Path, minutes: int, every: float, seconds: float, seed: int) -> None:
    """Run, kill, resume, compare."""
    out = folder / "run"
    os.environ["PYTHONPATH"] = os.pathsep.join(  # where the nodes find the problem: in this file
        [str(Path(__file__).parent.resolve()), os.environ.get("PYTHONPATH", "")]
    )
    with Federation(folder, secure=True, dim=DIM) as federation:
        nodes = Nodes(federation, seconds, every, seed)
        settings = {
            "config": "",
            "problem.name": "soak_federation:problem",
            "problem.devices": "",
            "algorithm.participants": "",
            **{f"algorithm.{key.replace('_', '-')}": value for key, value in ALGORITHM.items()},
            "uplink.name": "seeds",
            "run.rounds": 10**6,
            "flower.bindings": str(nodes.bindings),
            "flower.patience": 3600.0,  # on a busy machine a node may be killed before it answers
            "run-dir": str(out.resolve()),
        }
        run = federation.run(APP, settings)
        lines = list(watched(federation, nodes, minutes))
        federation.flwr("stop", run, "here")
        rounds = rounds_done(out) + 3
        run = federation.run(APP, {**settings, "resume": True, "run.rounds": rounds})
        while not (status := federation.status(run)).startswith("finished"):
            nodes.tend(kill=False)
            time.sleep(5)
        if status != "finished:completed":
            raise SystemExit(f"{status}: {federation.log(run)[-2000:]}")
    history = list(read_history(out / "history.jsonl"))
    absent = sum(len(record.get("dropped", ())) for record in history)
    print(f"{minutes} minutes, {rounds} rounds, {nodes.kills} kills, {absent} times left out")
    if not np.array_equal(np.load(out / "model.npy"), replay(history, rounds)):
        raise SystemExit("the model is another one than without the same devices in one process")
    print("the same model, to the bit, as in one process without the same devices")
    check_memory(lines)


def rounds_done(folder: Path) -> int:
    """Return how many rounds a run has behind it."""
    checkpoint = RunFolder(folder).load()
    return 0 if checkpoint is None else checkpoint.at.round


def watched(federation: Federation, nodes: Nodes, minutes: int) -> Iterator[dict[str, Any]]:
    """Tend the nodes, and tell every minute how things are."""
    began = time.monotonic()
    with (federation.folder / "memory.jsonl").open("w") as out:
        for minute in range(1, minutes + 1):
            while time.monotonic() < began + 60 * minute:
                nodes.tend()
                time.sleep(1)
            done = {"rounds": rounds_done(federation.folder / "run"), "kills": nodes.kills}
            line = {"minute": minute, **done, "memory": memory(federation)}
            print(json.dumps(line), file=out, flush=True)
            yield line


def main() -> None:
    """Soak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two kills")
    parser.add_argument("--seconds", type=float, default=0.5, help="that a value takes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    soak(arguments.folder, arguments.minutes, arguments.every, arguments.seconds, arguments.seed)


if __name__ == "__main__":
    main()
