"""Requests to an HTTP service that can neither hang a run nor fill its memory.

``http.client`` has time-outs per read only, and reads 1xx responses, trailers and bodies as long as
they arrive. Therefore the deadline and the number of bytes of an attempt are checked on its socket.
Redirects are not followed: they would send the headers, which may hold a token, elsewhere.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import selectors
import ssl
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from functools import partial
from socket import SocketIO, socket
from time import monotonic, sleep
from typing import Any, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from fedzo.errors import (
    InvalidValue,
    ModelError,
    UsageError,
    check_count,
    check_positive,
    one_line,
    require,
)
from fedzo.models.base import LONGEST_WAIT, retry_after

_HEAD_BYTES = 1 << 16  # for headers and 1xx responses
_PIECE = 1 << 20  # bytes to read at once: no memory is allocated for an announced size
_SECRET = "***"
_SHORTEST_SECRET = 6  # letters; shorter values occur in ordinary words


class Request(NamedTuple):
    """A request: POST with a body, GET without.

    The response may have at most ``most_bytes``. Each attempt adds ``cost`` to ``Service.sent``.
    """

    path: str
    most_bytes: int
    body: bytes | None = None
    headers: Mapping[str, str] = {}
    cost: int = 0


class Reply(NamedTuple):
    """The response of a service."""

    status: int
    headers: Message
    body: bytes


class Service:
    """One HTTP service for any number of threads.

    Connections are kept open between requests, at most one per requesting thread. Proxies are not
    used, and redirects are not followed.

    Parameters
    ----------
    url
        The address, "http://host:port" or "https://host", with or without a path.
    headers
        Sent with each request, such as a token. Their values are never shown. ``${NAME}`` in
        a value stands for the environment variable NAME, which keeps tokens out of configurations.
    timeout
        Seconds per attempt, from connecting to the last byte of the response.
    retries
        Number of further attempts after a failed connection, a time-out, or a status of 429 or
        5xx. Any other status is final.
    backoff
        Seconds to wait before the first retry, doubled before each further one. A ``Retry-After``
        of the service takes precedence; if it exceeds five minutes, there is no retry.
    verify
        Whether, over https, the certificate must be trusted by the system; or the file of the
        certificates to trust.

    Attributes
    ----------
    sent
        The sum of the costs of all requests sent, counting each attempt.

    Examples
    --------
    >>> Service("http://127.0.0.1:8000/served/", retries=0).url
    'http://127.0.0.1:8000/served'
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        retries: int = 3,
        backoff: float = 0.5,
        verify: bool | str = True,
    ) -> None:
        self.timeout, self.retries, self.backoff = timeout, retries, backoff
        check_positive(self, "timeout", "backoff")
        check_count("retries", retries, least=0)
        at = _checked_url(url)
        self._headers = _checked_headers(headers or {})
        self.url, self._path = at.geturl().rstrip("/"), at.path.rstrip("/")
        self.sent = 0
        self._lock = threading.Lock()
        self._at, self._tls = at, _tls_context(verify) if at.scheme == "https" else None
        self._idle: deque[http.client.HTTPConnection] = deque()
        weakref.finalize(self, _close_all, self._idle)

    def request(self, request: Request) -> Reply:
        """Return the response to a request, of status 200."""
        for number in range(self.retries + 1):
            wait, final = self.backoff * 2.0**number, False
            try:
                reply = self._attempt(request)
            except (_TooLong, http.client.HTTPException, OSError, ValueError) as error:
                code, problem = self._failure(error)
                final = code in ("answer-too-long", "not-trusted")
            else:
                if reply.status == 200:
                    return reply
                code, problem = f"http-{reply.status}", f"{reply.status}: {_message(reply)}"
                final = reply.status != 429 and reply.status < 500
                wait = retry_after(reply.headers, wait)
                if wait > LONGEST_WAIT and not final:
                    code, problem = "long-wait", f"{problem} (asks to wait {wait:,.0f} s)"
                    final = True
            if final:
                raise self.error(request.path, problem, code)
            if number < self.retries:
                sleep(wait)
        raise self.error(request.path, f"{problem} (attempts: {self.retries + 1})", code)

    def error(self, path: str, problem: str, code: str | None = None) -> ModelError:
        """Return an error about a request, in one printable line and without secrets."""
        for value in self._headers.values():
            for secret in (value, *value.split()[1:]):  # and "Bearer <token>" without "Bearer"
                if len(secret) >= _SHORTEST_SECRET:
                    problem = problem.replace(secret, _SECRET)
        return ModelError(self.url + path, one_line(problem, 400), code)

    def _attempt(self, request: Request) -> Reply:
        limits = _Limits(monotonic() + self.timeout, request.most_bytes)
        while True:
            connection = self._kept() or self._new()
            new = connection.sock is None
            try:
                reply = self._exchange(connection, request, limits)
            except BaseException as error:
                connection.close()
                if new or not isinstance(error, ConnectionError):
                    raise
                continue  # the service closed an idle connection: not a failure of this request
            self._idle.append(connection)
            return reply

    def _exchange(
        self, connection: http.client.HTTPConnection, request: Request, limits: _Limits
    ) -> Reply:
        if connection.sock is None:
            connection.timeout = limits.seconds()
            connection.connect()
        connection.sock.settimeout(limits.seconds())
        with self._lock:
            self.sent += request.cost
        connection.response_class = partial(_Response, limits)  # type: ignore[assignment]
        method = "GET" if request.body is None else "POST"
        headers = {**self._headers, **request.headers}
        with suppress(BrokenPipeError):  # a service may respond before it has read everything
            connection.request(method, self._path + request.path, request.body, headers)
        response = connection.getresponse()
        return Reply(response.status, response.headers, _body(response, request.most_bytes))

    def _new(self) -> http.client.HTTPConnection:
        host, port = str(self._at.hostname), self._at.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port or 443, context=self._tls)
        return http.client.HTTPConnection(host, port or 80)

    def _kept(self) -> http.client.HTTPConnection | None:
        """Return an open connection that is idle, or None."""
        with suppress(IndexError):  # no more connections
            while True:
                connection = self._idle.pop()
                if connection.sock is not None and not _readable(connection.sock):
                    return connection
                connection.close()
        return None

    def _failure(self, error: Exception) -> tuple[str, str]:
        """Return the code and the description of an attempt that failed."""
        if isinstance(error, _TooLong):
            return "answer-too-long", f"the answer is too long: it has {error}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return "not-trusted", f"is not trusted: {error.verify_message}"
        if isinstance(error, TimeoutError):
            return "timeout", f"no answer within {self.timeout:g} s"
        if isinstance(error, http.client.IncompleteRead):
            return "connection-lost", "the connection was lost in the middle of an answer"
        if isinstance(error, OSError):
            reason = error.strerror or str(error) or type(error).__name__
            return "no-connection", f"no connection: {reason}"
        # A ValueError is a chunk of -5 bytes.
        return "invalid-http", f"the answer is not valid HTTP: {error}"


class _TooLong(Exception):  # noqa: N818 - reads as the sentence it prints
    """More bytes than allowed. Not an OSError or ValueError, which http.client would convert."""


class _Limits(NamedTuple):
    """The limits of one attempt: ``deadline`` is a time of :func:`time.monotonic`."""

    deadline: float
    most_bytes: int

    def seconds(self) -> float:
        """Return the seconds until the deadline."""
        if (left := self.deadline - monotonic()) <= 0:
            raise TimeoutError
        return left


class _LimitedSocket(io.RawIOBase):
    """The receiving side of a socket, within the limits of an attempt."""

    def __init__(self, limits: _Limits, sock: socket, raw: SocketIO) -> None:
        self._limits, self._sock, self._raw, self._received = limits, sock, raw, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._limits.seconds())
        size = self._raw.readinto(buffer)
        self._received += size or 0
        most = _HEAD_BYTES + self._limits.most_bytes
        if self._received > most:
            raise _TooLong(f"more than {most:,} bytes")
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, limits: _Limits, sock: socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_LimitedSocket(limits, sock, cast(Any, self.fp).detach()))

    def begin(self) -> None:
        super().begin()
        while 101 < self.status < 200:  # http.client skips 100 only
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin()


def _body(response: http.client.HTTPResponse, most_bytes: int) -> bytes:
    """Read a response to its end."""
    if len(set(response.headers.get_all("Content-Length", []))) > 1:
        raise ValueError("several values of Content-Length")
    if response.length is not None and response.length > most_bytes:
        raise _TooLong(f"{response.length:,} bytes")
    body = b"".join(iter(lambda: response.read(_PIECE), b""))
    if response.length:  # bytes that did not arrive
        raise http.client.IncompleteRead(body, response.length)
    return body


def _readable(sock: socket) -> bool:
    """Return whether an idle connection has been closed by the service."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _close_all(connections: deque[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _checked_url(url: str) -> SplitResult:
    if any(sign in str(url) for sign in "@?#"):
        # The value is not shown: such a URL often contains a secret.
        message = "url: must have no user, password, query or fragment; use headers"
        raise UsageError(message, code="secret-in-url")
    try:
        at = urlsplit(url)
        right = at.scheme in ("http", "https") and bool(at.hostname) and (at.port or 1) > 0
    except (ValueError, TypeError, AttributeError):
        right = False
    require(right and url.isascii() and url.isprintable() and " " not in url,
            "url", url, "like 'http://host:port' or 'https://host'")  # fmt: skip
    return at


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    checked = {}
    for name, given in headers.items():
        valid = re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", str(name)) is not None
        require(valid, "headers", name, "named by letters, digits and hyphens")
        value = re.sub(r"\$\{(\w+)\}", _variable, given) if isinstance(given, str) else ""
        right = value.isascii() and value.isprintable() and bool(value.strip())
        require(right, f"headers[{name!r}]", _SECRET, "one line of printable ASCII text")
        checked[name] = value
    return checked


def _variable(match: re.Match[str]) -> str:
    if match[1] not in os.environ:
        message = f"headers: the environment variable {match[1]} is not set"
        raise UsageError(message, code="variable-not-set")
    return os.environ[match[1]]


def _tls_context(verify: bool | str) -> ssl.SSLContext:
    try:
        cafile = None if isinstance(verify, bool) else verify
        context = ssl.create_default_context(cafile=cafile)
    except (OSError, TypeError) as error:
        allowed = f"true, false or a file of certificates: {error}"
        raise InvalidValue("verify", verify, allowed) from None
    if verify is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _message(reply: Reply) -> str:
    """Return the message of a response whose status is not 200."""
    if 300 <= reply.status < 400:
        return f"redirected to {reply.headers.get('Location', 'nowhere')}, which is not followed"
    try:
        return str(read_json(reply.body)["error"])
    except (ValueError, TypeError, KeyError):
        return reply.body[:4096].decode(errors="replace")


def read_json(text: bytes) -> Any:
    """Return the value of a JSON text; raise ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
