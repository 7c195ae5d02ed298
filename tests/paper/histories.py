"""Made-up histories: losses that fall at a given rate, seeds that differ a little."""

import numpy as np

ROUNDS = range(0, 101, 4)


def history(
    rng,
    rate=1.0,
    start=2.3,
    accuracy=0.7,
    success=0.5,
    distortion=1.0,
    gradient=0.1,
    queries=100.0,
):
    """Return a run's records; the loss is start * exp(-rate t / 100), to 0.01 %."""
    records = []
    for t in ROUNDS:
        noise = 1 + 1e-4 * rng.standard_normal() * (t > 0)
        record = {
            "round": t,
            "train_loss": start * np.exp(-rate * t / 100) * noise,
            "test_accuracy": accuracy * (1 - np.exp(-t / 20)) * noise,
            "attack_success": success * t / 100 * noise,
            "distortion_l2_mean": distortion * t / 100 * noise,
            "gradient_norm_squared": gradient * noise,
            "queries": queries * t,
            "seconds": 0.01 * t,
        }
        records.append(record)
    return records


def runs(figure, spec, seeds=4):
    """Return runs of all of a figure's curves; ``spec`` says of a label what is not as usual.

    A seed makes all curves faster or slower together, by 10 %, as seeds do.
    """
    made = {}
    for curve in figure.curves:
        made[curve.label] = []
        for seed in range(seeds):
            shared = 1 + 0.1 * np.random.default_rng(seed).standard_normal()
            settings = dict(spec(curve.label))
            settings["rate"] = settings.get("rate", 1.0) * shared
            made[curve.label].append(
                history(np.random.default_rng([seed, sum(map(ord, curve.label))]), **settings)
            )
    return made
