"""``fedzo node``: set up and start a node of a federation.

Examples::

    fedzo node init --node-config 'node-file="node.toml"'
    fedzo node start --node-config 'node-file="node.toml"' --superlink HOST:9092
"""

import argparse
from importlib.util import find_spec
from typing import Any

from fedzo.cli.common import add_parser
from fedzo.errors import Exit, MissingExtra

# Options of flower-supernode, with their help. Others, such as --isolation, could run other apps.
OPTIONS = {
    "--superlink": ("HOST:PORT", "the address of the server"),
    "--root-certificates": ("FILE", "the certificate authority of the server's certificate"),
    "--auth-supernode-private-key": ("FILE", "the node's private key"),
    "--node-config": ("CONFIG", "the node's configuration, such as 'node-file=\"node.toml\"'"),
    "--host": ("ADDRESS", "the address that the node listens on for its own processes"),
    "--port": ("PORT", "the port for these; each node of a host needs another"),
    "--max-retries": ("N", "how many times to retry to reach the server"),
    "--max-wait-time": ("SECONDS", "how long to try to reach the server"),
}


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "node", __doc__)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    action = add_parser(actions, "init", init.__doc__)
    metavar, help_text = OPTIONS["--node-config"]
    action.add_argument("--node-config", metavar=metavar, help=help_text)
    action.set_defaults(command=init)
    action = add_parser(actions, "start", start.__doc__)
    for option, (metavar, help_text) in OPTIONS.items():
        kind = {"PORT": int, "N": int, "SECONDS": float}.get(metavar, str)
        action.add_argument(option, metavar=metavar, type=kind, help=help_text)
    action.add_argument("--insecure", action="store_true", help="connect without TLS")
    action.set_defaults(command=start)


def init(arguments: argparse.Namespace) -> int:
    """Create a node's ledger.

    It holds what the node has spent of its queries and of its privacy budget. An existing ledger is
    not changed. A node without a ledger rejects all requests.

    Examples::

        fedzo node init --node-config 'node-file="node.toml"'
    """
    _check_flower()
    from fedzo.flower.policy import NodeConfig

    ledger = NodeConfig.parse(arguments.node_config or "").ledger
    made = ledger.create()
    print(f"{ledger.path}: {'created' if made else 'exists, and is not changed'}")
    return Exit.DONE


def start(arguments: argparse.Namespace) -> int:
    """Start a Flower SuperNode that runs only the apps of its node file.

    They are listed under `apps`. The options are those of flower-supernode.

    Examples::

        fedzo node start --node-config 'node-file="node.toml"' --superlink HOST:9092
    """
    given = {option: getattr(arguments, option[2:].replace("-", "_")) for option in OPTIONS}
    passed = [f"{option}={value}" for option, value in given.items() if value is not None]
    passed += ["--insecure"] if arguments.insecure else []
    _check_flower()
    from fedzo.flower.allowlist import start_node

    start_node(arguments.node_config or "", passed)
    return Exit.DONE


def _check_flower() -> None:
    if find_spec("flwr") is None:
        raise MissingExtra("fedzo node needs Flower", "flower")
