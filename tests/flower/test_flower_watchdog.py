"""A node that Flower's loop would leave connected but deaf replies with an error, and continues."""

import threading

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory

from fedzo.flower import watchdog


@pytest.fixture
def node(monkeypatch):
    """Return the state and the object store of a SuperNode that has received a message."""
    monkeypatch.setattr(watchdog, "PATIENCE", 0.5)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 7, 1
    stores = ObjectStoreFactory()
    state = NodeStateFactory(objectstore_factory=stores).state()
    state.set_node_id(7)
    return state, stores.store()


def message():
    made = Message(RecordDict(), 7, "query")
    made.metadata.__dict__.update(_message_id="asked", _run_id=1, _src_node_id=1)
    return made


def sending(sent):
    def send(message, tree, seconds):
        sent.append(message)
        return set(), "session"

    return send


def within(seconds, call):
    """Call a function on a thread: what hangs must not hang the test."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits for ever"


@pytest.mark.parametrize("error", [ValueError("FAB hash mismatch"), KeyError("no app")])
def test_message_that_cannot_be_fetched_is_answered_with_an_error(node, error):
    def pull(receive, **_):
        receive()
        raise error

    pull = watchdog.guarded_pull(pull, flower._insert_message)
    state, store = node
    assert pull(state=state, object_store=store, receive=lambda: (message(), None)) == 1
    sent = []
    push = watchdog.guarded_push(flower._push_messages, flower._insert_message)
    within(20, lambda: push(state=state, object_store=store, send=sending(sent), push_object=None))
    assert [reply.metadata.reply_to_message_id for reply in sent] == ["asked"]
    assert sent[0].has_error()
    assert "mismatch" not in sent[0].error.reason


@pytest.mark.parametrize("kind", [*TaskType, "flwr-to-come"])
def test_tasks_of_one_type_are_created(node, kind):
    """Whatever type the server declares its run to be; also types that Flower does not have yet."""

    def pull(state, receive, **_):
        receive()
        state.create_task(task_type=kind, run_id=1, fab_hash="0")
        return 1

    state, store = node
    pull = watchdog.guarded_pull(pull, flower._insert_message)
    pull(state=state, object_store=store, receive=lambda: (message(), None))
    created = [task.type for task in state.get_tasks()]
    if kind == TaskType.CLIENT_APP:
        assert created == ["flwr-clientapp"]
    else:
        assert created == []
        (reply,) = state.get_messages_legacy(is_reply=True)
        assert str(kind) in reply.error.reason


def test_lost_connection_ends_the_node(node):
    def pull(receive, **_):
        raise ConnectionError

    pull = watchdog.guarded_pull(pull, flower._insert_message)
    with pytest.raises(ConnectionError):
        pull(state=node[0], object_store=node[1], receive=lambda: None)


def test_client_process_that_ends_without_a_reply(node):
    state, store = node
    state.store_message(message())
    task = state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="0")
    sent = []
    push = watchdog.guarded_push(flower._push_messages, flower._insert_message)

    def end():
        state.finish_task(task, sub_status=SubStatus.FAILED, details="it could not be read")

    timer = threading.Timer(1.5, end)  # longer than the patience: a task at work is waited for
    timer.start()
    within(20, lambda: push(state=state, object_store=store, send=sending(sent), push_object=None))
    assert not timer.is_alive()
    assert [reply.has_error() for reply in sent] == [True]
    assert state.get_messages_legacy() == []


def test_half_a_reply_is_given_up(node):
    state, store = node
    reply = Message(RecordDict(), reply_to=message())
    reply.metadata.__dict__["_message_id"] = reply.object_id
    state.store_message(reply)
    store.preregister(1, flower.get_object_tree(reply))  # but its objects never come
    push = watchdog.guarded_push(flower._push_messages, flower._insert_message)

    def send(message, tree, seconds):
        return {tree.object_id}, "session"

    within(30, lambda: push(state=state, object_store=store, send=send, push_object=None))
    assert state.get_messages_legacy() == []


def test_replies_pass_unchanged(node):
    state, store = node
    flower._insert_message(Message(Error(3, "ours"), reply_to=message()), state, store)
    sent = []
    push = watchdog.guarded_push(flower._push_messages, flower._insert_message)
    within(20, lambda: push(state=state, object_store=store, send=sending(sent), push_object=None))
    assert [reply.error.reason for reply in sent] == ["ours"]


def test_process_that_ends_is_started_again(monkeypatch):
    third = threading.Event()

    class Process:
        """Stands for subprocess, and for its processes, of which the third does not end."""

        started = 0

        def Popen(self, command):  # noqa: N802 - as in subprocess
            self.started += 1
            return self

        def wait(self):
            if self.started == 3:
                third.set()
                threading.Event().wait()
            return 1

    monkeypatch.setattr(watchdog, "subprocess", Process())
    monkeypatch.setattr(watchdog.time, "sleep", lambda seconds: None)
    watchdog.keep_superexec(["flower-superexec"])
    assert third.wait(20)
