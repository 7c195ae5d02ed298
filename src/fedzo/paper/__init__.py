"""The paper's figures, and a few extra ones: the runs behind them, and the claims about them.

A figure names its curves and claims; there is one file per experiment: attack, softmax, Table I.
:mod:`~fedzo.paper.reproduce` does the runs and judges the claims. May import: flower, api, config
and the rooms below them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedzo.errors import UsageError, nearest, one_of

if TYPE_CHECKING:
    from fedzo.paper.figure import Figure

MODULES = {
    "attack_figures": ("fig1a", "fig1b", "fig1c", "fig2", "victim"),
    "softmax_figures": ("fig3", "fig4", "fig5", "rates", "queries"),
    "table1": ("table1",),
}
FIGURES = tuple(name for names in MODULES.values() for name in names)
ALL = tuple(name for name in FIGURES if name != "victim")  # its network is not shipped


def find_figure(name: str) -> Figure:
    """Return a figure by its name.

    Examples
    --------
    >>> find_figure("fig3").claims[0].text[:60]
    'At equal H FedZO converges slightly slower than FedAvg.'
    >>> find_figure("fig7")
    Traceback (most recent call last):
    fedzo.errors.UsageError: no figure 'fig7' (did you mean 'fig5'?): there are ...
    """
    if name not in FIGURES:
        known = one_of((*FIGURES, "all")).removeprefix("one of ")
        words = f"no figure {name!r}{nearest(name, FIGURES)}: there are {known}"
        raise UsageError(words, code="no-figure")
    module = next(module for module, names in MODULES.items() if name in names)
    figures: tuple[Figure, ...] = import_module(f"fedzo.paper.{module}").FIGURES
    return next(figure for figure in figures if figure.name == name)
