"""`fedzo.optim.ZO` in training loops of torch, and in the Trainer of Hugging Face."""

import copy
import io
import pickle

import numpy as np
import pytest

import fedzo
from fedzo.core.directions import DirectionBuffer
from fedzo.core.random import Draws, Stream
from raising import fails, rejects

torch = pytest.importorskip("torch")
from torch.optim import lr_scheduler  # noqa: E402

from fedzo.optim import ZO  # noqa: E402 - it needs torch


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


INPUTS = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
LABELS = INPUTS[:, :3].argmax(1)


def network(dtype=torch.float32, dropout=0.0):
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(dropout)
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 3)).to(dtype)


def closure_of(module):
    dtype = next(module.parameters()).dtype
    return lambda: torch.nn.functional.cross_entropy(module(INPUTS.to(dtype)).float(), LABELS)


def numbers(module):
    return torch.cat([one.detach().reshape(-1) for one in module.parameters()])


@pytest.mark.parametrize("difference", ["central", "forward"])
@pytest.mark.parametrize("kind", ["rademacher", "gaussian", "sphere"])
def test_a_step_is_eq_2_along_the_directions_of_its_address(kind, difference):
    """Written out with held directions, in float64."""
    module, mu, lr = network(torch.float64), 1e-3, 0.1
    closure, x, dim = closure_of(module), numbers(module).clone(), 67
    optimizer = ZO(
        module.parameters(),
        lr,
        mu,
        directions=3,
        seed=5,
        direction_kind=kind,
        difference=difference,
    )
    for step in range(2):
        buffer = DirectionBuffer(kind, 3, dim, np.float32)
        buffer.draw(Draws(5, Stream.DIRECTIONS, round=step))
        total = torch.zeros(dim, dtype=torch.float64)

        other = copy.deepcopy(module)

        def value(point, other=other):
            torch.nn.utils.vector_to_parameters(point, other.parameters())
            return closure_of(other)().item()

        for v in torch.from_numpy(np.array(buffer.vectors(), np.float64)):
            behind, sides = (x - mu * v, 2) if difference == "central" else (x, 1)
            total += dim * (value(x + mu * v) - value(behind)) / (sides * mu) * v / 3
        loss = optimizer.step(closure)
        x = x - lr * total
        np.testing.assert_allclose(numbers(module), x, atol=2e-7)  # directions are float32
        x = numbers(module).clone()
    assert loss.item() == pytest.approx(value(numbers(other)), rel=0.5)


def test_the_estimate_is_the_gradient_on_average():
    """Of a linear loss: the mean of 4,000 estimates within 5 standard errors, (d + 1) |g|^2 / n."""
    weights = torch.nn.Parameter(torch.zeros(6))
    gradient = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, 1.0])
    optimizer = ZO([weights], lr=1.0, direction_kind="gaussian")
    for _ in range(4000):
        optimizer.step(lambda: weights @ gradient)
    error = (7 * gradient.square().sum() / 6 / 4000 * 6) ** 0.5
    assert (weights.detach() / -4000 - gradient).norm() < 5 * error


def train(module, optimizer, steps=300, scheduler=None):
    closure = closure_of(module)
    for _ in range(steps):
        optimizer.step(closure)
        if scheduler is not None:
            scheduler.step()
    return closure().item()


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.02},
        {"lr": 0.004, "momentum": 0.9},
        {"lr": 0.01, "betas": (0.9, 0.99)},
        {"lr": 0.02, "directions": 4, "weight_decay": 1e-3},
    ],
)
def test_it_trains(options):
    module = network()
    before = closure_of(module)().item()
    assert train(module, ZO(module.parameters(), **options)) < 0.6 * before


def test_directions_without_noise_take_the_steps_of_torchs_own_optimizers():
    """With one parameter, v = ±1 and a quadratic, central differences are the gradient itself."""
    for options, own in [
        ({"momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD),
        ({"betas": (0.8, 0.95), "weight_decay": 0.1, "eps": 1e-6}, torch.optim.AdamW),
    ]:
        mine, theirs = (torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64)) for _ in "ab")
        ours, reference = ZO([mine], 0.05, **options), own([theirs], 0.05, **options)
        for _ in range(30):
            ours.step(lambda w=mine: (w - 1).square().sum())
            reference.zero_grad()
            (theirs - 1).square().sum().backward()
            reference.step()
            assert mine.item() == pytest.approx(theirs.item(), rel=1e-6)


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 0.9**t),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 5),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, 3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)]
    ),
}


def test_every_scheduler_is_tried():
    kinds = {
        name
        for name, kind in vars(lr_scheduler).items()
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler)
    }
    assert kinds - {"LRScheduler", "_LRScheduler"} <= set(SCHEDULERS)


@pytest.mark.parametrize("betas", [None, (0.9, 0.99)])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("error:.*lr_scheduler.step.*")
def test_schedulers_change_its_rates_as_they_change_torchs(name, betas):
    module, other = network(), network()
    ours = ZO(module.parameters(), 0.05, betas=betas)
    options = {"betas": betas} if betas else {}
    theirs = (torch.optim.AdamW if betas else torch.optim.SGD)(other.parameters(), 0.05, **options)
    schedulers = SCHEDULERS[name](ours), SCHEDULERS[name](theirs)
    for _ in range(6):
        ours.step(closure_of(module))
        theirs.step()
        for scheduler in schedulers:
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"betas": (0.9, 0.99)}])
def test_a_resumed_run_is_the_same_run(options, dtype):
    whole = network(dtype)
    train(whole, ZO(whole.parameters(), 0.01, seed=3, **options), 10)
    first = network(dtype)
    optimizer = ZO(first.parameters(), 0.01, seed=3, **options)
    train(first, optimizer, 6)
    file = io.BytesIO()
    torch.save({"module": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()))
    second = network(dtype)
    second.load_state_dict(saved["module"])
    resumed = ZO(second.parameters(), 1.0, **options)  # seed, rate and step are in the state
    resumed.load_state_dict(saved["optimizer"])
    train(second, resumed, 4)
    assert torch.equal(numbers(second), numbers(whole))
    assert type(pickle.loads(pickle.dumps(resumed))) is ZO


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("call", [1, 2, 5])
def test_after_a_failing_closure_the_module_is_as_it_was(call, error):
    module, calls = network(torch.bfloat16).to(memory_format=torch.preserve_format), []
    optimizer = ZO(module.parameters(), 0.1, directions=3)
    optimizer.step(closure_of(module))
    before, state = numbers(module).clone(), copy.deepcopy(optimizer.state_dict())

    def breaks():
        calls.append(1)
        if len(calls) == call:
            raise error("now")
        return closure_of(module)()

    with pytest.raises(error):
        optimizer.step(breaks)
    assert torch.equal(numbers(module), before)
    assert optimizer.state_dict() == state
    optimizer.step(closure_of(module))
    assert not torch.equal(numbers(module), before)


def test_parameter_groups_have_their_own_rates_and_frozen_parameters_stay():
    module = network()
    module[0].bias.requires_grad_(False)
    before = copy.deepcopy(module)
    groups = [{"params": module[0].parameters(), "lr": 0.0}, {"params": module[3].parameters()}]
    optimizer = ZO(groups, lr=0.1)
    optimizer.step(closure_of(module))
    assert torch.equal(module[0].weight, before[0].weight)
    assert torch.equal(module[0].bias, before[0].bias)
    assert not torch.equal(module[3].bias, before[3].bias)
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step(closure_of(module))
    assert not torch.equal(module[0].weight, before[0].weight)
    with rejects("seed"):
        ZO([{"params": [module[3].bias]}, {"params": [module[3].weight], "seed": 4}], seed=3)
    named = ZO(module[3].named_parameters(), lr=0.1)
    named.step(closure_of(module))


def test_all_calls_of_a_step_have_the_same_dropout_and_no_gradient():
    module, seen = network(dropout=0.5).train(), []

    def closure():
        assert not torch.is_grad_enabled()
        mask = torch.nn.functional.dropout(torch.ones(20), 0.5)
        seen.append(mask)
        return closure_of(module)()

    optimizer = ZO(module.parameters(), 0.1, directions=2)
    for _ in range(2):
        optimizer.step(closure)
    assert all(torch.equal(mask, seen[0]) for mask in seen[:4])
    assert all(torch.equal(mask, seen[4]) for mask in seen[4:])
    assert not torch.equal(seen[0], seen[4])


def test_weights_in_another_order_of_memory_are_trained_alike():
    runs = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        module = torch.nn.Conv2d(3, 4, 3).double().to(memory_format=layout)
        optimizer = ZO(module.parameters(), 0.1)
        image = torch.ones(1, 3, 5, 5).double()
        for _ in range(3):
            optimizer.step(lambda m=module, i=image: m(i).sum())
        assert module.weight.is_contiguous(memory_format=layout)
        runs.append(numbers(module))
    torch.testing.assert_close(*runs)


def test_mistakes_are_one_line():
    module = network()
    with fails("no-closure"):
        ZO(module.parameters()).step()
    for wrong in (lambda: None, lambda: torch.ones(2)):
        with fails("loss-shape"):
            ZO(module.parameters()).step(wrong)
    with fails("non-finite"):
        ZO(module.parameters()).step(lambda: torch.tensor(float("nan")))
    with rejects("trainable"):
        ZO([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    with rejects("trainable"):
        ZO([torch.nn.Parameter(torch.zeros(2, device="meta"))])
    for key, value in [("lr", -1.0), ("momentum", 1.5), ("smoothing", 0.0), ("directions", 0)]:
        with rejects(key):
            ZO(module.parameters(), **{key: value})
    with rejects("params"):
        ZO(module.requires_grad_(False).parameters()).step(lambda: 0.0)


def test_the_name_is_found_without_importing_torch():
    assert "ZO" in dir(fedzo.optim)
    assert fedzo.optim.ZO is ZO


@pytest.mark.slow
def test_the_trainer_of_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from fedzo.optim import ZOTrainerMixin

    class ZOTrainer(ZOTrainerMixin, transformers.Trainer):
        zo_options = {"directions": 4, "betas": (0.9, 0.99), "seed": 1}  # noqa: RUF012

    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=2,
    )
    ids = torch.randint(2, 20, (64, 6), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": one, "labels": (one[0] > 10).long()} for one in ids]

    def train(folder, steps, resume=False, batches=1):
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
        arguments = transformers.TrainingArguments(
            str(folder),
            max_steps=60,
            learning_rate=0.03,
            weight_decay=0.01,
            warmup_steps=5,
            lr_scheduler_type="cosine",
            per_device_train_batch_size=32 // batches,
            gradient_accumulation_steps=batches,
            logging_steps=10,
            save_steps=30,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = ZOTrainer(model=model, args=arguments, train_dataset=data)
        if steps < 60:

            class Stop(transformers.TrainerCallback):
                def on_step_end(self, args, state, control, **_):
                    control.should_training_stop = state.global_step == steps

            trainer.add_callback(Stop())
        trainer.train(resume_from_checkpoint=resume)
        return numbers(model), [row["loss"] for row in trainer.state.log_history if "loss" in row]

    weights, losses = train(tmp_path / "whole", 60)
    assert losses[-1] < 0.9 * losses[0]
    train(tmp_path / "cut", 30)
    again, _ = train(tmp_path / "cut", 60, resume=True)
    assert torch.equal(again, weights)
    _, losses = train(tmp_path / "batches", 60, batches=2)
    assert losses[-1] < 0.9 * losses[0]
