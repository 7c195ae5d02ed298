"""Runs behind figures: done once, resumed after a kill, with no process left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from toys import toy

from fedzo.config.experiment import Experiment
from fedzo.config.jobs import OUTCOME, do
from fedzo.errors import Exit, UsageError
from fedzo.paper.reproduce import run_of
from fedzo.runs import RunFolder, read_history
from raising import fails

SCRIPT = Path(__file__).with_name("toys.py")


def runs_of(figure, out):
    scale = figure.scales["tiny"]
    return [
        run_of(curve.experiment(scale), seed, out)
        for curve in figure.curves
        for seed in range(scale.seeds)
    ]


def records(run):
    return [{k: v for k, v in r.items() if k != "seconds"} for r in run.history()]


@pytest.mark.slow
def test_runs_are_those_of_the_command(tmp_path):
    """A folder of seeds as `fedzo run --seeds` leaves it, with the same histories."""
    runs = runs_of(toy(rounds=10, seeds=2), tmp_path)
    told = []
    do(runs, 2, lambda *at: told.append(at))
    assert [run.folder.name for run in runs] == ["seed-0", "seed-1"] * 2
    assert told[-1] == (1.0, 4, 4)
    for run in runs:
        assert run.finished
        expected = run.experiment.run().history
        assert records(run) == [
            {k: v for k, v in record.items() if k != "seconds"} for record in expected
        ]
        assert RunFolder(run.folder).model.exists()
        config = Experiment.load(str(run.folder)).tables
        assert config["run"]["seed"] == run.experiment.options.seed


def test_name_depends_on_all_but_the_seed(tmp_path):
    def folder(changes=None, seed=0):
        return run_of(Experiment.load("quadratic", changes), seed, tmp_path).folder

    assert folder().parent == folder(seed=5).parent == folder({"run": {"seed": 5}}).parent
    others = [
        folder({table: {key: value}}).parent
        for table, key, value in (
            ("algorithm", "smoothing", 0.01),
            ("problem", "dim", 9),
            ("run", "rounds", 7),
            ("run", "data_seed", 1),
        )
    ]
    assert len({*others, folder().parent}) == 5


def test_what_is_done_is_not_done_again(tmp_path):
    first = runs_of(toy(rounds=6, seeds=1), tmp_path)
    do(first, 1)
    before = [(run.folder / OUTCOME).stat().st_mtime_ns for run in first]
    told = []
    do([*first, *first, *runs_of(toy(rounds=6, seeds=2), tmp_path)], 1, lambda *at: told.append(at))
    assert told[-1] == (1.0, 2, 2)  # the second seeds only
    assert [(run.folder / OUTCOME).stat().st_mtime_ns for run in first] == before


def started(*arguments, **options):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment, text=True, bufsize=1, **options
    )


@pytest.mark.slow
def test_killed_and_restarted(tmp_path):
    """SIGKILL in the midst: children end, finished runs stay as they are, the rest goes on."""
    runs = runs_of(toy(rounds=400), tmp_path)
    process = started(SCRIPT, tmp_path, "400", stdout=subprocess.PIPE)
    for line in process.stdout:
        if int(line.split()[0]) >= 2:  # finished
            break
    process.kill()
    process.wait()
    process.stdout.read()  # ends when nobody is left who could write: no child outlives it
    process.stdout.close()
    kept = {run.folder: os.stat(run.folder / OUTCOME).st_mtime_ns for run in runs if run.finished}
    begun = [run for run in runs if RunFolder(run.folder).has_run() and not run.finished]
    assert len(kept) >= 2
    assert begun, "the kill came too late to prove anything"
    checkpoints = [RunFolder(run.folder).load() for run in begun]
    assert any(checkpoint is not None for checkpoint in checkpoints)
    told = []
    do(runs, 2, lambda *at: told.append(at))
    assert told[-1][2] == len(runs) - len(kept)
    assert kept == {folder: os.stat(folder / OUTCOME).st_mtime_ns for folder in kept}
    for run in begun:
        expected = run.experiment.run().history
        assert records(run) == [
            {k: v for k, v in record.items() if k != "seconds"} for record in expected
        ]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(ending, tmp_path):
    """A polite end: one line, exit code 130, no child left, and half a run to go on from."""
    code = "import sys; from fedzo.cli import main; sys.exit(main())"
    command = ("reproduce", "table1", "--seeds", "2", "--out", tmp_path)
    process = started("-c", code, *command, stderr=subprocess.PIPE)
    assert "left" in process.stderr.readline()
    process.send_signal(ending)
    said = process.stderr.read()  # ends when all have ended
    process.stderr.close()
    assert process.wait() == 130
    assert said.splitlines()[-1] == "fedzo: error: interrupted"
    assert said.splitlines()[-2].startswith("to resume: fedzo reproduce table1 ")
    assert "Traceback" not in said
    halves = [p for p in tmp_path.rglob("checkpoint.npz") if not (p.parent / OUTCOME).exists()]
    assert halves


def test_run_that_diverged_is_over(tmp_path):
    """It is not tried again, and its history ends in no number."""
    run = next(r for r in runs_of(toy(lost=True, seeds=1), tmp_path) if "1e+160" in str(r))
    do([run], 1)
    outcome = json.loads((run.folder / OUTCOME).read_text())
    assert "not finite" in outcome["message"]
    last = run.history()[-1]
    assert (last["round"], last["train_loss"]) == (30, float("inf"))
    assert list(read_history(RunFolder(run.folder).history))[-1]["round"] < 30
    do([run], 1, lambda *_: pytest.fail("it was done again"))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("done")
    do(runs_of(toy(rounds=4, seeds=1), out)[:1], 1)
    return out


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("history.jsonl", ""),
        ("history.jsonl", '{"round": 0, "train_loss": 2.0, "seconds": 0.0}\n'),
        ("history.jsonl", "no record\n"),
        ("history.jsonl", None),
        ("config.toml", None),
        (OUTCOME, ""),
        (OUTCOME, "[]"),
        (OUTCOME, "{}"),
    ],
)
def test_damaged_run_is_told_before_others_are_done(name, content, done, tmp_path):
    """In one line that says what to do."""
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    one, other = runs_of(toy(rounds=4, seeds=1), tmp_path)
    assert one.finished
    (one.folder / name).unlink()
    if content is not None:
        (one.folder / name).write_text(content)
    with fails("damaged-run", UsageError):
        do([other, one], 1)
    assert not other.folder.exists()


@pytest.mark.slow
def test_worker_goes_quietly(tmp_path):
    """At the end of all runs nobody is ended, so nobody complains of it."""
    process = started(SCRIPT, tmp_path, "2", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


def test_run_that_cannot_be(tmp_path):
    """What a run cannot do is told in one line, by its folder."""
    experiment = Experiment.load("softmax", {"problem": {"devices": 4001}})
    run = run_of(experiment, 0, tmp_path)
    failed = do([run], 1)
    assert failed[run.folder].code == Exit.NOTHING_RUN
    assert failed[run.folder].message.startswith("problem.devices = 4001")


def test_work_goes_with_queries_and_with_what_one_takes(tmp_path):
    one, two = (
        {r.experiment.algorithm.local_steps: r.work for r in runs_of(toy(rounds), tmp_path)}
        for rounds in (1000, 2000)
    )
    assert two[5] - one[5] == pytest.approx(5 * (two[1] - one[1]))
    attack = run_of(Experiment.load("attack", {"run": {"rounds": 1}}), 0, tmp_path)
    softmax = run_of(Experiment.load("softmax", {"run": {"rounds": 10}}), 0, tmp_path)
    assert attack.work > softmax.work  # 16,800 answers of a network, and 525,000 products
