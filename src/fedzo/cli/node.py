"""``fedzo node``: set up and start a node of a federation."""

import argparse
from importlib.util import find_spec
from typing import Any

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
    parser = commands.add_parser("node", help="set up and start a node of a federation")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    text = (
        "Create the ledger of a node: what it has spent of its queries and of its privacy budget. "
        "An existing ledger is left as it is. A node without a ledger rejects all requests."
    )
    action = actions.add_parser("init", help="create a node's ledger", description=text)
    metavar, help_text = OPTIONS["--node-config"]
    action.add_argument("--node-config", metavar=metavar, help=help_text)
    action.set_defaults(command=init)
    text = (
        "Start a Flower SuperNode that runs only the apps listed under `apps` in its node file. "
        "The options are those of flower-supernode."
    )
    action = actions.add_parser("start", help="start a node", description=text)
    for option, (metavar, help_text) in OPTIONS.items():
        kind = {"PORT": int, "N": int, "SECONDS": float}.get(metavar, str)
        action.add_argument(option, metavar=metavar, type=kind, help=help_text)
    action.add_argument("--insecure", action="store_true", help="connect without TLS")
    action.set_defaults(command=start)


def init(arguments: argparse.Namespace) -> int:
    """Create what a node needs; leave what exists."""
    _check_flower()
    from fedzo.flower.policy import NodeConfig

    ledger = NodeConfig.parse(arguments.node_config or "").ledger
    made = ledger.create()
    print(f"{ledger.path}: {'created' if made else 'exists, and is not changed'}")
    return Exit.DONE


def start(arguments: argparse.Namespace) -> int:
    """Start the node, and wait until it ends."""
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
