"""What is said aside never fails, wherever standard error leads."""

import io
import sys

import pytest

from fedzo.core.telling import on_terminal, tell


class Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, Full(), closed()])
def test_nobody_listens(monkeypatch, capsys, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    tell("hello")
    assert not on_terminal()
    assert capsys.readouterr().out == ""  # print(file=None) would have written there
