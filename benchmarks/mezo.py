"""The time of one zeroth-order step on MiniLM, two forward passes each, by several methods.

    python benchmarks/mezo.py [--texts 16] [--tokens 64] [--steps 5]

All of MiniLM's 22.7 million weights are trained by the central difference along one direction.
``mezo`` is written from Algorithm 1 of Malladi et al., "Fine-Tuning Language Models with Just
Forward Passes" (NeurIPS 2023): four passes over the weights, a tensor of normals each.
``mezo, tidied`` draws into one buffer, adds in place, and restores and updates in one pass.
``decomfl`` is the scheme of Li et al., "Achieving Dimension-Free Communication in Federated
Learning via Zeroth-Order Optimization" (ICLR 2025): shared seeds, a tensor at a time, in place.
``fedzo`` is a round of one device, update included, with x in the module. Needs the extra text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import transformers

import fedzo
from fedzo.data.text import model_folder

Values = Callable[[], float]
EPSILON, RATE = 1e-3, 1e-6


def mezo(parameters: list[torch.Tensor], value: Values, seed: int) -> None:
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
        parameter.data = parameter.data - RATE * (slope * z)


def tidied(parameters: list[torch.Tensor], value: Values, seed: int) -> None:
    buffer = torch.empty(max(parameter.numel() for parameter in parameters))

    def add(scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in parameters:
            z = buffer[: parameter.numel()].normal_(generator=generator)
            parameter.view(-1).add_(z, alpha=scale)

    add(EPSILON)
    ahead = value()
    add(-2 * EPSILON)
    slope = (ahead - value()) / (2 * EPSILON)
    add(EPSILON - RATE * slope)


def decomfl(parameters: list[torch.Tensor], value: Values, seed: int) -> None:
    def add(scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in parameters:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)

    add(EPSILON)
    ahead = value()
    add(-2 * EPSILON)
    behind = value()
    add(EPSILON)
    add(-RATE * (ahead - behind) / (2 * EPSILON))


def seconds(step: Callable[[int], object], steps: int) -> float:
    step(0)
    times = []
    for seed in range(1, steps + 1):
        began = time.perf_counter()
        step(seed)
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    module = transformers.AutoModel.from_pretrained(
        str(model_folder("minilm-l6")), add_pooling_layer=False, attn_implementation="sdpa"
    ).eval()
    ids = torch.arange(given.texts * given.tokens).view(given.texts, -1) % 30_000

    def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return module(batch[0]).last_hidden_state.mean(1).square().sum(1)

    @torch.inference_mode()
    def value() -> float:
        return loss(module, (ids,)).mean().item()

    count = sum(parameter.numel() for parameter in module.parameters())
    forward = seconds(lambda seed: (value(), value()), given.steps)
    print(f"{count:,} weights, {given.texts} x {given.tokens} tokens")
    print(f"{'two forward passes alone':28} {forward:8.3f} s")
    own = [parameter.data for parameter in module.parameters()]
    with torch.no_grad():
        for name, method, what in (
            ("mezo", mezo, list(module.parameters())),
            ("mezo, tidied", tidied, own),
            ("decomfl", decomfl, own),
        ):
            saved = [tensor.clone() for tensor in own]
            took = seconds(lambda seed, m=method, p=what: m(p, value, seed), given.steps)
            print(f"{name:28} {took:8.3f} s")
            for parameter, tensor, kept in zip(module.parameters(), own, saved, strict=True):
                parameter.data = tensor.copy_(kept)
    problem = fedzo.TorchProblem(module, loss, [(ids,)], in_place=True)
    for kind in ("gaussian", "rademacher"):
        algorithm = fedzo.FedZO(
            learning_rate=RATE,
            smoothing=EPSILON * count**0.5,
            directions=1,
            local_steps=1,
            batch_size=given.texts,
            direction_kind=kind,
            difference="central",
        )

        def step(seed: int, algorithm: fedzo.FedZO = algorithm) -> None:
            at = fedzo.Work(algorithm, problem.initial(), seed, 0).at(0)
            algorithm.local(problem, 0, problem.initial(), at).delta.moved(problem.initial())

        print(f"{'fedzo, ' + kind:28} {seconds(step, given.steps):8.3f} s")


if __name__ == "__main__":
    main()
