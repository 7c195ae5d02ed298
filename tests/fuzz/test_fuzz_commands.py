"""Whatever is typed or lies on the disk: one line and a known exit code, never a traceback."""

import contextlib
import io
import shutil
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedzo.cli import main
from fedzo.config import jobs
from fedzo.errors import Exit
from fuzz_cases import FUZZ

SETTINGS = ("run.rounds=2", "problem.dim=4", "problem.devices=3", "algorithm.participants=2")
SMALL = tuple(part for setting in SETTINGS for part in ("--set", setting))

KEYS = st.sampled_from(
    [
        *("problem.dim", "problem.devices", "problem.smoothness", "problem.name", "problem.seed"),
        *(
            "algorithm.name",
            "algorithm.learning_rate",
            "algorithm.smoothing",
            "algorithm.directions",
        ),
        *(
            "algorithm.batch_size",
            "algorithm.local_steps",
            "algorithm.participants",
            "algorithm.server",
        ),
        *("algorithm.direction_kind", "algorithm.difference", "algorithm.weighting"),
        *("algorithm.shared_directions", "server.name", "server.momentum"),
        *("uplink.name", "uplink.snr_db", "uplink.h_min", "uplink.downlink"),
        *("run.rounds", "run.seed", "run.evaluate_every", "run.checkpoint_every", "run.workers"),
        *("run.target", "run.data_seed", "flower.quorum", "flower.nodes", "run", "algorithm"),
    ]
) | st.text(string.ascii_letters + "._-=\n\t\0é", max_size=20)

WORDS = st.sampled_from(
    ["fedzo", "fedavg", "zone_s", "ideal", "aircomp", "seeds", "orthogonal", "auto", "os:abort"]
)
VALUES = st.one_of(
    st.integers(-3, 6).map(str),
    st.sampled_from(["0.1", "1e-9", "-1.5", "nan", "inf", "-inf", "true", "false", "''", "null"]),
    st.sampled_from(["9" * 400, "1e400", "[" * 3000, "{a=1}", "[1, 'a']", "2026-01-01", "[[]]"]),
    WORDS,
    st.text(max_size=30),
)


def command(*arguments):
    """Run a command here; return its exit code, and what it printed to either stream."""
    out, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
        code = main(list(arguments))
    return code, out.getvalue(), complaints.getvalue()


def check(code, complaints, *further):
    """A known code; nothing that looks like a traceback; a refusal in one line.

    Some commands have a line with ``further`` codes, too.
    """
    assert code in set(Exit)
    assert "Traceback" not in complaints
    refusals = [line for line in complaints.splitlines() if line.startswith("fedzo: error:")]
    assert len(refusals) == (code in (Exit.NOTHING_RUN, Exit.NO_SPACE, *further))
    assert all(len(line) < 700 for line in refusals)


@FUZZ
@given(settings=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3))
def test_settings(settings, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    overrides = [part for key, value in settings for part in ("--set", f"{key}={value}")]
    quiet = ("--out", str(out), "--quiet")
    code, _, complaints = command("run", "quadratic", *SMALL, *overrides, *quiet)
    check(code, complaints)
    if code == Exit.NOTHING_RUN:
        assert not (out / "history.jsonl").exists()
    shutil.rmtree(out, ignore_errors=True)


@FUZZ
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_configurations(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "mine.toml"
    path.write_bytes(content)
    code, _, complaints = command("run", str(path), "--out", str(path.parent / "out"))
    check(code, complaints)
    assert code == Exit.NOTHING_RUN


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was stopped half-way, and the models of the whole one."""
    folder = tmp_path_factory.mktemp("whole")
    half = ("run", "quadratic", *SMALL, "--set", "run.evaluate_every=1", "--quiet")
    assert command(*half, "--out", str(folder / "half"))[0] == 0
    assert command(*half, "--set", "run.rounds=4", "--out", str(folder / "whole"))[0] == 0
    return folder / "half", np.load(folder / "whole" / "model.npy")


GRIDS = st.tuples(KEYS, st.lists(VALUES, min_size=1, max_size=2).map(",".join))


@pytest.fixture
def one_process(monkeypatch):
    """Runs of a sweep one after another in this process: a worker process takes seconds."""

    def do(runs, workers, report=None):
        ends = {
            run.folder: jobs._do_run(run.experiment.tables, run.experiment.name, run.folder)
            for run in jobs.missing(runs)
        }
        return {folder: failure for folder, failure in ends.items() if failure is not None}

    monkeypatch.setattr("fedzo.config.sweep.do", do)


@FUZZ
@given(
    grids=st.lists(GRIDS, min_size=1, max_size=2),
    settings=st.lists(st.tuples(KEYS, VALUES), max_size=1),
    seeds=st.sampled_from(["1", "1", "2", "0", "-1", "x", "99999999999"]),
)
def test_sweeps(grids, settings, seeds, one_process, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "out"
    words = [part for key, value in settings for part in ("--set", f"{key}={value}")]
    words += [part for key, value in grids for part in ("--grid", f"{key}={value}")]
    words += ["--seeds", seeds, "--out", str(out)]
    code, _, complaints = command("sweep", "quadratic", *SMALL, *words)
    check(code, complaints, Exit.HALTED)
    assert code != Exit.OWN_CODE  # there is no code of a user here
    assert (code == Exit.NOTHING_RUN) == (not (out / "sweep.csv").exists())
    shutil.rmtree(out, ignore_errors=True)


NAMES = st.sampled_from(
    ["round", "rounds", "bytes", "queries", "train_loss", "seconds", "optimality_gap", "nothing"]
) | st.text(max_size=8)
FILES = st.sampled_from(["a.png", "a.svg", "a.pdf", "a", "a.xyz", "no/a.png", "", ".", "/dev/full"])


@FUZZ
@given(
    x=st.none() | NAMES,
    y=st.lists(NAMES, max_size=2),
    logs=st.sampled_from([(), ("--logx",), ("--logy",), ("--logx", "--logy")]),
    labels=st.none() | st.lists(st.text(max_size=9), min_size=1, max_size=2),
    file=FILES,
    twice=st.booleans(),
)
def test_plots(run, x, y, logs, labels, file, twice, tmp_path_factory):
    half, _ = run
    out = tmp_path_factory.mktemp("plot")
    words = [] if x is None else [f"--x={x}"]
    words += ["--y", *y] if y else []
    words += [] if labels is None else ["--label", *labels]
    folders = [str(half), str(half.parent / "whole")] if twice else [str(half)]
    target = file if file.startswith("/") else str(out / file)
    code, _, complaints = command("plot", *folders, *words, *logs, "--out", target)
    check(code, complaints)
    shutil.rmtree(out)


@FUZZ
@given(data=st.data())
def test_damaged_run(run, data, tmp_path_factory):
    """A resumed run says that something is wrong, or ends as if nothing had happened."""
    half, model = run
    folder = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(half, folder)
    name = data.draw(st.sampled_from(["checkpoint.npz", "history.jsonl", "config.toml"]))
    path = folder / name
    path.write_bytes(damaged(path.read_bytes(), data))
    resume = ("run", str(folder), "--resume", "--set", "run.rounds=4", "--quiet")
    code, _, complaints = command(*resume)
    check(code, complaints)
    if code == Exit.DONE and name != "config.toml":  # another configuration is another run
        assert np.array_equal(np.load(folder / "model.npy"), model)
    for reader in (("plot", str(folder)), ("report", str(folder))):
        code, _, complaints = command(*reader)
        check(code, complaints)
    shutil.rmtree(folder)


ODD_VALUES = (
    *(b"NaN", b"-Infinity", b'"1"', b"true", b"null", b"-1", b"1e400", b"[]", b"{}", b"\xff"),
    *(b"9" * 400, b"9" * 5000, b"[" * 5000 + b"]" * 5000),
)


def damaged(content, data):
    """Cut, change, repeat or replace bytes of a file, or the value of a key."""
    way = data.draw(st.sampled_from(["cut", "flip", "repeat", "replace", "empty", "value"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if way == "value":
        before, colon, rest = content[at:].partition(b": ")
        after = (
            rest[min((rest.find(end) for end in (b",", b"}") if end in rest), default=0) :]
            if colon
            else b""
        )
        odd = data.draw(st.sampled_from(ODD_VALUES))
        return content[:at] + before + colon + odd + after
    if way == "cut":
        return content[:at]
    if way == "flip":
        other = bytes([content[at] ^ data.draw(st.integers(1, 255))])
        return content[:at] + other + content[at + 1 :]
    if way == "repeat":
        return content[:at] + content[at : at + 40] + content[at:]
    if way == "replace":
        return content[:at] + data.draw(st.binary(min_size=1, max_size=20)) + content[at + 1 :]
    return b""
