"""Pickles: what Python 2 and 3 wrote is read, and what would run something is refused."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from python2_pickle import pickled_batch

from fedzo.data.images import unpickle
from raising import fails

IMAGES = np.random.default_rng(1).integers(0, 256, (3, 3072), np.uint8)
LABELS = [9, 0, 4]


def test_what_python_2_wrote() -> None:
    content = pickled_batch(LABELS, IMAGES)
    batch = unpickle(content)
    assert batch[b"labels"] == LABELS
    assert np.array_equal(batch[b"data"], IMAGES)
    assert batch[b"batch_label"] == b"training batch 1 of 5"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's own reader warns of how the type was written
        own = pickle.loads(content, encoding="bytes")
    assert own.keys() == batch.keys()
    assert np.array_equal(own[b"data"], batch[b"data"])


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_python_3_writes(protocol: int, order: Any) -> None:
    content = pickle.dumps({b"data": np.asarray(IMAGES, order=order), b"n": [1]}, protocol)
    batch = unpickle(content)
    assert batch[b"n"] == [1]
    assert batch[b"data"].dtype == np.uint8
    assert np.array_equal(batch[b"data"], IMAGES)


class Evil:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    for evil in (
        Evil(os.system, f"touch {trace}"),
        Evil(os.mkdir, str(trace)),
        Evil(eval, f"open({str(trace)!r}, 'w')"),
        Evil(np.fromfile, str(trace)),
    ):
        with fails("data-unsafe"):
            unpickle(pickle.dumps({b"data": evil}, protocol))
    assert not trace.exists()
    pickle.loads(pickle.dumps(Evil(os.mkdir, str(trace)), protocol))
    assert trace.exists()  # it would have been run


def test_no_way_around_by_a_dotted_name() -> None:
    """Protocol 4 looks names up by parts: what is allowed must not lead on."""
    for name in ("dtype.__init__.__globals__", "ndarray.__class__"):
        content = b"\x80\x04\x8c\x05numpy\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
        with fails("data-unsafe"):
            unpickle(content)


OTHER_TYPE = pickle.dumps(np.array([1.5]), 2)


@pytest.mark.parametrize(
    "content", [b"", b"<html>", pickled_batch(LABELS, IMAGES)[:-9], b"\x80\x02N", OTHER_TYPE]
)
def test_what_is_no_pickle_of_bytes(content: bytes) -> None:
    with fails("data-damaged"):
        unpickle(content)
