"""No live or global state escapes from a run: results, BLAS threads, torch modules."""

import copy
import io
import pickle
import threading
from contextlib import suppress

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import fedzo
from fedzo.models import FunctionModel

torch = pytest.importorskip("torch", exc_type=ImportError)


def bowl(x, device):
    return float(np.sum((x - device) ** 2))


def results(tmp_path):
    yield fedzo.minimize(bowl, np.zeros(2), devices=2)
    yield fedzo.minimize(bowl, np.zeros(2), devices=2, algorithm=fedzo.FedZO(), run_dir=tmp_path)
    model = FunctionModel(lambda batch: batch @ np.ones((4, 2)), input_shape=(4,))
    attack = fedzo.UniversalAttack(model, rounds=2)
    with pytest.warns(fedzo.errors.FedzoWarning):
        attack.fit([np.full((2, 4), 0.5)], 0)
    yield attack.result


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda result: pickle.loads(pickle.dumps(result))]
)
def test_a_result_can_be_copied_and_pickled(again, tmp_path):
    for number, result in enumerate(results(tmp_path / again.__name__)):
        twin = again(result)
        assert twin.problem is None
        assert np.array_equal(twin.x, result.x), number
        assert twin.history == result.history
        assert repr(twin) == repr(result)


def blas_threads():
    info = ThreadpoolController().info()
    return [library["num_threads"] for library in info if library["user_api"] == "blas"]


def test_overlapping_runs_leave_the_threads_of_blas_alone():
    before, began, end = blas_threads(), threading.Barrier(2), threading.Event()

    def first(x, device):
        if not end.is_set():
            began.wait(10)
            end.wait(10)
        return bowl(x, device)

    keywords = {"devices": 1, "rounds": 1, "workers": 1, "algorithm": fedzo.FedZO()}
    thread = threading.Thread(target=fedzo.minimize, args=(first, np.zeros(2)), kwargs=keywords)
    thread.start()
    began.wait(10)

    def second(x, device):  # the first run ends while this one is under way
        end.set()
        thread.join(10)
        return bowl(x, device)

    fedzo.minimize(second, np.zeros(2), **keywords)
    assert blas_threads() == before


class Late:
    """A loss that raises at its k-th call."""

    def __init__(self, k, error):
        self.left, self.error = k, error

    def __call__(self, module, batch):
        self.left -= 1
        if not self.left:
            raise self.error
        return (module(batch[0]) - batch[1]).square().sum(1)


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    return len(file.getvalue())


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_whatever_ends_a_run_the_module_is_whole(in_place, error):
    torch.manual_seed(0)
    inputs = torch.randn(40, 3)
    data = [(inputs[:20], inputs[:20] @ torch.ones(3, 1)), (inputs[20:], inputs[20:, :1])]
    for k in (1, 2, 3, 7, 12, 18, 25, 10**6):
        torch.manual_seed(1)
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        size, models = saved(module), []

        def bits(module=module):
            return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])

        models.append(bits().copy())
        problem = fedzo.TorchProblem(module, Late(k, error), data, in_place=in_place)
        algorithm = fedzo.FedZO(learning_rate=0.05, directions=2, local_steps=2, batch_size=4)
        with suppress(ValueError, fedzo.errors.UserCodeError):
            fedzo.minimize(
                problem,
                algorithm=algorithm,
                rounds=3,
                evaluate_every=1,
                callback=lambda progress, models=models: models.append(progress.x.copy()),
            )
        assert any(np.array_equal(bits(), model) for model in models), k
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
        assert saved(module) <= size + 512
