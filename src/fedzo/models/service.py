"""Requests to an HTTP service: kept connections, time-outs, and retries that wait their turn."""

from __future__ import annotations

import os
import re
import ssl
import threading
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection, IncompleteRead
from time import sleep
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from fedzo.errors import InvalidValue, ModelError, UsageError, check_count, check_positive, require

_LONGEST_WAIT = 300.0  # seconds; a service that wants more is told about, not waited for
_SECRET = "***"
_SHORTEST_SECRET = 6  # letters; a shorter value would be found in any word


class Reply(NamedTuple):
    """What a service answered."""

    status: int
    headers: HTTPMessage
    body: bytes


class Service:
    """One HTTP service, asked by any number of threads.

    Connections are kept open between requests, at most one for each thread that is asking.
    No proxies are used, and redirects are not followed: they would take the headers along.

    Parameters
    ----------
    url
        Where it is, "http://host:port" or "https://host", with or without a path.
    headers
        Sent with each request, such as a token. Their values are never shown. ``${NAME}`` in
        one stands for the environment variable NAME: a token need not be in a configuration.
    timeout
        Seconds without a sign of life after which an attempt has failed.
    retries
        How many more attempts follow one that failed by its connection, by its time-out, or
        by a status of 429 or 5xx. Any other status is an answer, and final.
    backoff
        Seconds to wait before the first retry; doubled before each further one. A
        ``Retry-After`` of the service goes before it.
    verify
        Whether, over https, the service must show a certificate that the system trusts; or
        the file of the certificates to trust.
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
        self._at = _checked_url(url)
        self._headers = _checked_headers(headers or {})
        self._tls = _tls(verify) if self._at.scheme == "https" else None
        self.url = self._at.geturl().rstrip("/")
        self.sent = 0
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] = []
        weakref.finalize(self, _close_all, self._idle)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        cost: int = 0,
    ) -> Reply:
        """Return the answer to a request, of status 200.

        ``cost`` is added to ``sent`` each time that the request goes out: the most that the
        service can have counted.
        """
        target = self._at.path.rstrip("/") + path
        headers = {**self._headers, **(headers or {})}
        failure = ""
        for attempt in range(self.retries + 1):
            wait = self.backoff * 2.0**attempt
            try:
                reply = self._once(method, target, body, headers, cost)
            except ssl.SSLCertVerificationError as error:
                raise self.error(path, f"is not trusted: {error.verify_message}") from None
            except (OSError, HTTPException) as error:
                failure = _worded(error, self.timeout)
            else:
                if reply.status == 200:
                    return reply
                failure = f"{reply.status}: {_gist(reply)}"
                if reply.status != 429 and reply.status < 500:
                    raise self.error(path, failure)
                wait = _asked_wait(reply, wait)
                if wait > _LONGEST_WAIT:
                    raise self.error(path, f"{failure} (asks to wait {wait:,.0f} s)")
            if attempt < self.retries:
                sleep(wait)
        tries = "1 attempt" if self.retries == 0 else f"{self.retries + 1} attempts"
        raise self.error(path, f"{failure} (after {tries})")

    def error(self, path: str, problem: str) -> ModelError:
        """Return an error about a request, free of the headers' values wherever they came from."""
        for value in self._headers.values():
            for secret in (value, *value.split()[1:]):  # and "Bearer <token>" without "Bearer"
                if len(secret) >= _SHORTEST_SECRET:
                    problem = problem.replace(secret, _SECRET)
        return ModelError(self.url + path, problem)

    def _once(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], cost: int
    ) -> Reply:
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._exchange(self._connection(), method, target, body, headers, cost)
        try:
            return self._exchange(connection, method, target, body, headers, cost)
        except ConnectionError:
            # The service hung up while the connection was idle, which is no failure of this
            # request: ask again on a new one.
            return self._exchange(self._connection(), method, target, body, headers, cost)

    def _exchange(
        self,
        connection: HTTPConnection,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        cost: int,
    ) -> Reply:
        try:
            if connection.sock is None:
                connection.connect()
            with self._lock:
                self.sent += cost
            connection.request(method, target, body, dict(headers))
            response = connection.getresponse()
            reply = Reply(response.status, response.headers, response.read())
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)  # one that the service closes connects again by itself
        return reply

    def _connection(self) -> HTTPConnection:
        host, port = str(self._at.hostname), self._at.port
        if self._tls is None:
            return HTTPConnection(host, port, timeout=self.timeout)
        return HTTPSConnection(host, port, timeout=self.timeout, context=self._tls)


def _checked_url(url: str) -> SplitResult:
    if any(sign in str(url) for sign in "@?#"):
        # The value is not shown: what such a URL has in it is often a secret.
        raise UsageError("url: must have no user, password, query or fragment; use headers")
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
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", str(name)):
            raise InvalidValue("headers", name, "named by letters, digits and hyphens")
        value = re.sub(r"\$\{(\w+)\}", _variable, given) if isinstance(given, str) else ""
        right = value.isascii() and value.isprintable() and bool(value.strip())
        require(right, f"headers[{name!r}]", _Hidden(), "one line of printable ASCII text")
        checked[name] = value
    return checked


def _variable(match: re.Match[str]) -> str:
    if match[1] not in os.environ:
        raise UsageError(f"headers: the environment variable {match[1]} is not set")
    return os.environ[match[1]]


class _Hidden:
    def __repr__(self) -> str:
        return _SECRET


def _tls(verify: bool | str) -> ssl.SSLContext:
    if verify is True:
        return ssl.create_default_context()
    if verify is False:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=verify)
    except (OSError, TypeError) as error:
        allowed = f"true, false or a file of certificates: {error}"
        raise InvalidValue("verify", verify, allowed) from None


def _asked_wait(reply: Reply, otherwise: float) -> float:
    """Return the seconds that ``Retry-After`` names, as a number or as a date."""
    asked = reply.headers.get("Retry-After", "").strip()
    if asked.isdecimal():
        return float(asked)
    try:
        until = parsedate_to_datetime(asked)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # absent, not a date, or one without a time zone
        return otherwise


def _gist(reply: Reply) -> str:
    """Return what an answer that is no success says, in a line."""
    import json

    text = reply.body.decode(errors="replace")
    try:
        told = json.loads(text)
        text = str(told["error"])
    except (ValueError, TypeError, KeyError):
        pass
    if reply.status < 400:
        text = f"redirected to {reply.headers.get('Location', 'nowhere')}, which is not followed"
    return shortened(text)


def shortened(text: str, length: int = 200) -> str:
    """Return a text as one line of limited length.

    >>> shortened("a  long   story", 8)
    'a long …'
    """
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def _worded(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, IncompleteRead):
        return "the connection was lost in the middle of an answer"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"no connection: {reason or error or type(error).__name__}"


def _close_all(connections: list[HTTPConnection]) -> None:
    for connection in connections:
        connection.close()
