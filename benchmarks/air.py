"""Over the air: what noise, spectrum and energy cost, and how coefficients compare with updates.

python benchmarks/air.py figure     loss against channel uses and energy: docs/results.md
python benchmarks/air.py noise      how much noise it can bear: docs/guides/wireless.md
python benchmarks/air.py digital    analogue or digital: docs/guides/wireless.md
python benchmarks/air.py papers     trends of three published papers: docs/guides/wireless.md
python benchmarks/air.py speed      the time of a round beside that of the ideal uplink

Two problems: softmax regression on the images that ship (d = 7,850), and the head of a network
(d = 650): a hidden layer of 64 units, trained on half of the test images and then fixed, below a
new output layer that 50 devices train, tested on the other half. Both have H = 5 and b2 = 20:
100 coefficients.
The noise of the receiver is that of 0 dB at 0 dBm: an SNR of s dB takes s dBm.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fedzo
from fedzo.plots.interval import interval
from fedzo.problems.softmax_regression import Softmax, softmax
from fedzo.uplinks.channels import Radio

IMAGES = Path(__file__).parents[1] / "docs" / "images" / "results"
SNRS = (-10, -5, 0, 10)


def head(data_seed: int = 0) -> Softmax:
    """Return the problem of a network's head: softmax regression on the units of a fixed layer."""
    from sklearn.neural_network import MLPClassifier

    whole = softmax(seed=data_seed)
    data = whole.data
    half = len(data.test_labels) // 2
    images, labels = data.test_inputs[:half] / 255.0, data.test_labels[:half]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 30 passes are enough for a body
        body = MLPClassifier((64,), max_iter=30, random_state=0).fit(images, labels)

    def units(inputs: Any) -> Any:
        out = np.maximum(inputs / 255.0 @ body.coefs_[0] + body.intercepts_[0], 0)
        return np.clip(255 * out / 6, 0, 255).astype(np.uint8)

    changes = {
        "train_inputs": units(data.train_inputs),
        "test_inputs": units(data.test_inputs[half:]),
        "test_labels": data.test_labels[half:],
    }
    return Softmax(replace(data, **changes), whole.parts)


@cache
def problem(name: str) -> Softmax:
    """Return a problem by its name."""
    return softmax() if name == "softmax" else head()


RATES = {"softmax": 0.001, "head": 0.003}


def one(job: tuple[str, str, Any, int, int, bool]) -> list[dict[str, Any]]:
    """Run one setting; return its history."""
    name, _, uplink, seed, rounds, shared = job
    algorithm = fedzo.FedZO(
        learning_rate=RATES[name], batch_size=25, directions=20, local_steps=5, participants=20,
        shared_directions=shared,
    )  # fmt: skip
    return fedzo.minimize(
        problem(name), algorithm=algorithm, uplink=uplink, rounds=rounds, seed=seed, workers=1,
        evaluate_every=10,
    ).history  # fmt: skip


def run(
    uplinks: dict[str, tuple[Any, bool]], names: Any, seeds: int, rounds: int, out: Path
) -> Any:
    """Run all settings; return histories by problem, label and seed. Finished ones are read."""
    out.mkdir(parents=True, exist_ok=True)
    jobs = [
        (name, label, uplink, seed, rounds, shared)
        for seed in range(seeds)
        for name in names
        for label, (uplink, shared) in uplinks.items()
    ]
    file = lambda job: out / f"{job[0]}-{job[1].replace(' ', '_').replace(',', '')}-{job[3]}.json"  # noqa: E731
    left = [job for job in jobs if not file(job).exists()]
    os.nice(10)
    with ProcessPoolExecutor(2) as pool:
        for job, history in zip(left, pool.map(one, left), strict=True):
            file(job).write_text(json.dumps(history))
    return {
        name: {
            label: [
                json.loads(file((name, label, None, seed)).read_text()) for seed in range(seeds)
            ]
            for label in uplinks
        }
        for name in names
    }


def radio(snr: float) -> Radio:
    """Return a radio of 1 MHz that has this SNR with the noise of 0 dB at 0 dBm."""
    return Radio(bandwidth_hz=1e6, power_dbm=10.0 if math.isinf(snr) else float(snr))


def air(snr: float, **settings: Any) -> tuple[Any, bool]:
    return fedzo.AirComp(snr_db=float(snr), radio=radio(snr), **settings), False


def coefficients(snr: float, **settings: Any) -> tuple[Any, bool]:
    return fedzo.AirCompSeeds(snr_db=float(snr), radio=radio(snr), **settings), True


def last(histories: Any, key: str) -> Any:
    return np.array([history[-1][key] for history in histories])


def accuracy(histories: Any) -> str:
    """Return the mean test accuracy in percent, with its 95 % interval."""
    got = interval(100 * last(histories, "test_accuracy"))
    return f"{got.mean:8.1f} [{got.low:.1f}, {got.high:.1f}]"


def draw(path: Path, panels: Any) -> None:
    """Draw panels of (title, x, y, log x, curves by label); a curve is histories or points."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from fedzo.plots.series import COLOURS, axis_label

    columns = 2 if len(panels) > 1 else 1
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6.2 * columns, 4.2 * rows), squeeze=False)
    for ax, (title, x, y, log_x, curves) in zip(axes.flat, panels, strict=False):
        for i, (label, (histories, style)) in enumerate(curves.items()):
            colour = style.get("colour", i) % len(COLOURS)
            points = np.array([[[r.get(x, 0), r[y]] for r in h[1:]] for h in histories])
            mean = points.mean(axis=0)
            line = style.get("line", "-")
            ax.plot(*mean.T, line, color=COLOURS[colour], label=label, lw=1.6)
            low, high = points[..., 1].min(axis=0), points[..., 1].max(axis=0)
            ax.fill_between(mean[:, 0], low, high, color=COLOURS[colour], alpha=0.15, lw=0)
        ax.set(title=title, xlabel=axis_label(x), ylabel=axis_label(y))
        ax.set_xscale("log" if log_x else "linear")
        ax.grid(alpha=0.3)
        ax.legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(path)


def figure(arguments: argparse.Namespace) -> None:
    uplinks: dict[str, Any] = {
        "ideal": (fedzo.Ideal(radio=radio(10)), False),
        "seeds": (fedzo.Seeds(radio=radio(10)), False),
        "coefficients no noise": coefficients(math.inf),
        **{f"updates {snr} dB": air(snr) for snr in SNRS},
        **{f"coefficients {snr} dB": coefficients(snr) for snr in SNRS},
        **{f"packed {snr} dB": coefficients(snr, packing=True) for snr in (-10, 0)},
    }
    found = run(uplinks, ("softmax", "head"), arguments.seeds, arguments.rounds, arguments.out)
    panels = []
    for name, runs in found.items():
        d = problem(name).dim
        print(f"\n{name}, d = {d}, {arguments.rounds} rounds, {arguments.seeds} seeds")
        heads = ("accuracy, %", "loss", "uses/round", "joules", "less than no noise")
        print(" " * 24 + "".join(map(str.rjust, heads, (22, 9, 12, 12, 26))))
        quiet = last(runs["coefficients no noise"], "test_accuracy")
        for label, histories in runs.items():
            ends = last(histories, "test_accuracy")
            got, less = interval(100 * ends), interval(100 * (quiet - ends))
            uses = last(histories, "channel_uses").mean() / arguments.rounds
            print(
                f"{label:24}{got.mean:8.2f} [{got.low:.2f}, {got.high:.2f}]"
                f"{last(histories, 'train_loss').mean():9.4f}{uses:12,.0f}"
                f"{last(histories, 'joules').mean():12.3g}"
                f"{less.mean:12.2f} [{less.low:.2f}, {less.high:.2f}]"
            )
        styles = {"ideal": (0, "-"), "seeds": (1, "-")}
        curves = {}
        for label, histories in runs.items():
            if label.startswith("packed -10") or label == "coefficients no noise":
                continue
            kind = label.split()[0]
            colour = {"updates": 2, "coefficients": 3, "packed": 4}.get(
                kind, styles.get(kind, (0,))[0]
            )
            line = {"-10": ":", "-5": "-.", "0": "--", "10": "-"}.get(
                label.split()[-2] if " " in label else "", "-"
            )
            curves[label] = (histories, {"colour": colour, "line": line})
        panels.append((f"{name}, d = {d:,}", "channel_uses", "train_loss", True, curves))
        panels.append((f"{name}, d = {d:,}", "joules", "train_loss", True, curves))
    draw(IMAGES / "air.png", panels)


def noise(arguments: argparse.Namespace) -> None:
    snrs = (-40, -30, -20, -10, 0, 10)
    uplinks = {
        f"{kind} {snr} dB": make(snr)
        for snr in snrs
        for kind, make in (("updates", air), ("coefficients", coefficients))
    }
    runs = run(uplinks, ("head",), arguments.seeds, arguments.rounds, arguments.out)["head"]
    print(f"{'SNR, dB':>8}{'updates: accuracy, noise':>30}{'coefficients':>30}")
    curves: dict[str, Any] = {}
    for kind in ("updates", "coefficients"):
        seeds = [
            [{}]
            + [
                {"snr": snr, "test_accuracy": runs[f"{kind} {snr} dB"][s][-1]["test_accuracy"]}
                for snr in snrs
            ]
            for s in range(arguments.seeds)
        ]
        curves[f"{kind} over the air"] = (seeds, {})
    for snr in snrs:
        cells = []
        for kind in ("updates", "coefficients"):
            h = runs[f"{kind} {snr} dB"]
            noise = last(h, "noise_to_update").mean()
            cells.append(f"{accuracy(h)}{noise:8.2f}")
        print(f"{snr:8}" + "".join(f"{cell:>30}" for cell in cells))
    draw(
        IMAGES / "air-noise.png",
        [
            (
                f"a network's head after {arguments.rounds} rounds",
                "snr",
                "test_accuracy",
                False,
                curves,
            )
        ],
    )


def digital(arguments: argparse.Namespace) -> None:
    link = {"snr_db": 0.0, "radio": radio(0)}
    uplinks: dict[str, Any] = {
        "updates, analogue": (fedzo.AirComp(**link), False),
        "updates, digital 8 bits": (fedzo.Digital(bits=8, **link), False),
        "updates, digital 2 bits": (fedzo.Digital(bits=2, **link), False),
        "coefficients, analogue": (fedzo.AirCompSeeds(**link), True),
        "coefficients, digital 8 bits": (
            fedzo.Digital(bits=8, payload="coefficients", **link),
            False,
        ),
        "coefficients, outage": (
            fedzo.Digital(
                bits=8, payload="coefficients", access="outage", rate=0.5, attempts=3, **link
            ),
            False,
        ),
    }
    runs = run(uplinks, ("head",), arguments.seeds, arguments.rounds, arguments.out)["head"]
    heads = ("accuracy, %", "uses/round", "seconds", "joules")
    print(f"{'0 dB, 1 MHz, 1 mW':32}" + "".join(map(str.rjust, heads, (22, 12, 10, 12))))
    for label, h in runs.items():
        uses = last(h, "channel_uses").mean() / arguments.rounds
        spent = [f"{last(h, key).mean():12.3g}" for key in ("seconds_on_air", "joules")]
        print(f"{label:32}{accuracy(h):>22}{uses:12,.0f}" + "".join(spent))
    curves = {label: (h, {}) for label, h in runs.items()}
    draw(
        IMAGES / "air-digital.png",
        [
            ("a network's head at 0 dB, 1 MHz", "seconds_on_air", "train_loss", True, curves),
            ("a network's head at 0 dB, 1 mW per device", "joules", "train_loss", True, curves),
        ],
    )


def papers(arguments: argparse.Namespace) -> None:
    groups: dict[str, dict[str, Any]] = {
        "Zhu et al. 2020: threshold, -20 dB": {
            f"h_min {h}": air(-20, h_min=h) for h in (0.1, 0.3, 0.7, 1.2, 1.8)
        },
        "Shao et al. 2021: phase error, 10 dB": {
            f"phase {p}": air(10, phase_error=p) for p in (0.0, 0.5, 1.0, 1.5, 3.0)
        },
        "Shao et al. 2021: misalignment, 10 dB": {
            f"late {m}": air(10, misalignment=m) for m in (0.0, 0.5, 1.0)
        },
        "Amiri et al. 2021: blind, 0 dB": {
            f"antennas {k}": air(0, antennas=k, combining="blind") for k in (1, 5, 25, 100, 400)
        },
    }
    for title, uplinks in groups.items():
        runs = run(uplinks, ("head",), arguments.seeds, arguments.rounds, arguments.out)["head"]
        print(f"\n{title}")
        for label, h in runs.items():
            took = np.mean([r["participants"] for one in h for r in one[1:]])
            noise = last(h, "noise_to_update").mean()
            print(f"  {label:16}{accuracy(h)} %, {took:.1f} devices, noise {noise:.2f}")


def speed(arguments: argparse.Namespace) -> None:
    """Measure rounds with all 50 devices, interleaved; print ratios of medians."""
    cell = fedzo.AirComp(channel=fedzo.uplinks.channels.Cell(), antennas=4, h_min=1e-9)
    uplinks = {
        "ideal": fedzo.Ideal(),
        "aircomp": fedzo.AirComp(h_min=1e-9),
        "cell, 4 antennas": cell,
    }
    uplinks["coefficients"] = fedzo.AirCompSeeds(h_min=1e-9)
    times: dict[str, list[float]] = {label: [] for label in uplinks}
    for _ in range(arguments.seeds + 4):
        for label, uplink in uplinks.items():
            algorithm = fedzo.FedZO(
                learning_rate=0.001, batch_size=25, directions=20, shared_directions=True
            )
            began = time.perf_counter()
            fedzo.minimize(
                problem("softmax"),
                algorithm=algorithm,
                uplink=uplink,
                rounds=10,
                workers=1,
                evaluate_every=10,
            )
            times[label].append(time.perf_counter() - began)
    middle = {label: statistics.median(each[1:]) for label, each in times.items()}
    for label, value in middle.items():
        print(f"{label:20}{100 * value:8.1f} ms per round, {value / middle['ideal']:.3f} of ideal")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("figure", "noise", "digital", "papers", "speed"))
    parser.add_argument("--seeds", type=int, help="5, or 3 for noise, digital and papers")
    parser.add_argument("--rounds", type=int, help="120, or 60 for noise, digital and papers")
    parser.add_argument("--out", type=Path, default=Path("runs/air"))
    arguments = parser.parse_args()
    few = arguments.what in ("noise", "digital", "papers")
    arguments.seeds = arguments.seeds or (3 if few else 5)
    arguments.rounds = arguments.rounds or (60 if few else 120)
    arguments.out = arguments.out / arguments.what
    globals()[arguments.what](arguments)


if __name__ == "__main__":
    main()
