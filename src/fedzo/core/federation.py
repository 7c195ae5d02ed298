"""Who computes: the devices' work, mapped over threads of this machine.

An algorithm hands over pure work, a function of (objective, device), and reads the replies
as a stream in device order. It cannot tell how many workers there were, or where.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property, lru_cache
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from fedzo.core.batching import QueryBatcher
from fedzo.core.budget import Meter
from fedzo.core.capabilities import BatchesQueries, HasScale, OwnThreads
from fedzo.core.objective import Objective, evaluation_cost, meter_of
from fedzo.core.work import Update, Work
from fedzo.errors import BudgetSpent, NoAnswer, UsageError, check_count

Array = NDArray[Any]
A = TypeVar("A")
B = TypeVar("B")


_WORTH_A_THREAD = 0.8e-3  # seconds of work a device
_SILENT: Any = {"over": "ignore", "invalid": "ignore"}


Task = Callable[[Objective, int], Update]  # a Work, or what wraps one


class LeftOutDevice(NamedTuple):
    """A device that a round or an evaluation had to do without."""

    device: int
    reason: str


class Replies(Iterator[Update]):
    """A stream of updates in device order that counts what goes by; ``work`` is what was asked."""

    def __init__(self, updates: Iterable[Update], work: Task | None = None) -> None:
        self._updates = iter(updates)
        self.work = work if isinstance(work, Work) else None
        self.count = 0
        self.queries = 0

    def __next__(self) -> Update:
        update = next(self._updates)
        self.count += 1
        self.queries += update.queries
        return update


class Federation(Protocol):
    """N devices that hold a problem, and the seed that all randomness derives from.

    A federation is entered before its first round and left after its last. Devices that did not
    answer are named in ``left_out``, which the reader empties; ``meter`` counts the queries
    of a problem that counts them itself; ``scale`` is the problem's typical length of each
    number in x, where it knows one.
    """

    seed: int
    dim: int
    devices: int
    left_out: list[LeftOutDevice]
    meter: Meter | None
    scale: Array | None

    @property
    def evaluation_cost(self) -> int:
        """How many values F_i(x, ξ) one evaluation takes."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None: ...

    def provides(self, kind: type[Any]) -> bool:
        """Return whether the devices' problem has a capability."""
        ...

    def map(self, work: Work, devices: Sequence[int] | Array) -> Replies:
        """Have each device do the work; return the updates as a stream in device order."""
        ...

    def losses(self, x: Array) -> Array:
        """Return f_i(x) of all N devices; anything for those that are now in ``left_out``."""
        ...

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return the problem's further metrics at x."""
        ...


class LocalFederation:
    """All devices simulated by threads of this process.

    The kernels release the GIL, BLAS is kept to one thread for each worker, and a worker
    takes one device through all its local steps, so its directions stay in its own cache.
    At most two updates a worker are under way at any time: memory does not grow with M or N.

    ``workers=None`` means all cores, if that pays: threads wait for each other's GIL, so work
    that takes less than about a millisecond a device is quicker on one. The first two devices
    show which it is. The result does not depend on it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.problems import FunctionObjective
    >>> objective = FunctionObjective(lambda x, device: device, dim=1, devices=3)
    >>> with LocalFederation(objective, seed=0, workers=2) as federation:
    ...     federation.losses(np.zeros(1))
    array([0., 1., 2.])
    """

    def __init__(self, objective: Objective, seed: int, workers: int | None = None) -> None:
        if workers is not None:
            check_count("workers", workers)
        self.objective, self.seed = objective, seed
        self.dim, self.devices = objective.dim, objective.devices
        scaled = objective.capability(HasScale)
        self.meter, self.scale = meter_of(objective), None if scaled is None else scaled.scale
        batching = objective.capability(BatchesQueries)
        self._batcher = None if batching is None else batching.batcher
        self.left_out: list[LeftOutDevice] = []
        self.workers = 1 if self.provides(OwnThreads) else workers or cores()
        self._trials: list[float] | None = [] if workers is None and self.workers > 1 else None
        self._threads: ThreadPoolExecutor | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if not self.provides(OwnThreads):
            blas = _libraries(len(sys.modules))
            self._open.enter_context(blas.limit(limits=1, user_api="blas"))
        # What is not finite is caught by the run's loop, which names round and device:
        # NumPy's warnings on the way there would only be noise.
        self._open.enter_context(np.errstate(**_SILENT))
        if self.workers > 1:
            self._threads = ThreadPoolExecutor(
                self.workers, "fedzo", initializer=lambda: np.seterr(**_SILENT)
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        if self._batcher is not None:
            self._batcher.close()
        self._open.close()

    def provides(self, kind: type[Any]) -> bool:
        """Return whether the problem has a capability."""
        return self.objective.capability(kind) is not None

    @cached_property
    def evaluation_cost(self) -> int:
        """How many values F_i(x, ξ) one evaluation takes."""
        return evaluation_cost(self.objective)

    def map(self, work: Task, devices: Sequence[int] | Array) -> Replies:
        """Have each device do the work; return the updates as a stream in device order."""
        if self._batcher is not None:
            return Replies(self._batched(self._batcher, work, devices), work)
        stream = self._ordered if self._trials is None else self._tried
        answers = stream(lambda i: self._answer(work, int(i)), devices)
        return Replies((answer for answer in answers if answer is not None), work)

    def losses(self, x: Array) -> Array:
        """Return f_i(x) of all N devices.

        They are computed in at most 64 parts, whatever the number of workers, so that the
        sums in them have the same order, and the same bits, with any number of workers.
        """
        parts = np.array_split(np.arange(self.devices), min(64, self.devices))
        stream = self._ordered if self._batcher is None else self._batcher.map
        return np.concatenate(list(stream(lambda part: self._losses(x, part), parts)))

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return the problem's further metrics at x."""
        return self.objective.metrics(x)

    def _batched(
        self, batcher: QueryBatcher, work: Task, devices: Sequence[int] | Array
    ) -> Iterator[Update]:
        """Yield the updates; where a budget ends, those of the devices that got to their end."""
        heard = False
        try:
            for update in batcher.map(lambda i: self._answer(work, int(i)), devices):
                if update is not None:
                    yield update
                    heard = True
        except BudgetSpent:
            if not heard:
                raise

    def _answer(self, work: Task, device: int) -> Update | None:
        try:
            return work(self.objective, device)
        except NoAnswer as error:
            self.left_out.append(LeftOutDevice(device, str(error)))
            return None

    def _losses(self, x: Array, devices: Array) -> Array:
        try:
            losses = np.asarray(self.objective.losses(x, devices))
        except NoAnswer as error:
            if len(devices) > 1:  # one at a time, to hear who it was
                return np.concatenate([self._losses(x, one) for one in devices[:, None]])
            self.left_out.append(LeftOutDevice(int(devices[0]), str(error)))
            return np.array([np.nan])
        if losses.shape != devices.shape:
            name, right = type(self.objective).__name__, devices.shape
            raise UsageError(f"{name}.losses returned the shape {losses.shape}, not {right}")
        return losses

    def _tried(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """Map on this thread until two items have shown whether more threads would pay."""
        items = iter(items)
        while self._trials is not None and (item := next(items, None)) is not None:
            began = time.perf_counter()
            result = function(item)
            self._trials.append(time.perf_counter() - began)
            if len(self._trials) == 2:  # the first may have had to compile something
                if min(self._trials) < _WORTH_A_THREAD and self._threads is not None:
                    self._threads.shutdown()
                    self._threads = None
                self._trials = None
            yield result
        yield from self._ordered(function, items)

    def _ordered(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """Map over the threads, a few items ahead, in the order of the items."""
        if self._threads is None:
            yield from map(function, items)
            return
        under_way: deque[Future[B]] = deque()
        try:
            for item in items:
                under_way.append(self._threads.submit(function, item))
                if len(under_way) > 2 * self.workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:  # a failed or abandoned stream must not leave work behind
            for future in under_way:
                future.cancel()


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Find the BLAS libraries; that takes a millisecond, and new ones come with new modules."""
    return ThreadpoolController()


def cores() -> int:
    """Return how many cores this process may use; not every system can tell which."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
