"""Progress never makes a run fail, whatever standard error is."""

import io
import sys

import pytest

from fedzo.core.progress import LiveLine, show


class Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, Full(), closed()])
def test_a_stream_that_cannot_be_written_is_ignored(monkeypatch, capsys, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    show("hello")
    line = LiveLine(sys.stderr)
    assert not line.live
    line.rewrite("round 1/9")
    line.write("again")
    line.close()
    assert capsys.readouterr().out == ""  # print(file=None) would have written there
