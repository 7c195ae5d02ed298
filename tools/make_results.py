"""Write docs/results.md and docs/results/ from folders that ``fedzo reproduce`` has filled.

    fedzo reproduce fig3 fig4 fig5 --scale paper --out paper
    fedzo reproduce all --scale quick --out quick
    python tools/make_results.py paper quick --sweeps sweeps

A figure is taken from the first folder that has it. What is missing of the sweeps is done first,
unless it takes hours: those are begun by hand, by the command in SWEEPS. A figure or sweep that is
not there keeps its section of the pages; each section says which version made it.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from fedzo.cli import main as fedzo
from fedzo.paper import FIGURES, find_figure
from fedzo.paper.claims import MEANING, Verdict
from fedzo.paper.reproduce import HEADINGS, cells, environment, figures_in, overview, table

TRAIN = "python tools/train_victim.py carlini"
DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Results

{conclusion} The
figures are the paper's, and some that we add. The paper's claims come from its text; its plots give
no numbers to compare with.{absent}

{counts}

The figures and all claims with their numbers: {pages}.

{versions}

## How a claim is judged

Each claim is a few numbers, one per seed. All curves of a figure share data, participants and
batches, so numbers are computed seed by seed, and shared noise cancels. The 95 % confidence
interval of the mean (Student's t) decides:

- **holds**: the whole interval is where the claim predicts it.
- **no effect above 1 %**: the claim has a direction, and the whole interval is closer to no
  difference than the smallest effect that would matter.
- **does not hold**: the whole interval is elsewhere, with Holm's correction if the claim has
  several numbers.
- **cannot tell**: none of these. More seeds could decide.

A seed changes the algorithm's randomness and the data split. "Rounds of A over rounds of B, to the
same loss" is below 1 if A is faster. It is 0 if B never gets below its start.

The paper gives words and no numbers. Their meaning was fixed once, for all figures:

{thresholds}

Curves are means over seeds. Bands go from the least to the greatest seed. The scale `paper` is the
paper's setting, and `quick` takes minutes; each caption lists the differences, with the paper's
value in brackets.

## How to make it again

`make results` runs Fig. 3 to 5 at the paper's scale and the others at `quick`, all seeds: about an
hour on two cores. `make results-paper` runs Fig. 1a, 1b, 1c and 2 at the paper's scale, too: a
night per seed. Both resume where they stopped. The victim has to be trained first.{left}

```sh
{commands}
```

`fedzo report quick` writes one page with curves to hover and zoom.
"""
PAPER = tuple(name for name in FIGURES if name.startswith("fig"))
LEFT = """

Not run yet at the paper's scale: {}. The nearest is [the attack in the paper's own
setting](results/steps.md#the-attack-in-the-papers-own-setting): every H, one seed, 20 of the 100
rounds."""
STEPS = """Each algorithm at its best step size, by training loss:

- **At equal rounds** FedZO with H = 5 ends lowest: local steps save rounds.
- **At equal queries** DZOPA ends as low as FedZO, and ZONE-S ends higher at each ρ of the grid.
- **By success** the ranking is another one. Larger steps fool more images and distort them more.
"""

EQUAL = "attack --set algorithm.batch_size=2 --set algorithm.directions=8"
EQUAL += " --set algorithm.smoothing=0.001 --seeds 3"
GRID = f"{EQUAL} --set run.rounds=30 --set run.evaluate_every=6"


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
        "1/ρ, as its authors read ρ. The paper prints ρ = 500. With larger ρ the loss is lower, "
        "because the perturbation hardly moves: it fools no image.",
        f"{GRID} --set algorithm.name=zone_s --set algorithm.normalisation=sum "
        "--grid algorithm.penalty=50,100,200,500,1000,2000,4000,8000,16000",
    ),
    Sweep(
        "equal-dzopa",
        "DZOPA at the queries of FedZO",
        "27,000 queries, those of FedZO with H = 5 above: 150 rounds instead of 30. At its best "
        "step size DZOPA ends as low as FedZO does: local steps save rounds, not queries.",
        f"{EQUAL} --set run.rounds=150 --set run.evaluate_every=30 --set algorithm.name=dzopa "
        "--grid algorithm.learning_rate=0.001,0.002,0.005",
    ),
    Sweep(
        "equal-zone_s",
        "ZONE-S at the queries of FedZO",
        "27,000 queries, those of FedZO with H = 5 above: 1,500 rounds instead of 30. The best ρ "
        "is 16 times the printed one, and inside the grid.",
        f"{EQUAL} --set run.rounds=1500 --set run.evaluate_every=300 --set algorithm.name=zone_s "
        "--set algorithm.normalisation=sum --grid algorithm.penalty=500,2000,8000,32000",
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


PAGES = {
    "attack": ("Attack figures", ("fig1a", "fig1b", "fig1c", "fig2", "victim")),
    "steps": ("Baselines and step sizes of the attack", tuple(sweep.name for sweep in SWEEPS)),
    "softmax": ("Softmax figures and Table I", ("fig3", "fig4", "fig5", "table1")),
    "more": ("Figures that we add", ("rates", "queries")),
}


def sweeps_in(folder: Path) -> dict[str, str]:
    """Do what is missing of the sweeps, and return their sections by name."""
    parts = {}
    for sweep in SWEEPS:
        out = folder / sweep.name
        if sweep.hours and not (out / "sweep.csv").exists():
            continue
        if fedzo(["sweep", *shlex.split(sweep.command), "--out", str(out)]):
            sys.exit(f"fedzo sweep {sweep.command}: failed")
        parts[sweep.name] = sweep_section(sweep, out)
    return parts


def sweep_section(sweep: Sweep, out: Path) -> str:
    """Return a sweep's part of the page."""
    place = f"images/results/{sweep.name}.png"
    copy_picture(out / "sweep.png", DOCS / place)
    with (out / "sweep.csv").open(encoding="utf-8") as file:
        rows = [sweep_row(row) for row in csv.DictReader(file)]
    ends = [json.loads(p.read_text().splitlines()[-1]) for p in out.rglob("history.jsonl")]
    hours = sum(end["seconds"] for end in ends) / 3600
    queries = sum(end["queries"] for end in ends)
    command = f"fedzo sweep {sweep.command} --out sweeps/{sweep.name}".replace(" --", " \\\n    --")
    return "\n".join(
        [
            f"## {sweep.title}",
            "",
            f"{sweep.about} {queries:,} queries and {hours:.2f} hours of running. "
            + made_with(environment()),
            "",
            f"```sh\n{command}\n```",
            "",
            f"![{sweep.title}](../{place})",
            "",
            table(list(rows[0]), [list(row.values()) for row in rows]),
            "",
        ]
    )


def sweep_row(row: dict[str, str]) -> dict[str, str]:
    """Return a setting and its means with intervals; queries are the same for each seed."""
    shown = {key: value for key, value in row.items() if "." in key}
    for key in (key.removesuffix("_n") for key in row if key.endswith("_n")):
        mean, low, high = (float(row[f"{key}_{end}"] or "nan") for end in ("mean", "low", "high"))
        several = low < high
        name = key.replace("_", " ")
        shown[name] = f"{mean:.4g} [{low:.4g}, {high:.4g}]" if several else f"{mean:,.4g}"
        if key == "queries":
            shown[name] = f"{mean:,.0f}"
    return shown | {"": "best" if row["best"] == "1" else ""}


def copy_picture(picture: Path, to: Path) -> None:
    """Copy a picture at a third of its bytes; with fewer colours curves would change theirs."""
    Image.open(picture).convert("RGB").quantize(128).save(to, optimize=True)


def section(figure: dict[str, Any], picture: str) -> str:
    """Return a figure's part of the page."""
    settings = figure["settings"]
    return "\n".join(
        [
            f"## {figure['title']}",
            "",
            figure["about"].replace(settings + ".", f"\n\nSettings: `{settings}`"),
            "",
            f"![{figure['title']}](../{picture})",
            "",
            f"*{figure['caption']}.* {made_with(figure['environment'])}",
            "",
            table(HEADINGS, [cells(claim) for claim in figure["claims"]]),
            "",
        ]
    )


def made_with(environment: Mapping[str, str]) -> str:
    """Return the versions that made a section."""
    words = (f"{key} {value}" for key, value in environment.items() if key != "date")
    return f"Made with {', '.join(words)}."


def sections_of(page: str) -> dict[str, str]:
    """Return the sections of a page as it is, by the names of their pictures."""
    path = DOCS / "results" / f"{page}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    sections = re.findall(r"^## .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    names = (re.findall(r"images/results/(.+?)\.png", each)[0] for each in sections)
    return {name: f"{each.rstrip()}\n" for name, each in zip(names, sections, strict=True)}


def claims_of(section: str) -> list[dict[str, str]]:
    """Return the verdict, scale and number of seeds of each claim of a section."""
    scale = re.findall(r"^\*(\w+) scale", section, re.MULTILINE)
    rows = re.findall(r" \| (\d+) \| \*\*(.+?)\*\*.*\|$", section, re.MULTILINE)
    return [{"seeds": seeds, "verdict": verdict, "scale": scale[0]} for seeds, verdict in rows]


def conclusion(claims: Sequence[Mapping[str, str]]) -> str:
    """Return how many claims hold, and the verdicts on the others."""
    counts = Counter(claim["verdict"] for claim in claims)
    others = (f"{counts[v]} {v}" for v in Verdict if v != Verdict.HOLDS and counts[v])
    rest = f" Of the others: {', '.join(others)}." if counts[Verdict.HOLDS] < len(claims) else ""
    return f"**{counts[Verdict.HOLDS]} of {len(claims)} claims hold.**{rest}"


def versions(sections: Mapping[str, str]) -> str:
    """Return which version of fedzo made which section."""
    names: dict[str, list[str]] = {}
    for name, section in sections.items():
        names.setdefault(re.findall(r"Made with fedzo (\S+),", section)[0], []).append(name)
    return "\n".join(f"- fedzo {version} made {', '.join(n)}." for version, n in names.items())


def commands(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return what made them, by the scale and the number of seeds that each is shown at."""
    names: dict[str, list[str]] = {}
    for figure in figures:
        name, claim = figure["name"], figure["claims"][0]
        scale, seeds = claim["scale"], int(claim["seeds"])
        usual = find_figure(name).scales[scale].seeds
        how = f"--scale {scale}{f' --seeds {seeds}' if seeds != usual else ''} --out {scale}"
        names.setdefault(how, []).append(name)
    lines = [TRAIN] if any("victim" in n for n in names.values()) else []
    lines += [f"fedzo reproduce {' '.join(n)} {how}" for how, n in names.items()]
    folders = dict.fromkeys(how.split()[-1] for how in names)
    page = f"python tools/make_results.py {' '.join(folders)} --sweeps sweeps"
    return "\n".join([*lines, page])


def main() -> None:
    """Take each figure from the first folder that has it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--sweeps", type=Path, help="do the baselines' grids, in this folder")
    arguments = parser.parse_args()
    (DOCS / "images" / "results").mkdir(parents=True, exist_ok=True)
    made = sweeps_in(arguments.sweeps) if arguments.sweeps else {}
    for folder in reversed(arguments.folders):
        for figure in figures_in(folder):
            picture = f"images/results/{figure['name']}.png"
            copy_picture(folder / f"{figure['name']}.png", DOCS / picture)
            made[figure["name"]] = section(figure, picture)
    write_pages(made)


def write_pages(made: Mapping[str, str]) -> None:
    """Write the pages of figures and the overview; sections that are not made stay."""
    (DOCS / "results").mkdir(exist_ok=True)
    shown: dict[str, str] = {}
    for page, (title, names) in PAGES.items():
        there = sections_of(page) | made
        own = {name: there[name] for name in names if name in there}
        shown |= own
        claims = [claim for each in own.values() for claim in claims_of(each)]
        head = f"{conclusion(claims)} How they are judged: [Results](../results.md).\n"
        parts = [f"# {title}\n", STEPS if page == "steps" else head, *own.values()]
        (DOCS / "results" / f"{page}.md").write_text("\n".join(parts), encoding="utf-8")
    links = [
        f"[{title[0].lower()}{title[1:]}](results/{page}.md)" for page, (title, _) in PAGES.items()
    ]
    figures = [{"name": n, "claims": claims_of(shown[n])} for n in FIGURES if n in shown]
    missing = [name for name in FIGURES if name not in shown]
    left = [n for n in PAPER if n in shown and claims_of(shown[n])[0]["scale"] != "paper"]
    overall = HEAD.format(
        left=LEFT.format(", ".join(left)) if left else "",
        conclusion=conclusion([claim for each in figures for claim in each["claims"]]),
        counts=overview(figures),
        absent=f"\nNot run yet: `fedzo reproduce {' '.join(missing)}`." if missing else "",
        pages=", ".join([*links, "[coefficients over the air](results/air.md)"]),
        versions=versions(shown),
        thresholds=table(("word", "means"), list(MEANING.items())),
        commands=commands(figures),
    )
    (DOCS / "results.md").write_text(overall, encoding="utf-8")


if __name__ == "__main__":
    main()
