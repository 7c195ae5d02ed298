"""One zeroth-order step on a language model, two forward passes each, by several methods.

    python benchmarks/mezo.py [METHOD ...] [--model minilm-l6] [--texts 16] [--tokens 64]
                              [--steps 5] [--cpu]

All weights of MiniLM (22.7 million) or SmolLM2 (135 million) are trained by the central difference
along one direction. Printed are the median time of a step, its ratio to fedzo's with normals, and
the peak memory beyond that of a forward pass, in models' sizes (Linux only). METHOD is one of the
field's, by default all of them. The methods take turns, so that a machine that slows down does so
for all of them; ``--cpu`` counts the seconds that cores spent on it instead of those that went by,
for machines that are busy with other work.

``mezo`` is written from Algorithm 1 of Malladi et al., "Fine-Tuning Language Models with Just
Forward Passes" (NeurIPS 2023): four passes over the weights, a tensor of normals each.
``mezo, tidied`` draws into one buffer, adds in place, and restores and updates in one pass.
``decomfl`` is the scheme of Li et al., "Achieving Dimension-Free Communication in Federated
Learning via Zeroth-Order Optimization" (ICLR 2025): shared seeds, a tensor at a time, in place.
``decomfl, one vector`` is the authors' default mode: one vector of all normals, drawn once a step.
``fedzo`` is a round of one device, update included, with x in the module. Needs the extra text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fedzo

Value = Callable[[], float]
Tensors = list[torch.Tensor]
EPSILON, RATE = 1e-3, 1e-6


def mezo(parameters: Tensors, value: Value, seed: int, rate: float = RATE) -> None:
    def perturb(scale: float) -> None:
        torch.manual_seed(seed)
        for parameter in parameters:
            z = torch.normal(mean=0.0, std=1.0, size=parameter.shape)
            parameter.data = parameter.data + scale * z * EPSILON

    perturb(1)
    ahead = value()
    perturb(-2)
    behind = value()
    perturb(1)
    slope = (ahead - behind) / (2 * EPSILON)
    torch.manual_seed(seed)
    for parameter in parameters:
        z = torch.normal(mean=0.0, std=1.0, size=parameter.shape)
        parameter.data = parameter.data - rate * (slope * z)


def tidied(parameters: Tensors, value: Value, seed: int, rate: float = RATE) -> None:
    buffer = torch.empty(max(parameter.numel() for parameter in parameters))

    def add(scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in parameters:
            z = buffer[: parameter.numel()].normal_(generator=generator)
            parameter.data.view(-1).add_(z, alpha=scale)

    add(EPSILON)
    ahead = value()
    add(-2 * EPSILON)
    slope = (ahead - value()) / (2 * EPSILON)
    add(EPSILON - rate * slope)


def decomfl(parameters: Tensors, value: Value, seed: int, rate: float = RATE) -> None:
    def add(scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in parameters:
            parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)

    add(EPSILON)
    ahead = value()
    add(-2 * EPSILON)
    behind = value()
    add(EPSILON)
    add(-rate * (ahead - behind) / (2 * EPSILON))


def one_vector(parameters: Tensors, value: Value, seed: int, rate: float = RATE) -> None:
    sizes = [parameter.numel() for parameter in parameters]
    z = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(seed))

    def add(scale: float) -> None:
        for parameter, piece in zip(parameters, z.split(sizes), strict=True):
            parameter.data.add_(piece.view(parameter.shape), alpha=scale)

    add(EPSILON)
    ahead = value()
    add(-2 * EPSILON)
    behind = value()
    add(EPSILON)
    z.mul_((ahead - behind) / (2 * EPSILON))
    add(-rate)


METHODS = {
    "mezo": mezo,
    "mezo, tidied": tidied,
    "decomfl": decomfl,
    "decomfl, one vector": one_vector,
}


def own_step(problem: fedzo.TorchProblem, kind: str, texts: int) -> Callable[[int], object]:
    """Return fedzo's step: one device's round, and the server's update of x, in place."""
    algorithm = fedzo.FedZO(
        learning_rate=RATE,
        smoothing=EPSILON * problem.dim**0.5,
        directions=1,
        local_steps=1,
        batch_size=texts,
        direction_kind=kind,
        difference="central",
    )

    def step(seed: int) -> None:
        x = problem.initial()
        update = fedzo.LocalSteps(algorithm, x, RATE, round=seed).reply(problem, 0)
        update.delta.add_to(x)

    return step


def load(name: str) -> Any:
    import transformers

    from fedzo.data import model_folder
    from fedzo.models.language import load as load_language_model

    transformers.utils.logging.disable_progress_bar()
    folder = model_folder(name)
    if name == "smollm2-135m":
        return load_language_model(folder)[1].requires_grad_(True)
    return transformers.AutoModel.from_pretrained(str(folder), add_pooling_layer=False).eval()


def peak_of(work: Callable[[], object]) -> int:
    """Return by how many bytes memory grew at most while work was done; 0 where nobody tells."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0

    def bytes_of(key: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(key))
        return 1024 * int(line.split()[1])

    before = bytes_of("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    work()
    return bytes_of("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD", default=list(METHODS))
    parser.add_argument("--model", choices=("minilm-l6", "smollm2-135m"), default="minilm-l6")
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    clock = time.process_time if given.cpu else time.perf_counter
    module = load(given.model)
    ids = torch.arange(given.texts * given.tokens).view(given.texts, -1) % 30_000

    def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return module(batch[0])[0].mean(1).square().sum(1)

    @torch.inference_mode()
    def value() -> float:
        return loss(module, (ids,)).mean().item()

    problem = fedzo.TorchProblem(module, loss, [(ids,)], in_place=True)
    parameters = list(module.parameters())
    steps: dict[str, Callable[[int], object]] = {
        "two forward passes alone": lambda seed: (value(), value()),
        **{
            name: lambda seed, m=METHODS[name]: m(parameters, value, seed) for name in given.methods
        },
        **{f"fedzo, {k}": own_step(problem, k, given.texts) for k in ("gaussian", "rademacher")},
    }
    x, own = problem.initial(), [parameter.data for parameter in parameters]
    kept, times, peaks = x.copy(), {name: [] for name in steps}, {}
    with torch.no_grad():
        for seed in range(given.steps + 2):  # the first warms up, the second tells the peak
            for name, step in steps.items():
                began = clock()
                if seed < 2:
                    peaks[name] = peak_of(lambda step=step: step(0))
                else:
                    step(seed)
                    times[name].append(clock() - began)
                for parameter, tensor in zip(parameters, own, strict=True):
                    parameter.data = tensor
                x[:] = kept
    print(f"{problem.dim:,} weights, {given.texts} x {given.tokens} tokens")
    print(f"{'':28} {'seconds':>8} {'of fedzo':>9} {'memory, models':>15}")
    middle = {name: sorted(taken)[len(taken) // 2] for name, taken in times.items()}
    inference = peaks["two forward passes alone"]
    for name, taken in middle.items():
        ratio, more = taken / middle["fedzo, gaussian"], (peaks[name] - inference) / x.nbytes
        print(f"{name:28} {taken:8.3f} {ratio:9.2f} {more:15.2f}")


if __name__ == "__main__":
    main()
