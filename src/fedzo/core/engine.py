"""Engines answer tasks: here, by threads of this process.

An algorithm yields tasks and reads the replies as a stream in device order. It cannot tell how many
workers there were, or where. :func:`drive` connects the two.
"""

import math
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from fedzo.core.batching import SILENT, QueryBatcher
from fedzo.core.budget import Meter
from fedzo.core.capabilities import BatchesQueries, HasScale, OwnThreads
from fedzo.core.importing import call_user, user_error
from fedzo.core.machine import cores
from fedzo.core.objective import Objective, evaluation_cost, meter_of, returned
from fedzo.core.parallel import Trial
from fedzo.core.tasks import Evaluate, Evaluation, LocalSteps, Losses, Replies, Slopes, Task, Update
from fedzo.core.types import Array
from fedzo.errors import BudgetSpent, NoAnswer, check_count

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

_WORTH_A_THREAD = 0.8e-3  # seconds of work per device


class DroppedDevice(NamedTuple):
    """A device that did not reply, and the reason."""

    device: int
    reason: str


class Engine:
    """Base class of engines: what answers the tasks of a run.

    An engine is a context manager around a run. The defaults are those of an engine without a
    problem of its own.

    Attributes
    ----------
    seed, dim, devices : int
        The run's seed, d and N.
    quorum : float
        A run is a success if this share of the devices takes part in it.
    asynchronous : bool
        Whether the engine replies to ``LocalSteps.buffer``.
    dropped : list of DroppedDevice
        The devices that did not reply; the reader empties it.
    meter : Meter, optional
        Counts the queries of a problem that counts them itself.
    scale : array, optional
        The problem's typical length of each coordinate of x.
    """

    seed: int
    dim: int
    devices: int
    dropped: list[DroppedDevice]
    quorum: float = 0.5
    asynchronous: bool = False
    meter: Meter | None = None
    scale: Array | None = None

    @property
    def evaluation_cost(self) -> int:
        """Number of values F_i(x, ξ) per evaluation."""
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def provides(self, kind: type[Any]) -> bool:
        """Return whether the devices' problem has a capability."""
        return True

    def ask(self, task: Task | Losses) -> Any:
        """Return the :class:`Replies` to a task, or the :class:`Evaluation` of all devices."""
        raise NotImplementedError


def drive(run: Generator[Any, Any, T], engine: Engine) -> T:
    """Answer the tasks that a generator yields, and return what it returns.

    Errors of the engine are raised in the generator, where it waits for the answer.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.core.tasks import Evaluate
    >>> from fedzo.problems import FunctionObjective
    >>> def double():
    ...     replies = yield Evaluate(np.array([[1.0], [3.0]]), devices=(0, 2))
    ...     return [2 * update.values for update in replies]
    >>> objective = FunctionObjective(lambda x, device: x[0] + device, dim=1, devices=3)
    >>> with LocalEngine(objective, seed=0) as engine:
    ...     drive(double(), engine)
    [array([2., 6.]), array([ 6., 10.])]
    """
    resume, answer = run.send, None
    while True:
        try:
            task = resume(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except BaseException as error:
            if (told := user_error(error)) is error:
                raise
            raise told from error
        finally:
            if isinstance(answer, Replies):
                answer.close()
        try:
            resume, answer = run.send, engine.ask(task)
        except BaseException as error:
            resume, answer = run.throw, error


class LocalEngine(Engine):
    """All devices simulated by threads of this process.

    The kernels release the GIL, BLAS is limited to one thread per worker, and a worker takes one
    device through all its local steps, so its directions stay in its own cache. At most two updates
    per worker are under way at any time: memory does not grow with M or N.

    ``workers=None`` means all cores, if that pays: threads wait for each other's GIL, so work that
    takes less than about a millisecond per device is quicker on one. The first two devices show
    which it is. Longer work is then timed on the threads, too, and the quicker way is kept: other
    programs may use the cores. The result does not depend on it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.problems import FunctionObjective
    >>> objective = FunctionObjective(lambda x, device: device, dim=1, devices=3)
    >>> with LocalEngine(objective, seed=0, workers=2) as engine:
    ...     engine.ask(Losses(np.zeros(1))).losses
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
        self.dropped: list[DroppedDevice] = []
        self.workers = 1 if self.provides(OwnThreads) else workers or cores()
        self._trial = Trial(self.workers, _WORTH_A_THREAD)
        if workers is not None:
            self._trial.pays = self.workers > 1
        self._threads: ThreadPoolExecutor | None = None
        self._most = math.inf  # queries of a device for its local steps, not known yet
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if not self.provides(OwnThreads):
            self._open.enter_context(_ONE_BLAS_THREAD)
        self._open.enter_context(np.errstate(**SILENT))
        if self.workers > 1:
            self._threads = ThreadPoolExecutor(
                self.workers, "fedzo", initializer=lambda: np.seterr(**SILENT)
            )
        return self

    def __exit__(self, *_: object) -> None:
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
        """Number of values F_i(x, ξ) per evaluation."""
        return evaluation_cost(self.objective)

    def ask(self, task: Task | Losses) -> Any:
        """Return the replies as a stream in device order, or the losses of all devices."""
        if isinstance(task, Losses):
            losses = self.losses(task.x)
            finite = np.isfinite(losses).any()  # else the run ends, and no metric is needed
            metrics = self.objective.metrics
            return Evaluation(losses, call_user(metrics, task.x, direct=False) if finite else {})
        return Replies(self._updates(task), task)

    def losses(self, x: Array) -> Array:
        """Return f_i(x) of all N devices.

        They are computed in at most 64 parts, whatever the number of workers, so that the sums in
        them have the same order, and the same bits, with any number of workers.
        """
        parts = np.array_split(np.arange(self.devices), min(64, self.devices))
        stream: Any = self._ordered if self._covers(self.evaluation_cost) else map
        stream = stream if self._batcher is None else self._batcher.map
        return np.concatenate(list(stream(lambda part: self._losses(x, part), parts)))

    def _covers(self, queries: float) -> bool:
        """Return whether the budget is certain to cover these queries, and as many retries.

        Else devices are asked one after another: which of them get the last queries, and so what a
        resumed run asks for, must not depend on threads.
        """
        left = None if self.meter is None else self.meter.left
        return left is None or left >= 2 * queries

    def _updates(self, task: Task) -> Iterator[Update]:
        if self._batcher is not None:
            yield from self._batched(self._batcher, task)
            return
        each: float = self._most
        if isinstance(task, Evaluate | Slopes):
            each = task.queries(1) * task.batch_size
        stream: Any = self._timed if self._covers(len(task.devices) * each) else map
        most = 0
        for update in stream(lambda device: self._reply(task, device), task.devices):
            if update is not None:
                most = max(most, update.queries)
                yield update
        self._most = most or self._most

    def _batched(self, batcher: QueryBatcher, task: Task) -> Iterator[Update]:
        """Yield the updates; if a budget ends, those of the devices that were done by then."""
        any_reply = False
        try:
            for update in batcher.map(lambda device: self._reply(task, device), task.devices):
                if update is not None:
                    yield update
                    any_reply = True
        except BudgetSpent:
            if not any_reply:
                raise

    def _reply(self, task: Task, device: int) -> Update | None:
        try:
            return call_user(task.reply, self.objective, device, direct=False)
        except NoAnswer as error:
            self.dropped.append(DroppedDevice(device, str(error)))
            return None

    def _losses(self, x: Array, devices: Array) -> Array:
        try:
            found = call_user(self.objective.losses, x, devices, direct=False)
        except NoAnswer as error:
            if len(devices) > 1:  # one at a time, to find out which
                return np.concatenate([self._losses(x, one) for one in devices[:, None]])
            self.dropped.append(DroppedDevice(int(devices[0]), str(error)))
            return np.array([np.nan])
        return returned(f"{type(self.objective).__name__}.losses", found, devices.shape)

    def _timed(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """Map some items on this thread and some on all, and then the quicker way."""
        items = iter(items)
        while self._trial.pays is None:
            beside = self._trial.beside
            some = list(islice(items, 2 * self.workers if beside else 1))
            if not some:
                return
            began = time.perf_counter()
            results = list((self._ordered if beside else map)(function, some))
            self._trial.note(beside, len(some), time.perf_counter() - began)
            yield from results
        yield from self._ordered(function, items)

    def _ordered(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """Map over the threads, a few items ahead, in the order of the items."""
        if self._threads is None or self._trial.pays is False:
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


class ReplayEngine(Engine):
    """Answers tasks from a log, to replay rounds. It has had every capability that they needed.

    Parameters
    ----------
    seed, dim, devices : int
        The run's seed, d and N.
    log : iterable of list of Update
        The replies to the tasks to come, in their order; an update's ``delta`` is rebuilt from its
        coefficients.

    Examples
    --------
    >>> from fedzo.core.tasks import Evaluate
    >>> engine = ReplayEngine(0, 2, 3, [[Update(1, np.empty(0), 1, 1, values=np.array([4.0]))]])
    >>> [update.values for update in engine.ask(Evaluate(np.zeros((1, 2))))]
    [array([4.])]
    """

    asynchronous = True

    def __init__(self, seed: int, dim: int, devices: int, log: Iterable[list[Update]] = ()) -> None:
        self.seed, self.dim, self.devices = seed, dim, devices
        self.dropped: list[DroppedDevice] = []
        self._log = iter(log)

    def ask(self, task: Task | Losses) -> Replies:
        """Return the next entry of the log."""
        assert isinstance(task, Task)
        return Replies((self._whole(task, update) for update in next(self._log)), task)

    def _whole(self, task: Task, update: Update) -> Update:
        if update.coefficients is None or not isinstance(task, LocalSteps):
            return update
        return update._replace(delta=task.rebuilt(update))


def recorded(tasks: Generator[Any, Any, T], log: list[list[Update]]) -> Generator[Any, Any, T]:
    """Pass the tasks of a round on, and add the replies to each of them to a log."""
    resume: Callable[[Any], Any] = tasks.send
    answer: Any = None
    while True:
        try:
            task = resume(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        log.append([])
        try:
            replies = yield task
        except BaseException as error:
            resume, answer = tasks.throw, error
        else:
            resume, answer = tasks.send, Replies(_noted(replies, log[-1]), task)


def _noted(replies: Iterable[Update], entry: list[Update]) -> Iterator[Update]:
    for update in replies:
        entry.append(update._replace(delta=np.empty(0)))
        yield update


def pack_updates(log: Sequence[Sequence[Update]]) -> list[list[list[Any]]]:
    """Return a log of replies as plain data: the numbers that a replay needs, exactly.

    >>> sent = [[Update(3, np.empty(0), 1.0, 4, np.array([[0.1, 0.2]], np.float32))]]
    >>> plain = pack_updates(sent)
    >>> [[again]] = unpack_updates(plain, (1, 2), np.dtype(np.float32))
    >>> plain, again.coefficients
    ([[[3, 1.0, 1, None, 'zczMPc3MTD4=', None]]], array([[0.1, 0.2]], dtype=float32))
    """
    return [
        [
            [u.device, u.weight, u.contributors, u.started, _text(u.coefficients), _text(u.values)]
            for u in updates
        ]
        for updates in log
    ]


def unpack_updates(
    plain: Sequence[Sequence[Sequence[Any]]], shape: tuple[int, int], dtype: np.dtype[Any]
) -> list[list[Update]]:
    """Return a log of replies from plain data."""
    return [
        [
            Update(
                int(device),
                np.empty(0),
                float(weight),
                0,
                None if own is None else _array(own, dtype).reshape(shape),
                None if values is None else _array(values, np.dtype(np.float64)),
                contributors=int(contributors),
                started=started,
            )
            for device, weight, contributors, started, own, values in updates
        ]
        for updates in plain
    ]


def _text(array: Array | None) -> str | None:
    if array is None:
        return None
    return b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def _array(text: str, dtype: np.dtype[Any]) -> Array:
    return np.frombuffer(b64decode(text), dtype.newbyteorder("<")).astype(dtype)


class _OneBlasThread:
    """Limits BLAS to one thread while an engine is open: the first limits, the last restores.

    The limit is one of the process. If each engine restored what it found, two that overlap would
    leave the limit of the first behind.
    """

    def __init__(self) -> None:
        self._lock, self._open, self._limit = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._open:
                blas = _libraries(len(sys.modules))
                self._limit.enter_context(blas.limit(limits=1, user_api="blas"))
            self._open += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._limit.close()


_ONE_BLAS_THREAD = _OneBlasThread()


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Find the BLAS libraries; that takes a millisecond, and new ones come with new modules."""
    return ThreadpoolController()
