"""A node that is started by fedzo runs the apps on its list, and no other code."""

import hashlib
import importlib
import os
from importlib.metadata import requires
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from one_node import ask, node, refusal
from packaging.requirements import Requirement

from fedzo.cli import main
from fedzo.errors import Exit, UsageError
from fedzo.flower import allowlist, protocol
from fedzo.flower.policy import NodeConfig
from raising import fails


@pytest.fixture
def client_process(monkeypatch):
    """Return Flower's client process, as far as loading the app; and what was unpacked and loaded.

    The archive stands for the client, so that a test can choose what the server has sent.
    """
    from flwr.supernode.runtime import run_clientapp as flower

    unpacked, loaded = [], []
    config = {"apps": [hashlib.sha256(b"ours").hexdigest()]}
    context = Context(1, 1, config, RecordDict(), {})

    def install(archive, install_dir=None, **_):
        unpacked.append(archive)
        return install_dir / "apps" / "ours"

    def loader(app_path, **_):
        return lambda *_: loaded.append(app_path)

    def process(archive=b"ours", version="1.0.0"):
        *_, fab = flower.pull_task_input(archive)
        flower.install_from_fab(fab, skip_prompt=True)
        folder = flower.get_project_dir("fedzo/app", version, "0" * 8)
        flower.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)("", "", "")
        return folder

    monkeypatch.setattr(flower, "pull_task_input", lambda client: (None, context, None, client))
    monkeypatch.setattr(flower, "install_from_fab", install)
    monkeypatch.setattr(flower, "get_load_client_app_fn", loader)
    monkeypatch.setattr(flower, "get_project_dir", flower.get_project_dir)
    monkeypatch.setattr(allowlist, "_enforced", False)
    monkeypatch.setattr("sys.argv", [])
    return process, unpacked, loaded


def test_only_listed_apps_are_run(monkeypatch, client_process):
    """In Flower's own client process: an app that is not listed is not even unpacked."""
    process, unpacked, loaded = client_process

    def both():
        process()
        with fails("app-not-listed", UsageError):
            process(b"theirs")

    monkeypatch.setattr("flwr.supernode.cli.flwr_clientapp", both)
    allowlist.run_task(["flwr-clientapp"])
    assert unpacked == [b"ours"]
    assert len(loaded) == 1


def test_app_is_loaded_from_an_empty_folder(monkeypatch, client_process):
    """A run's version must not lead Flower to a folder with other code in it."""
    process, _, loaded = client_process
    folders = []

    def traversing():
        folders.append(process(version="../../../srv/other"))
        assert folders[0].parents[1].is_dir()

    monkeypatch.setattr("flwr.supernode.cli.flwr_clientapp", traversing)
    allowlist.run_task(["flwr-clientapp"])
    assert [Path(path) for path in loaded] == folders
    assert "other" not in str(folders[0])
    assert not folders[0].parents[1].exists()  # it is removed with its process


@pytest.mark.parametrize("command", ["flwr-agentapp", "flwr-serverapp", "flwr-model", "flwr-new"])
def test_other_tasks_are_rejected_even_for_listed_apps(monkeypatch, client_process, command):
    process, unpacked, loaded = client_process

    def one():
        with fails("task-type", UsageError):
            process()

    monkeypatch.setattr("flwr.supernode.cli.flwr_clientapp", one)
    allowlist.run_task([command])
    assert (unpacked, loaded) == ([], [])


def test_error_of_a_broken_configuration_tells_the_server_nothing(monkeypatch, client_process):
    process, *_ = client_process
    monkeypatch.setattr(NodeConfig, "read", lambda config: 1 / 0)

    def one():
        with pytest.raises(UsageError, match=r"^this node cannot read its configuration$"):
            process()

    monkeypatch.setattr("flwr.supernode.cli.flwr_clientapp", one)
    allowlist.run_task(["flwr-clientapp"])


@pytest.mark.parametrize(
    "kind", [protocol.HELLO, protocol.INITIAL, protocol.TRAIN, protocol.EVALUATE]
)
def test_listed_apps_that_nobody_enforces(monkeypatch, kind):
    """Flower's own command runs any app; ours says so, rather than seem to be protected."""
    listing = node(apps=["0" * 64])

    def send():
        if kind in (protocol.TRAIN, protocol.EVALUATE):
            return ask(listing, kind=kind)
        (reply,) = listing.send_and_receive([Message(protocol.greeting({}), 1, kind)])
        return reply.content

    assert refusal(send()) == "not-pinned"
    monkeypatch.setattr(allowlist, "_enforced", True)
    assert refusal(send()) is None


def test_commands_of_tasks_are_never_run(monkeypatch):
    """Flower's executor, as SuperExec calls it, starts fedzo's process for every type of task."""
    from flwr.supercore.superexec.executor import ExecutionSpec, subprocess_executor

    started, code = [], []
    monkeypatch.setattr(subprocess_executor, "subprocess", None)

    def run():
        for task in TaskType:
            spec = ExecutionSpec(task, "here:1", "token", True, None, False, 1, False, 1, None)
            subprocess_executor.SubprocessExecutor().launch(spec)

    class Context:
        def set_forkserver_preload(self, modules):
            assert all(importlib.import_module(module) for module in modules)

        def Process(self, target, args):  # noqa: N802 - as in multiprocessing
            started.append((target, args[0][0]))
            return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr("multiprocessing.get_context", lambda kind: Context())
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", lambda: None)
    monkeypatch.setattr("flwr.supercore.cli.flower_superexec", run)
    monkeypatch.setattr(os, "_exit", code.append)
    allowlist.superexec()
    assert started == [(allowlist.run_task, TASK_TYPE_TO_COMMAND[task]) for task in TaskType]
    assert code == [0]


def test_supported_versions_of_flower_are_those_of_the_project():
    needed = [r for r in requires("fedzo") if r.startswith("flwr")]
    assert all(Requirement(r).specifier.contains(f"{v}.0")
               for r in needed for v in allowlist.FLOWER)  # fmt: skip
    newest = allowlist.FLOWER[-1].split(".")
    after = f"{newest[0]}.{int(newest[1]) + 1}.0"
    assert not any(Requirement(r).specifier.contains(after) for r in needed)


@pytest.mark.parametrize(
    ("options", "text", "line"),
    [
        ([], None, "node is not the folder of a node: run fedzo node init"),
        ([], "devices = 3", "apps: missing; list the SHA-256"),
        ([], "apps = []", "apps: missing; list the SHA-256"),
        ([], 'apps = ["de2abade832c"]', "apps = 'de2abade832c': must be a list of SHA-256"),
        ([], "apps = [", "node.toml is not a TOML file"),
        (["--isolation", "process"], "", "unrecognized arguments: --isolation process"),
    ],
)
def test_node_that_would_run_any_app_does_not_start(options, text, line, capsys, tmp_path):
    folder = tmp_path / "node"
    folder.mkdir()
    if text is not None:
        (folder / "node.toml").write_text(text)
    assert main(["node", "start", "--dir", str(folder), *options]) == Exit.NOTHING_RUN
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("fedzo: error: ")
    assert line in said


def test_other_versions_of_flower_are_rejected(monkeypatch):
    monkeypatch.setattr("flwr.__version__", "1.50.0")
    with fails("flower-version", UsageError):
        allowlist.start_node("", [])
