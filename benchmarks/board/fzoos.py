"""FZooS: devices fit Gaussian processes to their past values, and step along the slope of the mean.

Y. Shu, X. Lin, Z. Dai and B. K. H. Low, "Federated Zeroth-Order Optimization using
Trajectory-Informed Surrogate Gradients", arXiv:2308.04077, 2023. Where the paper leaves a choice,
the one of the authors' experiments is taken: 150 past points, active queries at the start of a
round.

Two things differ. Their devices evaluate one function each, while here a round draws a batch. So
the process has an unknown offset per round, which all values of that batch share. And the length of
the kernel is a setting, not fitted.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import fedzo
from fedzo.algorithms.base import RoundInfo
from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.random import Draws, Stream

OFFSET = 100.0  # prior variance of a batch's offset, in units of the kernel's
CANDIDATES = 100  # for active queries


class State(NamedTuple):
    """The model, the surrogates' weights, and what each device remembers."""

    x: np.ndarray
    mean: np.ndarray  # (features,), weights of the global surrogate
    weights: np.ndarray  # (N, features), of each device
    past: np.ndarray  # (N, memory, d + 2): points, values and rounds; the round is -1 if empty


@lru_cache(maxsize=1)
def features(seed: int, count: int, dim: int, length: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the frequencies, (count, d), and phases of random Fourier features, eq. (8)."""
    draws = Draws(seed, Stream.CHOICES, round=0, task=1)
    frequencies = (draws.normals(count, dim) / length).astype(np.float32)
    return frequencies, 2 * np.pi * draws._replace(step=1).uniform(count)


@dataclass(frozen=True, kw_only=True)
class FZooS(fedzo.Algorithm):
    """Algorithm 2 of the paper, with γ = 1/k at local step k.

    Parameters
    ----------
    directions : int
        Active queries at the start of a round, in addition to a value per local step.
    smoothing : float
        How far from the model they are.
    length, noise : float
        Length of the squared exponential kernel; variance of a value, its range being 1.
    features : int
        Random Fourier features: the numbers that a device sends in addition to its update.
    memory : int
        Past points of a device.
    """

    learning_rate: float = 0.1
    local_steps: int = 5
    participants: int = 10
    batch_size: int = 5
    directions: int = 50
    smoothing: float = 0.1
    length: float = 1.0
    noise: float = 1e-4
    features: int = 500
    memory: int = 150

    def init(self, x0: np.ndarray, setting: Any) -> State:
        """Return the state before round 0: no device has evaluated anything."""
        n, d = setting.devices, x0.size
        past = np.zeros((n, self.memory, d + 2), np.float32)
        past[:, :, -1] = -1
        return State(x0, np.zeros(self.features), np.zeros((n, self.features)), past)

    def round(self, t: int, state: State, setting: Any) -> Any:
        """Yield the local steps; average models and surrogates."""
        devices = setting.uplink.participants(t, self.participants, setting)
        rows = {"past": state.past[devices]}
        rows["shift"] = state.mean - state.weights[devices]  # global less local surrogate
        task = LocalSteps(
            seed=setting.seed, round=t, devices=devices, algorithm=self, x=state.x,
            learning_rate=self.learning_rate, rows=rows,
        )  # fmt: skip
        weights, past, updates = state.weights.copy(), state.past.copy(), []
        for update in (yield task):
            weights[update.device] = update.values[: self.features]
            past[update.device] = update.values[self.features :].reshape(self.memory, -1)
            updates.append(update._replace(values=None))
        replies = Replies(updates, task)
        delta, sent = setting.uplink.aggregate(t, replies, setting)
        more = 4 * self.features * len(updates)  # surrogates up and down, in single precision
        up, down = sent.uplink_bytes + more, sent.downlink_bytes + more
        sent = sent._replace(uplink_bytes=up, downlink_bytes=down)
        mean = weights[devices].mean(axis=0)
        return State(state.x + delta, mean, weights, past), RoundInfo.of(replies, sent)

    def local(self, objective: Any, device: int, task: LocalSteps, draws: Draws) -> Update:
        """Return the update of a device; its values are its surrogate and its memory."""
        start = np.asarray(task.start(device), np.float32)
        d, phi = start.size, np.sqrt(2 / self.features)
        frequencies, phases = features(task.seed, self.features, d, self.length)
        shift = task.row("shift", device) * phi
        batch = objective.batch(device, self.batch_size, draws)
        old = task.row("past", device)
        memory = Memory(self, start, old[old[:, -1] >= 0])

        def query(offsets: np.ndarray) -> None:
            points = (start + offsets).astype(task.x.dtype)
            memory.add(offsets, objective.values(points, batch).mean(axis=1), task.round)

        offset = np.zeros(d, np.float32)  # of the device's model from where it started
        query(np.vstack([self.active(memory, draws), offset]))
        for k in range(1, self.local_steps + 1):
            slope = memory.slope(offset)  # eq. (4)
            phase = frequencies @ (start + offset) + phases
            correction = -(np.sin(phase) * shift).astype(np.float32) @ frequencies
            step = self.learning_rate * (slope + correction / k)  # eq. (6)
            offset = (offset - step).astype(np.float32)
            query(offset[None])
        past = memory.rows()
        seen = phi * np.cos(past[:, :-2] @ frequencies.T + phases)
        values, scale = memory.scaled()
        weights = scale * seen.T @ np.linalg.solve(memory.noisy(seen @ seen.T), values)  # eq. (8)
        kept = np.zeros((self.memory, d + 2), np.float32)
        kept[:, -1] = -1
        kept[-len(past) :] = past
        queries = (1 + self.directions + self.local_steps) * self.batch_size
        numbers = np.concatenate([weights, kept.ravel()])
        return Update(device, offset.astype(task.x.dtype), 1.0, queries, values=numbers)

    def active(self, memory: "Memory", draws: Draws) -> np.ndarray:
        """Return the candidates around the start where the slope is least known."""
        away = draws.normals(CANDIDATES, memory.start.size).astype(np.float32)
        away *= self.smoothing / np.linalg.norm(away, axis=1, keepdims=True)
        return away[np.argsort(memory.known(away))[: self.directions]]


class Memory:
    """A device's past points, as offsets from the start of the round, and their inner products."""

    def __init__(self, settings: FZooS, start: np.ndarray, past: np.ndarray) -> None:
        self.settings, self.start = settings, start
        self.offsets = past[:, :-2] - start
        self.values, self.when = past[:, -2].astype(float), past[:, -1]
        self.inner = (self.offsets @ self.offsets.T).astype(float)

    def add(self, offsets: np.ndarray, values: np.ndarray, round: int) -> None:
        """Add points, and forget the oldest ones."""
        most = self.settings.memory
        cross, own = offsets @ self.offsets.T, offsets @ offsets.T
        self.inner = np.block([[self.inner, cross.T], [cross, own]])[-most:, -most:]
        self.offsets = np.vstack([self.offsets, offsets])[-most:]
        self.values = np.append(self.values, values)[-most:]
        self.when = np.append(self.when, np.full(len(values), round))[-most:]

    def rows(self) -> np.ndarray:
        """Return points, values and rounds."""
        return np.column_stack([self.start + self.offsets, self.values, self.when])

    def slope(self, offset: np.ndarray) -> np.ndarray:
        """Return the gradient of the posterior mean."""
        values, scale = self.scaled()
        solved = np.linalg.solve(self.noisy(self.kernel(self.inner)), values)
        near = self.offsets - offset
        weights = solved * self.decay(np.sum(near**2, axis=1))
        return np.asarray(scale * (weights @ near) / self.settings.length**2)

    def known(self, offsets: np.ndarray) -> np.ndarray:
        """Return by how much the past lowers the variance of the slope at each point."""
        if not len(self.values):
            return np.zeros(len(offsets))
        inverse = np.linalg.inv(self.noisy(self.kernel(self.inner)))
        cross, squares = offsets @ self.offsets.T, np.sum(offsets**2, axis=1)
        found = []
        for c, square in zip(cross, squares, strict=True):
            between = square - c[:, None] - c[None, :] + self.inner  # (z - x_j)·(z - x_k)
            row = self.decay(np.diag(between))
            found.append(row @ (inverse * between) @ row)
        return np.asarray(found)

    def scaled(self) -> tuple[np.ndarray, float]:
        """Return the values less their mean, over their range, and that range."""
        scale = float(np.ptp(self.values)) or 1.0
        return (self.values - self.values.mean()) / scale, scale

    def kernel(self, inner: np.ndarray) -> np.ndarray:
        """Return the squared exponential kernel of points with these inner products."""
        own = np.diag(inner)
        return self.decay(own[:, None] + own - 2 * inner)

    def decay(self, squares: np.ndarray) -> np.ndarray:
        """Return the kernel at these squared distances."""
        return np.asarray(np.exp(-np.maximum(squares, 0) / (2 * self.settings.length**2)))

    def noisy(self, kernel: np.ndarray) -> np.ndarray:
        """Return the covariance of the values: with the noise, and an offset per round."""
        same = self.when[:, None] == self.when
        return kernel + OFFSET * same + self.settings.noise * np.eye(len(same))
