"""The files that `fedzo server init` and `fedzo node init` write: once, and for each other."""

import configparser
import re
import shlex
import ssl
import stat
from pathlib import Path

import pytest

from fedzo.cli import _parser, main
from fedzo.errors import FedzoError, UsageError
from fedzo.flower import setup
from fedzo.flower.policy import NodeConfig, read_bindings
from raising import fails

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # of Flower's
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-app"
NODE = {
    "server": "federation.example.org:8443",
    "app": "ab" * 32,
    "problem": "quadratic",
    "settings": {"devices": 6, "dim": 4},
    "own": {},
    "devices": "0-2",
}


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and "kernels" not in str(p)}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "server"
    return folder, setup.init_server(folder, lambda _: None, "federation.example.org", devices=6)


@pytest.fixture(scope="module")
def node(server):
    folder = server[0].parent / "node"
    ca = str(server[0] / "ca.pem")
    return folder, setup.init_node(folder, lambda _: None, ca=ca, **NODE)


def test_init_changes_nothing_that_exists(server, node):
    before = contents(server[0]) | contents(node[0])
    said = []
    again = setup.init_server(server[0], said.append, "other.example.org", port=1, devices=7)
    assert again == server[1]  # of the first address
    ca = "an address that nobody asks"
    for devices in ("0-2", "3-5"):  # the file has the first ones
        given = {**NODE, "devices": devices}
        assert setup.init_node(node[0], said.append, ca=ca, **given) == node[1]
    assert contents(server[0]) | contents(node[0]) == before
    assert sum("not changed" in line for line in said) >= 8


def test_printed_commands_are_commands(server, node):
    words = shlex.split(server[1].replace("FIRST-LAST", "0-2"))
    assert _parser().parse_args(words[1:]).problem == "softmax"
    words = shlex.split(node[1])
    assert _parser().parse_args(words[1:]).key.startswith("ecdsa-sha2-nistp384 ")


def test_private_files_are_the_owner_s(server, node):
    for file in (server[0] / "ca.key", server[0] / "server.key", node[0] / "node-key"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((node[0] / "ledger.sqlite").stat().st_mode) == 0o600


def test_certificate_is_of_the_authority_and_the_name(server):
    context = ssl.create_default_context(cafile=str(server[0] / "ca.pem"))
    context.load_cert_chain(server[0] / "server.pem", server[0] / "server.key")
    (authority,) = context.get_ca_certs()
    assert dict(authority["subject"][0])["commonName"] == "fedzo at federation.example.org"


def test_no_placeholder_and_no_foreign_path_is_left(server, node):
    for folder in (server[0], node[0]):
        for file, content in contents(folder).items():
            if file.suffix in (".toml", ".conf", ".service", ".py", ".md"):
                text = content.decode()
                assert "{{" not in text, file
                assert not re.search(r"/etc/fedzo|/var/lib/fedzo|/opt/fedzo", text), file


@pytest.mark.parametrize("what", ["server", "node"])
def test_unit_starts_its_folder(what, server, node):
    folder = {"server": server, "node": node}[what][0]
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(folder / f"fedzo-{what}.service")
    words = unit["Service"]["ExecStart"].split(maxsplit=4)
    assert words[1:4] == [what, "start", "--dir"]
    assert Path(words[0]).exists()
    assert words[4].strip('"') == unit["Service"]["ReadWritePaths"].strip('"') == str(folder)
    if what == "node":
        assert int(unit["Service"]["RestartSec"]) > 60


def test_node_file_is_one(node):
    read = NodeConfig.read({"node-file": str(node[0] / "node.toml")})
    assert read.limits.local_steps == 20
    assert read.problems == {"quadratic": {"devices": 6, "dim": 4}}
    assert read.apps == ("ab" * 32,)
    assert read.privacy is None
    assert setup.start_arguments(node[0])["--superlink"] == NODE["server"]


def test_kernels_are_compiled_and_the_ledger_is_not_charged(node):
    said = []
    ca = str(node[0] / "ca.pem")
    setup.init_node(node[0], said.append, ca=ca, **NODE)
    assert any(line.endswith("kernels: compiled code") for line in said)
    good, lines = setup.node_status(node[0])
    assert not good
    assert lines[0] == "health: the node has not reached the server yet"
    assert "queries, in total: 0 of 5,000,000,000" in lines


def test_status_shows_the_last_round_and_a_spent_budget(node):
    config = NodeConfig.read({"node-file": str(node[0] / "node.toml")})
    config.ledger.settle("17", config.limits.queries_per_run)
    config.ledger.note("17", 4)
    _, lines = setup.node_status(node[0])
    assert "no queries are left (last run)" in lines[0]
    assert any(line.startswith("last round: 4 of run 17, ") for line in lines)


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"devices": "3-1"}, "devices"), ({"ca": "00" * 32}, "no-server")],
)
def test_bad_input_is_one_line_and_writes_no_key(changes, code, tmp_path):
    given = {**NODE, "server": "127.0.0.1:9", "ca": "00" * 32, **changes}
    with pytest.raises(FedzoError) as raised:
        setup.init_node(tmp_path / "n", lambda _: None, **given)
    assert code in (raised.value.code, getattr(raised.value, "key", None))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "n" / "node-key").exists()


def test_folder_with_a_space_is_rejected(tmp_path):
    with fails("bad-folder", UsageError):
        setup.init_server(tmp_path / "a b", lambda _: None, "localhost")


def test_folders_that_are_none(tmp_path, capsys):
    for words in (["server", "start"], ["server", "run"], ["node", "status"], ["node", "start"]):
        assert main([*words, "--dir", str(tmp_path / "none")]) == 2
        assert "init, or give --dir" in capsys.readouterr().err


def test_nodes_file_binds_nobody_yet(server):
    assert read_bindings(str(server[0] / "nodes.toml")) == {}


def test_example_is_the_template(tmp_path):
    setup.write_app(setup.Folder(tmp_path / "fedzo_app", lambda _: None), "softmax", 50)
    made = {p.relative_to(tmp_path / "fedzo_app"): c for p, c in contents(tmp_path).items()}
    kept = {
        p.relative_to(EXAMPLE): c for p, c in contents(EXAMPLE).items() if "pycache" not in str(p)
    }
    assert made == kept
