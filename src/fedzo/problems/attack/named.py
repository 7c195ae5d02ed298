"""An attack from the names of a model and a data set: what a configuration asks for."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedzo.core.objective import described
from fedzo.data import load
from fedzo.data import partition as split_samples
from fedzo.errors import UsageError, require
from fedzo.problems.attack.inputs import columns_named, gets_right, other_of, victim_of
from fedzo.problems.attack.problem import Attack


@described
def attack(
    model: str = "cifar10-resnet8",
    data: str = "cifar10-deer-mini",
    data_dir: str | None = None,
    label: str | list[str] = "deer",
    devices: int = 10,
    partition: str = "sizes",
    c: float = 1.0,
    eps: float | None = None,
    norm: str = "inf",
    target: str | None = None,
    margin: str = "logits",
    max_queries: int | None = None,
    model_kind: str | None = None,
    model_options: dict[str, Any] | None = None,
    transfer_to: str | None = None,
    seed: int = 0,
) -> Attack:
    """Make the problem from the names of a model and a data set: the [problem] table.

    Of the data set's training images of one class, those that the model gets right are dealt
    to the devices, as in the paper; of its test images, likewise, are those held out. Finding
    out which they are is one query for each image, and counts. ``label`` may be a list of
    classes, or "all" but the ``target``: then each image has the label of its own class.

    ``model``, ``model_kind`` and ``model_options`` are what :func:`fedzo.models.load` takes, and so
    is ``transfer_to``, another model on which the perturbation is tried in the end.

    >>> attack(devices=5).devices
    5
    """
    victim = victim_of(model, model_kind, model_options or {}, max_queries)
    images = load(data, data_dir)
    aim = None if target is None else columns_named(target, images.classes, "target")[0]
    wanted = columns_named(label, images.classes, "label")
    if label == "all":
        wanted = [column for column in wanted if column != aim]
    require(aim not in wanted, "target", target, f"another class than label = {label!r}")
    of_it = [
        (inputs[mask], labels[mask])
        for inputs, labels in (
            (images.train_inputs, images.train_labels),
            (images.test_inputs, images.test_labels),
        )
        for mask in [np.isin(labels, wanted)]
    ]
    cost = sum(len(labels) for _, labels in of_it)
    allowed = f">= {cost:,}: a query for each image, to find those that the model gets right"
    require(
        victim.max_queries is None or victim.max_queries >= cost,
        "max_queries",
        victim.max_queries,
        allowed,
    )
    (train, labels), test = (gets_right(victim, *part) for part in of_it)
    if not len(train):
        raise UsageError(f"{model} gets no training image of the class {label!r} of {data} right")
    parts = split_samples(labels, devices, partition, seed)
    problem = Attack(
        victim,
        [train[part] for part in parts],
        [labels[part] for part in parts],
        held_out=test,
        c=c,
        eps=eps,
        norm=norm,
        target=aim,
        margin=margin,
        classes=images.classes,
        transfer_to=None if transfer_to is None else other_of(transfer_to),
    )
    problem.reserve_for_report()  # a configuration's run has a folder
    return problem
