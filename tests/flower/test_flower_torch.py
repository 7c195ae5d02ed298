"""Torch modules on Flower: the quickstart by FedAvg and by FedZO, and a module that is followed."""

import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

import fedzo
from fedzo.flower import FedzoStrategy, FlowerSettings, InProcessGrid, torch_client
from fedzo.flower.protocol import object_sizes
from raising import rejects

torch = pytest.importorskip("torch")

QUICKSTART = Path(__file__).parents[2] / "examples" / "flower-pytorch"


def changed_lines(sign):
    lines = (QUICKSTART / "fedzo.patch").read_text().splitlines()
    return [line for line in lines if line.startswith(sign) and not line.startswith(3 * sign)]


@pytest.mark.parametrize("strategy", ["FedAvg", "FedZO"])
def test_quickstart(strategy, tmp_path, monkeypatch):
    """The same app, on the same data, with a patch of fifteen lines at most."""
    shutil.copytree(QUICKSTART, tmp_path, dirs_exist_ok=True)
    if strategy == "FedZO":
        assert len(changed_lines("+") + changed_lines("-")) <= 15
        patch = (QUICKSTART / "fedzo.patch").read_text()
        subprocess.run(["patch", "-p1", "-s"], input=patch, text=True, cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        monkeypatch.delitem(sys.modules, name)
    app = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (_attribute(app["components"][part]) for part in ("serverapp", "clientapp"))
    settings = {**app["config"], "num-server-rounds": 1}
    grid = InProcessGrid(client, 2, settings)
    torch.manual_seed(0)
    server(grid, Context(1, 0, {}, RecordDict(), settings))
    task = import_module("quickstart.task")
    trained, fresh = task.Net(), task.Net()
    trained.load_state_dict(torch.load("final_model.pt"))
    loader = task.load_data(0, 1, 256)[0]
    assert task.test(trained, loader)[0] < task.test(fresh, loader)[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        monkeypatch.delitem(sys.modules, name)


def _attribute(reference):
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def squared_error(module, batch):
    return (module(batch[0]) - batch[1]).square().sum(1)


def line(device, devices):
    inputs = torch.linspace(-1, 1, 40)[device::devices, None]
    return inputs, 2 * inputs + 1


def pretrained():
    module = torch.nn.Sequential(torch.nn.Linear(1, 200), torch.nn.Tanh(), torch.nn.Linear(200, 1))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
    return module


ALGORITHM = fedzo.FedZO(learning_rate=1e-3, directions=2, local_steps=2, shared_directions=True)


def test_a_module_is_trained_as_in_one_process_and_never_sent():
    """To the bit: server and nodes rebuild what a device draws number by number."""
    told = []

    class Listening(InProcessGrid):
        def push_messages(self, messages):
            told.extend(messages := list(messages))
            return super().push_messages(messages)

    grid = Listening(torch_client(pretrained, squared_error, line), 3)
    strategy = FedzoStrategy(ALGORITHM, fedzo.Seeds(), settings=FlowerSettings(clip=False))
    module = pretrained()
    result = strategy.start(grid, ArrayRecord(module.state_dict()), num_rounds=5)
    data = [line(device, 3) for device in range(3)]
    problem = fedzo.TorchProblem(pretrained(), squared_error, data)
    here = fedzo.minimize(problem, algorithm=ALGORITHM, uplink=fedzo.Seeds(), rounds=5)
    module.load_state_dict(result.arrays.to_torch_state_dict())
    found = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    assert np.array_equal(found.numpy(), here.x)
    assert result.train_metrics_clientapp[5]["participants"] == 3
    assert not any(message.content.array_records for message in told)
    assert max(sum(object_sizes(message)) for message in told) < 2000


def test_only_what_is_trained_is_a_part_of_x():
    def module():
        torch.manual_seed(0)
        made = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4))
        return torch.nn.Sequential(made, torch.nn.Linear(4, 1))

    grid = InProcessGrid(torch_client(module, squared_error, line, "1.*"), 2)
    arrays = ArrayRecord(module().state_dict())
    with rejects("initial_arrays"):
        FedzoStrategy(ALGORITHM).start(grid, arrays, 1)
    slow = replace(ALGORITHM, learning_rate=1e-4)
    result = FedzoStrategy(slow, trainable=["1.*"]).start(grid, arrays, 1)
    state = module()
    state.load_state_dict(result.arrays.to_torch_state_dict())
    frozen = "0.0.weight"
    assert np.array_equal(result.arrays[frozen].numpy(), arrays[frozen].numpy())
    with rejects("trainable"):
        FedzoStrategy(ALGORITHM, trainable=["1.wieght"]).start(grid, arrays, 1)


def test_train_config_sets_the_algorithm_s_numbers(caplog):
    problem = fedzo.FunctionObjective(lambda x, device: float(x @ x), 2, devices=2)
    from fedzo.flower import make_client_app

    grid = InProcessGrid(make_client_app(lambda context: problem), 2)
    start = ArrayRecord({"x": Array(np.ones(2))})
    given = ConfigRecord({"lr": 0.2, "local-steps": 1, "local-epochs": 3})
    strategy = FedzoStrategy(fedzo.FedZO(direction_kind="coordinate", directions=2))
    result = strategy.start(grid, start, 2, 60.0, given, ConfigRecord({"fraction": 0.5}))
    right = fedzo.FedZO(direction_kind="coordinate", directions=2, learning_rate=0.2, local_steps=1)
    here = fedzo.minimize(problem, np.ones(2), algorithm=right, rounds=2, evaluate_every=1)
    assert np.array_equal(result.arrays["x"].numpy(), here.x)
    warned = [record.getMessage() for record in caplog.records]
    assert any("train_config" in one and "local-epochs" in one for one in warned)
    assert any("evaluate_config" in one and "fraction" in one for one in warned)


# --------------------------------------------------------------------------- Flower Datasets


def digits():
    """Return inputs and labels as a data set of Hugging Face, whose rows are tensors."""
    datasets = pytest.importorskip("datasets", reason="needs flwr-datasets")
    draws = np.random.default_rng(5)
    labels = draws.integers(0, 3, 120)
    inputs = draws.normal(size=(120, 4)) + labels[:, None]
    rows = {"inputs": inputs.astype(np.float32), "label": labels}
    return datasets.Dataset.from_dict(rows).with_format("torch")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("IidPartitioner", {"num_partitions": 6}),
        ("DirichletPartitioner", {"num_partitions": 6, "alpha": 0.5, "partition_by": "label"}),
        ("PathologicalPartitioner",
         {"num_partitions": 6, "partition_by": "label", "num_classes_per_partition": 2}),
        ("SizePartitioner", {"partition_sizes": [10, 20, 30, 40, 10, 10]}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The specified min_partition_size")
def test_partitioners_of_flower_datasets(kind, options):
    partitioners = pytest.importorskip(
        "flwr_datasets.partitioner", reason="needs flwr-datasets: pip install flwr-datasets"
    )
    partitioner = getattr(partitioners, kind)(**options)
    partitioner.dataset = digits()

    def loss(module, batch):
        return torch.nn.functional.cross_entropy(
            module(batch["inputs"]), batch["label"], reduction="none"
        )

    torch.manual_seed(0)
    start = torch.nn.Linear(4, 3).state_dict()
    app = torch_client(lambda: torch.nn.Linear(4, 3), loss, partitioner)
    grid = InProcessGrid(app, nodes=2)  # three devices each
    strategy = FedzoStrategy(fedzo.FedZO(learning_rate=0.05, directions=6), fedzo.Seeds())
    result = strategy.start(grid, ArrayRecord(start), num_rounds=4)
    assert result.success
    losses = [m["train_loss"] for m in result.evaluate_metrics_clientapp.values()]
    module = torch.nn.Linear(4, 3)
    module.load_state_dict(start)
    with torch.no_grad():  # the mean over devices of their own mean loss
        parts = [partitioner.load_partition(i) for i in range(6)]
        own = [loss(module, {"inputs": p["inputs"][:], "label": p["label"][:]}) for p in parts]
    assert losses[0] == pytest.approx(float(np.mean([one.mean() for one in own])), rel=1e-5)
    assert losses[-1] < losses[0]


class Halves:
    """A partitioner without the library: two devices."""

    num_partitions = 2

    def load_partition(self, partition_id):
        inputs = torch.linspace(-1, 1, 20)[partition_id::2, None]
        return inputs, 2 * inputs


def test_a_partitioner_gives_the_number_of_devices():
    def loss(module, batch):
        return (module(batch[0]) - batch[1]).square().sum(1)

    grid = InProcessGrid(torch_client(lambda: torch.nn.Linear(1, 1), loss, Halves()), nodes=1)
    result = FedzoStrategy(fedzo.FedZO()).start(grid, num_rounds=1)
    assert result.train_metrics_clientapp[1]["participants"] == 2
