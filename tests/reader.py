"""A reader who follows a page to the letter: writes its files, runs its blocks in order.

What the title of a block says is what a reader sees above it:

* a file's name: the block is that file;
* ``needs fedzo[extra]``, ``needs pandas``: it is run where that is installed, else skipped;
* ``prints``, of a ``text`` block: what the block before it prints, with ``...`` for what varies.

Runs of the configurations that ship are cut to two rounds or so, unless their output is shown;
commands that would download, take minutes or start other processes are only checked.
"""

import contextlib
import doctest
import importlib.metadata
import io
import itertools
import re
import runpy
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from extras import needed
from fedzo.cli import _parser, main
from fedzo.config.experiment import Experiment, parse_overrides, shipped

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FENCE = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$', re.M | re.S
)
CUT = 2  # rounds
CUT_OTHERWISE = {"attack": 1, "attack-eps": 6}  # it takes long; a contest has the first five
LARGE_DATA = ("fashion-mnist", "cifar10")
LARGE_MODELS = ("text",)  # configurations
ONLY_CHECKED = ("reproduce", "report", "sweep", "bench", "node", "server")
ONLY_CHECKED_ACTIONS = (["data", "get"],)


class Block(NamedTuple):
    language: str
    title: str
    code: str

    def needs(self):
        """Return what has to be installed for the block, if anything."""
        return self.title.removeprefix("needs ") if self.title.startswith("needs ") else None


def blocks(text):
    """Return the fenced blocks of a page."""
    return [Block(b["language"], b["title"] or "", b["code"]) for b in FENCE.finditer(text)]


def installed(what):
    """Tell whether a package, or all packages of one of our extras, are there."""
    extras = re.fullmatch(r"fedzo\[([\w,]+)\]", what)
    each = extras[1].split(",") if extras else []
    needed = [line for one in each for line in PROJECT["optional-dependencies"][one]] or [what]
    try:
        for line in needed:
            importlib.metadata.version(Requirement(line).name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def commands(block):
    """Return the command lines of a shell block that are ours, as lists of words."""
    lines = block.code.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    # The demo is a make target that does just this.
    words = [["fedzo", "run", "softmax"] if w == ["make", "demo"] else w for w in words]
    return [w for w in words if w and w[0] in ("fedzo", "python")]


def check(words):
    """Raise unless a command line is one that fedzo takes, its configuration included."""
    arguments = _parser().parse_args(words[1:])
    config = getattr(arguments, "config", None)
    if config in shipped():
        Experiment.load(config, parse_overrides(arguments.set))
    return arguments


class Reader:
    """One session: names and files carry over from block to block."""

    def __init__(self, folder):
        self.folder, self.names, self.printed = folder, {"__name__": "__main__"}, ""
        self.passed_over = set()

    def follow(self, page):
        """Do what a page says; note and pass over what needs something that is not there."""
        found = blocks(page)
        for block, after in itertools.zip_longest(found, found[1:]):
            shown = after is not None and after.title == "prints"
            if block.needs() and not installed(block.needs()):
                self.passed_over.add(f"needs {block.needs()}")
                continue
            self.do(block, in_full=shown)
            if shown:
                self.compare(after.code)

    def do(self, block, in_full):
        if block.language in ("python", "toml") and re.fullmatch(r"[\w.]+", block.title):
            (self.folder / block.title).write_text(block.code)
        elif block.language == "python":
            with self.listening():
                exec(compile(block.code, "a block of the page", "exec"), self.names)
        elif block.language == "toml":
            tomllib.loads(block.code)
        elif block.language == "sh":
            with self.listening():
                for words in commands(block):
                    self.type(words, in_full)

    def type(self, words, in_full):
        if words[0] == "python":
            if words[1].startswith("benchmarks/"):  # it takes minutes
                assert (ROOT / words[1]).exists(), words[1]
            else:
                self.start(*words[1:])
            return
        arguments = check(words)
        config, changes = getattr(arguments, "config", None), getattr(arguments, "set", [])
        large = any(change.partition("=")[2] in LARGE_DATA for change in changes)
        large |= config in LARGE_MODELS
        swept = words[1] == "plot" and "=" in words[2]  # a folder that a sweep would have made
        if swept or words[1] in ONLY_CHECKED or words[1:3] in ONLY_CHECKED_ACTIONS or large:
            return
        if words[1] == "run" and not in_full and (config in shipped() or self.was_cut(config)):
            rounds = 2 * CUT if arguments.resume else CUT_OTHERWISE.get(config, CUT)
            words = [*words, "--set", f"run.rounds={rounds}"]
        if getattr(arguments, "engine", "local") == "local":  # Flower's is in tests/processes
            assert main(words[1:]) == 0, shlex.join(words)

    def start(self, script, *_):
        if script.startswith("tools/"):  # takes minutes: only look whether it can be loaded
            try:
                runpy.run_path(str(ROOT / script))
            except ModuleNotFoundError as error:
                if (reason := needed(error)) is None:
                    raise
                self.passed_over.add(reason)
        else:
            home = ROOT if script.startswith("examples/") else self.folder
            runpy.run_path(str(home / script), run_name="__main__")

    def was_cut(self, config):
        resolved = self.folder / config / "config.toml"
        return resolved.exists() and tomllib.loads(resolved.read_text())["run"]["rounds"] == CUT

    @contextlib.contextmanager
    def listening(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            yield
        self.printed = out.getvalue()

    def compare(self, wanted):
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        same = doctest.OutputChecker().check_output(wanted, self.printed, flags)
        assert same, f"printed:\n{self.printed}\nthe page says:\n{wanted}"
