"""What an attack's run leaves in its folder: perturbation, report and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedzo.errors import Halted
from fedzo.problems.attack import report
from fedzo.problems.attack.inputs import Inputs, joined
from fedzo.variables.ball import is_image
from fedzo.variables.perturbation import Perturbation

if TYPE_CHECKING:
    from fedzo.problems.attack.problem import Attack

Array = NDArray[Any]

_SHOWN = 12  # inputs in the picture


def hand_in(problem: Attack, folder: Path, x: Array) -> None:
    """Write all that there is to tell of a perturbation."""
    perturbation = problem.perturbation(x)
    perturbation.save(folder / "perturbation.npz")
    looked = _looked(problem, x)
    transfer = None
    if problem.transfer_to is not None:
        inputs = (looked.clean, looked.moved, looked.labels)
        transfer = report.transferred(problem.transfer_to, *inputs, problem.target)
    known = report.told(
        looked,
        perturbation,
        _names(problem),
        problem.target,
        _success_by_eps(problem, looked, perturbation),
        report.history_in(folder),
        transfer,
        problem.model,
    )
    report.write(folder, known, perturbation)
    if is_image(problem.shape):
        from fedzo.problems.attack.images import draw_images

        pictures = _pictures(problem, problem.initial()), _pictures(problem, x)
        draw_images(*pictures, perturbation, problem.classes, folder / "images.png")


def _names(problem: Attack) -> list[str]:
    count = problem.model.classes or int(problem.own.labels.max()) + 1
    return [str(n) for n in range(count)] if problem.classes is None else list(problem.classes)


def _looked(problem: Attack, x: Array) -> report.Looked:
    """Return the inputs of the report, before and after, with what the model says of them."""
    inputs, start, own = problem.reported, problem.initial(), len(problem.own.labels)
    every = np.arange(len(inputs.labels))
    clean, moved = (problem.form.moved(inputs.rows, every, at) for at in (start, x))
    which = slice(own) if problem.held_out is None else slice(own, None)
    return report.Looked(
        "own" if problem.held_out is None else "held out",
        clean.inputs.reshape(-1, *problem.shape),
        inputs.labels,
        _predictions(problem, start, which, clean.inputs),
        _predictions(problem, x, which, moved.inputs),
        moved.inputs.reshape(-1, *problem.shape),
        moved.l2,
        moved.linf,
    )


def _predictions(problem: Attack, x: Array, which: slice | Array, inputs: Array) -> Array | None:
    """Return what the model takes inputs for, as evaluated or else by asking; None: neither."""
    known = problem.seen_under(x)
    return _asked(problem, inputs) if known is None else known[which]


def _asked(problem: Attack, inputs: Array) -> Array | None:
    try:
        return np.asarray(problem.victim.ask(inputs, evaluates=True).argmax(axis=1))
    except Halted:
        return None


def _success_by_eps(
    problem: Attack, looked: report.Looked, perturbation: Perturbation
) -> list[tuple[float, float | None]]:
    """Ask how often the perturbation succeeds within smaller budgets, as long as it can be."""
    rates: list[tuple[float, float | None]] = []
    for eps in report.budgets(perturbation):
        smaller = perturbation.project(eps, perturbation.norm)
        moved = smaller.apply(looked.clean).reshape(len(looked.labels), -1)
        after = looked.after if eps == perturbation.eps else _asked(problem, moved)
        rate = None if after is None else problem.fooled(after, looked.labels).mean()
        rates.append((eps, None if rate is None else float(rate)))
    return rates


def _pictures(problem: Attack, x: Array) -> tuple[Array, Array, Array | None]:
    """Return the inputs of the picture under x, their labels, and what the model says."""
    own, apart = problem.own, problem.held_out
    others = 0 if apart is None else min(_SHOWN // 2, len(apart.labels))
    count = len(own.labels)
    wanted = min(count, _SHOWN - others)
    some = np.arange(wanted) * count // wanted  # of as many devices as may be
    shown = [Inputs(own.rows[some], own.labels[some])]
    if apart is not None:
        shown.append(Inputs(apart.rows[:others], apart.labels[:others]))
    inputs = joined(shown)
    images = problem.form.moved(inputs.rows, np.arange(len(inputs.labels)), x).inputs
    which = np.concatenate([some, count + np.arange(others)])  # those held out come after all
    predictions = _predictions(problem, x, which, images)
    return images.reshape(-1, *problem.shape), inputs.labels, predictions
