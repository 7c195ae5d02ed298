"""What the attack figures share: their scales, and what they cost.

A query is a forward pass, about 0.3 ms of one core. A local step asks for b1 (b2 + 1) of
them: 0.15 s in the paper's setting, 6 ms at the quick scale, with b1 = 2 and b2 = 10.
"""

from __future__ import annotations

from fedzo.paper.figure import Scale

SMALLER = ("algorithm.batch_size=2", "algorithm.directions=10")
ABOUT = "the images that ship, b1 = 2 and b2 = 10"
SETTING = "CIFAR-10, class deer, c = 1, b1 = 25, b2 = 20, η = μ = 0.001"


def quick(
    devices: int,
    rounds: int,
    changes: tuple[str, ...] = (),
    about: str = "",
) -> Scale:
    """Return a scale of minutes: fewer samples and directions an estimate, fewer rounds."""
    return Scale(
        "attack",
        rounds=rounds,
        seeds=3,
        changes=(f"problem.devices={devices}", *SMALLER, *changes),
        points=20,
        about=", ".join(text for text in (ABOUT, about) if text),
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
