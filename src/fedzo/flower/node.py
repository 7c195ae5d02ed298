"""A node's own configuration: what it computes, how much, and for which devices.

It comes from ``--node-config`` and from a TOML file on the node, which ``node-file`` names there.
Nothing of it comes from a run: a run chooses a problem by its name among those that the node
allows, and cannot have anything imported or opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedzo.core.files import read_toml
from fedzo.core.objective import Objective, check_objective, is_plain
from fedzo.errors import UsageError, nearest, require
from fedzo.flower.fingerprint import fingerprint
from fedzo.flower.kept import Shelf
from fedzo.flower.ledger import Ledger
from fedzo.flower.limits import Limits
from fedzo.flower.privacy import Privacy
from fedzo.flower.reasons import Reason, Refused
from fedzo.runs.registry import make, maker

Problems = Mapping[str, Mapping[str, Any]]
_TABLES = ("limits", "privacy", "problem", "problems")
_PLAIN = ("devices", "ledger", "models", "apps", "partition-id", "num-partitions", "node-file")


@dataclass(frozen=True)
class Node:
    """A node's own configuration, checked.

    Attributes
    ----------
    limits : Limits
        How much it lets itself be asked.
    ledger : Ledger
        Where it keeps what it has spent: beside Flower's own files, if nothing else is said.
    shelf : Shelf
        Where it keeps the models of runs that it follows: beside Flower's own files, if ``models``
        names no other folder.
    privacy : Privacy, optional
        How much noise is added to what it answers, and when it answers no more.
    problems : mapping
        The problems that it allows, by name, with their settings; none: those of the app's code.
    own : mapping
        Settings of the problem that are this node's alone, such as where its data are.
    apps : tuple of str
        The apps that it runs, by the SHA-256 of their archives: see :mod:`fedzo.flower.pinned`.
    config : mapping
        The rest: ``devices``, or ``partition-id`` and ``num-partitions``.
    """

    limits: Limits
    ledger: Ledger
    shelf: Shelf
    privacy: Privacy | None = None
    problems: Problems = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    apps: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, node_config: Mapping[str, Any]) -> Node:
        """Return what ``--node-config`` says, and the file that it names.

        >>> node = Node.read({"devices": "0-3", "limits.local-steps": 10, "problem.data-dir": "x"})
        >>> node.limits.local_steps, dict(node.own), dict(node.config)
        (10, {'data_dir': 'x'}, {'devices': '0-3'})
        >>> Node.read({"limits.steps": 10})
        Traceback (most recent call last):
        fedzo.errors.UsageError: limits.steps = 10: unknown key (did you mean 'local_steps'?); ...
        """
        tables: dict[str, Any] = {}
        if (file := node_config.get("node-file")) is not None:
            tables = read_toml(Path(str(file)))
        for key, value in node_config.items():
            table, dot, name = key.partition(".")
            if dot:
                tables[table] = {**tables.get(table, {}), name.replace("-", "_"): value}
            else:
                tables[key] = value
        _check_keys(tables)
        limits, _ = make("limits", Limits, tables.get("limits", {}))
        private = make("privacy", Privacy, tables["privacy"])[0] if "privacy" in tables else None
        return cls(
            limits=limits,
            privacy=private,
            ledger=Ledger(str(tables.get("ledger") or _home() / "fedzo-ledger.sqlite")),
            problems=tables.get("problems", {}),
            own=tables.get("problem", {}),
            shelf=Shelf(Path(tables.get("models") or _home() / "fedzo-models"), _owner(tables)),
            apps=_apps(tables.get("apps", [])),
            config={k: tables[k] for k in _PLAIN if k in tables},
        )

    def problem(self, allowed: Problems, run_config: Mapping[str, Any]) -> Objective:
        """Return the problem that a run names, made with this node's settings.

        ``allowed`` are those of the app's code; where the node has some of its own, only those.
        """
        problems = self.problems or allowed
        name = _chosen(problems, run_config)
        return _made(name, json.dumps({**problems[name], **self.own}))


def _check_keys(tables: Mapping[str, Any]) -> None:
    known = (*_TABLES, *_PLAIN)
    for key, value in tables.items():
        if key in _TABLES:
            require(isinstance(value, dict), key, value, f"a table, [{key}]")
        elif key not in known and nearest(key, known):  # else it is for the app's own code
            raise UsageError(f"{key} = {value!r}: unknown key{nearest(key, known)}")
    for name, settings in tables.get("problems", {}).items():
        require(isinstance(settings, dict), f"problems.{name}", settings, "a table of settings")


def _apps(listed: Any) -> tuple[str, ...]:
    """Return the apps that a node lists; a typing error must not look like an empty list."""
    allowed = "a list of SHA-256 sums, 64 hexadecimal digits each"
    require(isinstance(listed, list), "apps", listed, allowed)
    for one in listed:
        whole = isinstance(one, str) and re.fullmatch(r"[0-9a-f]{64}", one) is not None
        require(whole, "apps", one, allowed)
    return tuple(listed)


def _owner(tables: Mapping[str, Any]) -> str:
    """Return a name for the node, the same after a restart: nodes may share a folder."""
    return fingerprint({key: tables.get(key) for key in ("devices", "partition-id")})


def _home() -> Path:
    from flwr.supercore.utils import get_flwr_home

    return Path(get_flwr_home())


def _chosen(problems: Problems, run_config: Mapping[str, Any]) -> str:
    """Return which of the problems a run names: by ``problem.name``, or there is only one."""
    wanted = run_config.get("problem.name") or run_config.get("config")
    if wanted in problems:
        return str(wanted)
    if len(problems) == 1 and not run_config.get("problem.name"):
        return next(iter(problems))
    text = f"problem.name = {wanted!r}: this node allows {', '.join(problems) or 'none'}"
    raise Refused(Reason.UNKNOWN_PROBLEM, text)


def check_settings(objective: Objective, said: Mapping[str, Any], own: Collection[str]) -> None:
    """Refuse a run that says otherwise of the problem than this node: it would be another run."""
    made = objective.factory_kwargs
    for key in (said.keys() & made.keys()) - set(own):
        if is_plain(made[key]) and said[key] != made[key]:
            text = f"problem.{key} = {said[key]!r}, and here it is {made[key]!r}"
            raise Refused(Reason.OTHER_SETTINGS, text)


@lru_cache(maxsize=4)
def _made(name: str, settings: str) -> Objective:
    made, _ = make("problem", maker("problem", name), json.loads(settings))
    return check_objective(made, f"problem {name!r}: made")
