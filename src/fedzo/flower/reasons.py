"""Why a node does not answer: codes from a fixed list, so that no text of a node ever leaves it.

What an exception says may be private: a patient's name, a row of data, a path. So a node writes it
to its own log, with a reference of eight random letters, and sends the code and the reference.
Whoever operates both can find the one by the other, and nobody else learns anything.
"""

from __future__ import annotations

import logging
import re
import secrets
from enum import StrEnum
from typing import NamedTuple

from fedzo.errors import BudgetSpent, FedzoError, NoAnswer, NonFinite
from fedzo.flower.schema import Malformed

log = logging.getLogger("flwr")  # the logger that Flower prints


class Reason(StrEnum):
    """The whole list; the words are what the server's history says."""

    words: str

    def __new__(cls, code: str, words: str) -> Reason:
        """Make a member of a code, which travels, and words, which do not."""
        member = str.__new__(cls, code)
        member._value_, member.words = code, words
        return member

    RAISED = "raised", "the problem raised an error"
    NO_ANSWER = "no-answer", "the problem gave no answer"
    NOT_FINITE = "not-finite", "the loss is not finite"
    NOT_HELD = "not-held", "not on this node"
    MALFORMED = "malformed", "the node could not read the message"
    CANNOT_BEGIN = "cannot-begin", "the node cannot make the problem"
    UNKNOWN_PROBLEM = "unknown-problem", "the node does not allow this problem"
    UNKNOWN_ALGORITHM = "unknown-algorithm", "the node does not allow this algorithm"
    OTHER_SETTINGS = "other-settings", "the node has other settings of the problem than the run"
    DEVICES = "devices", "more devices in a message, or one of them twice, than the node allows"
    DIMENSION = "dimension", "not the dimension that the node has, or a larger one than it allows"
    STEPS = "steps", "more local steps than the node allows"
    DIRECTIONS = "directions", "more directions or points than the node allows"
    BATCH = "batch", "a larger batch than the node allows"
    MEMORY = "memory", "would take more memory than the node allows"
    SECONDS = "seconds", "took more seconds than the node allows"
    QUERIES = "queries", "the node's limit of queries is reached"
    LEDGER = "ledger", "the node cannot keep its ledger"
    PRIVACY = "privacy", "the node's privacy budget is spent"
    NOT_PROVEN = "not-proven", "the node has [privacy], which is not supported for this problem"
    NOT_PINNED = "not-pinned", "the node lists apps, but was not started by fedzo node start"
    RECORDS = "records", "fewer records, in all or in a batch, than the node answers about"


class Refused(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """A node does not do what it is asked; the text is for its own log."""

    def __init__(self, reason: Reason, text: str = "") -> None:
        super().__init__(text or reason.words)
        self.reason = reason


class Explanation(NamedTuple):
    """A reason as the server understands it: words, and where its node's log says more."""

    words: str
    reference: str = ""


def reason_of(error: BaseException) -> Reason:
    """Return the code of an error.

    >>> reason_of(OSError("database of ward 7 is offline"))
    <Reason.RAISED: 'raised'>
    """
    if isinstance(error, Refused):
        return error.reason
    for kind, reason in (
        (Malformed, Reason.MALFORMED),
        (NonFinite, Reason.NOT_FINITE),
        (BudgetSpent, Reason.QUERIES),
        (MemoryError, Reason.MEMORY),
        (NoAnswer, Reason.NO_ANSWER),
    ):
        if isinstance(error, kind):
            return reason
    return Reason.RAISED


def sent(error: BaseException) -> str:
    """Log an error on this node; return what leaves it: a code and a reference."""
    reference = secrets.token_hex(4)
    reason = reason_of(error)
    traced = error if reason is Reason.RAISED else None
    log.error("%s: %s: %s", reference, type(error).__name__, error, exc_info=traced)
    return f"{reason.value} {reference}"


def read(text: str) -> Explanation:
    """Return what a node's reason says; a text that is not one of ours, as a bounded line.

    >>> read("queries 0f1e2d3c")
    Explanation(words="the node's limit of queries is reached", reference='0f1e2d3c')
    >>> read("queries or something")
    Explanation(words='queries or something', reference='')
    """
    found = re.fullmatch(r"([a-z-]{1,20}) ([0-9a-f]{8})", text)
    known = {reason.value: reason.words for reason in Reason}
    if found and found[1] in known:
        return Explanation(known[found[1]], found[2])
    return Explanation(one_line(text))


def one_line(text: str) -> str:
    r"""Return what somebody else wrote as one printable line of bounded length.

    >>> one_line("no\n more\x1b[31m")
    'no more?[31m'
    """
    words = " ".join(text[:1000].split())
    return "".join(c if c.isprintable() else "?" for c in words)[:200]
