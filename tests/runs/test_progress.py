"""What a person sees: on a terminal one line that is rewritten, elsewhere plain lines."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import tty
from contextlib import contextmanager

import numpy as np
import pytest

import fedzo
from fedzo import FedZO, Progress, minimize
from fedzo.core.progress import duration
from fedzo.runs.callbacks import ProgressLine, headline


def progress(t, rounds=10, seconds=0.0, queries=0, record=None):
    return Progress(t, rounds, np.zeros(1), queries, seconds, record)


class Terminal:
    """The screen's side of a pseudo-terminal: gathers what is written, by a thread."""

    def __init__(self, columns):
        self.screen, self.keyboard = pty.openpty()
        tty.setraw(self.keyboard)  # or else each newline would come with a carriage return
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._pieces = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                piece = os.read(self.screen, 65536)
            except OSError:  # the other side has been closed
                return
            self._pieces.append(piece)

    def text(self):
        """Close the writer's side and return all that was written."""
        os.close(self.keyboard)
        self._reader.join()
        os.close(self.screen)
        return b"".join(self._pieces).decode()


@contextmanager
def stream_to(terminal):
    with os.fdopen(os.dup(terminal.keyboard), "w") as stream:
        yield stream


def shown(text):
    """Return each line that a screen has shown, and what it shows at the end."""
    screen, states = [], []
    for part in text.split("\r"):
        screen[: len(part)] = part
        states.append("".join(screen))
    return states, "".join(screen).rstrip(" ")


def run(callback, rounds=40, **options):
    return minimize(
        lambda x, i: float(x @ x),
        np.ones(2),
        devices=2,
        rounds=rounds,
        algorithm=FedZO(learning_rate=0.01, directions=1, local_steps=1),
        callback=callback,
        **options,
    )


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_live_line_is_rewritten_within_the_width_and_cleared(columns):
    terminal = Terminal(columns)
    with stream_to(terminal) as stream:
        line = ProgressLine(stream)
        assert line.live
        result = run(line)
        line.close()
    text = terminal.text()
    assert "\n" not in text
    states, left = shown(text)
    assert left == ""
    assert text.endswith("\r")  # the cursor is where it was
    assert max(len(state) for state in states) <= columns - 1
    start, end = result.history[0]["train_loss"], result.history[-1]["train_loss"]
    assert states[1].rstrip() == f"round 0/40  train loss {start:.4g}"[: columns - 1]
    last = [state for state in states if "round 40/40" in state][-1]
    # Where there is no room for all, the round and the time left are what stays.
    whole = f"round 40/40  train loss {end:.4g}  " if columns == 200 else "round 40/40  0 s left"
    assert last.startswith(whole[: columns - 1])
    if columns == 200:
        assert last.rstrip().endswith(" queries/s  0 s left")


def test_longer_text_leaves_nothing_behind():
    terminal = Terminal(100)
    with stream_to(terminal) as stream:
        line = ProgressLine(stream)
        line(progress(0, record={"train_loss": 1.23456, "test_accuracy": 0.51234}))
        line(progress(10, record={"train_loss": 1.0}))
    states, left = shown(terminal.text())
    assert states[1] == "round 0/10  train loss 1.235  test accuracy 0.5123"
    assert left == "round 10/10  train loss 1"


def test_terminal_that_does_not_know_its_width():
    terminal = Terminal(0)
    with stream_to(terminal) as stream:
        line = ProgressLine(stream)
        line(progress(10, record={"train_loss": 1.0, "test_accuracy": 0.5}))
    assert shown(terminal.text())[1] == "round 10/10  train loss 1  test accuracy 0.5"


def test_live_line_of_the_command(tmp_path):
    """On standard error's own terminal, though standard output goes elsewhere."""
    terminal = Terminal(30)
    command = [sys.executable, "-c", MAIN]
    with stream_to(terminal) as stream:
        done = subprocess.run(
            [
                *command,
                "run",
                "quadratic",
                "--set",
                "run.rounds=20",
                "--out",
                str(tmp_path / "run"),
            ],
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            check=True,
        )
    text = terminal.text()
    assert "\n" not in text
    states, left = shown(text)
    assert left == ""
    assert max(len(state) for state in states) <= 29
    assert any(state.startswith("round 20/20  0 s left") for state in states)
    assert done.stdout.startswith("result          finished 20 rounds\n")
    assert "\r" not in done.stdout


MAIN = "import sys; from fedzo.cli import main; sys.exit(main())"


def test_live_line_is_not_written_for_every_round():
    terminal = Terminal(100)
    with stream_to(terminal) as stream:
        line = ProgressLine(stream)
        result = run(line, rounds=500, evaluate_every=500)
        line.close()
    writes = terminal.text().count("\r")
    assert writes <= 10 * result.seconds + 5


# --- elsewhere --------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "every"), [(100, 1), (7, 1), (1000, 10), (45, 7), (0, 1)])
def test_plain_lines(rounds, every):
    stream = io.StringIO()
    line = ProgressLine(stream)
    assert not line.live
    result = run(line, rounds=rounds, evaluate_every=every)
    line.close()
    text = stream.getvalue()
    assert "\r" not in text
    lines = text.splitlines()
    losses = {record["round"]: record["train_loss"] for record in result.history}
    at = []
    for written in lines:
        words = written.split("  ")
        at.append(int(words[0].removeprefix("round ").removesuffix(f"/{rounds}")))
        assert words[1] == f"train loss {losses[at[-1]]:.4g}"
    assert at == sorted(set(at))
    assert (at[0], at[-1]) == (0, rounds)
    assert len(at) <= 22
    assert len(at) >= min(20, len(result.history))


def test_words():
    stream = io.StringIO()
    line = ProgressLine(stream)
    line(progress(4, 8, seconds=5.0, queries=100, record={"train_loss": 0.123456}))
    line(progress(5, 8, seconds=6.0, queries=200))  # not evaluated
    line(progress(6, 8, seconds=45.0, queries=300, record={"train_loss": 2e-7}))
    last = {"train_loss": 1.0, "test_loss": 9.0, "test_accuracy": 0.875}
    line(progress(8, 8, seconds=45.0, queries=500_100, record=last))
    assert stream.getvalue().splitlines() == [
        "round 4/8  train loss 0.1235",  # a resumed run: nothing is known of its speed
        "round 6/8  train loss 2e-07  2.56 queries/s  1 min 18 s left",
        "round 8/8  train loss 1  test accuracy 0.875  12,818 queries/s  0 s left",
    ]


def test_headline_is_the_loss_and_a_metric():
    assert headline({}) == []
    assert headline({"x": 1, "optimality_gap": 2.0, "train_loss": 3.0}) == [
        "train_loss",
        "optimality_gap",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (90_000, "25 h 00 min"),
    ],
)
def test_duration(seconds, words):
    assert duration(seconds) == words


def test_the_time_left_follows_the_query_budget():
    """Half of the queries are left after ten seconds, whatever the number of rounds."""
    stream = io.StringIO()
    line, record = fedzo.ProgressLine(stream), {"train_loss": 1.0}
    for round, left, seconds in ((0, 1100, 0.0), (1, 1000, 5.0), (100_000, 500, 15.0)):
        line(Progress(round, 1_000_000, np.zeros(1), 1100 - left, seconds, record, left))
    assert stream.getvalue().rstrip().endswith("  10 s left")
