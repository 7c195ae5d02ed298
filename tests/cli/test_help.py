"""Help that a newcomer can copy from, at 80 columns, and hints for words of other libraries."""

import argparse
import os
import shlex

import pytest

from fedzo.cli import _parser, main
from fedzo.config.experiment import shipped


def parsers(parser=None, name="fedzo"):
    """Yield the name and the parser of every command and sub-command."""
    for action in (parser or _parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield f"{name} {word}", below
                yield from parsers(below, f"{name} {word}")


EVERY = dict(parsers())


def test_commands_of_the_contract():
    words = ("run", "sweep", "plot", "reproduce", "report", "theory", "list", "data", "bench")
    for word in (*words, "audit", "node"):
        assert f"fedzo {word}" in EVERY


@pytest.mark.parametrize("name", EVERY)
def test_help_breaks_between_words_only(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    words = set(EVERY[name].format_help().split())
    monkeypatch.setenv("COLUMNS", "80")
    text = EVERY[name].format_help()
    assert set(text.split()) <= words
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", EVERY)
def test_examples_can_be_parsed(name):
    text = EVERY[name].format_help().partition("examples:\n")[2]
    lines = text.replace("\\\n", "").splitlines()
    assert lines
    for line in lines:
        assert line.strip().startswith(name.rpartition(" ")[0])
        arguments = _parser().parse_args(shlex.split(line)[1:])
        assert callable(arguments.command)


@pytest.mark.parametrize("name", ["fedzo run", "fedzo sweep", "fedzo theory", "fedzo data show"])
def test_help_names_the_shipped_configurations(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    text = EVERY[name].format_help()
    assert ", ".join(shipped()) in text


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("algorithm.lr", "'learning_rate'"),
        ("algorithm.mu", "'smoothing'"),
        ("algorithm.local_epochs", "'local_steps'"),
        ("algorithm.rounds", "run.rounds"),
        ("algorithm.clients", "problem.devices"),
        ("uplink.snr_db", "uplink.name = 'aircomp'"),
        ("uplink.snr", "uplink.name = 'aircomp'"),
        ("server.momentum", "uplink.name"),
        ("server.beta1", "server.name = 'adam'"),
        ("run.epochs", "'rounds'"),
        ("run.budget", "'max_queries'"),
        ("run.local_steps", "algorithm.local_steps"),
        ("problem.num_clients", "'devices'"),
        ("algorithm.rho", "'penalty' is a key of algorithm.name = 'zone_s'"),
        ("uplink.kind", "'name'"),
        ("problem.learning_rate", "algorithm.learning_rate"),
    ],
)
def test_hints(key, hint, capsys):
    assert main(["run", "quadratic", "--set", f"{key}=3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedzo: error: {key} = 3: unknown key")
    assert (hint in error) == (key != "server.momentum")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("run quadratic --set ALGORITHM.lr=3", "(did you mean 'algorithm'?)"),
        ("run quadratic --set lr=3", "(did you mean algorithm.learning_rate?)"),
        ("run quadratic --set algorithm.name=adam", "(it is one for server.name)"),
        ("run quadratic --set server.name=fedzo", "(it is one for algorithm.name)"),
        ("run quadratic --outt x", "(did you mean '--out'?) (fedzo run --help)"),
        ("sweep quadratic --grid run.seed=1,2 --seed 3 more", "(fedzo sweep --help)"),
    ],
)
def test_hints_about_tables_names_and_options(arguments, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert hint in error
    assert error.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_an_error_on_a_terminal_breaks_between_words(tmp_path):
    """In a real terminal of 80 columns; elsewhere an error is one line."""
    pty = pytest.importorskip("pty", reason="needs a terminal")
    ours, theirs = pty.openpty()
    import subprocess
    import sys

    command = [sys.executable, "-m", "fedzo", "run", "quadratic", "--set", "algorithm.lr=3"]
    environment = os.environ | {"COLUMNS": "80"}
    subprocess.run(command, stderr=theirs, cwd=tmp_path, env=environment, check=False)
    os.close(theirs)
    lines = os.read(ours, 10_000).decode().splitlines()
    os.close(ours)
    assert len(lines) > 1
    assert max(map(len, lines)) < 80
    assert "direction_kind," in " ".join(lines).split()
