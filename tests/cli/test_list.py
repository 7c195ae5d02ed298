"""``fedzo list``, the short forms of ``--set``, budgets, and where a second run goes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import fedzo
from fedzo.cli import main
from fedzo.problems import Quadratic
from fedzo.runs import RunFolder

SETS = ["problem.dim=5", "problem.devices=3", "algorithm.participants=3"]
SMALL = [*(word for one in SETS for word in ("--set", one)), "--quiet"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return tmp_path


def listed(capsys, *arguments):
    capsys.readouterr()
    assert main(["list", *arguments]) == 0
    heading, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heading == ["run", "status", "round", "loss", "queries", "age"]
    return {row[0]: row[1:] for row in rows}


def test_list(here, capsys):
    assert main(["run", "quadratic", "--rounds", "4", *SMALL]) == 0
    assert (
        main(["run", "quadratic", "--rounds", "4", "--seeds", "2", "--out", "runs/k", *SMALL]) == 0
    )
    diverges = ["--set", "algorithm.learning_rate=50", "--out", "runs/far"]
    assert main(["run", "quadratic", "--rounds", "200", *SMALL, *diverges]) == 3
    rows = listed(capsys)
    assert rows.keys() == {"quadratic", "k/seed-0", "k/seed-1", "far"}
    last = json.loads((here / "runs/quadratic/history.jsonl").read_text().splitlines()[-1])
    status, rounds, loss, queries, *age = rows["quadratic"]
    assert (status, rounds, queries) == ("finished", "4/4", f"{last['queries']:,}")
    assert float(loss) == pytest.approx(last["train_loss"], rel=1e-5)
    assert age[-1] == "s"
    assert rows["far"][0] in ("diverged", "non-finite")
    assert listed(capsys, "runs/k").keys() == {"seed-0", "seed-1"}
    assert listed(capsys, "runs/quadratic").keys() == {"quadratic"}


def test_a_run_that_is_running_was_killed_or_is_damaged(here, capsys):
    assert main(["run", "quadratic", "--rounds", "2", *SMALL]) == 0
    run = RunFolder(here / "runs/quadratic")
    with run.held():
        assert listed(capsys)["quadratic"][0] == "running"
    run.mark.write_text("")
    assert listed(capsys)["quadratic"][0] == "killed"
    run.history.write_text("not JSON\n")
    assert listed(capsys)["quadratic"][1:4] == ["?", "?", "?"]
    run.history.unlink()
    assert listed(capsys)["quadratic"][1:4] == ["0/2", "-", "0"]
    run.config.unlink()
    assert listed(capsys)["quadratic"][1:4] == ["?", "?", "?"]


def test_the_newest_comes_first(here, capsys):
    for age, name in enumerate(("b", "a", "c")):
        assert main(["run", "quadratic", "--rounds", "1", *SMALL, "--out", f"runs/{name}"]) == 0
        os.utime(here / "runs" / name / "history.jsonl", (1e9 - age, 1e9 - age))
    assert list(listed(capsys)) == ["b", "a", "c"]


@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["file"], ["empty"]])
def test_nothing_to_list(here, arguments, capsys):
    (here / "file").touch()
    (here / "empty").mkdir()
    assert main(["list", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_short_forms(here):
    short = ["--rounds", "3", "--seed", "7", "--max-queries", "90000"]
    sets = ["run.rounds=3", "run.seed=7", "run.max_queries=90000"]
    long = [word for one in sets for word in ("--set", one)]
    assert main(["run", "quadratic", *SMALL, *short, "--out", "short"]) == 0
    assert main(["run", "quadratic", *SMALL, *long, "--out", "long"]) == 0
    assert (here / "short/config.toml").read_text() == (here / "long/config.toml").read_text()
    assert (here / "short/model.npy").read_bytes() == (here / "long/model.npy").read_bytes()


@pytest.mark.parametrize("option", ["--rounds", "--seed", "--max-queries"])
def test_bad_short_forms_name_the_key(here, option, capsys):
    assert main(["run", "quadratic", option, "many"]) == 2
    assert f"run.{option[2:].replace('-', '_')} = 'many'" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_second_run_says_where_it_goes(here, capsys):
    for _ in range(3):
        assert main(["run", "quadratic", "--rounds", "1", *SMALL]) == 0
    error = capsys.readouterr().err.splitlines()
    assert [line.split()[6] for line in error] == ["runs/quadratic-2", "runs/quadratic-3"]


@pytest.mark.parametrize("budget", [1, 100, 1000, 1001])
def test_a_simulation_ends_before_the_round_that_exceeds_its_budget(here, budget):
    algorithm = fedzo.FedZO(learning_rate=0.01, directions=4, local_steps=1, batch_size=2)
    problem = Quadratic(dim=5, devices=10)  # 100 queries per round
    result = fedzo.minimize(problem, algorithm=algorithm, rounds=50, max_queries=budget)
    assert result.queries == budget // 100 * 100
    assert result.status is (fedzo.Status.STOPPED if budget >= 100 else fedzo.Status.STALLED)
    assert f"{budget:,} queries" in result.message


def test_a_larger_budget_resumes(here):
    settings = ["run", "quadratic", *SMALL, "--rounds", "20"]
    assert main([*settings, "--out", "whole"]) == 0
    last = json.loads((here / "whole/history.jsonl").read_text().splitlines()[-1])
    half = str(last["queries"] // 2)
    assert main([*settings, "--max-queries", half, "--out", "half"]) == 0
    assert main([*settings, "--out", "half", "--resume"]) == 0
    assert np.array_equal(np.load("whole/model.npy"), np.load("half/model.npy"))


def test_a_training_stops_exactly_at_the_budget(here):
    (here / "own.py").write_text(
        "from fedzo.problems import FunctionObjective\n"
        "def make():\n"
        "    return FunctionObjective(lambda x, i: float(x @ x) + i, dim=2, devices=3)\n"
    )
    (here / "own.toml").write_text('[problem]\nname = "own:make"\n')
    done = subprocess.run(
        [sys.executable, "-m", "fedzo", "run", "own.toml", "--max-queries", "100", "--out", "own"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "the budget of 100 queries is spent" in done.stdout, done.stderr
    record = json.loads((here / "own/history.jsonl").read_text().splitlines()[-1])
    assert record["queries"] + record["evaluation_queries"] <= 100
