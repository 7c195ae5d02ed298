"""The files of a run: whole or not there, and read back as they were written."""

import datetime
import io
import json
import os
import random
import signal
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedzo
from fedzo.algorithms import RoundInfo
from fedzo.core import files
from fedzo.core.capabilities import Best
from fedzo.core.files import as_toml, write_atomic
from fedzo.errors import UsageError
from fedzo.runs import RunFolder, read_history
from fedzo.runs.history import HistoryDigest
from fedzo.runs.result import Noise
from fedzo.runs.store import FORMAT, Checkpoint, RunState, differences
from raising import fails

CONFIG = {
    "problem": {"name": "quadratic", "dim": 3},
    "algorithm": {"learning_rate": 0.1, "kind": "sphere"},
    "run": {"rounds": 5, "seed": 2**64 - 1},
}
CHECKPOINT = Checkpoint(
    at=RunState(
        round=7,
        state=(np.array([0.1, -0.0, 1e-310, 3.0]), np.arange(3, dtype=np.float32)),
        best=Best(np.array([0.25, -1e-310]), 0.1, 4),
        queries=2**40,
        uplink_bytes=12,
        downlink_bytes=3,
        costs={"energy": 0.1},
        last=RoundInfo(participants=2, queries=5, uplink_bytes=1, metrics={"snr": 0.1}),
        records=2,
        digest=HistoryDigest(2, 0xFEDCBA98),
        dropped=({"round": 7, "device": 1, "reason": "the line is dead"},),
        noise=Noise(0.1, 2, 1e-310, 3),
    ),
    metered=17,
    seconds=1.25,
    config=CONFIG,
    start="0123456789abcdef",
)


def same(one, other):
    bare = [c.at._replace(state=(), best=c.at.best._replace(x=None)) for c in (one, other)]
    plain_fields = bare[0] == bare[1] and one[1:] == other[1:]
    arrays = zip((*one.at.state, one.at.best.x), (*other.at.state, other.at.best.x), strict=True)
    return plain_fields and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in arrays
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.save(CHECKPOINT)
    return folder.checkpoint.read_bytes()


def test_checkpoint_comes_back_to_the_bit(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.load() is None
    folder.save(CHECKPOINT)
    assert same(folder.load(), CHECKPOINT)
    folder.save(CHECKPOINT._replace(at=CHECKPOINT.at._replace(round=8)))
    assert folder.load().at.round == 8
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.npz"]


def test_model_comes_back_to_the_bit(tmp_path):
    model = np.array([1e-320, np.pi, -0.0], np.float64)
    RunFolder(tmp_path).save_models(model, model)
    assert np.load(tmp_path / "model.npy").tobytes() == model.tobytes()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_damaged_checkpoint_is_told_or_harmless(data, saved, tmp_path_factory):
    """Cut anywhere or with any byte changed: an error in words, or what was saved; never else."""
    folder = RunFolder(tmp_path_factory.getbasetemp() / "damaged")
    folder.path.mkdir(exist_ok=True)
    place = data.draw(st.integers(0, len(saved) - 1))
    change = data.draw(st.integers(0, 255))
    damaged = saved[:place]  # cut
    if change:
        damaged += bytes([saved[place] ^ change]) + saved[place + 1 :]
    folder.checkpoint.write_bytes(damaged)
    told = ""
    try:
        assert same(folder.load(), CHECKPOINT)
    except UsageError as error:
        told = error.code
    assert told in ("", "damaged-checkpoint")
    assert told or change  # nothing that was cut can be whole


@pytest.mark.parametrize("found", [None, 0, 1, FORMAT + 1])
def test_checkpoint_of_another_format_is_told(found, tmp_path):
    folder = RunFolder(tmp_path)
    folder.save(CHECKPOINT)
    with np.load(folder.checkpoint) as file:
        arrays = dict(file)
    assert arrays.pop("format") == FORMAT
    arrays |= {} if found is None else {"format": np.array(found)}
    np.savez(folder.checkpoint, **arrays)
    with fails("checkpoint-format"):
        folder.load()


def other_array():
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


def other_archive():
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros(3))
    return buffer.getvalue()


def pickled_archive():
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"hello", other_array(), other_archive(), pickled_archive()],
    ids=["empty", "zip-start", "text", "npy", "other-npz", "pickle"],
)
def test_something_else_in_place_of_a_checkpoint(content, tmp_path):
    folder = RunFolder(tmp_path)
    folder.checkpoint.write_bytes(content)
    with fails("damaged-checkpoint"):
        folder.load()


# --- one step ---------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from fedzo.core.files import write_atomic
for i in range(10**6):
    write_atomic(Path(sys.argv[1]), bytes([97 + i % 2]) * 3_000_000)
    if i == 0:
        print("begun", flush=True)
"""


def test_kill_leaves_the_old_file_or_the_new_one(tmp_path):
    """Killed at moments that are spread over many writes; then what is left over is cleared."""
    moments = random.Random(5)
    file = tmp_path / "run" / "model.npy"
    file.parent.mkdir()
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout.readline() == "begun\n"
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(moments.uniform(0, 0.05))
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
        content = file.read_bytes()
        assert len(content) == 3_000_000
        assert content in (b"a" * len(content), b"b" * len(content))
    left = file.parent / ".checkpoint.npz.0123456789abcdef.fedzo-part"
    left.write_bytes(b"half")  # if no kill left one
    (file.parent / ".checkpoint.npz.1.part").write_bytes(b"the user's own")
    (file.parent / ".keep").write_bytes(b"the user's own")
    RunFolder(file.parent).begin(CONFIG, None, new=False)
    assert {p.name for p in file.parent.iterdir()} == {
        "model.npy", "config.toml", ".keep", ".fedzo", ".checkpoint.npz.1.part",
    }  # fmt: skip


def test_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    """Written as a file that may not grow: the disk is full, as far as the writer can tell."""
    file = tmp_path / "model.npy"
    file.write_bytes(b"old")
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from fedzo.core.files import write_atomic\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: write_atomic(Path(sys.argv[1]), bytes(10**6))\n"
        "except Exception as error: print(f'{type(error).__name__}: {error}')\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    assert told.stdout == f"CannotWrite: cannot write {file}: File too large\n"
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.npy"]


def test_cannot_write_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with fails("cannot-write"):
        RunFolder(tmp_path / "file" / "run").held().__enter__()
    with fails("cannot-write"):
        RunFolder(tmp_path / "file").held().__enter__()
    assert not RunFolder(tmp_path / "file").has_run()
    with fails("cannot-write"):
        write_atomic(tmp_path / "none" / "x", b"")
    with fails("cannot-write"):
        RunFolder(tmp_path / "none").append({"round": 0})


# --- history ----------------------------------------------------------------------------------


def test_history_comes_back(tmp_path):
    folder = RunFolder(tmp_path)
    assert list(read_history(folder.history)) == []
    written = [{"round": r, "train_loss": 0.1 + 0.2 * r} for r in range(4)]
    for record in written:
        folder.append(record)
    assert list(read_history(folder.history)) == written
    assert [json.loads(x) for x in folder.history.read_text().splitlines()] == written


def resumed(folder, count, every):
    """Return the records that a checkpoint of the first ``count`` leaves, with a new schedule."""
    digest = HistoryDigest()
    for record in list(read_history(folder.history))[:count]:
        digest = digest.with_record(record)
    return folder.resume_history(CHECKPOINT.at._replace(digest=digest), lambda t: t % every == 0)


@pytest.mark.parametrize("cut", [1, 5, 20, 22])
def test_half_line_is_passed_over_and_dropped(cut, tmp_path):
    folder = RunFolder(tmp_path)
    for r in (0, 5, 10):
        folder.append({"round": r, "train_loss": 1.5})
    whole = folder.history.read_bytes()
    folder.history.write_bytes(whole[:-cut])
    assert [r["round"] for r in read_history(folder.history)] == [0, 5]
    assert [r["round"] for r in resumed(folder, 2, every=5)] == [0, 5]
    folder.append({"round": 10, "train_loss": 1.5})
    assert folder.history.read_bytes() == whole


@pytest.mark.parametrize(
    ("count", "every", "kept"),
    [(3, 5, [0, 5, 10]), (2, 5, [0, 5]), (4, 5, [0, 5, 10]), (4, 4, [0, 12]), (0, 1, [])],
)
def test_keeps_what_an_uninterrupted_run_would_have(count, every, kept, tmp_path):
    folder = RunFolder(tmp_path)
    for r in (0, 5, 10, 12, 15):
        folder.append({"round": r, "train_loss": 0.5})
    assert [r["round"] for r in resumed(folder, count, every)] == kept
    assert [r["round"] for r in read_history(folder.history)] == kept
    assert os.listdir(tmp_path) == ["history.jsonl"]


@pytest.mark.parametrize(
    "line",
    [b"{}{}", b'{"round": 1', b"\x00\x00", b"\xff", b"[1, 2]", b"NaN", b'{"a": 1}',
     b'{"round": 1}', b'{"round": "x", "train_loss": 1}'],
)  # fmt: skip
def test_damaged_line_is_named(line, tmp_path):
    folder = RunFolder(tmp_path)
    whole = b'{"round": 0, "train_loss": 1.5}'
    folder.history.write_bytes(b"\n".join((whole, line, whole, b"")))
    with fails("damaged-history") as caught:
        list(read_history(folder.history))
    assert "line 2" in str(caught.value)


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path):
    """Of the history and of the log of trainings: the error comes when the file is closed."""
    (tmp_path / "log").symlink_to("/dev/full")
    with fails("cannot-write") as caught:
        files.append(tmp_path / "log", "a line\n")
    assert str(tmp_path / "log") in str(caught.value)


# --- two runs in one folder ---------------------------------------------------------------------


def test_a_folder_is_held_by_one_run_at_a_time(tmp_path):
    code = (
        "import sys; from fedzo.runs import RunFolder\n"
        "with RunFolder(sys.argv[1]).held(): print('held', flush=True); sys.stdin.read()\n"
    )
    folder = RunFolder(tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder.path)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout.readline() == "held\n"
        with fails("folder-in-use"):
            folder.held().__enter__()
        other.kill()  # a run that is killed holds nothing
    with folder.held(), fails("folder-in-use"):
        RunFolder(folder.path).held().__enter__()
    with folder.held():
        assert not list(folder.path.iterdir())  # nor is anything left


# --- configurations -----------------------------------------------------------------------------


def test_has_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert not folder.has_run()
    with folder.held():
        folder.begin(CONFIG, None, new=False)
    assert folder.has_run()
    folder.config.unlink()
    assert not folder.has_run()
    folder.save(CHECKPOINT)
    assert folder.has_run()


def test_config_is_written_as_it_will_be_read(tmp_path):
    config = as_toml(
        {
            "problem": {
                "text": 'quotes " and \\ and é',
                "number": np.float32(0.5),
                "count": np.int64(3),
                "yes": np.bool_(True),
                "pair": (1, 2.5),
                "array": np.array([1.0, 2.0]),
                "nested": {"a": (1,), "none": None},
                "path": RunFolder("a/b").path,
                "day": datetime.date(2024, 5, 6),
                "big": 2**64 - 1,
                "tiny": 5e-324,
                "none": None,
                "holes": [1, None],
                "unspeakable": object(),
            },
            "empty": {},
        }
    )
    assert config["problem"] == {
        "text": 'quotes " and \\ and é',
        "number": 0.5,
        "count": 3,
        "yes": True,
        "pair": [1, 2.5],
        "array": [1.0, 2.0],
        "nested": {"a": [1]},
        "path": "a/b",
        "day": datetime.date(2024, 5, 6),
        "big": 2**64 - 1,
        "tiny": 5e-324,
    }
    folder = RunFolder(tmp_path)
    folder.begin(config, None, new=False)
    assert tomllib.loads(folder.config.read_text()) == config
    folder.save(CHECKPOINT._replace(config=config))
    assert folder.load().config == config


def test_differences_name_key_old_and_new():
    old = {"run": {"seed": 0, "rounds": 5, "workers": 1}, "algorithm": {"m": 2, "kind": "a"}}
    assert differences(old, old) == []
    new = {"run": {"seed": 0, "rounds": 9, "evaluate_every": 2}, "algorithm": {"kind": "b"}}
    assert differences(old, new) == ["algorithm.kind = 'a', now 'b'", "algorithm.m = 2, now None"]
    assert differences(new, old) == ["algorithm.kind = 'b', now 'a'", "algorithm.m = None, now 2"]
    assert differences({}, {"x": {"y": 1}}) == ["x.y = None, now 1"]


@pytest.mark.parametrize("name", ["history.jsonl", "checkpoint.npz"])
def test_a_run_that_cannot_be_resumed_says_what_is_left(name, tmp_path):
    def run(resume):
        fedzo.minimize(
            lambda x: x @ x, np.ones(2), algorithm=fedzo.FedZO(), rounds=2,
            run_dir=tmp_path / "run", resume=resume,
        )  # fmt: skip

    run(False)
    (tmp_path / "run" / name).unlink()
    with pytest.raises(UsageError, match=r"another folder; numpy\.load reads model\.npy"):
        run(True)
