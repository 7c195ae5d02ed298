r"""``fedzo node``: set up and start a node of a federation, and show how it is.

Examples::

    fedzo node init --server HOST:8443 --ca SHA256 --app SHA256 \
        --problem softmax --devices 0-24
    fedzo node start
    fedzo node status
"""

import argparse
from pathlib import Path
from typing import Any

from fedzo.cli.common import add_action, add_parser, prepare
from fedzo.errors import Exit, UsageError

FOLDER = Path("fedzo-node")


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "node", __doc__)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    action = add_action(actions, init, FOLDER)
    for option, metavar, help_text in (
        ("--server", "HOST:PORT", "the address of the server"),
        ("--ca", "SHA256", "the digest of the server's certificate authority, or its file"),
        ("--app", "SHA256", "the digest of the app that the node runs, or its archive"),
        ("--problem", "NAME", "the problem that a run may name"),
        ("--devices", "LIST", "the devices of this node, such as 0-24"),
        ("--node-config", "CONFIG", "of flower-supernode: 'node-file=\"node.toml\"'"),
    ):
        action.add_argument(option, metavar=metavar, help=help_text)
    for option, help_text in (
        ("--set", "a setting of the problem, the same on all nodes"),
        ("--own", "a setting of the problem for this node only, such as data_dir=/srv/data"),
    ):
        pair: dict[str, Any] = {"metavar": "KEY=VALUE", "action": "append", "default": []}
        action.add_argument(option, help=help_text, **pair)
    add_action(actions, start, FOLDER)
    add_action(actions, status, FOLDER)


def init(arguments: argparse.Namespace) -> int:
    r"""Write the files of a node into a folder.

    They are its key, its configuration, its ledger and a systemd unit. `fedzo server init` prints
    this command with its options. Files that exist are not changed. With --node-config, only the
    ledger is created: what the node has spent of its queries and of its privacy budget. A node that
    Flower's own flower-supernode starts needs no more.

    Examples::

        fedzo node init --server HOST:8443 --ca SHA256 --app SHA256 \
            --problem softmax --devices 0-24
        fedzo node init --node-config 'node-file="node.toml"'
    """
    folder = arguments.dir
    prepare(None if arguments.node_config else folder)
    from fedzo.flower.policy import NodeConfig
    from fedzo.flower.setup import init_node

    if arguments.node_config is not None:
        ledger = NodeConfig.parse(arguments.node_config).ledger
        made = ledger.create()
        print(f"{ledger.path}: {'created' if made else 'exists, and is not changed'}")
        print(f"public key for secure sums: {ledger.member().key.hex()}")
        return Exit.DONE
    needed = ("server", "ca", "app", "problem", "devices")
    given = {name: getattr(arguments, name) for name in needed}
    if missing := [f"--{name}" for name in needed if given[name] is None]:
        text = f"{', '.join(missing)}: missing; copy the command that fedzo server init prints"
        raise UsageError(text, code="bad-arguments")
    tables = {name: _settings(getattr(arguments, name)) for name in ("set", "own")}
    again = init_node(folder, print, settings=tables["set"], own=tables["own"], **given)
    print(f"\nRead node.toml, and send this command to the operator of the server:\n  {again}")
    print(f"Then start the node: fedzo node start --dir {folder}")
    return Exit.DONE


def _settings(pairs: list[str]) -> dict[str, Any]:
    from fedzo.core.files import typed

    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (equals and key.isidentifier()):
            raise UsageError(f"{pair}: must be KEY=VALUE", code="bad-arguments")
        found |= typed(f"{key} = {value}", pair) or {key: value}
    return found


def start(arguments: argparse.Namespace) -> int:
    """Start a Flower SuperNode that runs only the apps of its node file.

    They are listed under `apps`. The server's address, its authority and the node's key are those
    in the folder.

    Examples::

        fedzo node start
    """
    prepare(arguments.dir)
    from fedzo.flower.allowlist import start_node
    from fedzo.flower.setup import start_arguments

    given = start_arguments(arguments.dir)
    start_node(given["--node-config"], [f"{option}={value}" for option, value in given.items()])
    return Exit.DONE


def status(arguments: argparse.Namespace) -> int:
    """Show the health of a node, its budget and its last round.

    The exit code is 3 if the node is not well.

    Examples::

        fedzo node status
    """
    prepare(arguments.dir)
    from fedzo.flower.setup import node_status

    good, lines = node_status(arguments.dir)
    print(*lines, sep="\n")
    return Exit.DONE if good else Exit.NO_SUCCESS
