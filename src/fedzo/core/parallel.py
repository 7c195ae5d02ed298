"""Call a user's function side by side: by threads, or by separate processes."""

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from fedzo.core.importing import REMOTE
from fedzo.core.machine import ENDING, cores
from fedzo.errors import UsageError, UserCodeError, described, is_number, require

_WORTH_A_THREAD = 2e-4  # seconds of a call
_GRACE = 10.0  # seconds that a process has to end by itself, such as to write a checkpoint


class Trial:
    """Whether work is quicker side by side on threads: timed both ways, and decided once.

    Parameters
    ----------
    workers : int
        The number of threads.
    least : float
        Items that take fewer seconds than this are not tried on threads.

    Attributes
    ----------
    pays : bool or None
        The decision; None as long as it is open.

    Examples
    --------
    >>> trial = Trial(workers=2, least=0.1)
    >>> for seconds, count in ((0.5, 1), (0.5, 1), (1.2, 4)):
    ...     trial.note(trial.beside, count, seconds)
    >>> trial.pays
    True
    """

    def __init__(self, workers: int, least: float) -> None:
        self.pays: bool | None = None if workers > 1 else False
        self._workers, self._least = workers, least
        self._alone: list[float] = []  # seconds per item
        self._both: list[float] = []

    @property
    def beside(self) -> bool:
        """Whether the next items should be side by side."""
        return len(self._alone) > 1 if self.pays is None else self.pays

    def note(self, beside: bool, count: int, seconds: float) -> None:
        """Note how long some items took, and decide once both ways are known."""
        if self.pays is not None:
            return
        (self._both if beside else self._alone).extend([seconds / count] * count)
        # The first item may have had to compile something.
        if len(self._alone) > 1 and min(self._alone) < self._least:
            self.pays = False
        elif len(self._both) >= 2 * self._workers:
            self.pays = sum(self._both) / len(self._both) < 0.9 * min(self._alone)


class Calls:
    """Calls of one function.

    Parameters
    ----------
    function : callable
        What is called.
    workers : int, optional
        The number of threads or processes; all cores by default.
    processes : bool
        Call it in processes. pickle must be able to send it, its arguments and its results.
        Otherwise calls on threads are compared with calls one after another, once, and the quicker
        way is kept.
    timeout : float, optional
        The longest duration of a call in seconds. A process that takes longer is ended, and the
        call raises TimeoutError.

    Examples
    --------
    >>> calls = Calls(pow, workers=2)
    >>> [future.result() for future in calls.begin([(2, 3), (3, 2)])]
    [8, 9]
    >>> calls.close()
    """

    def __init__(
        self,
        function: Callable[..., Any],
        workers: int | None = None,
        processes: bool = False,
        timeout: float | None = None,
    ) -> None:
        if timeout is not None:
            require(is_number(timeout) and timeout > 0, "timeout", timeout, "seconds > 0, or None")
            allowed = "omitted, or used with workers='processes': a thread cannot be ended"
            require(processes, "timeout", timeout, allowed)
        self.function, self.workers = function, workers or cores()
        self.processes, self.timeout = processes, timeout
        self._sent = _pickled(function) if processes else b""
        self._threads: ThreadPoolExecutor | None = None
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        self._running: set[_Process] = set()
        self.trial = Trial(1 if processes else self.workers, _WORTH_A_THREAD)

    def __call__(self, *task: Any) -> Any:
        """Call the function, in a process if there are any."""
        return self.begin([task])[0].result() if self.processes else self.function(*task)

    def worth(self, count: int) -> bool:
        """Return whether this many calls should be side by side."""
        return self.processes or (count > 1 and self.trial.beside)

    def begin(self, tasks: Sequence[tuple[Any, ...]]) -> list[Future[Any]]:
        """Begin calls, at most ``workers`` at a time, in order."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.workers, "fedzo-call")
            for _ in range(self.workers if self.processes else 0):
                self._idle.put(None)
        work = self._in_process if self.processes else self.function
        return [self._threads.submit(work, *task) for task in tasks]

    def close(self) -> None:
        """End the processes and threads; a later call starts new ones."""
        if self._threads is None:
            return
        self._threads.shutdown(wait=False, cancel_futures=True)  # no further call begins
        for process in list(self._running):
            process.terminate()
        for process in list(self._running):
            process.end()
        self._threads.shutdown()
        self._threads, self._idle = None, queue.SimpleQueue()

    def _in_process(self, *task: Any) -> Any:
        process = self._idle.get()
        try:
            if process is None or not process.alive:
                process = _Process(self._sent)
                self._running.add(process)
            return process.call(task, self.timeout)
        finally:
            if process is not None and not process.alive:
                self._running.discard(process)
            self._idle.put(process)

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes it again: results can be pickled, threads cannot."""
        keys = ("function", "workers", "processes", "timeout")
        return {key: vars(self)[key] for key in keys}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class ProcessEnded(UserCodeError):  # noqa: N818 - reads as the sentence it prints
    """A worker process has ended during a call."""


class _Process:
    """A process that calls a function, which it is sent once."""

    def __init__(self, sent: bytes) -> None:
        # Spawned, not forked: a fork would copy the locks of running threads.
        spawn = multiprocessing.get_context("spawn")
        self._pipe, other = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(other, sent), name="fedzo-call")
        self._process.start()
        other.close()
        self.alive = True
        self._ready = False

    def call(self, task: tuple[Any, ...], timeout: float | None) -> Any:
        try:
            if not self._ready:  # its start does not count
                self._receive(None)
                self._ready = True
            self._pipe.send(task)
            return self._receive(timeout)
        except (EOFError, BrokenPipeError, ConnectionError) as error:
            self.end()
            advice = "it crashed, or the script has no `if __name__ == '__main__':`"
            raise ProcessEnded(f"a worker process ended: {advice}") from error
        except TimeoutError:
            self.end()
            raise

    def _receive(self, timeout: float | None) -> Any:
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"the call took longer than {timeout:g} s")
        done, found = self._pipe.recv()
        if not done:
            raise found
        return found

    def terminate(self) -> None:
        """Ask the process to end."""
        self.alive = False
        self._process.terminate()

    def end(self) -> None:
        self.terminate()
        self._process.join(_GRACE)
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Any, sent: bytes) -> None:
    """Answer calls until the other end is closed."""
    for number in set(ENDING) - {signal.SIGTERM}:  # a terminal sends these to all its processes
        signal.signal(number, signal.SIG_IGN)  # the parent ends its own
    threading.Thread(target=_end_with_parent, daemon=True).start()
    function: Callable[..., Any] | None = None
    task: Any = None
    with suppress(EOFError, BrokenPipeError):
        while True:
            try:
                if function is None:
                    function, found = pickle.loads(sent), None
                else:
                    found = function(*task)
                answer: tuple[bool, Any] = True, found
            except BaseException as error:  # KeyboardInterrupt has the same effect as in a thread
                answer = False, _sendable(error)
            try:
                pipe.send(answer)
            except BrokenPipeError:
                raise
            except Exception as error:
                words = f"a value cannot be sent back from a process: {described(error)}"
                pipe.send((False, UserCodeError(words)))
            task = pipe.recv()


def _sendable(error: BaseException) -> BaseException:
    """Return an exception with its traceback as a note, or its description if pickle fails."""
    with suppress(BaseException):  # of its own methods
        error.add_note(REMOTE + traceback.format_exc())
        pickle.loads(pickle.dumps(error))
        return error
    return UserCodeError(f"the user's code raised {described(error)} (in a worker process)")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _pickled(function: Callable[..., Any]) -> bytes:
    try:
        return pickle.dumps(function)
    except Exception as error:  # of pickle, or of the methods of an object
        advice = "define it at the top of a module, or use threads"
        message = f"the function cannot be sent to processes ({error}): {advice}"
        raise UsageError(message, code="not-picklable") from error
