"""A node that runs only the apps its operator has listed.

An app is code, and a Flower node runs any app that the server sends. ``flwr build`` makes the same
archive from the same files, so the SHA-256 of the archive identifies the code. :func:`start_node`
starts a SuperNode that runs an app only if the node file lists its SHA-256 under ``apps``.

A server can declare a run to be of another task type, and Flower then starts another command for
it. So the node has a launcher for every task command of Flower, first in its ``PATH``. The launcher
of ``flwr-clientapp`` runs listed apps, in a process of :mod:`fedzo.flower.warm`. All others send
the server an error and run nothing.

Flower's own ``flower-supernode`` does not read ``apps``. On such a node fedzo's ClientApp rejects
all messages if ``apps`` is set, see :func:`check_enforced`, but nothing stops another app.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from fedzo.flower import warm  # the rest is imported where it is used: this starts often

FLOWER = ("1.41", "1.42")  # the versions whose task commands were tested
CLIENT = "flwr-clientapp"  # the only task command that a node needs

_enforced = False  # whether this process runs listed apps only


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
    from flwr.common.config import parse_config_args
    from flwr.supernode.cli import flower_supernode

    from fedzo.errors import UsageError, shown
    from fedzo.flower.node import Node

    if ".".join(flwr.__version__.split(".")[:2]) not in FLOWER:
        supported = " and ".join(FLOWER)
        raise UsageError(f"fedzo node start supports Flower {supported}, not {flwr.__version__}")
    try:
        config = parse_config_args([node_config] if node_config else None)
    except Exception:
        allowed = "pairs such as 'node-file=\"node.toml\" partition-id=0'"
        raise UsageError(f"--node-config {shown(node_config)}: must be {allowed}") from None
    if not Node.read(config).apps:
        raise UsageError(
            "apps: missing; list the SHA-256 of each app that this node may run in the file that "
            "--node-config 'node-file=\"...\"' names"
        )
    put_launchers_first()
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def put_launchers_first() -> None:
    """Have Flower find our launcher for each of its task commands, before its own command."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
    from flwr.supercore.utils import get_flwr_home

    from fedzo.errors import UsageError

    folder = Path(get_flwr_home()) / "fedzo-launchers"
    folder.mkdir(parents=True, exist_ok=True)
    path = (str(folder), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    os.environ["PATH"] = os.pathsep.join(path)
    for task in TaskType:
        command = TASK_TYPE_TO_COMMAND[task]
        launcher = folder / command
        launcher.write_text(
            f'#!/bin/sh\nexec {quote(sys.executable)} -P -m fedzo.flower.pinned {command} "$@"\n'
        )
        launcher.chmod(0o755)
        if shutil.which(command) != str(launcher):  # as on a disk that is mounted noexec
            raise UsageError(f"{launcher} cannot be executed, so this node could run any app")


def check_enforced(apps: Sequence[str]) -> None:
    """Reject messages if apps are listed, but this process would run others as well.

    >>> check_enforced(["de2abade832c..."])
    Traceback (most recent call last):
    fedzo.flower.reasons.Refused: apps is set, but this node was started by flower-supernode, which
    runs any app: start it with fedzo node start
    """
    from fedzo.flower.reasons import Reason, Refused

    if apps and not _enforced:
        raise Refused(
            Reason.NOT_PINNED,
            "apps is set, but this node was started by flower-supernode, which runs any app: "
            "start it with fedzo node start",
        )


def require_listed(node_config: Mapping[str, Any], archive: bytes) -> None:
    """Raise unless a node's configuration lists an app's archive.

    Flower sends the message to the server, so it tells nothing but what the server knows.

    >>> require_listed({"apps": []}, b"import os")
    Traceback (most recent call last):
    fedzo.errors.UsageError: this node does not run the app with the SHA-256 de2abade832c...
    """
    import hashlib

    from fedzo.errors import UsageError
    from fedzo.flower import reasons
    from fedzo.flower.node import Node

    try:
        apps = Node.read(node_config).apps
    except Exception as error:
        reasons.log.error("%s: %s", type(error).__name__, error)
        raise UsageError("this node cannot read its configuration") from None
    found = hashlib.sha256(archive).hexdigest()
    if found not in apps:
        raise UsageError(f"this node does not run the app with the SHA-256 {found}")


def run_listed() -> None:
    """Run Flower's client process, and let it load no app that is not listed."""
    run_task(CLIENT)


def run_task(command: str) -> None:
    """Run Flower's client process for a task command; only a client app's loads an app.

    The app is unpacked to an empty folder and loaded from there. Flower would take the folder's
    name from the run, so a server could name one with other code in it.
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
            raise UsageError(f"this node runs {CLIENT} tasks only, not {command}")
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


if __name__ == "__main__":
    task_command = sys.argv.pop(1)
    if task_command == CLIENT:
        warm.run("fedzo.flower.pinned:run_listed")
    else:
        run_task(task_command)
