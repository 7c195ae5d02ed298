"""The command line: ``fedzo run | reproduce | report | plot | data | theory | bench``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedzo._version import __version__
from fedzo.errors import FedzoError, UsageError
from fedzo.paper.cli import add_commands

if TYPE_CHECKING:
    from fedzo.config import Experiment
    from fedzo.interrupts import Interrupts
    from fedzo.result import Callback, Result

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    0: done; 1: the run diverged, had to halt or met an error of the user's own code; 2: bad
    input, nothing was run; 130: interrupted, resumable.
    """
    arguments = _parser().parse_args(argv)
    try:
        code = int(arguments.command(arguments))
        sys.stdout.flush()
        return code
    except FedzoError as error:
        print(f"fedzo: error: {error}", file=sys.stderr)
        return BAD_INPUT
    except MemoryError as error:
        print(f"fedzo: error: not enough memory: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("fedzo: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if not _tell_own(error):
            raise
        return FAILED


def _tell_own(error: Exception) -> bool:
    """Show an error that came out of the user's own code, from there on; False if it did not."""
    from fedzo.importing import own_traceback

    own = own_traceback(error)
    if own is None:
        return False
    traceback.print_exception(type(error), error, own)
    last = traceback.extract_tb(own, limit=1)[0]
    where = f"{last.filename}, line {last.lineno}, in {last.name}"
    print(f"fedzo: error: {type(error).__name__} in your own code: {where}", file=sys.stderr)
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedzo", description="Federated optimisation from loss values only."
    )
    parser.add_argument("--version", action="version", version=f"fedzo {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a configuration")
    _add_config(run)
    run.add_argument("--out", type=Path, metavar="DIR", help="where the run's files go")
    run.add_argument("--resume", action="store_true", help="go on from the checkpoint in DIR")
    run.add_argument("--seeds", type=int, metavar="K", help="run K seeds, in DIR/seed-*")
    run.add_argument(
        "--engine",
        choices=("local", "flower"),
        default="local",
        help="threads of this process, or Flower's simulation",
    )
    run.add_argument("--quiet", action="store_true", help="print the summary only")
    run.set_defaults(command=_run)

    plot = commands.add_parser("plot", help="draw the curves of runs")
    plot.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    plot.add_argument("--out", type=Path, metavar="FILE", help="the picture (curves.png)")
    plot.set_defaults(command=_plot)

    data = commands.add_parser("data", help="list, fetch or show data")
    actions = data.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("list", help="what there is, and where").set_defaults(command=_data_list)
    get = actions.add_parser("get", help="fetch a data set into the cache")
    get.add_argument("name", metavar="NAME")
    get.set_defaults(command=_data_get)
    show = actions.add_parser("show", help="draw which device holds what")
    _add_config(show)
    show.add_argument("--out", type=Path, default=Path("split.png"), metavar="FILE")
    show.set_defaults(command=_data_show)

    theory = commands.add_parser("theory", help="what the theorems say of a configuration")
    _add_config(theory)
    known = theory.add_mutually_exclusive_group()
    known.add_argument(
        "--estimate",
        type=int,
        nargs="?",
        const=500_000,
        metavar="QUERIES",
        help="measure the constants, by at most so many queries",
    )
    known.add_argument("--constants", metavar="L=...,gap=...", help="give the constants")
    theory.set_defaults(command=_theory)

    bench = commands.add_parser("bench", help="measure this machine")
    bench.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    bench.set_defaults(command=_bench)

    add_commands(commands)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, or a name that ships")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="change a setting; may be given several times",
    )


def _run(arguments: argparse.Namespace) -> int:
    from fedzo.config import Experiment
    from fedzo.folder import RunFolder
    from fedzo.interrupts import Interrupts

    experiment = Experiment.load(arguments.config, arguments.set)
    out = _out(arguments, experiment.name)
    several = arguments.seeds is not None
    if several and arguments.seeds < 1:
        raise UsageError(f"--seeds {arguments.seeds}: must be a whole number >= 1")
    try:
        with Interrupts() as interrupts:
            if several:
                return _many(experiment, out, arguments, interrupts)
            return _one(experiment, out, arguments.resume, arguments, interrupts)
    except KeyboardInterrupt:
        first = out / f"seed-{experiment.settings.seed}" if several else out
        if RunFolder(first).has_run():
            command = ["fedzo", "run", str(RunFolder(first).config), "--resume"]
            command += ["--seeds", str(arguments.seeds), "--out", str(out)] if several else []
            command += ["--engine", "flower"] if arguments.engine == "flower" else []
            print(f"to go on: {shlex.join(command)}", file=sys.stderr)
            return INTERRUPTED
        raise


def _out(arguments: argparse.Namespace, name: str) -> Path:
    """Return the folder for a run: as given, or the first free one under runs/."""
    if arguments.out is not None:
        return Path(arguments.out)
    if arguments.resume:
        path = Path(arguments.config)
        if (path / "config.toml").is_file():
            return path
        if path.name == "config.toml" and path.is_file():
            return path.parent
        raise UsageError("--resume needs --out DIR, the folder of the run to go on with")
    folder, number = Path("runs") / name, 2
    while folder.exists():
        folder, number = Path("runs") / f"{name}-{number}", number + 1
    return folder


def _one(
    experiment: Experiment,
    out: Path,
    resume: bool,
    arguments: argparse.Namespace,
    interrupts: Interrupts,
) -> int:
    from fedzo.progress import ProgressLine
    from fedzo.result import Status

    callbacks: list[Callback] = [] if arguments.quiet else [ProgressLine()]
    result = experiment.run(out, resume, [*callbacks, interrupts], arguments.engine)
    print(_summary(result, out))
    if result.status == Status.INTERRUPTED:
        raise KeyboardInterrupt
    return 0 if result.success else FAILED


def _many(
    experiment: Experiment, out: Path, arguments: argparse.Namespace, interrupts: Interrupts
) -> int:
    from fedzo.folder import RunFolder
    from fedzo.plot import draw_runs

    first = experiment.settings.seed
    seeds = range(first, first + arguments.seeds)
    runs = {out / f"seed-{seed}": experiment.with_seed(seed) for seed in seeds}
    begun = [folder for folder in runs if RunFolder(folder).has_run()]
    if begun and not arguments.resume:
        raise UsageError(f"{begun[0]} already holds a run: resume it or choose another folder")
    if arguments.resume and not begun:
        raise UsageError(f"{out} holds no run to resume")
    failed = []
    for folder, one in runs.items():
        # Of several seeds some may be finished, some half done, some not begun.
        if _one(one, folder, folder in begun, arguments, interrupts) != 0:
            failed.append(folder.name)
    # One band for all; a curve each where some have ended before the others.
    drawn = [f for f in runs if RunFolder(f).history.exists()] if failed else [out]
    if drawn:
        draw_runs(drawn, out / "curves.png")
        print(f"all seeds     {out / 'curves.png'}")
    if failed:
        print(f"failed        {len(failed)} of {len(runs)}: {', '.join(failed)}")
    return FAILED if failed else 0


def _summary(result: Result, out: Path) -> str:
    from fedzo.progress import duration, headline

    record = result.history[-1] if result.history else {}
    rows = [("result", result.message)]
    when = "" if record.get("round") == result.nit else f" (round {record.get('round')})"
    told = headline(record) + [key for key in record if key.startswith("distortion_")]
    rows += [(key.replace("_", " "), f"{record[key]:.6g}{when}") for key in told]
    rows += [
        ("queries", f"{result.queries:,} (and {result.evaluation_queries:,} for evaluation)"),
        ("bytes up", f"{result.uplink_bytes:,}"),
        ("bytes down", f"{result.downlink_bytes:,}"),
        ("channel uses", f"{result.channel_uses:,}"),
        ("time", f"{result.seconds:.1f} s" if result.seconds < 60 else duration(result.seconds)),
        ("files", f"{out}/: {' '.join(_files(out))}"),
    ]
    if left_out := [one for record in result.history for one in record.get("left_out", ())]:
        devices = sorted({one["device"] for one in left_out})
        named = ", ".join(map(str, devices[:5])) + (", ..." if len(devices) > 5 else "")
        rows.insert(
            1, ("left out", f"{len(left_out)} times, device {named}: history.jsonl has why")
        )
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(name.ljust(width) + value for name, value in rows)


def _files(out: Path) -> list[str]:
    """Return the names of a run's files: those of every run first."""
    usual = ("config.toml", "history.jsonl", "model.npy", "checkpoint.npz", "curves.png")
    there = sorted(path.name for path in out.iterdir())
    return [name for name in usual if name in there] + [n for n in there if n not in usual]


def _plot(arguments: argparse.Namespace) -> int:
    from fedzo.plot import draw_runs

    alone = arguments.runs[0] if len(arguments.runs) == 1 else Path()
    out = arguments.out or alone / "curves.png"
    _writable(lambda: draw_runs(arguments.runs, out), out)
    print(out)
    return 0


def _data_list(_arguments: argparse.Namespace) -> int:
    from fedzo import data

    for entry in data.catalogue():
        where = entry.folder or f"not here: fedzo data get {entry.name}"
        print(f"{entry.name:<20}{entry.about}\n{'':<20}{where}")
    return 0


def _data_get(arguments: argparse.Namespace) -> int:
    from fedzo import data

    print(f"{arguments.name}: {data.get(arguments.name)}")
    return 0


def _data_show(arguments: argparse.Namespace) -> int:
    from fedzo.config import Experiment
    from fedzo.data.show import draw_partition

    experiment = Experiment.load(arguments.config, arguments.set)
    problem: Any = experiment.problem()
    if not hasattr(problem, "parts"):
        raise UsageError(f"{arguments.config}: this problem has no data to show")
    labels, classes = problem.data.train_labels, problem.data.classes
    _writable(lambda: draw_partition(labels, problem.parts, classes, arguments.out), arguments.out)
    print(arguments.out)
    return 0


def _writable(draw: Any, out: Path) -> None:
    try:
        draw()
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error
    except ValueError as error:  # a format that nobody draws
        raise UsageError(f"cannot write {out}: {error}") from error


def _theory(arguments: argparse.Namespace) -> int:
    from fedzo.config import Experiment
    from fedzo.theory import Constants, Estimate, estimate, report

    experiment = Experiment.load(arguments.config, arguments.set)
    objective: Any = experiment.problem()
    constants: Constants | Estimate
    if arguments.constants is not None:
        constants = Constants.parse(arguments.constants)
    elif arguments.estimate is not None:
        seed = experiment.settings.seed
        constants = estimate(objective, queries=arguments.estimate, seed=seed)
    elif hasattr(objective, "constants"):
        constants = Constants(**objective.constants())
    else:
        raise UsageError(
            f"{arguments.config}: the problem's constants are not known; --estimate measures "
            "them, --constants L=...,gap=... gives them"
        )
    found = report(
        experiment.algorithm,
        constants,
        devices=objective.devices,
        dim=objective.dim,
        rounds=experiment.settings.rounds,
        uplink=experiment.uplink,
        seed=experiment.settings.seed,
    )
    print(found.text())
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from fedzo.bench import run_benchmarks

    run_benchmarks(quick=arguments.quick)
    return 0
