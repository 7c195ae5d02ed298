"""What an attack's run leaves in its folder: perturbation, report and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.waves import is_image
from fedzo.errors import Halted
from fedzo.problems.attack import report
from fedzo.problems.attack.inputs import Inputs, joined
from fedzo.variables.perturbation import Perturbation

if TYPE_CHECKING:
    from fedzo.problems.attack.problem import Attack

Array = NDArray[Any]

_SHOWN = 12  # inputs in the picture


def write_run_files(problem: Attack, folder: Path, x: Array) -> None:
    """Write the perturbation x, the report of it, and pictures."""
    perturbation = problem.perturbation(x)
    perturbation.save(folder / "perturbation.npz")
    reported = _reported(problem, x)
    transfer = None
    if problem.transfer_to is not None:
        inputs = (reported.clean, reported.perturbed, reported.labels)
        transfer = report.transfer(problem.transfer_to, *inputs, problem.target)
    content = report.content(
        reported,
        perturbation,
        _names(problem),
        problem.target,
        _success_by_eps(problem, reported, perturbation),
        report.history_in(folder),
        transfer,
        problem.model,
    )
    report.write(folder, content, perturbation)
    if is_image(problem.shape):
        from fedzo.problems.attack.images import draw_images

        pictures = _pictures(problem, problem.initial()), _pictures(problem, x)
        draw_images(*pictures, perturbation, problem.classes, folder / "images.png")


def _names(problem: Attack) -> list[str]:
    count = problem.model.classes or int(problem.own.labels.max()) + 1
    return [str(n) for n in range(count)] if problem.classes is None else list(problem.classes)


def _reported(problem: Attack, x: Array) -> report.ReportedInputs:
    """Return the inputs of the report, before and after, with what the model says of them."""
    inputs, start, own = problem.reported, problem.initial(), len(problem.own.labels)
    clean, perturbed = (problem.transform.perturbed_inputs(inputs.rows, at) for at in (start, x))
    which = slice(own) if problem.held_out is None else slice(own, None)
    return report.ReportedInputs(
        "own" if problem.held_out is None else "held out",
        clean.inputs.reshape(-1, *problem.shape),
        inputs.labels,
        _predictions(problem, start, which, clean.inputs),
        _predictions(problem, x, which, perturbed.inputs),
        perturbed.inputs.reshape(-1, *problem.shape),
        perturbed.l2,
        perturbed.linf,
    )


def _predictions(problem: Attack, x: Array, which: slice | Array, inputs: Array) -> Array | None:
    """Return what the model takes inputs for, as evaluated or else by asking; None: neither."""
    evaluated = problem.evaluations.predictions(x)
    return _ask(problem, inputs) if evaluated is None else evaluated[which]


def _ask(problem: Attack, inputs: Array) -> Array | None:
    try:
        return np.asarray(problem.victim.ask(inputs, evaluates=True).argmax(axis=1))
    except Halted:
        return None


def _success_by_eps(
    problem: Attack, reported: report.ReportedInputs, perturbation: Perturbation
) -> list[tuple[float, float | None]]:
    """Ask how often the perturbation succeeds within smaller budgets, as long as it can be."""
    rates: list[tuple[float, float | None]] = []
    for eps in report.budgets(perturbation):
        smaller = perturbation.project(eps, perturbation.norm)
        moved = smaller.apply(reported.clean).reshape(len(reported.labels), -1)
        after = reported.after if eps == perturbation.eps else _ask(problem, moved)
        rate = None if after is None else problem.fooled(after, reported.labels).mean()
        rates.append((eps, None if rate is None else float(rate)))
    return rates


def _pictures(problem: Attack, x: Array) -> tuple[Array, Array, Array | None]:
    """Return the inputs of the picture under x, their labels, and what the model says."""
    own, held_out = problem.own, problem.held_out
    others = 0 if held_out is None else min(_SHOWN // 2, len(held_out.labels))
    count = len(own.labels)
    wanted = min(count, _SHOWN - others)
    some = np.arange(wanted) * count // wanted  # of as many devices as may be
    shown = [Inputs(own.rows[some], own.labels[some])]
    if held_out is not None:
        shown.append(Inputs(held_out.rows[:others], held_out.labels[:others]))
    inputs = joined(shown)
    images = problem.transform.perturbed_inputs(inputs.rows, x).inputs
    which = np.concatenate([some, count + np.arange(others)])  # those held out come after all
    predictions = _predictions(problem, x, which, images)
    return images.reshape(-1, *problem.shape), inputs.labels, predictions
