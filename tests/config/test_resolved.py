"""Configurations: how defaults and changes are resolved, and that config.toml repeats the run."""

import dataclasses
import inspect
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedzo
from fedzo.cli import main
from fedzo.config.experiment import Experiment, parse_overrides
from fedzo.problems import Quadratic, softmax
from fedzo.runs.minimize import minimize
from fedzo.runs.options import RunOptions
from raising import fails, rejects

CONFIGS = Path(fedzo.__file__).parent / "config" / "shipped"


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
    experiment = Experiment.load("any.toml", parse_overrides([f"problem.key={text}"]))
    assert experiment.tables["problem"]["key"] == value
    assert type(experiment.tables["problem"]["key"]) is type(value)


def test_later_set_wins_over_earlier_and_over_the_file():
    changes = parse_overrides(["run.rounds=5", "run.rounds=6"])
    experiment = Experiment.load("quadratic", changes)
    assert experiment.options.rounds == 6


def test_set_of_another_algorithm_leaves_the_files_keys_of_the_old_one(refused):
    changes = {"algorithm": {"name": "fedavg"}, "uplink": {"name": "ideal"}}
    experiment = Experiment.load("quadratic", changes)
    algorithm = experiment.tables["algorithm"]
    assert type(experiment.algorithm) is fedzo.FedAvg
    assert (algorithm["learning_rate"], algorithm["local_steps"]) == (0.01, 5)  # both have these
    assert "smoothing" not in algorithm
    # What is asked for along with it must fit.
    sets = ["--set", "algorithm.name=fedavg", "--set", "algorithm.smoothing=0.1"]
    assert refused("quadratic", *sets).startswith("algorithm.smoothing = 0.1: ")
    # And where the algorithm stays the same, nothing is dropped.
    kept = Experiment.load("quadratic", {"algorithm": {"name": "fedzo"}}).tables
    assert kept == Experiment.load("quadratic").tables


def test_with_seed_changes_the_seed_only():
    one = Experiment.load("quadratic", {"run": {"data_seed": 4}})
    other = one.with_seed(3)
    assert (other.options.seed, other.tables["run"]["seed"]) == (3, 3)
    assert one.options.seed == one.tables["run"]["seed"] == 0
    assert dataclasses.replace(other.options, seed=0) == one.options
    assert other.algorithm == one.algorithm
    assert np.array_equal(other.problem().optimum, one.problem().optimum)
    with rejects("run.seed"):
        one.with_seed(-1)


def test_resolve_is_a_function_of_tables():
    tables = {"problem": {"name": "quadratic"}, "run": {"rounds": 1}}
    experiment = Experiment.resolve(tables)
    assert tables == {"problem": {"name": "quadratic"}, "run": {"rounds": 1}}
    assert experiment.tables["algorithm"]["name"] == "fedzo"
    assert Experiment.resolve(experiment.tables).tables == experiment.tables
    with fails("unknown-table"):
        Experiment.resolve({"problems": {}})
