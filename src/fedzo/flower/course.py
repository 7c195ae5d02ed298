"""What makes the state of a run the next one, told as text and done again by whoever follows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from fedzo.algorithms import Algorithm
from fedzo.algorithms.compose import compose
from fedzo.core.engine import ReplayEngine, drive
from fedzo.core.files import as_toml
from fedzo.core.random import check_seed
from fedzo.core.tasks import Task, Update
from fedzo.errors import FedzoError
from fedzo.flower.errors import ErrorCode as Reason
from fedzo.flower.errors import Rejected as Refused
from fedzo.flower.schema import LONGEST_TEXT, take
from fedzo.runs.registry import describe_parts, make_parts
from fedzo.uplinks import Uplink
from fedzo.uplinks.base import RunSetting

Array = NDArray[Any]


@dataclass(frozen=True)
class Course:
    """What makes a state of a run the next one: the algorithm, the uplink, the seed.

    ``devices`` is N, and ``dtype`` is the model's precision.
    """

    algorithm: Algorithm
    uplink: Uplink
    seed: int
    devices: int
    dtype: str

    @cached_property
    def text(self) -> str:
        """All of it as text, to be sent once."""
        plain = {key: getattr(self, key) for key in ("seed", "devices", "dtype")}
        parts = as_toml(describe_parts(self.algorithm, self.uplink))
        return json.dumps({**parts, **plain}, separators=(",", ":"))

    @cached_property
    def can_be_told(self) -> bool:
        """Whether it is made of parts that every node knows by name."""
        parts = describe_parts(self.algorithm, self.uplink)
        names = (parts["uplink"]["name"], parts.get("server", {}).get("name", "mean"))
        return ":" not in "".join(names) and len(self.text) <= LONGEST_TEXT

    @classmethod
    def read(cls, text: str, known: Mapping[str, Any]) -> Course:
        """Return what a text says, of parts that are known here: nothing is imported for it."""
        try:
            plain = json.loads(text) if len(text) <= LONGEST_TEXT else {}
            tables = {table: plain.pop(table) for table in ("algorithm", "uplink")}
            tables["server"] = plain.pop("server", {})
            algorithm, uplink, _ = make_parts(tables, known)
            return cls(
                algorithm,
                uplink,
                seed=_seed(take(plain, "seed", int)),
                devices=take(plain, "devices", int),
                dtype={"float32": "float32", "float64": "float64"}[take(plain, "dtype", str)],
            )
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError, FedzoError) as e:
            text = f"the run's parts are none that are known here: {e}"
            raise Refused(Reason.UNKNOWN_ALGORITHM, text) from e

    def composed(self, x0: Array) -> Algorithm:
        """Return the algorithm with the wrappers that the run has."""
        return compose(self.algorithm, self.uplink, x0)

    def start(self, x0: Array) -> Any:
        """Return the state before the first round."""
        return self.composed(x0).init(x0, self._setting(x0, ()))

    def task(self, t: int, state: Any) -> Task:
        """Return what the devices are asked for in round t."""
        x = state.x
        tasks = self.composed(x).round(t, state, self._setting(x, ()))
        task = next(tasks)
        tasks.close()
        return task

    def follow(self, state: Any, first: int, rounds: Sequence[list[Update]]) -> Any:
        """Return the state after these rounds, of which each is what the server heard in it."""
        algorithm, setting = self.composed(state.x), self._setting(state.x, rounds)
        for t in range(first, first + len(rounds)):
            state, _ = drive(algorithm.round(t, state, setting), setting.engine)
        return state

    def _setting(self, x: Array, log: Sequence[list[Update]]) -> RunSetting:
        engine = ReplayEngine(self.seed, x.size, self.devices, log)
        return RunSetting(engine, self.uplink)


def _seed(seed: int) -> int:
    check_seed("seed", seed)
    return seed
