"""
# An optimizer for nevergrad

**For nevergrad users.** Once registered, it is used by its name, as all of nevergrad's own optimizers are.
"""

import matplotlib.pyplot as plt
import nevergrad as ng
import numpy as np

import fedzo


@ng.optimizers.registry.register
class Fedzo(ng.optimizers.base.Optimizer):
    """Ask-and-tell in nevergrad's standardised space."""

    no_parallelization = True

    def __init__(self, parametrization, budget=None, num_workers=1):
        super().__init__(parametrization, budget=budget, num_workers=num_workers)
        self._run = fedzo.AskTell(np.zeros(self.dimension), max_queries=budget)
        self._batch, self._values = [], []

    def _internal_ask_candidate(self):
        self._batch = self._batch or self._run.ask()
        point = self._batch[len(self._values)].x if self._batch else self._run.result().x
        return self.parametrization.spawn_child().set_standardized_data(point)

    def _internal_tell_candidate(self, candidate, loss):
        self._values.append(loss)
        if len(self._values) == len(self._batch):  # a batch is complete
            self._run.tell(self._values)
            self._batch, self._values = [], []


# %%
def valley(x):
    """Return a curved valley."""
    return float(np.sum((1 - x[:-1]) ** 2 + 20 * (x[1:] - x[:-1] ** 2) ** 2))


figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, colour in (("Fedzo", "#0072B2"), ("OnePlusOne", "#D55E00"), ("CMA", "#009E73")):
    optimizer, losses = ng.optimizers.registry[name](parametrization=5, budget=300), []
    optimizer.parametrization.random_state.seed(0)
    optimizer.minimize(lambda x, losses=losses: losses.append(valley(x)) or losses[-1])
    axes.semilogy(np.minimum.accumulate(losses), label=name, color=colour)
axes.set(xlabel="queries", ylabel="best value so far", title="A valley in five dimensions")
axes.legend()
