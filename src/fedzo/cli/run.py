"""``fedzo run``: run a configuration."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedzo.cli.common import Exit, add_config, check_seeds, say
from fedzo.core.progress import show
from fedzo.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from fedzo.config.experiment import Experiment
    from fedzo.runs.callbacks import Interrupts
    from fedzo.runs.minimize import Backend
    from fedzo.runs.result import Callback, Result


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("run", help="run a configuration")
    add_config(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the run's files go")
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint in DIR")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="resume although the history is damaged or does not fit the checkpoint",
    )
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
    """Run one seed or several, and say how to resume what was interrupted."""
    from fedzo.config.experiment import Experiment
    from fedzo.runs.callbacks import Interrupts
    from fedzo.runs.store import RunFolder

    arguments.resume = arguments.resume or arguments.repair
    experiment = Experiment.load(arguments.config, arguments.set)
    out = _out(arguments, experiment.name)
    several = arguments.seeds is not None
    check_seeds(arguments.seeds)
    try:
        with Interrupts() as interrupts:
            if several:
                return _run_seeds(experiment, out, arguments, interrupts)
            return _run_one(experiment, out, arguments.resume, arguments, interrupts)
    except KeyboardInterrupt:
        first = out / f"seed-{experiment.options.seed}" if several else out
        if RunFolder(first).has_run():
            command = ["fedzo", "run", str(RunFolder(first).config), "--resume"]
            command += ["--seeds", str(arguments.seeds), "--out", str(out)] if several else []
            command += ["--engine", "flower"] if arguments.engine == "flower" else []
            show(f"to resume: {shlex.join(command)}")
            return Exit.INTERRUPTED
        raise


def _engine(name: str, experiment: Experiment) -> Backend | None:
    """Return Flower's simulation engine, or None for threads of this process."""
    if name == "local":
        return None
    try:
        from fedzo.flower.simulation import simulation
    except ModuleNotFoundError as error:
        raise MissingExtra(f"--engine flower: {error}", "flower") from error
    return simulation(experiment)


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
        raise UsageError("--resume needs --out DIR, the folder of the run to resume")
    folder, number = Path("runs") / name, 2
    while folder.exists():
        folder, number = Path("runs") / f"{name}-{number}", number + 1
    return folder


def _run_one(
    experiment: Experiment,
    out: Path,
    resume: bool,
    arguments: argparse.Namespace,
    interrupts: Interrupts,
) -> Exit:
    from fedzo.runs.callbacks import ProgressLine
    from fedzo.runs.result import Status

    callbacks: list[Callback] = [] if arguments.quiet else [ProgressLine()]
    watchers: list[Callback] = [*callbacks, interrupts]
    how: Any = "repair" if resume and arguments.repair else resume
    result = experiment.run(out, how, watchers, _engine(arguments.engine, experiment))
    say(_summary(result, out))
    if result.status == Status.INTERRUPTED:
        raise KeyboardInterrupt
    return _code_of(result)


def _code_of(result: Result) -> Exit:
    from fedzo.runs.result import Status

    if result.success:
        return Exit.DONE
    return Exit.HALTED if result.status == Status.HALTED else Exit.NO_SUCCESS


def _run_seeds(
    experiment: Experiment, out: Path, arguments: argparse.Namespace, interrupts: Interrupts
) -> int:
    from fedzo.plots.curves import draw_curves
    from fedzo.runs.history import read_runs
    from fedzo.runs.store import RunFolder

    first = experiment.options.seed
    seeds = range(first, first + arguments.seeds)
    runs = {out / f"seed-{seed}": experiment.with_seed(seed) for seed in seeds}
    begun = [folder for folder in runs if RunFolder(folder).has_run()]
    if begun and not arguments.resume:
        raise UsageError(f"{begun[0]} already holds a run: resume it or choose another folder")
    if arguments.resume and not begun:
        raise UsageError(f"{out} does not contain a run to resume")
    whole = RunFolder(out)
    if not begun:
        whole.check_free()
    codes = {}
    for folder, one in runs.items():
        # Of several seeds some may be finished, some half done, some not begun.
        codes[folder.name] = _run_one(one, folder, folder in begun, arguments, interrupts)
        whole.mark.touch()  # the picture of all seeds goes here
    failed = [name for name, code in codes.items() if code != Exit.DONE]
    # One band for all; a curve each where some have ended before the others.
    drawn = [f for f in runs if RunFolder(f).history.exists()] if failed else [out]
    if drawn:
        draw_curves(read_runs(drawn), out / "curves.png")
        say(f"all seeds     {out / 'curves.png'}")
    if failed:
        say(f"failed        {len(failed)} of {len(runs)}: {', '.join(failed)}")
    return max(codes.values())


def _summary(result: Result, out: Path) -> str:
    from fedzo.core.progress import duration
    from fedzo.runs.callbacks import headline

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
        devices = sorted({one["device"] for one in dropped})
        named = ", ".join(map(str, devices[:5])) + (", ..." if len(devices) > 5 else "")
        text = f"{len(dropped)} times, device {named}: see history.jsonl for the reasons"
        rows.insert(1, ("dropped", text))
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(name.ljust(width) + value for name, value in rows)


def _files(out: Path) -> list[str]:
    """Return the names of a run's files: those of every run first."""
    usual = (
        "config.toml",
        "history.jsonl",
        "model.npy",
        "best.npy",
        "checkpoint.npz",
        "curves.png",
    )
    there = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    return [name for name in usual if name in there] + [n for n in there if n not in usual]
