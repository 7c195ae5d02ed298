"""Tests that need an extra are skipped with the reason, and nothing else is."""

import os
import subprocess
import sys

from extras import EXTRAS, needed
from reader import PROJECT, ROOT

# As in an environment without torch, whatever this one has.
EXAMPLES = '''
import sys
sys.modules["torch"] = None

from fedzo.errors import MissingExtra

def needs_it():
    import torch

def says_it_in_an_example():
    """
    >>> import torch
    >>> torch.zeros(2)
    tensor([0., 0.])
    """

def does_not_say_it_in_an_example():
    """
    >>> needs_it()
    """

def test_says_it():
    raise MissingExtra("networks need torch", "torch")

def test_does_not_say_it():
    needs_it()
'''


def test_only_what_says_that_it_needs_an_extra_is_skipped(tmp_path):
    folder = tmp_path / "flower"  # a checkout may lie in a folder of any name
    folder.mkdir()
    (folder / "test_examples.py").write_text(EXAMPLES)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-rsf", "-p", "no:cacheprovider",
         "--doctest-modules", "test_examples.py"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[-1].strip("= ").startswith("2 failed, 2 skipped in"), done.stdout + done.stderr
    failed = {line.split()[1].rpartition(".")[2] for line in lines if line.startswith("FAILED")}
    assert failed == {"py::test_does_not_say_it", "does_not_say_it_in_an_example"}
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    assert all("test_examples.py:" in line for line in skipped)
    assert all("pip install 'fedzo[torch]'" in line for line in skipped)


def test_extras_are_those_of_the_project():
    assert set(EXTRAS.values()) <= set(PROJECT["optional-dependencies"])


def test_library_that_nobody_knows_is_a_mistake():
    assert needed(ModuleNotFoundError(name="torch.nn")) == "needs torch: pip install 'fedzo[torch]'"
    assert needed(ModuleNotFoundError(name="nmupy")) is None
    assert needed(ImportError(name="torch")) is None
    assert needed(OSError("torch")) is None
