"""Start a node that runs only the apps on its list, and fork its processes from a warm one.

An app is code, and a Flower node runs any app that the server sends. ``flwr build`` makes the same
archive from the same files, so the SHA-256 of the archive identifies the code. :func:`start_node`
starts a SuperNode that runs an app only if the node file lists its SHA-256 under ``apps``.

A server can declare a run to be of another task type, and Flower then starts another command for
it. So the node accepts tasks of one type, ``flwr-clientapp``, and replies to all others with an
error (:mod:`fedzo.flower.watchdog`). As a second barrier it has a launcher for every task command,
first in its ``PATH``: that of ``flwr-clientapp`` runs listed apps, the others run nothing.

Flower's own ``flower-supernode`` does not read ``apps``. On such a node fedzo's ClientApp rejects
all messages if ``apps`` is set, see :func:`check_enforced`, but nothing stops another app.

Flower starts a process for each message, and a short message costs little more than the imports of
that process. :func:`prefork` keeps the first process of a node, which has imported libraries but no
app and no message, and forks the later ones from it. It ends with its node. On macOS, where a fork
is not safe, and on Windows, each message starts a new process.
"""

import contextlib
import importlib
import json
import os
import shutil
import socket
import socketserver
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

# Everything else is imported where it is used, because this module starts for each message.

FLOWER = ("1.41", "1.42")  # the versions whose task commands were tested
CLIENT = "flwr-clientapp"  # the only task command that a node needs

PRELOADED = ("flwr.supernode.cli", "httpcore", "fedzo.flower.client", "fedzo.runs.registry")
_LONGEST = 2**16  # bytes of a command line

_enforced = False  # whether this process runs listed apps only


def command(name: str) -> str:
    """Return the path of a command of this environment, or of the system."""
    own = Path(sys.executable).parent / name
    return str(own) if own.exists() else shutil.which(name, path=_path()) or name


def _path() -> str:
    own, system = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    return os.pathsep.join([own, system, "/usr/sbin"])


def environment(folder: Path) -> dict[str, str]:
    """Return the settings of Flower's processes and of compiled code, all within a folder."""
    return {
        "PATH": _path(),  # Flower starts its processes by name
        "FLWR_HOME": str(folder / "flwr"),
        "NUMBA_CACHE_DIR": str(folder / "kernels"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


# ---------------------------------------------------------------------------------- the list


def start_node(node_config: str, arguments: Sequence[str]) -> None:
    """Start a SuperNode that runs only the apps which its configuration lists.

    Parameters
    ----------
    node_config : str
        The node's configuration, as ``flower-supernode --node-config`` takes it.
    arguments : sequence of str
        All arguments for ``flower-supernode``, this configuration among them.

    Examples
    --------
    >>> start_node("", ["--insecure"])
    Traceback (most recent call last):
    fedzo.errors.UsageError: apps: missing; list the SHA-256 of each app that this node may run in
    the file that --node-config 'node-file="..."' names
    """
    import flwr
    from flwr.supernode.cli import flower_supernode

    from fedzo.errors import UsageError
    from fedzo.flower.errors import log
    from fedzo.flower.policy import NodeConfig
    from fedzo.flower.watchdog import watch

    if ".".join(flwr.__version__.split(".")[:2]) not in FLOWER:
        text = f"fedzo node start supports Flower {' and '.join(FLOWER)}, not {flwr.__version__}"
        raise UsageError(text, code="flower-version")
    if not NodeConfig.parse(node_config).apps:
        raise UsageError(
            "apps: missing; list the SHA-256 of each app that this node may run in the file that "
            "--node-config 'node-file=\"...\"' names",
            code="no-apps",
        )
    put_launchers_first()
    watch()
    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    except Exception as error:  # Flower's other threads would keep the process, and answer nothing
        log.error("the node ends: %s: %s", type(error).__name__, error)
        os._exit(1)


def put_launchers_first() -> None:
    """Write a launcher for each task command of Flower, and put them first in ``PATH``."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType

    from fedzo.errors import UsageError
    from fedzo.flower.replay import flower_home

    folder = flower_home() / "fedzo-launchers"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] = os.pathsep.join([str(folder), _path()])
    for task in TaskType:
        command = TASK_TYPE_TO_COMMAND[task]
        launcher = folder / command
        launcher.write_text(
            f'#!/bin/sh\nexec {quote(sys.executable)} -P -m fedzo.flower.allowlist {command} "$@"\n'
        )
        launcher.chmod(0o755)
        if shutil.which(command) != str(launcher):  # such as on a disk mounted with noexec
            text = f"{launcher} cannot be executed, so this node could run any app"
            raise UsageError(text, code="launcher")


def check_enforced(apps: Sequence[str]) -> None:
    """Reject messages if apps are listed, but this process would run others as well.

    >>> check_enforced(["de2abade832c..."])
    Traceback (most recent call last):
    fedzo.flower.errors.Rejected: apps is set, but this node was started by flower-supernode, which
    runs any app: start it with fedzo node start
    """
    from fedzo.flower.errors import ErrorCode, Rejected

    if apps and not _enforced:
        raise Rejected(
            ErrorCode.NOT_PINNED,
            "apps is set, but this node was started by flower-supernode, which runs any app: "
            "start it with fedzo node start",
        )


def require_listed(node_config: Mapping[str, Any], archive: bytes) -> None:
    """Raise unless a node's configuration lists an app's archive.

    Flower sends the text of the error to the server, so it has nothing that the server does not
    know.

    >>> require_listed({"apps": []}, b"import os")
    Traceback (most recent call last):
    fedzo.errors.UsageError: this node does not run the app with the SHA-256 de2abade832c...
    """
    import hashlib

    from fedzo.errors import UsageError
    from fedzo.flower.errors import log
    from fedzo.flower.policy import NodeConfig

    try:
        apps = NodeConfig.read(node_config).apps
    except Exception as error:
        log.error("%s: %s", type(error).__name__, error)
        text = "this node cannot read its configuration"
        raise UsageError(text, code="node-config") from None
    found = hashlib.sha256(archive).hexdigest()
    if found not in apps:
        text = f"this node does not run the app with the SHA-256 {found}"
        raise UsageError(text, code="app-not-listed")


def run_listed() -> None:
    """Run Flower's client process, which can load listed apps only."""
    run_task(CLIENT)


def run_task(command: str) -> None:
    """Run Flower's client process for a task command; only a client app's loads an app.

    The app is unpacked to an empty folder and loaded from there. Flower would take the folder's
    name from the run, so a server could name a folder with other code.
    """
    import tempfile

    from flwr.supernode import cli
    from flwr.supernode.runtime import run_clientapp

    from fedzo.errors import UsageError

    global _enforced  # noqa: PLW0603 - a process runs one task, and it holds for all of it
    _enforced = True
    flower: Any = run_clientapp
    pull, install, loader = (
        flower.pull_task_input,
        flower.install_from_fab,
        flower.get_load_client_app_fn,
    )
    node_config: dict[str, Any] = {}
    unpacked: list[Path] = []

    def pulled(client: Any) -> Any:
        message, context, run, fab = pull(client)
        node_config.update(context.node_config)
        return message, context, run, fab

    def installed(archive: bytes, **options: Any) -> Path:
        if command != CLIENT:
            text = f"this node runs {CLIENT} tasks only, not {command}"
            raise UsageError(text, code="task-type")
        require_listed(node_config, archive)
        unpacked.append(Path(install(archive, **{**options, "install_dir": Path(empty)})))
        return unpacked[0]

    def load_unpacked(**options: Any) -> Any:
        return loader(**{**options, "app_path": str(unpacked[0]), "multi_app": True})

    with tempfile.TemporaryDirectory() as empty:
        flower.pull_task_input, flower.install_from_fab = pulled, installed
        flower.get_load_client_app_fn = load_unpacked
        flower.get_project_dir = lambda *_: unpacked[0]
        cli.flwr_clientapp()


# ------------------------------------------------------------------------------ the processes


def prefork(run: Callable[[], None]) -> None:
    """Call a function, which ``sys.argv`` is for, in a fork of the node's warm process.

    If this node has no warm process yet, this one becomes it.
    """
    if not sys.platform.startswith("linux"):
        return run()
    node, arguments = os.getppid(), json.dumps(sys.argv[1:]).encode()
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    home.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(home):  # the path of a socket has at most about 100 characters
        name = f"clientapp-{node}.socket"
        if _handed_over(name, arguments):
            return None
        try:
            server = _ForkServer(name, run)
        except OSError:  # another process is about to become the warm one
            return run()
    try:
        server.serve(node, arguments)
    finally:
        (home / name).unlink(missing_ok=True)


def _handed_over(name: str, arguments: bytes) -> bool:
    """Send the arguments to the warm process; return whether it exists and took them."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(name)
            if _peer(line)[1] != os.getuid():
                return False
            line.sendall(arguments)
            line.shutdown(socket.SHUT_WR)
            return line.recv(1) == b"+"
        except ConnectionRefusedError:  # it was killed
            Path(name).unlink(missing_ok=True)
            return False
        except OSError:
            return False


def _peer(line: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a socket."""
    found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", found)
    return pid, user


if sys.platform.startswith("linux"):

    class _ForkServer(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
        """Forks a process for each command line that a process of its node sends.

        Other processes are rejected before a fork. A process that connects and sends nothing costs
        a fork that waits for it; the next one is served meanwhile.
        """

        timeout = 1.0  # seconds, between checks that the node lives
        max_children = 10**6
        request_queue_size = 128

        def __init__(self, name: str, run: Callable[[], None]) -> None:
            self.run, self.node = run, os.getppid()
            before = os.umask(0o177)  # only this user can connect
            try:
                super().__init__(name, socketserver.BaseRequestHandler)
            finally:
                os.umask(before)

        def serve(self, node: int, arguments: bytes) -> None:
            """Fork while the node lives, and first for these arguments."""
            for module in PRELOADED:
                importlib.import_module(module)
            random = importlib.import_module("fedzo.core.random")
            random.Draws(seed=0, stream=random.Stream.INIT).words(1)  # numba loads on first use
            ours, theirs = socket.socketpair()
            ours.sendall(arguments)
            ours.shutdown(socket.SHUT_WR)
            self.process_request(theirs, None)
            while os.getppid() == node:
                self.handle_request()
                self.service_actions()  # removes the processes that have ended

        def verify_request(self, request: Any, client_address: Any) -> bool:
            """Return whether the connection is from a process that the node has started."""
            pid, user = _peer(request)
            try:
                status = Path(f"/proc/{pid}/stat").read_text()
            except OSError:  # it has ended
                return False
            return user == os.getuid() and int(status.rpartition(")")[2].split()[1]) == self.node

        def finish_request(self, request: Any, client_address: Any) -> None:
            """Run in the fork, which ends afterwards."""
            import numpy as np

            self.socket.close()
            request.settimeout(10.0)
            with request.makefile("rb") as sent:
                sys.argv[1:] = json.loads(sent.read(_LONGEST))
            request.sendall(b"+")
            request.close()
            np.random.seed()  # noqa: NPY002 - an app may draw from it: not the same for each message
            try:
                self.run()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()


if __name__ == "__main__":
    task_command = sys.argv.pop(1)
    if task_command == CLIENT:
        # This module is __main__. The client app reads _enforced of the imported one.
        prefork(importlib.import_module("fedzo.flower.allowlist").run_listed)
    else:
        run_task(task_command)
