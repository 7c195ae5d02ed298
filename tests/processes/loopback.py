"""What the tests of real processes share: each process is ended by its own id.

They are slow, since Flower starts a process for each message: ``pytest -m processes`` runs them.
"""

import time
import tomllib
from pathlib import Path

from fedzo.flower.server import experiment_of
from fedzo.runs import RunFolder

HERE = Path(__file__).parents[2]

APP = HERE / "examples" / "flower-app"
LIMIT = 900  # seconds that anything may take at most: a machine may be busy
PATIENT = {"flower.grace": 900.0, "flower.patience": 900.0}  # where nobody is to be left out
WIRE = tuple(f"{kind}_{way}_bytes" for kind in ("message", "transport") for way in ("up", "down"))


def node_config(folder, part, parts):
    """Return the configuration of a node that allows a small problem and the example's."""
    file = folder / "node.toml"
    file.write_text("[problems.softmax]\ndevices = 50\n[problems.quadratic]\ndevices = 9\n")
    return f'partition-id={part} num-partitions={parts} node-file="{file}"'


def here(settings):
    """Return the run of the same settings in this process."""
    return experiment_of(settings).run()


def until(what, seconds=LIMIT):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)
    return found


def rounds_done(folder):
    checkpoint = RunFolder(folder).load()
    return -1 if checkpoint is None else checkpoint.at.round


def without(record):
    return {k: v for k, v in record.items() if k not in ("seconds", *WIRE)}


def settings_of(**changes):
    """Return the app's run configuration with changes, flat as Flower has it."""
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    flat = {}
    for key, value in config.items():
        inner = value.items() if isinstance(value, dict) else ()
        flat.update({f"{key}.{k}": v for k, v in inner} or {key: value})
    return {**flat, **changes}
