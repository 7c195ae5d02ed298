"""What Flower costs: a round's messages, bytes on the wire, rebuilding from seeds, processes.

python benchmarks/flower.py [messages] [bytes] [rebuild] [processes] [join]
"""

import contextlib
import hashlib
import logging
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

import fedzo
from fedzo.core.engine import Engine, LocalEngine, drive
from fedzo.core.machine import cores
from fedzo.core.objective import Objective
from fedzo.core.tasks import LocalSteps, Update
from fedzo.flower import FlowerEngine, InProcessGrid, make_client_app
from fedzo.flower.setup import free_port
from fedzo.problems import Quadratic, softmax
from fedzo.runs import Job, RunOptions, run_job
from fedzo.uplinks import UpdateMean, Uplink
from fedzo.uplinks.base import RunSetting

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from flower_federation import Federation as RealFederation
from flower_federation import children

APP = Path(__file__).parents[1] / "examples" / "flower-app"
ROUNDS = 40


def rounds(engine: Engine, problem: Objective, algorithm: fedzo.FedZO) -> float:
    """Return the median seconds of a round, of this process: whoever else computes is left out."""
    x, uplink, times = problem.initial(), fedzo.Ideal(), []
    setting = RunSetting(engine, uplink)
    with engine:
        state = algorithm.init(x, setting)
        for t in range(ROUNDS):
            began = time.process_time()
            state, _ = drive(algorithm.round(t, state, setting), engine)
            times.append(time.process_time() - began)
    return statistics.median(times)


def on_flower(problem: Objective, nodes: int, uplink: Uplink) -> FlowerEngine:
    return FlowerEngine(InProcessGrid(make_client_app(lambda context: problem), nodes), 0, uplink)


def messages() -> None:
    small, algorithm = Quadratic(dim=100, devices=10), fedzo.FedZO()
    here = rounds(LocalEngine(small, 0, workers=1), small, algorithm)
    there = rounds(on_flower(small, 10, fedzo.Ideal()), small, algorithm)
    print("a round of 10 devices, d = 100, on 10 nodes of the in-process grid, CPU time")
    print(f"  on one thread, without Flower {here * 1e3:8.1f} ms")
    print(f"  with Flower's messages        {there * 1e3:8.1f} ms")
    print(f"  overhead                      {(there - here) * 1e3:8.1f} ms\n")


def count_bytes() -> None:
    problem, algorithm = softmax(), fedzo.FedZO(participants=20)
    print("the second round of the paper's softmax setting, M = 20, d = 7850: bytes up, bytes down")
    for nodes in (3, 50):
        for uplink in (fedzo.Ideal(), fedzo.Seeds()):
            engine, x0 = on_flower(problem, nodes, uplink), problem.initial()
            job = Job(algorithm, uplink, RunOptions(rounds=2, evaluate_every=2), tables={})
            engine.enable_replay(job, x0)
            last = run_job(job, engine, x0).history[-1]
            columns = [
                f"{kind} {last[f'{kind}_up_bytes']:>11,.0f} {last[f'{kind}_down_bytes']:>11,.0f}"
                for kind in ("message", "transport")
            ]
            print(f"  {nodes:>2} nodes, {type(uplink).__name__:<6} {'   '.join(columns)}")
    print()


def rebuild(dim: int = 10**6, devices: int = 50) -> None:
    algorithm = fedzo.FedZO()  # H = 5, b2 = 20
    work = LocalSteps(algorithm, np.zeros(dim, np.float32))
    numbers = np.random.default_rng(0).normal(size=(devices, 5, 20)).astype(np.float32)
    updates = [Update(i, np.empty(0), 1, 0, own) for i, own in enumerate(numbers)]

    def server() -> None:
        mean = UpdateMean(dim)
        for update in updates:
            mean.add(work.rebuilt(update), update.weight)
        algorithm.server.step(0, (), work.x, mean.value())

    print(f"a server's round from coefficients, d = {dim:,}, M = {devices}, H = 5, b2 = 20")
    updates = updates[:1]
    server()  # compiled
    updates = [Update(i, np.empty(0), 1, 0, own) for i, own in enumerate(numbers)]
    everyone = os.sched_getaffinity(0)
    for count in sorted({1, len(everyone)}):
        own = set(sorted(everyone)[:count])
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), own)
        began, busy = time.perf_counter(), time.process_time()
        server()
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
        print(f"  {count} of {cores()} cores: {seconds:6.1f} s, {busy:6.1f} s of CPU time")
    tracemalloc.start()
    updates = updates[:3]
    server()
    print(f"  memory: {tracemalloc.get_traced_memory()[1] / work.x.nbytes:.2f} models besides x")


def processes(few: int = 4, many: int = 16) -> None:
    """Compare the CPU time of a message on a real node of Flower's and on one of fedzo's."""
    from flwr.cli.build import build_fab_from_disk

    print("CPU time of a node for each message of a round, softmax regression, 50 devices")
    listed = hashlib.sha256(build_fab_from_disk(APP)).hexdigest()
    for name in ("flower-supernode", "fedzo node start"):
        with tempfile.TemporaryDirectory() as folder, RealFederation(Path(folder)) as federation:
            (Path(folder) / "bin" / "flower-superexec").unlink()  # which is of neither
            file = Path(folder) / "node.toml"
            file.write_text(f'apps = ["{listed}"]\n' if name == "fedzo node start" else "")
            config = f'partition-id=0 num-partitions=1 node-file="{file}"'
            node = federation.start_node("node", config, pinned=name == "fedzo node start").pid
            spent = []
            for count in (few, few, many):  # the first of them loads and starts what stays
                before = cpu_seconds(node)
                settings = {"run.rounds": count, "run.evaluate-every": many}
                run = federation.run(APP, settings)
                federation.wait(run, 900)
                spent.append(cpu_seconds(node) - before)
        print(f"  {name:24s} {(spent[2] - spent[1]) / (many - few):8.2f} s", flush=True)


def join(nodes: int = 3) -> None:
    """Time nodes from `fedzo node start` until the log of a waiting run says that they joined."""
    print("from `fedzo node start` to a node that has joined a run, softmax regression, 50 devices")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder, fedzo_command = Path(name), [sys.executable, "-m", "fedzo_command"]

        def told(words: list[str]) -> list[str]:
            words = [*fedzo_command, *words]
            done = subprocess.run(words, cwd=folder, text=True, capture_output=True, check=True)
            return done.stdout.splitlines()

        def start(*words: str) -> subprocess.Popen[str]:
            made = subprocess.Popen(
                [*fedzo_command, *words],
                cwd=folder,
                text=True,
                stdout=subprocess.PIPE if words[0] == "server" else subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
            )
            running.callback(made.wait)
            running.callback(made.terminate)
            return made

        ports = ["--port", str(free_port()), "--superlink", str(free_port())]
        init = ["server", "init", "--name", "localhost", "--listen", "127.0.0.1", *ports]
        (printed,) = (shlex.split(one)[1:] for one in told(init) if "fedzo node init" in one)
        start("server", "start")
        while not (folder / "fedzo-server" / "log" / "nginx.pid").exists():
            time.sleep(0.2)
        for i in range(nodes):
            if i:  # each compiles the same
                shutil.copytree(folder / "node-0" / "kernels", folder / f"node-{i}" / "kernels")
            own = f"{50 * i // nodes}-{50 * (i + 1) // nodes - 1}"
            lines = told([*printed[:-1], own, "--dir", f"node-{i}"])
            told(shlex.split(next(one for one in lines if "fedzo server add" in one))[1:])
        waits = "flower.quorum=1.0"
        run = start("server", "run", "--set", "run.rounds=1", "--set", waits, "--out", "first")
        assert run.stdout is not None
        waiting = (line for line in run.stdout if "of 50 devices" in line or "no device" in line)
        next(waiting)
        walls, cpus = [], []
        for i in range(nodes):
            began, load = time.perf_counter(), os.getloadavg()[0]
            node = start("node", "start", "--dir", f"node-{i}")
            next(line for line in run.stdout if "has joined" in line)
            walls.append(time.perf_counter() - began)
            cpus.append(cpu_seconds(node.pid))
            spent = f"{walls[-1]:5.1f} s, {cpus[-1]:5.1f} s of CPU time"
            print(f"  {spent}, load {load:.1f}", flush=True)
        print(f"  {statistics.median(walls):5.1f} s, {statistics.median(cpus):5.1f} s: median\n")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, those below it, and those of theirs that have ended."""
    ticks = 0
    for one in (pid, *children(pid)):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


PARTS = {
    "messages": messages,
    "bytes": count_bytes,
    "rebuild": rebuild,
    "processes": processes,
    "join": join,
}


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
