"""Run the tests in real environments: the core alone, and the core with each single extra.

    python tools/environments.py [--only core attack ...] [--out build/environments]

makes a virtual environment for each, runs all tests but the slow ones in it, and prints one line
per environment: what passed, failed and was skipped. Half an hour on two cores. What was installed
in the same folder before is not installed again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTING = ("pytest", "pytest-xdist", "hypothesis")  # what it takes to run the tests at all


def names() -> list[str]:
    """Return the environments: the core, then each extra except ``all``, which joins others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return ["core", *(name for name in project["optional-dependencies"] if name != "all")]


def install(name: str, folder: Path) -> Path:
    """Make the environment; return its Python."""
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        package = str(ROOT) if name == "core" else f"{ROOT}[{name}]"
        command = [python, "-m", "pip", "install", "--quiet", "--no-compile", "-c"]
        command += [ROOT / "constraints.txt", "--editable", package, *TESTING]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        (folder / ".installed").touch()
    return python


def run(python: Path, log: Path) -> tuple[bool, str]:
    """Run the tests; return whether they pass, and pytest's last line."""
    command = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    log.write_text(done.stdout + done.stderr)
    return done.returncode == 0, (done.stdout.strip().splitlines() or ["nothing was run"])[-1]


def main() -> int:
    """Run all environments, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=names(), default=names(), metavar="NAME")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "environments")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in arguments.only:
        began = time.monotonic()
        python = install(name, (arguments.out / name).resolve())
        passed, line = run(python, arguments.out / f"{name}.log")
        failed += [] if passed else [name]
        print(f"{name:8s} {line}; {time.monotonic() - began:.0f} s in all", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}; see {arguments.out}/NAME.log")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
