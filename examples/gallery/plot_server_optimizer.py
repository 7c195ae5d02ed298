"""
# A custom server optimizer

**For researchers.** The server's rule for the mean update is a small class. This one keeps a heavy-ball momentum that decays
when the update turns against it.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np

import fedzo
from fedzo.problems import Quadratic


@dataclass(frozen=True)
class Restarting(fedzo.server.ServerOptimizer):
    """Momentum that restarts where the update points back."""

    beta: float = 0.9

    def init(self, x0):
        return (np.zeros_like(x0),)

    def apply(self, t, state, x, delta):
        velocity = self.beta * state[0] * (state[0] @ delta > 0) + delta
        return x + velocity, (velocity,)


problem = Quadratic(dim=50, devices=10, condition=100.0)
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for server, colour in ((fedzo.server.Mean(), "#0072B2"), (Restarting(), "#D55E00")):
    algorithm = fedzo.FedZO(learning_rate=0.01, local_steps=2, directions=20, server=server)
    history = fedzo.minimize(problem, algorithm=algorithm, rounds=100, evaluate_every=2).history
    line = [record["round"] for record in history], [record["optimality_gap"] for record in history]
    axes.semilogy(*line, color=colour, label=type(server).__name__)
axes.set(xlabel="round", ylabel="f(x) - f*", title="A quadratic of condition 100")
axes.legend()
