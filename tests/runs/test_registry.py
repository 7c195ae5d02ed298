"""Parts of one's own, by ``module:Class``: in files, with --set, on resume and in ask and tell."""

import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import fedzo
from fedzo.cli import main
from fedzo.config.experiment import Experiment
from fedzo.errors import UsageError
from fedzo.runs.registry import (
    ALGORITHMS,
    SERVER_OPTIMIZERS,
    UPLINKS,
    arguments_of,
    check_part,
    describe_parts,
    make_parts,
    maker,
)
from raising import fails, rejects

OWN = '''
from dataclasses import dataclass
import fedzo
import numpy as np
from fedzo.server import ServerOptimizer

class Slope(fedzo.Objective):
    """A linear function: full differences along the axes give its gradient exactly."""
    dim, devices = 2, 3
    def batch(self, device, size, draws):
        return device
    def values(self, points, batch):
        return points @ np.array([[1.0], [-2.0]])
    def losses(self, x, devices):
        return np.full(len(devices), x @ np.array([1.0, -2.0]))

@dataclass(frozen=True, kw_only=True)
class Proximal(fedzo.FedZO):
    pull: float = 0.0
    coefficients_shape = None  # corrected steps are not sums of directions
    def correction(self, task, device):
        return lambda x: self.pull * (x - task.x)

@dataclass(frozen=True)
class Louder(fedzo.Ideal):
    gain: float = 1.0
    def aggregate(self, t, updates, federation):
        delta, info = super().aggregate(t, updates, federation)
        return self.gain * delta, info

@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    keep: float = 0.5
    def init(self, x0):
        return (np.zeros_like(x0),)
    def apply(self, t, kept, x, delta):
        velocity = self.keep * kept[0] + delta
        return x + velocity, (velocity,)

class NoDataclass(fedzo.algorithms.Algorithm):
    pass

number = 3
'''
TOML = """
[problem]
name = "MODULE:Slope"
[algorithm]
name = "MODULE:Proximal"
learning_rate = 0.1
smoothing = 0.5
directions = 2
direction_kind = "coordinate"
local_steps = 2
pull = 1.0
[server]
name = "MODULE:Momentum"
[uplink]
name = "MODULE:Louder"
gain = 3.0
[run]
rounds = 4
evaluate_every = 1
workers = 1
"""
SLOPE = np.array([1.0, -2.0])


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module and its TOML file beside each other, in another folder than the command."""
    name = f"parts_{tmp_path.name}"
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / f"{name}.py").write_text(OWN)
    (tmp_path / "theirs" / "mine.toml").write_text(TOML.replace("MODULE", name))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return name


FILE = "../theirs/mine.toml"


def end(rounds, keep=0.5, gain=3.0, pull=1.0, rate=0.1):
    """Return where the run must end: two corrected steps a round, amplified, with momentum."""
    x, velocity = np.zeros(2), np.zeros(2)
    for _ in range(rounds):
        first = -rate * SLOPE
        delta = first - rate * (SLOPE + pull * first)
        velocity = keep * velocity + gain * delta
        x = x + velocity
    return x


def test_a_file_names_parts_that_lie_beside_it(own):
    experiment = Experiment.load(FILE)
    assert [type(p).__name__ for p in (experiment.algorithm, experiment.algorithm.server)] == [
        "Proximal",
        "Momentum",
    ]
    result = experiment.run(Path("run"))
    np.testing.assert_allclose(result.last, end(4), rtol=1e-12)
    tables = tomllib.loads(Path("run/config.toml").read_text())
    assert tables["algorithm"]["name"] == f"{own}:Proximal"
    assert tables["algorithm"]["pull"] == 1.0
    assert tables["server"] == {"name": f"{own}:Momentum", "keep": 0.5}
    assert tables["uplink"] == {"name": f"{own}:Louder", "gain": 3.0}


def test_settings_of_own_parts_can_be_set(own):
    changes = {"server": {"keep": 0.25}, "uplink": {"gain": 2}, "algorithm": {"pull": 0.5}}
    result = Experiment.load(FILE, changes | {"run": {"rounds": 3}}).run()
    np.testing.assert_allclose(result.last, end(3, 0.25, 2.0, 0.5), rtol=1e-12)


def test_another_part_leaves_behind_the_keys_of_the_old_one(own):
    experiment = Experiment.load(FILE, {"uplink": {"name": "ideal"}, "server": {"name": "mean"}})
    assert (experiment.tables["uplink"], experiment.tables["server"]) == (
        {"name": "ideal", "radio": None},
        {"name": "mean"},
    )
    server = {"name": f"{own}:Momentum", "keep": 0.1}
    back = Experiment.load("quadratic", {"server": server})
    assert back.algorithm.server.keep == 0.1


def test_resumed_what_a_server_step_keeps_is_kept(own):
    quiet = ["--quiet", "--set"]
    assert main(["run", FILE, *quiet, "run.rounds=3", "--out", "run"]) == 0
    assert main(["run", "run", "--resume", *quiet, "run.rounds=6"]) == 0
    assert main(["run", FILE, *quiet, "run.rounds=6", "--out", "whole"]) == 0
    assert Path("run/model.npy").read_bytes() == Path("whole/model.npy").read_bytes()
    np.testing.assert_allclose(np.load("run/model.npy"), end(6), rtol=1e-12)


def test_resume_refuses_another_part(own, capsys):
    assert main(["run", FILE, "--quiet", "--out", "run"]) == 0
    capsys.readouterr()
    for override, told in (
        ("server.keep=0.1", "server.keep = 0.5, now 0.1"),
        ("server.name=mean", f"server.name = '{own}:Momentum', now 'mean'"),
        ("algorithm.pull=2", "algorithm.pull = 1.0, now 2.0"),
    ):
        assert main(["run", FILE, "--resume", "--out", "run", "--set", override]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("server.kep=1", "server.kep = 1: unknown key (did you mean 'keep'?); [server] takes keep"),
        ("server.keep=high", "server.keep = 'high': must be a number"),
        ("uplink.name=no_module:X", "uplink.name = 'no_module:X': must be importable: No module"),
        ("server.name=OWN:Gone", "server.name = 'OWN:Gone': must be importable: module 'OWN' has"),
        (
            "algorithm.name=OWN:number",
            "algorithm.name = 'OWN:number': must be a dataclass that is a subclass of "
            "fedzo.Algorithm",
        ),
        (
            "algorithm.name=OWN:NoDataclass",
            "algorithm.name = 'OWN:NoDataclass': must be a dataclass that is a subclass of "
            "fedzo.Algorithm",
        ),
        (
            "uplink.name=OWN:Proximal",
            "uplink.name = 'OWN:Proximal': must be a dataclass that is a subclass of fedzo.Uplink",
        ),
        ("server.name=meen", "server.name = 'meen': must be one of 'mean'"),
        (
            "algorithm.name=zo_sgd",
            "server.name = 'OWN:Momentum': must be 'mean': the algorithm zo_sgd has no server",
        ),
        ("uplink.name=seeds", "uplink.name: Seeds sends coefficients"),
        ("problem.centre=3", "problem.centre = 3: unknown key; [problem] takes nothing else"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(own, override, told, capsys):
    override, told = override.replace("OWN", own), told.replace("OWN", own)
    assert main(["run", FILE, "--quiet", "--set", override]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fedzo: error: {told}")
    assert said.count("\n") == 1
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("table", "known"),
    [("algorithm", ALGORITHMS), ("server", SERVER_OPTIMIZERS), ("uplink", UPLINKS)],
)
def test_what_is_described_is_made_again(table, known):
    for name, kind in known.items():
        assert maker(table, name) is kind
        part = kind()
        check_part(table, part)
        algorithm = part if table == "algorithm" else fedzo.FedZO()
        algorithm = fedzo.FedZO(server=part) if table == "server" else algorithm
        uplink = part if table == "uplink" else fedzo.Ideal()
        tables = describe_parts(algorithm, uplink)
        assert tables[table]["name"] == name
        again = make_parts(tables)
        assert again[:2] == (algorithm, uplink)
        assert again[2] == tables


def test_parts_given_in_python_are_named_and_make_the_run_again(own):
    """A run of minimize with own parts has a configuration that gives the same bytes."""
    Experiment.load(FILE)
    theirs = sys.modules[own]
    algorithm = theirs.Proximal(
        learning_rate=0.1, directions=2, local_steps=2, pull=1.0, server=theirs.Momentum(keep=0.3)
    )
    result = fedzo.minimize(
        theirs.Slope(), algorithm=algorithm, uplink=theirs.Louder(2.0), rounds=3, run_dir="run"
    )
    again = Experiment.load("run").run(Path("again"))
    assert again.last.tobytes() == result.last.tobytes()
    first, second = (tomllib.loads(Path(f, "config.toml").read_text()) for f in ("run", "again"))
    assert Path(first["run"]["modules"]).samefile(Path(theirs.__file__).parent)
    assert list(first.items()) == list(second.items())


def test_ask_and_tell_finds_own_parts_again(own, tmp_path):
    Experiment.load(FILE)
    theirs = sys.modules[own]
    given = {
        "algorithm": theirs.Proximal(
            directions=2, local_steps=2, pull=1.0, server=theirs.Momentum()
        ),
        "uplink": theirs.Louder(2.0),
        "rounds": 3,
        "devices": 3,
    }
    opt = fedzo.AskTell(np.zeros(2), **given)
    while batch := opt.ask():
        opt.tell([float(SLOPE @ x) for x, _ in batch])
        opt.save(tmp_path / "run.json")
        opt = fedzo.AskTell.load(tmp_path / "run.json")
    whole = fedzo.minimize(lambda x, device: float(SLOPE @ x), np.zeros(2), **given)
    assert opt.result().last.tobytes() == whole.last.tobytes()
    saved = json.loads((tmp_path / "run.json").read_text())
    saved["tables"]["uplink"]["name"] = "gone:Louder"
    (tmp_path / "run.json").write_text(json.dumps(saved))
    with pytest.raises(UsageError) as caught:
        fedzo.AskTell.load(tmp_path / "run.json")
    assert caught.value.__cause__.key == "uplink.name"


@dataclass(frozen=True)
class Stranger:
    """Has all that an uplink has, but is none."""

    def aggregate(self, t, updates, federation):
        raise AssertionError


@pytest.mark.parametrize(
    "part", [{"uplink": Stranger()}, {"uplink": fedzo.Ideal}, {"algorithm": fedzo.Ideal()}]
)
def test_other_objects_are_not_parts(part):
    with rejects(*part):
        fedzo.minimize(lambda x, i: 0.0, np.zeros(2), devices=2, rounds=1, **part)


def test_a_server_step_is_one():
    with rejects("server"):
        fedzo.FedZO(server=3)


def test_a_problem_without_arguments_takes_no_key():
    class Still(fedzo.Objective):
        dim, devices = 2, 3

    assert arguments_of("problem", Still, {}) == {}
    with fails("unknown-key"):
        arguments_of("problem", Still, {"dimension": 3})
