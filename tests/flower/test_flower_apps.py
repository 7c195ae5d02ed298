"""The apps as plain callables: what the example in examples/flower-app is made of."""

import importlib
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

import fedzo
from driving import steps_of
from fedzo.config.experiment import Experiment
from fedzo.errors import FedzoError, Halted, UsageError
from fedzo.flower import (
    FedzoStrategy,
    FlowerSettings,
    InProcessGrid,
    make_client_app,
    make_server_app,
)
from fedzo.flower.errors import ErrorCode
from fedzo.flower.policy import held_devices
from fedzo.flower.server import experiment_of
from fedzo.problems import FunctionObjective, Quadratic
from raising import fails, rejects

ALLOWED = {"quadratic": {"devices": 20}, "softmax": {"devices": 50}}
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-app"
QUADRATIC = {"config": "quadratic", "run.rounds": 6, "run.evaluate-every": 3}


def context(run_config, **node_config):
    return Context(1, 0, node_config, RecordDict(), run_config)


def start(run_config, nodes=3, server_app=None, client_app=None):
    grid = InProcessGrid(client_app or make_client_app(ALLOWED), nodes, run_config)
    (server_app or make_server_app())(grid, context(run_config))


def history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_leaves_the_folder_that_fedzo_run_leaves(tmp_path):
    start({**QUADRATIC, "run-dir": str(tmp_path / "there")})
    Experiment.load("quadratic", {"run": {"rounds": 6, "evaluate_every": 3}}).run(tmp_path / "here")
    there, here = tmp_path / "there", tmp_path / "here"
    assert sorted(p.name for p in there.iterdir()) == sorted(p.name for p in here.iterdir())
    assert (there / "config.toml").read_bytes() == (here / "config.toml").read_bytes()
    assert (there / "model.npy").read_bytes() == (here / "model.npy").read_bytes()
    for one, two in zip(history(there), history(here), strict=True):
        assert {key.partition("_")[0] for key in set(one) - set(two)} == {"message", "transport"}
        assert {k: one[k] for k in two if k != "seconds"} == {
            k: v for k, v in two.items() if k != "seconds"
        }


def test_resume(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start({**QUADRATIC, "run-dir": str(whole)})
    start({**QUADRATIC, "run.rounds": 3, "run-dir": str(parts)})
    start({**QUADRATIC, "run-dir": str(parts), "resume": True})
    assert (whole / "model.npy").read_bytes() == (parts / "model.npy").read_bytes()
    assert len(history(parts)) == len(history(whole)) == 3


def test_run_that_halts_is_an_error_to_flower(tmp_path):
    class Leaving(InProcessGrid):
        def get_node_ids(self):
            here = super().get_node_ids()
            return here if not (tmp_path / "history.jsonl").exists() else here[:1]

    settings = {**QUADRATIC, "run-dir": str(tmp_path), "flower.patience": 0.05}
    grid = Leaving(make_client_app(ALLOWED), 4, settings)
    with pytest.raises(Halted):
        make_server_app()(grid, context(settings))
    assert (tmp_path / "checkpoint.npz").exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rounds": 3}, "rounds = 3"),
        ({"run.round": 3}, "did you mean 'rounds'"),
        ({"run.rounds": "3"}, "run.rounds = '3'"),
        ({"problem.name": "softmx"}, "problem.name = 'softmx'"),
    ],
)
def test_bad_run_config(settings, named):
    with pytest.raises(FedzoError) as caught:
        experiment_of({"problem.name": "quadratic", **settings})
    assert named in str(caught.value)


def test_run_config():
    settings = {"config": "softmax", "algorithm.local-steps": 2, "algorithm.participants": ""}
    experiment = experiment_of({**settings, "run-dir": "x", "resume": True})
    assert experiment.algorithm == fedzo.FedZO(local_steps=2, participants=20)
    assert experiment_of({"problem.name": "quadratic"}).algorithm == fedzo.FedZO()


@pytest.mark.parametrize("devices", ["0-x", "0-9", "0-99999999999999", "3-1", "3-", ""])
def test_bad_list_of_devices(devices):
    with rejects("devices"):
        held_devices({"devices": devices}, 5)


@pytest.mark.parametrize("config", [{}, {"partition-id": 3, "num-partitions": 3}])
def test_node_without_devices(config):
    with fails("no-devices", UsageError):
        held_devices(config, 5)


def test_parts_are_all_devices_once():
    parts = [held_devices({"partition-id": p, "num-partitions": 4}, 10) for p in range(4)]
    assert sorted(i for part in parts for i in part) == list(range(10))


def test_node_answers_for_its_own_devices_only():
    from flwr.app import Message

    from fedzo.flower import protocol
    from fedzo.flower.errors import explain

    problem = Quadratic(dim=3, devices=6)
    grid = InProcessGrid(make_client_app(lambda c: problem), 3)
    work = steps_of(fedzo.FedZO(), np.zeros(3), round=0, seed=0)
    message = Message(protocol.task(protocol.pack(work), [1, 2], False), 1, protocol.TRAIN)
    (reply,) = grid.send_and_receive([message])
    told = protocol.read_answer(reply.content, asked=2)
    assert [update.device for update in told.updates] == [1]
    assert explain(told.failures[2]).words == ErrorCode.NOT_HELD.words


def test_strategy(tmp_path):
    problem = Quadratic(dim=3, devices=4, gradient_noise=0.0)
    grid = InProcessGrid(make_client_app(lambda c: problem), 2)
    algorithm = fedzo.FedZO(learning_rate=0.2, directions=3, direction_kind="orthogonal")
    x0 = np.full(3, 0.5)

    def distance(server_round, arrays):
        away = arrays.to_numpy_ndarrays()[0] - problem.optimum
        return MetricRecord({"distance": float(np.linalg.norm(away))})

    settings = FlowerSettings(clip=False)  # four devices in three dimensions differ that much
    strategy = FedzoStrategy(algorithm, fedzo.Seeds(), 3, settings, run_dir=tmp_path)
    result = strategy.start(grid, ArrayRecord([x0]), num_rounds=4, evaluate_fn=distance)
    here = fedzo.minimize(problem, x0, algorithm=algorithm, seed=3, rounds=4, evaluate_every=1)
    (found,) = result.arrays.to_numpy_ndarrays()
    assert np.array_equal(found, here.x)
    losses = [result.evaluate_metrics_clientapp[t]["train_loss"] for t in range(5)]
    assert losses == [record["train_loss"] for record in here.history]
    assert result.evaluate_metrics_serverapp[4]["distance"] == pytest.approx(
        np.linalg.norm(here.x - problem.optimum), rel=1e-12
    )
    assert (tmp_path / "model.npy").exists()


@pytest.mark.parametrize(
    ("arrays", "key"),
    [
        ([np.zeros(2)], "initial_arrays"),
        ([np.zeros(3), np.zeros(3)], "initial_arrays"),
        ([np.zeros(3, int)], "initial_arrays"),
        ([np.full(3, np.nan)], "x0"),
    ],
)
def test_bad_start(arrays, key):
    grid = InProcessGrid(make_client_app(lambda c: Quadratic(dim=3, devices=4)), 2)
    with rejects(key):
        FedzoStrategy().start(grid, ArrayRecord(arrays), num_rounds=1)


def test_strategy_takes_a_state_dict_and_returns_one():
    problem = Quadratic(dim=6, devices=4, gradient_noise=0.0)
    grid = InProcessGrid(make_client_app(lambda c: problem), 2)
    state = {
        "layer.weight": np.full((2, 2), 0.5, np.float32),
        "layer.count": np.array(7),
        "layer.bias": np.full(2, -0.5, np.float32),
    }
    record = ArrayRecord({name: Array(array) for name, array in state.items()})
    seen = []
    strategy = FedzoStrategy(fedzo.FedZO(learning_rate=0.05), settings=FlowerSettings(clip=False))
    result = strategy.start(
        grid, record, 2, 3600.0, ConfigRecord(), ConfigRecord(), lambda t, a: seen.append(list(a))
    )
    found = {name: array.numpy() for name, array in result.arrays.items()}
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {
        k: (v.shape, v.dtype) for k, v in state.items()
    }
    assert seen[-1] == list(state)
    x0 = np.concatenate([state["layer.weight"].ravel(), state["layer.bias"]])
    here = fedzo.minimize(problem, x0, algorithm=strategy.algorithm, rounds=2, evaluate_every=1)
    both = np.concatenate([found["layer.weight"].ravel(), found["layer.bias"]])
    assert np.array_equal(both, here.x)
    assert found["layer.count"] == 7


def test_strategy_refuses_a_seed_that_is_none():
    grid = InProcessGrid(make_client_app(lambda c: Quadratic(dim=3, devices=4)), 2)
    with rejects("seed"):
        FedzoStrategy(seed="x").start(grid)


def _fails(x, device):
    raise OSError("no instrument")


def _squares(x, device):
    return float(np.sum((x - device) ** 2))


@pytest.mark.parametrize("bad", [1, 2, 3, 4])
def test_strategy_returns_the_arrays_whatever_nodes_do(bad, tmp_path):
    """Of four nodes with a device each; two are a quorum."""

    def some(x, device):
        return _fails(x, device) if device < bad else _squares(x, device)

    objective = FunctionObjective(some, dim=2, devices=4)
    grid = InProcessGrid(make_client_app(lambda c: objective), 4)
    algorithm = fedzo.FedZO(learning_rate=0.05, direction_kind="orthogonal", directions=2)
    strategy = FedzoStrategy(algorithm, run_dir=tmp_path)
    start = ArrayRecord({"x": Array(np.full(2, 9.0))})
    result = strategy.start(grid, start, num_rounds=40)
    assert result.success == (bad <= 2)
    assert {one["device"] for one in result.dropped} == (set(range(bad)) if bad < 4 else set())
    mean = np.mean(range(bad, 4)) if bad < 4 else 9.0  # of the others
    assert np.allclose(result.arrays["x"].numpy(), mean, atol=0.05)
    assert (tmp_path / "checkpoint.npz").exists()


def test_factory_that_is_none():
    with rejects("problem"):
        make_client_app(5)
    grid = InProcessGrid(make_client_app(lambda c: 5), 2)
    with fails("no-quorum", Halted) as caught:
        FedzoStrategy(settings=FlowerSettings(patience=0.02)).start(grid)
    assert ErrorCode.CANNOT_BEGIN.words in str(caught.value)


# --------------------------------------------------------------------------- the example


@pytest.fixture
def example(monkeypatch):
    """Return the example's apps and its run configuration, flat as Flower hands it over."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    flat = {}
    for key, value in project["config"].items():
        inner = value if isinstance(value, dict) else None
        flat.update({f"{key}.{k}": v for k, v in inner.items()} if inner else {key: value})
    apps = []
    for side in ("serverapp", "clientapp"):
        module, _, name = project["components"][side].partition(":")
        apps.append(getattr(importlib.import_module(module), name))
    yield (*apps, flat)
    for name in [name for name in sys.modules if name.startswith("fedzo_app")]:
        del sys.modules[name]


def test_example_trains_softmax(example, tmp_path):
    server, client, settings = example
    start({**settings, "run-dir": str(tmp_path)}, 3, server, client)
    first, last = history(tmp_path)
    assert last["train_loss"] < first["train_loss"] - 0.05
    assert last["participants"] == 20


def test_example_tunes_a_black_box(example, tmp_path):
    server, client, settings = example
    own = {
        "config": "",
        "problem.name": "fedzo_app.black_box:problem",
        "problem.devices": 3,
        "algorithm.participants": "",
        "algorithm.learning-rate": 0.01,
        "run-dir": str(tmp_path),
    }
    start({**settings, **own}, 3, server, client)
    first, last = history(tmp_path)
    assert last["train_loss"] < 0.5 * first["train_loss"]


def test_budget_is_refused_where_it_could_not_be_kept():
    from fedzo.flower.simulation import simulation

    experiment = Experiment.load("tuning", {"problem": {"max_queries": 100}})
    with fails("budget-on-flower", UsageError):
        experiment.run(engine=simulation(experiment))


def test_resume_is_true_or_false():
    with rejects("resume"):
        start({**QUADRATIC, "resume": "false"})
