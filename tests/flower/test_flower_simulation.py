"""Virtual nodes, by ``fedzo run --engine flower``."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedzo.cli import main
from fedzo.config.experiment import Experiment, parse_overrides
from fedzo.runs import RunFolder, read_history

LIMIT = 120  # seconds
CLI = "import sys; from fedzo.cli import main; sys.exit(main())"


def fedzo_run(*arguments):
    assert main(["run", *arguments]) == 0


def without(record):
    """Return a record without what a virtual node adds to it, or that differs between two runs."""
    return {
        key: value
        for key, value in record.items()
        if key != "seconds" and not key.startswith(("message_", "transport_"))
    }


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
    deadline = time.monotonic() + LIMIT
    while rounds_done(out) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "interrupted after round" in stdout
    assert stderr == f"to resume: fedzo run {out}/config.toml --resume --engine flower\n"
    assert 2 <= rounds_done(out) < 100000


def rounds_done(out):
    """Return the round of the checkpoint."""
    checkpoint = RunFolder(out).load()
    return 0 if checkpoint is None else checkpoint.at.round


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


def test_device_that_fails_is_dropped_with_the_text_of_its_error(tmp_path, caplog):
    (tmp_path / "moody.py").write_text(
        "from fedzo.problems import FunctionObjective\n"
        "def problem():\n"
        "    return FunctionObjective(fun, dim=3, devices=4)\n"
        "def fun(x, device):\n"
        "    if device == 2:\n"
        "        raise OSError('the disk is full')\n"
        "    return float((x - 1) @ (x - 1))\n"
    )
    config = tmp_path / "own.toml"
    config.write_text(
        """
problem = {name = "moody:problem"}
algorithm = {name = "fedzo", directions = 2, local_steps = 1, learning_rate = 0.01}
run = {rounds = 3, evaluate_every = 3}
flower = {nodes = 2}
"""
    )
    out = tmp_path / "run"
    fedzo_run(str(config), "--engine", "flower", "--out", str(out), "--quiet")
    (last,) = list(read_history(out / "history.jsonl"))[-1:]
    assert {one["device"] for one in last["dropped"]} == {2}
    assert "OSError: the disk is full" in last["dropped"][0]["reason"]
    assert caplog.text.count("device 2 is dropped") == 1


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
