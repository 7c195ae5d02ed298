"""The report of an attack: ``attack.html``, ``attack.json``, pictures and the perturbation.

A report is about the inputs that no device has, or else about those of the devices. Only success
against ε takes more queries than the evaluations did.
"""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedzo.core.files import write_atomic
from fedzo.core.types import Array
from fedzo.core.waves import is_image
from fedzo.models import Model
from fedzo.problems.attack.evaluation import Evaluator
from fedzo.problems.attack.inputs import Inputs, joined
from fedzo.problems.attack.page import wilson, write_page
from fedzo.problems.attack.pictures import draw_images, picture_of
from fedzo.variables.perturbation import (
    LEVELS,
    Distortion,
    Perturbation,
    distortion_of,
    in_range,
)

SHARES = (0.25, 0.5, 0.75, 1.0)  # of ε, at which success is measured
LEVELS_TRIED = (2, 4, 8, 16)  # grey levels, if there is no ε
PROCESSES = ("JPEG, quality 75", "resized to 75 % and back")
PROCESSED = 100  # inputs on which these are tried, if queries are left
_SHOWN = 12  # inputs in the picture


def write_run_files(
    attack: Evaluator,
    folder: Path,
    x: Array,
    classes: Sequence[str] | None = None,
    transfer_to: Model | None = None,
) -> None:
    """Write the perturbation x, its report and pictures into the folder of a run."""
    perturbation = attack.perturbation(x)
    perturbation.save(folder / "perturbation.npz")
    count = attack.model.classes or int(attack.own.labels.max()) + 1
    names = [str(n) for n in range(count)] if classes is None else list(classes)
    inputs, history = _reported(attack, x), _history_in(folder)
    report = _content(attack, inputs, perturbation, names, history, transfer_to)
    write_atomic(folder / "attack.json", (json.dumps(report, indent=2) + "\n").encode())
    pictures = _pictures(attack, attack.initial()), _pictures(attack, x)
    write_atomic(folder / "attack.html", write_page(report, perturbation, *pictures).encode())
    if is_image(attack.shape):
        draw_images(*pictures, perturbation, classes, folder / "images.png")


class ReportedInputs(NamedTuple):
    """The inputs of a report, and the predictions of the model."""

    whose: str  # "held out" or "own"
    clean: Array  # (n, ...), in the model's range
    labels: Array  # (n,)
    before: Array | None  # predictions; None: not known
    after: Array | None
    perturbed: Array  # (n, ...)
    distortion: Distortion


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


def _history_in(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run's history, if it has one."""
    path = folder / "history.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _content(
    attack: Evaluator,
    inputs: ReportedInputs,
    perturbation: Perturbation,
    classes: list[str],
    history: Sequence[Mapping[str, Any]],
    transfer_to: Model | None,
) -> dict[str, Any]:
    """Return the content of ``attack.json``."""
    model, labels, target = attack.model, inputs.labels, attack.target
    fooled = None if inputs.after is None else attack.fooled(inputs.after, labels)
    success_by_eps = _success_by_eps(attack, inputs, perturbation)  # first: it takes queries
    report: dict[str, Any] = {
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
        "success": _mean(fooled),
        "success_interval": None if fooled is None else wilson(int(fooled.sum()), len(fooled)),
        "success_by_queries": [
            {
                "queries": record["queries"] + record["evaluation_queries"],
                "own": record["attack_success"],
                "held_out": record.get("heldout_success"),
            }
            for record in history
            if "attack_success" in record
        ],
        "success_by_eps": success_by_eps,
        "by_class": {
            classes[column]: {
                "inputs": int(np.count_nonzero(labels == column)),
                "success": _mean(None if fooled is None else fooled[labels == column]),
            }
            for column in np.unique(labels).tolist()
        },
        "confusion": {
            "classes": classes,
            "before": _confusion(labels, inputs.before, len(classes)),
            "after": _confusion(labels, inputs.after, len(classes)),
        },
        "distortion": inputs.distortion._asdict(),
        "transfer": None if transfer_to is None else _transfer(attack, transfer_to, inputs),
    }
    watching = attack.victim.detector
    if watching is not None:
        report["detector"] = {
            "queries": watching.queries,
            "flagged": watching.flagged,
            "mean_distance": watching.mean_distance,
        }
    if is_image(inputs.clean.shape[1:]):
        report["survival"] = _survival(attack, inputs)
        report["queries"] = model.queries
        low, high = model.input_range
        similar = ssim((inputs.clean - low) / (high - low), (inputs.perturbed - low) / (high - low))
        report["distortion"] |= {"ssim_mean": _mean(similar), "ssim_min": float(similar.min())}
    report["summary"] = _summary(report)
    return report


def _transfer(attack: Evaluator, model: Model, inputs: ReportedInputs) -> dict[str, Any]:
    """Return the error rate of another model on inputs that it gets right without perturbation."""
    shape = model.input_shape or inputs.clean.shape[1:]
    right = model(inputs.clean.reshape(-1, *shape)).argmax(axis=1) == inputs.labels
    if not right.any():
        return {"model": model.name, "inputs": 0, "success": None}
    after = model(inputs.perturbed[right].reshape(-1, *shape)).argmax(axis=1)
    fooled = attack.fooled(after, inputs.labels[right])
    return {"model": model.name, "inputs": int(right.sum()), "success": _mean(fooled)}


def _survival(attack: Evaluator, inputs: ReportedInputs) -> dict[str, Any]:
    """Return the success after each processing of images, if there are queries left for it."""
    found: dict[str, Any] = {}
    low, high = attack.model.input_range
    some = slice(PROCESSED)
    labels = inputs.labels[some]
    for name in PROCESSES:
        rates: list[float | None] = []
        for images in (inputs.perturbed[some], inputs.clean[some]):
            units = np.stack([processed((one - low) / (high - low), name) for one in images])
            moved = in_range(units.reshape(len(units), -1), (low, high))
            after = attack.ask_predictions(moved)
            rates.append(None if after is None else _mean(attack.fooled(after, labels)))
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
    table = np.zeros((count, count), np.int64)
    np.add.at(table, (labels, predictions), 1)
    rows: list[list[int]] = table.tolist()
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
    if "ssim_mean" in moved:
        parts.append(f"mean SSIM {moved['ssim_mean']:.3f}")
    if report["transfer"] is not None:
        parts.append(
            f"{_percent(report['transfer']['success'])} transfer to {report['transfer']['model']}"
        )
    return "; ".join(parts)


def _reported(attack: Evaluator, x: Array) -> ReportedInputs:
    """Return the inputs of the report before and after, with the predictions of the model."""
    inputs, start, own = attack.reported, attack.initial(), len(attack.evaluated.labels)
    clean, perturbed = (attack.transform.perturbed_inputs(inputs.rows, at) for at in (start, x))
    which = slice(own) if attack.held_out is None else slice(own, None)
    return ReportedInputs(
        "own" if attack.held_out is None else "held out",
        clean.inputs.reshape(-1, *attack.shape),
        inputs.labels,
        attack.predictions(start, which, clean.inputs),
        attack.predictions(x, which, perturbed.inputs),
        perturbed.inputs.reshape(-1, *attack.shape),
        distortion_of(perturbed.l2, perturbed.linf),
    )


def _success_by_eps(
    attack: Evaluator, reported: ReportedInputs, perturbation: Perturbation
) -> list[dict[str, float | None]]:
    """Return the success rate at smaller budgets, or None where there are not enough queries."""
    rates: list[dict[str, float | None]] = []
    for eps in budgets(perturbation):
        smaller = perturbation.project(eps, perturbation.norm)
        moved = smaller.apply(reported.clean).reshape(len(reported.labels), -1)
        after = reported.after if eps == perturbation.eps else attack.ask_predictions(moved)
        fooled = None if after is None else attack.fooled(after, reported.labels)
        rates.append({"eps": eps, "success": _mean(fooled)})
    return rates


def _pictures(attack: Evaluator, x: Array) -> tuple[Array, Array, Array | None]:
    """Return the inputs of the picture under x, their labels and the predictions."""
    own, held_out = attack.evaluated, attack.held_out
    others = 0 if held_out is None else min(_SHOWN // 2, len(held_out.labels))
    count = len(own.labels)
    wanted = min(count, _SHOWN - others)
    some = np.arange(wanted) * count // wanted  # from as many devices as possible
    shown = [Inputs(own.rows[some], own.labels[some])]
    if held_out is not None:
        shown.append(Inputs(held_out.rows[:others], held_out.labels[:others]))
    inputs = joined(shown)
    images = attack.transform.perturbed_inputs(inputs.rows, x).inputs
    which = np.concatenate([some, count + np.arange(others)])  # those held out are the last
    predictions = attack.predictions(x, which, images)
    return images.reshape(-1, *attack.shape), inputs.labels, predictions


def ssim(before: Array, after: Array) -> Array:
    r"""Return the mean structural similarity of pairs of images in [0, 1], (n,); 1: the same.

    .. math:: \frac{(2\mu_x\mu_y + c_1)(2\sigma_{xy} + c_2)}
              {(\mu_x^2 + \mu_y^2 + c_1)(\sigma_x^2 + \sigma_y^2 + c_2)}

    with means, variances and the covariance under a Gaussian window of σ = 1.5 pixels (11 x 11),
    c₁ = 0.01² and c₂ = 0.03², as in the original (Z. Wang, A. Bovik, H. Sheikh and
    E. Simoncelli, "Image Quality Assessment: From Error Visibility to Structural Similarity",
    2004); the mean is over pixels and colours.

    Parameters
    ----------
    before, after
        (n, h, w), or with colours: (n, 3, h, w) or (n, h, w, 3).

    Examples
    --------
    For flat images only the first factor remains:

    >>> flat = np.full((1, 16, 16), 0.5)
    >>> ssim(flat, flat), ssim(flat, flat / 2).round(4)  # (2 / 8 + 1e-4) / (1 / 4 + 1 / 16 + 1e-4)
    (array([1.]), array([0.8001]))
    """
    from scipy.ndimage import gaussian_filter1d

    x, y = (_planes(images).astype(np.float64) for images in (before, after))

    def windowed(images: Array) -> Array:
        for axis in (-2, -1):
            images = gaussian_filter1d(images, 1.5, axis=axis, truncate=5 / 1.5)
        return images

    mean_x, mean_y = windowed(x), windowed(y)
    variances = windowed(x * x) - mean_x**2 + windowed(y * y) - mean_y**2
    covariance = windowed(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    alike = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    alike /= (mean_x**2 + mean_y**2 + c1) * (variances + c2)
    return np.asarray(alike.reshape(len(alike), -1).mean(axis=1))


def _planes(images: Array) -> Array:
    """Return images with the axis of colours, if any, before height and width."""
    last = images.ndim == 4 and images.shape[1] not in (1, 3)
    return np.moveaxis(images, -1, 1) if last else images
