"""Write docs/results.md and its pictures from folders that ``fedzo reproduce`` has filled.

    fedzo reproduce fig3 fig4 fig5 --scale paper --out paper
    fedzo reproduce all --scale quick --out quick
    python tools/make_results.py paper quick --sweeps sweeps

A figure is taken from the first folder that has it. What is missing of the sweeps is done first;
those that take hours are shown only if they have been begun by hand, by the command in SWEEPS, and
without a folder for them none are.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from fedzo.cli import main as fedzo
from fedzo.paper import FIGURES, find_figure
from fedzo.paper.claims import MEANING, Verdict
from fedzo.paper.reproduce import HEADINGS, cells, figures_in, table

TRAIN = "python tools/train_victim.py carlini"
DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Results

Every figure of the paper and some of our own, each with the claims made about it and whether they
hold. The claims are those of the paper's text; its plots give no numbers to compare with.
{count}{absent}

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

Made by the following. `make results` runs all figures with all their seeds and Fig. 3 to 5 at the
paper's scale, but not the victim, which has to be trained.

```sh
{commands}
```

with {environment}. `fedzo report quick` makes one page of it, with curves to hover and zoom.
"""


GRID = "attack --set run.rounds=30 --set run.evaluate_every=6 --set algorithm.batch_size=2"
GRID += " --set algorithm.directions=8 --set algorithm.smoothing=0.001 --seeds 3"


class Sweep(NamedTuple):
    """A sweep that is shown: its folder, what it is about, and what comes after ``fedzo sweep``."""

    name: str
    title: str
    about: str
    command: str
    hours: bool = False  # too long to be done here


SWEEPS = (
    Sweep(
        "grid-fedzo",
        "FedZO's step sizes",
        "η, with H = 5. The paper prints 0.001.",
        f"{GRID} --set algorithm.local_steps=5 --grid algorithm.learning_rate=0.001,0.002,0.005",
    ),
    Sweep(
        "grid-dzopa",
        "DZOPA's step sizes",
        "η. The paper prints 0.005.",
        f"{GRID} --set algorithm.name=dzopa --grid algorithm.learning_rate=0.002,0.005,0.01,0.02",
    ),
    Sweep(
        "grid-zone_s",
        "ZONE-S's step sizes",
        "1/ρ, as its authors read ρ. The paper prints ρ = 500.",
        f"{GRID} --set algorithm.name=zone_s --set algorithm.normalisation=sum "
        "--grid algorithm.penalty=50,100,200,500",
    ),
    Sweep(
        "paper-setting",
        "The attack in the paper's own setting",
        "All deer of CIFAR-10 that the victim gets right, b1 = 25 and b2 = 20, every H, for 20 "
        "rounds and one seed.",
        "attack-cifar10 --set run.rounds=20 --set run.evaluate_every=5 "
        "--grid algorithm.local_steps=5,10,20,50",
        hours=True,
    ),
)
AIR = "<!-- python benchmarks/air.py figure writes what follows -->"


def sweeps_in(folder: Path) -> list[str]:
    """Do what is missing of the sweeps, and return their parts of the page."""
    parts = []
    for sweep in SWEEPS:
        out = folder / sweep.name
        if sweep.hours and not (out / "sweep.csv").exists():
            continue
        if fedzo(["sweep", *shlex.split(sweep.command), "--out", str(out)]):
            sys.exit(f"fedzo sweep {sweep.command}: failed")
        parts.append(sweep_section(sweep, out))
    return parts


def sweep_section(sweep: Sweep, out: Path) -> str:
    """Return a sweep's part of the page."""
    place = f"images/results/{sweep.name}.png"
    copy_picture(out / "sweep.png", DOCS / place)
    with (out / "sweep.csv").open(encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    ends = [json.loads(p.read_text().splitlines()[-1]) for p in out.rglob("history.jsonl")]
    hours = sum(end["seconds"] for end in ends) / 3600
    queries = sum(end["queries"] for end in ends)
    command = f"fedzo sweep {sweep.command} --out sweeps/{sweep.name}".replace(" --", " \\\n    --")
    return "\n".join(
        [
            f"### {sweep.title}",
            "",
            f"{sweep.about} {queries:,} queries and {hours:.2f} hours of running.",
            "",
            f"```sh\n{command}\n```",
            "",
            f"![{sweep.title}]({place})",
            "",
            table(head, rows),
            "",
        ]
    )


def copy_picture(picture: Path, to: Path) -> None:
    """Copy a picture at a third of its bytes; with fewer colours curves would change theirs."""
    Image.open(picture).convert("RGB").quantize(128).save(to, optimize=True)


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
    lines = []
    for whose, own in (("the paper's", False), ("our own", True)):
        verdicts = [claim["verdict"] for claim in claims if (claim["by"] != "paper") == own]
        holds, fails, unknown = (verdicts.count(verdict) for verdict in Verdict)
        lines.append(
            f"Of {whose} {len(verdicts)} claims: holds {holds}, does not hold {fails}, "
            f"cannot tell {unknown}."
        )
    return "\n".join(lines)


def commands(figures: Sequence[dict[str, Any]], with_sweeps: bool) -> str:
    """Return what made them, by the scale and the number of seeds that each is shown at."""
    names: dict[str, list[str]] = {}
    for figure in figures:
        name, claim = figure["name"], figure["claims"][0]
        scale, seeds = claim["scale"], claim["seeds"]
        usual = find_figure(name).scales[scale].seeds
        how = f"--scale {scale}{f' --seeds {seeds}' if seeds != usual else ''} --out {scale}"
        names.setdefault(how, []).append(name)
    lines = [TRAIN] if any("victim" in n for n in names.values()) else []
    lines += [f"fedzo reproduce {' '.join(n)} {how}" for how, n in names.items()]
    folders = dict.fromkeys(how.split()[-1] for how in names)
    page = f"python tools/make_results.py {' '.join(folders)}"
    return "\n".join([*lines, page + (" --sweeps sweeps" if with_sweeps else "")])


def absent(found: Collection[str]) -> str:
    """Return which figures are not shown, and how to make them; nothing if all are."""
    names = [name for name in FIGURES if name not in found]
    if not names:
        return ""
    first = f"{TRAIN} && " if "victim" in names else ""
    return f"\nNot run yet: `{first}fedzo reproduce {' '.join(names)}`."


def made_with(figures: Sequence[dict[str, Any]]) -> str:
    """Return the environments that figures were made in, which may be one."""
    told = (figure["environment"] | {"date": ""} for figure in figures)
    words = [", ".join(f"{k} {v}" for k, v in each.items() if v) for each in told]
    return "; and with ".join(dict.fromkeys(words))


def main() -> None:
    """Take each figure from the first folder that has it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument(
        "--sweeps", type=Path, help="do and show the baselines' grids, in this folder"
    )
    arguments = parser.parse_args()
    folders = arguments.folders
    found = {f["name"]: (f, folder) for folder in reversed(folders) for f in figures_in(folder)}
    (DOCS / "images" / "results").mkdir(parents=True, exist_ok=True)
    shown = [found[name] for name in FIGURES if name in found]
    sweeps = sweeps_in(arguments.sweeps) if arguments.sweeps else []
    parts = []
    for figure, folder in shown:
        place = f"images/results/{figure['name']}.png"
        copy_picture(folder / f"{figure['name']}.png", DOCS / place)
        parts.append(section(figure, place))
        if figure["name"] == "baselines":
            parts += sweeps
    figures = [figure for figure, _ in shown]
    head = HEAD.format(
        count=count(figures),
        absent=absent(found),
        thresholds=table(("word", "means"), list(MEANING.items())),
        commands=commands(figures, bool(sweeps)),
        environment=made_with(figures),
    )
    page = DOCS / "results.md"
    _, mark, kept = (
        page.read_text(encoding="utf-8").partition(AIR) if page.exists() else ("", "", "")
    )
    page.write_text("\n".join([head, *parts]) + ("\n" + mark + kept) * bool(mark), encoding="utf-8")


if __name__ == "__main__":
    main()
