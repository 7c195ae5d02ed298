"""The report of an attack: ``attack.html``, ``attack.json``, pictures and the perturbation.

A report is about the inputs that no device has, or else about those of the devices. Only success
against ε and after processing takes more queries than the evaluations did.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedzo.core.files import write_atomic
from fedzo.core.types import Array
from fedzo.core.waves import is_image
from fedzo.models import Model
from fedzo.problems.attack.inputs import fooled
from fedzo.problems.attack.page import Reported, draw_images, picture_of, wilson, write_page
from fedzo.problems.attack.victim import Victim
from fedzo.variables.perturbation import LEVELS, Perturbation, in_range

SHARES = (0.25, 0.5, 0.75, 1.0)  # of ε, at which success is measured
LEVELS_TRIED = (2, 4, 8, 16)  # grey levels, if there is no ε
PROCESSES = ("JPEG, quality 75", "resized to 75 % and back")
PROCESSED = 100  # inputs on which these are tried, if queries are left


def write_run_files(
    victim: Victim,
    folder: Path,
    inputs: Reported,
    perturbation: Perturbation,
    transfer_to: Model | None,
) -> None:
    """Write the perturbation, its report and pictures into the folder of a run."""
    perturbation.save(folder / "perturbation.npz")
    report = _content(victim, inputs, perturbation)
    report["success_by_queries"] = _by_queries(folder)
    report["transfer"] = None if transfer_to is None else _transfer(transfer_to, inputs)
    report["summary"] = _summary(report)
    write_atomic(folder / "attack.json", (json.dumps(report, indent=2) + "\n").encode())
    write_atomic(folder / "attack.html", write_page(report, inputs, perturbation).encode())
    if is_image(perturbation.noise.shape):
        draw_images(inputs, perturbation, folder / "images.png")


def budgets(perturbation: Perturbation) -> list[float]:
    """Return the ε at which to measure success.

    >>> budgets(Perturbation(np.zeros(2), eps=0.5, norm="l2"))
    [0.125, 0.25, 0.375, 0.5]
    """
    if perturbation.eps is None:
        return [level / LEVELS for level in LEVELS_TRIED]
    least = 1 / LEVELS if is_image(perturbation.noise.shape) else 0.0
    every = (share * perturbation.eps for share in SHARES)
    return [eps for eps in every if eps >= least * (1 - 1e-6)]


def _by_queries(folder: Path) -> list[dict[str, Any]]:
    """Return the success rates in a run's history, if it has one."""
    path = folder / "history.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [
        {
            "queries": record["queries"] + record["evaluation_queries"],
            "own": record["attack_success"],
            "held_out": record.get("heldout_success"),
        }
        for record in map(json.loads, lines)
        if "attack_success" in record
    ]


def _content(victim: Victim, inputs: Reported, perturbation: Perturbation) -> dict[str, Any]:
    """Return the measurements of ``attack.json``."""
    model, labels, classes, target = victim.model, inputs.labels, inputs.classes, inputs.target
    wrong = None if inputs.after is None else fooled(inputs.after, labels, target)
    by_eps = _success_by_eps(victim, inputs, perturbation)
    survival = _survival(victim, inputs) if is_image(perturbation.noise.shape) else {}
    return {
        "model": model.name,
        "outputs": model.outputs,
        "queries": model.queries,
        "eps": perturbation.eps,
        "norm": perturbation.norm if perturbation.eps is not None else None,
        "target": None if target is None else classes[target],
        "inputs": {
            "whose": inputs.whose,
            "count": len(labels),
            "error_before": None if inputs.before is None else _mean(inputs.before != labels),
        },
        "success": _mean(wrong),
        "success_interval": None if wrong is None else wilson(int(wrong.sum()), len(wrong)),
        "success_by_eps": by_eps,
        "by_class": {
            classes[column]: {
                "inputs": int(np.count_nonzero(labels == column)),
                "success": _mean(None if wrong is None else wrong[labels == column]),
            }
            for column in np.unique(labels).tolist()
        },
        "confusion": {
            "classes": classes,
            "before": _confusion(labels, inputs.before, len(classes)),
            "after": _confusion(labels, inputs.after, len(classes)),
        },
        "distortion": inputs.distortion._asdict(),
        "survival": survival,
        "detector": None if victim.detector is None else victim.detector.summary(),
    }


def _transfer(model: Model, inputs: Reported) -> dict[str, Any]:
    """Return the error rate of another model on inputs that it gets right without perturbation."""
    shape = model.input_shape or inputs.clean.shape[1:]
    right = model(inputs.clean.reshape(-1, *shape)).argmax(axis=1) == inputs.labels
    rate = None
    if right.any():
        after = model(inputs.perturbed[right].reshape(-1, *shape)).argmax(axis=1)
        rate = _mean(fooled(after, inputs.labels[right], inputs.target))
    return {"model": model.name, "inputs": int(right.sum()), "success": rate}


def _survival(victim: Victim, inputs: Reported) -> dict[str, Any]:
    """Return the success after each processing of images, if there are queries left for it."""
    found: dict[str, Any] = {}
    low, high = victim.model.input_range
    labels = inputs.labels[:PROCESSED]
    for name in PROCESSES:
        rates = []
        for images in (inputs.perturbed[:PROCESSED], inputs.clean[:PROCESSED]):
            units = np.stack([processed((one - low) / (high - low), name) for one in images])
            after = victim.predictions(in_range(units.reshape(len(units), -1), (low, high)))
            rates.append(_mean(None if after is None else fooled(after, labels, inputs.target)))
        found[name] = {"success": rates[0], "before": rates[1], "inputs": len(labels)}
    return found


def processed(image: Array, name: str) -> Array:
    """Return an image in [0, 1] as JPEG of quality 75, or made smaller by a quarter and back.

    >>> grey = np.full((3, 16, 16), 0.5)
    >>> all(float(np.abs(processed(grey, name) - grey).max()) < 0.01 for name in PROCESSES)
    True
    """
    from PIL import Image

    picture = Image.fromarray(np.rint(LEVELS * picture_of(image)).astype(np.uint8))
    if name == "JPEG, quality 75":
        content = io.BytesIO()
        picture.save(content, "JPEG", quality=75)
        picture = Image.open(content)
    else:
        width, height = picture.size
        smaller = (max(1, round(0.75 * width)), max(1, round(0.75 * height)))
        picture = picture.resize(smaller, Image.Resampling.BILINEAR)
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, np.float32) / LEVELS
    if image.ndim == 3 and image.shape[0] in (1, 3):
        pixels = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    return pixels.reshape(image.shape)


def _mean(numbers: Array | None) -> float | None:
    return None if numbers is None else float(numbers.mean())


def _confusion(labels: Array, predictions: Array | None, count: int) -> list[list[int]] | None:
    """Return the number of inputs of each class (rows) by prediction (columns)."""
    if predictions is None:
        return None
    table = np.bincount(labels * count + predictions, minlength=count**2)
    rows: list[list[int]] = table.reshape(count, count).tolist()
    return rows


def _percent(rate: float | None) -> str:
    return "not measured" if rate is None else f"{rate:.0%}"


def _summary(report: Mapping[str, Any]) -> str:
    """Return the main numbers in one line."""
    moved, inputs = report["distortion"], report["inputs"]
    parts = [
        f"{_percent(report['success'])} of {inputs['count']} inputs {inputs['whose']} fooled",
        f"{report['queries']:,} queries",
        f"L∞ {LEVELS * moved['linf_max']:.3g}/{LEVELS}, mean L2 {moved['l2_mean']:.3g}",
    ]
    if report["transfer"] is not None:
        parts.append(
            f"{_percent(report['transfer']['success'])} transfer to {report['transfer']['model']}"
        )
    return "; ".join(parts)


def _success_by_eps(
    victim: Victim, inputs: Reported, perturbation: Perturbation
) -> list[dict[str, float | None]]:
    """Return the success rate at smaller budgets, or None where there are not enough queries."""
    rates: list[dict[str, float | None]] = []
    for eps in budgets(perturbation):
        smaller = perturbation.project(eps, perturbation.norm)
        after = inputs.after
        if eps != perturbation.eps:
            moved = smaller.apply(inputs.clean)
            after = victim.predictions(moved.reshape(len(moved), -1))
        wrong = None if after is None else fooled(after, inputs.labels, inputs.target)
        rates.append({"eps": eps, "success": _mean(wrong)})
    return rates
