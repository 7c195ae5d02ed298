"""A node's processes are forked from one that is warm, and each is as good as new."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks"),
]

# Stands for Flower's command: it tells who it is, and what a message must not share with another.
COMMAND = """
import json, os, random, sys
import numpy as np

def tell():
    told = {"pid": os.getpid(), "parent": os.getppid(), "arguments": sys.argv[1:]}
    told["drawn"] = [random.random(), np.random.random()]
    told["seen"] = getattr(sys, "seen", 0)
    sys.seen = 1
    with open(f"{os.environ['FLWR_HOME']}/{sys.argv[1]}", "x") as file:
        json.dump(told, file)
    sys.exit(int(sys.argv[2]))
"""
# Stands for the node: it starts a process for each line, as Flower does, and waits for none.
NODE = """
import subprocess, sys
for line in sys.stdin:
    code = sys.argv[2] if line.startswith("silent") else sys.argv[1]
    subprocess.Popen([sys.executable, "-c", code, *line.split()])
"""
SILENT = """
import os, socket, sys, time
os.chdir(os.environ["FLWR_HOME"])
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[2])
time.sleep(30)
"""
LAUNCHER = (
    "import command; from fedzo.flower import allowlist;"
    "allowlist.PRELOADED = ('numpy',); allowlist.prefork(command.tell)"
)


@pytest.fixture
def node(tmp_path):
    home = tmp_path / ("a-long-name" * 12)  # longer than the address of a socket may be
    home.mkdir()
    (tmp_path / "command.py").write_text(COMMAND)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    with subprocess.Popen(
        [sys.executable, "-c", NODE, LAUNCHER, SILENT],
        stdin=subprocess.PIPE,
        env={**os.environ, "FLWR_HOME": str(home), "PYTHONPATH": path},
        text=True,
    ) as process:
        process.home = home
        yield process
        process.kill()


def told(node, name, code=0):
    """Have the node start the command; return what it wrote."""
    node.stdin.write(f"{name} {code}\n")
    node.stdin.flush()
    return until(lambda: json.loads((node.home / name).read_text() or "0"))


def until(what):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if found := what():
                return found
        except (FileNotFoundError, ValueError):
            pass
        time.sleep(0.02)
    raise TimeoutError


def gone(pid):
    return not Path(f"/proc/{pid}").exists()


def test_each_message_has_a_fresh_process(node):
    messages = [told(node, f"message-{i}", code=i % 2) for i in range(4)]
    assert [m["arguments"][0] for m in messages] == [f"message-{i}" for i in range(4)]
    assert len({m["pid"] for m in messages}) == 4
    assert len({m["parent"] for m in messages}) == 1  # the one that stays
    assert {m["seen"] for m in messages} == {0}
    for kind in (0, 1):
        assert len({m["drawn"][kind] for m in messages}) == 4
    until(lambda: all(gone(m["pid"]) for m in messages))  # none is left as a zombie


def test_it_ends_with_its_node_and_only_its_user_reaches_it(node):
    first = told(node, "first")
    (path,) = node.home.glob("*.socket")
    assert path.stat().st_mode & 0o077 == 0
    node.kill()
    node.wait()
    until(lambda: gone(first["parent"]))
    until(lambda: not path.exists())


def test_strangers_are_rejected_and_silent_ones_delay_nobody(node):
    """Fifty connections of another process are closed; those of the node's own wait beside."""
    first = told(node, "first")
    (path,) = node.home.glob("*.socket")
    with contextlib.chdir(node.home), contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(50)]
        for line in strangers:
            line.connect(path.name)
            line.settimeout(60)
        assert [line.recv(1) for line in strangers] == [b""] * 50
    for _ in range(5):
        node.stdin.write(f"silent {path.name}\n")
    began = time.monotonic()
    second = told(node, "second")
    assert second["parent"] == first["parent"]
    assert time.monotonic() - began < 9  # a silent connection is closed after ten seconds


def test_another_one_takes_its_place(node):
    first = told(node, "first")
    os.kill(first["parent"], signal.SIGKILL)
    until(lambda: Path(f"/proc/{first['parent']}/stat").read_text().split()[2] == "Z")
    second = told(node, "second")
    assert second["parent"] != first["parent"]
    assert told(node, "third")["parent"] == second["parent"]
