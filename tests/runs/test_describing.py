"""What a run that was started in Python writes of itself, so that it can be run again."""

import importlib
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import fedzo
from fedzo.cli import main
from fedzo.config.experiment import Experiment
from fedzo.problems import Quadratic, softmax
from raising import fails

SMALL = fedzo.FedZO(learning_rate=0.05, batch_size=3, directions=4, local_steps=2, participants=3)


class Plain(fedzo.Objective):
    """A problem with arguments of several kinds, and some that no configuration can hold."""

    dim, devices = 2, 3

    def __init__(self, centre: float = 1.0, limit: int | None = 7, weights=(1.0, 2.0), kind=float):
        self.centre, self.limit, self.weights, self.kind = centre, limit, weights, kind

    def batch(self, device, size, draws):
        return device

    def values(self, points, batch):
        return np.sum((points - self.centre) ** 2, axis=1)[:, None]

    def losses(self, x, devices):
        return np.full(len(devices), np.sum((x - self.centre) ** 2))


class Outer:
    class Inner(Plain):
        """Not found by ``module:name``."""


class Bare(Plain):
    """One without arguments."""

    def __init__(self):
        super().__init__()


def config(folder):
    """Return what the configuration says, but for where modules were found."""
    tables = tomllib.loads((Path(folder) / "config.toml").read_text())
    tables["run"].pop("modules", None)
    return tables


@pytest.mark.parametrize(
    "problem",
    [
        Quadratic(
            7, 5, smoothness=2.5, condition=3.0, gradient_noise=0.25, dissimilarity=0.5, seed=11
        ),
        Quadratic(),
        softmax(devices=12, partition="iid", seed=3),
        Plain(0.5, weights=(1.0, 2.5)),
        Bare(),
    ],
    ids=["quadratic", "quadratic-defaults", "softmax", "own", "own-bare"],
)
def test_its_configuration_gives_the_same_bytes(problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    fedzo.minimize(
        problem, algorithm=SMALL, rounds=3, seed=5, evaluate_every=2, run_dir="started", workers=1
    )
    assert main(["run", "started/config.toml", "--quiet", "--out", "again"]) in (0, 3)
    assert Path("again/model.npy").read_bytes() == Path("started/model.npy").read_bytes()
    assert config("again") == config("started")


class Nested:
    """Arguments that TOML loses."""

    CASES = (
        ({"limit": None}, "limit"),  # TOML has no null, and the default is another
        ({"weights": (1.0, None)}, "weights"),
        ({"kind": int}, "kind"),
        ({"centre": np.ones(2), "kind": int}, "centre, kind"),
    )


@pytest.mark.parametrize(("given", "named"), Nested.CASES)
def test_arguments_that_no_file_can_hold(given, named, tmp_path):
    fedzo.minimize(Plain(**given), rounds=1, run_dir=tmp_path)
    reason = f"its problem was made with {named} in Python"
    assert config(tmp_path)["problem"]["python_only"] == reason
    with fails("python-only"):
        Experiment.load(str(tmp_path))


def test_a_default_that_no_file_can_hold_is_no_hindrance(tmp_path):
    fedzo.minimize(Plain(kind=float), rounds=1, run_dir=tmp_path)
    assert "python_only" not in config(tmp_path)["problem"]


@dataclass(frozen=True, kw_only=True)
class Customised(fedzo.FedZO):
    """An algorithm with a setting that no configuration can hold."""

    custom: object = None


@dataclass(frozen=True)
class Faded(fedzo.Ideal):
    """An uplink with one."""

    fading: object = None


@dataclass(frozen=True)
class Pushed(fedzo.ServerOptimizer):
    """A server optimizer with one."""

    push: object = None

    def init(self, x0):
        return ()

    def apply(self, t, kept, x, delta):
        return x + delta, kept


def hidden():
    @dataclass(frozen=True)
    class Unseen(fedzo.Ideal):
        """An uplink that only this function knows."""

    return Unseen()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"algorithm": Customised(custom=float)}, "its algorithm was made with custom"),
        ({"uplink": Faded(fading=[float])}, "its uplink was made with fading"),
        (
            {"algorithm": fedzo.FedZO(server=Pushed(float))},
            "its server optimizer was made with push",
        ),
        ({"uplink": hidden()}, "its uplink is defined where no other program can import it"),
    ],
    ids=["algorithm", "uplink", "server", "hidden"],
)
def test_parts_that_no_file_can_hold(parts, reason, tmp_path):
    fedzo.minimize(Quadratic(dim=3), rounds=1, run_dir=tmp_path, **parts)
    assert config(tmp_path)["problem"]["python_only"].startswith(reason)
    with fails("python-only"):
        Experiment.load(str(tmp_path))


def test_parts_with_such_settings_at_their_defaults(tmp_path):
    parts = {"algorithm": Customised(server=Pushed()), "uplink": Faded()}
    fedzo.minimize(Quadratic(dim=3), rounds=1, run_dir=tmp_path, **parts)
    assert "python_only" not in config(tmp_path)["problem"]


OWN = """
from dataclasses import dataclass
import fedzo

@dataclass(frozen=True, kw_only=True)
class Own(fedzo.FedZO):
    '''FedZO under another name.'''
"""


def test_the_folder_of_own_modules_is_written_down(tmp_path, monkeypatch):
    """So the file can be run from any folder, as one can that a command has left."""
    (tmp_path / "parts_of_mine.py").write_text(OWN)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        own = importlib.import_module("parts_of_mine").Own(learning_rate=0.05, local_steps=1)
        first = fedzo.minimize(Quadratic(dim=3), rounds=2, algorithm=own, run_dir=tmp_path / "run")
    del sys.modules["parts_of_mine"]
    monkeypatch.setattr(sys, "path", sys.path.copy())
    again = Experiment.load(str(tmp_path / "run")).run()
    assert again.last.tobytes() == first.last.tobytes()


def test_numbers_of_numpy(tmp_path):
    """As arguments, and in what is counted with them: each line of the history is valid JSON."""
    algorithm = fedzo.FedZO(learning_rate=np.float64(0.01), local_steps=np.int64(2))
    problem = Quadratic(dim=np.int64(3), devices=np.int32(4))
    first = fedzo.minimize(problem, rounds=2, algorithm=algorithm, run_dir=tmp_path)
    again = Experiment.load(str(tmp_path)).run()
    assert again.last.tobytes() == first.last.tobytes()
    assert again.history[-1]["uplink_bytes"] == first.history[-1]["uplink_bytes"] == 2 * 4 * 3 * 8


def test_a_tuning(tmp_path):
    """Its space is a table of its own, and not what the refusal is about."""
    fedzo.tune(
        lambda params, device, rng: (params["rate"] - 0.3) ** 2 + device,
        {"rate": fedzo.Float(0.0, 1.0)},
        devices=2,
        max_queries=20,
        algorithm=fedzo.FedZO(learning_rate=0.1, batch_size=1, directions=1, local_steps=1),
        run_dir=tmp_path,
    )
    with fails("python-only"):
        Experiment.load(str(tmp_path))


def local():
    class Here(Plain):
        pass

    return Here()


@pytest.mark.parametrize("problem", [local(), Outer.Inner()], ids=["function", "class"])
def test_classes_that_have_no_importable_name(problem, tmp_path, capsys):
    fedzo.minimize(problem, rounds=1, run_dir=tmp_path)
    assert main(["run", str(tmp_path), "--quiet"]) == 2
    told = capsys.readouterr().err
    assert told.endswith(
        "this run was started in Python and cannot be run from its configuration: "
        "its problem is defined where no other program can import it\n"
    )
    assert told.count("\n") == 1


@pytest.mark.parametrize("x0", [np.ones(3), np.zeros(3, np.float32)], ids=["values", "precision"])
def test_a_start_of_ones_own(x0, tmp_path):
    """Also one that differs in its precision only: the run would be another one."""
    fedzo.minimize(Quadratic(dim=3), x0, rounds=1, algorithm=SMALL, run_dir=tmp_path)
    assert config(tmp_path)["problem"]["python_only"] == "its x0 was given in Python"


def test_the_start_that_it_would_have_anyway(tmp_path):
    fedzo.minimize(Quadratic(dim=3), [0, 0, 0], rounds=1, algorithm=SMALL, run_dir=tmp_path)
    assert "python_only" not in config(tmp_path)["problem"]


def test_a_python_run_resumes_in_python_all_the_same(tmp_path):
    """``python_only`` says that a file cannot start it, not that nobody can."""

    def run(rounds, **options):
        return fedzo.minimize(
            Quadratic(dim=3), np.ones(3), rounds=rounds, algorithm=SMALL, **options
        )

    run(2, run_dir=tmp_path)
    resumed = run(4, run_dir=tmp_path, resume=True)
    assert resumed.last.tobytes() == run(4).last.tobytes()


def test_a_class_without_arguments_takes_none(tmp_path):
    class Still(fedzo.Objective):
        dim, devices = 2, 3

    assert Still().factory_kwargs == {}
    with pytest.raises(TypeError):
        Still(3)
    with pytest.raises(TypeError):
        Still(centre=3)
