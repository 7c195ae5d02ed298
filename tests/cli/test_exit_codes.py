"""Each situation has its own line and the exit code that docs/configuration.md gives it."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedzo.models
from fedzo.cli import main
from fedzo.errors import Exit

QUICK = ["--set", "run.rounds=3", "--quiet"]

OWN = """
import os, shutil, sys
import numpy as np
import fedzo

class Problem(fedzo.Objective):
    dim, devices = 3, 4

    def __init__(self, happens: str = "nothing"):
        self.happens, self.left = happens, 5

    def batch(self, device, size, draws):
        return device

    def values(self, points, batch):
        self.left -= 1
        if not self.left:
            return HAPPENS[self.happens](points)
        return np.sum((points - batch) ** 2, axis=1, keepdims=True)

    def losses(self, x, devices):
        return np.array([np.sum((x - i) ** 2) for i in devices])

    def metrics(self, x):
        return 7 if self.happens == "metrics" else {}

class Silent(Exception):
    def __str__(self):
        raise RuntimeError

def raising(error):
    def happen(points):
        raise error
    return happen

def deleted(points):
    shutil.rmtree(os.environ["RUN"])
    return np.zeros((len(points), 1))

HAPPENS = {
    "nothing": lambda points: np.zeros((len(points), 1)),
    "metrics": lambda points: np.zeros((len(points), 1)),
    "deleted": deleted,
    "exit": raising(SystemExit(0)),
    "memory": raising(MemoryError("no room")),
    "pipe": raising(BrokenPipeError(32, "Broken pipe")),
    "disk": raising(OSError(28, "No space left on device")),
    "file": lambda points: open("nowhere/x"),
    "nul": lambda points: open("a" + chr(0)),
    "silent": raising(Silent()),
    "group": raising(ExceptionGroup("two", [ValueError(), KeyError()])),
    "interrupt": raising(KeyboardInterrupt()),
    "text": lambda points: "abc",
    "none": lambda points: None,
    "shape": lambda points: np.zeros((7, 7)),
    "complex": lambda points: 1j,
    "digits": lambda points: 10**400,
}
"""

SITUATIONS = {
    "nothing": (Exit.DONE, ""),
    "deleted": (Exit.NO_SPACE, "cannot write"),
    "exit": (Exit.OWN_CODE, "SystemExit: 0"),
    "memory": (Exit.NO_SPACE, "not enough memory: no room"),
    "pipe": (Exit.OWN_CODE, "BrokenPipeError in your own code"),
    "disk": (Exit.OWN_CODE, "OSError in your own code"),
    "file": (Exit.OWN_CODE, "FileNotFoundError in your own code"),
    "nul": (Exit.OWN_CODE, "ValueError in your own code"),
    "silent": (Exit.OWN_CODE, "Silent in your own code"),
    "group": (Exit.OWN_CODE, "ExceptionGroup in your own code"),
    "interrupt": (Exit.INTERRUPTED, "to resume: fedzo run"),
    "metrics": (Exit.HALTED, "metrics returned 7"),
    "text": (Exit.HALTED, "Problem.values returned 'abc', not real numbers"),
    "none": (Exit.HALTED, "Problem.values returned"),
    "shape": (Exit.HALTED, "the shape (7, 7)"),
    "complex": (Exit.HALTED, "1j, not real numbers"),
    "digits": (Exit.HALTED, "401 digits"),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", SITUATIONS)
def test_what_happens_in_the_users_code(name, workers, here, monkeypatch, capsys):
    code, line = SITUATIONS[name]
    (here / "own_problem.py").write_text(OWN)
    (here / "mine.toml").write_text('[problem]\nname = "own_problem:Problem"\n')
    monkeypatch.setenv("RUN", str(here / "out"))
    settings = ["--set", f"problem.happens={name}", "--set", f"run.workers={workers}"]
    settings += ["--set", "algorithm.participants=4", "--set", "algorithm.learning_rate=0.01"]
    assert main(["run", "mine.toml", *settings, "--out", "out", *QUICK]) == code
    said = capsys.readouterr().err
    assert line in said
    assert "src/fedzo" not in said  # no line of fedzo's own
    assert said.count("fedzo: error:") == (code not in (Exit.DONE, Exit.INTERRUPTED))
    sys.modules.pop("own_problem", None)


def limited(*command, size=1024):
    """Run a command that can write files of at most 1 KB, as on a full disk."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    command = [sys.executable, "-m", "fedzo", *map(str, command)]
    return subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=limit)


@pytest.mark.slow
def test_a_full_disk(here):
    assert main(["run", "quadratic", "--out", "there", *QUICK]) == Exit.DONE
    grid = ["--grid", "algorithm.learning_rate=0.1,0.01", "--set", "run.rounds=3"]
    for command in (
        ["run", "quadratic", "--out", "new", *QUICK],
        ["run", "quadratic", "--out", "seeds", "--seeds", "2", *QUICK],
        ["sweep", "quadratic", *grid, "--out", "swept"],
        ["plot", "there", "--out", "picture.png"],
        ["report", "there"],
    ):
        done = limited(*command)
        assert done.returncode == Exit.NO_SPACE, (command, done)
        assert done.stderr.count("fedzo: error:") == 1
        assert "File too large" in done.stderr
        assert "Traceback" not in done.stderr
    # Nothing is half-written: with space, the runs continue.
    assert main(["run", "new", "--resume", *QUICK]) == Exit.DONE
    assert main(["sweep", "quadratic", *grid, "--out", "swept"]) == Exit.DONE


def test_a_closed_pipe_and_a_full_device(here):
    fedzo_ = [sys.executable, "-m", "fedzo"]
    for command, ends in (
        (["theory", "quadratic"], {Exit.CLOSED_PIPE}),
        (["data", "list"], {Exit.CLOSED_PIPE}),
        (["run", "quadratic", "--out", "out", *QUICK], {Exit.DONE}),  # its files are the result
    ):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [*fedzo_, *command], check=False, stdout=writing, stderr=subprocess.PIPE
        )
        os.close(writing)
        assert done.returncode in ends, command
        assert done.stderr == b""
    with Path("/dev/full").open("w") as full:
        command = [*fedzo_, "theory", "quadratic"]
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == Exit.NO_SPACE
    assert done.stderr.strip() == b"fedzo: error: No space left on device"


BAD_NAMES = ["a\0b", "a" * 300, "file/run", "file"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_cannot_be_written(name, here, capsys):
    (here / "file").write_text("the user's own")
    assert main(["run", "quadratic", "--out", "run", *QUICK]) == Exit.DONE
    for command in (
        ["run", "quadratic", "--out", name, *QUICK],
        ["run", "quadratic", "--out", name, "--seeds", "2", *QUICK],
        ["run", name],
        ["sweep", "quadratic", "--grid", "run.seed=1,2", "--out", name],
        ["plot", "run", "--out", f"{name}/x.png"],
        ["plot", name],
        ["report", name],
    ):
        capsys.readouterr()
        assert main(command) == Exit.NOTHING_RUN, command
        said = capsys.readouterr().err
        assert said.startswith("fedzo: error:")
        assert said.count("\n") == 1
    assert (here / "file").read_text() == "the user's own"


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped", "folder", "missing"])
def test_a_damaged_model_file(damage, here, capsys):
    pytest.importorskip("onnxruntime")
    shipped = next((Path(fedzo.models.__file__).parent / "files").glob("*.onnx"))
    content, path = bytearray(shipped.read_bytes()), here / "bad.onnx"
    match damage:
        case "empty" | "text":
            path.write_text("" if damage == "empty" else "not a model")
        case "cut":
            path.write_bytes(content[: len(content) // 3])
        case "flipped":
            content[:200] = bytes(200)
            path.write_bytes(content)
        case "folder":
            path.mkdir()
    assert main(["run", "attack", "--set", "problem.model=bad.onnx", "--out", "o"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedzo: error:")
    assert "bad.onnx" in said
    assert not (here / "o").exists()


def test_a_folder_that_has_gone(here, monkeypatch, capsys):
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    shutil.rmtree(here / "gone")
    assert main(["run", "quadratic", *QUICK]) == Exit.NOTHING_RUN
    assert "the current folder" in capsys.readouterr().err
