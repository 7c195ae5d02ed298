"""Write docs/results.md and its pictures from folders that ``fedzo reproduce`` has filled.

    fedzo reproduce fig3 fig4 fig5 --scale paper --out paper
    fedzo reproduce all --scale quick --out quick
    python tools/make_results.py paper quick

A figure is taken from the first folder that has it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from PIL import Image

from fedzo.paper import FIGURES
from fedzo.paper.reproduce import figures_in, markdown

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Results

Every figure of the paper, and some of our own, with what is claimed of them and whether it was
borne out. The paper's plots themselves are not compared with: what its text says of them is. A
claim is judged by a 95 % confidence interval over seeds, of differences taken seed by seed: it
**holds** if the whole interval is where the claim has it, **does not hold** if all of it is
elsewhere, and else one **cannot tell**. What "slightly" and "comparable" mean in numbers stands in
the claim.

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
    table = markdown([figure]).replace(f"| {figure['name']} | ", "| ")
    table = table.replace("| figure | ", "| ", 1).replace("| --- | --- |", "| --- |", 1)
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
            table,
            "",
        ]
    )


def main() -> None:
    """Take each figure from the first folder that has it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    folders = parser.parse_args().folders
    found = {f["name"]: (f, folder) for folder in reversed(folders) for f in figures_in(folder)}
    pictures = DOCS / "images" / "results"
    pictures.mkdir(parents=True, exist_ok=True)
    parts = []
    for name in FIGURES:
        if name in found:
            figure, folder = found[name]
            picture = Image.open(folder / f"{name}.png").convert("RGB").quantize(64)
            picture.save(pictures / f"{name}.png", optimize=True)  # a third of the bytes
            parts.append(section(figure, f"images/results/{name}.png"))
            environment = figure["environment"]
    words = ", ".join(f"{key} {value}" for key, value in environment.items() if key != "date")
    page = "\n".join([HEAD.format(environment=words), *parts])
    (DOCS / "results.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
