"""How often one perturbation within a budget fools the network that ships, on unseen images.

python benchmarks/attack.py [--eps 8] [--norm inf] [--max-queries 50000] [--seeds 2]

The deer that ship and that the network gets right are on ten devices; success is on test images
that it gets right, which nobody has, in 8 bits. The budget is for all queries of the attack, its
evaluations included; telling which images the network gets right is not counted.
"""

from __future__ import annotations

import argparse

import numpy as np

import fedzo
from fedzo import data, models
from fedzo.problems.attack.inputs import gets_right

LABEL, DEVICES = "deer", 10


def main() -> None:
    """Run the attack for each seed and print what comes of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--eps", type=float, default=8.0, help="in grey levels")
    parser.add_argument("--norm", default="inf")
    parser.add_argument("--max-queries", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    images, judge = data.load("cifar10-deer-mini"), models.load("cifar10-resnet8")
    train, _ = gets_right(judge, images.train_inputs, images.train_labels)
    test, _ = gets_right(judge, images.test_inputs, images.test_labels)
    label = list(images.classes).index(LABEL)
    for seed in range(options.seeds):
        model = models.load("cifar10-resnet8", max_queries=options.max_queries)
        attack = fedzo.UniversalAttack(model, eps=options.eps / 255, norm=options.norm, seed=seed)
        attack.fit(np.array_split(train, DEVICES), label)
        moved = attack.apply(test)
        held_out = float(np.mean(judge.predict(moved) != label))
        own = max(record["attack_success"] for record in attack.result.history)
        largest = float(np.abs(np.rint(moved * 255) - np.rint(test * 255)).max())
        print(
            f"seed {seed}: {held_out:.0%} of {len(test)} held out, {own:.0%} of {len(train)} own; "
            f"{attack.queries:,} queries, {attack.result.nit} rounds, "
            f"largest change {largest:g}/255",
            flush=True,
        )


if __name__ == "__main__":
    main()
