"""The part that PostgreSQL and MySQL share: a session whose locks show that this process lives.

The server lets go of a session's locks when its connection ends, however that happens, so a
restart after kill -9 takes over at once and nobody waits for a lease. Correctness does not rest on
them (owner epochs do): they say who is there.
"""

# ruff: noqa: D102 - `Dialect` documents the methods

from __future__ import annotations

import abc
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from sharecoord.config.values import mask_url
from sharecoord.errors import StoreInUseError
from sharecoord.ports import LOCK_TIMEOUT_MS
from sharecoord.store.dialects.base import ALONE, Dialect
from sharecoord.store.dialects.errors import is_store_error

CONNECT_TIMEOUT_S = 3
KEEPALIVE_IDLE_S = 2
KEEPALIVE_INTERVAL_S = 1
KEEPALIVE_COUNT = 3
"""A peer that has gone without a word is noticed after 5 s of silence."""
USER_TIMEOUT_MS = 5000
"""Longest time in which TCP may leave sent bytes unacknowledged."""
STATEMENT_TIMEOUT_MS = 10_000
ANSWER_TIMEOUT_MS = 12_000
"""Longest silence of a server whose network works: more than the limit of a statement."""
STANDSTILL_MS = STATEMENT_TIMEOUT_MS
"""Longest silence of a process within a transaction. A stopped process keeps its connection, and
without this limit the rows that it has locked would stay locked."""
OPEN_TIMEOUT_MS = 600_000
"""Limit of a statement, an answer and a silence while the schema is made or migrated."""

NOT_DURABLE = (
    "the store is not durable: what was committed can be lost when the server's machine fails; "
    "change this setting at the server"
)

TAKE_WAIT_MS = 2000
"""How long `take` tries: the server may be about to notice that the last process has died."""
TAKE_POLL_S = 0.05


class ServerDialect(Dialect):
    """A database server.

    Subclasses give the SQL of locks; `%s` is the name of a lock, unique to this database, or the
    number of a session.
    """

    keeps_readers = True

    guard_sql: str = "SELECT 1"
    """Prepares the session that holds the locks."""
    try_lock_sql: str
    """Tries to take the lock; gives 1 or true when this session has it now."""
    unlock_sql: str
    session_sql: str
    """This session's number."""
    holder_sql: str
    """Session number and client address of the lock's holder; no row = nobody, or not visible."""
    end_session_sql: str
    locked_sql: str
    """Gives 1 or true when some session has the lock."""

    def __init__(
        self,
        url: URL,
        *,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        take_wait_ms: int = TAKE_WAIT_MS,
        answer_timeout_ms: int = ANSWER_TIMEOUT_MS,
        standstill_ms: int = STANDSTILL_MS,
    ) -> None:
        """Touches nothing.

        Args:
            url: SQLAlchemy's, with the driver.
            lock_timeout_ms: How long a transaction waits for rows that another one has locked.
            take_wait_ms: How long `take` waits for another process to be gone.
            answer_timeout_ms: How long the server may be silent.
            standstill_ms: How long this process may be silent within a transaction; whole seconds
                on MariaDB.
        """
        self.url = url
        self.where = f"store {mask_url(url.render_as_string(hide_password=True))}"
        self._lock_timeout_ms = lock_timeout_ms
        self._take_wait_ms = take_wait_ms
        self._answer_timeout_ms = answer_timeout_ms
        self._standstill_ms = standstill_ms
        self._coordinator_id = ""
        self._locks: list[str] = []
        self._engine: Engine | None = None
        self._guard: Any = None
        self._keeping = threading.Lock()
        """Guards `_guard`, which the threads of renewals and of commits use."""
        self._sessions: set[int] = set()
        """Sessions of this process since it last held all locks; for the server they may live."""

    @abc.abstractmethod
    def set_autocommit(self, driver_connection: Any) -> None:
        """Makes every statement a transaction of its own."""

    @abc.abstractmethod
    def connect_args(self) -> dict[str, Any]:
        """Arguments of the driver for a connection, beside the URL."""

    @abc.abstractmethod
    def connect(self, dialect: object, record: object, args: Any, params: Any) -> Any:
        """SQLAlchemy's event: makes a connection of the driver."""

    @abc.abstractmethod
    def set_up(self, connection: Any, record: object) -> None:
        """SQLAlchemy's event: prepares a new connection of the driver."""

    @abc.abstractmethod
    def begin(self, connection: Connection) -> None:
        """SQLAlchemy's event: prepares a transaction; one that reads sees one state."""

    def make_engine(self) -> Engine:
        if self._engine is None:
            self._engine = create_engine(
                self.url,
                poolclass=NullPool,
                paramstyle="format",
                # Payloads of records are parameters, and do not belong into a traceback in the log.
                hide_parameters=True,
                connect_args=self.connect_args(),
            )
            event.listen(self._engine, "do_connect", self.connect)
            event.listen(self._engine, "connect", self.set_up)
            event.listen(self._engine, "begin", self.begin)
        return self._engine

    # -- who is there ---------------------------------------------------------------------------

    def take(self, *, coordinator_id: str, alone: bool) -> None:
        self._coordinator_id = coordinator_id
        self._locks = [f"coordinator/{coordinator_id}", *(["alone"] if alone else [])]
        self._lock_all()

    def keep(self) -> None:
        with self._keeping:
            if self._locks and not self._guard_answers():
                self._lock_all()

    def give_back(self) -> None:
        self._locks = []
        self._sessions = set()
        self._drop_guard()

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        self._lock("open", wait_ms=OPEN_TIMEOUT_MS)
        yield
        # After an error the guard is closed by `give_back`, and the lock is gone with it.
        with self._translated():
            self._ask(self.unlock_sql, "open")

    def lives(self, connection: Connection, coordinator_id: str) -> bool:
        name = "alone" if coordinator_id == ALONE else f"coordinator/{coordinator_id}"
        return bool(connection.exec_driver_sql(self.locked_sql, (name,)).scalar())

    def _lock_all(self) -> None:
        self._drop_guard()
        try:
            with self._translated():
                # Out of the pool for good: its garbage collection must not roll anything back.
                fairy = self.make_engine().raw_connection()
                self._guard = fairy.driver_connection
                fairy.detach()
                self.set_autocommit(self._guard)
                self._ask(self.guard_sql)
                session = int(self._ask(self.session_sql))
                self._sessions.add(session)
            for name in self._locks:
                self._lock(name, wait_ms=self._take_wait_ms)
        except BaseException:
            # With some of the locks only, it must not pass for a guard that holds them all.
            self._drop_guard()
            raise
        self._sessions = {session}

    def _lock(self, name: str, *, wait_ms: int) -> None:
        end = time.monotonic() + wait_ms / 1000
        with self._translated():
            while not self._ask(self.try_lock_sql, name):
                holder = self._ask_row(self.holder_sql, name)
                if holder is not None and holder[0] in self._sessions:
                    # Our own session before the network broke; the server does not know it yet.
                    self._ask(self.end_session_sql, holder[0])
                elif time.monotonic() >= end:
                    raise StoreInUseError(self._in_use(holder))
                time.sleep(TAKE_POLL_S)

    def _in_use(self, holder: Any) -> str:
        known = None
        with contextlib.suppress(*self.driver_errors):
            known = self._ask_row(
                "SELECT id, address FROM coordinator ORDER BY lease_until_ms DESC"
            )
        who = f"coordinator {known[0]} at {known[1]}" if known else "another coordinator"
        session = f" (session {holder[0]} from {holder[1]})" if holder else ""
        return (
            f"{self.where} is in use by {who}{session}. Stop that process first, or give this one "
            "another --store; several coordinators on one store are a fleet, each with an id of "
            "its own (coordinator.mode, coordinator.id)"
        )

    def _guard_answers(self) -> bool:
        if self._guard is None:
            return False
        try:
            self._ask("SELECT 1")
        except self.driver_errors:
            return False
        return True

    def _ask(self, sql: str, *values: object) -> Any:
        row = self._ask_row(sql, *values)
        return None if row is None else row[0]

    def _ask_row(self, sql: str, *values: object) -> Any:
        cursor = self._guard.cursor()
        try:
            cursor.execute(sql, values or None)
            return cursor.fetchone() if cursor.description else None
        finally:
            cursor.close()

    def _drop_guard(self) -> None:
        if self._guard is not None:
            with contextlib.suppress(Exception):
                self._guard.close()
            self._guard = None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if is_store_error(error, self.driver_errors):
                raise self.translate(error, committing=False) from error
            raise
