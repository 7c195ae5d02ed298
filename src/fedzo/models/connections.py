"""HTTP connections over which a service can neither hang a run nor fill its memory.

urllib3's time-outs are for one read, and http.client, which it is built on, reads 1xx
responses, trailers and bodies for as long as they come. All of that arrives through one
socket, so this is where an attempt's deadline and its number of bytes are kept.
"""

from __future__ import annotations

import http.client
import io
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from socket import SocketIO, socket
from time import monotonic
from typing import Any, cast

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

_HEAD_BYTES = 1 << 16  # for headers and 1xx responses


class AnswerTooLong(Exception):  # noqa: N818 - reads as the sentence it prints
    """More bytes than are allowed; says of what. No OSError: urllib3 must not wrap it."""


@dataclass
class Attempt:
    """One sending of a request and its answer.

    Attributes
    ----------
    deadline
        When it has failed, in the seconds of :func:`time.monotonic`.
    most_bytes
        How long the answer may be, with chunk sizes and trailers.
    about_to_send
        Called once there is a connection.
    connects
        Whether a connection is made for it, or was tried, and it does not use one that was kept.
    """

    deadline: float
    most_bytes: int
    about_to_send: Callable[[], None]
    connects: bool = False

    def time_left(self) -> float:
        """Return the seconds up to the deadline."""
        left = self.deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        return left


#: The attempt of this thread: urllib3 has no way to hand it to a connection of its pool.
attempt: ContextVar[Attempt] = ContextVar("attempt")


class _LimitedSocket(io.RawIOBase):
    def __init__(self, sock: socket, raw: SocketIO) -> None:
        self._sock, self._raw, self._received = sock, raw, 0
        self.most_bytes = _HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(attempt.get().time_left())
        size = self._raw.readinto(buffer)
        self._received += size or 0
        if self._received > self.most_bytes:
            raise AnswerTooLong(f"more than {self.most_bytes:,} bytes")
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


class _LimitedReader(io.BufferedReader):
    def read(self, size: int | None = -1, /) -> bytes:
        # Memory for what a header or a chunk announces would be taken before it arrives.
        if size is not None and size > attempt.get().most_bytes:
            raise AnswerTooLong(f"{size:,} bytes")
        return super().read(size)


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._source = _LimitedSocket(sock, cast(SocketIO, self.fp.detach()))
        self.fp = _LimitedReader(self._source)

    def begin(self) -> None:
        super().begin()
        while 101 < self.status < 200:  # http.client passes over 100 only
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin()
        self._source.most_bytes += attempt.get().most_bytes


class _Watched(HTTPConnection):
    response_class = _Response

    def connect(self) -> None:
        attempt.get().connects = True
        super().connect()

    def request(self, *args: Any, **kwargs: Any) -> None:
        current = attempt.get()
        if self.sock is None:
            self.connect()
        self.sock.settimeout(current.time_left())  # a kept one still has its last attempt's
        current.about_to_send()
        super().request(*args, **kwargs)


class _WatchedTls(_Watched, HTTPSConnection):
    pass


class Pool(HTTPConnectionPool):
    """Kept connections to one host, each within the limits of the attempt it is used for."""

    ConnectionCls = _Watched


class TlsPool(HTTPSConnectionPool):
    """The same over TLS."""

    ConnectionCls = _WatchedTls
