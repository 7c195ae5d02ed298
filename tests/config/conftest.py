"""Fixtures for configurations: an empty folder, custom problems, commands that must be rejected."""

import sys

import pytest

from fedzo.cli import main

OWN = '''
"""A user's own problems."""
import functools
import fedzo
import numpy as np

class Bowl(fedzo.Objective):
    def __init__(self, dim: int = 3, devices: int = 4, centre: float = 1.0,
                 shifts: tuple[float, ...] = (0.0, 0.5), note: str | None = None,
                 kind: type = float, seed: int = 0):
        self.dim, self.devices = dim, devices
        self.centre = centre + 100 * seed + np.resize(shifts, devices)
    def batch(self, device, size, draws):
        return device
    def values(self, points, batch):
        return np.sum((points - self.centre[batch]) ** 2, axis=1)[:, None]
    def losses(self, x, devices):
        return np.array([np.sum((x - self.centre[i]) ** 2) for i in devices])

def make(dim: int, devices: int = 2, scale: "Unknown" = 1):
    from HELPER import offset
    return Bowl(dim, devices, scale * offset)

def any_keys(**keys):
    return Bowl(keys.pop("size", 2), **keys)

def sloppy(dim: int = None):
    return Bowl(dim or 2)

def needs(depth: float | list[float]):
    return Bowl()

def nothing():
    return None

bowl = functools.partial(Bowl, dim=5)
number = 3
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to give commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own(here, monkeypatch):
    """A module of the user's beside the command, with a name that no other test has."""
    name = f"own_{here.name}"
    (here / f"{name}.py").write_text(OWN.replace("HELPER", f"helper_{here.name}"))
    (here / f"helper_{here.name}.py").write_text("offset = 2.0\n")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return name


def tree(folder):
    return {p: p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.fixture
def refused(here, capfd):
    """Give a command that must be refused in one line, with nothing written; return the line."""

    def give(*arguments):
        before = tree(here)
        capfd.readouterr()
        assert main(["run", *map(str, arguments)]) == 2
        out, err = capfd.readouterr()
        assert tree(here) == before
        assert out == ""
        assert err.startswith("fedzo: error: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        return err.removeprefix("fedzo: error: ").removesuffix("\n")

    return give
