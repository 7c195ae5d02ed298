"""x, moments and directions on the module's device: as NumPy's kernels have them, bit for bit.

No accelerator is needed: what is done there is done here on a CPU's tensors.
"""

import numpy as np
import pytest

import fedzo
from fedzo.server import Adagrad, Adam, Momentum, Normalised, SignMomentum, Yogi

torch = pytest.importorskip("torch")

from fedzo.core import updates_torch  # noqa: E402
from fedzo.core.updates_torch import DeviceArray  # noqa: E402

ACCELERATORS = [
    pytest.param(kind, marks=pytest.mark.skipif(not there, reason=f"no {kind} device here"))
    for kind, there in (
        ("cuda", torch.cuda.is_available()),
        ("mps", torch.backends.mps.is_available()),
    )
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Take the path of an accelerator on a CPU's tensors."""

    def switch():
        monkeypatch.setattr(updates_torch, "_ON_DEVICE", 1 << 12)
        for module in (updates_torch, fedzo.problems.network_points):
            monkeypatch.setattr(module, "has_kernels", lambda tensor: False)

    import fedzo.problems.network_points

    return switch


def loss(module, batch):
    found = module(batch[0].to(next(module.parameters()).dtype))
    return torch.nn.functional.cross_entropy(found.double(), batch[1], reduction="none")


def problem(dtype=torch.float32, device=None, in_place=True):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 5))
    inputs = torch.randn(90, 20, generator=torch.Generator().manual_seed(1))
    data = [(inputs[i::3], inputs[i::3, :5].argmax(1)) for i in range(3)]
    return fedzo.TorchProblem(module.to(dtype), loss, data, in_place=in_place, device=device)


RUNS = {
    "mean": {},
    "sphere": {"direction_kind": "sphere"},
    "shared": {"shared_directions": True, "local_steps": 3},
    "central": {"difference": "central", "weighting": "size", "participants": 2},
    "axes": {"direction_kind": "orthogonal"},
    "fixed": {"fixed_directions": 12},
    "momentum": {"server": Momentum()},
    "adam": {"server": Adam(0.01)},
    "auto": {"server": Adam("auto"), "smoothing": 0.03},
    "yogi": {"server": Yogi(0.01)},
    "adagrad": {"server": Adagrad(0.01)},
    "sign": {"server": SignMomentum(0.001, 0.001, beta=0.0)},
    "normalised": {"server": Normalised(0.05)},
}


def run(problem, name="mean", uplink=None, **more):
    kind = {"directions": 3, "local_steps": 1, "direction_kind": "rademacher", "batch_size": 8}
    algorithm = fedzo.FedZO(learning_rate=0.05, **kind | RUNS[name])
    options = {"rounds": 7, "evaluate_every": 2, "seed": 3} | more
    return fedzo.minimize(problem, algorithm=algorithm, uplink=uplink or fedzo.Seeds(), **options)


def history(result):
    return [{k: v for k, v in one.items() if k != "seconds"} for one in result.history]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_on_a_device_is_the_run_of_the_kernels(name, dtype, as_on_a_device):
    expected = run(problem(dtype), name)
    as_on_a_device()
    there = problem(dtype)
    assert isinstance(there.initial(), DeviceArray)
    found = run(there, name)
    if dtype == torch.float64 and isinstance(RUNS[name].get("server"), Adam):
        # torch's float64 root on a CPU may be off by a unit; float32 moments and x hide that.
        np.testing.assert_allclose(found.x, expected.x, rtol=1e-9)
        return
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.last, expected.last)
    assert history(found) == history(expected)
    own = torch.cat([one.detach().reshape(-1) for one in there.module.parameters()])
    assert torch.equal(own, torch.tensor(found.x).to(dtype))


@pytest.mark.parametrize("algorithm", [
    fedzo.FedAvg(batch_size=8, learning_rate=0.05),
    fedzo.FedProx(batch_size=8, learning_rate=0.05, server=Adam(0.01)),
    fedzo.Scaffold(batch_size=8, learning_rate=0.05, participants=2),
    fedzo.ZOSGD(),
])  # fmt: skip
def test_other_algorithms_run_there_too(algorithm, as_on_a_device):
    expected = fedzo.minimize(problem(), algorithm=algorithm, rounds=4, seed=1)
    as_on_a_device()
    found = fedzo.minimize(problem(), algorithm=algorithm, rounds=4, seed=1)
    np.testing.assert_array_equal(found.x, expected.x)
    assert history(found) == history(expected)


@pytest.mark.parametrize("uplink", [fedzo.Ideal(), fedzo.AirComp(snr_db=0), fedzo.Robust()])
def test_every_uplink_takes_what_is_there(uplink, as_on_a_device):
    expected = run(problem(), uplink=uplink)
    as_on_a_device()
    np.testing.assert_array_equal(run(problem(), uplink=uplink).x, expected.x)


def test_a_run_there_is_saved_resumed_and_has_files(as_on_a_device, tmp_path):
    whole = run(problem(), "adam")
    as_on_a_device()
    run(problem(), "adam", run_dir=tmp_path / "run", callback=lambda progress: progress.round == 3)
    again = run(problem(), "adam", run_dir=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(again.last, whole.last)
    assert history(again) == history(whole)
    assert isinstance(again.x, np.ndarray)
    np.testing.assert_array_equal(np.load(tmp_path / "run" / "model.npy"), whole.last)


@pytest.mark.parametrize(
    ("server", "copied_by_a_round"), [(Adam(0.01), {0}), (Adam("auto"), {0, 1})]
)
def test_nothing_of_the_models_size_leaves_the_device(
    server, copied_by_a_round, as_on_a_device, monkeypatch
):
    """Of x and the moments only: an evaluation and a checkpoint copy x, and a round does not.

    A probe of the server's rate keeps x in a file, to return to it.
    """
    as_on_a_device()
    copies, original = [], DeviceArray.__array__

    def copied(self, dtype=None, copy=None):
        copies.append(self.size)
        return original(self, dtype)

    one = problem()
    task = fedzo.FedZO(
        learning_rate=0.05, local_steps=2, direction_kind="rademacher", server=server
    )
    rounds = []

    def stop(progress):
        if not rounds:
            monkeypatch.setattr(DeviceArray, "__array__", copied)
        rounds.append(len([size for size in copies if size > 1]))

    fedzo.minimize(one, algorithm=task, uplink=fedzo.Seeds(), rounds=6, evaluate_every=6,
                   callback=stop)  # fmt: skip
    by_callback = 1
    assert set(np.diff(rounds[1:-1]) - by_callback) == copied_by_a_round


@pytest.mark.parametrize("kind", ACCELERATORS)
@pytest.mark.parametrize("name", ["mean", "adam", "auto"])
def test_an_accelerator_learns_as_the_cpu_does(kind, name):
    """Directions are the same to the bit; losses differ in the last digits of a pass."""
    here = run(problem(in_place=None), name)
    there = run(problem(in_place=None, device=kind), name)
    np.testing.assert_allclose(there.x, here.x, rtol=1e-2, atol=1e-3)
    step = fedzo.core.updates.DirectionSum.of(
        "gaussian", 9000, [fedzo.random.Draws(1, fedzo.random.Stream.DIRECTIONS)],
        np.array([[0.3, 0.1]], np.float32),
    )  # fmt: skip
    drawn = torch.zeros(9000, device=kind)
    updates_torch.add_to(step, drawn)
    np.testing.assert_array_equal(drawn.cpu().numpy(), np.asarray(step, np.float32))
