"""``fedzo run``: run a configuration.

The files go to DIR, by default to the first free one of runs/NAME, runs/NAME-2, ...

Examples::

    fedzo run softmax
    fedzo run softmax --rounds 50 --set algorithm.local_steps=20
    fedzo run my.toml --seeds 5 --out results/mine
    fedzo run runs/softmax --resume --rounds 500
"""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from fedzo.cli.common import add_config, add_parser, check_seeds, fill, load, say
from fedzo.core.progress import show
from fedzo.errors import Exit, MissingExtra, UsageError

if TYPE_CHECKING:
    from fedzo.config.experiment import Experiment
    from fedzo.runs.minimize import Backend
    from fedzo.runs.result import Callback, Progress, Result


SHORT = {"--rounds": "N", "--seed": "S", "--max-queries": "Q"}  # short forms of --set run.KEY


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "run", __doc__)
    add_config(parser)
    for option, metavar in SHORT.items():
        text = f"short for --set run.{option[2:].replace('-', '_')}={metavar}"
        parser.add_argument(option, metavar=metavar, help=text)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder for the files of the run"
    )
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint in DIR")
    parser.add_argument("--seeds", type=int, metavar="K", help="run K seeds, in DIR/seed-*")
    parser.add_argument(
        "--engine",
        choices=("local", "flower"),
        default="local",
        help="threads of this process, or Flower's simulation",
    )
    parser.add_argument("--quiet", action="store_true", help="print the summary only")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run one seed or several; after an interrupt, print the command that resumes."""
    from fedzo.config.jobs import code_of
    from fedzo.runs.callbacks import Interrupts, ProgressLine
    from fedzo.runs.result import Status
    from fedzo.runs.store import RunFolder

    for key in (option[2:].replace("-", "_") for option in SHORT):
        if (value := getattr(arguments, key)) is not None:
            arguments.set.append(f"run.{key}={value}")
    experiment = load(arguments)
    check_seeds(arguments.seeds)
    out, notices = _out(arguments, experiment.name)

    def announce(_progress: Progress) -> None:  # once all settings have been checked
        while notices:
            show(notices.pop())

    several, first = arguments.seeds is not None, experiment.options.seed
    runs, begun = {out: experiment}, {out} if arguments.resume else set()
    if several:
        seeds = range(first, first + arguments.seeds)
        runs = {out / f"seed-{seed}": experiment.with_seed(seed) for seed in seeds}
        begun = _begun(runs, out, arguments.resume)
    codes: dict[str, Exit] = {}
    try:
        with Interrupts() as interrupts:
            for folder, one in runs.items():
                watchers: list[Callback] = [announce, interrupts]
                watchers[1:1] = [] if arguments.quiet else [ProgressLine()]
                engine = _engine(arguments.engine, one)
                result = one.run(folder, folder in begun, watchers, engine)
                say(_summary(result, folder))
                if result.status == Status.INTERRUPTED:
                    raise KeyboardInterrupt
                codes[folder.name] = code_of(result)
                if several:
                    RunFolder(out).mark.touch()  # the picture of all seeds goes there
            if several:
                _draw_seeds(list(runs), codes, out)
    except KeyboardInterrupt:
        started = next(iter(runs))
        if not RunFolder(started).has_run():
            raise
        command = ["fedzo", "run", str(RunFolder(started).config), "--resume"]
        command += ["--seeds", str(arguments.seeds), "--out", str(out)] if several else []
        command += ["--engine", "flower"] if arguments.engine == "flower" else []
        show(f"to resume: {shlex.join(command)}")
        return Exit.INTERRUPTED
    return max(codes.values())


def _engine(name: str, experiment: Experiment) -> Backend | None:
    """Return the engine of virtual Flower nodes, or None for threads of this process."""
    if name == "local":
        return None
    try:
        from fedzo.flower.simulation import simulation
    except ModuleNotFoundError as error:
        raise MissingExtra(f"--engine flower: {error}", "flower") from error
    return simulation(experiment)


def _out(arguments: argparse.Namespace, name: str) -> tuple[Path, list[str]]:
    """Return the folder for a run, as given or the first free one under runs/, and notices."""
    if arguments.out is not None:
        return Path(arguments.out), []
    if arguments.resume:
        path = Path(arguments.config)
        path = path.parent if path.name == "config.toml" else path
        if (path / "config.toml").is_file():
            return path, []
        words = "--resume needs --out DIR, the folder of the run to resume"
        raise UsageError(words, code="resume-without-folder")
    first = folder = Path("runs") / name
    for number in itertools.count(2):
        if not folder.exists():
            break
        folder = Path("runs") / f"{name}-{number}"
    notice = f"{first} exists: this run goes to {folder} (fedzo list shows all)"
    return folder, [notice] if folder != first else []


def _begun(runs: Iterable[Path], out: Path, resume: bool) -> set[Path]:
    """Return the folders of seeds that hold a run: some may be finished, some not begun."""
    from fedzo.runs.store import RunFolder

    begun = [folder for folder in runs if RunFolder(folder).has_run()]
    if begun and not resume:
        words = f"{begun[0]} already holds a run: resume it or choose another folder"
        raise UsageError(words, code="folder-has-run")
    if resume and not begun:
        raise UsageError(f"{out} does not contain a run to resume", code="no-run")
    if not begun:
        RunFolder(out).check_free(several=True)
    return set(begun)


def _draw_seeds(folders: list[Path], codes: Mapping[str, Exit], out: Path) -> None:
    """Draw all seeds as one band, or as a curve each if some ended early."""
    from fedzo.plots.figures import draw_curves
    from fedzo.runs.history import read_runs
    from fedzo.runs.store import RunFolder

    failed = [name for name, code in codes.items() if code != Exit.DONE]
    drawn = [f for f in folders if RunFolder(f).history.exists()] if failed else [out]
    if drawn:
        draw_curves(read_runs(drawn), out / "curves.png")
        say(f"all seeds     {out / 'curves.png'}")
    if failed:
        say(f"failed        {len(failed)} of {len(folders)}: {', '.join(failed)}")


def _summary(result: Result, out: Path) -> str:
    from fedzo.core.progress import duration
    from fedzo.runs.callbacks import headline
    from fedzo.runs.result import listed

    record = result.history[-1] if result.history else {}
    rows = [("result", result.message)]
    when = "" if record.get("round") == result.nit else f" (round {record.get('round')})"
    shown = headline(record) + [key for key in record if key.startswith("distortion_")]
    rows += [(key.replace("_", " "), f"{record[key]:.6g}{when}") for key in shown]
    rows += [
        ("queries", f"{result.queries:,} (and {result.evaluation_queries:,} for evaluation)"),
        ("bytes up", f"{result.uplink_bytes:,}"),
        ("bytes down", f"{result.downlink_bytes:,}"),
        ("channel uses", f"{result.channel_uses:,}"),
        ("time", f"{result.seconds:.1f} s" if result.seconds < 60 else duration(result.seconds)),
        ("files", f"{out}/: {' '.join(_files(out))}"),
    ]
    if dropped := result.dropped:
        named = listed(sorted({one["device"] for one in dropped}))
        words = f"{len(dropped)} times, device {named}: see history.jsonl for the reasons"
        rows.insert(1, ("dropped", words))
    width = max(len(name) for name, _ in rows) + 2
    columns = get_terminal_size((9999, 0)).columns - 1  # if it is no terminal, one line
    return "\n".join(fill(name.ljust(width) + value, columns, width) for name, value in rows)


def _files(out: Path) -> list[str]:
    """Return the names of a run's files, those of every run first."""
    usual = ["config.toml", "history.jsonl", "model.npy", "best.npy", "checkpoint.npz"]
    usual += ["curves.png"]
    there = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    return [name for name in usual if name in there] + [n for n in there if n not in usual]
