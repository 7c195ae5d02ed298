"""Keep a node able to hear: Flower's SuperNode can stay connected and answer nothing.

It also creates tasks of one type only, see :mod:`fedzo.flower.allowlist`.

Its main loop fetches a message, waits for the reply of a client process, and sends it. Three things
stop that loop for good, while other threads keep the node connected:

* an error while a message is fetched, such as an app whose content does not have its hash;
* a client process that ends without a reply, or with half of one;
* the end of ``flower-superexec``, the process that starts client processes.

:func:`watch` replaces the steps of that loop. In the first two cases the server receives an error,
and the node continues with the next message. In the third one the process is started again. Any
other error ends the node, and systemd starts it again.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode as FlowerCode

from fedzo.errors import UsageError
from fedzo.flower.errors import log
from fedzo.flower.sync import flower_home

CLIENT = "flwr-clientapp"  # the only type of task that a node does, and its command
_UNANSWERED = "this node could not fetch or answer the message"
ALIVE = "fedzo-alive"  # a file whose time is that of the last contact with the server
PATIENCE = 30.0  # seconds for a reply whose client process has ended, or for the rest of one
_UNFINISHED = ("pending", "starting", "running")  # tasks


def watch() -> None:
    """Replace the steps of the SuperNode's loop in this process."""
    from flwr.supernode import start_client_internal as flower

    module: Any = flower
    pull, push = module._pull_and_store_message, module._push_messages
    module._pull_and_store_message = guarded_pull(pull, module._insert_message)
    module._push_messages = guarded_push(push, module._insert_message)
    module.subprocess = SimpleNamespace(Popen=keep_superexec)


def guarded_pull(pull: Callable[..., Any], insert: Callable[..., None]) -> Callable[..., Any]:
    """Return Flower's step that fetches a message; an error then is a reply to the server."""

    def guarded(*, state: Any, object_store: Any, receive: Callable[[], Any], **others: Any) -> Any:
        received: list[Message] = []

        def receive_one() -> Any:
            found = receive()
            _contact()
            received.extend([] if found is None else [found[0]])
            return found

        try:
            one_type, stores = _OneTaskType(state), {"object_store": object_store}
            return pull(state=one_type, receive=receive_one, **stores, **others)
        except Exception as error:
            if not received:  # the connection is lost
                raise
            log.error("a message could not be fetched: %s: %s", type(error).__name__, error)
            text = str(error) if isinstance(error, UsageError) else _UNANSWERED
            return _reply_error(received[0], state, object_store, insert, text)

    return guarded


def guarded_push(push: Callable[..., Any], insert: Callable[..., None]) -> Callable[..., Any]:
    """Return Flower's step that waits for a reply and sends it, without waits that never end."""

    def guarded(*, state: Any, object_store: Any, **others: Any) -> None:
        idle_since = None
        while not any(m.metadata.reply_to_message_id for m in _waiting(state)):
            now = time.monotonic()
            _contact()
            if state.get_tasks(statuses=_UNFINISHED):
                idle_since = None  # Flower itself ends a task whose process stops its heartbeat
            elif idle_since is None:
                idle_since = now
            elif now - idle_since > PATIENCE:
                log.error("the client process ended without a reply")
                for entry in list(state.msg_store.values()):
                    _reply_error(entry.message, state, object_store, insert)
                break
            time.sleep(0.5)
        if _waiting(state):
            push(state=state, object_store=_Complete(object_store), **others)

    return guarded


def _contact() -> None:
    """Note that the node works: the time of a file in Flower's folder."""
    flower_home().mkdir(parents=True, exist_ok=True)
    (flower_home() / ALIVE).touch()


def _waiting(state: Any) -> list[Message]:
    """Return the messages that Flower has not taken out of its store."""
    return [one.message for one in list(state.msg_store.values()) if not one.is_retrieved]


def _reply_error(
    message: Message, state: Any, store: Any, insert: Callable[..., None], text: str = _UNANSWERED
) -> int:
    """Put an error in place of a reply; return the run, as Flower's step does."""
    error = Error(FlowerCode.CLIENT_APP_RAISED_EXCEPTION, text)
    insert(Message(error, reply_to=message), state, store)
    return message.metadata.run_id


class _OneTaskType:
    """A node's state that creates tasks of one type, whatever types Flower has or will have."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def create_task(self, *, task_type: Any, **others: Any) -> Any:
        if task_type != CLIENT:
            text = f"this node runs {CLIENT} tasks only, not {task_type}"
            raise UsageError(text, code="task-type")
        return self._state.create_task(task_type=task_type, **others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


class _Complete:
    """An object store whose objects arrive in time, or the reply fails."""

    def __init__(self, store: Any) -> None:
        self._store, self._asked = store, dict[str, float]()

    def get(self, object_id: str) -> Any:
        found = self._store.get(object_id)
        if found == b"" and time.monotonic() - self._since(object_id) > PATIENCE:
            raise TimeoutError("the client process sent half of a reply")
        return found

    def _since(self, object_id: str) -> float:
        return self._asked.setdefault(object_id, time.monotonic())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def keep_superexec(words: list[str]) -> threading.Thread:
    """Run fedzo's SuperExec in place of Flower's, and again whenever it ends."""
    code = "from fedzo.flower.allowlist import superexec; superexec()"
    command = [sys.executable, "-P", "-c", code, *words[1:]]

    def keep() -> None:
        while True:
            started = time.monotonic()
            code = subprocess.Popen(command).wait()
            log.error("SuperExec has ended with code %d: it is started again", code)
            time.sleep(max(0.0, 5.0 - (time.monotonic() - started)))

    thread = threading.Thread(target=keep, name="fedzo-superexec", daemon=True)
    thread.start()
    return thread
