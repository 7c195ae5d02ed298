"""
# Call it through SciPy

**For SciPy users.** `fedzo.scipy_method()` is a method for `scipy.optimize.minimize`. Bounds and constraints have SciPy's
form.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import LinearConstraint, minimize, rosen

import fedzo

path = []


def recorded(x):
    """Return the Rosenbrock function, and record the point."""
    path.append(np.array(x))
    return float(rosen(x))


free = minimize(recorded, [-1.0, 1.5], method=fedzo.scipy_method(max_queries=400))
below = LinearConstraint([[1.0, 1.0]], -np.inf, 1.0)  # x + y <= 1
limited = fedzo.minimize(
    lambda x: float(rosen(x)), [-1.0, 1.5], constraints=below, max_queries=2000
)
print("free   ", free.x.round(3), "\nlimited", limited.x.round(3), f"violation {limited.maxcv:.1e}")

# %%
x, y = np.meshgrid(np.linspace(-1.5, 1.5, 100), np.linspace(-0.5, 2.0, 100))
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
axes.contour(x, y, np.log1p(rosen(np.array([x, y]))), levels=12, colors="0.7")
axes.plot(*np.array(path).T, ".", color="#0072B2", markersize=3, label="points of the free search")
axes.plot(*free.x, "o", color="#D55E00", label="free minimum")
axes.plot(*limited.x, "s", color="#009E73", label="minimum with x + y ≤ 1")
axes.set(
    xlabel="x", ylabel="y", title="The Rosenbrock function", xlim=(-1.5, 1.5), ylim=(-0.5, 2.0)
)
figure.legend(loc="outside lower center", ncols=3, fontsize=8)
