"""
# Minimise a noisy function

**For anyone with a black box.** A measurement returns a number with noise. `fedzo.minimize` measures the noise, and needs
no settings.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedzo

rng = np.random.default_rng(0)
values = []


def measure(x):
    """Return a noisy value of a bowl in eight dimensions, whose minimum is at 1, ..., 1."""
    values.append(np.sum(np.arange(1, 9) * (x - 1) ** 2))
    return values[-1] + 0.1 * rng.normal()


result = fedzo.minimize(measure, np.zeros(8), max_queries=500)
print(result)

# %%
# The curve shows the values without their noise.

figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.semilogy(np.minimum.accumulate(values), color="#0072B2")
axes.set(
    xlabel="queries", ylabel="best value so far, without noise", title="Eight variables, noise 0.1"
)
