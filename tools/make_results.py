"""Write docs/results.md and its pictures from folders that ``fedzo reproduce`` has filled.

    fedzo reproduce fig3 fig4 fig5 --scale paper --out paper
    fedzo reproduce all --scale quick --out quick
    python tools/make_results.py paper quick

A figure is taken from the first folder that has it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from fedzo.paper import FIGURES
from fedzo.paper.claims import Verdict
from fedzo.paper.reproduce import HEADINGS, cells, figures_in, table
from fedzo.paper.thresholds import MEANING

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Results

Every figure of the paper, and some of our own, with what is claimed of them and whether it was
borne out. The paper's plots themselves are not compared with: what its text says of them is.
{count}

A claim is judged by numbers taken seed by seed, so that what two curves of a seed share cancels,
and by the 95 % confidence interval of their mean (Student's t). It **holds** if the whole interval
of each of its numbers is where the claim has it, **does not hold** if one lies wholly elsewhere
(with Holm's correction for its several numbers), and else one **cannot tell**. A seed is one of the
algorithm's randomness and of the data's split. "Rounds of A over rounds of B, to the same loss" is
below 1 if A is the faster; it is 0 where B never gets below its start.

The paper gives words and no numbers. What they are taken to mean was decided once, for all figures:

{thresholds}

Curves are means over seeds, bands go from the least to the greatest of them. Under a title stands
what was run, made of the runs' own configurations; under a picture the scale: `paper` is the
paper's setting, `quick` takes minutes, and what differs is listed, the paper's value in brackets.

Made by

```sh
fedzo reproduce fig3 fig4 fig5 --scale paper --out paper
fedzo reproduce all --scale quick --out quick
python tools/make_results.py paper quick
```

with {environment}. `fedzo report quick` makes one page of it, with curves to hover and zoom.
"""


def section(figure: dict[str, Any], picture: str) -> str:
    """Return a figure's part of the page."""
    return "\n".join(
        [
            f"## {figure['title']}",
            "",
            figure["about"],
            "",
            f"![{figure['title']}]({picture})",
            "",
            f"*{figure['caption']}.*",
            "",
            table(HEADINGS, [cells(claim) for claim in figure["claims"]]),
            "",
        ]
    )


def count(figures: Sequence[dict[str, Any]]) -> str:
    """Return how many claims came to what, the paper's and our own."""
    claims = [claim for figure in figures for claim in figure["claims"]]
    told = []
    for whose, own in (("the paper's", False), ("our own", True)):
        verdicts = [claim["verdict"] for claim in claims if (claim["by"] != "paper") == own]
        holds, fails, unknown = (verdicts.count(verdict) for verdict in Verdict)
        told.append(
            f"Of {whose} {len(verdicts)} claims {holds} hold, {fails} do not, and of {unknown} one "
            "cannot tell."
        )
    return "\n".join(told)


def made_with(figures: Sequence[dict[str, Any]]) -> str:
    """Return the environments that figures were made in, which may be one."""
    told = (figure["environment"] | {"date": ""} for figure in figures)
    words = [", ".join(f"{k} {v}" for k, v in each.items() if v) for each in told]
    return "; and with ".join(dict.fromkeys(words))


def main() -> None:
    """Take each figure from the first folder that has it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    folders = parser.parse_args().folders
    found = {f["name"]: (f, folder) for folder in reversed(folders) for f in figures_in(folder)}
    (DOCS / "images" / "results").mkdir(parents=True, exist_ok=True)
    shown = [found[name] for name in FIGURES if name in found]
    parts = []
    for figure, folder in shown:
        place = f"images/results/{figure['name']}.png"
        # A third of the bytes; with fewer colours the curves' own would not stay what they are.
        picture = Image.open(folder / f"{figure['name']}.png").convert("RGB").quantize(128)
        picture.save(DOCS / place, optimize=True)
        parts.append(section(figure, place))
    figures = [figure for figure, _ in shown]
    head = HEAD.format(
        count=count(figures),
        thresholds=table(("word", "means"), list(MEANING.items())),
        environment=made_with(figures),
    )
    (DOCS / "results.md").write_text("\n".join([head, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
