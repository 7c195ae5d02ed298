"""Ask and tell: for those who own the loop, because a value is an experiment in a laboratory.

A run is a generator of tasks, and waits where it has yielded one. Here the values come from the
caller: the replies to a task are computed again with the values that have come in since, until
nothing is missing. The result is that of :func:`fedzo.minimize`, to the bit. All that a file has to
hold is how the run was set up and the values, in order.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedzo.algorithms import Adaptive, Algorithm
from fedzo.core.engine import LocalEngine
from fedzo.core.files import write_atomic
from fedzo.core.importing import Suspension
from fedzo.core.tasks import Evaluation, Losses, Replies, Task
from fedzo.core.types import Array
from fedzo.errors import InvalidValue, UsageError, require
from fedzo.problems.function import FunctionObjective, FunctionOptions
from fedzo.runs.auto import stand_in
from fedzo.runs.loop import Job, Loop, Running, choose_numbers
from fedzo.runs.minimize import by_name, checked_start, ends_alone, split_options
from fedzo.runs.options import UNLIMITED, RunKeywords
from fedzo.runs.registry import describe_job, make_parts
from fedzo.runs.result import Result, Status
from fedzo.uplinks import Ideal, Uplink
from fedzo.uplinks.base import RunSetting
from fedzo.variables.bounds import Bounds, Box

T = TypeVar("T")


class Query(NamedTuple):
    """A value that is wanted: f_device(x)."""

    x: Array
    device: int


class AskTell:
    """A run that asks for values in batches and continues when it gets them.

    The parameters are those of :func:`fedzo.minimize`, with one device by default. The same seed
    and the same values give the same run, to the bit. Evaluations are part of the batches, as often
    as ``minimize`` would evaluate. With ``max_queries`` the run ends before a batch that the budget
    does not cover.

    Examples
    --------
    >>> import numpy as np, fedzo
    >>> opt = fedzo.AskTell(np.zeros(2), devices=3, rounds=50,
    ...                     algorithm=fedzo.FedZO(learning_rate=0.05, local_steps=1))
    >>> while batch := opt.ask():
    ...     opt.tell([float(np.sum((x - device) ** 2)) for x, device in batch])
    >>> opt.x.round(1), opt.result().message
    (array([1., 1.]), 'finished 50 rounds')
    """

    def __init__(
        self,
        x0: ArrayLike,
        *,
        devices: int = 1,
        method: str | None = None,
        algorithm: Algorithm | None = None,
        uplink: Uplink | None = None,
        bounds: Bounds | None = None,
        scale: str | Sequence[str] = "linear",
        x_scale: ArrayLike | None = None,
        max_queries: int | None = None,
        **options: Unpack[RunKeywords],
    ) -> None:
        algorithm = by_name(method, algorithm) or Adaptive()
        uplink = uplink or Ideal()
        if ends_alone(algorithm, max_queries):
            options.setdefault("rounds", UNLIMITED)
        run, _ = split_options(options)
        start = checked_start(x0)
        objective = _AskedObjective(
            start.size,
            devices,
            bounds=bounds,
            scale=scale,
            x_scale=x_scale,
            max_queries=max_queries,
        )
        u0 = objective.encode(start)
        self._settings = {
            "x0": start.tolist(),
            "dtype": start.dtype.name,
            "devices": devices,
            "bounds": None if bounds is None else Box(bounds, start.size).pairs(),
            "scale": scale if isinstance(scale, str) else list(scale),
            "x_scale": None if x_scale is None else np.asarray(x_scale, float).tolist(),
            "max_queries": max_queries,
            "tables": describe_job(algorithm, uplink, run, {}),
        }
        self._objective, self._values = objective, list[float]()
        job = Job(algorithm=algorithm, uplink=uplink, options=run, tables={})
        self._engine = _AskingEngine(objective, run.seed)
        shown = replace(job, algorithm=stand_in(algorithm))  # until its numbers are chosen
        self._loop = Loop(shown, self._engine, u0, objective)
        self._end: tuple[Status, str] | None = None
        self._tasks = self._run(job, u0, objective)
        self._task = next(self._tasks)
        self._wanted: list[Query] = []
        self._proceed()

    def ask(self) -> list[Query]:
        """Return the current batch, pairs of a point and a device; empty when the run has ended.

        The batch stays the same until :meth:`tell` gives its values. They may be measured in any
        order or all at once.
        """
        return [Query(x.copy(), device) for x, device in self._wanted]

    def tell(self, values: Sequence[float]) -> None:
        """Give the values of the batch, in its order; nan for a missing value.

        A device with a missing value is dropped from the round.
        """
        try:
            found = [float(value) for value in values]
        except (TypeError, ValueError) as error:
            raise InvalidValue("values", values, "numbers, nan for a missing value") from error
        allowed = f"{len(self._wanted)}, one for each query of the batch"
        require(len(found) == len(self._wanted), "values", f"{len(found)} numbers", allowed)
        if found:
            self._values += found
            self._objective.note(self._wanted, found)
            self._proceed()

    @property
    def x(self) -> Array:
        """The model after the last whole round."""
        return self._loop.to_user(self._loop.x)

    def result(self) -> Result:
        """Return the result of the run, or the result so far if it waits for values."""
        at = self._loop.at.round
        waiting = Status.INTERRUPTED, f"waiting for {len(self._wanted)} values after round {at}"
        return self._loop.close(*(self._end or waiting))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that is needed to resume, as JSON."""
        write_atomic(Path(path), (json.dumps(self.__getstate__(), indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the run that was saved in a file, where it was.

        >>> import tempfile
        >>> opt = AskTell([1.0], devices=1)
        >>> opt.tell([2.5])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     opt.save(f"{folder}/run.json")
        ...     again = AskTell.load(f"{folder}/run.json")
        >>> [q.x for q in again.ask()] == [q.x for q in opt.ask()]
        True
        """
        opt = cls.__new__(cls)
        try:
            opt.__setstate__(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except RecursionError as error:
            raise UsageError(f"{path} is nested too deeply") from error
        except InvalidValue as error:  # such as the user's own part, if it is not found here
            raise UsageError(f"{path} cannot be resumed: {error}") from error
        except (ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
            raise UsageError(f"{path} does not contain a run to resume: {error!r}") from error
        return opt

    def __getstate__(self) -> dict[str, Any]:
        values = [None if np.isnan(value) else value for value in self._values]
        return {**self._settings, "values": values}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        settings = dict(state)
        values = [np.nan if value is None else value for value in settings.pop("values")]
        x0 = np.array(settings.pop("x0"), settings.pop("dtype"))
        tables = settings.pop("tables")
        algorithm, uplink, _ = make_parts(tables)
        own = RunKeywords.__annotations__
        run = {key: value for key, value in tables["run"].items() if key in own}
        self.__init__(x0, algorithm=algorithm, uplink=uplink, **settings, **run)  # type: ignore[misc]
        while values:  # of whole batches: tell takes no others
            count = len(self._wanted)
            self.tell(values[:count])
            del values[:count]

    def _run(self, job: Job, x0: Array, objective: FunctionObjective) -> Running[None]:
        """Yield the tasks of the run."""
        setting = RunSetting(self._engine, job.uplink)
        job = yield from choose_numbers(job, setting, x0, objective)
        self._loop = Loop(job, self._engine, x0, objective)
        self._end = yield from self._loop.go()

    def _proceed(self) -> None:
        """Answer tasks until values are missing, or the run has ended."""
        self._wanted = []
        with self._engine, suppress(StopIteration):
            while not self._wanted:
                resume: Callable[[Any], Any] = self._tasks.send
                try:
                    answer: Any = self._engine.answer(self._task)
                except Exception as error:  # raised in the run, which knows how it ends
                    resume, answer = self._tasks.throw, error
                self._wanted = self._engine.wanted
                if not self._wanted:
                    self._task = resume(answer)


class _AskedObjective(FunctionObjective):
    """A function whose values the caller gives, in the order in which each device asks for them."""

    def __init__(self, dim: int, devices: int, **options: Unpack[FunctionOptions]) -> None:
        self.count = 0  # values that were ever given
        self.given: defaultdict[int, list[Array]] = defaultdict(list)  # for the current task
        self.read: Counter[int] = Counter()
        options["vectorized"], options["on_failure"] = True, "leave_out"
        super().__init__(self._answer, dim, devices, **options)

    def _ask(
        self, points: Array, device: int, continues: bool, begun: Future[Any] | None = None
    ) -> Array:
        """Ask for all values of an estimate, or for none if the budget does not cover them."""
        left = self.meter.left
        if left is not None and left < len(points):
            raise self.meter.spent()
        return super()._ask(points, device, continues, begun)

    def _answer(self, points: Array, device: int) -> Array:
        """Return the values of a device's next points, or say that they are wanted."""
        if self.read[device] == len(self.given[device]):
            raise Suspension([Query(x, device) for x in points])
        self.read[device] += 1
        return self.given[device][self.read[device] - 1]

    def note(self, queries: Sequence[Query], values: Sequence[float]) -> None:
        """Note the values of a batch, in which a device's queries lie side by side."""
        self.count += len(values)
        pairs = zip(queries, values, strict=True)
        for device, block in groupby(pairs, key=lambda pair: pair[0].device):
            self.given[device].append(np.array([value for _, value in block]))


class _AskingEngine(LocalEngine):
    """Lets every device get as far as the values go, and collects what all of them want."""

    def __init__(self, objective: _AskedObjective, seed: int) -> None:
        super().__init__(objective, seed, workers=1)
        self.asked, self._asked = objective, 0
        self.wanted: list[Query] = []

    def answer(self, task: Task | Losses) -> Replies | Evaluation:
        """Return the answer to a task, unless something is ``wanted`` for it."""
        self.asked.read.clear()
        self.asked.meter.queries = self._asked  # what is asked again is one query
        self.wanted = []
        try:
            if isinstance(task, Losses):
                every = range(self.devices)
                found = self._each(lambda i: self._losses(task.x, np.array([i])), every)
                answer: Any = Evaluation(np.concatenate(found) if found else np.empty(0), {})
            else:
                updates = self._each(lambda i: self._reply(task, i), task.devices)
                answer = Replies([update for update in updates if update is not None], task)
        except Exception:
            self._done()
            raise
        if self.wanted:
            self.dropped.clear()  # they will be again
        else:
            self._done()
        return answer  # type: ignore[no-any-return]

    def _done(self) -> None:
        """Forget the values that have been used, or that are of no use any more."""
        self.asked.given.clear()
        self.asked.meter.queries = self._asked = self.asked.count
        self.wanted = []

    def _each(self, function: Callable[[int], T], devices: Sequence[int]) -> list[T]:
        answers = []
        for device in devices:
            try:
                answers.append(function(device))
            except Suspension as waiting:
                self.wanted += waiting.args[0]
        return answers
