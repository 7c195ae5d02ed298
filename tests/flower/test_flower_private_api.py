"""Every part of Flower outside its public modules that fedzo uses, in one list.

Flower may change these in any version. If a test here fails with a new version, read the note: it
says what fedzo does with the part. `flwr.app`, `flwr.clientapp` and `flwr.serverapp` are public.
"""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import fedzo
from fedzo.errors import UsageError
from raising import fails

flwr = pytest.importorskip("flwr", reason="needs fedzo[flower]")

from fedzo.flower import policy, watchdog  # noqa: E402 - it needs Flower

ROOM = Path(fedzo.__file__).parent / "flower"
PUBLIC = ("flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy")

# Module and name; the parameters that fedzo passes or replaces; what for.
PRIVATE = {
    ("flwr.common.constant", "ErrorCode"): (None, "which replies mean that a node is gone"),
    ("flwr.common.serde", "message_from_proto"): (1, "InProcessGrid sends what hosts would send"),
    ("flwr.common.serde", "message_to_proto"): (1, "the same"),
    ("flwr.proto.message_pb2", "Message"): (None, "the same"),
    ("flwr.supercore.cli", "flower_superexec"): (0, "starts the processes of messages: allowlist"),
    ("flwr.supercore.inflatable.inflatable_object", "get_all_nested_objects"): (
        1,
        "bytes of a message as Flower sends it: the history's message_*_bytes",
    ),
    ("flwr.supercore.inflatable.inflatable_object", "no_object_id_recompute"): (0, "the same"),
    ("flwr.supercore.superexec.executor", "subprocess_executor"): (None, "the same"),
    ("flwr.supercore.task_identity", "TaskIdentity"): (None, "the sender of InProcessGrid"),
    ("flwr.supernode", "cli"): (None, "the processes of a node and of a message: allowlist"),
    ("flwr.supernode", "start_client_internal"): (None, "the node's loop: watchdog"),
    ("flwr.supernode.runtime", "run_clientapp"): (None, "loads the app of a message: allowlist"),
}

# Attributes of these modules that fedzo replaces, with the keywords that it relies on.
REPLACED = {
    ("flwr.supernode.start_client_internal", "_pull_and_store_message"): {
        *("state", "object_store", "receive")
    },
    ("flwr.supernode.start_client_internal", "_push_messages"): {"state", "object_store"},
    ("flwr.supernode.start_client_internal", "_insert_message"): set(),
    ("flwr.supercore.superexec.executor.subprocess_executor.subprocess", "Popen"): set(),
    ("flwr.supernode.start_client_internal.subprocess", "Popen"): set(),
    ("flwr.supernode.runtime.run_clientapp", "pull_task_input"): set(),
    ("flwr.supernode.runtime.run_clientapp", "install_from_fab"): {"install_dir"},
    ("flwr.supernode.runtime.run_clientapp", "get_load_client_app_fn"): {"app_path", "multi_app"},
    ("flwr.supernode.runtime.run_clientapp", "get_project_dir"): set(),
    ("flwr.supernode.cli", "flwr_clientapp"): set(),
    ("flwr.supernode.cli", "flower_supernode"): set(),
}


def used():
    """Return the parts of Flower that the room imports, as module and name."""
    found = set()
    for file in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
                found |= {(node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {(a.name, "") for a in node.names if a.name.split(".")[0] == "flwr"}
    return {(module, name) for module, name in found if module not in PUBLIC}


def test_list_is_complete():
    assert used() == set(PRIVATE), "name it here, and say what for"


@pytest.mark.parametrize(("module", "name"), PRIVATE)
def test_flower_has(module, name):
    takes, what_for = PRIVATE[module, name]
    try:
        found = getattr(importlib.import_module(module), name, None)
        found = found or importlib.import_module(f"{module}.{name}")
    except ImportError:
        found = None
    where = f"Flower {flwr.__version__}: {module}.{name}, which fedzo uses: {what_for}"
    assert found is not None, f"{where}, is gone"
    if isinstance(takes, int):
        parameters = inspect.signature(found).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
        assert len(needed) <= takes, f"{where}, needs other arguments"
    elif takes is not None:
        assert takes <= set(inspect.signature(found).parameters), f"{where}, has other arguments"


@pytest.mark.parametrize(("module", "name"), REPLACED)
def test_flower_can_be_replaced(module, name):
    holder = importlib.import_module(module.removesuffix(".subprocess"))
    holder = holder.subprocess if module.endswith(".subprocess") else holder
    found = getattr(holder, name, None)
    assert callable(found), f"Flower {flwr.__version__}: {module}.{name} is gone: see its user"
    missing = REPLACED[module, name] - set(inspect.signature(found).parameters)
    assert not missing, f"Flower {flwr.__version__}: {module}.{name} has no {missing}"


def test_words_that_fedzo_and_flower_have_in_common():
    constants = importlib.import_module("flwr.common.constant")
    names = ("PENDING", "STARTING", "RUNNING")
    assert tuple(getattr(constants.Status, name) for name in names) == watchdog._UNFINISHED
    kinds = importlib.import_module("flwr.supercore.constant").TaskType
    assert kinds.CLIENT_APP == watchdog.CLIENT


@pytest.mark.parametrize(
    "text",
    [
        'node-file="a b.toml" partition-id=0',
        "limits.local-steps=10 devices='0-3,7'",
        'ledger="a=b.sqlite"  problem.data_dir="/x y"',
        "",
    ],
)
def test_configuration_of_a_node_is_read_as_flower_reads_it(text):
    flower = importlib.import_module("flwr.common.config")
    assert policy.parse_node_config(text) == flower.parse_config_args([text] if text else None)


@pytest.mark.parametrize("text", ["node.toml", "a=1 b", "a=[", "=1", "a=1 a=2"])
def test_configuration_that_makes_no_sense(text):
    with fails("node-config", UsageError):
        policy.parse_node_config(text)
