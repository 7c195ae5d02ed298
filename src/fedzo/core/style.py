"""One look for all pictures: colours, axes and framed images."""

from typing import Any

# The palette of Okabe & Ito: distinct in print, and to colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8, "handlelength": 3.2}


def dress(axes: Any, title: str = "", x: str = "", y: str = "") -> None:
    """Give axes their title, their labels with units, a pale grid and two spines."""
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, fontsize=10)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)  # grid lines over bands would look like gaps
    axes.spines[["top", "right"]].set_visible(False)


def frame(axes: Any) -> None:
    """Frame an image without ticks: white pixels must not vanish into the page."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color="0.6", linewidth=0.8)
