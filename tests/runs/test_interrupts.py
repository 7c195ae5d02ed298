"""Wherever a run is interrupted, a resume asks nothing again and leaves the same files."""

import gc
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import fedzo
from fedzo.core import files
from fedzo.core.value_log import HEADER, Phase, RecordedFailure, ValueLog
from fedzo.models import FunctionModel
from fedzo.runs import RunFolder
from fedzo.runs.store import Checkpoint
from raising import fails

PRIMITIVES = [
    (os, "fsync"), (os, "open"), (os, "close"), (os, "write"), (os, "ftruncate"),
    (Path, "open"), (Path, "replace"), (Path, "unlink"), (Path, "touch"), (Path, "mkdir"),
]  # fmt: skip


class Asked:
    """A function that counts its calls."""

    def __init__(self, interrupt_at=None):
        self.calls, self.interrupt_at = 0, interrupt_at

    def __call__(self, x, device):
        self.calls += 1
        if self.calls == self.interrupt_at:
            raise KeyboardInterrupt
        return float(np.sum((x - device) ** 2) + 0.1 * np.sin(30 * x[0]))


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    monkeypatch.setattr(RunFolder, "draw_curves", lambda self: None)


def contents(folder):
    """Return all files of a run, without times."""
    found = {}
    for path in folder.iterdir():
        content = path.read_bytes()
        if path.name == "history.jsonl":
            lines = [json.loads(line) for line in content.splitlines()]
            content = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
        if path.name == "checkpoint.npz":
            known = Checkpoint.read(path)
            arrays = [
                a.tobytes() for a in (*known.at.state, known.at.best.x, *known.memory.values())
            ]
            at = known.at._replace(digest=None, state=(), best=known.at.best._replace(x=0))
            bare = known._replace(seconds=0, at=at, memory={})  # the digest is of times, too
            content = (bare, arrays, list(known.memory))
        if path.name == "attack.json":
            content = json.loads(content)
        found[path.name] = content
    found.pop("curves.png", None)  # its axis may show seconds
    return found


def function_run(folder, resume, fun, workers=1):
    """Run a problem whose last evaluation is off the schedule."""
    return fedzo.minimize(
        fun,
        np.zeros(2),
        devices=2,
        algorithm=fedzo.FedZO(learning_rate=0.02, directions=2, local_steps=2),
        rounds=7,
        evaluate_every=3,
        checkpoint_every=2,
        workers=workers,
        run_dir=folder,
        resume=resume,
    )


def begun(folder):
    return RunFolder(folder).has_run()


def interrupting(monkeypatch, at):
    """Raise KeyboardInterrupt at a call of the file layer; return the counter of calls."""
    count, os_close = [0], os.close

    def wrap(original):
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] == at and original is not os_close:
                raise KeyboardInterrupt
            result = original(*args, **kwargs)
            if count[0] == at:
                raise KeyboardInterrupt  # after closing: a lock that stays is another process's
            return result

        return call

    for owner, name in PRIMITIVES:
        monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))
    return count


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 8))]
)
def test_an_interrupt_at_every_call_of_the_file_layer(part, tmp_path, monkeypatch):
    whole = Asked()
    function_run(tmp_path / "whole", False, whole)
    wanted = contents(tmp_path / "whole")
    with monkeypatch.context() as patch:
        count = interrupting(patch, None)
        function_run(tmp_path / "count", False, Asked())
    total = count[0]
    assert total > 150
    for at in range(1 + part, total + 1, 8):
        folder, fun = tmp_path / f"at-{at}", Asked()
        with suppress(KeyboardInterrupt), monkeypatch.context() as patch:
            interrupting(patch, at)
            function_run(folder, False, fun)
        function_run(folder, begun(folder), fun)
        assert contents(folder) == wanted, at
        assert fun.calls <= whole.calls + 1, at  # one value may have been on its way to the disk


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_in_the_function_repeats_no_answered_query(workers, tmp_path):
    whole = Asked()
    function_run(tmp_path / "whole", False, whole, workers)
    wanted = contents(tmp_path / "whole")
    for at in range(1, whole.calls + 1, 11):
        folder, fun = tmp_path / f"at-{at}", Asked(at)
        function_run(folder, False, fun, workers)
        function_run(folder, True, fun, workers)
        assert contents(folder) == wanted
        # The call that was interrupted, and those that other threads had not finished.
        assert fun.calls <= whole.calls + workers


SEARCHES = {
    "adaptive": fedzo.Adaptive(),
    "cma": fedzo.CMA(),
    "cma-of-one": fedzo.CMA(participants=1),
    "lbfgs": fedzo.LBFGS(),
    "fedzo": fedzo.FedZO(learning_rate=0.01, directions=2),
    "auto": fedzo.FedZO(learning_rate="auto", smoothing="auto", directions=2),
}


def budget_run(folder, resume, name, fun, callback=None, budget=500):
    return fedzo.minimize(
        fun,
        np.full(3, 0.3),
        devices=2,
        algorithm=SEARCHES[name],
        rounds=200,
        max_queries=budget,
        workers=1,
        run_dir=folder,
        resume=resume,
        callback=callback,
    )


@pytest.mark.parametrize("how", ["stop", "interrupt"])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_stop_leaves_no_trace_after_a_resume(name, how, tmp_path):
    """Also off the schedule of evaluations, and with a budget: a stop takes no queries."""

    def stop(progress):
        if progress.round == 7 and how == "interrupt":
            raise KeyboardInterrupt
        return progress.round == 7

    whole = Asked()
    budget_run(tmp_path / "whole", False, name, whole)
    fun = Asked()
    budget_run(tmp_path / "other", False, name, fun, stop)
    budget_run(tmp_path / "other", True, name, fun)
    assert contents(tmp_path / "other") == contents(tmp_path / "whole")
    assert fun.calls == whole.calls <= 500


class Noisy(Asked):
    """Another value at each call; it continues to count after a resume."""

    def __call__(self, x, device):
        if self.calls == self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
        self.calls += 1
        noise = np.random.default_rng(self.calls).normal()
        return float(np.sum((x - device) ** 2) + 0.3 * noise)


@pytest.mark.parametrize("budget", [1, 2, 5, 7, 30])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_resume_of_a_run_whose_budget_was_small_changes_nothing(name, budget, tmp_path):
    """Also if it did not suffice for an evaluation, or for the probes of "auto"."""
    fun = Asked()
    first = budget_run(tmp_path, False, name, fun, budget=budget)
    wanted, count = contents(tmp_path), fun.calls
    again = budget_run(tmp_path, True, name, fun, budget=budget)
    assert contents(tmp_path) == wanted
    assert (fun.calls, again.nfev, again.message) == (count, first.nfev, first.message)
    assert first.nfev == count <= budget


@pytest.mark.parametrize("name", SEARCHES)
def test_a_noisy_run_within_a_budget_is_the_same_wherever_it_was_interrupted(name, tmp_path):
    """Also in its last queries, which are those of its result, and after its end."""
    whole = Noisy()
    result = budget_run(tmp_path / "whole", False, name, whole, budget=150)
    wanted = contents(tmp_path / "whole")
    budget_run(tmp_path / "whole", True, name, whole, budget=150)
    assert (contents(tmp_path / "whole"), result.nfev) == (wanted, whole.calls)
    for at in (1, 9, whole.calls // 2, *range(whole.calls - 8, whole.calls)):
        folder, fun = tmp_path / f"at-{at}", Noisy(at)
        with suppress(KeyboardInterrupt):
            budget_run(folder, False, name, fun, budget=150)
        again = budget_run(folder, True, name, fun, budget=150)
        assert contents(folder) == wanted, at
        assert fun.calls == whole.calls <= 150, at
        assert (again.fun, again.nfev, again.status) == (result.fun, result.nfev, result.status)
    more = Noisy()
    for budget in (150, 151, 180):  # never more, whatever the sessions before asked at their ends
        budget_run(tmp_path / "more", budget > 150, name, more, budget=budget)
        assert more.calls <= budget


def test_the_probes_of_auto_are_not_asked_again(tmp_path):
    whole = Asked()
    first = budget_run(tmp_path / "whole", False, "auto", whole)
    wanted = contents(tmp_path / "whole")
    for at in (1, 2, 9, 40, 80, 120):
        folder, fun = tmp_path / f"at-{at}", Asked(at)
        try:
            budget_run(folder, False, "auto", fun)
        except KeyboardInterrupt:  # before round 0
            assert not (folder / "checkpoint.npz").exists()
        result = budget_run(folder, True, "auto", fun)
        assert contents(folder) == wanted
        assert fun.calls == whole.calls + 1
        assert result.queries == first.queries


def test_the_probes_of_a_tuning_are_not_trained_again(tmp_path):
    calls = []

    def tune(folder, resume, stop=None):
        def score(params, device, rng):
            calls.append(device)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return (params["x"] - 0.3) ** 2 + 0.01 * rng.normal()

        return fedzo.tune(
            score,
            {"x": fedzo.Float(0.0, 1.0)},
            devices=2,
            max_queries=80,
            method="fedzo",
            workers=1,
            run_dir=folder,
            resume=resume,
        )

    tune(tmp_path / "whole", False)
    wanted, count = contents(tmp_path / "whole"), len(calls)
    for stop in (1, 2, 5, 8, 30):
        calls.clear()
        with suppress(KeyboardInterrupt):
            tune(tmp_path / f"at-{stop}", False, stop)
        tune(tmp_path / f"at-{stop}", True)
        assert len(calls) == count + 1
        assert contents(tmp_path / f"at-{stop}") == wanted


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
def test_random_interrupts(tmp_path):
    moments, whole = random.Random(3), Asked()
    function_run(tmp_path / "whole", False, whole)
    wanted = contents(tmp_path / "whole")
    for number in range(int(os.environ.get("FEDZO_INTERRUPTS", "25"))):
        folder, fun, resume = tmp_path / str(number), Asked(), False
        for _ in range(2):
            before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0005, 0.06))
                    function_run(folder, resume, fun)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
            signal.signal(signal.SIGALRM, before)
            gc.collect()  # closes files, and so locks, that were opened in that moment
            resume = begun(folder)
        function_run(folder, resume, fun)
        assert contents(folder) == wanted, number
        assert fun.calls <= whole.calls + 2


KILLED = """
import sys, os, numpy as np, fedzo
from pathlib import Path
folder, asked = Path(sys.argv[1]), open(sys.argv[2], "ab", buffering=0)
def fun(x, device):
    value = float(np.sum((x - device) ** 2))
    asked.write(b".")
    return value
fedzo.minimize(fun, np.zeros(3), devices=2, max_queries=600, run_dir=folder,
               resume=(folder / "config.toml").exists(), workers=1)
print("done")
"""


@pytest.mark.slow
def test_kills_repeat_no_answered_query(tmp_path):
    def start(name):
        command = [sys.executable, "-c", KILLED, str(tmp_path / name), str(tmp_path / f"{name}.n")]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    start("whole").communicate()
    moments, kills = random.Random(4), 0
    for _ in range(40):
        process = start("killed")
        try:
            process.wait(moments.uniform(0.4, 1.2))
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        process.communicate()
    start("killed").communicate()
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    asked = [(tmp_path / f"{name}.n").stat().st_size for name in ("whole", "killed")]
    assert asked[0] <= asked[1] <= asked[0] + kills


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_resume_of_a_finished_search_asks_nothing(tmp_path, workers):
    pytest.importorskip("optuna")
    calls = []

    def score(params, device, rng):
        calls.append(device)
        return (params["x"] - 0.3) ** 2 + 0.1 * rng.normal()

    space = {"x": fedzo.Float(0.0, 1.0)}
    meters = []
    for resume in (False, True, True):
        problem = fedzo.problems.Tuning(score, space, 3, max_queries=120)
        fedzo.minimize(
            problem,
            algorithm=fedzo.TPE(),
            rounds=37,
            evaluate_every=30,
            run_dir=tmp_path / "run",
            resume=resume,
            workers=workers,
        )
        meters.append((problem.meter.queries, len(calls)))
    assert meters == [(120, 120)] * 3


@pytest.mark.parametrize("budget", [97, 333])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_which_device_gets_the_last_queries_does_not_depend_on_threads(tmp_path, workers, budget):
    """So a resume of a run that has spent its budget asks for nothing."""
    calls = []

    def loss(x, device):
        calls.append(device)
        time.sleep(1e-4 * (device % 3))
        return float(np.sum((x - device) ** 2))

    for resume in (False, True, True):
        fedzo.minimize(
            loss, np.zeros(4), devices=5, algorithm=fedzo.FedZO(), max_queries=budget,
            run_dir=tmp_path / "run", resume=resume, workers=workers,
        )  # fmt: skip
        assert len(calls) == budget


@pytest.mark.filterwarnings("ignore::fedzo.errors.FedzoWarning")  # of the interrupted run
@pytest.mark.parametrize("stop", [None, 3, 5])
def test_the_report_of_an_attack_is_the_same_after_a_resume(stop, tmp_path):
    weights = np.random.default_rng(0).normal(size=(16, 3))
    parts = list(np.random.default_rng(1).uniform(0.2, 0.8, (3, 8, 16)))
    asked = []

    def fit(folder, resume, stop=None):
        def scores(batch):
            asked.append(len(batch))
            return batch.reshape(-1, 16) @ weights

        def interrupt(progress):
            if progress.round == stop:
                raise KeyboardInterrupt

        model = FunctionModel(scores, input_shape=(16,), max_queries=1500)
        attack = fedzo.UniversalAttack(
            model, eps=0.1, run_dir=folder, resume=resume, callback=interrupt
        )
        attack.fit(parts, 1, held_out=(parts[0] + 0.01, 1))
        return sum(asked), attack.model.queries

    whole = fit(tmp_path / "whole", False)
    asked.clear()
    if stop is not None:
        fit(tmp_path / "other", False, stop)
        before = fit(tmp_path / "other", True)
    else:
        before = fit(tmp_path / "other", False)
    assert contents(tmp_path / "other") == contents(tmp_path / "whole")
    again = fit(tmp_path / "other", True)
    assert again == before
    assert again[1] == whole[1]
    assert contents(tmp_path / "other") == contents(tmp_path / "whole")
    report = json.loads((tmp_path / "other" / "attack.json").read_text())
    assert all(entry["success"] is not None for entry in report["success_by_eps"])


@pytest.mark.filterwarnings("ignore::fedzo.errors.FedzoWarning")
def test_an_attack_is_the_same_wherever_the_model_was_interrupted(tmp_path):
    """Also in its report, for which there may be no queries left."""
    weights = np.random.default_rng(0).normal(size=(16, 3))
    parts = list(np.random.default_rng(1).uniform(0.2, 0.8, (3, 8, 16)))

    def fit(folder, stop=None):

        def scores(batch):
            calls.append(len(batch))
            if len(calls) == stop:
                raise KeyboardInterrupt
            return batch.reshape(-1, 16) @ weights

        model = FunctionModel(scores, input_shape=(16,), max_queries=900)
        attack = fedzo.UniversalAttack(
            model, eps=0.1, run_dir=folder, resume=begun(folder), workers=1
        )
        with suppress(KeyboardInterrupt):
            attack.fit(parts, 1, held_out=(parts[0] + 0.01, 1))
        return contents(folder)

    calls = []
    whole, count, asked = fit(tmp_path / "whole"), len(calls), sum(calls)
    assert fit(tmp_path / "whole") == whole
    assert len(calls) == count
    for stop in (1, 2, 3, *range(4, count, 5), *range(count - 3, count + 1)):
        calls.clear()
        fit(tmp_path / str(stop), stop)
        done = len(calls)
        assert done == stop
        interrupted = calls.pop()
        assert fit(tmp_path / str(stop)) == whole, stop
        assert sum(calls) == asked, (stop, interrupted)


def test_a_failure_is_repeated_and_a_raised_one_is_not(tmp_path):
    """The dropped devices are the same after a resume; an error that ended the run is not."""
    calls = []

    def fun(x, device):
        calls.append(device)
        if len(calls) in (7, 30, 31):
            raise ValueError("offline")
        if len(calls) == 60:
            raise KeyboardInterrupt
        return float(np.sum((x - device) ** 2))

    keywords = {"devices": 3, "rounds": 4, "on_failure": "leave_out", "workers": 1}
    keywords |= {"algorithm": fedzo.FedZO(learning_rate=0.01), "checkpoint_every": 100}
    first = fedzo.minimize(fun, np.zeros(2), run_dir=tmp_path / "a", **keywords)
    count = len(calls)
    fedzo.minimize(fun, np.zeros(2), run_dir=tmp_path / "a", resume=True, **keywords)
    dropped = json.loads((tmp_path / "a" / "history.jsonl").read_text().splitlines()[-1])
    assert first.message.startswith("interrupted")
    assert count == 60
    assert len(dropped["dropped"]) == 3


# --- the log ------------------------------------------------------------------------------------


def logged(path, values, round=0):
    log, asked = ValueLog(), []
    log.open(path)
    log.begin(round, Phase.ROUND)
    for value in values:
        point = np.array([[value]])

        def ask(value=value):
            asked.append(value)
            return np.array([value])

        assert log.answer(1, point, ask) == value
    log.close()
    return asked


def test_a_log_cut_or_damaged_anywhere_is_read_up_to_there(tmp_path):
    path = tmp_path / "values.log"
    logged(path, [1.0, 2.0, 3.0])
    content = path.read_bytes()
    size = (len(content) - len(HEADER)) // 3
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        whole = max(0, (cut - len(HEADER)) // size)
        assert logged(path, [1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0][whole:]
        assert path.read_bytes() == content
    for at in range(len(HEADER), len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        whole = (at - len(HEADER)) // size
        assert logged(path, [1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0][whole:]


def test_other_points_are_asked_again(tmp_path):
    logged(tmp_path / "values.log", [1.0, 2.0])
    assert logged(tmp_path / "values.log", [1.0, 5.0]) == [5.0]


def test_a_foreign_file_is_not_a_log(tmp_path):
    (tmp_path / "values.log").write_text("the user's own")
    with fails("value-log"):
        ValueLog().open(tmp_path / "values.log")


def test_failures_come_back(tmp_path):
    def fail():
        raise ValueError("offline")

    for kind in (ValueError, RecordedFailure):
        log = ValueLog()
        log.open(tmp_path / "values.log")
        with pytest.raises(kind):
            log.answer(0, np.zeros(1), fail, keep_failure=True)
        log.close()


# --- what is replaced, and what is not ----------------------------------------------------------

KINDS = ["nothing", "file", "link", "dangling", "folder", "pipe", "socket", "device", "read-only"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_replaced(kind, tmp_path):
    import socket

    path, other = tmp_path / "out", tmp_path / "other"
    match kind:
        case "file" | "read-only":
            path.write_bytes(b"old")
            path.chmod(0o444 if kind == "read-only" else 0o644)
        case "link":
            other.write_bytes(b"old")
            path.symlink_to(other)
        case "dangling":
            path.symlink_to(other)
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
        case "device":
            path.symlink_to("/dev/full")
    before = os.lstat(path).st_mode if kind != "nothing" else None
    writable = kind in ("nothing", "file", "link", "dangling")
    if kind == "read-only" and os.access(path, os.W_OK):  # the superuser
        writable = True
    if writable:
        files.write_atomic(path, b"new")
        assert path.read_bytes() == b"new"
        if kind in ("link", "dangling"):
            assert path.is_symlink()
            assert other.read_bytes() == b"new"
    else:
        with fails("cannot-write"):
            files.write_atomic(path, b"new")
    if before is not None:
        assert stat.S_IFMT(os.lstat(path).st_mode) == stat.S_IFMT(before)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert not list(tmp_path.glob(".*"))


def test_a_pipe_with_a_reader_is_written_into(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as reader:
        while True:  # until it has opened the pipe
            try:
                files.write_atomic(path, bytes(30_000))
                break
            except fedzo.errors.CannotWrite:
                continue
        assert reader.stdout.read() == bytes(30_000)


OWN = ["config.toml", "history.jsonl", "checkpoint.npz", "model.npy", "best.npy", "curves.png"]


@pytest.mark.parametrize("name", [*OWN, "values.log"])
@pytest.mark.parametrize("link", [False, True])
def test_a_marked_folder_with_a_file_of_a_run_takes_no_new_run(name, link, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".fedzo").touch()
    content = b'{"round": 0, "train_loss": 1.0}\n'
    (tmp_path / "target").write_bytes(content)
    if link:
        (folder / name).symlink_to(tmp_path / "target")
    else:
        (folder / name).write_bytes(content)
    calls = Asked()
    with fails("holds-run"):
        function_run(folder, False, calls)
    assert calls.calls == 0
    assert (folder / name).read_bytes() == content
    if name == "history.jsonl":
        (folder / "config.toml").write_text("")
        with fails("no-checkpoint"):
            function_run(folder, True, calls)
        assert (folder / name).read_bytes() == content


def test_a_users_part_file_stays(tmp_path):
    folder = tmp_path / "run"
    function_run(folder, False, Asked())
    (folder / ".model.npy.17.part").write_text("the user's own")
    (folder / ".history.jsonl.backup.part").write_text("the user's own")
    function_run(folder, True, Asked())
    assert (folder / ".model.npy.17.part").exists()
    assert (folder / ".history.jsonl.backup.part").exists()


def test_a_damaged_log_of_trainings_costs_the_damaged_trainings_only(tmp_path):
    calls = []

    def tune(resume):
        def score(params, device, rng):
            calls.append(device)
            return (params["x"] - 0.3) ** 2

        space = {"x": fedzo.Float(0.0, 1.0)}
        return fedzo.tune(
            score, space, devices=2, max_queries=40, workers=1, run_dir=tmp_path / "run",
            resume=resume,
        )  # fmt: skip

    best, log = tune(False).params, tmp_path / "run" / "trials.jsonl"
    whole = log.read_bytes()
    for at in range(0, len(whole), len(whole) // 11):
        log.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        calls.clear()
        assert tune(True).params == best
        assert len(calls) <= 4  # the line, and the next where it was the end of a line


def test_an_interrupt_while_a_folder_is_locked_leaves_no_lock(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    flock = fcntl.flock

    def interrupted(*args):
        flock(*args)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            function_run(tmp_path, False, Asked())
    function_run(tmp_path, begun(tmp_path), Asked())
