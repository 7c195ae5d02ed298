"""Bad settings, files and folders: rejected in one line with the key, before anything runs."""

import lzma
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w

import fedzo
import fedzo.data
from fedzo.cli import main
from fedzo.config.experiment import shipped

CONFIGS = Path(fedzo.__file__).parent / "config" / "shipped"


def override_both_ways(refused, here, base, overrides):
    """Return what is said of settings given with --set, having seen that a file gets the same."""
    by_set = refused(base, "--out", "run", *(a for o in overrides for a in ("--set", o)))
    tables = tomllib.loads((CONFIGS / f"{base}.toml").read_text())
    for override in overrides:
        name, _, text = override.partition("=")
        table, _, key = name.partition(".")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        tables.setdefault(table, {})[key] = value
    (here / "in-a-file.toml").write_text(tomli_w.dumps(tables))
    assert refused("in-a-file.toml", "--out", "run") == by_set
    return by_set


# Settings that are rejected; the message names the last key that is set, and its value.
BAD_SETTINGS = {
    "problem.seed=1": 1,
    "problem.zzz=1": 1,
    "uplink.snr_db=3": 3,
    # wrong types
    "run.rounds=ten": "ten",
    "run.rounds=1.5": 1.5,
    "run.rounds=true": True,
    "run.workers=[2]": [2],
    "problem.dim=true": True,
    "problem.condition=high": "high",
    "algorithm.learning_rate=true": True,
    "algorithm.participants='5'": "5",
    "algorithm.difference=1": 1,
    "problem.name=3": 3,
    "problem.name=['a']": ["a"],
    "algorithm.name=[]": [],
    "uplink.name={}": {},
    # impossible values
    "run.rounds=-1": -1,
    "run.evaluate_every=0": 0,
    "run.checkpoint_every=0": 0,
    "run.workers=0": 0,
    "run.seed=-1": -1,
    f"run.seed={2**64}": 2**64,
    "run.data_seed=-1": -1,
    "run.target=nan": math.nan,
    "algorithm.smoothing=0": 0.0,
    "algorithm.smoothing=nan": math.nan,
    "algorithm.smoothing=inf": math.inf,
    "algorithm.learning_rate=-1": -1.0,
    "algorithm.learning_rate=nan": math.nan,
    "algorithm.learning_rate=inf": math.inf,
    "algorithm.batch_size=0": 0,
    "algorithm.directions=0": 0,
    "algorithm.local_steps=0": 0,
    "algorithm.participants=0": 0,
    "algorithm.participants=21": 21,
    "algorithm.direction_kind=orthogonal algorithm.directions=101": 101,
    "algorithm.direction_kind=coordinate algorithm.directions=101": 101,
    "algorithm.difference=both": "both",
    "algorithm.weighting=age": "age",
    "uplink.name=aircomp uplink.snr_db=1e9": 1e9,
    "problem.devices=0": 0,
    "problem.smoothness=nan": math.nan,
    "problem.gradient_noise=inf": math.inf,
}


@pytest.mark.parametrize("overrides", BAD_SETTINGS)
def test_bad_setting(overrides, refused, here):
    line = override_both_ways(refused, here, "quadratic", overrides.split())
    key = overrides.split()[-1].partition("=")[0]
    assert line.startswith(f"{key} = {BAD_SETTINGS[overrides]!r}: ")


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("run.round=5", "rounds"),
        ("algorithms.name=fedzo", "algorithm"),
        ("algorithm.direction_kind=spher", "sphere"),
        ("problem.name=quadratics", "quadratic"),
        ("algorithm.name=fedzoo", "fedzo"),
        ("uplink.name=ideel", "ideal"),
    ],
)
def test_nearest_name_is_suggested(override, nearest, refused, here):
    line = override_both_ways(refused, here, "quadratic", [override])
    assert f"(did you mean '{nearest}'?)" in line


def test_all_keys_of_the_table_are_listed(refused):
    """The message of the contract: the key, the value, the nearest key and what is allowed."""
    assert refused("quadratic", "--set", "run.round=5") == (
        "run.round = 5: unknown key (did you mean 'rounds'?); [run] takes rounds, seed, "
        "data_seed, evaluate_every, checkpoint_every, workers, target, max_queries, modules"
    )


def test_bad_setting_of_softmax(refused, here):
    line = override_both_ways(refused, here, "softmax", ["problem.devices=4001"])
    assert line.startswith("problem.devices = 4001: ")
    assert "4,000" in line  # the number of samples
    unknown = override_both_ways(refused, here, "softmax", ["problem.data=fashion-mnist-min"])
    assert unknown.startswith("problem.data = 'fashion-mnist-min': ")


def test_missing_data_folder(refused):
    line = refused("softmax", "--set", "problem.data_dir=nowhere", "--out", "run")
    assert line == "fashion-mnist-mini: nowhere: No such file or directory"


def test_truncated_data_file(refused, here):
    (here / "data").mkdir()
    name = "fashion-mnist-mini.npz"
    packed = (Path(fedzo.data.__file__).parent / "files" / f"{name}.xz").read_bytes()
    (here / "data" / name).write_bytes(lzma.decompress(packed)[:-1000])
    line = refused("softmax", "--set", "problem.data_dir=data", "--out", "run")
    assert line == (
        "fashion-mnist-mini: data: fashion-mnist-mini.npz: "
        "damaged: expected 3,926,042 bytes, got 3,925,042"
    )


def test_too_large_for_memory(refused):
    line = refused("quadratic", "--set", "problem.dim=1000000000000000", "--out", "run")
    assert line.startswith("problem.dim = 1000000000000000: ")


@pytest.mark.parametrize(
    "override", ["run.rounds", "run=5", "rounds=5", "=5", ".x=5", "run.=5", ""]
)
def test_set_without_table_key_and_value(override, refused):
    line = refused("quadratic", "--set", override, "--out", "run")
    assert line.startswith(f"--set {override}: ")


@pytest.mark.parametrize(
    ("source", "nearest"), [("none.toml", ""), ("softmx", " (did you mean 'softmax'?)"), (".", "")]
)
def test_no_such_configuration(source, nearest, refused):
    line = refused(source, "--out", "run")
    assert line.startswith(f"no configuration {source!r}: ")
    assert all(repr(name) in line for name in shipped())
    assert line.endswith(nearest)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"[problem\n", "is not a TOML file: Expected ']' at the end of a table declaration"),
        (b"\xff\xfe\x00", "is not a TOML file: 'utf-8' codec can't decode byte 0xff"),
        (b"", "problem.name is missing: "),
        (b"rounds = 3\n", "rounds = 3: unknown table (did you mean 'run'?); "),
        (b"run = 3\n", "run = 3: must be a table, [run]"),
        (b"[[run]]\nrounds = 3\n", "run = [{'rounds': 3}]: must be a table, [run]"),
    ],
)
def test_bad_file(content, line, refused, here):
    (here / "bad.toml").write_bytes(content)
    said = refused("bad.toml", "--set", "run.rounds=5", "--out", "run")
    assert said.removeprefix("bad.toml ").startswith(line)


def test_file_is_utf8_whatever_the_locale(here):
    (here / "mine.toml").write_bytes('[problem]  # η, é\nname = "quadratic"\n'.encode())
    code = (
        "from fedzo.config.experiment import Experiment; print(Experiment.load('mine.toml').name)"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | locale, capture_output=True, check=True
    )
    assert run.stdout == b"mine\n"


# --- where a run may not go -----------------------------------------------------------------------

QUICK = ("--set", "run.rounds=2", "--quiet")


def test_out_below_a_file(refused, here):
    (here / "file").write_text("")
    line = refused("quadratic", *QUICK, "--out", "file/run")
    assert line == "cannot write to file/run: Not a directory"
    assert (
        refused("quadratic", *QUICK, "--out", "file") == "cannot write to file: it is not a folder"
    )


def test_out_that_holds_a_run(refused):
    assert main(["run", "quadratic", *QUICK, "--out", "run"]) == 0
    assert "already holds a run" in refused("quadratic", *QUICK, "--out", "run")
    # also if it is one of several seeds, and not the first
    assert main(["run", "quadratic", *QUICK, "--out", "seeds/seed-1"]) == 0
    line = refused("quadratic", *QUICK, "--out", "seeds", "--seeds", "3")
    assert line.startswith("seeds/seed-1 already holds a run")


def test_resume_without_a_run(refused, here):
    missing = "run does not contain a run to resume"
    assert refused("quadratic", "--resume", "--out", "run") == missing
    assert refused("quadratic", "--resume", "--out", "run", "--seeds", "2") == missing
    needs = "--resume needs --out DIR, the folder of the run to resume"
    assert refused("quadratic", "--resume") == needs
    (here / "mine.toml").write_text('[problem]\nname = "quadratic"\n')
    assert refused("mine.toml", "--resume") == needs


def test_resume_of_another_configuration(refused):
    assert main(["run", "quadratic", *QUICK, "--out", "run"]) == 0
    resume = ("quadratic", *QUICK, "--resume", "--out", "run", "--set")
    other = "run/checkpoint.npz is of another configuration: "
    assert refused(*resume, "run.seed=1") == other + "run.seed = 0, now 1"
    line = refused(*resume, "algorithm.learning_rate=1", "--set", "problem.dim=50")
    assert line == other + "algorithm.learning_rate = 0.01, now 1.0; problem.dim = 100, now 50"
    line = refused(*resume, "run.data_seed=3")
    assert line == other + "run.data_seed = 0, now 3"
    assert refused(*resume, "run.rounds=1") == "run has already run 2 rounds, more than 1"


def test_damaged_files_on_resume(refused, here):
    assert main(["run", "quadratic", *QUICK, "--out", "run"]) == 0
    resume = ("quadratic", *QUICK, "--resume", "--out", "run")
    history = (here / "run" / "history.jsonl").read_bytes()
    (here / "run" / "history.jsonl").write_bytes(b"?\n" + history)
    assert refused(*resume) == "run/history.jsonl is damaged in line 1"
    (here / "run" / "history.jsonl").write_bytes(history)
    checkpoint = (here / "run" / "checkpoint.npz").read_bytes()
    for damaged in (b"", checkpoint[:-1], checkpoint[:100]):
        (here / "run" / "checkpoint.npz").write_bytes(damaged)
        line = refused(*resume)
        assert line == "run/checkpoint.npz is damaged and cannot be resumed"


def test_bad_seeds(refused):
    for count in ("0", "-3"):
        line = refused("quadratic", "--seeds", count, "--out", "run")
        assert line == f"--seeds {count}: must be a whole number from 1 to 10,000"
    last = 2**64 - 1
    line = refused("quadratic", "--set", f"run.seed={last}", "--seeds", "2", "--out", "run")
    assert line == f"run.seed = {last + 1}: must be a whole number in [0, 2^64)"
