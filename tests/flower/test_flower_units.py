"""The files that an operator copies: they fit each other, and what Flower needs to start."""

import configparser
import re
import shlex
from pathlib import Path

import pytest

from fedzo.cli import _parser
from fedzo.errors import UsageError
from fedzo.flower.allowlist import start_node
from fedzo.flower.policy import NodeConfig
from raising import fails

DEPLOY = Path(__file__).parents[2] / "examples" / "flower-app" / "deploy"


class Lines(dict):
    """A unit's keys, each with all that it is set to."""

    def __setitem__(self, key, value):
        super().__setitem__(key, [*self.get(key, []), *value] if isinstance(value, list) else value)


def service(name):
    unit = configparser.RawConfigParser(strict=False, dict_type=Lines, comment_prefixes="#")
    unit.optionxform = str
    unit.read_string(re.sub(r"\\\n\s*", " ", (DEPLOY / name).read_text()))
    return {k: "\n".join(v) if isinstance(v, list) else v for k, v in unit["Service"].items()}


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("fedzo-superlink.service", "/opt/fedzo/bin/flower-superlink "),
        ("fedzo-node@.service", "/opt/fedzo/bin/fedzo node start "),  # runs listed apps only
    ],
)
def test_unit_finds_the_processes_that_flower_starts_by_name(name, command):
    unit = service(name)
    assert unit["ExecStart"].startswith(command)
    (path,) = re.findall(r"PATH=(\S+)", unit["Environment"])
    assert "/opt/fedzo/bin" in path.split(":")
    written = re.findall(r"(?:FLWR_HOME|NUMBA_CACHE_DIR)=(\S+)", unit["Environment"])
    written += re.findall(r"--database (\S+)", unit["ExecStart"])
    assert len(written) >= 2
    assert all(folder.startswith("/var/lib/fedzo/") for folder in written)
    assert (unit["StateDirectory"], unit["Restart"]) == ("fedzo", "always")


def test_node_is_restarted_when_the_superlink_has_forgotten_it():
    unit = service("fedzo-node@.service")
    assert int(unit["RestartSec"]) > 60
    _parser().parse_args(shlex.split(unit["ExecStart"].replace("%i", "9094"))[1:])


def test_node_file_is_one():
    read = NodeConfig.read({"node-file": str(DEPLOY / "node.toml")})
    assert read.limits.local_steps == 20
    assert list(read.problems) == ["softmax"]
    assert read.privacy is None
    assert read.apps == ()
    with fails("no-apps", UsageError):  # until the operator lists one
        start_node(f'node-file="{DEPLOY / "node.toml"}"', [])
