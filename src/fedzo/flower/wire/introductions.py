"""Who joins: the run's greeting, and what a node tells of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, RecordDict

from fedzo.flower.reasons import one_line
from fedzo.flower.schema import LONGEST_TEXT, Malformed, config, take


class Hello(NamedTuple):
    """What a node tells when it joins: the shape of the problem, and its part of it."""

    version: str  # of fedzo
    fingerprint: str  # of the problem: its name and the settings that must agree
    checksum: str  # of the directions that this node's generator draws at a fixed address
    dim: int
    devices: int  # N, of the whole federation
    held: tuple[int, ...]  # which of them live here
    sizes: tuple[int, ...]  # how many samples each of those has
    offers: tuple[str, ...]  # the problem's capabilities, by name
    cost: int  # of an evaluation, if the objective tells it, else 0

    @property
    def shape(self) -> tuple[str, int, int]:
        """In what all nodes must agree: the problem, its dimension, the number of devices."""
        return self.fingerprint, self.dim, self.devices


def greeting(settings: Mapping[str, Any]) -> RecordDict:
    """Return the content of a greeting: the settings that the run knows of the problem.

    >>> read_greeting(greeting({"devices": 3}))
    {'devices': 3}
    """
    return RecordDict({"greeting": ConfigRecord({"settings": json.dumps(dict(settings))})})


def read_greeting(content: RecordDict) -> dict[str, Any]:
    """Return the settings that a run knows of the problem: to compare, never to make one by."""
    text = take(dict(config(content, "greeting")), "settings", str)
    try:
        settings = json.loads(text) if len(text) <= LONGEST_TEXT else None
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise Malformed("the greeting's settings are not a table")
    return settings


def hello(introduction: Hello) -> RecordDict:
    """Return the content of a node's introduction."""
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in introduction._asdict().items()}
    return RecordDict({"hello": ConfigRecord(plain)})


def read_hello(content: RecordDict) -> Hello:
    """Return a node's introduction, checked to make sense by itself."""
    plain = dict(config(content, "hello"))
    introduction = Hello(
        version=_short(take(plain, "version", str)),
        fingerprint=_short(take(plain, "fingerprint", str)),
        checksum=_short(take(plain, "checksum", str)),
        dim=take(plain, "dim", int),
        devices=take(plain, "devices", int),
        held=tuple(take(plain, "held", list[int])),
        sizes=tuple(take(plain, "sizes", list[int])),
        offers=tuple(take(plain, "offers", list[str])),
        cost=take(plain, "cost", int),
    )
    whose = all(0 <= i < introduction.devices for i in introduction.held) and len(
        introduction.held
    ) == len(introduction.sizes)
    once = len(set(introduction.held)) == len(introduction.held)
    if not (
        whose
        and once
        and introduction.dim > 0
        and min(introduction.cost, *introduction.sizes, 0) == 0
    ):
        raise Malformed("the node's introduction contradicts itself")
    return introduction


def _short(text: str) -> str:
    return one_line(text)[:40]
