"""The command line as a user meets it: real processes, signals, exit codes."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fedzo_command
from fedzo import __version__
from fedzo.cli import main
from fedzo.config.experiment import Experiment, parse_overrides
from fedzo.errors import Exit
from fedzo.runs import RunFolder

FEDZO = str(Path(sys.executable).with_name("fedzo"))
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}

SLOW = '''
import sys, time
import fedzo
import numpy as np

class Slow(fedzo.Objective):
    """A bowl whose values take their time; ``stuck``: the first evaluation never ends."""
    dim, devices = 5, 4
    def __init__(self, stuck: bool = False):
        self.stuck = stuck
    def batch(self, device, size, draws):
        return device
    def values(self, points, batch):
        time.sleep(0.004)
        return np.sum((points - batch) ** 2, axis=1)[:, None]
    def losses(self, x, devices):
        if self.stuck:
            print("evaluating", file=sys.stderr, flush=True)
            time.sleep(60)
        return np.array([np.sum((x - i) ** 2) for i in devices])
'''
SLOW_TOML = """
[problem]
name = "slow:Slow"
[algorithm]
learning_rate = 0.01
directions = 3
local_steps = 1
[run]
rounds = 60
evaluate_every = 4
checkpoint_every = 3
workers = 2
"""


@pytest.fixture(scope="module")
def slow_problem(tmp_path_factory):
    """A folder with a slow problem of the user's and its configuration."""
    here = tmp_path_factory.mktemp("slow")
    (here / "slow.py").write_text(SLOW)
    (here / "slow.toml").write_text(SLOW_TOML)
    return here


@pytest.fixture(scope="module")
def slow(slow_problem):
    """The same with a whole run of it."""
    here = slow_problem
    assert fedzo("run", "slow.toml", "--quiet", "--out", "whole", cwd=here).returncode == 0
    return here


def fedzo(*arguments, cwd=None):
    return subprocess.run(
        [FEDZO, *arguments], cwd=cwd, env=ENVIRONMENT, text=True, capture_output=True, check=False
    )


def start(here, *arguments):
    return subprocess.Popen(
        [FEDZO, "run", *arguments], cwd=here, env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def records(folder):
    lines = Path(folder, "history.jsonl").read_text().splitlines()
    return [json.loads(line) | {"seconds": 0} for line in lines]


def assert_same_run(one, other):
    assert (one / "model.npy").read_bytes() == (other / "model.npy").read_bytes()
    assert records(one) == records(other)
    assert (one / "config.toml").read_text() == (other / "config.toml").read_text()
    assert {p.name for p in one.iterdir()} == {p.name for p in other.iterdir()}


# --- kills and signals ------------------------------------------------------------------------


def wait_for_round(process, wanted):
    """Read the progress until a round is reached."""
    reached = -1
    while reached < wanted:
        line = process.stderr.readline()
        assert line.startswith("round "), line
        reached = int(line.removeprefix("round ").partition("/")[0])


@pytest.mark.slow
def test_killed_again_and_again(slow):
    """kill -9 at seeded moments, with half a line of history on top, and resumed each time."""
    moments = random.Random(2)
    folder, reached = slow / "killed", []
    for attempt, wanted in enumerate((0, 4, 12, 24)):
        resume = ["--resume"] if attempt else []
        with start(slow, "slow.toml", "--out", "killed", *resume) as process:
            wait_for_round(process, wanted)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(moments.uniform(0, 0.05))
            process.kill()
        assert process.returncode == -signal.SIGKILL
        reached.append(RunFolder(folder).load().at.round)
        with (folder / "history.jsonl").open("a") as history:
            history.write('{"round": 59, "train_lo')
        (folder / f".checkpoint.npz.{attempt:016x}.fedzo-part").write_bytes(b"half")
    assert reached == sorted(reached)
    assert 21 <= reached[-1] < 60  # three rounds at most were lost
    assert fedzo("run", "slow.toml", "--out", "killed", "--resume", cwd=slow).returncode == 0
    assert_same_run(folder, slow / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGHUP])
def test_interrupt_says_how_to_go_on(ending, slow):
    out = f"it's {ending}"  # a name that a shell would take apart
    with start(slow, "slow.toml", "--out", out) as process:
        wait_for_round(process, 8)
        process.send_signal(ending)
        stdout, stderr = process.communicate()
    assert process.returncode == 130
    reached = RunFolder(slow / out).load().at.round
    assert 8 <= reached < 60
    assert f"interrupted after round {reached}\n" in stdout
    assert "Traceback" not in stderr
    last = stderr.splitlines()[-1]
    command = last.removeprefix("to resume: ")
    assert command == shlex.join(["fedzo", "run", f"{out}/config.toml", "--resume"])
    again = subprocess.run(
        command, shell=True, cwd=slow, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert "finished 60 rounds\n" in again.stdout
    assert_same_run(slow / out, slow / "whole")


@pytest.mark.slow
def test_termination_of_seeds_says_how_to_go_on_with_all_of_them(slow):
    with start(slow, "slow.toml", "--out", "seeds", "--seeds", "2") as process:
        wait_for_round(process, 8)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate()
    assert process.returncode == 130
    command = stderr.splitlines()[-1].removeprefix("to resume: ")
    assert command == "fedzo run seeds/seed-0/config.toml --resume --seeds 2 --out seeds"
    subprocess.run(command, shell=True, cwd=slow, env=ENVIRONMENT, check=True, capture_output=True)
    assert_same_run(slow / "seeds" / "seed-0", slow / "whole")
    assert records(slow / "seeds" / "seed-1")[-1]["round"] == 60
    assert (slow / "seeds" / "curves.png").exists()


def test_interrupt_before_anything_was_evaluated(slow_problem):
    settings = ["--set", "problem.stuck=true", "--set", "run.workers=1"]
    with start(slow_problem, "slow.toml", *settings, "--out", "stuck") as process:
        assert process.stderr.readline() == "evaluating\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr == "to resume: fedzo run stuck/config.toml --resume\n"
    assert "interrupted after round 0\n" in stdout
    assert stdout.endswith("stuck/: config.toml model.npy checkpoint.npz\n")


def test_interrupt_before_there_is_a_run(tmp_path, monkeypatch, capsys):
    """Or after it: whatever part of the program it meets, there is no traceback."""
    (tmp_path / "own_interrupted.py").write_text("def make():\n    raise KeyboardInterrupt\n")
    (tmp_path / "mine.toml").write_text('[problem]\nname = "own_interrupted:make"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = signal.getsignal(signal.SIGTERM)
    assert main(["run", "mine.toml"]) == 130
    assert capsys.readouterr().err == "fedzo: error: interrupted\n"
    assert not (tmp_path / "runs").exists()
    assert signal.getsignal(signal.SIGTERM) == before


DEAF = """
import os, signal
from fedzo import FunctionObjective

def deaf(x, device):
    if x.any():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pass
    return float(x @ x)

def make():
    return FunctionObjective(deaf, dim=2, devices=2)
"""


def test_an_interrupt_that_is_swallowed_counts_all_the_same(here, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("deaf.py").write_text(DEAF)
    Path("deaf.toml").write_text('[problem]\nname = "deaf:make"\n[run]\nworkers = 1\n')
    before = signal.getsignal(signal.SIGINT)
    assert main(["run", "deaf.toml", "--out", "run", "--quiet"]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    out, err = capsys.readouterr()
    assert "interrupted after round 1\n" in out
    assert err == "to resume: fedzo run run/config.toml --resume\n"


def test_two_runs_in_one_folder(here, capsys):
    arguments = ["run", "quadratic", "--set", "run.rounds=2", "--out", "run", "--quiet"]
    assert main(arguments) == 0
    before = (here / "run" / "history.jsonl").read_bytes()
    capsys.readouterr()
    with RunFolder(here / "run").held():
        for resume, found in (([], "already holds a run"), (["--resume"], "is in use")):
            assert main([*arguments, *resume, "--set", "run.rounds=9"]) == 2
            assert found in capsys.readouterr().err
    assert (here / "run" / "history.jsonl").read_bytes() == before
    assert main([*arguments, "--resume", "--set", "run.rounds=9"]) == 0


def test_full_disk_is_told_in_a_line(tmp_path):
    """A file that may not grow stands in for the disk."""
    code = (
        "import resource, sys\n"
        "from fedzo.cli import main\n"
        "run = ['run', 'quadratic', '--quiet', '--set', 'run.rounds=1', '--out']\n"
        "main([*run, 'warm'])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "sys.exit(main([*run, 'full']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=ENVIRONMENT, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.NO_SPACE
    assert done.stderr == "fedzo: error: cannot write full/checkpoint.npz: File too large\n"
    assert {p.name for p in (tmp_path / "full").iterdir()} == {".fedzo", "config.toml"}


# --- what is said and what is left ------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_summary_says_what_the_run_was(here, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # the lines of a terminal of 80 columns are folded
    settings = ["problem.devices=10", "algorithm.participants=5", "algorithm.directions=4"]
    settings += ["run.rounds=3"]
    sets = [a for s in settings for a in ("--set", s)]
    assert main(["run", "softmax", *sets, "--quiet", "--out", "run"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    result = Experiment.load("softmax", parse_overrides(settings)).run()
    last = result.history[-1]
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert re.fullmatch(r"\d+\.\d s", rows.pop("time"))
    assert rows == {
        "result": "finished 3 rounds",
        "train loss": f"{last['train_loss']:.6g}",
        "test accuracy": f"{last['test_accuracy']:.6g}",
        "queries": f"{3 * 5 * 5 * 25 * 5:,} (and 8,000 for evaluation)",
        "bytes up": f"{3 * 5 * 7850 * 4:,}",
        "bytes down": f"{3 * 5 * 7850 * 4:,}",
        "channel uses": f"{3 * 5 * 7850:,}",
        "files": "run/: config.toml history.jsonl model.npy checkpoint.npz curves.png",
    }
    left = {p.name for p in (here / "run").iterdir()} - {".fedzo"}
    assert left == set(rows["files"].split()[1:])
    assert np.load("run/model.npy").tobytes() == result.last.tobytes()


def test_plain_lines_go_to_standard_error(here, capsys):
    run = ["run", "quadratic", "--set", "run.rounds=10", "--out"]
    assert main([*run, "a"]) == 0
    loud = capsys.readouterr()
    lines = loud.err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["round 0/10", "round 5/10", "round 10/10"]
    assert main([*run, "b", "--quiet"]) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""

    def untimed(text):
        return [line for line in text.splitlines() if not line.startswith(("time", "files"))]

    assert untimed(quiet.out) == untimed(loud.out)


def test_folders_under_runs_are_counted(here, capsys):
    for folder in ("quadratic", "quadratic-2", "quadratic-3"):
        assert main(["run", "quadratic", "--set", "run.rounds=0", "--quiet"]) == 0
        assert f"runs/{folder}/: " in capsys.readouterr().out
        assert RunFolder(here / "runs" / folder).has_run()


def test_only_a_run_that_starts_says_where_it_goes(here, capsys):
    assert main(["run", "quadratic", "--rounds", "0", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    wrong = (["--set", "algorithm.participants=51"], ["--seeds", "0"], ["--set", "problem.dim=0"])
    for words in wrong:
        assert main(["run", "quadratic", *words]) == 2
        assert re.fullmatch(r"fedzo: error: .*\n", capsys.readouterr().err)
    assert main(["run", "quadratic", "--rounds", "0", "--quiet", "--seeds", "2"]) == 0
    notice = "runs/quadratic exists: this run goes to runs/quadratic-2 (fedzo list shows all)\n"
    assert capsys.readouterr().err == notice


@pytest.mark.parametrize(
    "several",
    [
        "run quadratic --seeds 2 --rounds 1",
        "sweep quadratic --grid run.seed=1,2 --set run.rounds=1",
        "reproduce table1 --seeds 1",
    ],
)
def test_several_runs_never_go_into_the_folder_of_one(several, here, capsys):
    """Their pictures and tables would be written over those of the run."""
    assert main(["run", "quadratic", "--rounds", "1", "--quiet", "--out", "one"]) == 0
    before = {path: path.read_bytes() for path in (here / "one").iterdir()}
    assert main([*several.split(), "--out", "one"]) == 2
    assert "one holds a run" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (here / "one").iterdir()} == before


def test_resume_by_the_folders_own_config(here):
    settings = ["--set", "run.rounds=5", "--quiet"]
    assert main(["run", "quadratic", *settings, "--out", "run"]) == 0
    assert main(["run", "run/config.toml", "--resume", "--set", "run.rounds=8", "--quiet"]) == 0
    assert main(["run", "quadratic", "--set", "run.rounds=8", "--quiet", "--out", "at-once"]) == 0
    assert_same_run(here / "run", here / "at-once")


@pytest.mark.parametrize(
    ("overrides", "code", "told"),
    [
        (  # a larger rate amplifies rounding errors, and the outcome depends on the processor
            "algorithm.learning_rate=1",
            Exit.NO_SUCCESS,
            r", but the loss rose from 16\.13 to 4\.\d+e\+17",
        ),
        ("uplink.name=aircomp uplink.h_min=100", Exit.HALTED, ", in which no device took part"),
        ("algorithm.learning_rate=0.01", Exit.DONE, ""),
    ],
)
def test_a_run_that_came_to_nothing_says_so(overrides, code, told, here, capsys):
    sets = [a for o in overrides.split() for a in ("--set", o)]
    assert main(["run", "quadratic", *sets, "--set", "run.rounds=20", "--quiet"]) == code
    line = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(rf"result +finished 20 rounds{told}", line)


def test_divergence_is_no_success(here, capsys):
    settings = ["--set", "algorithm.learning_rate=1e200", "--set", "run.rounds=5"]
    assert main(["run", "quadratic", *settings, "--out", "run"]) == Exit.NO_SUCCESS
    out, err = capsys.readouterr()
    result = re.match(
        r"result +the (loss|model) is not finite in round (\d)( on device \d+)?\n", out
    )
    assert result
    assert len(err.splitlines()) == 1  # the start; no warnings of NumPy's
    checkpoint = RunFolder(here / "run").load()
    assert checkpoint.at.round == 0
    assert np.array_equal(checkpoint.at.state[0], np.zeros(100))
    assert np.all(np.isfinite(np.load("run/model.npy")))


ODD = """
import numpy as np
from fedzo.problems import Quadratic

class Odd(Quadratic):
    def batch(self, device, size, draws):
        batch = super().batch(device, size, draws)
        if draws.seed == 1 and draws.round == 4:
            batch.noise[:] = np.inf
        return batch
"""


def test_seeds_go_on_when_one_diverges(here, capsys):
    Path("odd.py").write_text(ODD)
    Path("odd.toml").write_text('[problem]\nname = "odd:Odd"\n')
    settings = ["--set", "run.rounds=6", "--set", "run.evaluate_every=2", "--quiet"]
    assert main(["run", "odd.toml", *settings, "--seeds", "3", "--out", "run"]) == Exit.NO_SUCCESS
    out = capsys.readouterr().out.splitlines()
    assert out[-1].split() == ["failed", "1", "of", "3:", "seed-1"]
    rounds = [[r["round"] for r in records(here / "run" / f"seed-{k}")] for k in range(3)]
    assert rounds == [[0, 2, 4, 6], [0, 2, 4], [0, 2, 4, 6]]
    assert Path("run/curves.png").exists()


def test_divergence_of_all_seeds(here):
    settings = ["--set", "algorithm.learning_rate=1e200", "--set", "run.rounds=5", "--quiet"]
    assert main(["run", "quadratic", *settings, "--seeds", "2", "--out", "run"]) == Exit.NO_SUCCESS
    assert all((here / "run" / f"seed-{k}" / "history.jsonl").exists() for k in (0, 1))


@pytest.mark.pictures
def test_seeds(here, capsys):
    """K seeds from run.seed on, each the run that it would be alone, on the same data."""
    settings = ["--set", "run.rounds=3", "--quiet", "--set", "run.seed=3"]
    assert main(["run", "quadratic", *settings, "--seeds", "3", "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].split() == ["all", "seeds", "run/curves.png"]
    folders = sorted(p.name for p in (here / "run").iterdir())
    assert folders == [".fedzo", "curves.png", "seed-3", "seed-4", "seed-5"]
    assert main(["run", "quadratic", *settings, "--set", "run.seed=4", "--out", "alone"]) == 0
    assert_same_run(here / "run" / "seed-4", here / "alone")
    models = {(here / "run" / f"seed-{s}" / "model.npy").read_bytes() for s in (3, 4, 5)}
    assert len(models) == 3
    starts = {records(here / "run" / f"seed-{s}")[0]["train_loss"] for s in (3, 4, 5)}
    assert len(starts) == 1  # the data do not depend on the seed
    assert main(["plot", "run", "--out", "x.svg"]) == 0
    assert "mean and range of 3 seeds -->" in Path("x.svg").read_text()
    # One is gone, one goes on, one is finished already.
    kept = (here / "run" / "seed-5" / "model.npy").read_bytes()
    for file in (here / "run" / "seed-4").iterdir():
        file.unlink()
    resume = ["--seeds", "3", "--out", "run", "--resume"]
    assert main(["run", "quadratic", *settings, *resume]) == 0
    assert_same_run(here / "run" / "seed-4", here / "alone")
    assert (here / "run" / "seed-5" / "model.npy").read_bytes() == kept


# --- the program itself ---------------------------------------------------------------------------


def test_help():
    done = fedzo("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("run", "reproduce", "report", "plot", "data", "theory", "bench"):
        assert re.search(rf"^    {command}\b", done.stdout, re.M)
    done = fedzo("run", "--help")
    for option in (
        "CONFIG",
        "--set TABLE.KEY=VALUE",
        "--out DIR",
        "--resume",
        "--seeds K",
        "--quiet",
    ):
        assert option in done.stdout


def test_module_is_the_command():
    told = subprocess.run(
        [sys.executable, "-m", "fedzo", "--version"], capture_output=True, text=True, check=True
    )
    assert told.stdout == f"fedzo {__version__}\n"


def test_version():
    assert fedzo("--version").stdout == f"fedzo {__version__}\n"


def test_no_command_at_all_is_helped():
    done = fedzo()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == fedzo("--help").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["run"],
        ["run", "quadratic", "--seeds", "x"],
        ["run", "quadratic", "--seeds", "9" * 5000],
    ],
)
def test_wrong_commands(arguments):
    done = fedzo(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"fedzo: error: .* \(fedzo( run)? --help\)\n", done.stderr)


def test_bad_input_from_outside(tmp_path):
    """What tests/test_config.py says of main(), once through the installed command."""
    done = fedzo("run", "quadratic", "--set", "run.rouns=3", "--out", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "fedzo: error: run.rouns = 3: unknown key (did you mean 'rounds'?); [run] takes rounds, "
        "seed, data_seed, evaluate_every, checkpoint_every, workers, target, max_queries, modules\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_had_enough():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody:
        done = subprocess.run(
            [FEDZO, "data", "list"], stdout=nobody, stderr=subprocess.PIPE, check=False,
            env=ENVIRONMENT | {"PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


INTERRUPTED_IMPORT = """
import signal, sys
from fedzo_command import start

class Interrupts:
    def find_spec(self, name, *_):
        if name == "%s":
            try:
                signal.raise_signal(signal.%s)
            except KeyboardInterrupt as error:  # as compiled modules do
                raise ImportError("initialization failed") from error

sys.meta_path.insert(0, Interrupts())
sys.argv = ["fedzo", "run", "quadratic"]
sys.exit(start())
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("module", ["fedzo", "argparse", "fedzo.cli.run", "numpy"])
def test_interrupt_while_it_imports(module, name, tmp_path):
    """The first three are imported before main is called, the last by the command itself."""
    code = INTERRUPTED_IMPORT % (module, name)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "fedzo: error: interrupted\n")
    assert list(tmp_path.iterdir()) == []


INTERRUPTED_EXIT = """
import atexit, signal, sys, threading
from fedzo_command import start

class Last:  # deleted in the last steps of Python
    def __init__(self):
        self.kill = signal.raise_signal
    def __del__(self):
        self.kill(signal.%(name)s)

if %(last)s:
    threading.last = Last()
sys.argv = ["fedzo", "data", "list"]
code = start()
if not %(last)s:
    atexit.register(signal.raise_signal, signal.%(name)s)
sys.exit(code)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("last", [False, True])
def test_interrupt_while_python_exits(last, name, tmp_path):
    code = INTERRUPTED_EXIT % {"name": name, "last": last}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True, cwd=tmp_path
    )
    ended = (Exit.DONE, "") if last else (Exit.INTERRUPTED, "fedzo: error: interrupted\n")
    assert (done.returncode, done.stderr) == ended


def test_off_the_main_thread(here, capsys):
    """Signals are the main thread's, and a run elsewhere does without them."""
    arguments = ["run", "quadratic", "--set", "run.rounds=2", "--out", "run", "--quiet"]
    with ThreadPoolExecutor() as threads:
        assert threads.submit(main, arguments).result() == Exit.DONE
    assert capsys.readouterr().out.startswith("result          finished 2 rounds")


def test_import_is_light():
    """Public names are imported when they are asked for: of ours there is next to nothing."""
    code = "import sys, fedzo; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    modules = done.stdout.split()
    assert {"numpy", "numba", "matplotlib", "scipy"}.isdisjoint(modules)
    assert len([name for name in modules if name.startswith("fedzo")]) <= 3


def test_help_does_not_import_what_is_heavy():
    code = (
        "import sys; from fedzo.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print({'numpy', 'numba', 'matplotlib', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.endswith("set()\n")


LEAVES_OUT = """
from fedzo.problems import FunctionObjective


def f(x, device):
    if device == 2:
        raise OSError("the line is dead")
    return (x - 1) @ (x - 1)


def make():
    return FunctionObjective(f, dim=2, devices=3, on_failure="leave_out")
"""


def test_names_dropped_devices(here, capsys):
    (here / "mine.py").write_text(LEAVES_OUT)
    (here / "mine.toml").write_text('[problem]\nname = "mine:make"\n[run]\nrounds = 2\n')
    assert main(["run", "mine.toml", "--quiet", "--out", "run"]) == Exit.DONE
    # Once in each of two rounds and of two evaluations.
    out = capsys.readouterr().out.splitlines()
    assert "dropped       4 times, device 2: see history.jsonl for the reasons" in out
    assert out[0].split(maxsplit=1)[1].startswith("finished 2 rounds; device 2 was dropped")


def test_a_warning_is_one_line(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # restored at the end
    monkeypatch.setattr(sys, "argv", ["fedzo", "--version"])
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)  # leave them
    with pytest.raises(SystemExit):
        fedzo_command.start()
    shown = warnings.formatwarning("the history was repaired", UserWarning, "loop.py", 7)
    assert shown == "fedzo: warning: the history was repaired\n"


def test_any_number_of_a_history_is_an_axis(tmp_path, monkeypatch, capsys):
    """Energy, seconds on air and joules, but not a text or an unknown key; x is not drawn as y."""
    from fedzo.plots.series import axes_of_runs
    from fedzo.runs.history import read_runs

    monkeypatch.chdir(tmp_path)
    sets = ["uplink.name=aircomp", "uplink.radio.power_dbm=10", "run.rounds=20"]
    arguments = [a for one in sets for a in ("--set", one)]
    assert main(["run", "quadratic", *arguments, "--quiet", "--out", "air"]) == 0
    for key in ("energy", "seconds_on_air", "joules", "channel_uses", "bytes", "rounds"):
        assert main(["plot", "air", "--x", key, "--out", f"{key}.png"]) == 0
        assert (tmp_path / f"{key}.png").exists()
    runs = read_runs([tmp_path / "air"])
    assert "channel_uses" in [panel["keys"][1] for panel in axes_of_runs(runs)]
    drawn = [panel["keys"][1] for panel in axes_of_runs(runs, x="channel_uses")]
    assert drawn
    assert "channel_uses" not in drawn
    capsys.readouterr()
    assert main(["plot", "air", "--x", "joule"]) == 2
    assert "joules" in capsys.readouterr().err
