"""Tune a scikit-learn estimator on devices that keep their data: any estimator will do."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

import fedzo

DEVICES = 5
images, labels = load_digits(return_X_y=True)
held = [np.flatnonzero(labels // 2 == i) for i in range(DEVICES)]  # two digits each


def train_and_score(params, device, rng):  # lower is better: the loss on held-out images
    own = rng.permutation(held[device])
    train, held_out = own[:100], own[100:]
    model = SGDClassifier(loss="log_loss", learning_rate="constant", max_iter=5, tol=None,
                          random_state=int(rng.integers(1 << 31)), **params)  # fmt: skip
    model.fit(images[train] / 16, labels[train])
    return log_loss(labels[held_out], model.predict_proba(images[held_out] / 16))


space = {"alpha": fedzo.Float(1e-6, 1.0, log=True), "eta0": fedzo.Float(1e-4, 1.0, log=True)}

if __name__ == "__main__":  # parallel="processes" needs this line
    tuned = fedzo.tune(train_and_score, space, devices=DEVICES, max_queries=200)
    print(tuned.params, f"loss {tuned.score:.3f} after {tuned.queries} trainings")
