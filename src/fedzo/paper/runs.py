"""The runs behind figures: each is known by its resolved configuration, and done once.

It lies in ``runs/<config>-<hash>/seed-<n>``, a folder as ``fedzo run --seeds`` leaves it. Whatever
is there already is not done again, be it from another figure or from before a kill.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from fedzo._version import __version__
from fedzo.config.experiment import Experiment
from fedzo.config.jobs import Run
from fedzo.core.files import as_toml


def run_of(experiment: Experiment, seed: int, out: Path) -> Run:
    """Return the run of an experiment with a seed, and where it lies under ``out``.

    The seed names the data's randomness too, so that seeds differ in their split as well. The
    version is part of the name: what another version computed is not taken for ours.

    Examples
    --------
    >>> experiment = Experiment.load("quadratic", ["run.rounds=20"])
    >>> run = run_of(experiment, 3, Path("reproduction"))
    >>> folder = run.folder
    >>> folder.parts[:2], folder.parts[2].rpartition("-")[0], folder.name
    (('reproduction', 'runs'), 'quadratic', 'seed-3')
    >>> run_of(experiment, 4, Path("reproduction")).folder.parent == folder.parent
    True
    >>> run.experiment.options.seed, run.experiment.options.data_seed
    (3, 3)
    """
    known = as_toml(experiment.with_seed(0).tables)
    text = json.dumps([__version__, known], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = out / "runs" / f"{experiment.name}-{digest}" / f"seed-{seed}"
    data_seed = experiment.options.data_seed + seed
    settings = experiment.tables["run"] | {"seed": seed, "data_seed": data_seed}
    tables = as_toml(experiment.tables | {"run": settings})
    return Run(Experiment.resolve(tables, experiment.name), folder)
