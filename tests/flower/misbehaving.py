"""Nodes of a federation that a test can take away, keep silent, or let send anything."""

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message
from one_node import EVERYTHING

import fedzo
from driving import steps_of
from fedzo.core.engine import LocalEngine
from fedzo.flower import FlowerEngine, FlowerSettings, InProcessGrid, make_client_app, protocol
from fedzo.problems import Quadratic
from fedzo.runs import Job, RunOptions, run_job
from fedzo.runs.result import as_watchers

PROBLEM = Quadratic(dim=8, devices=6, gradient_noise=0.1, dissimilarity=0.3)
ALGORITHM = fedzo.FedZO(learning_rate=0.05, directions=4, local_steps=2, participants=4)
QUICK = FlowerSettings(grace=0.02, patience=0.2)


class Nodes(InProcessGrid):
    """Nodes that can be taken away, kept silent, and made to answer anything."""

    def __init__(self, problem=PROBLEM, nodes=3, secure=False):
        app = make_client_app(lambda context: problem)
        super().__init__(app, nodes, node_config=EVERYTHING, secure=secure)
        self.away, self.silent, self.asked = set(), set(), []
        self.spoil = lambda message, reply: reply

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node not in self.away]

    def answer(self, message):
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        self.asked.append((node, kind))
        if node in self.silent | self.away:
            return None
        return self.spoil(message, super().answer(message))


def run(
    grid,
    uplink=None,
    algorithm=ALGORITHM,
    settings=QUICK,
    callback=None,
    run_dir=None,
    resume=False,
    **options,
):
    uplink = uplink or fedzo.Ideal()
    engine = FlowerEngine(grid, 5, uplink, settings)
    options = {"rounds": 6, "evaluate_every": 3, **options}
    job = Job(
        algorithm=algorithm,
        uplink=uplink,
        options=RunOptions(seed=5, **options),
        tables={"run": {"evaluate_every": options["evaluate_every"]}},
        run_dir=run_dir,
        resume=resume,
        watchers=as_watchers(callback),
    )
    return run_job(job, engine, engine.initial())


def edit(change, devices=frozenset({3}), kind=protocol.TRAIN):
    """Return what spoils the answers of node 2, the home of devices 2 and 3."""

    def spoil(message, reply):
        if message.metadata.dst_node_id != 2 or message.metadata.message_type != kind:
            return reply
        return Message(change(reply.content) or reply.content, reply_to=message)

    return spoil


def of_device_3(change):
    """Return what changes the update of device 3 in an answer, and leaves its neighbour's."""

    def spoil(content):
        which = list(content["answer"]["devices"])
        deltas = content["arrays"]["deltas"].numpy()
        if 3 in which:
            content["arrays"] = ArrayRecord({"deltas": FlowerArray(change(deltas, which.index(3)))})

    return edit(spoil)


def put(value):
    def change(deltas, row):
        deltas = deltas.copy()
        deltas[row] = value
        return deltas

    return change


def plain(**changes):
    """Return what changes the plain values of an answer; a list, as many as there are devices."""

    def spoil(content):
        told = dict(content["answer"])
        count = len(told["devices"])
        new = {k: v[:count] if isinstance(v, list) else v for k, v in changes.items()}
        content["answer"] = ConfigRecord({**told, **new})

    return edit(spoil)


def introduced(node, **changes):
    """Return nodes of which one lies in its introduction."""
    grid = Nodes()

    def spoil(message, reply):
        if (message.metadata.dst_node_id, message.metadata.message_type) == (node, protocol.HELLO):
            reply.content["hello"] = ConfigRecord({**reply.content["hello"], **changes})
        return reply

    grid.spoil = spoil
    return grid


def expected(rounds, left_out):
    """Return the model of FedZO where these (round, device) have no say, computed by hand."""
    x, uplink = PROBLEM.initial(), fedzo.Ideal()
    with LocalEngine(PROBLEM, 5, workers=1) as engine:
        for t in range(rounds):
            work = steps_of(ALGORITHM, x, t, seed=5)
            devices = uplink.participants(t, 4, engine)
            deltas = [work.reply(PROBLEM, i).delta for i in devices if (t + 1, i) not in left_out]
            x = x + np.mean(deltas, axis=0) if deltas else x
    return x


def everyone_of(device, rounds=6):
    with LocalEngine(PROBLEM, 5, workers=1) as engine:
        there = [fedzo.Ideal().participants(t, 4, engine) for t in range(rounds)]
    return {(t + 1, device) for t in range(rounds) if device in there[t]}


def named(result):
    """Return who was left out of which round, and the reasons."""
    left = [one for record in result.history for one in record.get("dropped", ())]
    return {(one["round"], one["device"]) for one in left}, {one["reason"] for one in left}
