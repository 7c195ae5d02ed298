"""Tune a scikit-learn estimator on sites that keep their data: any estimator will do."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.svm import SVC

import fedzo

SITES = 5
images, labels = load_digits(return_X_y=True)
parts = np.array_split(np.argsort(labels, kind="stable"), 2 * SITES)  # few digits in each part
sites = [np.concatenate((parts[i], parts[(i + 3) % (2 * SITES)])) for i in range(SITES)]


def train_and_score(params, device, rng):  # lower is better: the error on held-out images
    own = rng.permutation(sites[device])
    train, held_out = own[:150], own[150:]
    model = SVC(C=params["C"], gamma=params["gamma"]).fit(images[train], labels[train])
    return 1 - model.score(images[held_out], labels[held_out])


space = {"C": fedzo.Float(1e-2, 1e3, log=True), "gamma": fedzo.Float(1e-6, 1.0, log=True)}

if __name__ == "__main__":  # parallel="processes" needs this line
    tuned = fedzo.tune(train_and_score, space, devices=SITES, max_queries=200)
    print(tuned.params, f"error {tuned.score:.3f} after {tuned.queries} trainings")
