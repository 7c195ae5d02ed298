"""Custom problems: classes and factories named in a configuration, and errors in them."""

import sys
import tomllib
from pathlib import Path

import pytest

from fedzo.cli import main
from fedzo.config import experiment as config
from fedzo.config.experiment import Experiment, parse_overrides


def own_run(here, name, *overrides):
    (here / "mine.toml").write_text(
        f'[problem]\nname = "{name}"\n[algorithm]\ndirections = 2\n[run]\nrounds = 2\n'
    )
    return Experiment.load("mine.toml", parse_overrides(overrides))


def test_own_class(here, own):
    experiment = own_run(here, f"{own}:Bowl", "problem.centre=3", "run.data_seed=2")
    problem = experiment.problem()
    # the keys, the defaults, and run.data_seed as its seed; an int where a float is asked for
    assert problem.centre.tolist() == [203.0, 203.5, 203.0, 203.5]
    assert experiment.tables["problem"]["centre"] == 3.0
    result = experiment.run(here / "run")
    assert result.history[0]["train_loss"] == 3 * (203.0**2 + 203.5**2) / 2
    # what TOML has no word for is a default, and stays one
    assert tomllib.loads(Path("run/config.toml").read_text())["problem"] == {
        "name": f"{own}:Bowl", "dim": 3, "devices": 4, "centre": 3.0, "shifts": [0.0, 0.5],
    }  # fmt: skip
    assert Experiment.load("run/config.toml").run().last.tobytes() == result.last.tobytes()
    longer = Experiment.load("run/config.toml", {"run": {"rounds": 4}})
    again = longer.run(here / "run", resume=True)
    at_once = longer.run()
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
    unknown = ("no_such_module:make", name, ":", ":make", "..a:b", "a b:c")
    no_factories = (f"{own}:number", f"{own}:np", "builtins:dict", f"{own}:nothing")
    for wrong in (*unknown, *no_factories):
        assert said(wrong).startswith(f"problem.name = '{wrong}': ")
    assert said(f"{own}:Bowl", "problem.center=1") == (
        "problem.center = 1: unknown key (did you mean 'centre'?); "
        "[problem] takes dim, devices, centre, shifts, note, kind for Bowl"
    )
    assert said(f"{own}:Bowl", "problem.dim=wide").startswith("problem.dim = 'wide': ")
    assert said(f"{own}:Bowl", "problem.note=3").startswith("problem.note = 3: ")
    assert said(f"{own}:make").startswith("problem.dim is missing: ")
    assert said(f"{own}:needs").startswith("problem.depth is missing: ")
    assert said(f"{own}:Bowl", "problem.devices=0").startswith(f"{own}:Bowl: devices = 0: ")


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
