"""Flower's simulation engine, on Ray: its own processes, so away from those of the tests."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from loopback import LIMIT, open_to_others, rounds_done, until, without

from fedzo.config.experiment import Experiment, parse_overrides
from fedzo.runs import read_history

pytestmark = pytest.mark.processes

CLI = "import sys; from fedzo.cli import main; sys.exit(main())"


def fedzo_run(*arguments):
    process = subprocess.run(
        [sys.executable, "-c", CLI, "run", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize(
    "changes", [["uplink.name=seeds"], ["algorithm.learning_rate=auto"]], ids=["seeds", "auto"]
)
def test_simulation_is_the_same_run(tmp_path, changes):
    overrides = ["run.rounds=10", "flower.nodes=3", *changes]
    out = tmp_path / "run"
    fedzo_run("softmax", "--engine", "flower", "--out", str(out), *set_all(overrides))
    experiment = Experiment.load("softmax", parse_overrides(overrides))
    result = experiment.run(tmp_path / "here")
    x = np.load(out / "model.npy")
    assert np.abs(x - result.x).max() <= 1e-6 * np.abs(result.x).max()
    for one, two in zip(read_history(out / "history.jsonl"), result.history, strict=True):
        assert without(one) == pytest.approx(without(two), rel=1e-6)
    assert sorted(p.name for p in out.iterdir()) == sorted(
        p.name for p in (tmp_path / "here").iterdir()
    )


def test_interrupted_simulation_leaves_a_checkpoint(tmp_path):
    out = tmp_path / "run"
    words = ["quadratic", "--engine", "flower", "--out", str(out), "--quiet"]
    words += set_all(["run.rounds=100000", "run.checkpoint_every=1"])
    process = subprocess.Popen(
        [sys.executable, "-c", CLI, "run", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: rounds_done(out) >= 2)
    strangers = open_to_others(process.pid)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=LIMIT)
    assert strangers == set()  # Ray asks for no password
    assert process.returncode == 130
    assert "interrupted after round" in stdout
    assert stderr == f"to resume: fedzo run {out}/config.toml --resume --engine flower\n"
    assert 2 <= rounds_done(out) < 100000


def set_all(overrides):
    return [word for override in overrides for word in ("--set", override)]


def test_simulation_of_a_thousand_devices(tmp_path):
    overrides = ["problem.devices=1000", "algorithm.participants=50", "run.rounds=3"]
    overrides += ["run.evaluate_every=3", "flower.nodes=250"]
    out = tmp_path / "run"
    fedzo_run("quadratic", "--engine", "flower", "--out", str(out), "--quiet", *set_all(overrides))
    last = list(read_history(out / "history.jsonl"))[-1]
    assert (last["round"], last["participants"]) == (3, 50)
    assert "dropped" not in last


PAGE = Path(__file__).parents[2] / "docs" / "extend" / "algorithm.md"


@pytest.mark.parametrize(
    "own", ['name = "proximal:Proximal"', 'name = "scaffold", participants = 3']
)
def test_an_algorithm_resumes_to_the_same_bytes_on_both_engines(own, tmp_path):
    """The algorithm of the documentation, and one with a state per device, from TOML."""
    code = re.search(r'```python title="proximal.py"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    (tmp_path / "proximal.py").write_text(code[1])
    config = tmp_path / "own.toml"
    config.write_text(
        f"""
problem = {{name = "quadratic", devices = 4}}
algorithm = {{{own}, learning_rate = 0.01}}
run = {{rounds = 4, evaluate_every = 2}}
flower = {{nodes = 2}}
"""
    )
    there, here = tmp_path / "there", tmp_path / "here"
    flower = [str(config), "--engine", "flower", "--out", str(there), "--quiet"]
    fedzo_run(*flower, "--set", "run.rounds=2")
    fedzo_run(*flower, "--resume")
    fedzo_run(str(config), "--out", str(here), "--quiet")
    for name in ("model.npy", "config.toml"):
        assert (there / name).read_bytes() == (here / name).read_bytes()
