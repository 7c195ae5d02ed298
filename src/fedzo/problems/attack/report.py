"""What a tester hands in of an attack: ``attack.json``, and the same as a picture.

All of it is about inputs that no device had, where there are any, else about the devices' own.
Success against ε is the only part that asks the model for more than evaluations did.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.core.files import write_atomic
from fedzo.core.waves import is_image
from fedzo.models import Model
from fedzo.problems.attack.images import picture_of
from fedzo.problems.attack.similarity import ssim
from fedzo.variables.perturbation import LEVELS, Perturbation, distortion_of

Array = NDArray[Any]

SHARES = (0.25, 0.5, 0.75, 1.0)  # of ε, at which success is measured
LEVELS_TRIED = (2, 4, 8, 16)  # grey levels, where there is no ε
_COLUMNS = 12  # classes in a confusion matrix that is written out in the picture
_DARK = 0.6  # of the largest count: from there on numbers are white


class ReportedInputs(NamedTuple):
    """The inputs that a report is about, and what the model takes them for."""

    whose: str  # "held out" or "own"
    clean: Array  # (n, ...), in the model's range
    labels: Array  # (n,)
    before: Array | None  # predictions; None: not asked
    after: Array | None
    perturbed: Array  # (n, ...)
    l2: Array
    linf: Array


def budgets(perturbation: Perturbation) -> list[float]:
    """Return the ε at which success is to be measured.

    >>> budgets(Perturbation(np.zeros(2), eps=0.5, norm="l2"))
    [0.125, 0.25, 0.375, 0.5]
    """
    if perturbation.eps is None:
        return [level / LEVELS for level in LEVELS_TRIED]
    least = 1 / LEVELS if is_image(perturbation.noise.shape) else 0.0
    every = (share * perturbation.eps for share in SHARES)
    return [eps for eps in every if eps >= least * (1 - 1e-6)]


def history_in(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run's history, if it has one."""
    path = folder / "history.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def content(
    inputs: ReportedInputs,
    perturbation: Perturbation,
    classes: Sequence[str],
    target: int | None,
    success_by_eps: Sequence[tuple[float, float | None]],
    history: Sequence[Mapping[str, Any]],
    transferred: Mapping[str, Any] | None,
    model: Model,
) -> dict[str, Any]:
    """Return all that a report says, as JSON has it."""
    low, high = model.input_range
    report: dict[str, Any] = {
        "model": model.name,
        "outputs": model.outputs,
        "queries": model.queries,
        "eps": perturbation.eps,
        "norm": perturbation.norm if perturbation.eps is not None else None,
        "target": None if target is None else classes[target],
        "inputs": {"whose": inputs.whose, "count": len(inputs.labels)},
        "success": None if inputs.after is None else float(_fooled(inputs, target).mean()),
        "success_by_queries": [
            {
                "queries": record["queries"] + record["evaluation_queries"],
                "own": record["attack_success"],
                "held_out": record.get("heldout_success"),
            }
            for record in history
            if "attack_success" in record
        ],
        "success_by_eps": [{"eps": eps, "success": rate} for eps, rate in success_by_eps],
        "by_class": _by_class(inputs, classes, target),
        "confusion": {
            "classes": list(classes),
            "before": _confusion(inputs.labels, inputs.before, len(classes)),
            "after": _confusion(inputs.labels, inputs.after, len(classes)),
        },
        "distortion": distortion_of(inputs.l2, inputs.linf)._asdict(),
        "transfer": transferred,
    }
    if is_image(inputs.clean.shape[1:]):
        images = ((part - low) / (high - low) for part in (inputs.clean, inputs.perturbed))
        similar = ssim(*images)
        extremes = {"ssim_mean": float(similar.mean()), "ssim_min": float(similar.min())}
        report["distortion"] |= extremes
    report["summary"] = _summary(report)
    return report


def transfer(
    model: Model, clean: Array, perturbed: Array, labels: Array, target: int | None
) -> dict[str, Any]:
    """Return how often another model errs on what it got right before the perturbation."""
    shape = model.input_shape or clean.shape[1:]
    right = model(clean.reshape(-1, *shape)).argmax(axis=1) == labels
    if not right.any():
        return {"model": model.name, "inputs": 0, "success": None}
    after = model(perturbed[right].reshape(-1, *shape)).argmax(axis=1)
    fooled = after != labels[right] if target is None else after == target
    return {
        "model": model.name,
        "inputs": int(right.sum()),
        "success": float(fooled.mean()),
    }


def write(folder: Path, report: Mapping[str, Any], perturbation: Perturbation) -> None:
    """Write ``attack.json`` and ``attack.png``."""
    write_atomic(folder / "attack.json", (json.dumps(report, indent=2) + "\n").encode())
    picture = io.BytesIO()
    _drawn(report, perturbation).savefig(picture, format="png")
    write_atomic(folder / "attack.png", picture.getvalue())


def _fooled(inputs: ReportedInputs, target: int | None) -> Array:
    assert inputs.after is not None
    return np.asarray(inputs.after != inputs.labels if target is None else inputs.after == target)


def _by_class(inputs: ReportedInputs, classes: Sequence[str], target: int | None) -> dict[str, Any]:
    rows = {}
    for column in np.unique(inputs.labels).tolist():
        of_it = inputs.labels == column
        rate = None if inputs.after is None else float(_fooled(inputs, target)[of_it].mean())
        rows[classes[column]] = {"inputs": int(of_it.sum()), "success": rate}
    return rows


def _confusion(labels: Array, predictions: Array | None, count: int) -> list[list[int]] | None:
    """Return how often inputs of each class (rows) are taken for each (columns)."""
    if predictions is None:
        return None
    table = np.zeros((count, count), np.int64)
    np.add.at(table, (labels, predictions), 1)
    rows: list[list[int]] = table.tolist()
    return rows


def _percent(rate: float | None) -> str:
    return "not asked" if rate is None else f"{rate:.0%}"


def _summary(report: Mapping[str, Any]) -> str:
    """Return the main numbers in a line."""
    moved, inputs = report["distortion"], report["inputs"]
    parts = [
        f"{_percent(report['success'])} of {inputs['count']} inputs {inputs['whose']} fooled",
        f"{report['queries']:,} queries",
        f"L∞ {LEVELS * moved['linf_max']:.3g}/{LEVELS}, mean L2 {moved['l2_mean']:.3g}",
    ]
    if "ssim_mean" in moved:
        parts.append(f"mean SSIM {moved['ssim_mean']:.3f}")
    if report["transfer"] is not None:
        parts.append(
            f"{_percent(report['transfer']['success'])} transfer to {report['transfer']['model']}"
        )
    return "; ".join(parts)


def _drawn(report: Mapping[str, Any], perturbation: Perturbation) -> Any:
    """Return the figure: curves above, classes and confusions below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.6), dpi=110, layout="constrained")
    figure.suptitle(report["summary"], size=10)
    above, below = figure.subplots(2, 3)
    _draw_queries(above[0], report["success_by_queries"])
    _draw_budgets(above[1], report["success_by_eps"], report["norm"])
    _draw_perturbation(above[2], perturbation)
    _draw_classes(below[0], report["by_class"])
    for axes, when in zip(below[1:], ("before", "after"), strict=True):
        _draw_confusion(axes, report["confusion"], when, figure)
    return figure


def _draw_queries(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for key, name in (("own", "the devices' inputs"), ("held_out", "inputs held out")):
        points = [(row["queries"], row[key]) for row in rows if row[key] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", ms=3, label=name)
    axes.set(title="success against queries", xlabel="queries, evaluations included", ylim=(0, 1))
    if rows:
        axes.legend(fontsize=8)


def _draw_budgets(axes: Any, rows: Sequence[Mapping[str, Any]], norm: str | None) -> None:
    points = [(row["eps"], row["success"]) for row in rows if row["success"] is not None]
    if points:
        found = np.array([(0.0, 0.0), *points])
        if norm == "l2":
            axes.plot(found[:, 0], found[:, 1], marker="o", ms=3)
        else:
            axes.plot(LEVELS * found[:, 0], found[:, 1], marker="o", ms=3)
    unit = "L2, units of the range" if norm == "l2" else f"L∞, of {LEVELS} levels"
    axes.set(title="success against ε", xlabel=unit, ylim=(0, 1))


def _draw_perturbation(axes: Any, perturbation: Perturbation) -> None:
    noise = perturbation.noise
    axes.set_title("the perturbation")
    if not is_image(noise.shape):
        axes.plot(noise.reshape(-1), lw=0.7)
        return
    largest = float(np.abs(noise).max()) or 1.0
    axes.imshow(picture_of(0.5 + noise / (2 * largest)), cmap="gray", vmin=0, vmax=1)
    axes.axis("off")


def _draw_classes(axes: Any, by_class: Mapping[str, Any]) -> None:
    names = list(by_class)
    rates = [by_class[name]["success"] or 0.0 for name in names]
    axes.barh(names, rates)
    axes.invert_yaxis()
    axes.set(title="success by class", xlim=(0, 1))


def _draw_confusion(axes: Any, confusion: Mapping[str, Any], when: str, figure: Any) -> None:
    axes.set_title(f"taken for what, {when}")
    if confusion[when] is None:
        axes.axis("off")
        return
    table = np.array(confusion[when])
    rows = np.flatnonzero(np.sum([np.sum(confusion[w] or 0, axis=-1) for w in ("before", "after")
                                  if confusion[w]], axis=0))  # fmt: skip
    table, classes = table[rows], confusion["classes"]
    drawn = axes.imshow(table, cmap="Blues", aspect="auto", vmin=0)
    axes.set_yticks(range(len(rows)), [classes[row] for row in rows], size=7)
    if len(classes) > _COLUMNS:
        figure.colorbar(drawn, ax=axes)
        return
    axes.set_xticks(range(len(classes)), classes, size=7, rotation=60)
    for (row, column), count in np.ndenumerate(table):
        dark = count > _DARK * table.max()
        axes.text(column, row, count, size=6, ha="center", va="center", color="w" if dark else "k")
