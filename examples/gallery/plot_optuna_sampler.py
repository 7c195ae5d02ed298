"""
# A sampler for Optuna

**For Optuna users.** An OptunaHub-style sampler: FedZO's ask-and-tell proposes the numbers of each trial. It fits on a screen.
"""

import matplotlib.pyplot as plt
import optuna
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace

import fedzo


class FedzoSampler(BaseSampler):
    """Proposes the float parameters of a study, in [0, 1] by their own scales."""

    def __init__(self, seed=0):
        self._spaces, self._other, self._seed = IntersectionSearchSpace(), RandomSampler(seed), seed
        self._run, self._asked, self._values = None, [], []

    def infer_relative_search_space(self, study, trial):
        space = self._spaces.calculate(study)
        return {name: d for name, d in space.items() if isinstance(d, FloatDistribution)}

    def sample_relative(self, study, trial, search_space):
        if not search_space:  # the first trial
            return {}
        if self._run is None:
            bounds = [(0.0, 1.0)] * len(search_space)
            self._run = fedzo.AskTell([0.5] * len(search_space), bounds=bounds, seed=self._seed)
        self._asked = self._asked or self._run.ask()
        point = self._asked[len(self._values)].x if self._asked else self._run.result().x
        pairs = zip(search_space.items(), point)
        return {
            n: d.low * (d.high / d.low) ** u if d.log else d.low + u * (d.high - d.low)
            for (n, d), u in pairs
        }

    def sample_independent(self, study, trial, name, distribution):
        return self._other.sample_independent(study, trial, name, distribution)

    def after_trial(self, study, trial, state, values):
        if self._asked:
            sign = -1 if study.direction.name == "MAXIMIZE" else 1
            self._values.append(sign * values[0] if values else float("inf"))  # a failed trial
        if self._asked and len(self._values) == len(self._asked):  # a batch is complete
            self._run.tell(self._values)
            self._asked, self._values = [], []


# %%
def objective(trial):
    """Return a loss with its minimum at x = 1 and rate = 0.01."""
    x, rate = trial.suggest_float("x", -5, 5), trial.suggest_float("rate", 1e-4, 1, log=True)
    return (x - 1) ** 2 + (rate / 0.01 - 1) ** 2 / (1 + rate / 0.01)


optuna.logging.set_verbosity(optuna.logging.ERROR)
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for sampler, colour in ((FedzoSampler(), "#0072B2"), (RandomSampler(seed=0), "#D55E00")):
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=60)
    best = [min(t.value for t in study.trials[: i + 1]) for i in range(60)]
    axes.semilogy(best, color=colour, label=type(sampler).__name__)
axes.set(xlabel="trials", ylabel="best loss so far", title="One study, two samplers")
axes.legend()
