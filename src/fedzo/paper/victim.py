"""Fig. 1a and Fig. 2 against the paper's own kind of network, which has to be trained first."""

from __future__ import annotations

from dataclasses import replace

from fedzo.paper.attack import SETTING, paper, quick
from fedzo.paper.fig1a import CURVES, READING
from fedzo.paper.fig1a import FIGURE as FIG1A
from fedzo.paper.fig2 import FIGURE as FIG2
from fedzo.paper.fig2 import SUCCESS
from fedzo.paper.figure import Figure, Panel

MODEL = ("problem.model=cifar10-carlini",)  # what tools/train_victim.py carlini makes

FIGURE = Figure(
    name="victim",
    title="Fig. 1a and Fig. 2 again: the attack on the network of Carlini and Wagner",
    about=f"{SETTING}, against the kind of network that the paper attacks. {READING}",
    curves=CURVES,
    panels=(Panel("train_loss"), Panel(SUCCESS), Panel("distortion_l2_mean")),
    claims=tuple(replace(claim, by="fedzo") for claim in (*FIG1A.claims, *FIG2.claims)),
    # A query takes five times what one of the network that ships does.
    scales={"quick": quick(10, rounds=12, changes=MODEL), "paper": paper(10, MODEL)},
)
