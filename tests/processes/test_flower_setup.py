"""The commands of docs/deploy.md, read from the page and run as real processes on loopback.

Three things are changed: the name and the ports of the server, the folders, and `pip install`,
which is left out because the package under test is installed.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from flower_federation import children
from loopback import HERE, until

import fedzo
from fedzo.flower.setup import environment, free_port

pytestmark = pytest.mark.processes

PAGE = (HERE / "docs" / "deploy.md").read_text()
FEDZO = [sys.executable, "-m", "fedzo_command"]


def commands():
    """Return the commands of the section, in their order, each with the host that it is for."""
    section = PAGE.partition("## Twelve commands")[2].partition("\n## ")[0]
    blocks = re.findall(r"\nOn (\S[^:`]*?):\n|```sh\n(.*?)```", "\n" + section, re.DOTALL)
    return [line for _, block in blocks for line in block.splitlines()]


def test_a_server_and_two_nodes_take_twelve_commands():
    page = commands()
    assert len(page) + 1 == 12  # `fedzo node start` stands there once for each of two nodes


def cpu_seconds(pid):
    """Return the CPU time of a process and of those below it, also of those that have ended."""
    ticks = 0
    for one in (pid, *children(pid)):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Walk:
    """Runs commands in a folder, and ends what it has started."""

    def __init__(self, folder):
        self.folder, self.started, self.seconds = folder, [], {}

    def run(self, words, *more, code=0):
        began, lines = time.monotonic(), []
        with subprocess.Popen(
            [*FEDZO, *words, *more],
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            for line in process.stdout:
                lines.append(line)
                for event in ("Start `flwr-serverapp`", "has joined"):
                    if event in line:
                        self.seconds[event] = time.monotonic() - began
                        nodes = [cpu_seconds(one.pid) for one in self.started[1:]]
                        self.seconds[f"CPU of each node, {event}"] = max(nodes, default=0.0)
        self.seconds[" ".join(words[:2])] = time.monotonic() - began
        assert process.returncode == code, "".join(lines)
        return "".join(lines)

    def start(self, words, *more):
        with (self.folder / f"{'-'.join(words[:2])}-{len(self.started)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*FEDZO, *words, *more],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def close(self):
        for process in reversed(self.started):
            process.send_signal(signal.SIGTERM)
        for process in self.started:
            process.wait(60)


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    made = Walk(tmp_path_factory.mktemp("walk"))
    yield made
    made.close()


def written(folder):
    """Return the files of a server and of nodes that commands must not change."""
    names = ("*.toml", "*.pem", "*.key", "node-key*", "*.service", "*.conf", "*.id", "app/**/*")
    found = {path for name in names for path in folder.glob(f"*/{name}") if path.is_file()}
    return {path: path.read_bytes() for path in found}


def test_page_is_walked(walk):
    page = [shlex.split(line)[1:] for line in commands() if line.startswith("fedzo")]
    init, start, first, second, *_ = page
    ports = ["--port", str(free_port()), "--superlink", str(free_port()), "--listen", "127.0.0.1"]
    init = [word.replace("federation.example.org", "localhost") for word in init]
    told = walk.run(init, *ports)
    walk.start(start)
    printed = shlex.split(next(line for line in told.splitlines() if "fedzo node init" in line))[1:]
    until((walk.folder / "fedzo-server" / "log" / "nginx.pid").exists)
    keys = []
    for i, words in enumerate((first, second)):
        # The page has the printed command, apart from the address and the digests.
        options = dict(zip(words[2::2], words[3::2], strict=True))
        given = dict(zip(printed[2::2], printed[3::2], strict=True))
        assert options.keys() == given.keys()
        assert {k for k in given if options[k] != given[k]} == {
            *("--server", "--ca", "--app", "--devices")
        }
        mine = [*printed[:-1], options["--devices"]]
        told = walk.run(mine, "--dir", f"node-{i}")
        keys.append(next(line for line in told.splitlines() if "fedzo server add" in line))
    for words, key in zip(page[4:6], keys, strict=True):
        told = shlex.split(key)[1:]
        assert told[:2] == words[:2]
        assert told[3:] == words[3:]
        walk.run(told)
        told_last = told
    for i in range(2):
        walk.start(page[6], "--dir", f"node-{i}")
    compiled = sorted(walk.folder.glob("node-*/kernels/**/*.nbc"))
    assert {path.relative_to(walk.folder).parts[0] for path in compiled} == {"node-0", "node-1"}
    assert any(walk.folder.glob("fedzo-server/kernels/**/*.nbc"))
    # The runs of a federation whose nodes are not there yet wait for them.
    until(lambda: all((walk.folder / f"node-{i}/flwr/fedzo-alive").exists() for i in range(2)))
    told = walk.run([*page[7][:4], "--set", "run.rounds=4", *page[7][4:]])
    assert "finished" in told
    assert told.count("has joined with devices") == 2
    # A run compiles nothing on a node.
    assert sorted(walk.folder.glob("node-*/kernels/**/*.nbc")) == compiled
    # The same run in one process has the same model.
    here = fedzo.config.experiment.Experiment.load(walk.folder / "first" / "config.toml", {}).run()
    there = np.load(walk.folder / "first" / "model.npy")
    np.testing.assert_allclose(there, here.last, rtol=0, atol=1e-6)
    # Repeated commands change no file, and a node whose line was taken out can be added again.
    bindings = walk.folder / "fedzo-server" / "nodes.toml"
    lines = bindings.read_text().splitlines(keepends=True)
    bindings.write_text("".join(lines[:-1]))
    before = written(walk.folder)
    walk.run(init, *ports)
    walk.run(mine, "--dir", "node-1")
    assert written(walk.folder) == before
    walk.run(told_last)
    assert bindings.read_text().splitlines(keepends=True) == lines
    assert "has this node" in walk.run(told_last)
    for i in range(2):
        lines = walk.run(["node", "status"], "--dir", f"node-{i}").splitlines()
        assert lines[0] == "health: good"
        assert any(line.startswith("last round: ") and "of run" in line for line in lines)
    print({name: round(seconds, 1) for name, seconds in walk.seconds.items()})


def test_a_wrong_digest_is_another_server(walk):
    folder = walk.folder / "fedzo-server"
    name = re.search(r"server_name (\S+);", (folder / "nginx.conf").read_text())[1]
    port = re.search(r"listen 127.0.0.1:(\d+)", (folder / "nginx.conf").read_text())[1]
    words = ["node", "init", "--server", f"{name}:{port}", "--ca", "00" * 32, "--app", "00" * 32]
    words += ["--problem", "softmax", "--devices", "0-24", "--dir", "stranger"]
    assert "this is not the server that you were told of" in walk.run(words, code=2)
    assert not (walk.folder / "stranger" / "node-key").exists()


def test_server_ends_what_it_has_started(walk):
    server = walk.started[0]
    below = children(server.pid)
    assert len(below) >= 2  # the SuperLink, its own processes and nginx
    walk.close()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), 60)
    walk.started.clear()
    assert environment(walk.folder)["FLWR_HOME"] == str(walk.folder / "flwr")
