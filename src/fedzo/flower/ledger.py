"""The ledger of a node: the queries and the privacy budget that it has spent, on its own disk.

``fedzo node init`` creates it, once. A node never creates its ledger itself: a file that was lost
would give a second budget. Privacy is charged to records by a digest of their contents, so it does
not matter which number a device has or how records are split among devices.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

from fedzo.errors import UsageError
from fedzo.flower.errors import ErrorCode, Rejected
from fedzo.flower.privacy import Charge, Event, Paid, Privacy
from fedzo.flower.secure import Attempt, Member

VERSION = 3
_TABLES = """
    create table spent (run text, day text, queries integer not null, primary key (run, day));
    create table node (secret blob not null);
    create table sets (number integer primary key, fingerprint blob unique not null);
    create table members (record blob, number integer, primary key (record, number)) without rowid;
    create index members_by_number on members (number);
    create table events (number integer, sampling text, noise real, rate real,
        count integer not null, primary key (number, sampling, noise, rate));
    create table activity (one integer primary key, run text, round integer, time text);
    create table attempts (run text, number integer, members blob, seed blob, task blob,
        present blob, inbox blob, survivors blob, primary key (run, number));
"""


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

    The file also has the node's secret, from which private batches are drawn. So only its owner may
    read it.

    Parameters
    ----------
    path : str
        A file that :meth:`create` made, or an SQLite URI.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> ledger = Ledger(mkdtemp() + "/ledger.sqlite")
    >>> ledger.create()
    True
    >>> ledger.reserve("run 1", 80, QueryTotals(100, 1000, 1000))
    >>> ledger.settle("run 1", -30)
    >>> ledger.spent("run 1")
    QueryTotals(run=50, day=50, total=50)
    >>> ledger.reserve("run 1", 51, QueryTotals(100, 1000, 1000))
    Traceback (most recent call last):
    fedzo.flower.errors.Rejected: 51 more queries would be 101, the limit per run is 100
    """

    path: str

    def create(self) -> bool:
        """Create the ledger with a new secret; return False if there is one already."""
        if self.path.startswith("file:"):
            with closing(sqlite3.connect(self.path, uri=True)) as database:
                _make_tables(database)
            return True
        path = Path(self.path)
        if path.exists():
            self.spent("")  # or it cannot be read
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file, made = mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
            os.close(file)
            try:
                with closing(sqlite3.connect(made)) as database:
                    _make_tables(database)
                os.link(made, path)  # whole, or not at all; never over another one
            finally:
                os.unlink(made)
        except FileExistsError:
            return False
        except OSError as error:
            raise UsageError(f"ledger = {self.path!r}: {error}", code="ledger") from error
        return True

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

    def note(self, run: str, round: int) -> None:
        """Note the last round that the node has replied to, for :meth:`report`."""
        with self._open() as database:
            now = datetime.now(UTC).isoformat(" ", "seconds")
            database.execute(
                "insert or replace into activity values (1, ?, ?, ?)", (run, round, now)
            )

    def report(
        self, privacy: Privacy | None
    ) -> tuple[QueryTotals, tuple[str, int, str] | None, float]:
        """Return the totals, the last run, round and time, and the largest ε of any record."""
        with self._open() as database:
            last = database.execute("select run, round, time from activity").fetchone()
            numbers = database.execute("select number from sets").fetchall()
            every = [one for (n,) in numbers for one in _events_of_records(database, n)]
            epsilons = [0.0 if privacy is None else privacy.epsilon_of(one) for one in every]
            return _spent(database, last[0] if last else ""), last, max(epsilons, default=0.0)

    def charge(self, charges: Mapping[int, Charge], privacy: Privacy) -> Paid:
        """Charge the private releases of each device, or reject them and charge nothing."""
        with self._open() as database:
            (first,) = database.execute("select coalesce(sum(count), 0) from events").fetchone()
            (secret,) = database.execute("select secret from node").fetchone()
            numbers = []
            for charge in charges.values():
                numbers.append(_number(database, charge.records))
                database.execute(
                    "insert into events values (?, ?, ?, ?, ?) on conflict do update"
                    " set count = count + excluded.count",
                    (numbers[-1], charge.sampling, *charge.event, charge.times),
                )
            for number in dict.fromkeys(numbers):
                for events in _events_of_records(database, number):
                    privacy.check(events)
            return Paid(charges, secret, first)

    def member(
        self, peers: Sequence[bytes] = (), min_peers: int = 2, context: bytes = b""
    ) -> Member:
        """Return the node as a member of secure sums. Its key is derived from the secret here.

        So the key is lost together with the list of attempts: no mask can be used twice.
        """
        with self._open() as database:
            (secret,) = database.execute("select secret from node").fetchone()
        own = hmac.digest(secret, b"secure sums", "sha256")
        return Member(own, peers, min_peers, context)

    @contextmanager
    def attempt(self, run: str, number: int, new: Attempt | None = None) -> Iterator[list[Attempt]]:
        """Yield a list with the state of an attempt; store the state that is appended to it.

        A ``new`` attempt must have a number above all earlier ones of its run. It ends them: their
        secrets are deleted, so a ledger that is stolen later opens no old sum. Of one task in a
        run, a second attempt is revealed only for the same survivors and devices: the difference of
        two sums over others would be a node's or a device's own numbers.
        """
        with self._open() as database:
            latest = "select * from attempts where run = ? order by number desc limit 1"
            found = database.execute(latest, (run,)).fetchone()
            if found is not None and found[1] >= number if new else not found or found[1] != number:
                raise Rejected(ErrorCode.SECURE, f"attempt {number} is over, or was not begun")
            if new and found:
                over = "update attempts set seed = x'', inbox = x'' where run = ? and number = ?"
                database.execute(over, (run, found[1]))
            states = [new or Attempt(*found)]
            yield states
            last = states[-1]
            other = database.execute(
                "select 1 from attempts where run = ? and number != ? and survivors != x''"
                " and substr(task, 1, 16) = ? and (members, survivors, task) != (?, ?, ?)",
                (run, number, last.task[:16], last.members, last.survivors, last.task),
            ).fetchone()
            if last.survivors and other:
                text = "the sum of this task was revealed before, over other nodes or devices"
                raise Rejected(ErrorCode.SECURE, text)
            places = ", ".join("?" * len(last))
            database.execute(f"insert or replace into attempts values ({places})", last)

    def epsilon(self, records: frozenset[bytes] | None, privacy: Privacy) -> float:
        """Return the largest ε of a record of a set so far."""
        with self._open() as database:
            every = _events_of_records(database, _number(database, records))
            return max((privacy.epsilon_of(events) for events in every), default=0.0)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Lock the ledger for one transaction; reject if it cannot be read or written."""
        try:
            with closing(self._connect()) as database:
                (version,) = database.execute("pragma user_version").fetchone()
                if version != VERSION:
                    text = f"{self.path}: not a ledger of this version: run fedzo node init anew"
                    raise Rejected(ErrorCode.LEDGER, text)
                database.execute("begin immediate")
                try:
                    yield database
                except BaseException:
                    database.execute("rollback")
                    raise
                database.execute("commit")
        except (sqlite3.Error, OSError) as error:
            raise Rejected(ErrorCode.LEDGER, f"{self.path}: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        uri = self.path
        if not uri.startswith("file:"):
            path = Path(self.path).absolute()
            if not path.is_file() or not path.stat().st_size:
                text = f"{self.path}: missing or empty; create it with fedzo node init"
                raise Rejected(ErrorCode.LEDGER, text)
            if path.stat().st_mode & 0o077:
                text = f"{self.path}: other users may read it; run chmod 600 {self.path}"
                raise Rejected(ErrorCode.LEDGER, text)
            uri = f"{path.as_uri()}?mode=rw"  # never creates a file
        return sqlite3.connect(uri, timeout=60, isolation_level=None, uri=True)


def _make_tables(database: sqlite3.Connection) -> None:
    database.executescript(f"begin; {_TABLES} pragma user_version = {VERSION}; commit;")
    database.execute("insert into node values (?)", (secrets.token_bytes(32),))
    database.commit()


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


def _number(database: sqlite3.Connection, records: frozenset[bytes] | None) -> int:
    """Return the number of a set of records, a new one if need be.

    Records that are not known are one set: all devices of the node then share a budget.
    """
    digest = hashlib.blake2b(b"".join(sorted(records or ())), digest_size=16).digest()
    database.execute("insert or ignore into sets (fingerprint) values (?)", (digest,))
    (number,) = database.execute(
        "select number from sets where fingerprint = ?", (digest,)
    ).fetchone()
    database.executemany(
        "insert or ignore into members values (?, ?)",
        ((record, number) for record in records or ()),
    )
    return int(number)


def _events_of_records(database: sqlite3.Connection, number: int) -> list[Counter[Event]]:
    """Return the events of each record of a set, also those of other sets with the same record.

    Records with the same events are listed once.
    """
    rows = database.execute(
        "select distinct numbers from (select group_concat(number) as numbers from"
        " (select record, number from members where record in"
        " (select record from members where number = ?) order by record, number) group by record)",
        (number,),
    ).fetchall()
    found = []
    for numbers in {row[0] for row in rows} or {str(number)}:
        events: Counter[Event] = Counter()
        samplings = set()
        for sampling, noise, rate, count in database.execute(
            f"select sampling, noise, rate, count from events where number in ({numbers})"
        ):
            events[Event(noise, rate)] += count
            samplings.add(sampling)
        if len(samplings) > 1:
            text = "the ledger has releases of these records with the other sampling: their ε "
            raise Rejected(ErrorCode.PRIVACY, text + "cannot be added up; set `sampling` as before")
        found.append(events)
    return found
