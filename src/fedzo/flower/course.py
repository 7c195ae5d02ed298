"""What makes the state of a run the next one, told as text and done again by whoever follows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from numpy.typing import NDArray

from fedzo.algorithms import SERVER_STEPS, Algorithm
from fedzo.core.budget import Meter
from fedzo.core.federation import LeftOutDevice, Replies
from fedzo.core.random import check_seed
from fedzo.core.signature import arguments_of
from fedzo.core.work import Update, Work
from fedzo.errors import FedzoError, UsageError
from fedzo.flower.reasons import Reason, Refused
from fedzo.flower.schema import LONGEST_TEXT, take
from fedzo.runs.parts import describe_parts, has_server
from fedzo.runs.tables import as_toml
from fedzo.uplinks import UPLINKS, Uplink

Array = NDArray[Any]


@dataclass(frozen=True)
class Course:
    """What makes a state of a run the next one: the algorithm, the uplink, the seed.

    ``streamed`` says how devices draw their directions, ``devices`` is N, and ``dtype`` is the
    model's precision.
    """

    algorithm: Algorithm
    uplink: Uplink
    seed: int
    devices: int
    streamed: bool
    dtype: str

    @cached_property
    def text(self) -> str:
        """All of it as text, to be sent once."""
        plain = {key: getattr(self, key) for key in ("seed", "devices", "streamed", "dtype")}
        parts = as_toml(describe_parts(self.algorithm, self.uplink))
        return json.dumps({**parts, **plain}, separators=(",", ":"))

    @cached_property
    def can_be_told(self) -> bool:
        """Whether it is made of parts that every node knows by name."""
        parts = describe_parts(self.algorithm, self.uplink)
        names = (parts["uplink"]["kind"], parts.get("server", {}).get("name", "mean"))
        return ":" not in "".join(names) and len(self.text) <= LONGEST_TEXT

    @classmethod
    def read(cls, text: str, known: Mapping[str, Any]) -> Course:
        """Return what a text says, of parts that are known here: nothing is imported for it."""
        try:
            plain = json.loads(text) if len(text) <= LONGEST_TEXT else {}
            server = _made("server", SERVER_STEPS, "name", plain.pop("server", {"name": "mean"}))
            uplink = _made("uplink", UPLINKS, "kind", plain.pop("uplink"))
            own = plain.pop("algorithm")
            kind = known[own.pop("name")]
            arguments = arguments_of("algorithm", kind, own, hidden=("server",))
            algorithm = kind(**arguments, **({"server": server} if has_server(kind) else {}))
            return cls(
                algorithm,
                uplink,
                seed=_seed(take(plain, "seed", int)),
                devices=take(plain, "devices", int),
                streamed=take(plain, "streamed", bool),
                dtype={"float32": "float32", "float64": "float64"}[take(plain, "dtype", str)],
            )
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError, FedzoError) as e:
            text = f"the run's parts are none that are known here: {e}"
            raise Refused(Reason.UNKNOWN_ALGORITHM, text) from e

    def start(self, x: Array) -> Any:
        """Return the state before the first round."""
        return self.algorithm.init(x, _Heard(self, x.size), self.uplink)

    def work(self, t: int, state: Any) -> Work:
        """Return what the algorithm has the devices do in round t."""
        try:
            self.algorithm.round(t, state, _Asked(self, 0), self.uplink)
        except _Asks as asks:
            return asks.work
        raise UsageError(f"{type(self.algorithm).__name__} asks its devices for nothing")

    def made_of(self, state: Any, sums: Array) -> Any:
        """Return the state that the sums of a fixed set make, from the start that a state has."""
        return self.algorithm.made_of(state, sums, self.seed)

    def follow(self, state: Any, first: int, rounds: Sequence[list[Update]]) -> Any:
        """Return the state after these rounds, of which each is what the server heard in it."""
        dim = self.algorithm.model(state).size
        for t, updates in enumerate(rounds, first):
            state, _ = self.algorithm.round(t, state, _Heard(self, dim, updates), self.uplink)
        return state


def _seed(seed: int) -> int:
    check_seed("seed", seed)
    return seed


def _made(table: str, known: Mapping[str, type], key: str, settings: dict[str, Any]) -> Any:
    kind = known[settings.pop(key)]
    return kind(**arguments_of(table, kind, settings))


class _Heard:
    """A federation whose devices have answered already: what a round is done again with."""

    meter: Meter | None = None
    scale: Array | None = None
    evaluation_cost = 0

    def __init__(self, course: Course, dim: int, updates: Sequence[Update] = ()) -> None:
        self.course, self.dim, self._updates = course, dim, updates
        self.seed, self.devices = course.seed, course.devices
        self.left_out: list[LeftOutDevice] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def provides(self, kind: type[Any]) -> bool:
        return True

    def map(self, work: Work, devices: Any) -> Replies:
        streamed = self.course.streamed
        return Replies((u._replace(delta=work.rebuilt(u, streamed)) for u in self._updates), work)

    def losses(self, x: Array) -> Array:
        raise NotImplementedError

    def metrics(self, x: Array) -> Mapping[str, float]:
        return {}


class _Asks(Exception):  # noqa: N818 - no error: this is what the round would ask for
    """What a round asks for."""

    def __init__(self, work: Work) -> None:
        self.work = work


class _Asked(_Heard):
    """A federation that only tells what it is asked for."""

    def map(self, work: Work, devices: Any) -> Replies:
        raise _Asks(work)
