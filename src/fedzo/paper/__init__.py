"""The paper's figures, and a few of our own: what is run, and which claims it must bear out.

A figure is a file that names its curves and its claims; :mod:`~fedzo.paper.reproduce` runs and
judges them. May import: flower, api, config and what lies below them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedzo.errors import UsageError, nearest, one_of

if TYPE_CHECKING:
    from fedzo.paper.figure import Figure

FIGURES = (
    "fig1a",
    "fig1b",
    "fig1c",
    "fig2",
    "victim",
    "fig3",
    "fig4",
    "fig5",
    "table1",
    "baselines",
    "rates",
    "queries",
    "bytes",
    "directions",
)
ALL = tuple(name for name in FIGURES if name != "victim")  # whose network does not ship


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
        raise UsageError(f"no figure {name!r}{nearest(name, FIGURES)}: there are {known}")
    found: Figure = import_module(f"fedzo.paper.{name}").FIGURE
    return found
