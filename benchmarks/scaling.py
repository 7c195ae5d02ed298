"""How the time and the memory of a round grow with its parameters; `make bench` prints it.

python benchmarks/scaling.py [--quick]
"""

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedzo import FedZO, Objective
from fedzo.core.random import Draws
from fedzo.core.tasks import Losses
from fedzo.core.types import Array
from timing import PAPER, medians, one_round


class Synthetic(Objective):
    """f_i(x) = 1/2 |x - c_i|^2 with c_i computed on demand: memory does not grow with N."""

    def __init__(self, dim: int, devices: int) -> None:
        self.dim, self.devices = dim, devices

    def initial(self) -> Array:
        """Start at zero, in single precision."""
        return np.zeros(self.dim, np.float32)

    def batch(self, device: int, size: int, draws: Draws) -> float:
        """Return the device's centre, the same number in all coordinates."""
        return device / self.devices

    def values(self, points: Array, batch: float) -> Array:
        """Return the loss at each point, (k, 1)."""
        return np.asarray(0.5 * np.sum((points - batch) ** 2, axis=1, keepdims=True))

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: float
    ) -> Array:
        """Expand the square: two products with the directions, no points."""
        away = x - np.float32(batch)
        linear = (directions @ away)[rows]
        square = np.einsum("nd,nd->n", directions, directions)[rows]
        values = 0.5 * away @ away + steps * linear + 0.5 * steps**2 * square
        return np.asarray(values[:, None])

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x), for many devices at once."""
        centres = devices / self.devices
        return np.asarray(
            0.5 * (float(x @ x) - 2 * centres * float(x.sum()) + self.dim * centres**2)
        )


def growth(repeats: int) -> None:
    """Print how a round's time grows: the slope of log time against log of each parameter."""
    print("\nhow a round's time grows: one parameter varies from d=2000, M=10, H=5, b2=20")
    rows = {
        "devices N": ("devices", (100, 1000, 10_000, 100_000)),
        "participants M": ("participants", (10, 20, 40, 80)),
        "local steps H": ("local_steps", (5, 10, 20, 40)),
        "directions b2": ("directions", (20, 40, 80, 160)),
        "dimension d": ("dim", (2000, 8000, 32_000, 128_000)),
    }
    for name, (key, values) in rows.items():
        seconds = []
        for value in values:
            sizes: dict[str, Any] = {"participants": 10, "local_steps": 5, "directions": 20}
            sizes |= {"dim": 2000, "devices": 1000, key: value}
            objective = Synthetic(sizes.pop("dim"), sizes.pop("devices"))
            engine, action = one_round(objective, FedZO(**sizes), None)
            with engine:
                seconds.append(medians({"round": action}, repeats)["round"])
        slope = np.polyfit(np.log(values), np.log(seconds), 1)[0]
        times = "  ".join(f"{v:,}: {s * 1e3:.1f} ms" for v, s in zip(values, seconds, strict=True))
        print(f"  {name:<16} slope {slope:5.2f}   {times}")


def memory(device_counts: Sequence[int]) -> None:
    """Print the peak memory of a process that runs a few rounds with N devices."""
    print("\npeak memory of a run, synthetic objective, d=10,000, M=20")
    for devices in device_counts:
        child = subprocess.run(
            [sys.executable, __file__, str(devices)],
            check=True,
            capture_output=True,
            text=True,
        )
        print(f"  N = {devices:>9,}   {float(child.stdout):8.0f} MB")


def peak_memory(devices: int) -> float:
    """Run three rounds and an evaluation; return this process's peak memory in MB."""
    engine, action = one_round(Synthetic(10_000, devices), PAPER, 2)
    with engine:
        for _ in range(3):
            action()
        mean = engine.ask(Losses(np.zeros(10_000, np.float32))).losses.mean()
    assert math.isfinite(mean)
    # Not getrusage's ru_maxrss, which a child begins with its parent's.
    status = Path("/proc/self/status").read_text()
    return int(next(s for s in status.splitlines() if s.startswith("VmHWM")).split()[1]) / 1024


def main(quick: bool) -> None:
    growth(3 if quick else 15)
    memory([100, 10_000] if quick else [100, 10_000, 1_000_000])


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].isdigit():
        print(peak_memory(int(sys.argv[1])))
    else:
        main(quick="--quick" in sys.argv)
