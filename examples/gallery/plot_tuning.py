"""
# Tune hyper-parameters where the data are

**For engineers who tune.** Each device trains on its own data and returns one score. No sample leaves a device.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

import fedzo

images, labels = load_digits(return_X_y=True)
held = np.array_split(np.random.default_rng(0).permutation(len(images)), 4)


def train_and_score(params, device, rng):
    """Return the loss on held-out images of one device."""
    train, held_out = np.split(rng.permutation(held[device]), [200])
    model = SGDClassifier(loss="log_loss", learning_rate="constant", max_iter=5, tol=None, **params)
    model.fit(images[train] / 16, labels[train])
    return log_loss(labels[held_out], model.predict_proba(images[held_out] / 16))


space = {"alpha": fedzo.Float(1e-6, 1.0, log=True), "eta0": fedzo.Float(1e-4, 1.0, log=True)}
tuned = fedzo.tune(train_and_score, space, devices=4, max_queries=160)
print(tuned.params, f"loss {tuned.score:.3f} after {tuned.queries} trainings")

# %%
trials = tuned.trials_dataframe()
figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
points = axes.scatter(
    trials["params_alpha"], trials["params_eta0"], c=trials["score"], cmap="cividis_r", vmax=1.5
)
axes.plot(
    tuned.params["alpha"], tuned.params["eta0"], "*", color="#D55E00", markersize=14, label="best"
)
axes.set(xscale="log", yscale="log", xlabel="alpha", ylabel="eta0", title="All trials")
axes.legend()
figure.colorbar(points, label="loss on held-out images")
