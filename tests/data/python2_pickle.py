"""Pickle a batch of images as Python 2 and its NumPy did, to the opcode."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pickled_batch(labels: Sequence[int], images: NDArray[np.uint8]) -> bytes:
    def string(text: str) -> bytes:
        return b"U" + bytes([len(text)]) + text.encode()  # SHORT_BINSTRING, of Python 2 only

    raw = images.tobytes()
    shape = b"".join(b"M" + struct.pack("<H", length) for length in images.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + string("u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string("|") + b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string("b")
    array += b"\x87R(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    return (
        b"\x80\x02}("
        + (string("batch_label") + string("training batch 1 of 5"))
        + (string("labels") + b"](" + b"".join(b"K" + bytes([i]) for i in labels) + b"e")
        + (string("data") + array)
        + (string("filenames") + b"](" + b"".join(string(f"{i}.png") for i in labels) + b"e")
        + b"u."
    )
