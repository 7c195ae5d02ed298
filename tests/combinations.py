"""Every combination of parts: it runs two rounds, or is rejected before anything happens.

The axes come from the registry, so a new part is tried with all others without an edit here.
"""

import contextlib
import io
import itertools
import re
import shutil
from dataclasses import fields

import pytest

from fedzo.cli import main
from fedzo.config.experiment import Experiment, shipped
from fedzo.core.directions import KINDS
from fedzo.core.engine import LocalEngine
from fedzo.core.estimator import DIFFERENCES
from fedzo.core.tasks import WEIGHTINGS
from fedzo.errors import Exit
from fedzo.runs.options import FlowerSettings, RunOptions
from fedzo.runs.registry import (
    ALGORITHMS,
    COMPONENTS,
    SERVER_OPTIMIZERS,
    UPLINKS,
    maker,
    parameters_of,
)
from fedzo.runs.store import RunFolder

# Problems that need a download or minutes even when they are small; the others are all tried.
LARGE = ("attack-cifar10", "text")
CONFIGS = [name for name in shipped() if name not in LARGE]
# What makes a shipped configuration small. Keys that a problem or an algorithm lacks are left out.
SMALL = {
    "problem.devices": 3,
    "problem.dim": 4,
    "problem.partition": "iid",
    "problem.max_queries": 2000,
    "problem.evaluation_seeds": 1,
    "problem.epochs": 1,
    "algorithm.batch_size": 2,
    "algorithm.directions": 2,
    "algorithm.local_steps": 1,
    "algorithm.participants": 2,
    "server.divisions": 1,
    "run.rounds": 2,
    "run.workers": 1,
}
# The axes. "_" is the shipped configuration's own value.
AXES = {
    "algorithm.name": list(ALGORITHMS),
    "uplink.name": list(UPLINKS),
    "server.name": ["_", *SERVER_OPTIMIZERS],
    "algorithm.direction_kind": list(KINDS),
    "algorithm.difference": list(DIFFERENCES),
    "algorithm.shared_directions": [False, True],
    "algorithm.fixed_directions": ["_", 4],
    "algorithm.learning_rate": ["_", "auto"],
    "algorithm.smoothing": ["_", "auto"],
    "algorithm.weighting": list(WEIGHTINGS),
    "config": CONFIGS,
}


def tuples(count, axes=AXES):
    """Return every combination of values of ``count`` axes, the others at their first value."""
    for keys in itertools.combinations(axes, count):
        for values in itertools.product(*(axes[key] for key in keys)):
            yield dict(zip(keys, values, strict=True))


def arguments(case):
    """Return the words of the command that tries a case."""
    config = case.get("config", "quadratic")
    chosen = {key: value for key, value in case.items() if key != "config" and value != "_"}
    tables = Experiment.load(config).tables
    taken = {"problem": parameters_of(maker("problem", tables["problem"]["name"]))}
    for table in ("algorithm", "server", "uplink"):
        name = chosen.get(f"{table}.name", tables.get(table, {}).get("name", "mean"))
        taken[table] = parameters_of(maker(table, name))
    taken["run"] = {field.name for field in fields(RunOptions)}

    def takes(key):
        table, _, name = key.partition(".")
        return name in taken[table]

    small = {key: value for key, value in SMALL.items() if takes(key)}
    given = {k: v for k, v in chosen.items() if k.endswith(".name") or takes(k)}
    if "server" not in taken["algorithm"] and "server.name" not in given:
        given["server.name"] = "mean"
    return [
        config,
        *(
            f"{key}={str(v).lower() if isinstance(v, bool) else v}"
            for key, v in (small | given).items()
        ),
    ]


def run(case, folder):
    """Run a case by the command line; return the exit code, what was said, and the tasks asked."""
    asked, original = [], LocalEngine.ask

    def counted(engine, task):
        asked.append(type(task).__name__)
        return original(engine, task)

    config, *settings = arguments(case)
    words = [word for setting in settings for word in ("--set", setting)]
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "ask", counted)
        patch.setattr(RunFolder, "draw_curves", lambda self: None)  # which takes most of the time
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = main(["run", config, *words, "--out", str(folder), "--quiet"])
    return code, said.getvalue(), asked


KEY = re.compile(r"\b(problem|algorithm|server|uplink|run|flower)\.(\w+)")


def existing_keys(text):
    """Return the keys that a text names, such as ``uplink.name``, and that no part has."""
    found = set()
    for table, key in KEY.findall(text):
        found.add((f"{table}.{key}", key in keys_of(table)))
    return found


OPTIONS = {"run": RunOptions, "flower": FlowerSettings}


def keys_of(table):
    """Return all keys that a table takes, whichever part it makes."""
    if table not in COMPONENTS:
        return {field.name for field in fields(OPTIONS[table])}
    makers = [maker(table, name) for name in COMPONENTS[table].known]
    return {"name"}.union(*map(parameters_of, makers))


def check(case, folder):
    """Raise unless a case runs, or is rejected at once by a line that names an existing key."""
    code, said, asked = run(case, folder)
    told = f"{case}: code {code}, {len(asked)} tasks: {said}"
    assert "Traceback" not in said, told
    if code == Exit.NOTHING_RUN:
        assert not asked, told
        assert not folder.exists(), told
        named = existing_keys(said)
        assert named, told
        assert all(exists for _, exists in named), told
    else:
        # Two rounds of a tiny problem may improve nothing.
        assert code in (Exit.DONE, Exit.NO_SUCCESS), told
        assert "Losses" in asked, told
    shutil.rmtree(folder, ignore_errors=True)
    return code
