"""What the attack figures share: the paper's step sizes, the scales, and what they cost.

A query is a forward pass, about 0.3 ms of one core. A local step asks for b1 (b2 + 1) of
them: 0.15 s in the paper's setting, 5 ms at the quick scale.
"""

from __future__ import annotations

from fedzo.paper.figure import Scale

RATE = ("algorithm.learning_rate=0.001", "algorithm.smoothing=0.001")  # the paper's, for FedZO
SMALLER = ("algorithm.batch_size=2", "algorithm.directions=8")
SETTING = "A universal perturbation of CIFAR-10's deer"


def quick(devices: int, rounds: int, changes: tuple[str, ...] = ()) -> Scale:
    """Return a scale of minutes: fewer samples and directions an estimate, fewer rounds."""
    return Scale(
        "attack",
        rounds=rounds,
        seeds=5,
        changes=(f"problem.devices={devices}", *SMALLER, *changes),
        points=12,
    )


def paper(devices: int, changes: tuple[str, ...] = ()) -> Scale:
    """Return the paper's own setting."""
    return Scale(
        "attack-cifar10",
        rounds=100,
        seeds=5,
        changes=(
            f"problem.devices={devices}",
            "algorithm.batch_size=25",
            "algorithm.directions=20",
            *changes,
        ),
    )
