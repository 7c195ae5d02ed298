"""Sweeps: every combination, each run once, and the best of them to run again."""

import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from fedzo.cli import main
from fedzo.config import jobs
from fedzo.config.experiment import Experiment, merge_changes, parse_overrides
from fedzo.config.sweep import settings_of, values_of
from fedzo.errors import Exit

SMALL = ["--set", "problem.dim=6", "--set", "problem.devices=4", "--set", "run.rounds=8"]
SMALL += ["--set", "algorithm.participants=3"]
RATES, STEPS = (0.001, 0.05, 0.2), (1, 5)
GRID = ["--grid", "algorithm.learning_rate=0.001,0.05,0.2", "--grid", "algorithm.local_steps=1,5"]


def command(out, *more):
    return main(["sweep", "quadratic", *GRID, *SMALL, "--seeds", "2", "--out", str(out), *more])


def do_here(runs, workers, report):
    """Do the runs in this process, one after another: a process takes seconds to start."""
    for run in jobs.missing(runs):
        assert jobs._do_run(run.experiment.tables, run.experiment.name, run.folder) is None
    return {}


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr("fedzo.config.sweep.do", do_here)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedzo.config.sweep.do", do_here)
        assert command(out) == 0
    return out


def last_losses(rate, steps):
    changes = {"algorithm": {"learning_rate": rate, "local_steps": steps}}
    small = parse_overrides(word for word in SMALL if word != "--set")
    experiment = Experiment.load("quadratic", merge_changes(small, changes))
    return [experiment.with_seed(seed).run().history[-1]["train_loss"] for seed in (0, 1)]


def test_table_has_what_the_runs_come_to(swept):
    with (swept / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [
        (float(r["algorithm.learning_rate"]), int(r["algorithm.local_steps"])) for r in rows
    ] == [(rate, steps) for rate in RATES for steps in STEPS]
    means = {(rate, steps): np.mean(last_losses(rate, steps)) for rate in RATES for steps in STEPS}
    for row, mean in zip(rows, means.values(), strict=True):
        assert float(row["train_loss_mean"]) == pytest.approx(mean, rel=1e-12)
        assert int(row["train_loss_n"]) == 2
        assert row["status"] == "finished"
    (marked,) = (i for i, row in enumerate(rows) if row["best"] == "1")
    assert marked == int(np.argmin(list(means.values())))


def test_best_is_ready_to_run(swept):
    text = (swept / "best.toml").read_text()
    best = Experiment.load(str(swept / "best.toml"))
    chosen = best.algorithm.learning_rate, best.algorithm.local_steps
    means = {(rate, steps): np.mean(last_losses(rate, steps)) for rate in RATES for steps in STEPS}
    assert chosen == min(means, key=means.get)
    assert text.startswith(f"# learning_rate={chosen[0]}, local_steps={chosen[1]}: the best of 6")
    assert tomllib.loads(text)["problem"]["dim"] == 6
    assert best.run().history[-1]["train_loss"] == pytest.approx(last_losses(*chosen)[0], rel=1e-9)


def test_picture_has_ends_and_curves(swept):
    """By rounds and, since more local steps ask for more, by queries."""
    assert imread(swept / "sweep.png").shape[:2] == (690, 3 * 780)


def outcomes(out):
    return {p: os.stat(p).st_mtime_ns for p in out.rglob("outcome.json")}


def test_what_is_done_is_not_done_again(swept, capsys):
    before = outcomes(swept)
    assert len(before) == 12
    assert command(swept) == 0
    assert outcomes(swept) == before
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["algorithm.learning_rate", "algorithm.local_steps", "train_loss",
                              "optimality_gap", "queries", "status"]  # fmt: skip
    assert out[-1].startswith("the best: learning_rate=")


def test_half_a_sweep_resumes(swept, tmp_path):
    """In processes: runs that are there stay, an interrupted one goes on to the same end."""
    shutil.copytree(swept, tmp_path / "half")
    folders = sorted(p.parent for p in (tmp_path / "half").rglob("outcome.json"))
    wanted = (folders[1] / "history.jsonl").read_text()
    shutil.rmtree(folders[0])
    (folders[1] / "outcome.json").unlink()
    assert command(tmp_path / "half") == 0
    assert len(outcomes(tmp_path / "half")) == 12

    def losses(text):
        return [json.loads(line)["train_loss"] for line in text.splitlines()]

    assert losses((folders[1] / "history.jsonl").read_text()) == losses(wanted)


def test_another_configuration_is_not_mixed_in(swept, capsys):
    before = outcomes(swept)
    assert command(swept, "--set", "problem.condition=2.0") == 2
    assert "holds a run of another configuration: choose another --out" in capsys.readouterr().err
    assert outcomes(swept) == before


@pytest.mark.usefixtures("here")
def test_diverged_settings_are_told_and_not_the_best(tmp_path, capsys):
    grid = ["--grid", "algorithm.learning_rate=1e160,0.01"]
    assert main(["sweep", "quadratic", *grid, *SMALL, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "non_finite" in out
    assert "the best: learning_rate=0.01" in out


@pytest.mark.usefixtures("here")
def test_words_are_swept_too(tmp_path, capsys):
    grid = ["--grid", "uplink.name=ideal,seeds"]
    assert main(["sweep", "quadratic", *grid, *SMALL, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "uplink=seeds" / "seed-0" / "history.jsonl").exists()
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "ideal"


def test_values():
    assert values_of('problem.partition = "iid", "shards"') == (
        "problem.partition",
        ["iid", "shards"],
    )
    assert values_of("problem.sizes=[1, 2],[3]") == ("problem.sizes", [[1, 2], [3]])


@pytest.mark.parametrize(
    ("grid", "line"),
    [
        (["algorithm.learning_rate"], "--grid algorithm.learning_rate: must be table.key=a,b,c"),
        (["learning_rate=1,2"], "--grid learning_rate=1,2: must be table.key=a,b,c"),
        (["algorithm.learning_rte=1,2"], "algorithm.learning_rte = 1: unknown key"),
        (
            ["algorithm.learning_rate=0.1,-1"],
            "algorithm.learning_rate = -1.0: must be a number > 0",
        ),
        (["run.rounds=1,1"], "--grid run.rounds=1,1: names a value twice"),
        (["run.rounds=1", "run.rounds=2"], "--grid: run.rounds is given twice"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(grid, line, tmp_path, capsys):
    words = [word for each in grid for word in ("--grid", each)]
    assert main(["sweep", "quadratic", *words, "--out", str(tmp_path / "out")]) == 2
    assert line in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_settings_share_seeds(tmp_path):
    first, second = settings_of("quadratic", {}, ["algorithm.local_steps=1,2"], 3, tmp_path)
    for setting in (first, second):
        assert [run.experiment.options.seed for run in setting.runs] == [0, 1, 2]
    assert first.runs[0].folder == tmp_path / "local_steps=1" / "seed-0"


@pytest.mark.parametrize(
    "command",
    [
        ["sweep", "quadratic", "--grid", "algorithm.learning_rate=0.01"],
        ["reproduce", "table1", "--seeds", "1"],
        ["run", "quadratic", "--seeds", "2"],
    ],
)
def test_a_folder_of_somebody_else_is_left_alone(command, tmp_path, capsys):
    (tmp_path / "best.toml").write_text("mine")
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "holds files that are not of a run, such as best.toml" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["best.toml"]


def table_of(folder):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return pandas.read_csv(folder / "sweep.csv")


def test_table_is_numbers(swept):
    table = table_of(swept)
    numbers = [column for column in table.columns if column != "status"]
    assert all(table[column].dtype.kind in "if" for column in numbers)
    inside = (table["train_loss_low"] <= table["train_loss_mean"]) & (
        table["train_loss_mean"] <= table["train_loss_high"]
    )
    assert inside.all()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "statuses"),
    [
        (["--set", "run.target=1e9", "--grid", "algorithm.local_steps=1,2"], {"stopped"}),
        (["--grid", "algorithm.name=cma,fedzo"], {"finished", "stalled", "stopped"}),
        (
            ["--set", "algorithm.name=cma", "--set", "uplink.name=seeds", "--grid", "run.seed=1,2"],
            {"finished", "stalled", "stopped"},
        ),
    ],
)
def test_runs_that_end_otherwise_are_not_failed(words, statuses, tmp_path):
    """A target reached, a search, an algorithm without local steps."""
    assert main(["sweep", "quadratic", *SMALL, *words, "--out", str(tmp_path / "out")]) == 0
    table = table_of(tmp_path / "out")
    assert set(table["status"]) <= statuses
    assert (table["train_loss_n"] == 1).all()


@pytest.mark.usefixtures("here")
def test_problems_with_different_metrics(tmp_path):
    small = ["--set", "run.rounds=2", "--set", "problem.devices=4"]
    small += ["--set", "algorithm.participants=3"]
    grid = ["--grid", "problem.name=quadratic,softmax"]
    assert main(["sweep", "quadratic", *small, *grid, "--out", str(tmp_path / "out")]) == 0
    table = table_of(tmp_path / "out")
    assert table["optimality_gap_n"].tolist() == [1, 0]
    assert table["test_accuracy_n"].tolist() == [0, 1]


def test_parts_that_do_not_fit_are_rejected_before_any_run(tmp_path, capsys):
    grid = ["--grid", "uplink.name=ideal,robust_seeds"]
    assert main(["sweep", "quadratic", *SMALL, *grid, "--out", str(tmp_path / "out")]) == 2
    assert "algorithm.shared_directions" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


OWN = """
from fedzo import FunctionObjective

def make(limit: float = 1.0):
    def f(x, device):
        if limit < 0:
            raise ValueError("too low")
        return float((x - 1) @ (x - 1))
    return FunctionObjective(f, dim=2, devices=2)
"""


def test_code_of_the_user_that_fails_is_a_line_and_a_status(tmp_path, capfd, monkeypatch):
    """The other runs are done; the failed one is tried again by the same command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("failing_sweep.py").write_text(OWN)
    Path("mine.toml").write_text('[problem]\nname = "failing_sweep:make"\n[run]\nrounds = 2\n')
    words = ["sweep", "mine.toml", "--grid", "problem.limit=1.0,-1.0", "--out", "out"]
    assert main(words) == Exit.OWN_CODE
    said = capfd.readouterr().err
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith(f"fedzo: error: {Path('out')}/limit=-1.0/seed-0: ValueError")
    table = table_of(Path("out"))
    assert table["status"].tolist() == ["finished", "own_code"]
    assert table["best"].tolist() == [1, 0]
    assert main(words) == Exit.OWN_CODE


@pytest.mark.slow
def test_an_interrupt_says_how_to_resume(tmp_path):
    code = "import sys; from fedzo.cli import main; sys.exit(main())"
    words = ["sweep", "quadratic", "--grid", "algorithm.local_steps=1,2", "--set",
             "run.rounds=100000", "--out", str(tmp_path / "out")]  # fmt: skip
    command = [sys.executable, "-c", code, *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.rglob("history.jsonl")):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == Exit.INTERRUPTED
    assert "Traceback" not in said
    (line,) = (line for line in said.splitlines() if line.startswith("to resume: "))
    assert shlex.split(line)[2:] == ["fedzo", *words]
