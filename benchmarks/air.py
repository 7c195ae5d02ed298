"""Over the air: what noise, spectrum and energy cost, and how coefficients compare with updates.

python benchmarks/air.py figure     loss against channel uses and energy: docs/results/air.md
python benchmarks/air.py noise      how much noise it can bear: docs/guides/wireless.md
python benchmarks/air.py digital    analogue or digital: docs/guides/wireless.md
python benchmarks/air.py papers     trends of three published papers: docs/guides/wireless.md
python benchmarks/air.py speed      the time of a round beside that of the ideal uplink

Two problems: softmax regression (d = 7,850), and the head of a network
(d = 650): a hidden layer of 64 units, trained on half of the test images and then fixed, below a
new output layer that 50 devices train, tested on the other half. Both have H = 5 and b2 = 20:
100 coefficients.
The noise of the receiver is that of 0 dB at 0 dBm: an SNR of s dB takes s dBm.
"""

from __future__ import annotations

import argparse
import json
import math
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
DATA = "fashion-mnist"


def head(data_seed: int = 0) -> Softmax:
    """Return the problem of a network's head: softmax regression on the units of a fixed layer."""
    from sklearn.neural_network import MLPClassifier

    whole = softmax(data=DATA, seed=data_seed)
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
    if name == "head":
        return head()
    return softmax(data=DATA if name == "full" else "fashion-mnist-mini")


RATES = {"softmax": 0.001, "full": 0.001, "head": 0.01}


def one(job: tuple[str, str, Any, int, int, bool]) -> list[dict[str, Any]]:
    """Run one setting; return its history."""
    name, _, uplink, seed, rounds, shared = job
    algorithm = fedzo.FedZO(
        learning_rate=RATES[name], batch_size=25, directions=20, local_steps=5, participants=20,
        shared_directions=shared,
    )  # fmt: skip
    return fedzo.minimize(
        problem(name), algorithm=algorithm, uplink=uplink, rounds=rounds, seed=seed, workers=1,
        evaluate_every=20,
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
    return f"{got.mean:.1f} [{got.low:.1f}, {got.high:.1f}]"


def loss(histories: Any) -> str:
    """Return the mean training loss, with its 95 % interval."""
    got = interval(last(histories, "train_loss"))
    return f"{got.mean:.3f} [{got.low:.3f}, {got.high:.3f}]"


def draw(path: Path, panels: Any) -> None:
    """Draw panels of (title, x, y, log x, curves by label); a curve is histories or points."""
    from matplotlib.figure import Figure

    from fedzo.core.style import COLOURS, LEGEND, dress
    from fedzo.plots.series import axis_label

    columns = 2 if len(panels) > 1 else 1
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.6 * rows + 0.5), dpi=150, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax, (title, x, y, log_x, curves) in zip(axes.flat, panels, strict=False):
        for i, (label, (histories, style)) in enumerate(curves.items()):
            colour = style.get("colour", i) % len(COLOURS)
            points = np.array([[[r.get(x, 0), r[y]] for r in h[1:]] for h in histories])
            mean = points.mean(axis=0)
            line = style.get("line", "-")
            ax.plot(*mean.T, line, color=COLOURS[colour], label=label, lw=1.6)
            low, high = points[..., 1].min(axis=0), points[..., 1].max(axis=0)
            ax.fill_between(mean[:, 0], low, high, color=COLOURS[colour], alpha=0.15, lw=0)
        dress(ax, title, axis_label(x), axis_label(y))
        ax.set_xscale("log" if log_x else "linear")
    handles = axes.flat[0].get_legend_handles_labels()
    wide = min(2 * columns, len(handles[1]))
    figure.legend(*handles, loc="outside lower center", ncols=wide, **LEGEND)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(path)


def figure(arguments: argparse.Namespace) -> None:
    uplinks: dict[str, Any] = {
        "ideal": (fedzo.Ideal(radio=radio(10)), False),
        "seeds": (fedzo.Seeds(radio=radio(10)), False),
        QUIET: coefficients(math.inf),
        **{f"updates {snr} dB": air(snr) for snr in SNRS},
        **{f"coefficients {snr} dB": coefficients(snr) for snr in SNRS},
        **{f"packed {snr} dB": coefficients(snr, packing=True) for snr in (-10, 0)},
    }
    claimed = {label: uplinks[label] for label in (QUIET, *CLAIMED)}
    settings = arguments.rounds, arguments.out
    found = run(claimed, ("full",), CLAIM_SEEDS, *settings)
    found |= run(uplinks, ("softmax", "head"), arguments.seeds, *settings)
    found = {name: found[name] for name in TITLES}
    panels, text = (
        [],
        [SECTION.format(seeds=arguments.seeds, rounds=arguments.rounds, more=CLAIM_SEEDS)],
    )
    for name, runs in found.items():
        d = problem(name).dim
        text += [f"\n{TITLES[name]}, d = {d:,}:\n", ROW.format(*HEADS), "| --- " * len(HEADS) + "|"]
        quiet, claims = last(runs[QUIET], "test_accuracy"), []
        for label, histories in runs.items():
            less = interval(100 * (quiet - last(histories, "test_accuracy")))
            uses = last(histories, "channel_uses").mean() / arguments.rounds
            loss, joules = (last(histories, key).mean() for key in ("train_loss", "joules"))
            told = f"{less.mean:.2f} [{less.low:.2f}, {less.high:.2f}]" if label != QUIET else ""
            cells = (label, accuracy(histories), f"{loss:.4f}", f"{uses:,.0f}", f"{joules:.3g}")
            text.append(ROW.format(*cells, told))
            if label in CLAIMED:
                inside = less.low >= -1 and less.high <= 1
                verdict = "holds" if inside else "cannot tell"
                if less.low > 1 or less.high < -1:
                    verdict = "does not hold"
                claims.append(f"{label}: **{verdict}**, {d / uses:.4g} times fewer channel uses")
        text.append("\nWithin 1 point of the accuracy without noise: " + "; ".join(claims) + ".")
        if name == "full":
            continue
        curves = {}
        for label, histories in runs.items():
            kind, *rest = label.split()
            if rest[:1] == ["no"] or label == "packed -10 dB":
                continue
            line = {"-10": ":", "-5": "-.", "0": "--"}.get(rest[0] if rest else "", "-")
            curves[label] = (histories, {"colour": KINDS.index(kind), "line": line})
        panels.append((f"{TITLES[name]}, d = {d:,}", "channel_uses", "train_loss", True, curves))
        panels.append((f"{TITLES[name]}, d = {d:,}", "joules", "train_loss", True, curves))
    draw(IMAGES / "air.png", panels)
    page = IMAGES.parents[1] / "results" / "air.md"
    page.write_text("\n".join([MARK, *text, ""]), encoding="utf-8")
    print("\n".join(text))


QUIET = "coefficients no noise"
CLAIM_SEEDS = 20  # of the claims on all of Fashion-MNIST: with 5 the interval was 2.6 points wide
KINDS = ("ideal", "seeds", "updates", "coefficients", "packed")
CLAIMED = ("coefficients -10 dB", "coefficients 0 dB", "packed -10 dB", "packed 0 dB")
TITLES = {
    "softmax": "Softmax regression",
    "full": "Softmax regression on all of Fashion-MNIST",
    "head": "A network's head",
}
MARK = "<!-- python benchmarks/air.py figure writes this page -->"
ROW = "| {} | {} | {} | {} | {} | {} |"
HEADS = ("uplink", "accuracy, %", "loss", "uses per round", "joules", "points below no noise")
SECTION = """# Coefficients over the air (N = 50, H = 5, b2 = 20)

Made by `python benchmarks/air.py figure`. What the devices send at once: whole updates (`aircomp`,
d symbols per round), or the coefficients of directions that they share (`aircomp_seeds`,
H b2 = 100 symbols; 50 if two are packed into one
symbol). Beside them `ideal` and `seeds`, in which 20 devices send one after another, one number per
symbol, without errors and at 10 mW. Over the air, the devices above the threshold take part. The
receiver's noise is that of 0 dB at 1 mW, so s dB takes 10^(s/10) mW; bandwidth 1 MHz. Softmax
regression is on the 5,000 images that ship, and for the claims on all of Fashion-MNIST; two shards
of labels per device. {rounds} rounds; {seeds} seeds, and {more} on all of Fashion-MNIST; 95 %
intervals of the mean, differences seed by seed. "Times fewer" is beside the d channel uses of
whole updates. η = 0.001 for softmax regression and 0.01 for the head.

![Loss against channel uses and energy](../images/results/air.png)
"""


def noise(arguments: argparse.Namespace) -> None:
    snrs, makers = (-40, -30, -20, -10, 0, 10), {"updates": air, "coefficients": coefficients}
    uplinks = {f"{kind} {snr} dB": make(snr) for snr in snrs for kind, make in makers.items()}
    runs = run(uplinks, ("head",), arguments.seeds, arguments.rounds, arguments.out)["head"]
    print(
        "| SNR, dB | what is sent | loss | accuracy, % | noise over update |\n| --- "
        + "| --- " * 4
        + "|"
    )
    curves: dict[str, Any] = {}
    for kind in makers:
        ends = [[h[-1] for h in runs[f"{kind} {snr} dB"]] for snr in snrs]
        seeds = [
            [{}, *({"SNR, dB": s, **e[i]} for s, e in zip(snrs, ends, strict=True))]
            for i in range(arguments.seeds)
        ]
        curves[f"{kind} over the air"] = (seeds, {})
    for label, h in runs.items():
        kind, snr, _ = label.split()
        added = last(h, "noise_to_update").mean()
        print(f"| {snr} | {kind} | {loss(h)} | {accuracy(h)} | {added:.2f} |")
    draw(
        IMAGES / "air-noise.png",
        [
            (
                f"A network's head after {arguments.rounds} rounds",
                "SNR, dB",
                "train_loss",
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
    print(
        "| 0 dB, 1 MHz, 1 mW | loss | uses per round | seconds on air | joules |\n"
        + "| --- " * 5
        + "|"
    )
    for label, h in runs.items():
        uses = last(h, "channel_uses").mean() / arguments.rounds
        spent = [f"{last(h, key).mean():.3g}" for key in ("seconds_on_air", "joules")]
        print(f"| {label} | {loss(h)} | {uses:,.0f} | {' | '.join(spent)} |")
    curves = {label: (h, {}) for label, h in runs.items()}
    draw(
        IMAGES / "air-digital.png",
        [
            ("A network's head at 0 dB, 1 MHz", "seconds_on_air", "train_loss", True, curves),
            ("A network's head at 0 dB, 1 mW per device", "joules", "train_loss", True, curves),
        ],
    )


def papers(arguments: argparse.Namespace) -> None:
    groups: dict[str, dict[str, Any]] = {
        "Zhu et al. 2020: threshold, -20 dB": {
            f"h_min {h}": air(-20, h_min=h) for h in (0.1, 0.3, 0.7, 1.2, 1.8)
        },
        "Shao et al. 2022: phase error, 10 dB": {
            f"phase {p}": air(10, phase_error=p) for p in (0.0, 0.5, 1.0, 1.5, 3.0)
        },
        "Shao et al. 2022: misalignment, 10 dB": {
            f"late {m}": air(10, misalignment=m) for m in (0.0, 0.5, 1.0)
        },
        "Amiri et al. 2021: blind, 0 dB": {
            f"antennas {k}": air(0, antennas=k, combining="blind") for k in (1, 5, 25, 100, 400)
        },
    }
    for title, uplinks in groups.items():
        runs = run(uplinks, ("head",), arguments.seeds, arguments.rounds, arguments.out)["head"]
        print(
            f"\n| {title} | loss | accuracy, % | devices | noise over update |\n"
            + "| --- " * 5
            + "|"
        )
        for label, h in runs.items():
            took = np.mean([r["participants"] for one in h for r in one[1:]])
            added = last(h, "noise_to_update").mean()
            print(f"| {label} | {loss(h)} | {accuracy(h)} | {took:.1f} | {added:.2f} |")


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
    parser.add_argument("--seeds", type=int, help="5 by default")
    parser.add_argument("--rounds", type=int, help="120, or 60 for noise, digital and papers")
    parser.add_argument("--out", type=Path, default=Path("runs/air"))
    arguments = parser.parse_args()
    few = arguments.what in ("noise", "digital", "papers")
    arguments.seeds = arguments.seeds or 5
    arguments.rounds = arguments.rounds or (60 if few else 120)
    arguments.out = arguments.out / arguments.what
    globals()[arguments.what](arguments)


if __name__ == "__main__":
    main()
