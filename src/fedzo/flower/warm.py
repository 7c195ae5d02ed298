"""A process for each message that does not import everything anew.

Flower starts a process ``flwr-clientapp`` for each message to a node, and a short message costs
little more than what that process imports: Flower, numba. Here the first one of a node stays and
waits, and those for later messages are forked from it. It has imported libraries and nothing else,
neither an app nor a message, so what is forked from it is as good as new. It ends with its node.

A node has it if its ``PATH`` has a ``flwr-clientapp`` before Flower's own that runs
``python -m fedzo.flower.warm`` or, for listed apps only, :mod:`fedzo.flower.pinned`. Where
forking is not safe (macOS) or does not exist (Windows), each message gets a process as before.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

FLOWERS_OWN = "flwr.supernode.cli:flwr_clientapp"
IMPORTED = ("flwr.supernode.cli", "httpcore", "fedzo.flower.client", "fedzo.runs.registry")
_REQUEST = 2**16  # bytes: a command line


def run(command: str) -> None:
    """Run a command of Flower's, given as ``module:function``, in a process that is warm.

    ``sys.argv`` are its arguments. If this node has no such process yet, this one becomes it.
    """
    if not sys.platform.startswith("linux"):
        return _call(command)
    node = os.getppid()
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    home.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(home):  # a path to a socket may only have a hundred letters
        name = f"clientapp-{node}.socket"
        if _handed_over(name):
            return None
        listener = _listen(name)
    if listener is None:  # another one is just becoming it
        return _call(command)
    try:
        _serve(listener, command, node)
    finally:
        (home / name).unlink(missing_ok=True)


def _handed_over(name: str) -> bool:
    """Have the warm process take the arguments; tell whether there is one, and it did."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(name)
            line.sendall(json.dumps(sys.argv[1:]).encode())
            line.shutdown(socket.SHUT_WR)
            return line.recv(1) == b"+"
        except ConnectionRefusedError:  # it was killed
            Path(name).unlink(missing_ok=True)
            return False
        except OSError:
            return False


def _listen(name: str) -> socket.socket | None:
    """Return a socket that only this user can connect to; None if somebody else has it."""
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(name)
        listener.listen()
    except OSError:
        listener.close()
        return None
    finally:
        os.umask(before)
    return listener


def _serve(listener: socket.socket, command: str, node: int) -> None:
    """While the node lives, fork a process for each command line, and first for our own."""
    _warm_up()
    _fork(listener, command, sys.argv[1:])
    while os.getppid() == node:
        ready, _, _ = select.select([listener], [], [], 1.0)
        for _ in ready:
            with listener.accept()[0] as line, contextlib.suppress(OSError, ValueError):
                line.settimeout(10.0)
                with line.makefile("rb") as told:
                    _fork(listener, command, json.loads(told.read(_REQUEST)))
                line.sendall(b"+")
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _warm_up() -> None:
    """Do what every message would: import, and have numba load what it loads on its first call."""
    for module in IMPORTED:
        importlib.import_module(module)
    random = importlib.import_module("fedzo.core.random")
    random.Draws(seed=0, stream=random.Stream.INIT).words(1)


def _fork(listener: socket.socket, command: str, arguments: list[str]) -> None:
    """Run the command in a process of its own."""
    if os.fork() == 0:
        listener.close()
        sys.argv[1:] = arguments
        _run_and_end(command)


def _run_and_end(command: str) -> NoReturn:
    """Run the command and end the process, which must never return to its parent's loop."""
    import numpy as np

    np.random.seed()  # noqa: NPY002 - an app may draw from it: not the same for each message
    code = 1
    try:
        _call(command)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _call(command: str) -> None:
    """Import and call what ``module:function`` names."""
    module, _, function = command.partition(":")
    getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    run(FLOWERS_OWN)
