"""The files that an operator copies: they fit each other, and what Flower needs to start."""

import configparser
import re
import tomllib
from pathlib import Path

import pytest

from fedzo.flower.node import Node

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


@pytest.mark.parametrize("name", ["fedzo-superlink.service", "fedzo-node@.service"])
def test_unit_finds_the_processes_that_flower_starts_by_name(name):
    unit = service(name)
    assert unit["ExecStart"].startswith("/opt/fedzo/bin/flower-super")
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
    (path,) = re.findall(r"PATH=(\S+)", unit["Environment"])
    assert path.startswith("/etc/fedzo/bin:")  # where only listed apps are run
    launcher = DEPLOY / "bin" / "flwr-clientapp"
    assert launcher.stat().st_mode & 0o111
    assert "-m fedzo.flower.pinned" in launcher.read_text()


def test_node_file_is_one():
    read = Node.read({"node-file": str(DEPLOY / "node.toml")})
    assert read.limits.local_steps == 20
    assert list(read.problems) == ["softmax"]
    assert read.privacy is None
    whole = (DEPLOY / "node.toml").read_text()
    commented = re.sub(r"(?m)^# (?=\[privacy\]|\w+ = )", "", whole)  # what an operator may take
    tables = tomllib.loads(commented)
    assert set(tables["privacy"]) == {"epsilon", "delta", "noise", "difference_clip", "loss_clip"}
    assert len(tables["apps"]) == 1
