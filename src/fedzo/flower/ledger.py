"""What a node has spent, on its own disk: every message is another process, and may be killed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fedzo.flower.privacy import Privacy
from fedzo.flower.reasons import Reason, Refused

_TABLES = (
    "create table if not exists spent"
    " (run text, day text, queries integer not null, primary key (run, day))",
    "create table if not exists privacy (device integer primary key, spent real not null)",
)


class Spent(NamedTuple):
    """How many queries were asked: in a run, today and in all."""

    run: int
    day: int
    total: int


@dataclass(frozen=True)
class Ledger:
    """A small SQLite database: a transaction is atomic and locked, and survives a kill -9.

    Queries are charged **before** they are asked, by what they may come to at most, and what was
    not needed is given back afterwards. So a node that is killed in between has asked no more
    than its ledger says.

    Parameters
    ----------
    path : str
        A file, made where it is not there; or one of SQLite's URIs.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> ledger = Ledger(mkdtemp() + "/ledger.sqlite")
    >>> ledger.reserve("run 1", 80, Spent(100, 1000, 1000))
    >>> ledger.settle("run 1", -30)
    >>> ledger.spent("run 1")
    Spent(run=50, day=50, total=50)
    >>> ledger.reserve("run 1", 51, Spent(100, 1000, 1000))
    Traceback (most recent call last):
    fedzo.flower.reasons.Refused: 51 queries more would be 101 of 100 of this run
    """

    path: str

    def reserve(self, run: str, queries: int, limits: Spent) -> None:
        """Charge so many queries, or refuse: then nothing is charged."""
        with self._open() as database:
            spent = _spent(database, run)
            for name, so_far, limit in zip(
                ("of this run", "of today", "in all"), spent, limits, strict=True
            ):
                if so_far + queries > limit:
                    text = f"{queries} queries more would be {so_far + queries} of {limit} {name}"
                    raise Refused(Reason.QUERIES, text)
            _add(database, run, queries)

    def settle(self, run: str, queries: int) -> None:
        """Charge what was asked beyond what was reserved; a negative number is given back."""
        with self._open() as database:
            _add(database, run, queries)

    def spent(self, run: str) -> Spent:
        """Return what was spent in a run, today and in all."""
        with self._open() as database:
            return _spent(database, run)

    def reserve_answers(self, answers: Mapping[int, int], privacy: Privacy) -> None:
        """Count so many private answers of each device, or refuse: then none is counted.

        What is kept is the sum of 1/z^2 over all answers, so that a node may change its noise.
        """
        with self._open() as database:
            for device, count in answers.items():
                cost = count / privacy.noise**2
                database.execute(
                    "insert into privacy values (?, ?) on conflict (device) do update"
                    " set spent = spent + excluded.spent",
                    (device, cost),
                )
                (spent,) = database.execute(
                    "select spent from privacy where device = ?", (device,)
                ).fetchone()
                privacy.check(spent)

    def epsilon(self, device: int, privacy: Privacy) -> float:
        """Return the ε that all answers about a device have come to so far."""
        with self._open() as database:
            row = database.execute(
                "select spent from privacy where device = ?", (device,)
            ).fetchone()
        return privacy.epsilon_of(row[0] if row else 0.0)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Hold the ledger for one transaction; no answer without a ledger."""
        try:
            uri = self.path.startswith("file:")
            if not uri:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            opened = sqlite3.connect(self.path, timeout=60, isolation_level=None, uri=uri)
            with closing(opened) as database:
                database.execute("begin immediate")
                try:
                    for table in _TABLES:
                        database.execute(table)
                    yield database
                except BaseException:
                    database.execute("rollback")
                    raise
                database.execute("commit")
        except (sqlite3.Error, OSError) as error:
            raise Refused(Reason.LEDGER, f"{self.path}: {error}") from error


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _spent(database: sqlite3.Connection, run: str) -> Spent:
    row = database.execute(
        "select coalesce(sum(case when run = ? then queries end), 0),"
        " coalesce(sum(case when day >= ? then queries end), 0), coalesce(sum(queries), 0)"
        " from spent",  # a day to come is today: a clock may have been put back
        (run, _today()),
    ).fetchone()
    return Spent(*row)


def _add(database: sqlite3.Connection, run: str, queries: int) -> None:
    database.execute(
        "insert into spent values (?, ?, ?) on conflict (run, day) do update"
        " set queries = queries + excluded.queries",
        (run, _today(), queries),
    )
