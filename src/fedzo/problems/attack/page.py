"""The page that a tester hands in: ``attack.html``, one file that can be read and printed."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedzo.core.files import write_atomic
from fedzo.core.style import COLOURS, frame
from fedzo.core.types import Array
from fedzo.core.waves import is_image
from fedzo.variables.perturbation import LEVELS, Distortion, Perturbation

_DRAWN = 6  # inputs in the picture
_Z = 1.959963984540054  # of a 95 % interval
_STYLE = """
body { max-width: 920px; } h1 { overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: .6rem 0; width: 100%; }
td, th { border-bottom: 1px solid var(--line); padding: .25rem .6rem .25rem 0; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
td:first-child { overflow-wrap: break-word; min-width: 6rem; }
.finding { border-left: 6px solid var(--bad); background: var(--panel); padding: .8rem 1rem;
  max-width: none; font-size: 1.15rem; margin: 1rem 0; }
.finding.safe { border-color: var(--good); }
.three { display: grid; grid-template-columns: repeat(3, 1fr); gap: .6rem; margin: .8rem 0; }
figure { margin: 0; } figcaption { font-size: .85rem; color: var(--faint); }
.three img { width: 100%; image-rendering: pixelated; border: 1px solid var(--faint); }
@media (max-width: 500px) { .three { grid-template-columns: 1fr; } }
.charts svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
@media print { section { break-inside: avoid; } body { max-width: none; } }
"""


class Reported(NamedTuple):
    """The inputs of a report, and the predictions of the model; None if they are not known."""

    whose: str  # "held out" or "own"
    clean: Array  # (n, ...), in the model's range
    perturbed: Array
    distortion: Distortion
    labels: Array  # (n,)
    before: Array | None  # predictions, (n,)
    after: Array | None
    classes: list[str]
    target: int | None


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a rate (Wilson, 1927).

    >>> [round(end, 4) for end in wilson(8, 10)], wilson(0, 0)
    ([0.4902, 0.9433], (0.0, 1.0))
    """
    if not count:
        return 0.0, 1.0
    rate, square = successes / count, _Z**2 / count
    middle = (rate + square / 2) / (1 + square)
    half = _Z * math.sqrt(rate * (1 - rate) / count + square / (4 * count)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def write_page(report: Mapping[str, Any], inputs: Reported, perturbation: Perturbation) -> str:
    """Return the page as HTML, from the content of ``attack.json`` and its inputs."""
    css = files("fedzo").joinpath("plots", "page", "page.css").read_text(encoding="utf-8")
    name = escape(str(report["model"]))
    parts = [
        "<!DOCTYPE html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Robustness of {name}</title><style>{css}{_STYLE}</style><body>",
        f"<h1>Robustness of {name}</h1>",
        _verdict(report),
        _section("What was tested", _table(_facts(report))),
        _section("Success", _charts(report) + _classes(report)),
    ]
    if is_image(perturbation.noise.shape):
        parts.append(_section("Before and after", _pictures(inputs, perturbation)))
    parts.append(_section("What survives", _table(_survival(report))))
    parts.append(_section("Would a defender notice?", _defender(report)))
    return "\n".join(parts) + "</body></html>\n"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    cells = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


def _rate(rate: float | None, count: int) -> str:
    if rate is None:
        return "not measured: no queries were left"
    low, high = wilson(round(rate * count), count)
    return f"{rate:.0%} of {count:,} inputs (95 % interval {low:.0%} to {high:.0%})"


def _eps(report: Mapping[str, Any]) -> str:
    if report["eps"] is None:
        return "no limit: distortion costs, as in the paper"
    if report["norm"] == "inf":
        return f"ε = {LEVELS * report['eps']:.3g}/{LEVELS} in L∞"
    return f"ε = {report['eps']:.3g} in L2, in units of the input's range"


def _verdict(report: Mapping[str, Any]) -> str:
    rate, count, whose = report["success"], report["inputs"]["count"], report["inputs"]["whose"]
    if rate is None:
        return "<p class='finding'>Not measured: no queries were left.</p>"
    before = report["inputs"].get("error_before")
    clean = "" if before is None else f" Without it, the model errs on {before:.0%}."
    does = "errs" if report["target"] is None else f"answers {escape(str(report['target']))}"
    kind = "" if rate - (before or 0) > 0.1 else " safe"
    inputs = "inputs that were held out" if whose == "held out" else "the devices' inputs"
    words = (
        f"With one perturbation, the same for all inputs, the model {does} on {_rate(rate, count)}"
    )
    return f"<p class='finding{kind}'>{words}: {inputs}.{clean}</p>"


def _facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    moved = report["distortion"]
    answers = f"its answers only ({report['outputs']}); no weights, no gradients"
    goal = "any wrong class" if report["target"] is None else escape(str(report["target"]))
    size = (
        f"largest change {LEVELS * moved['linf_max']:.3g}/{LEVELS}, mean L2 {moved['l2_mean']:.3g}"
    )
    return [
        ("model", escape(str(report["model"]))),
        ("the tester sees", answers),
        ("goal", f"{goal}, by one universal perturbation"),
        ("budget", _eps(report)),
        ("distortion", size),
        ("queries", f"{report['queries']:,}, evaluations included"),
    ]


def _classes(report: Mapping[str, Any]) -> str:
    confusion = report["confusion"]
    names, counts = confusion["classes"], confusion["after"]
    rows = []
    for name, one in report["by_class"].items():
        wrong = "" if counts is None else _most_often(names, counts[names.index(name)], name)
        rows.append((escape(name), _rate(one["success"], one["inputs"]) + wrong))
    return _table([("<b>class</b>", "<b>success</b>"), *rows])


def _most_often(names: Sequence[str], counts: Sequence[int], right: str) -> str:
    """Return the wrong answer that is given most often.

    >>> _most_often(["cat", "deer", "frog"], [5, 1, 4], "cat")
    '; most often frog'
    """
    count, name = max((n, name) for n, name in zip(counts, names, strict=True) if name != right)
    return f"; most often {escape(name)}" if count else ""


def _charts(report: Mapping[str, Any]) -> str:
    count = report["inputs"]["count"]
    key = "held_out" if report["inputs"]["whose"] == "held out" else "own"
    unit = 1 if report["norm"] == "l2" else LEVELS
    eps = [
        (unit * r["eps"], r["success"])
        for r in report["success_by_eps"]
        if r["success"] is not None
    ]
    asked, best = [], {"own": -1.0}
    for r in report["success_by_queries"]:
        best = r if r["own"] > best["own"] else best
        if best[key] is not None:
            asked.append((r["queries"], best[key]))
    label = "ε in L2" if unit == 1 else f"ε, of {LEVELS} levels"
    charts = [
        _chart("success against ε", label, eps, count),
        _chart("success of the best so far", "queries", asked, count),
    ]
    return f"<div class='charts'>{''.join(charts)}</div>"


def _chart(title: str, label: str, points: Sequence[tuple[float, float]], count: int) -> str:
    """Return a curve with its Wilson band as SVG."""
    if not points:
        return f"<figure><figcaption>{title}: not measured</figcaption></figure>"
    most = max(x for x, _ in points) or 1

    def at(x: float, y: float) -> str:
        return f"{44 + 340 * x / most:.1f},{190 - 165 * y:.1f}"

    ends = [(x, *wilson(round(y * count), count)) for x, y in points]
    band = [at(x, low) for x, low, _ in ends] + [at(x, high) for x, _, high in reversed(ends)]
    dots = "".join(
        "<circle r='3' cx='{}' cy='{}'/>".format(*at(x, y).split(",")) for x, y in points
    )
    ticks = "".join(
        f"<text x='38' y='{194 - 165 * y:.0f}' text-anchor='end'>{y:.0%}</text>"
        f"<path d='M44 {190 - 165 * y:.0f}H384' stroke='var(--line)'/>"
        for y in (0.0, 0.5, 1.0)
    )
    return (
        f"<figure><figcaption>{title}</figcaption><svg viewBox='0 0 400 225' role='img' "
        f"aria-label='{title}'>{ticks}"
        f"<polygon points='{' '.join(band)}' fill='#0072B2' opacity='.2'/>"
        f"<polyline points='{' '.join(at(*p) for p in points)}' fill='none' stroke='#0072B2' "
        f"stroke-width='2'/><g fill='#0072B2'>{dots}</g><text x='44' y='208'>0</text>"
        f"<text x='384' y='208' text-anchor='end'>{most:{',.0f' if most >= 100 else '.3g'}}</text>"
        f"<text x='214' y='222' text-anchor='middle'>{label}</text></svg></figure>"
    )


def _pictures(inputs: Reported, perturbation: Perturbation) -> str:
    """Return four inputs before and after, and the change; those with another answer first."""
    unchanged = inputs.before == inputs.after if inputs.before is not None else inputs.labels
    chosen = np.argsort(unchanged, kind="stable")[:4]
    before, change, after, factor = _scaled(inputs, perturbation, chosen)
    rows = []
    for k, i in enumerate(chosen):
        captions = [
            "predictions not asked" if p is None else f"answer: {escape(inputs.classes[p[i]])}"
            for p in (inputs.before, inputs.after)
        ]
        captions.insert(1, f"change, scaled by {factor:.3g}")
        rows += [
            f"<figure><img src='{_png(images[k])}' alt=''><figcaption>{words}</figcaption></figure>"
            for images, words in zip((before, change, after), captions, strict=True)
        ]
    return f"<div class='three'>{''.join(rows)}</div>"


def _scaled(
    inputs: Reported, perturbation: Perturbation, chosen: Array
) -> tuple[Array, Array, Array, float]:
    """Return some inputs in [0, 1], 1/2 plus the scaled change, those after it, and the scale."""
    low, high = perturbation.input_range
    before, after = ((one[chosen] - low) / (high - low) for one in (inputs.clean, inputs.perturbed))
    factor = 0.5 / (float(np.abs(after - before).max()) or 0.5)
    return before, 0.5 + factor * (after - before), after, factor


def draw_images(inputs: Reported, perturbation: Perturbation, out: Path) -> None:
    """Draw six inputs before and after, with the answers of the model, and the scaled change."""
    from matplotlib.figure import Figure

    chosen = np.unique(np.arange(_DRAWN) * len(inputs.labels) // _DRAWN)
    *rows, factor = _scaled(inputs, perturbation, chosen)
    figure = Figure(figsize=(1.25 * _DRAWN + 0.5, 4.4), dpi=150, layout="constrained")
    grid = figure.subplots(3, len(chosen), squeeze=False)
    for axes, images, name, answers in zip(
        grid,
        rows,
        ("original", f"change ×{factor:.3g}", "adversarial"),
        (inputs.before, None, inputs.after),
        strict=True,
    ):
        axes[0].set_ylabel(name, size=8)
        for place, image, i in zip(axes, images, chosen, strict=True):
            place.imshow(picture_of(image), cmap="gray", vmin=0, vmax=1)
            frame(place)
            if answers is not None:
                colour = COLOURS[int(answers[i] != inputs.labels[i])]  # the second if it is wrong
                place.set_xlabel(inputs.classes[answers[i]], color=colour, size=8)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomic(out, picture.getvalue())


def picture_of(image: Array) -> Array:
    """Return an image for matplotlib: colours on the last axis, grey without that axis."""
    if image.ndim == 3 and image.shape[0] in (1, 3):
        image = np.moveaxis(image, 0, -1)
    return np.clip(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image, 0, 1)


def _png(image: Array) -> str:
    """Return an image as a data address."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(np.rint(255 * picture_of(image)).astype(np.uint8)).save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _survival(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, one in (report.get("survival") or {}).items():
        rate = _rate(one["success"], one["inputs"])
        base = "" if one["before"] is None else f"; without the perturbation {one['before']:.0%}"
        rows.append((escape(name), rate + base))
    other = report["transfer"]
    if other is not None:
        rows.append((f"on {escape(str(other['model']))}", _rate(other["success"], other["inputs"])))
    return rows or [("not measured", "inputs are not images, and there is no second model")]


def _defender(report: Mapping[str, Any]) -> str:
    seen = report.get("detector")
    if not seen or not seen["queries"]:
        return "<p>Not measured.</p>"
    share = seen["flagged"] / seen["queries"]
    far = "" if seen["mean_distance"] is None else (
        f" The mean distance between two queries is {seen['mean_distance']:.3f} of the range."
    )  # fmt: skip
    return (
        f"<p>A detector of similar queries (of the Blacklight kind) flags {share:.0%} of the first "
        f"{seen['queries']:,} queries.{far}</p>"
    )
