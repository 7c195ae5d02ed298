"""Train the CIFAR-10 classifiers that attacks are shown on, and write them as ONNX files.

    python tools/train_victim.py resnet8       # ships with fedzo
    python tools/train_victim.py carlini       # the paper's own kind of victim
    python tools/train_victim.py resnet20 --out victims   # and plain, mixer: for comparisons

A training that was stopped resumes after its last whole epoch, by the same command: all of its
state is in ``cifar10-NETWORK.training`` beside the result, and goes when it is done.

``resnet8`` is the residual network of three stages with 16, 32 and 64 channels that fits a
microcontroller: 78,000 weights and 12.5 million multiply-adds. ``carlini`` is the network of
Carlini and Wagner (2017), conv 64-64-pool-128-128-pool and dense 256-256-10, whose test
accuracy in the paper is 82.3 %.

``resnet20`` is the smallest network of He et al. (2016) for CIFAR-10, the one that is most often
found ready-made: 270,000 weights. ``plain`` is three convolutions without a way around them,
``mixer`` a small MLP-Mixer (Tolstikhin et al., 2021), whose patches come from two convolutions.
These three are trained for a few epochs, to be other victims in ``benchmarks/attack.py``.

All take pixels in [0, 1], planes first, and answer logits; scaling is a part of the graph and
batch normalisation is folded into the convolutions. Needs torch, onnx and onnxscript.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import onnx
import torch
from torch import nn
from torch.nn import functional

from fedzo import data

SMALL = 1000  # weights: so few are not worth a cast
MEAN = (0.4914, 0.4822, 0.4465)  # of the training pixels, by colour
DEVIATION = (0.2470, 0.2435, 0.2616)


class Recipe(NamedTuple):
    """How a network is trained: SGD with Nesterov's momentum, one cycle of the learning rate."""

    epochs: int
    learning_rate: float
    weight_decay: float
    batch_size: int = 128
    momentum: float = 0.9
    products: str = "float32"  # the numbers that are multiplied; sums and weights are float32


class Scale(nn.Module):
    """Pixels in [0, 1] to mean zero and deviation one, by colour."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor(DEVIATION).view(1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.deviation


class Residual(nn.Module):
    """Two 3x3 convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.around: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.around = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(inner)) + self.around(x))


def resnet(blocks: int) -> nn.Module:
    """Return a residual network of three stages, each of so many blocks."""
    stages = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
    return nn.Sequential(
        Scale(),
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *(
            Residual(after if i else before, after, 1 if i else stride)
            for before, after, stride in stages
            for i in range(blocks)
        ),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def carlini() -> nn.Module:
    """Return the network of Carlini and Wagner (2017), table I, for CIFAR."""
    network = nn.Sequential(
        Scale(),
        *(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Conv2d(128, 128, 3), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(128 * 5 * 5, 256), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
    )
    for layer in network:  # nothing normalises between the layers, so they must begin at scale
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return network


def convolution(before: int, after: int, size: int, stride: int) -> nn.Module:
    """Return a convolution, normalised and cut off at zero."""
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )


def plain() -> nn.Module:
    """Return three convolutions and one dense layer."""
    return nn.Sequential(
        Scale(),
        convolution(3, 32, size=5, stride=2),
        convolution(32, 64, size=3, stride=2),
        convolution(64, 128, size=3, stride=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * 16, 10),
    )


class Mixing(nn.Module):
    """Two layers across the patches, and two within each."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across, self.within = (
            nn.Sequential(nn.Linear(size, inner), nn.GELU(), nn.Linear(inner, size))
            for size, inner in ((patches, patches), (width, 2 * width))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across(self.before(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.between(x))


class Mixer(nn.Module):
    """8 x 8 patches of 64 numbers, mixed twice, and their mean."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Sequential(
            Scale(), convolution(3, 32, size=3, stride=2), convolution(32, width, size=3, stride=2)
        )
        self.blocks = nn.Sequential(Mixing(64, width), Mixing(64, width))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        x = self.patches(input).flatten(2).transpose(1, 2)
        return self.last(self.norm(self.blocks(x)).mean(1))


NETWORKS = {
    "resnet8": partial(resnet, blocks=1),
    "resnet20": partial(resnet, blocks=3),
    "carlini": carlini,
    "plain": plain,
    "mixer": Mixer,
}
RECIPES = {
    "resnet8": Recipe(epochs=40, learning_rate=0.2, weight_decay=3e-4),
    "resnet20": Recipe(epochs=14, learning_rate=0.2, weight_decay=5e-4, products="bfloat16"),
    "carlini": Recipe(epochs=12, learning_rate=0.03, weight_decay=5e-4, products="bfloat16"),
    "plain": Recipe(epochs=12, learning_rate=0.2, weight_decay=5e-4, products="bfloat16"),
    "mixer": Recipe(epochs=10, learning_rate=0.04, weight_decay=2e-4, products="bfloat16"),
}


IN_HALF = ("carlini",)  # networks whose weights are rounded to float16, for half the file


def augmented(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return images shifted by up to four pixels and mirrored, each at random."""
    count = len(images)
    padded = functional.pad(images, (4, 4, 4, 4), mode="reflect")
    down, right = torch.randint(0, 9, (2, count, 1), generator=generator)
    rows, columns = down + torch.arange(32), right + torch.arange(32)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    pick = torch.arange(count)[:, None, None]
    shifted = padded.permute(0, 2, 3, 1)[pick, rows[:, :, None], columns[:, None, :]]
    return shifted.permute(0, 3, 1, 2)  # planes first, pixels side by side in memory


def train(
    network: nn.Module,
    recipe: Recipe,
    images: torch.Tensor,
    labels: torch.Tensor,
    seed: int,
    kept: Path,
) -> None:
    """Train in place, from the last whole epoch that ``kept`` holds, to the same bits."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=True,
        weight_decay=recipe.weight_decay,
    )
    batches = len(images) // recipe.batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.learning_rate, total_steps=recipe.epochs * batches, pct_start=0.2
    )
    done, before = 0, 0.0  # epochs and seconds
    if kept.exists():
        state = torch.load(kept, weights_only=True)
        if state["recipe"] != [*recipe, seed]:
            raise SystemExit(f"{kept} is of another recipe or seed: remove it to begin anew")
        network.load_state_dict(state["network"])
        optimiser.load_state_dict(state["optimiser"])
        schedule.load_state_dict(state["schedule"])
        generator.set_state(state["generator"])
        torch.set_rng_state(state["dropout"])
        done, before = state["epochs"], state["seconds"]
    network.train()
    began = time.perf_counter() - before
    for epoch in range(done, recipe.epochs):
        total = 0.0
        order = torch.randperm(len(images), generator=generator)
        for chosen in order[: batches * recipe.batch_size].split(recipe.batch_size):
            batch = augmented(images[chosen].float() / 255, generator)
            batch = batch.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16, enabled=recipe.products == "bfloat16"):
                loss = functional.cross_entropy(network(batch), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item()
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1:3}  loss {total / batches:.4f}  {seconds:6.0f} s", flush=True)
        state = {
            "recipe": [*recipe, seed],
            "network": network.state_dict(),
            "optimiser": optimiser.state_dict(),
            "schedule": schedule.state_dict(),
            "generator": generator.get_state(),
            "dropout": torch.get_rng_state(),
            "epochs": epoch + 1,
            "seconds": seconds,
        }
        beside = kept.with_suffix(".new")
        torch.save(state, beside)
        beside.replace(kept)


@torch.no_grad()
def predictions(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the network's choices."""
    network.eval()
    return torch.cat([network(part.float() / 255).argmax(1) for part in images.split(500)])


@torch.no_grad()
def multiply_adds(network: nn.Module) -> int:
    """Return how many multiplications a forward pass of one image takes, in its products."""
    counts: list[int] = []

    def count(layer: nn.Module, _: object, output: torch.Tensor) -> None:
        counts.append(output[0].numel() * layer.weight[0].numel())

    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    network.eval()(torch.zeros(1, 3, 32, 32))
    for hook in hooks:
        hook.remove()
    return sum(counts)


def write_onnx(network: nn.Module, path: Path) -> None:
    """Write the network for batches of any size."""
    network.eval()
    torch.onnx.export(
        network.to(memory_format=torch.contiguous_format),
        (torch.rand(2, 3, 32, 32),),
        path,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes={"input": {0: torch.export.Dim("batch")}},
        external_data=False,
        verbose=False,
    )
    model = onnx.load(path)
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
        part.ClearField("metadata_props")  # where in which file each line of code was
        part.ClearField("doc_string")
    onnx.save(model, path)


def halve(path: Path) -> None:
    """Store the weights of a file as float16, from which it makes float32 again when it is loaded.

    Nothing is lost where they have been rounded to float16 before.
    """
    model = onnx.load(path)
    graph = model.graph
    casts = []
    for weight in [w for w in graph.initializer if w.data_type == onnx.TensorProto.FLOAT]:
        values = onnx.numpy_helper.to_array(weight)
        if values.size < SMALL:
            continue
        name, half = weight.name, f"{weight.name}.half"
        graph.initializer.remove(weight)
        graph.initializer.append(onnx.numpy_helper.from_array(values.astype("float16"), half))
        casts.append(onnx.helper.make_node("Cast", [half], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    graph.ClearField("node")
    graph.node.extend(nodes)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def main() -> None:
    """Train one network and write it, with what it can do."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--out", type=Path, default=Path("src/fedzo/models/files"))
    parser.add_argument("--epochs", type=int, help="if not those of the recipe")
    parser.add_argument("--weights", type=Path, help="do not train: take what training wrote")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", help="folder with the official CIFAR-10 files")
    arguments = parser.parse_args()

    cifar = data.load("cifar10", arguments.data_dir)
    images, tests = (
        torch.from_numpy(x.reshape(-1, 3, 32, 32)) for x in (cifar.train_inputs, cifar.test_inputs)
    )
    labels, answers = torch.from_numpy(cifar.train_labels), torch.from_numpy(cifar.test_labels)
    torch.manual_seed(arguments.seed)
    network = NETWORKS[arguments.network]().to(memory_format=torch.channels_last)
    recipe = RECIPES[arguments.network]
    recipe = recipe._replace(epochs=arguments.epochs or recipe.epochs)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"cifar10-{arguments.network}.onnx"
    if arguments.weights is None:
        kept = path.with_suffix(".training")
        train(network, recipe, images, labels, arguments.seed, kept)
        torch.save(network.state_dict(), path.with_suffix(".pt"))
        kept.unlink()
    else:
        network.load_state_dict(torch.load(arguments.weights, weights_only=True))
    if arguments.network in IN_HALF:
        with torch.no_grad():
            for weight in network.parameters():
                weight.copy_(weight.half().float())
    write_onnx(network, path)
    if arguments.network in IN_HALF:
        halve(path)
    right = (predictions(network, tests) == answers).numpy()
    deer = cifar.classes.index("deer")
    train_right = (predictions(network, images) == labels).numpy()
    card = {
        "inputs": "images of 3 x 32 x 32, red, green and blue planes, pixels in [0, 1]",
        "outputs": "logits of the 10 classes, in CIFAR-10's order",
        "made_by": f"python tools/train_victim.py {arguments.network}",
        "data": "CIFAR-10, 50,000 training images, none held back",
        "recipe": {
            **recipe._asdict(),
            "seed": arguments.seed,
            "schedule": "one cycle",
            "augmentation": "shifts of up to 4 pixels, mirroring",
        },
        "multiply_adds": multiply_adds(network),
        "parameters": sum(p.numel() for p in network.parameters()),
        "test_accuracy": float(right.mean()),
        "test_accuracy_by_class": {
            name: float(right[cifar.test_labels == i].mean())
            for i, name in enumerate(cifar.classes)
        },
        "train_accuracy": float(train_right.mean()),
        "training_deer_right": int(train_right[cifar.train_labels == deer].sum()),
    }
    path.with_suffix(".json").write_text(json.dumps(card, indent=2) + "\n")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main()
