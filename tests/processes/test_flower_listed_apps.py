"""A node that lists its apps runs no others, whatever task the server declares them to be."""

import hashlib
import json
import sqlite3
import time
from contextlib import closing

import pytest
from flower_federation import NAME, Federation
from loopback import APP, LIMIT, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # flwr build
]

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "foreign"
version = "1.0.0"
description = "An app that nobody has listed"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
{components}
[tool.flwr.app.config]
rounds = 1
"""
# Leaves a mark wherever it is imported. The server's half sends each node a message and keeps the
# replies.
AGENT = """
import json, os
from pathlib import Path
from flwr.agentapp import AgentApp

HOME = Path(os.environ["FLWR_HOME"])
(HOME / "foreign-code-ran").touch()
app = AgentApp()

def call(agent, name, **arguments):
    item = {"type": "function_call", "call_id": name, "name": name}
    return json.loads(agent.grid.call({**item, "arguments": json.dumps(arguments)})["output"])

@app.main()
def main(agent, context):
    if "superlink" not in HOME.name:
        call(agent, "push_reply_message", payload="it ran")
        return
    nodes = [node["id"] for node in call(agent, "get_nodes", sample_size=None)["nodes"]]
    asked = [{"dst_node_id": n, "payload": "run", "reply_to_message_id": None} for n in nodes]
    sent = call(agent, "push_messages", messages=asked)["results"]
    ids, replies = [one["message_id"] for one in sent], []
    while len(replies) < len(nodes):
        replies += call(agent, "pull_messages", message_ids=ids, timeout=100)["messages"]
        ids = [one for one in ids if one not in [r["reply_to_message_id"] for r in replies]]
    found = {one["src_node_id"]: one["error"] for one in replies}
    (HOME / "replies.part").write_text(json.dumps(found))
    (HOME / "replies.part").rename(HOME / "replies.json")
"""
CLIENT = """
import json, os
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

HOME = Path(os.environ["FLWR_HOME"])
(HOME / "foreign-code-ran").touch()
app = ClientApp()
server = ServerApp()

@app.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    sent = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    found = {
        str(reply.metadata.src_node_id): reply.error.reason if reply.has_error() else None
        for reply in grid.send_and_receive(sent)
    }
    (HOME / "replies.part").write_text(json.dumps(found))
    (HOME / "replies.part").rename(HOME / "replies.json")
"""
SMALL = {
    "config": "",
    "problem.name": "quadratic",
    "problem.devices": 9,
    "algorithm.participants": "",
    "run.rounds": 1,
}
NODES = ("open", "pinned", "mistaken")
PROBLEM = "[problems.quadratic]\ndevices = 9\n"
KINDS = {
    "agentapp": (AGENT, 'agentapp = "foreign.app:app"'),
    "clientapp": (CLIENT, 'clientapp = "foreign.app:app"\nserverapp = "foreign.app:server"'),
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Return a federation of three nodes: open, pinned, and mistaken.

    The mistaken node lists its apps, but was started by Flower's own command.
    """
    from flwr.cli.build import build_fab_from_disk

    with Federation(tmp_path_factory.mktemp("pinned")) as made:
        listed = f'apps = ["{hashlib.sha256(build_fab_from_disk(APP)).hexdigest()}"]\n'
        for i, name in enumerate(NODES):
            file = made.folder / f"{name}.toml"
            file.write_text(("" if name == "open" else listed) + PROBLEM)
            config = f'partition-id={i} num-partitions={len(NODES)} node-file="{file}"'
            made.start_node(name, config, pinned=name == "pinned")
        until(lambda: len(online(made)) == 3)
        yield made


def online(federation):
    """Return the ids of the nodes, by name, as their logs have them."""
    found = {}
    for name in NODES:
        for line in (federation.folder / f"{name}.log").read_text().splitlines():
            if "SuperNode ID: " in line:
                found[name] = line.rpartition("SuperNode ID: ")[2].strip()
    return found


def start(federation, app, monkeypatch):
    """Start a run of an app, as an agent's if it is one."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.chat.chat_app import start_chat_run
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection

    if "agentapp" not in (app / "pyproject.toml").read_text():
        return federation.run(app, {"rounds": 1})
    monkeypatch.setenv("FLWR_HOME", federation.environment("cli")["FLWR_HOME"])
    client = init_http_client_from_connection(read_superlink_connection(NAME))
    fab = build_fab_from_disk(app)
    hash_str = hashlib.sha256(fab).hexdigest()
    run, _ = start_chat_run(client, "go", None, None, fab_hash=hash_str, fab_content=fab)
    client.close()
    return str(run)


@pytest.mark.parametrize("kind", list(KINDS))
def test_foreign_app_does_not_run_on_a_pinned_node(federation, tmp_path, monkeypatch, kind):
    """Whatever task it is; on a node that is not pinned it does run, so the attack is one."""
    code, components = KINDS[kind]
    app = tmp_path / "foreign-app"
    (app / "foreign").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT.format(components=components))
    (app / "foreign" / "__init__.py").touch()
    (app / "foreign" / "app.py").write_text(code)
    (app / "LICENSE").write_text("Apache-2.0")
    replies = federation.folder / "superlink-home" / "replies.json"
    marks = {n: federation.folder / f"{n}-home" / "foreign-code-ran" for n in online(federation)}
    for file in (replies, *marks.values()):
        file.unlink(missing_ok=True)
    start(federation, app, monkeypatch)
    until(replies.exists, 300)
    found, ids = json.loads(replies.read_text()), online(federation)
    assert found[ids["open"]] is None
    refused = "tasks only, not flwr-agentapp" if kind == "agentapp" else "does not run the app"
    assert refused in found[ids["pinned"]]
    assert marks["open"].exists()
    assert not marks["pinned"].exists()
    home = federation.folder / "pinned-home"
    assert not list(home.glob("apps/*"))  # nor was it unpacked


def test_listed_app_runs_and_a_node_that_is_not_pinned_rejects_it(federation, tmp_path):
    """After the attacks, so the pinned node still answers."""
    settings = {**SMALL, "run-dir": str(tmp_path / "run")}
    run = federation.run(APP, {**settings, "flower.grace": 5.0, "flower.patience": 900.0})
    federation.wait(run, LIMIT)
    log = federation.log(run)
    assert f"node {online(federation)['pinned']} has joined with devices 3-5" in log
    assert "round 1 of 1" in log
    assert "the node lists apps, but was not started by fedzo node start" in log
    said = (federation.folder / "mistaken.log").read_text()
    assert "apps is set, but this node was started by flower-supernode" in said


def test_node_is_not_deaf_after_a_false_app_hash(federation, tmp_path):
    """The server sends other bytes than those of the hash, once its own half is loaded.

    Flower's own nodes stay connected after that and answer nothing any more: the open one shows
    the fault. The pinned one answers with an error, and runs its app within two minutes.
    """
    app = tmp_path / "foreign-app"
    (app / "foreign").mkdir(parents=True)
    components = KINDS["clientapp"][1]
    (app / "pyproject.toml").write_text(PROJECT.format(components=components))
    (app / "foreign" / "__init__.py").touch()
    wait = 'while not (HOME / "go").exists():\n        time.sleep(0.1)\n    '
    code = CLIENT.replace("import json, os", "import json, os, time")
    code = code.replace("sent = [", f'(HOME / "loaded").touch()\n    {wait}sent = [')
    code = code.replace("send_and_receive(sent)", "send_and_receive(sent, timeout=120)")
    (app / "foreign" / "app.py").write_text(code)
    (app / "LICENSE").write_text("Apache-2.0")
    home = federation.folder / "superlink-home"
    (home / "replies.json").unlink(missing_ok=True)
    start(federation, app, None)
    until((home / "loaded").exists, 300)
    with closing(sqlite3.connect(federation.folder / "superlink.sqlite", timeout=60)) as database:
        ((fab, right),) = database.execute(
            "select fab_hash, content from fab where instr(cast(content as text), 'foreign')"
            " order by rowid desc limit 1"
        ).fetchall()
        database.execute("update fab set content = ? where fab_hash = ?", (right + b"!", fab))
        database.commit()
    (home / "go").touch()
    until((home / "replies.json").exists, 300)
    found, ids = json.loads((home / "replies.json").read_text()), online(federation)
    assert "could not fetch" in found[ids["pinned"]]
    assert "FAB hash mismatch" in (federation.folder / "pinned.log").read_text()
    open_node = federation.processes["open"]
    assert open_node.poll() is None
    assert found.get(ids["open"], "") == ""  # the fault that is cured here
    settings = {**SMALL, "run-dir": str(tmp_path / "run"), "flower.quorum": 0.3}
    began = time.monotonic()
    run = federation.run(APP, {**settings, "flower.grace": 5.0, "flower.patience": 120.0})
    assert federation.wait(run, LIMIT).startswith("finished")
    log = federation.log(run)
    assert f"node {ids['pinned']} has joined with devices 3-5" in log
    assert "round 1 of 1" in log, time.monotonic() - began
