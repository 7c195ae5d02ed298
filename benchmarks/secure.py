"""What secure sums cost: bytes per node and round, and time of the protocol.

    python benchmarks/secure.py

The messages are those of real nodes, serialised, in one process. One round of local steps with
H = 2, b2 = 4 and one device per node; with and without ``secure``.
"""

import logging
import time

import numpy as np

import fedzo
from fedzo.core.tasks import LocalSteps
from fedzo.flower import FlowerEngine, InProcessGrid, make_client_app, protocol
from fedzo.flower.secure import Member, SumServer
from fedzo.problems import Quadratic

ALGORITHM = fedzo.FedZO(learning_rate=1e-6, directions=4, local_steps=2, shared_directions=True)


def payload(messages):
    """Return the bytes of the values in messages, without names and Flower's own."""
    size = {bytes: len, str: len, float: lambda v: 8, int: lambda v: 8, bool: lambda v: 1}
    records = (r for m in messages for r in m.content.config_records.values())
    values = (v for record in records for v in record.values())
    items = (i for v in values for i in (v if isinstance(v, list) else [v]))
    return sum(size[type(item)](item) for item in items)


def sizes(dim, nodes, secure):
    """Return payload, message and transport bytes per node of one round."""
    problem = Quadratic(dim=dim, devices=nodes)
    grid = InProcessGrid(make_client_app(lambda context: problem), nodes, secure=secure)
    engine = FlowerEngine(grid, 0, fedzo.Seeds(secure=secure))
    task = LocalSteps(ALGORITHM, engine.initial(), 1e-6, devices=range(nodes))
    list(engine.ask(task))
    sent, received = engine.nodes.sent, engine.nodes.received
    found = protocol.traffic(sent, received)
    arrays = 8 * dim  # the model, which both runs send here
    message = found["message_up_bytes"] + found["message_down_bytes"]
    transport = found["transport_up_bytes"] + found["transport_down_bytes"]
    each = payload([*sent, *received]) / nodes
    return each, message / nodes - arrays, transport / nodes - arrays


def seconds(nodes, lost, size=101):
    """Return the time of one sum per node, and on the server, with some dropouts."""
    keys = [bytes([i % 250 + 1, i // 250]) * 16 for i in range(nodes)]
    known = [Member(key).key for key in keys]
    members = {m.name: m for m in (Member(key, known) for key in keys)}
    server, began = SumServer(sorted(members)), time.process_time()
    states = {}
    for name in server.names:
        states[name], server.shares[name] = members[name].begin("1", 1, server.members)
    masked = {}
    for name in server.names[lost:]:
        numbers = np.ones(size, np.int64)
        states[name], masked[name] = members[name].mask(
            states[name], *server.inbox(name), numbers, b""
        )
    bits = server.bits(masked)
    shown = {name: members[name].reveal(states[name], bits)[1] for name in masked}
    on_nodes, began = (time.process_time() - began) / nodes, time.process_time()
    assert (server.total(masked, shown) == nodes - lost).all()
    return on_nodes, time.process_time() - began


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("| nodes | d | more payload | more in messages | more with transport |")
    print("| --- | --- | --- | --- | --- |")
    for nodes in (3, 5, 10, 14, 30, 60):
        for dim in (10, 100_000):
            plain, masked = (np.array(sizes(dim, nodes, secure)) for secure in (False, True))
            row = " | ".join(f"{n:,.0f}" for n in masked - plain)
            print(f"| {nodes} | {dim:,} | {row} |")
    print()
    print("| nodes | dropouts | node, ms | server, ms |")
    print("| --- | --- | --- | --- |")
    for nodes in (3, 10, 14):  # a larger sum has groups of at most 14
        for lost in (0, 3 * nodes // 10):
            on_node, on_server = seconds(nodes, lost)
            print(f"| {nodes} | {lost} | {1e3 * on_node:.1f} | {1e3 * on_server:.1f} |")
