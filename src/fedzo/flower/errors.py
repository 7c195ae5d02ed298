"""Error codes: the only part of an error that a node sends.

The text of an exception may be private: a patient's name, a row of data, a path. A node writes the
text to its own log, with a random reference of eight letters, and sends the code and the reference.
An operator with access to the node's log can find the text by its reference.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from fedzo.errors import BudgetSpent, FedzoError, NoAnswer, NonFinite, one_line

log = logging.getLogger("flwr")  # the logger that Flower prints


class ErrorCode(StrEnum):
    """All codes that a node can send, each with the words that the server shows for it."""

    words: str

    def __new__(cls, code: str, words: str) -> ErrorCode:
        """Return a member with a code, which is sent, and words, which are not."""
        member = str.__new__(cls, code)
        member._value_, member.words = code, words
        return member

    RAISED = "raised", "the problem raised an error"
    NO_ANSWER = "no-answer", "the problem returned no value"
    NOT_FINITE = "not-finite", "the loss is not finite"
    NOT_HELD = "not-held", "not on this node"
    MALFORMED = "malformed", "the node could not read the message"
    CANNOT_BEGIN = "cannot-begin", "the node cannot make the problem"
    UNKNOWN_PROBLEM = "unknown-problem", "the node does not allow this problem"
    UNKNOWN_ALGORITHM = (
        "unknown-algorithm",
        'the node does not allow this algorithm; algorithms = ["fedzo", "{algorithm}"] in its node '
        "file would",
    )
    TASK_LOCAL_STEPS = (
        "task-local-steps",
        'the node does no local steps; tasks = ["local_steps"] in its node file would allow them',
    )
    TASK_EVALUATE = (
        "task-evaluate",
        "the node sends no values at points that a run chooses; "
        'tasks = ["local_steps", "evaluate"] in its node file would allow it',
    )
    TASK_SLOPES = (
        "task-slopes",
        'the node sends no slopes; tasks = ["local_steps", "evaluate", "slopes"] in its node file '
        "would allow it",
    )
    OTHER_SETTINGS = "other-settings", "the node has other settings of the problem than the run"
    DEVICES = "devices", "more devices in a message than the node allows, or a device twice"
    DIMENSION = "dimension", "not the dimension of the node's problem, or above the node's limit"
    STEPS = "steps", "more local steps than the node allows"
    DIRECTIONS = "directions", "more directions or points than the node allows"
    BATCH = "batch", "a larger batch than the node allows"
    MEMORY = "memory", "would take more memory than the node allows"
    SECONDS = "seconds", "took more seconds than the node allows"
    QUERIES = "queries", "the node's limit of queries is reached"
    LEDGER = "ledger", "the node cannot read or write its ledger"
    PRIVACY = "privacy", "the node's privacy budget is spent"
    NO_RECORDS = "no-records", "the node has [privacy], but this problem does not name its records"
    NOT_PINNED = "not-pinned", "the node lists apps, but was not started by fedzo node start"
    SECURE = "secure", "the node rejects this request of a secure sum: it is repeated or false"
    PEERS = (
        "peers",
        "the secure sum has nodes that this one does not list, or fewer than its min_peers: more "
        "participants are on more nodes, and with more than 14 nodes it is at most 6",
    )
    SECURE_ONLY = (
        "secure-only",
        'the node takes part in secure sums only: set uplink.name = "seeds", uplink.secure = true',
    )
    NOT_SECURE = "not-secure", "the node has no [secure] in its node file, which secure sums need"
    RECORDS = "records", "fewer records, on the device or in a batch, than the node requires"


class Rejected(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """A node rejects a request. The server receives the code; the text is for the node's log."""

    code: ErrorCode

    def __init__(self, code: ErrorCode, text: str = "") -> None:
        super().__init__(text or code.words, code=code)


class Malformed(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """A message does not have the fields of its type; ``key`` names the record or field."""

    code = ErrorCode.MALFORMED

    def __init__(self, text: str, key: str = "") -> None:
        super().__init__(text)
        self.key = key


class Explanation(NamedTuple):
    """The meaning of an error that a node sent: words, and a reference to the node's log."""

    words: str
    reference: str = ""

    def __str__(self) -> str:
        return f"{self.words} ({self.reference} in its log)" if self.reference else self.words


def code_of(error: BaseException) -> ErrorCode:
    """Return the code of an error.

    >>> code_of(OSError("database of ward 7 is offline"))
    <ErrorCode.RAISED: 'raised'>
    """
    if isinstance(error, Rejected | Malformed):
        return error.code
    for kind, code in (
        (NonFinite, ErrorCode.NOT_FINITE),
        (BudgetSpent, ErrorCode.QUERIES),
        (MemoryError, ErrorCode.MEMORY),
        (NoAnswer, ErrorCode.NO_ANSWER),
    ):
        if isinstance(error, kind):
            return code
    return ErrorCode.RAISED


def log_error(error: BaseException) -> str:
    """Log an error on this node; return the code and the reference to send."""
    reference, code = secrets.token_hex(4), code_of(error)
    traced = error if code is ErrorCode.RAISED else None
    log.error("%s: %s: %s", reference, type(error).__name__, error, exc_info=traced)
    return f"{code.value} {reference}"


def explain(sent: str, algorithm: str = "...") -> Explanation:
    """Return the meaning of a code and a reference; return any other text as one bounded line.

    ``algorithm`` is the name of the run's algorithm, for the line that would allow it.

    >>> explain("queries 0f1e2d3c")
    Explanation(words="the node's limit of queries is reached", reference='0f1e2d3c')
    >>> explain("queries or something")
    Explanation(words='queries or something', reference='')
    """
    found = re.fullmatch(r"([a-z-]{1,20}) ([0-9a-f]{8})", sent)
    known = {code.value: code.words for code in ErrorCode}
    if found and found[1] in known:
        return Explanation(known[found[1]].replace("{algorithm}", algorithm), found[2])
    return Explanation(short_line(sent))


@contextmanager
def quiet_log() -> Iterator[None]:
    """Silence Flower's log, errors too."""
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


def short_line(text: str) -> str:
    """Return text of another machine as one printable line of bounded length."""
    return one_line(text[:1000], 200)
