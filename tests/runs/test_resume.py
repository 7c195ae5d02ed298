"""A run does not depend on workers, kills or resumes; another run is not resumed."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import SMALL, assert_same_files, distance, untimed

import fedzo
from fedzo import FedZO, Ideal, minimize
from fedzo.algorithms import TPE
from fedzo.problems import Quadratic
from fedzo.runs import RunFolder
from fedzo.runs.registry import ALGORITHMS, UPLINKS
from raising import fails


@pytest.mark.parametrize("name", ["quadratic", "softmax"])
def test_workers_do_not_change_a_bit(name, problems, tmp_path):
    results = {}
    for workers in (1, 2, 4):
        results[workers] = minimize(
            problems[name],
            algorithm=SMALL,
            rounds=6,
            workers=workers,
            evaluate_every=2,
            seed=7,
            run_dir=tmp_path / str(workers),
        )
    one = results[1]
    assert np.any(one.last != 0)
    for workers in (2, 4):
        assert one.x.tobytes() == results[workers].x.tobytes()
        assert one.last.tobytes() == results[workers].last.tobytes()
        assert untimed(one.history) == untimed(results[workers].history)
        assert_same_files(tmp_path / "1", tmp_path / str(workers))


def test_another_seed_is_another_run(problems):
    def run(seed):
        return minimize(problems["quadratic"], algorithm=SMALL, rounds=2, seed=seed, workers=1)

    assert run(1).last.tobytes() == run(1).last.tobytes()
    assert not np.allclose(run(1).last, run(2).last)


@pytest.mark.parametrize(
    ("name", "parts", "evaluate_every", "checkpoint_every"),
    [
        ("quadratic", (4, 8), 2, 2),
        ("quadratic", (5, 9), 3, 4),  # stops that are on neither schedule
        ("quadratic", (1, 2, 3, 11), 5, 7),  # and more than one of them
        ("quadratic", (0, 6), 4, 100),
        ("softmax", (3, 5), 2, 2),
    ],
)
def test_resumed_is_the_same_as_at_once(
    name, parts, evaluate_every, checkpoint_every, problems, tmp_path
):
    def run(rounds, folder, resume=False, workers=1):
        return minimize(
            problems[name],
            algorithm=SMALL,
            rounds=rounds,
            seed=3,
            workers=workers,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            run_dir=tmp_path / folder,
            resume=resume,
        )

    at_once = run(parts[-1], "at-once")
    for i, rounds in enumerate(parts):  # with other numbers of workers on the way, too
        resumed = run(rounds, "resumed", resume=i > 0, workers=1 + i % 2)
        assert resumed.nit == rounds
    assert_same_files(tmp_path / "at-once", tmp_path / "resumed")
    assert at_once.x.tobytes() == resumed.x.tobytes()
    assert at_once.last.tobytes() == resumed.last.tobytes()
    assert untimed(at_once.history) == untimed(resumed.history)
    for total in ("queries", "evaluation_queries", "uplink_bytes", "downlink_bytes", "nit", "fun"):
        assert getattr(at_once, total) == getattr(resumed, total)


ANY = Quadratic(dim=6, devices=5)
PARTS = [(kind(), Ideal()) for kind in ALGORITHMS.values()]
PARTS += [
    (FedZO(directions=3, shared_directions=uplink.wants_shared_directions), uplink())
    for uplink in UPLINKS.values()
    if uplink is not Ideal
]


@pytest.mark.parametrize(
    ("algorithm", "uplink"), PARTS, ids=[f"{type(a).__name__}-{type(u).__name__}" for a, u in PARTS]
)
def test_every_algorithm_and_uplink_can_be_resumed(algorithm, uplink, tmp_path):
    """What persists is all in the state, and what a round tells can be written down."""

    def run(folder, rounds, resume=False, workers=1):
        return minimize(
            ANY,
            algorithm=algorithm,
            uplink=uplink,
            rounds=rounds,
            workers=workers,
            evaluate_every=3,
            run_dir=tmp_path / folder,
            resume=resume,
        )

    at_once = run("at-once", 5)
    run("resumed", 2)
    resumed = run("resumed", 5, resume=True, workers=2)
    assert np.any(at_once.last != 0) or isinstance(algorithm, TPE)  # its guesses may be no better
    assert at_once.last.tobytes() == resumed.last.tobytes()
    assert_same_files(tmp_path / "at-once", tmp_path / "resumed")


@settings(max_examples=5, deadline=None, derandomize=True)
@given(data=st.data())
def test_stops_anywhere_do_not_show(data, tmp_path_factory):
    """Like the above for any stops and schedules; stopped by a callback, which draws no line."""
    rounds = data.draw(st.integers(1, 9))
    stops = data.draw(st.lists(st.integers(0, rounds), max_size=3))
    every = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    folder = tmp_path_factory.mktemp("run")

    def run(path, resume, stop):
        return minimize(
            distance,
            np.zeros(3),
            devices=4,
            algorithm=FedZO(learning_rate=0.01, directions=2, local_steps=1),
            rounds=rounds,
            workers=1,
            evaluate_every=every[0],
            checkpoint_every=every[1],
            callback=lambda progress: progress.round >= stop,
            run_dir=path,
            resume=resume,
        )

    run(folder / "at-once", False, rounds + 1)
    for i, stop in enumerate([*stops, rounds + 1]):
        run(folder / "stopped", i > 0, stop)
    assert_same_files(folder / "at-once", folder / "stopped")


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    def run(folder, resume):
        return minimize(
            distance, np.zeros(3), devices=4, rounds=5, workers=1, run_dir=folder, resume=resume
        )

    first = run(tmp_path / "a", False)
    run(tmp_path / "b", False)
    second = run(tmp_path / "a", True)
    assert second.x.tobytes() == first.x.tobytes()
    assert second.last.tobytes() == first.last.tobytes()
    assert second.queries == first.queries
    assert_same_files(tmp_path / "a", tmp_path / "b")


@pytest.mark.pictures
def test_killed_before_the_first_checkpoint(tmp_path):
    def run(folder, resume):
        return minimize(distance, np.zeros(3), devices=4, rounds=3, run_dir=folder, resume=resume)

    run(tmp_path / "a", False)
    run(tmp_path / "b", False)
    for name in ("checkpoint.npz", "model.npy", "curves.png"):
        (tmp_path / "a" / name).unlink()
    (tmp_path / "a" / "history.jsonl").rename(tmp_path / "history.jsonl")
    run(tmp_path / "a", True)
    assert_same_files(tmp_path / "a", tmp_path / "b")


def test_seconds_go_on_after_a_resume(tmp_path):
    seen = []

    def run(rounds, resume):
        minimize(
            distance,
            np.zeros(3),
            devices=4,
            algorithm=FedZO(directions=2, local_steps=1),
            rounds=rounds,
            callback=seen.append,
            run_dir=tmp_path,
            resume=resume,
        )

    run(100, False)
    before, written = RunFolder(tmp_path).load().seconds, len(seen)
    run(101, True)
    assert seen[written].round == 100
    assert seen[written].seconds > before > seen[50].seconds


@pytest.mark.parametrize("problem", ["quadratic", "softmax"])
def test_global_generators_are_neither_read_nor_written(problem, problems):
    def run():
        return minimize(problems[problem], algorithm=SMALL, rounds=2, evaluate_every=1).last

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global one is what must be left alone
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    one = run()
    after = random.getstate(), np.random.get_state()  # noqa: NPY002
    assert before[0] == after[0]
    assert all(np.array_equal(b, a) for b, a in zip(before[1], after[1], strict=True))
    random.seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert one.tobytes() == run().tobytes()


@pytest.fixture
def stopped(tmp_path):
    """A run of 4 rounds, and how to go on with it."""

    def go_on(fun=distance, x0=(0.0, 0.0, 0.0), resume=True, **changed):
        arguments = {
            "devices": 4,
            "rounds": 6,
            "seed": 1,
            "algorithm": FedZO(directions=2, local_steps=1),
            "run_dir": tmp_path / "run",
        } | changed
        return minimize(fun, np.array(x0), resume=resume, **arguments)

    go_on(rounds=4, resume=False)
    return go_on


@pytest.mark.parametrize(
    ("changed", "code", "named"),
    [
        ({"seed": 2}, "other-configuration", "run.seed = 1, now 2"),
        (
            {"algorithm": FedZO(directions=3, local_steps=1)},
            "other-configuration",
            "algorithm.directions = 2, now 3",
        ),
        (
            {"algorithm": FedZO(directions=2, local_steps=1, participants=2)},
            "other-configuration",
            "algorithm.participants = None, now 2",
        ),
        ({"seed": 2, "x0": (0.0, 0.0)}, "other-configuration", "problem.dim = 3, now 2; run.seed"),
        ({"x0": (0.0, 0.0, 1e-9)}, "other-configuration", ""),
        ({"rounds": 3}, "already-run", ""),
        ({"resume": False}, "holds-run", ""),
    ],
)
def test_another_run_is_not_resumed(stopped, changed, code, named, tmp_path):
    files = {p: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with fails(code) as caught:
        stopped(**changed)
    assert named in str(caught.value)
    assert files == {p: p.read_bytes() for p in (tmp_path / "run").iterdir()}


def test_free_settings_may_change_on_resume(stopped):
    result = stopped(evaluate_every=2, checkpoint_every=1, workers=2)
    assert result.nit == 6
    # Round 4 was the first part's last, off its schedule but on this one.
    assert [record["round"] for record in result.history] == [0, 4, 6]


def test_resume_without_a_run(tmp_path):
    with fails("no-run"):
        minimize(distance, np.zeros(3), devices=4, run_dir=tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
    with fails("no-run-dir"):
        minimize(distance, np.zeros(3), devices=4, resume=True)


@pytest.mark.parametrize("kind", ["simulation", "function", "adaptive", "cma", "attack"])
@pytest.mark.parametrize(("first", "every", "saves"), [(3, 4, 10), (5, 2, 3), (1, 5, 1)])
def test_more_rounds_after_an_end_off_the_schedule(kind, first, every, saves, tmp_path):
    """The first end is evaluated off the schedule, and leaves nothing in any file."""
    draws = np.random.default_rng(0)
    weights, parts = draws.normal(size=(16, 3)), list(draws.uniform(size=(3, 6, 16)))
    labels = [(part @ weights).argmax(axis=1) for part in parts]
    fedzo_steps = fedzo.FedZO(learning_rate=0.05, smoothing=0.01, directions=3, local_steps=1)

    def run(name, rounds, resume=False):
        options = {"rounds": rounds, "evaluate_every": every, "checkpoint_every": saves}
        options |= {"run_dir": tmp_path / name, "resume": resume}
        if kind == "attack":
            model = fedzo.models.FunctionModel(lambda batch: batch @ weights, input_shape=(16,))
            attack = fedzo.UniversalAttack(model, algorithm=fedzo_steps, **options)
            attack.fit(parts, labels)
        elif kind == "simulation":
            fedzo.minimize(Quadratic(dim=3, devices=4), algorithm=fedzo_steps, **options)
        else:
            options |= {"method": kind, "max_queries": 900} if kind != "function" else {}
            options |= {"algorithm": fedzo_steps} if kind == "function" else {}
            fedzo.minimize(
                lambda x, i: float(np.sum((x - i) ** 2)), np.ones(3), devices=3, **options
            )

    run("whole", 7)
    run("more", first)
    run("more", 7, resume=True)
    assert everything(tmp_path / "more") == everything(tmp_path / "whole")


def everything(folder):
    """Return the content of all files but pictures, without times."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in (".npy", ".toml") or path.name == "attack.json":
            found[path.name] = path.read_bytes()
        elif path.name == "history.jsonl":
            lines = map(json.loads, path.read_text().splitlines())
            found[path.name] = [{**line, "seconds": 0} for line in lines]
        elif path.name == "checkpoint.npz":
            with np.load(path) as file:
                arrays = {name: file[name] for name in file.files}
            meta = json.loads(str(arrays.pop("meta")))
            del arrays["seal"], meta["seconds"], meta["at"]["digest"]  # which the times are part of
            found[path.name] = meta, {name: array.tobytes() for name, array in arrays.items()}
        else:
            found[path.name] = None
    return found
