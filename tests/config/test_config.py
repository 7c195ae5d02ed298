"""Configurations: what is refused, in which words; what is filled in; the user's own problems."""

import dataclasses
import inspect
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import fedzo
import fedzo.data
from fedzo.algorithms import ALGORITHMS
from fedzo.cli import main
from fedzo.config import experiment as config
from fedzo.config.experiment import Experiment, shipped
from fedzo.errors import InvalidValue, UsageError, one_of
from fedzo.problems import PROBLEMS, Quadratic, softmax
from fedzo.runs import RunOptions, minimize
from fedzo.uplinks import UPLINKS

CONFIGS = Path(fedzo.__file__).parent / "config" / "shipped"
OWN = '''
"""A user's own problems."""
import functools
import fedzo
import numpy as np

class Bowl(fedzo.Objective):
    def __init__(self, dim: int = 3, devices: int = 4, centre: float = 1.0,
                 shifts: tuple[float, ...] = (0.0, 0.5), note: str | None = None,
                 kind: type = float, seed: int = 0):
        self.dim, self.devices = dim, devices
        self.centre = centre + 100 * seed + np.resize(shifts, devices)
    def batch(self, device, size, draws):
        return device
    def values(self, points, batch):
        return np.sum((points - self.centre[batch]) ** 2, axis=1)[:, None]
    def losses(self, x, devices):
        return np.array([np.sum((x - self.centre[i]) ** 2) for i in devices])

def make(dim: int, devices: int = 2, scale: "Unknown" = 1):
    from HELPER import offset
    return Bowl(dim, devices, scale * offset)

def any_keys(**keys):
    return Bowl(keys.pop("size", 2), **keys)

def sloppy(dim: int = None):
    return Bowl(dim or 2)

def needs(depth: float | list[float]):
    return Bowl()

def nothing():
    return None

bowl = functools.partial(Bowl, dim=5)
number = 3
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to give commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own(here, monkeypatch):
    """A module of the user's beside the command, with a name that no other test has."""
    name = f"own_{here.name}"
    (here / f"{name}.py").write_text(OWN.replace("HELPER", f"helper_{here.name}"))
    (here / f"helper_{here.name}.py").write_text("offset = 2.0\n")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return name


def tree(folder):
    return {p: p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.fixture
def refused(here, capfd):
    """Give a command that must be refused in one line, with nothing written; return the line."""

    def give(*arguments):
        before = tree(here)
        capfd.readouterr()
        assert main(["run", *map(str, arguments)]) == 2
        out, err = capfd.readouterr()
        assert tree(here) == before
        assert out == ""
        assert err.startswith("fedzo: error: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        return err.removeprefix("fedzo: error: ").removesuffix("\n")

    return give


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


# --- what is refused ------------------------------------------------------------------------------

QUADRATIC_KEYS = "dim, devices, smoothness, condition, gradient_noise, dissimilarity"
QUADRATIC_KEYS += " for Quadratic"
ANY_PROBLEM = f"{one_of(PROBLEMS)}, or 'module:factory' for your own"
ANY_ALGORITHM = f"{one_of(ALGORITHMS)}, or 'module:Class' for your own"
ANY_UPLINK = f"{one_of(UPLINKS)}, or 'module:Class' for your own"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        # unknown keys and tables, with the nearest
        (
            "run.round=5",
            "run.round = 5: unknown key (did you mean 'rounds'?); [run] takes rounds, seed, "
            "data_seed, evaluate_every, checkpoint_every, workers, target, modules",
        ),
        (
            "problem.zzz=1",
            f"problem.zzz = 1: unknown key; [problem] takes {QUADRATIC_KEYS}",
        ),
        (
            "problem.seed=1",
            f"problem.seed = 1: unknown key; [problem] takes {QUADRATIC_KEYS}",
        ),
        (
            "uplink.snr_db=3",
            "uplink.snr_db = 3: unknown key; [uplink] takes nothing else for Ideal",
        ),
        (
            "algorithms.name=fedzo",
            "algorithms = {'name': 'fedzo'}: unknown table (did you mean 'algorithm'?); "
            "a configuration has [problem], [algorithm], [server], [uplink], [run], [flower]",
        ),
        # wrong types
        ("run.rounds=ten", "run.rounds = 'ten': must be a whole number"),
        ("run.rounds=1.5", "run.rounds = 1.5: must be a whole number"),
        ("run.rounds=true", "run.rounds = True: must be a whole number"),
        ("run.workers=[2]", "run.workers = [2]: must be a whole number"),
        ("problem.dim=true", "problem.dim = True: must be a whole number"),
        ("problem.condition=high", "problem.condition = 'high': must be a number"),
        (
            "algorithm.learning_rate=true",
            "algorithm.learning_rate = True: must be a number or 'auto'",
        ),
        ("algorithm.participants='5'", "algorithm.participants = '5': must be a whole number"),
        ("algorithm.difference=1", "algorithm.difference = 1: must be a string"),
        ("problem.name=3", f"problem.name = 3: must be {ANY_PROBLEM}"),
        ("problem.name=['a']", f"problem.name = ['a']: must be {ANY_PROBLEM}"),
        ("algorithm.name=[]", f"algorithm.name = []: must be {ANY_ALGORITHM}"),
        ("uplink.name={}", f"uplink.name = {{}}: must be {ANY_UPLINK}"),
        # impossible values
        ("run.rounds=-1", "run.rounds = -1: must be a whole number >= 0"),
        ("run.evaluate_every=0", "run.evaluate_every = 0: must be a whole number >= 1"),
        ("run.checkpoint_every=0", "run.checkpoint_every = 0: must be a whole number >= 1"),
        ("run.workers=0", "run.workers = 0: must be a whole number >= 1"),
        ("run.seed=-1", "run.seed = -1: must be a whole number in [0, 2^64)"),
        (f"run.seed={2**64}", f"run.seed = {2**64}: must be a whole number in [0, 2^64)"),
        ("run.data_seed=-1", "run.data_seed = -1: must be a whole number in [0, 2^64)"),
        ("algorithm.smoothing=0", "algorithm.smoothing = 0.0: must be a number > 0"),
        ("algorithm.smoothing=nan", "algorithm.smoothing = nan: must be a number > 0"),
        ("algorithm.smoothing=inf", "algorithm.smoothing = inf: must be a number > 0"),
        ("algorithm.learning_rate=-1", "algorithm.learning_rate = -1.0: must be a number > 0"),
        ("algorithm.learning_rate=nan", "algorithm.learning_rate = nan: must be a number > 0"),
        ("algorithm.learning_rate=inf", "algorithm.learning_rate = inf: must be a number > 0"),
        ("algorithm.batch_size=0", "algorithm.batch_size = 0: must be a whole number >= 1"),
        ("algorithm.directions=0", "algorithm.directions = 0: must be a whole number >= 1"),
        ("algorithm.local_steps=0", "algorithm.local_steps = 0: must be a whole number >= 1"),
        ("algorithm.participants=0", "algorithm.participants = 0: must be a whole number >= 1"),
        (
            "algorithm.participants=21",
            "algorithm.participants = 21: must be at most the number of devices, 20",
        ),
        (
            "algorithm.directions=101 algorithm.direction_kind=orthogonal",
            "algorithm.directions = 101: must be at most the problem's dimension, 100, "
            "for orthogonal directions",
        ),
        (
            "algorithm.directions=101 algorithm.direction_kind=coordinate",
            "algorithm.directions = 101: must be at most the problem's dimension, 100, "
            "for coordinate directions",
        ),
        (
            "algorithm.direction_kind=spher",
            "algorithm.direction_kind = 'spher': must be one of 'sphere', 'gaussian', "
            "'rademacher', 'orthogonal', 'coordinate' (did you mean 'sphere'?)",
        ),
        (
            "algorithm.difference=both",
            "algorithm.difference = 'both': must be one of 'forward', 'central'",
        ),
        (
            "algorithm.weighting=age",
            "algorithm.weighting = 'age': must be one of 'uniform', 'size'",
        ),
        ("run.target=nan", "run.target = nan: must be a number"),
        (
            "uplink.name=aircomp uplink.snr_db=1e9",
            "uplink.snr_db = 1000000000.0: must be a number from -1000 to 1000, "
            "or inf for no noise",
        ),
        ("problem.devices=0", "problem.devices = 0: must be a whole number >= 1"),
        ("problem.smoothness=nan", "problem.smoothness = nan: must be a number > 0"),
        ("problem.gradient_noise=inf", "problem.gradient_noise = inf: must be a number >= 0"),
        # unknown names
        (
            "problem.name=quadratics",
            f"problem.name = 'quadratics': must be {ANY_PROBLEM} (did you mean 'quadratic'?)",
        ),
        (
            "algorithm.name=fedzoo",
            f"algorithm.name = 'fedzoo': must be {ANY_ALGORITHM} (did you mean 'fedzo'?)",
        ),
        (
            "uplink.name=ideel",
            f"uplink.name = 'ideel': must be {ANY_UPLINK} (did you mean 'ideal'?)",
        ),
    ],
)
def test_bad_setting(overrides, line, refused, here):
    assert override_both_ways(refused, here, "quadratic", overrides.split()) == line


def test_bad_setting_of_softmax(refused, here):
    assert override_both_ways(refused, here, "softmax", ["problem.devices=4001"]) == (
        "problem.devices = 4001: must be a whole number from 1 to 4,000, the number of samples"
    )
    unknown = override_both_ways(refused, here, "softmax", ["problem.data=fashion-mnist-min"])
    assert unknown.startswith("problem.data = 'fashion-mnist-min': must be one of ")


def test_missing_data_folder(refused):
    line = refused("softmax", "--set", "problem.data_dir=nowhere", "--out", "run")
    assert line == "fashion-mnist-mini: nowhere: No such file or directory"


def test_truncated_data_file(refused, here):
    (here / "data").mkdir()
    name = "fashion-mnist-mini.npz"
    whole = (Path(fedzo.data.__file__).parent / "files" / name).read_bytes()
    (here / "data" / name).write_bytes(whole[:-1000])
    line = refused("softmax", "--set", "problem.data_dir=data", "--out", "run")
    assert line == (
        "fashion-mnist-mini: data: fashion-mnist-mini.npz: "
        "damaged: expected 2,197,901 bytes, got 2,196,901"
    )


def test_too_large_for_memory(refused):
    line = refused("quadratic", "--set", "problem.dim=1000000000000000", "--out", "run")
    assert line.startswith("problem.dim = 1000000000000000: must be smaller: it needs ")


@pytest.mark.parametrize(
    "override", ["run.rounds", "run=5", "rounds=5", "=5", ".x=5", "run.=5", ""]
)
def test_set_without_table_key_and_value(override, refused):
    line = refused("quadratic", "--set", override, "--out", "run")
    assert line == f"--set {override}: must be table.key=value, like run.rounds=300"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            "none.toml",
            "no configuration 'none.toml': it is neither a file nor one that ships, "
            + one_of(shipped()),
        ),
        (
            "softmx",
            "no configuration 'softmx': it is neither a file nor one that ships, "
            + one_of(shipped())
            + " (did you mean 'softmax'?)",
        ),
        (
            ".",
            "no configuration '.': it is neither a file nor one that ships, " + one_of(shipped()),
        ),
    ],
)
def test_no_such_configuration(source, line, refused):
    assert refused(source, "--out", "run") == line


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"[problem\n", "is not a TOML file: Expected ']' at the end of a table declaration"),
        (b"\xff\xfe\x00", "is not a TOML file: 'utf-8' codec can't decode byte 0xff"),
        (b"", "problem.name is missing: it must be " + ANY_PROBLEM),
        (b"rounds = 3\n", "rounds = 3: unknown table (did you mean 'run'?); a configuration has "),
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
    taken = "already holds a run: resume it or choose another folder"
    assert refused("quadratic", *QUICK, "--out", "run") == f"run {taken}"
    # also if it is one of several seeds, and not the first
    assert main(["run", "quadratic", *QUICK, "--out", "seeds/seed-1"]) == 0
    line = refused("quadratic", *QUICK, "--out", "seeds", "--seeds", "3")
    assert line == f"seeds/seed-1 {taken}"


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


# --- what is filled in, and what running it again gives -------------------------------------------


def read(path):
    return tomllib.loads(Path(path).read_text())


def records(folder):
    lines = Path(folder, "history.jsonl").read_text().splitlines()
    return [json.loads(line) | {"seconds": 0} for line in lines]


@pytest.mark.parametrize(("base", "factory"), [("quadratic", Quadratic), ("softmax", softmax)])
def test_config_toml_holds_everything(base, factory, here):
    sets = ["--set", "problem.devices=10", "--set", "algorithm.participants=5"]
    sets += ["--set", "algorithm.learning_rate=1", "--set", "run.rounds=0"]
    assert main(["run", base, *sets, "--quiet", "--out", "run"]) == 0
    config = read("run/config.toml")

    def expected(factory):
        parameters = inspect.signature(factory).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not None}

    problem = expected(factory)
    del problem["seed"]  # run.data_seed
    file = read(CONFIGS / f"{base}.toml")
    assert config["problem"] == {**problem, **file["problem"], "devices": 10}
    algorithm = {**expected(fedzo.FedZO), **file["algorithm"]}
    del algorithm["server"]  # a table of its own
    assert config["server"] == {"name": "mean"}
    assert config["algorithm"] == {**algorithm, "participants": 5, "learning_rate": 1.0}
    assert type(config["algorithm"]["learning_rate"]) is float
    assert config["uplink"] == {"name": "ideal"}
    assert config["run"] == {**expected(RunOptions), **file["run"], "rounds": 0}


@pytest.mark.parametrize("base", ["quadratic", "softmax", "OWN:Bowl"])
def test_config_toml_of_a_run_gives_the_same_run(base, here, own):
    if base.startswith("OWN"):
        (here / "mine.toml").write_text(
            f'[problem]\nname = "{own}:Bowl"\ndim = 4\n[algorithm]\ndirections = 2\n'
        )
        base = "mine.toml"
    sets = "problem.devices=10 algorithm.participants=5 algorithm.directions=3 "
    sets += "run.rounds=3 run.evaluate_every=2 run.seed=5 run.data_seed=7 run.workers=2"
    given = [a for s in sets.split() for a in ("--set", s)]
    assert main(["run", base, *given, "--quiet", "--out", "one"]) == 0
    assert main(["run", "one/config.toml", "--quiet", "--out", "two"]) == 0
    assert main(["run", "two/config.toml", "--quiet"]) == 0  # runs/two, by the folder's name
    for folder in ("two", "runs/two"):
        for name in ("config.toml", "model.npy"):
            assert Path("one", name).read_bytes() == Path(folder, name).read_bytes()
        assert records("one") == records(folder)
    assert np.any(np.load("one/model.npy") != 0)


def test_settings_do_what_they_say(here):
    """The command line and minimize() with the same arguments are one run."""
    sets = {
        "problem.dim": 6, "problem.devices": 5, "problem.dissimilarity": 0.5,
        "algorithm.learning_rate": 0.02, "algorithm.smoothing": 0.01, "algorithm.batch_size": 2,
        "algorithm.directions": 3, "algorithm.local_steps": 4, "algorithm.participants": 2,
        "algorithm.direction_kind": "orthogonal", "algorithm.difference": "central",
        "run.rounds": 4, "run.seed": 9, "run.data_seed": 8, "run.evaluate_every": 3,
    }  # fmt: skip
    given = [a for k, v in sets.items() for a in ("--set", f"{k}={v}")]
    assert main(["run", "quadratic", *given, "--quiet", "--out", "run"]) == 0
    algorithm = {k.partition(".")[2]: v for k, v in sets.items() if k.startswith("algorithm")}
    result = minimize(
        Quadratic(dim=6, devices=5, dissimilarity=0.5, seed=8),
        algorithm=fedzo.FedZO(**algorithm),
        rounds=4,
        seed=9,
        evaluate_every=3,
    )
    assert np.load("run/model.npy").tobytes() == result.last.tobytes()
    assert records("run") == [record | {"seconds": 0} for record in result.history]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("fedzo", "fedzo"),
        ("'fedzo'", "fedzo"),
        ('"fedzo"', "fedzo"),
        (" fedzo ", "fedzo"),
        ("5", 5),
        (" 5 ", 5),
        ("1e-3", 1e-3),
        ("[1, 2]", [1, 2]),
        ("true", True),
        ("a=b", "a=b"),
        ("/data/x y", "/data/x y"),
        ("", ""),
    ],
)
def test_set_reads_toml_and_bare_words(text, value, here, own):
    (here / "any.toml").write_text(f'[problem]\nname = "{own}:any_keys"\n')
    experiment = Experiment.load("any.toml", [f"problem.key={text}"])
    assert experiment.tables["problem"]["key"] == value
    assert type(experiment.tables["problem"]["key"]) is type(value)


def test_later_set_wins_over_earlier_and_over_the_file():
    experiment = Experiment.load("quadratic", ["run.rounds=5", "run.rounds=6"])
    assert experiment.options.rounds == 6


def test_set_of_another_algorithm_leaves_the_files_keys_of_the_old_one(refused):
    experiment = Experiment.load("quadratic", ["algorithm.name=fedavg", "uplink.name=ideal"])
    algorithm = experiment.tables["algorithm"]
    assert type(experiment.algorithm) is fedzo.FedAvg
    assert (algorithm["learning_rate"], algorithm["local_steps"]) == (0.01, 5)  # both have these
    assert "smoothing" not in algorithm
    # What is asked for along with it must fit.
    sets = ["--set", "algorithm.name=fedavg", "--set", "algorithm.smoothing=0.1"]
    assert refused("quadratic", *sets).startswith("algorithm.smoothing = 0.1: unknown key; ")
    # And where the algorithm stays the same, nothing is dropped.
    kept = Experiment.load("quadratic", ["algorithm.name=fedzo"]).tables
    assert kept == Experiment.load("quadratic").tables


def test_with_seed_changes_the_seed_only():
    one = Experiment.load("quadratic", ["run.data_seed=4"])
    other = one.with_seed(3)
    assert (other.options.seed, other.tables["run"]["seed"]) == (3, 3)
    assert one.options.seed == one.tables["run"]["seed"] == 0
    assert dataclasses.replace(other.options, seed=0) == one.options
    assert other.algorithm == one.algorithm
    assert np.array_equal(other.problem().optimum, one.problem().optimum)
    with pytest.raises(InvalidValue, match=r"^run.seed = -1"):
        one.with_seed(-1)


# --- the user's own problem -----------------------------------------------------------------------


def own_run(here, name, *overrides):
    (here / "mine.toml").write_text(
        f'[problem]\nname = "{name}"\n[algorithm]\ndirections = 2\n[run]\nrounds = 2\n'
    )
    return Experiment.load("mine.toml", overrides)


def test_own_class(here, own):
    experiment = own_run(here, f"{own}:Bowl", "problem.centre=3", "run.data_seed=2")
    problem = experiment.problem()
    # the keys, the defaults, and run.data_seed as its seed; an int where a float is asked for
    assert problem.centre.tolist() == [203.0, 203.5, 203.0, 203.5]
    assert experiment.tables["problem"]["centre"] == 3.0
    result = experiment.run(here / "run")
    assert result.history[0]["train_loss"] == 3 * (203.0**2 + 203.5**2) / 2
    # what TOML has no word for is a default, and stays one
    assert read("run/config.toml")["problem"] == {
        "name": f"{own}:Bowl", "dim": 3, "devices": 4, "centre": 3.0, "shifts": [0.0, 0.5],
    }  # fmt: skip
    assert Experiment.load("run/config.toml").run().last.tobytes() == result.last.tobytes()
    again = Experiment.load("run/config.toml", ["run.rounds=4"]).run(here / "run", resume=True)
    at_once = Experiment.load("run/config.toml", ["run.rounds=4"]).run()
    assert again.last.tobytes() == at_once.last.tobytes()


def test_own_list_for_a_tuple(here, own):
    problem = own_run(here, f"{own}:Bowl", "problem.shifts=[1.0, 2.0]").problem()
    assert problem.centre.tolist() == [2, 3, 2, 3]


def test_own_factory_may_import_what_lies_beside_it(here, own):
    """Also when it is called only, and with hints that nobody can look up."""
    problem = own_run(here, f"{own}:make", "problem.dim=2", "problem.scale=4").problem()
    assert (problem.dim, problem.centre.tolist()) == (2, [8.0, 8.5])


def test_own_partial(here, own):
    assert own_run(here, f"{own}:bowl", "problem.devices=3").problem().dim == 5


def test_own_factory_with_any_keys(here, own):
    experiment = own_run(here, f"{own}:any_keys", "problem.size=7", "problem.centre=2.0")
    assert experiment.problem().dim == 7
    assert experiment.tables["problem"] == {"name": f"{own}:any_keys", "size": 7, "centre": 2.0}


def test_own_factory_with_none_for_an_int(here, own):
    experiment = own_run(here, f"{own}:sloppy").with_seed(3)
    assert experiment.problem().dim == 2
    assert own_run(here, f"{own}:sloppy", "problem.dim=6").problem().dim == 6


def test_own_problem_gone_wrong(here, own, refused):
    def said(name, *overrides):
        (here / "mine.toml").write_text(f'[problem]\nname = "{name}"\n')
        sets = [a for o in overrides for a in ("--set", o)]
        return refused("mine.toml", *sets, "--out", "run")

    name = f"{own}:none"
    assert said("no_such_module:make") == (
        "problem.name = 'no_such_module:make': must be importable: "
        "No module named 'no_such_module'; "
        "searched: this folder, the configuration's folder and Python's path"
    )
    assert said(name) == (
        f"problem.name = '{name}': must be importable: module '{own}' has no attribute 'none'"
    )
    for nonsense in (":", ":make", "..a:b", "a b:c"):
        assert said(nonsense).startswith(f"problem.name = '{nonsense}': must be importable: ")
    for what in (f"{own}:number", f"{own}:np", "builtins:dict"):
        assert said(what) == (
            f"problem.name = '{what}': must be a function or class that makes an Objective"
        )
    assert said(f"{own}:nothing") == (
        f"problem.name = '{own}:nothing': made an object of type NoneType, which is not an "
        "Objective: it must be a subclass of fedzo.Objective with dim, devices, batch, values "
        "and losses"
    )
    assert said(f"{own}:Bowl", "problem.center=1") == (
        "problem.center = 1: unknown key (did you mean 'centre'?); "
        "[problem] takes dim, devices, centre, shifts, note, kind for Bowl"
    )
    assert said(f"{own}:Bowl", "problem.dim=wide") == "problem.dim = 'wide': must be a whole number"
    assert said(f"{own}:Bowl", "problem.note=3") == "problem.note = 3: must be a string"
    assert said(f"{own}:make") == "problem.dim is missing: a value is needed"
    assert said(f"{own}:needs") == "problem.depth is missing: a number or a list is needed"
    assert said(f"{own}:Bowl", "problem.devices=0") == (
        f"{own}:Bowl: devices = 0: must be a whole number >= 1"
    )


def test_error_in_own_code_is_said_to_be_there(here, capsys, monkeypatch):
    """The traceback begins in the user's file, and the last line names it."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (here / "broken.py").write_text(BROKEN)
    (here / "undefined.py").write_text("nowhere_defined\n")
    (here / "unfinished.py").write_text("def make(:\n")

    def said(name):
        (here / "mine.toml").write_text(f'[problem]\nname = "{name}"\n')
        return main(["run", "mine.toml", "--quiet"]), capsys.readouterr().err.splitlines()

    for name, what, where in (
        ("broken:factory", "KeyError", "line 4, in factory"),
        ("broken:loss", "OSError", "line 9, in f"),
        ("undefined:make", "NameError", "line 1, in <module>"),
    ):
        code, lines = said(name)
        file = here / (name.partition(":")[0] + ".py")
        assert code == 1
        assert lines[0].startswith("Traceback")
        assert lines[1].startswith(f'  File "{file}"')
        assert lines[-1] == f"fedzo: error: {what} in your own code: {file}, {where}"
    code, lines = said("unfinished:make")
    assert code == 2
    [line] = lines
    assert "'unfinished:make': must be importable: invalid syntax (unfinished.py, line 1)" in line


BROKEN = """from fedzo import FunctionObjective

def factory():
    return {}["x"]

def loss():
    def f(x, device):
        if device == 2:
            raise OSError("gone")
        return 1.0
    return FunctionObjective(f, dim=2, devices=3)
"""


def test_error_of_our_own_is_not_put_on_the_user(monkeypatch):
    def broken(*_arguments, **_settings):
        raise RuntimeError("a bug")

    broken.__code__ = broken.__code__.replace(co_filename=config.__file__)
    monkeypatch.setattr(config, "perform", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["run", "quadratic", "--quiet"])


def test_flower_engine_without_flower(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "fedzo.flower.simulation", None)
    line = refused("quadratic", "--engine", "flower", "--out", "run")
    assert line.endswith("pip install 'fedzo[flower]'")


def test_the_folder_is_searched_for_the_users_modules_only(here, own):
    """A gzip.py of the user's must not break the problems that ship."""
    Experiment.load("quadratic")
    assert str(here) not in sys.path
    own_run(here, f"{own}:Bowl")
    assert str(here) in sys.path


def test_resolve_is_a_function_of_tables():
    tables = {"problem": {"name": "quadratic"}, "run": {"rounds": 1}}
    experiment = Experiment.resolve(tables)
    assert tables == {"problem": {"name": "quadratic"}, "run": {"rounds": 1}}
    assert experiment.tables["algorithm"]["name"] == "fedzo"
    assert Experiment.resolve(experiment.tables).tables == experiment.tables
    with pytest.raises(UsageError, match="unknown table"):
        Experiment.resolve({"problems": {}})
