"""The ledger of a node: the queries and the privacy budget that it has spent, on its own disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fedzo.flower.errors import ErrorCode, Rejected
from fedzo.flower.privacy import Privacy


class QueryTotals(NamedTuple):
    """Numbers of queries: of a run, of today (UTC) and of all runs."""

    run: int
    day: int
    total: int


@dataclass(frozen=True)
class Ledger:
    """The queries and the privacy budget that a node has spent, on its own disk.

    It is an SQLite database: transactions are atomic, locked, and survive a kill. Queries are
    charged **before** they are evaluated, by their largest possible number, and the difference is
    returned afterwards. So a node that is killed has never evaluated more than its ledger says.

    Parameters
    ----------
    path : str
        A file, created if it does not exist, or an SQLite URI.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> ledger = Ledger(mkdtemp() + "/ledger.sqlite")
    >>> ledger.reserve("run 1", 80, QueryTotals(100, 1000, 1000))
    >>> ledger.settle("run 1", -30)
    >>> ledger.spent("run 1")
    QueryTotals(run=50, day=50, total=50)
    >>> ledger.reserve("run 1", 51, QueryTotals(100, 1000, 1000))
    Traceback (most recent call last):
    fedzo.flower.errors.Rejected: 51 more queries would be 101, the limit per run is 100
    """

    path: str

    def reserve(self, run: str, queries: int, limits: QueryTotals) -> None:
        """Charge queries, or reject them and charge nothing."""
        with self._open() as database:
            spent = _spent(database, run)
            names = ("per run", "per day", "in total")
            for name, before, limit in zip(names, spent, limits, strict=True):
                if before + queries > limit:
                    text = f"{queries} more queries would be {before + queries}, "
                    raise Rejected(ErrorCode.QUERIES, text + f"the limit {name} is {limit}")
            _add(database, run, queries)

    def settle(self, run: str, queries: int) -> None:
        """Charge queries beyond the reserved number; return the difference if negative."""
        with self._open() as database:
            _add(database, run, queries)

    def spent(self, run: str) -> QueryTotals:
        """Return the queries of a run, of today and of all runs."""
        with self._open() as database:
            return _spent(database, run)

    def reserve_answers(self, answers: Mapping[int, int], privacy: Privacy) -> None:
        """Charge the private releases of each device, or reject them and charge nothing.

        The ledger stores the sum of 1/z^2 over all releases, so that a node may change its noise.
        """
        with self._open() as database:
            for device, count in answers.items():
                database.execute(
                    "insert into privacy values (?, ?) on conflict (device) do update"
                    " set spent = spent + excluded.spent",
                    (device, count / privacy.noise**2),
                )
                privacy.check(_privacy_spent(database, device))

    def epsilon(self, device: int, privacy: Privacy) -> float:
        """Return the ε of all releases about a device so far."""
        with self._open() as database:
            return privacy.epsilon_of(_privacy_spent(database, device))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Lock the ledger for one transaction; raise if it cannot be read or written."""
        try:
            uri = self.path.startswith("file:")
            if not uri:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            opened = sqlite3.connect(self.path, timeout=60, isolation_level=None, uri=uri)
            with closing(opened) as database:
                database.execute("begin immediate")
                try:
                    database.execute(
                        "create table if not exists spent (run text, day text,"
                        " queries integer not null, primary key (run, day))"
                    )
                    database.execute(
                        "create table if not exists privacy"
                        " (device integer primary key, spent real not null)"
                    )
                    yield database
                except BaseException:
                    database.execute("rollback")
                    raise
                database.execute("commit")
        except (sqlite3.Error, OSError) as error:
            raise Rejected(ErrorCode.LEDGER, f"{self.path}: {error}") from error


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _spent(database: sqlite3.Connection, run: str) -> QueryTotals:
    row = database.execute(
        "select coalesce(sum(case when run = ? then queries end), 0),"
        " coalesce(sum(case when day >= ? then queries end), 0), coalesce(sum(queries), 0)"
        " from spent",  # later days count as today: the clock may have been set back
        (run, _today()),
    ).fetchone()
    return QueryTotals(*row)


def _add(database: sqlite3.Connection, run: str, queries: int) -> None:
    database.execute(
        "insert into spent values (?, ?, ?) on conflict (run, day) do update"
        " set queries = queries + excluded.queries",
        (run, _today(), queries),
    )


def _privacy_spent(database: sqlite3.Connection, device: int) -> float:
    row = database.execute("select spent from privacy where device = ?", (device,)).fetchone()
    return float(row[0]) if row else 0.0
