"""Only the apps that a node's operator has looked at.

An app is code, and Flower's nodes run whatever app the server sends. ``flwr build`` makes the same
archive of the same files, so its SHA-256 says which code it is. A node whose ``PATH`` has the
``flwr-clientapp`` of ``examples/flower-app/deploy/bin`` before Flower's own, which is this module,
runs an app only if its node file lists that sum under ``apps``. Its processes are warm: see
:mod:`fedzo.flower.warm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedzo.flower import warm  # and what takes long only where it is used: this runs often


def require_listed(node_config: Mapping[str, Any], archive: bytes) -> None:
    """Raise unless a node's configuration lists an app's archive.

    >>> require_listed({"apps": []}, b"import os")
    Traceback (most recent call last):
    fedzo.errors.UsageError: this node does not run the app with the SHA-256 de2abade832c...
    """
    import hashlib

    from fedzo.errors import UsageError
    from fedzo.flower.node import Node

    found = hashlib.sha256(archive).hexdigest()
    if found not in Node.read(node_config).apps:
        raise UsageError(f"this node does not run the app with the SHA-256 {found}")


def run_listed() -> None:
    """Run Flower's client process, and let it load no app that is not listed."""
    from flwr.supernode import cli
    from flwr.supernode.runtime import run_clientapp

    flower: Any = run_clientapp
    pull, install = flower.pull_task_input, flower.install_from_fab
    node_config: dict[str, Any] = {}

    def pulled(client: Any) -> Any:
        message, context, run, fab = pull(client)
        node_config.update(context.node_config)
        return message, context, run, fab

    def installed(fab_file: Any, **options: Any) -> Any:
        require_listed(node_config, fab_file)
        return install(fab_file, **options)

    flower.pull_task_input, flower.install_from_fab = pulled, installed
    cli.flwr_clientapp()


if __name__ == "__main__":
    warm.run("fedzo.flower.pinned:run_listed")
