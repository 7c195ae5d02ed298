"""The line that shows how far many runs are."""

import io

from fedzo.cli.common import BatchProgress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines_at_twentieths(monkeypatch):
    clock = iter([0.0, 1.0, 2.0, 4.0, 20.0])
    monkeypatch.setattr("fedzo.cli.common.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with BatchProgress(stream) as line:
        for share, done in ((0.001, 0), (0.06, 0), (0.08, 1), (1.0, 4)):
            line(share, done, 4)
    # 2 s for 6 %: another 31 s; 8 % is no further twentieth.
    assert stream.getvalue() == "0/4 runs  6%  31 s left\n4/4 runs  100%  0 s left\n"


def test_live_line_is_rewritten_and_taken_away():
    stream = Terminal()
    with BatchProgress(stream) as line:
        line(0.001, 0, 4)
    width = len("0/4 runs  0%")
    assert stream.getvalue() == f"\r0/4 runs  0%\r{' ' * width}\r"
