"""The node's side: a ClientApp that does the work for the devices that live there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedzo.algorithms import ALGORITHMS, Algorithm
from fedzo.core.federation import LocalFederation, Update, Work
from fedzo.core.objective import Objective, check_objective, name_of
from fedzo.errors import NoAnswer, UsageError, require
from fedzo.flower import wire
from fedzo.flower.app_config import problem_of

Array = NDArray[Any]

OPTIONAL = ("gradient", "metrics", "initial", "size")


def make_client_app(
    objective_factory: Callable[[Context], Objective] = problem_of,
    algorithms: Sequence[type[Algorithm]] = (),
) -> ClientApp:
    """Return the ClientApp of nodes that hold this problem.

    Parameters
    ----------
    objective_factory : callable
        Given Flower's context, returns the objective; by default that which the app's run
        configuration describes, see :mod:`fedzo.flower.app_config`. It is called for each
        message, so it should keep what is dear to make. The objective must be that of all N
        devices, but is only asked about those that live on this node: of the others it needs
        no data.
    algorithms : sequence of classes
        Algorithms of one's own that this node is willing to do the work of, besides fedzo's.

    Notes
    -----
    Which devices live on a node is in its configuration: ``devices="0-3,7"``, or Flower's
    own ``partition-id`` and ``num-partitions``, which deal the devices out evenly.

    Examples
    --------
    >>> from fedzo.flower import InProcessGrid, make_client_app
    >>> from fedzo.problems.function import FunctionObjective
    >>> objective = FunctionObjective(lambda x, device: float(x @ x), dim=2, devices=3)
    >>> grid = InProcessGrid(make_client_app(lambda context: objective), nodes=2)
    >>> len(grid.get_node_ids())
    2
    """
    allowed = "a function that is given Flower's context and returns an objective"
    require(callable(objective_factory), "objective_factory", objective_factory, allowed)
    known = {**ALGORITHMS, **{name_of(kind): kind for kind in algorithms}}
    app = ClientApp()

    def made(context: Context) -> Objective:
        return check_objective(objective_factory(context), "objective_factory returned")

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        objective = made(context)
        held = held_devices(context.node_config, objective.devices)
        return wire.reply(wire.hello(_introduction(objective, held)), message)

    @app.query("initial")
    def initial(message: Message, context: Context) -> Message:
        x = made(context).initial()
        return wire.reply(RecordDict({"arrays": wire.vector(x)}), message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        objective = made(context)
        work, devices, coefficients = wire.read_task(message.content, known)
        found = _work(work, objective, devices, context)
        return wire.reply(wire.answer(found, coefficients), message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        objective = made(context)
        x, devices, wanted = wire.read_model(message.content)
        with LocalFederation(objective, seed=0, workers=1):  # as fedzo evaluates elsewhere
            found, failures = _losses(objective, x, devices, context)
            metrics = objective.metrics(x) if wanted else {}
        return wire.reply(wire.losses(found, failures, metrics), message)

    return app


def held_devices(node_config: Mapping[str, Any], devices: int) -> list[int]:
    """Return which of N devices live on a node.

    >>> held_devices({"devices": "0-2,7"}, 10)
    [0, 1, 2, 7]
    >>> held_devices({"partition-id": 1, "num-partitions": 3}, 10)
    [4, 5, 6]
    """
    listed, part = node_config.get("devices"), node_config.get("partition-id")
    if listed is not None:
        pieces = [_range(piece) for piece in str(listed).split(",")]
        if any(piece.stop > devices for piece in pieces):
            raise UsageError(f"devices = {listed!r}: must be below {devices}, the problem's number")
        return sorted({i for piece in pieces for i in piece})
    parts = node_config.get("num-partitions")
    if not (isinstance(part, int) and isinstance(parts, int) and 0 <= part < parts):
        raise UsageError(
            'a node is told its devices by --node-config, devices="0-3,7" or partition-id=0 '
            "num-partitions=3"
        )
    return [int(i) for i in np.array_split(np.arange(devices), parts)[part]]


def _range(piece: str) -> range:
    first, dash, last = piece.strip().partition("-")
    try:
        found = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        found = range(0)
    if not found:
        raise UsageError(f"devices: {piece!r} is neither a number nor a range like 0-3")
    return found


def _introduction(objective: Objective, held: list[int]) -> wire.Hello:
    return wire.Hello(
        dim=objective.dim,
        devices=objective.devices,
        held=tuple(held),
        sizes=tuple(objective.size(i) for i in held),
        offers=tuple(name for name in OPTIONAL if objective.offers(name)),
        cost=objective.evaluation_cost if objective.offers("evaluation_cost") else 0,
    )


def _work(work: Work, objective: Objective, devices: list[int], context: Context) -> wire.Answer:
    """Do the work on this node's cores; a device that fails costs nobody but itself."""
    held = set(held_devices(context.node_config, objective.devices))

    def careful(objective: Objective, device: int) -> Update:
        try:
            _require_held(device, held)
            found: Update = work(objective, device)
        except Exception as error:
            raise NoAnswer(_reason(error)) from error
        return found

    with LocalFederation(objective, seed=0) as here:
        updates = tuple(here.map(careful, devices))
        return wire.Answer(
            work.round, updates, {absent.device: absent.reason for absent in here.left_out}
        )


def _losses(
    objective: Objective, x: Array, devices: list[int], context: Context
) -> tuple[dict[int, float], dict[int, str]]:
    held = set(held_devices(context.node_config, objective.devices))
    found, failures = {}, {}
    for device in devices:
        try:
            _require_held(device, held)
            found[device] = float(objective.losses(x, np.array([device]))[0])
        except Exception as error:
            failures[device] = _reason(error)
    return found, failures


def _require_held(device: int, held: set[int]) -> None:
    if device not in held:
        raise UsageError("this device does not live on this node")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
