"""``fedzo server``: set up, start and use the server of a federation.

Examples::

    fedzo server init --name federation.example.org
    fedzo server start
    fedzo server run --set run.rounds=100 --out first
"""

import argparse
from pathlib import Path
from typing import Any

from fedzo.cli.common import add_action, add_parser, prepare
from fedzo.errors import Exit

FOLDER = Path("fedzo-server")


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "server", __doc__)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    action = add_action(actions, init, FOLDER)
    text = "the name that nodes connect to"
    action.add_argument("--name", required=True, metavar="HOST", help=text)
    for option, default, help_text in (
        ("--port", 8443, "the port that nodes connect to"),
        ("--superlink", 8000, "the port of Flower's SuperLink, on 127.0.0.1 only"),
        ("--devices", 50, "N, the number of devices, for a new app"),
        ("--dim", 10_000, "d, which limits the size of a request to 8 d N bytes and 1 MB"),
    ):
        shown = f"{help_text}; {default} by default"
        action.add_argument(option, type=int, default=default, metavar="N", help=shown)
    action.add_argument("--listen", default="0.0.0.0", metavar="ADDRESS", help="for nginx")
    action.add_argument("--problem", default="softmax", metavar="NAME", help="of a new app")
    text = "the folder of an app; written from a template if it does not exist"
    action.add_argument("--app", type=Path, help=text)
    add_action(actions, start, FOLDER)
    action = add_action(actions, add, FOLDER)
    action.add_argument("key", metavar="KEY", help="the public key, as fedzo node init prints it")
    action.add_argument("--devices", required=True, metavar="LIST", help="such as 0-24")
    action = add_action(actions, run, FOLDER)
    action.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    action.add_argument("--out", type=Path, help="a folder for the run's files")
    action.add_argument("--resume", action="store_true", help="continue the run in --out")


def init(arguments: argparse.Namespace) -> int:
    """Write the files of a server into a folder.

    They are certificates, configurations of nginx and Flower, a systemd unit and an app. Files
    that exist are not changed. The command that sets a node up is printed.

    Examples::

        fedzo server init --name federation.example.org --devices 50
    """
    folder = arguments.dir
    prepare(folder)
    from fedzo.flower.setup import init_server

    names = ("name", "port", "listen", "superlink", "app", "problem", "devices", "dim")
    given = {name: getattr(arguments, name) for name in names}
    node = init_server(folder, print, **given)
    print(f"\nStart the server: fedzo server start --dir {folder}")
    print(f"Then send this command to the operator of each node:\n  {node}")
    return Exit.DONE


def start(arguments: argparse.Namespace) -> int:
    """Start Flower's SuperLink, and nginx in front of it.

    Both end with this command.

    Examples::

        fedzo server start
    """
    prepare(arguments.dir)
    from fedzo.flower.setup import start_server

    start_server(arguments.dir)
    return Exit.DONE


def add(arguments: argparse.Namespace) -> int:
    """Register the public key of a node, and bind devices to it.

    The server must be running.

    Examples::

        fedzo server add 'ecdsa-sha2-nistp384 AAAA...' --devices 0-24
    """
    prepare(arguments.dir)
    from fedzo.flower.setup import add_node

    print(add_node(arguments.dir, arguments.key, arguments.devices))
    return Exit.DONE


def run(arguments: argparse.Namespace) -> int:
    """Run the app of the server on its nodes, and show its log.

    The server must be running.

    Examples::

        fedzo server run --set run.rounds=100 --set uplink.name=seeds --out first
    """
    prepare(arguments.dir)
    from fedzo.flower.setup import run_app

    code = run_app(arguments.dir, arguments.set, arguments.out, arguments.resume)
    return Exit.DONE if code == 0 else Exit.HALTED
