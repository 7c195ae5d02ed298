"""Settings, constants and runs that several tests of the theory share."""

import numpy as np

import fedzo
from fedzo.theory import Constants, Setting

ODD = Constants(L=1.7, gap=11.0, sigma_g=2.3, sigma_h=1.9, c_g=1.3, c_h=0.7)
SIZES = {
    "devices": 13,
    "dim": 29,
    "rounds": 311,
    "local_steps": 5,
    "batch_size": 3,
    "directions": 7,
}
FULL, PART = Setting(**SIZES), Setting(**SIZES, participants=6)
AIR = Setting(**SIZES, participants=6, snr=0.37)


def constants_of(problem):
    gap = problem.metrics(problem.initial())["optimality_gap"]
    return Constants(problem.smoothness, gap, problem.gradient_noise, problem.dissimilarity)


def algorithm_of(setting, learning_rate, smoothing):
    return fedzo.FedZO(
        learning_rate=learning_rate,
        smoothing=smoothing,
        batch_size=setting.batch_size,
        directions=setting.directions,
        local_steps=setting.local_steps,
        participants=setting.participants,
    )


def squared_gradients(problem, algorithm, rounds, seeds, uplink=None, every=1):
    """‖∇f(x^t)‖² of runs, at the start and after every so many rounds: (seeds, rounds + 1)."""
    return np.array(
        [
            [
                record["gradient_norm_squared"]
                for record in fedzo.minimize(
                    problem,
                    algorithm=algorithm,
                    uplink=uplink,
                    rounds=rounds,
                    evaluate_every=every,
                    workers=1,
                    seed=seed,
                ).history
            ]
            for seed in seeds
        ]
    )
