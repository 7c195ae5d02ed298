"""What differential privacy costs: accuracy of the softmax problem against epsilon.

python benchmarks/privacy.py [--rounds 20]

Ten devices of 400 records each, all of which take part in every round, with batches of 400. The
noise is chosen so that all steps of a device come to the epsilon of the row, at delta = 1e-5.
"""

from __future__ import annotations

import argparse
import math

import fedzo
from fedzo.flower.privacy import Privacy, Private, gaussian_epsilon
from fedzo.problems.softmax import softmax

DELTA = 1e-5
STEPS, DIRECTIONS, BATCH = 5, 20, 400
CLIP = 1e-3  # about the length of a record's 20 differences at mu = 1e-3


def noise_for(epsilon: float, answers: int) -> float:
    """Return the noise multiplier at which so many answers come to epsilon."""
    low, high = 1e-9, 1e9  # of mu, which epsilon grows with
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(middle, DELTA) < epsilon else (low, middle)
    return math.sqrt(answers) / low


def accuracy(noise: float, rounds: int) -> float:
    """Return the test accuracy of one run."""
    problem = softmax(devices=10, partition="iid")
    numbers = {"difference_clip": CLIP, "loss_clip": 10.0}
    private = Private(problem, Privacy(epsilon=1e9, noise=noise, **numbers))
    algorithm = fedzo.FedZO(
        learning_rate=0.01, batch_size=BATCH, directions=DIRECTIONS, local_steps=STEPS
    )
    result = fedzo.minimize(
        private, problem.initial(), algorithm=algorithm, rounds=rounds, evaluate_every=rounds
    )
    return float(problem.metrics(result.last)["test_accuracy"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print(f"| epsilon | noise | test accuracy after {rounds} rounds |")
    print("| --- | --- | --- |")
    print(f"| clipped only | 0 | {accuracy(1e-9, rounds):.3f} |", flush=True)
    for epsilon in (100.0, 30.0, 10.0, 3.0, 1.0):
        noise = noise_for(epsilon, rounds * STEPS)
        print(f"| {epsilon:g} | {noise:.3g} | {accuracy(noise, rounds):.3f} |", flush=True)


if __name__ == "__main__":
    main()
