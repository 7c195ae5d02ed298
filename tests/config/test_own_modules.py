"""Modules of the user's own beside a configuration: found at once, and when a run is resumed."""

import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.slow

PART = """
from dataclasses import dataclass
import fedzo

@dataclass(frozen=True, kw_only=True)
class Pulled(fedzo.FedZO):
    pull: float = 0.1
    coefficients_shape = None  # corrected steps are not sums of directions
    def correction(self, task, device):
        return lambda x: self.pull * (x - task.x)
"""
CONFIG = """
[problem]
name = "quadratic"
dim = 5
devices = 3

[algorithm]
name = "pulled_steps:Pulled"
directions = 2
batch_size = 1
pull = 0.5

[run]
rounds = 4
evaluate_every = 1
"""


def fedzo(*arguments, cwd):
    command = [sys.executable, "-m", "fedzo", *arguments]
    return subprocess.run(command, cwd=cwd, check=False, text=True, capture_output=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run at once, and resumed from its own folder, given from another folder."""
    home = tmp_path_factory.mktemp("home")
    (home / "pulled_steps.py").write_text(PART)
    (home / "mine.toml").write_text(CONFIG)
    here = tmp_path_factory.mktemp("elsewhere")
    for arguments in (
        (str(home / "mine.toml"), "--out", "whole"),
        (str(home / "mine.toml"), "--out", "parts", "--set", "run.rounds=2"),
        ("parts", "--resume", "--set", "run.rounds=4"),
    ):
        done = fedzo("run", *arguments, "--quiet", cwd=here)
        assert done.returncode == 0, done.stderr
    return here


def test_resumed_to_the_same_bytes(runs):
    whole, parts = (np.load(runs / name / "model.npy") for name in ("whole", "parts"))
    assert whole.tobytes() == parts.tobytes()


def test_the_part_was_used(runs):
    """Without the pull the model is another one."""
    plain = fedzo("run", "quadratic", *SAME, "--out", "plain", "--quiet", cwd=runs)
    assert plain.returncode == 0, plain.stderr
    assert np.load(runs / "plain" / "model.npy").tobytes() != (
        np.load(runs / "whole" / "model.npy").tobytes()
    )


SETTINGS = (
    *("problem.dim=5", "problem.devices=3", "problem.gradient_noise=1", "problem.condition=10"),
    *("algorithm.learning_rate=0.001", "algorithm.directions=2", "algorithm.batch_size=1"),
    *("algorithm.participants=3", "run.rounds=4"),
)
SAME = [part for setting in SETTINGS for part in ("--set", setting)]


def test_a_module_that_is_gone_is_named(runs, tmp_path):
    (tmp_path / "mine.toml").write_text(CONFIG)
    refused = fedzo("run", "mine.toml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "algorithm.name = 'pulled_steps:Pulled': must be importable" in refused.stderr
    assert refused.stderr.count("\n") == 1
