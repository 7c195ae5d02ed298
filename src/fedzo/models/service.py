"""Requests to an HTTP service: limits, and retries that wait their turn.

urllib3 keeps the connections. Its own retries are not used: they follow redirects with the
headers, which may hold a token, and do not tell how often a request went out.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import monotonic, sleep
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, InsecureRequestWarning, InvalidHeader

from fedzo.errors import InvalidValue, ModelError, UsageError, check_count, check_positive, require
from fedzo.models.connections import AnswerTooLong, Attempt, Pool, TlsPool, attempt

_LONGEST_WAIT = 300.0  # seconds; a service that asks for more is reported, not waited for
_SECRET = "***"
_SHORTEST_SECRET = 6  # letters; a shorter value would be found in any word


class Reply(NamedTuple):
    """What a service answered."""

    status: int
    headers: Mapping[str, str]
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
        Seconds after which an attempt has failed, from connecting to the answer's last byte.
    retries
        How many more attempts follow one that failed by its connection, by its time-out, or
        by a status of 429 or 5xx. Any other status is an answer, and final.
    backoff
        Seconds to wait before the first retry; doubled before each further one. A
        ``Retry-After`` of the service takes precedence; if it asks for more than five minutes,
        there is no retry.
    verify
        Whether, over https, the service must show a certificate that the system trusts; or
        the file of the certificates to trust.

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
        how: dict[str, Any] = {"maxsize": 128, "timeout": timeout, "retries": False}
        self._pool: urllib3.HTTPConnectionPool
        if at.scheme == "https":
            self._pool = TlsPool(str(at.hostname), at.port, **how, **_tls(verify))
        else:
            self._pool = Pool(str(at.hostname), at.port, **how)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        most_bytes: int,
        cost: int = 0,
    ) -> Reply:
        """Return the answer to a request, of status 200 and at most ``most_bytes`` long.

        ``cost`` is added to ``sent`` each time that the request goes out: the most that the
        service can have counted.
        """
        failure = ""
        for number in range(self.retries + 1):
            wait = self.backoff * 2.0**number
            try:
                reply = self._attempt(method, path, body, headers or {}, most_bytes, cost)
            except AnswerTooLong as error:
                raise self.error(path, f"the answer is too long: it has {error}") from None
            except (HTTPError, OSError, ValueError) as error:  # the last: a chunk of -5 bytes
                reason = _first_cause(error)
                if isinstance(reason, ssl.SSLCertVerificationError):
                    raise self.error(path, f"is not trusted: {reason.verify_message}") from None
                failure = self._worded(reason)
            else:
                if reply.status == 200:
                    return reply
                failure = f"{reply.status}: {_message(reply)}"
                if reply.status != 429 and reply.status < 500:
                    raise self.error(path, failure)
                wait = _asked_wait(reply, wait)
                if wait > _LONGEST_WAIT:
                    raise self.error(path, f"{failure} (asks to wait {wait:,.0f} s)")
            if number < self.retries:
                sleep(wait)
        tries = "1 attempt" if self.retries == 0 else f"{self.retries + 1} attempts"
        raise self.error(path, f"{failure} (after {tries})")

    def error(self, path: str, problem: str) -> ModelError:
        """Return an error about a request, in a line fit for a terminal and without secrets."""
        problem = shortened(problem, 400)
        for value in self._headers.values():
            for secret in (value, *value.split()[1:]):  # and "Bearer <token>" without "Bearer"
                if len(secret) >= _SHORTEST_SECRET:
                    problem = problem.replace(secret, _SECRET)
        return ModelError(self.url + path, problem)

    def _attempt(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        most_bytes: int,
        cost: int,
    ) -> Reply:
        def count() -> None:
            with self._lock:
                self.sent += cost

        current = Attempt(monotonic() + self.timeout, most_bytes, count)
        outer = attempt.set(current)
        try:
            while True:
                try:
                    answer = self._pool.urlopen(
                        method,
                        self._path + path,
                        body,
                        {**self._headers, **headers},
                        redirect=False,
                        decode_content=False,  # nothing compressed is asked for
                    )
                    return Reply(answer.status, answer.headers, answer.data)
                except HTTPError as error:
                    # A kept connection that the service closed while it was idle is not a failure
                    # of this request: ask again, in the end on a new one.
                    if current.connects or not isinstance(_first_cause(error), ConnectionError):
                        raise
        finally:
            attempt.reset(outer)

    def _worded(self, reason: BaseException) -> str:
        if isinstance(reason, TimeoutError):
            return f"no answer within {self.timeout:g} s"
        if isinstance(reason, http.client.IncompleteRead):
            return "the connection was lost in the middle of an answer"
        wrong = (http.client.HTTPException, InvalidHeader, ValueError)
        if isinstance(reason, wrong) and not isinstance(reason, OSError):
            return f"the answer is not valid HTTP: {reason}"
        text = reason.strerror if isinstance(reason, OSError) else None
        return f"no connection: {text or str(reason) or type(reason).__name__}"


def _first_cause(error: BaseException) -> BaseException:
    """Return what went wrong first: urllib3 wraps it, sometimes twice."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


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


def _tls(verify: bool | str) -> dict[str, Any]:
    """Return how urllib3 is to check certificates."""
    if verify is True:
        return {"ssl_context": ssl.create_default_context()}
    if verify is False:
        urllib3.disable_warnings(InsecureRequestWarning)  # the caller has said so
        return {"cert_reqs": "CERT_NONE", "assert_hostname": False}
    try:
        return {"ssl_context": ssl.create_default_context(cafile=verify)}
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
    except (ValueError, TypeError, OverflowError, IndexError):
        return otherwise  # absent, not a date, or one without a time zone


def _message(reply: Reply) -> str:
    """Return what an answer of another status than 200 says, in a line."""
    if 300 <= reply.status < 400:
        return f"redirected to {reply.headers.get('Location', 'nowhere')}, which is not followed"
    try:
        return shortened(str(read_json(reply.body)["error"]))
    except (ValueError, TypeError, KeyError):
        return shortened(reply.body.decode(errors="replace"))


def read_json(text: bytes) -> Any:
    """Return what JSON holds; ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def shortened(text: str, length: int = 200) -> str:
    r"""Return a text as one line of limited length, fit for a terminal.

    >>> shortened("a  long   story", 8), shortened("\x1b[31mred")
    ('a long …', '�[31mred')
    """
    line = " ".join(text[: 4 * length].split())
    line = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line)
    return line if len(line) <= length else line[: length - 1] + "…"
