"""Interface of a dialect: all that differs between databases.

SQLAlchemy's SQLite compiler leaves FOR UPDATE out; there BEGIN IMMEDIATE does the same for the
whole file, so that statements lock rows in order of id everywhere.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Insert, Table, literal_column

from sharecoord.errors import SharecoordError
from sharecoord.store.dialects.errors import Read, translate

READ_ONLY = "sharecoord_read_only"
"""Execution option of connections that only read: they never wait for a writer."""

ALONE = ""
"""The id that `lives` takes for any coordinator in standalone mode."""


class Dialect(abc.ABC):
    """A database: how to connect, begin, upsert, tell the time and read errors."""

    where: str
    """The name of the database in messages of errors; without password."""

    read_error: Read
    """Reads an error of the driver."""

    driver_errors: tuple[type[BaseException], ...]
    """The driver's errors, which SQLAlchemy does not wrap everywhere."""

    insert: Callable[[Table], Any]
    """SQLAlchemy's INSERT with this database's words for rows that exist."""

    given: str = "excluded"
    """SQLAlchemy's name for the row that the INSERT gives."""

    keeps_readers: bool = False
    """Whether one connection for reading is kept open between reads: making one is slow."""

    ddl_commits: bool = False
    """Whether every statement that changes the schema commits what was done before."""

    def fits(self, payload: Sequence[bytes | None]) -> bool:
        """See `ports.Store.fits`; the limit is known once `check_server` has run."""
        return True

    @abc.abstractmethod
    def make_engine(self) -> Engine:
        """An engine whose transactions begin as the store needs them."""

    @abc.abstractmethod
    def take(self, *, coordinator_id: str, alone: bool) -> None:
        """Takes the database for this process; nothing else may touch it before.

        Args:
            coordinator_id: Id of this process; no other living process may have the same.
            alone: Whether no other coordinator may use it (standalone mode).

        Raises:
            StoreInUseError: Another process has it.
        """

    @abc.abstractmethod
    def give_back(self) -> None:
        """Undoes `take`; never raises."""

    def keep(self) -> None:  # noqa: B027 - a file lock can not be lost
        """Takes again what `take` took, where it was lost; raises as `take` does."""

    def opening(self) -> contextlib.AbstractContextManager[None]:
        """A block that one process at a time enters, to make the schema and register."""
        return contextlib.nullcontext()

    def lives(self, connection: Connection, coordinator_id: str) -> bool:
        """Whether a process that took the store under this id (or as `ALONE`) is alive."""
        return False

    def check_server(self, connection: Connection) -> None:  # noqa: B027 - nothing to check
        """Warns of settings that are not durable, refuses what can not work.

        Called by `open` alone, on a connection that it gives the time for migrations.
        """

    def check_schema(self, connection: Connection) -> None:  # noqa: B027 - nothing to check
        """Refuses tables whose engine or collation cannot hold the state; once per `open`."""

    def together(self, connection: Connection) -> contextlib.AbstractContextManager[None]:
        """A block whose statements, COMMIT included, need not wait for each other's end.

        Within it, results are read with the driver's own cursor, and only after `catch_up`.
        """
        return contextlib.nullcontext()

    def catch_up(self, connection: Connection) -> None:  # noqa: B027 - every statement is answered
        """Waits for the answers to all statements that were sent in a block of `together`."""

    def may_have_committed(self, connection: Connection) -> bool:
        """Whether a transaction may have been committed although its COMMIT failed."""
        return True

    @abc.abstractmethod
    def now_ms(self, connection: Connection) -> int:
        """The store's clock, inside the connection's transaction."""

    def upsert(
        self,
        table: Table,
        *,
        keys: Sequence[str],
        columns: Sequence[str] = (),
        counter: str | None = None,
        not_older_by: str | None = None,
    ) -> Insert:
        """An INSERT that replaces all other columns of a row with the same keys.

        Args:
            table: The table that gets the row.
            keys: Columns of the primary key or of a unique constraint.
            columns: The columns that the row has, keys included; by default all of the table.
            counter: A column that becomes its stored value + 1 instead.
            not_older_by: A column; the stored row stays when its value is higher.
        """
        insert = self.insert(table)
        given = getattr(insert, self.given)
        names = columns or table.columns.keys()
        replaced: dict[str, Any] = {name: given[name] for name in names if name not in keys}
        if counter is not None:
            # No parameter: PyMySQL makes one INSERT of many rows only without.
            replaced[counter] = table.c[counter] + literal_column("1")
        return self.replacing(insert, keys, replaced, not_older_by)

    def replacing(
        self, insert: Any, keys: Sequence[str], replaced: dict[str, Any], not_older_by: str | None
    ) -> Insert:
        """The INSERT with the words for a row that exists; arguments as of `upsert`."""
        where = None
        if not_older_by is not None:
            where = insert.table.c[not_older_by] <= insert.excluded[not_older_by]
        made: Insert = insert.on_conflict_do_update(index_elements=keys, set_=replaced, where=where)
        return made

    def insert_or_ignore(self, table: Table) -> Insert:
        """An INSERT that does nothing when a row with the same keys exists."""
        made: Insert = self.insert(table).on_conflict_do_nothing()
        return made

    def translate(self, error: BaseException, *, committing: bool) -> SharecoordError:
        """The error of this package for an error of the driver; see `errors.translate`."""
        return translate(self.read_error, error, where=self.where, committing=committing)
