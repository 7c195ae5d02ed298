"""Every kind of module: one run in place and with a copy, and x^t in the module after any error."""

import contextlib
import io

import numpy as np
import pytest

import fedzo
from raising import fails, rejects

torch = pytest.importorskip("torch")
from fedzo.optim import ZO  # noqa: E402 - needs torch

nn, F = torch.nn, torch.nn.functional
FEDZO = fedzo.FedZO(learning_rate=0.05, directions=2, batch_size=4, local_steps=2)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Wrapped(nn.Module):
    """A module with parts, and a forward of the test."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


def weight(*shape):
    return nn.Parameter(torch.randn(*shape))


def recurrent(kind, **options):
    def run(module, x):
        return module.out(module.cells(x[:, None].repeat(1, 3, 1))[0][:, -1])

    cells = kind(6, 8, num_layers=2, batch_first=True, bidirectional=True, **options)
    return Wrapped(run, cells=cells, out=nn.Linear(2 * (options.get("proj_size") or 8), 3))


def transformer():
    def run(module, x):
        ids = (2 * x.abs()).long().clamp(max=9)
        return module.out(module.layers(module.embed(ids))[:, 0])[:, :3]

    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    embed, out = nn.Embedding(10, 8, padding_idx=0), nn.Linear(8, 10, bias=False)
    out.weight = embed.weight  # tied
    return Wrapped(run, embed=embed, layers=nn.TransformerEncoder(layer, 2), out=out)


def embedding(kind=nn.Embedding, **options):
    def run(module, x):
        return module.out(module.embed((2 * x.abs()).long().clamp(max=9)).flatten(1))

    width = 8 if kind is nn.EmbeddingBag else 48
    return Wrapped(run, embed=kind(10, 8, **options), out=nn.Linear(width, 3))


def convolution(dimensions):
    layer, back = [
        (nn.Conv1d, nn.ConvTranspose1d),
        (nn.Conv2d, nn.ConvTranspose2d),
        (nn.Conv3d, nn.ConvTranspose3d),
    ][dimensions - 1]

    def run(module, x):
        return module.layers(x[:, None].reshape(len(x), 1, -1, *[1] * (dimensions - 1)))

    layers = layer(1, 2, 1), nn.GroupNorm(1, 2), nn.Tanh(), back(2, 2, 1)
    return Wrapped(run, layers=nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 3)))


def experts():
    """Each sample goes to one expert; some have none."""

    def run(module, x):
        which = module.gate(x).argmax(1)
        rows = [module.experts[int(i)](one) for i, one in zip(which, x, strict=True)]
        return module.out(torch.stack(rows).tanh())

    parts = nn.ModuleList(nn.Linear(6, 8) for _ in range(4))
    return Wrapped(run, gate=nn.Linear(6, 4), experts=parts, out=nn.Linear(8, 3))


def plain():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def changed(change):
    module = plain()
    return change(module) or module


def frozen(module):
    module[0].requires_grad_(False)


def lora(module):
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(module, peft.LoraConfig(target_modules=["0", "2"], r=2))


def on_one_storage():
    flat = torch.randn(72)
    a, b = nn.Parameter(flat[:48].view(8, 6)), nn.Parameter(flat[48:].view(3, 8))
    return Wrapped(lambda module, x: (x @ module.a.t()).tanh() @ module.b.t(), a=a, b=b)


def odd_shapes():
    """No numbers, a scalar, a transposed matrix, and another order of memory."""

    def run(module, x):
        image = module.image(x[:, None, None]).mean((1, 2, 3))[:, None]
        return module.scale * F.linear(x, module.matrix) + module.none.sum() + image * x[:, :3]

    image = nn.Conv2d(1, 2, 1).to(memory_format=torch.channels_last)
    parts = {"none": weight(0, 3), "scale": nn.Parameter(torch.tensor(1.5))}
    return Wrapped(run, matrix=nn.Parameter(torch.randn(6, 3).t()), image=image, **parts)


def read_outside():
    """Parameters that are read outside of their own layer, while others run."""

    def run(module, x):
        return module.b(module.a(x) + F.linear(x, module.a.weight)) + F.linear(x, module.b.weight)

    return Wrapped(run, a=nn.Linear(6, 6), b=nn.Linear(6, 3))


def changing():
    """A module that changes its parameters while it runs."""

    def run(module, x):
        with torch.no_grad():
            module.gain.mul_(1.01)
            module.out.weight.add_(0.01)
        return module.out(x) * module.gain

    return Wrapped(run, out=nn.Linear(6, 3), gain=nn.Parameter(torch.ones(3)))


def random():
    """A module that is random in evaluation mode, too."""
    return Wrapped(
        lambda module, x: module.out(F.dropout(x + torch.randn_like(x), 0.2)), out=nn.Linear(6, 3)
    )


def in_lists():
    def run(module, x):
        for part in module.parts:
            x = (x @ part).tanh()
        return x @ module.named["out"]

    parts = nn.ParameterList([weight(6, 6), weight(6, 6)])
    return Wrapped(run, parts=parts, named=nn.ParameterDict({"out": weight(6, 3)}))


MODULES = {
    "rnn": lambda: recurrent(nn.RNN),
    "gru": lambda: recurrent(nn.GRU),
    "lstm": lambda: recurrent(nn.LSTM),
    "lstm, projected": lambda: recurrent(nn.LSTM, proj_size=4),
    "transformer, tied": transformer,
    "sparse embedding": lambda: embedding(sparse=True, padding_idx=0),
    "bag of embeddings": lambda: embedding(nn.EmbeddingBag, mode="sum"),
    "embedding with max_norm": lambda: embedding(max_norm=0.5),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    "batch norm of the batch": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)
    ),
    "conv1d": lambda: convolution(1),
    "conv2d": lambda: convolution(2),
    "conv3d": lambda: convolution(3),
    "weight_norm": lambda: changed(lambda m: nn.utils.parametrizations.weight_norm(m[0]) and None),
    "spectral_norm": lambda: changed(
        lambda m: nn.utils.parametrizations.spectral_norm(m[0]) and None
    ),
    "orthogonal": lambda: changed(lambda m: nn.utils.parametrizations.orthogonal(m[0]) and None),
    "adapters": lambda: changed(lora),
    "frozen trunk": lambda: changed(frozen),
    "experts": experts,
    "one storage": on_one_storage,
    "odd shapes": odd_shapes,
    "read outside": read_outside,
    "changing": changing,
    "random": random,
    "lists": in_lists,
    "data parallel": lambda: changed(nn.DataParallel),
    "compiled": lambda: changed(lambda m: torch.compile(m, backend="eager")),
    "compiled ahead of time": lambda: changed(lambda m: torch.compile(m, backend="aot_eager")),
    "scripted": lambda: changed(torch.jit.script),
    "traced": lambda: changed(lambda m: torch.jit.trace(m, torch.zeros(2, 6))),
    "checkpointed": lambda: Wrapped(
        lambda module, x: torch.utils.checkpoint.checkpoint(module.out, x, use_reentrant=False),
        out=plain(),
    ),
    "functional": lambda: Wrapped(
        lambda module, x: torch.func.functional_call(
            module.out, dict(module.out.named_parameters()), (x,)
        ),
        out=nn.Linear(6, 3),
    ),
}
EVERY = pytest.mark.parametrize("name", MODULES)
pytestmark = pytest.mark.filterwarnings("ignore")


def made(name, dtype=torch.float64):
    torch.manual_seed(0)
    return MODULES[name]().eval().to(dtype)


def data(dtype=torch.float64):
    found = []
    for i in range(3):
        g = torch.Generator().manual_seed(i)
        inputs = torch.randn(18, 6, generator=g).to(dtype)
        found.append((inputs, torch.randint(3, (18,), generator=g)))
    return found


def loss(module, batch):
    return F.cross_entropy(module(batch[0]), batch[1], reduction="none")


def state(module):
    return {name: one.detach().clone() for name, one in module.named_parameters()}


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def hooks(module):
    return [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in module.modules()]


@EVERY
def test_in_place_and_with_a_copy_are_one_run_that_trains_every_parameter(name):
    """In float64 the two differ by the rounding of sums."""
    found = []
    for in_place in (False, True):
        module = made(name)
        before, counts = state(module), hooks(module)
        problem = fedzo.TorchProblem(module, loss, data(), in_place=in_place)
        result = fedzo.minimize(problem, algorithm=FEDZO, rounds=3, evaluate_every=1)
        found.append((np.array(result.last), [one["train_loss"] for one in result.history]))
        assert hooks(module) == counts
        problem.place(result.last)
        after = state(module)
        for key, parameter in module.named_parameters():
            trained = parameter.requires_grad and parameter.numel()
            assert torch.equal(before[key], after[key]) != bool(trained), key
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-6)


@EVERY
@pytest.mark.parametrize("in_place", [False, True])
def test_after_an_error_at_any_call_the_module_is_one_of_the_run(name, in_place):
    """Bit for bit x^t of the run without an error; calls 1 to 24 are those of two rounds."""

    def run(module, loss, reached):
        problem = fedzo.TorchProblem(module, loss, data(torch.float32), in_place=in_place)
        settings = {"algorithm": FEDZO, "rounds": 2, "evaluate_every": 1}
        fedzo.minimize(problem, callback=lambda _: reached.append(state(module)), **settings)

    module = made(name, torch.float32)
    reached = [state(module)]
    run(module, loss, reached)
    errors = (RuntimeError, KeyboardInterrupt)
    for error, call in zip(errors * 3, (1, 2, 3, 8, 15, 24), strict=True):
        module, calls = made(name, torch.float32), []
        counts, file, again = hooks(module), io.BytesIO(), io.BytesIO()
        torch.save(module.state_dict(), file)

        def breaks(module, batch, calls=calls, call=call, error=error):
            calls.append(1)
            losses = loss(module, batch)
            if len(calls) == call:
                raise error("now")
            return losses

        with contextlib.suppress(error):
            run(module, breaks, [])
        assert len(calls) >= call
        assert any(equal(state(module), one) for one in reached), call
        assert hooks(module) == counts
        torch.save(module.state_dict(), again)
        assert abs(again.tell() - file.tell()) < 500


# The others change their parameters themselves in a pass.
@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"changing", "embedding with max_norm"}))
def test_the_optimizer_trains_every_parameter_and_restores_them_after_an_error(name):
    module, batch, calls = made(name), data()[0], []
    before = state(module)
    optimizer = ZO(module.parameters(), lr=0.01, directions=2)
    optimizer.step(lambda: loss(module, batch).mean())
    after = state(module)
    for key, parameter in module.named_parameters():
        trained = parameter.requires_grad and parameter.numel()
        assert torch.equal(before[key], after[key]) != bool(trained), key

    def breaks():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return loss(module, batch).mean()

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(breaks)
    assert equal(state(module), after)


def test_random_numbers_are_a_function_of_the_batch():
    """So the two points of a slope differ by their perturbation only, and a run repeats itself."""
    found = []
    for seed in (1, 2):
        module = made("random")
        torch.manual_seed(seed)
        problem = fedzo.TorchProblem(module, loss, data())
        result = fedzo.minimize(problem, algorithm=FEDZO, rounds=5, evaluate_every=1)
        found.append([one["train_loss"] for one in result.history])
        at = fedzo.random.Draws(0, fedzo.random.Stream.BATCHES)
        x, batch = problem.initial(), problem.batch(0, 9, at)
        one, same = problem.values(np.array([x, x]), batch)
        other = problem.values(x[None], problem.batch(0, 9, at._replace(round=1)))[0]
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)
        assert torch.initial_seed() == seed  # the user's generator is not touched
    assert found[0] == found[1]
    assert max(found[0]) < 2 * found[0][0]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_parameter_that_the_module_replaces_is_rejected_and_put_back(in_place):
    def run(module, x):
        losses = module.out(x) * module.gain
        module.gain = nn.Parameter(module.gain.detach() * 1.01)
        return losses

    module = Wrapped(run, out=nn.Linear(6, 3), gain=nn.Parameter(torch.ones(3))).double()
    before, own = state(module), module.gain
    problem = fedzo.TorchProblem(module, loss, data(), in_place=in_place)
    with fails("replaces"):
        fedzo.minimize(problem, algorithm=FEDZO, rounds=1)
    assert module.gain is own
    assert equal(state(module), before)


def test_parameters_of_inference_mode_are_rejected():
    module = plain()
    with torch.inference_mode():
        module[0].weight = nn.Parameter(torch.randn(8, 6))
    with rejects("trainable"):
        fedzo.TorchProblem(module, loss, data())
    with rejects("trainable"):
        ZO(module.parameters())


def test_the_optimizer_rejects_what_it_cannot_step_along():
    module = plain()
    shared = nn.Parameter(module[0].weight.data.t())
    for wrong in (
        [*module.parameters(), shared],
        [module[0].weight, nn.Parameter(module[0].weight.data)],
    ):
        with rejects("trainable"):
            ZO(wrong)
    with rejects("module"):
        ZO(nn.LazyLinear(3).parameters())
    frozen = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    optimizer = ZO([*module.parameters(), frozen])  # as the base of quantised adapters has
    optimizer.step(lambda: loss(module, data(torch.float32)[0]).mean())
    assert not frozen.any()


@pytest.mark.parametrize("algorithm", [FEDZO, fedzo.FedAvg(batch_size=2)])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda losses: losses.mean(),
        lambda losses: losses[:, None],
        lambda losses: losses[:-1],
        lambda losses: torch.cat([losses, losses]),
        lambda losses: losses.to(torch.complex64),
        lambda losses: losses.tolist(),
        lambda losses: losses.detach().numpy(),
        lambda losses: None,
    ],
)
def test_a_loss_of_another_form_is_one_line(wrong, algorithm):
    module = plain().double()
    before = state(module)
    problem = fedzo.TorchProblem(module, lambda m, batch: wrong(loss(m, batch)), data())
    with fails("loss-shape") as caught:
        fedzo.minimize(problem, algorithm=algorithm, rounds=1)
    assert "\n" not in str(caught.value)
    assert equal(state(module), before)


@pytest.mark.parametrize(
    "form",
    [
        lambda losses: losses.float(),
        lambda losses: losses.half(),
        lambda losses: (10 * losses).long(),
        lambda losses: losses > 1,
        lambda losses: losses.clone().requires_grad_(),
    ],
)
def test_losses_of_any_real_type_are_trained(form):
    problem = fedzo.TorchProblem(plain().double(), lambda m, batch: form(loss(m, batch)), data())
    result = fedzo.minimize(problem, algorithm=FEDZO, rounds=1)
    assert np.isfinite(result.fun)
