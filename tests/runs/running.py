"""Small problems and helpers that the tests of runs share."""

import json
import tomllib

import numpy as np

import fedzo
from fedzo import FedZO

CENTRES = np.array([[1.0, 0.0, 2.0], [3.0, -2.0, 0.0], [2.0, 2.0, 1.0], [0.0, 1.0, 0.0]])
SMALL = FedZO(
    learning_rate=0.05, smoothing=1e-3, batch_size=3, directions=4, local_steps=2, participants=5
)


def distance(x, device):
    return float(np.sum((x - CENTRES[device]) ** 2))


def untimed(history):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in history]


def untimed_history(folder):
    return untimed(records(folder))


def records(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def read_config(folder):
    """Return the configuration without what makes no difference to a run."""
    tables = tomllib.loads((folder / "config.toml").read_text())
    tables["run"].pop("workers", None)
    return tables


def assert_same_files(one, other):
    assert (one / "model.npy").read_bytes() == (other / "model.npy").read_bytes()
    assert untimed_history(one) == untimed_history(other)
    assert read_config(one) == read_config(other)
    assert sorted(p.name for p in one.iterdir()) == sorted(p.name for p in other.iterdir())


class Spoiled(fedzo.Objective):
    """Finite everywhere but where it is told not to be.

    In the given round (from 1, as a history counts) the values of one device are bad; the
    loss of ``bad_loss`` is bad once x has left the start, or at once if ``from_start``.
    """

    dim, devices = 3, 6

    def __init__(self, bad=np.nan, round=None, device=3, bad_loss=None, from_start=False):
        self.bad, self.round, self.device = bad, round, device
        self.bad_loss, self.from_start = bad_loss, from_start

    def batch(self, device, size, draws):
        return device, draws.round + 1

    def values(self, points, batch):
        device, at = batch
        values = np.sum((points - 1) ** 2, axis=1)[:, None]
        if device == self.device and at == self.round:
            values[-1] = self.bad
        return values

    def losses(self, x, devices):
        losses = np.full(len(devices), np.sum((x - 1) ** 2))
        if self.from_start or np.any(x != 0):
            losses[devices == self.bad_loss] = self.bad
        return losses
