"""Start a node that runs only the apps on its list, and fork its processes from a warm one.

An app is code, and a Flower node runs any app that the server sends. ``flwr build`` makes the same
archive from the same files, so the SHA-256 of the archive identifies the code. :func:`start_node`
starts a SuperNode that runs an app only if the node file lists its SHA-256 under ``apps``.

A server can declare a run to be of another task type, and Flower then starts another command for
it. So the node accepts tasks of one type, ``flwr-clientapp``, and replies to all others with an
error (:mod:`fedzo.flower.watchdog`). As a second barrier, the process that starts task commands
calls :func:`run_task` in place of them: for ``flwr-clientapp`` it runs listed apps, for others
nothing.

Flower's own ``flower-supernode`` does not read ``apps``. On such a node fedzo's ClientApp rejects
all messages if ``apps`` is set, see :func:`check_enforced`, but nothing stops another app.

Flower starts a process for each message, and a short message costs little more than the imports of
that process. :func:`superexec` forks it from a process that has imported libraries, but no app and
no message. On macOS, where a fork is not safe, and on Windows, each message starts a new process.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Everything else is imported where it is used, because this module starts for each message.

FLOWER = ("1.41", "1.42")  # the versions whose task commands were tested

PRELOADED = ("flwr.supernode.cli", "httpcore", "fedzo.flower.client", "fedzo.runs.registry")

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
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; a node has one message at a time
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
    from flwr.supernode import cli

    from fedzo.errors import UsageError
    from fedzo.flower.errors import Rejected, log
    from fedzo.flower.policy import NodeConfig
    from fedzo.flower.watchdog import watch

    if ".".join(flwr.__version__.split(".")[:2]) not in FLOWER:
        text = f"fedzo node start supports Flower {' and '.join(FLOWER)}, not {flwr.__version__}"
        raise UsageError(text, code="flower-version")
    node = NodeConfig.parse(node_config)
    if not node.apps:
        raise UsageError(
            "apps: missing; list the SHA-256 of each app that this node may run in the file that "
            "--node-config 'node-file=\"...\"' names",
            code="no-apps",
        )
    if node.secure is not None:
        try:
            node.member()
        except Rejected as error:  # it could be in no sum
            raise UsageError(f"secure: {error}", code="node-config") from None
    watch()
    sys.argv = ["flower-supernode", *arguments]
    try:
        cli.flower_supernode()
    except Exception as error:  # Flower's other threads would keep the process, and answer nothing
        log.error("the node ends: %s: %s", type(error).__name__, error)
        os._exit(1)


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


def run_task(words: list[str]) -> None:
    """Run Flower's client process for a task command; only a client app's loads an app.

    The app is unpacked to an empty folder and loaded from there. Flower would take the folder's
    name from the run, so a server could name a folder with other code.
    """
    import tempfile

    import numpy as np
    from flwr.supernode import cli
    from flwr.supernode.runtime import run_clientapp

    from fedzo.errors import UsageError
    from fedzo.flower.watchdog import CLIENT

    global _enforced
    _enforced, sys.argv = True, words
    np.random.seed()  # noqa: NPY002 - an app may draw from it: not the same for each message
    flower: Any = run_clientapp
    pull, install = flower.pull_task_input, flower.install_from_fab
    loader = flower.get_load_client_app_fn
    node_config: dict[str, Any] = {}
    unpacked: list[Path] = []

    def pulled(client: Any) -> Any:
        message, context, run, fab = pull(client)
        node_config.update(context.node_config)
        return message, context, run, fab

    def installed(archive: bytes, **options: Any) -> Path:
        if words[0] != CLIENT:
            text = f"this node runs {CLIENT} tasks only, not {words[0]}"
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


def superexec(run: Callable[[list[str]], None] = run_task) -> None:
    """Run Flower's SuperExec, which starts a process for each message: a fork of a warm one.

    ``run`` is called in the new process, with the words of Flower's command.
    """
    import multiprocessing
    import multiprocessing.util
    from multiprocessing.forkserver import ensure_running

    # Elsewhere a fork of a process with libraries is not safe.
    kind = "forkserver" if sys.platform == "linux" else "spawn"
    processes: Any = multiprocessing.get_context(kind)
    processes.set_forkserver_preload(list(PRELOADED))
    # Python 3.11.0 prefers an abstract socket, which every user of the machine can connect to.
    sockets: Any = multiprocessing.util
    sockets.abstract_sockets_supported = False
    if kind == "forkserver":
        ensure_running()  # it imports while this process does, before the first message is there
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    def start(words: list[str], **_: Any) -> None:
        processes.Process(target=run, args=(words,)).start()

    module: Any = subprocess_executor
    module.subprocess = SimpleNamespace(Popen=start, DEVNULL=None)
    try:
        flower_superexec()
    finally:
        os._exit(0)  # processes that are left notice it, and end
