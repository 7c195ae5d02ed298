"""A node's processes are forked from one that is warm, and each is as good as new."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks"),
]

# Stands for Flower's SuperExec: it starts a process for each line, by the module that Flower's
# does, and waits for none. Each tells who it is, and what a message must not share with another.
SUPEREXEC = """
import json, os, random, sys
from fedzo.flower import allowlist

def tell(words):
    import numpy as np
    from fedzo.flower.allowlist import run_task
    import flwr.supernode.cli as flower
    name, code = words
    def told():
        told = {"pid": os.getpid(), "parent": os.getppid(), "arguments": sys.argv}
        told["drawn"] = [random.random(), np.random.random()]
        told["seen"] = getattr(sys, "seen", 0)
        sys.seen = 1
        with open(f"{os.environ['FLWR_HOME']}/{name}", "x") as file:
            json.dump(told, file)
        sys.exit(int(code))
    flower.flwr_clientapp = told
    run_task(words)

def read_lines():
    from flwr.supercore.superexec.executor import subprocess_executor
    for line in sys.stdin:
        subprocess_executor.subprocess.Popen(line.split())

if __name__ == "__main__":
    import flwr.supercore.cli as flower
    flower.flower_superexec = read_lines
    allowlist.PRELOADED = ("numpy",)
    allowlist.superexec(tell)
"""


@pytest.fixture
def temporary():
    """Return a short folder for sockets, which everybody may enter and write to, as /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@pytest.fixture
def superexec(tmp_path, temporary):
    (tmp_path / "superexec.py").write_text(SUPEREXEC)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "superexec.py")],
        stdin=subprocess.PIPE,
        env={**os.environ, "FLWR_HOME": str(tmp_path), "TMPDIR": str(temporary)},
        text=True,
    ) as process:
        process.home = tmp_path
        yield process
        process.kill()


def told(superexec, name, code=0):
    """Have the SuperExec start a process; return what it wrote."""
    superexec.stdin.write(f"{name} {code}\n")
    superexec.stdin.flush()
    return until(lambda: json.loads((superexec.home / name).read_text() or "0"))


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


def test_each_message_has_a_fresh_process(superexec):
    messages = [told(superexec, f"message-{i}", code=i % 2) for i in range(4)]
    assert [m["arguments"][0] for m in messages] == [f"message-{i}" for i in range(4)]
    assert len({m["pid"] for m in messages}) == 4
    assert len({m["parent"] for m in messages}) == 1  # the one that stays
    assert {m["seen"] for m in messages} == {0}
    for kind in (0, 1):
        assert len({m["drawn"][kind] for m in messages}) == 4
    until(lambda: all(gone(m["pid"]) for m in messages))  # none is left as a zombie


@pytest.mark.parametrize("end", ["kill", "close"])
def test_the_warm_process_ends_with_its_node(superexec, end):
    first = told(superexec, "first")
    superexec.kill() if end == "kill" else superexec.stdin.close()
    superexec.wait(30)
    until(lambda: gone(first["parent"]))


def test_another_one_takes_its_place(superexec):
    first = told(superexec, "first")
    os.kill(first["parent"], signal.SIGKILL)
    until(lambda: Path(f"/proc/{first['parent']}/stat").read_text().split()[2] == "Z")
    second = told(superexec, "second")
    assert second["parent"] != first["parent"]
    assert told(superexec, "third")["parent"] == second["parent"]


def listening_below(pid):
    """Return the Unix sockets on which a process and its children listen; abstract ones have @."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    inodes = set()
    for one in (pid, *children):
        for file in Path(f"/proc/{one}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    accepts = "00010000"  # the flag of a socket that listens
    return {line[7] for line in lines if line[3] == accepts and line[6] in inodes}


def connect_as_nobody(paths, told):
    """Try to connect as another user, and stay silent."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    outcomes, held = [], []
    for path in paths:
        held.append(socket.socket(socket.AF_UNIX))
        try:
            held[-1].connect(path)
            outcomes.append("connected")
        except OSError as error:
            outcomes.append(type(error).__name__)
    told.send(outcomes)
    told.recv()


def test_no_other_user_can_connect_to_the_warm_process(superexec, temporary):
    """Who connects could have code run, or stay silent so that no message is answered."""
    told(superexec, "first")
    paths = listening_below(superexec.pid)
    assert len(paths) == 1
    (path,) = map(Path, paths)
    assert path.parent.parent == temporary  # not abstract: those have no permissions
    for one, mode in ((path, 0o600), (path.parent, 0o700)):
        assert one.stat().st_uid == os.geteuid()
        assert stat.S_IMODE(one.stat().st_mode) == mode
    if os.geteuid():
        return  # only root can try it as another user
    probe = temporary / "open"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(probe))
        probe.chmod(0o777)
        listener.listen()
        here, there = multiprocessing.Pipe()
        other = multiprocessing.get_context("fork").Process(
            target=connect_as_nobody, args=([str(probe), str(path)], there)
        )
        other.start()
        assert here.recv() == ["connected", "PermissionError"]  # the folder above is open to it
        second = told(superexec, "second")  # while the other user waits
        here.send("end")
        other.join(30)
    assert second["pid"]
