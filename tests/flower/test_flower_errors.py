"""A node sends error codes from a fixed list, and no text of an exception."""

import logging

import numpy as np
import pytest
from flwr.app import Message
from one_node import ask, node, refusal

import fedzo
from driving import steps_of
from fedzo.core.tasks import Losses
from fedzo.flower import FlowerEngine, FlowerSettings, protocol
from fedzo.flower.errors import ErrorCode, explain
from fedzo.problems import FunctionObjective

QUICK = FlowerSettings(grace=0.02, patience=0.1)
SECRET = "database of ward 7 patient SMITH is offline"


@pytest.mark.parametrize(
    "kind", [protocol.TRAIN, protocol.EVALUATE, protocol.HELLO, protocol.INITIAL]
)
@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_text_of_an_exception_stays_here(kind, error, caplog):
    def fails(x, device):
        raise error(SECRET)

    def cannot_begin(context):
        raise error(SECRET)

    objective = FunctionObjective(fails, 8, devices=6)
    grid = node(objective if kind in (protocol.TRAIN, protocol.EVALUATE) else cannot_begin)
    if kind in (protocol.TRAIN, protocol.EVALUATE):
        content = ask(grid, kind=kind)
        told = protocol.read_answer(content, asked=1).failures[0]
    else:
        (reply,) = grid.send_and_receive([Message(protocol.greeting({}), 1, kind)])
        assert not reply.has_error()
        content, told = reply.content, protocol.read_refusal(reply.content)
    assert "SMITH" not in str(content)
    code, reference = told.split()
    assert code in ("raised", "cannot-begin")
    said = [record.getMessage() for record in caplog.records]
    assert any(reference in one and SECRET in one for one in said)  # the node's own log


@pytest.mark.parametrize("kind", ["query", "query.secret", "train.other", "evaluate.x"])
def test_message_of_another_type_gets_a_code(kind):
    """Flower's own answer would be the text of its exception."""
    work = protocol.pack(steps_of(fedzo.FedZO(), np.zeros(8), round=0, seed=0))
    (reply,) = node().send_and_receive([Message(protocol.task(work, [0], False), 1, kind)])
    assert not reply.has_error()
    assert refusal(reply.content) == "malformed"


def test_every_code_has_words():
    for code in ErrorCode:
        words = code.words.replace("{algorithm}", "fedavg")
        assert explain(f"{code.value} 01234567", "fedavg") == (words, "01234567")


def test_history_has_the_words_of_a_code_and_the_log_its_reference(caplog):
    def fails(x, device):
        if device == 3:
            raise OSError(SECRET)
        return float(x @ x)

    objective = FunctionObjective(fails, 8, devices=6)
    engine = FlowerEngine(node(objective, nodes=3), 0, fedzo.Ideal(), QUICK)
    with caplog.at_level(logging.WARNING, "flwr"):
        engine.ask(Losses(np.ones(8)))
    assert engine.dropped == [(3, ErrorCode.RAISED.words)]
    at_once = [r.getMessage() for r in caplog.records if "device 3" in r.getMessage()]
    assert len(at_once) == 1
    assert ErrorCode.RAISED.words in at_once[0]
    assert "SMITH" not in at_once[0]
