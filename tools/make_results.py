"""Write docs/results.md and docs/results/ from folders that ``fedzo reproduce`` has filled.

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
from fedzo.paper.claims import MEANING
from fedzo.paper.reproduce import HEADINGS, cells, figures_in, overview, table

TRAIN = "python tools/train_victim.py carlini"
DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Results

Every figure of the paper, and some that we add, each with claims and whether they hold. The
paper's claims come from its text; its plots give no numbers to compare with.{absent}

{counts}

The figures and all claims with their numbers: {pages}.

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

`make results` runs Fig. 3 to 5 at the paper's scale and the others at `quick`, all seeds. `make
results-paper` runs Fig. 1a, 1b, 1c and 2 at the paper's scale, too: a night per seed. Both resume
where they stopped. The victim has to be trained first.

```sh
{commands}
```

Versions: {environment}. `fedzo report quick` writes one page with curves to hover and zoom.
"""
PAGES = {
    "attack": ("Attack figures", ("fig1a", "fig1b", "fig1c", "fig2", "victim")),
    "steps": ("Baselines and step sizes of the attack", ()),  # and the sweeps
    "softmax": ("Softmax figures and Table I", ("fig3", "fig4", "fig5", "table1")),
    "more": ("Figures that we add", ("rates", "queries")),
}


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
        rows = [sweep_row(row) for row in csv.DictReader(file)]
    ends = [json.loads(p.read_text().splitlines()[-1]) for p in out.rglob("history.jsonl")]
    hours = sum(end["seconds"] for end in ends) / 3600
    queries = sum(end["queries"] for end in ends)
    command = f"fedzo sweep {sweep.command} --out sweeps/{sweep.name}".replace(" --", " \\\n    --")
    return "\n".join(
        [
            f"## {sweep.title}",
            "",
            f"{sweep.about} {queries:,} queries and {hours:.2f} hours of running.",
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
            f"*{figure['caption']}.*",
            "",
            table(HEADINGS, [cells(claim) for claim in figure["claims"]]),
            "",
        ]
    )


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
    shown = {name: found[name] for name in FIGURES if name in found}
    sweeps = sweeps_in(arguments.sweeps) if arguments.sweeps else []
    figures = [figure for figure, _ in shown.values()]
    write_pages(figures, sweeps, bool(sweeps))
    for figure, folder in shown.values():
        picture = f"images/results/{figure['name']}.png"
        copy_picture(folder / f"{figure['name']}.png", DOCS / picture)


def write_pages(figures: Sequence[dict[str, Any]], sweeps: Sequence[str], swept: bool) -> None:
    """Write the overview and the pages of figures."""
    (DOCS / "results").mkdir(exist_ok=True)
    for page, (title, names) in PAGES.items():
        judged = "How claims are judged: [Results](../results.md).\n"
        parts = [f"# {title}\n", STEPS if page == "steps" else judged]
        parts += [
            section(figure, f"images/results/{figure['name']}.png")
            for figure in figures
            if figure["name"] in names
        ]
        parts += sweeps if page == "steps" else []
        (DOCS / "results" / f"{page}.md").write_text("\n".join(parts), encoding="utf-8")
    links = [
        f"[{title[0].lower()}{title[1:]}](results/{page}.md)" for page, (title, _) in PAGES.items()
    ]
    head = HEAD.format(
        counts=overview(figures),
        absent=absent({figure["name"] for figure in figures}),
        pages=", ".join([*links, "[coefficients over the air](results/air.md)"]),
        thresholds=table(("word", "means"), list(MEANING.items())),
        commands=commands(figures, swept),
        environment=made_with(figures),
    )
    (DOCS / "results.md").write_text(head, encoding="utf-8")


if __name__ == "__main__":
    main()
