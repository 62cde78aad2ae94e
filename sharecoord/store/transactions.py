"""Transactions of a store: connections, and the errors of this package for the driver's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from sqlalchemy import Connection

from sharecoord.errors import InternalError
from sharecoord.store.dialects import READ_ONLY, Dialect
from sharecoord.store.dialects.errors import is_store_error


class _Kept:
    """A connection that is kept open between transactions, which come one after the other."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None


class Transactions:
    """Hands out connections inside transactions, and translates the errors.

    The connection of the committer is kept open, and so is that of the lease, which must not wait
    for a commit. A connection on which anything failed is closed, which rolls back.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._engine = dialect.make_engine()
        self._committer = _Kept()
        self._lease = _Kept()
        self._lock_readers = threading.Lock()
        self._reader: Connection | None = None
        self._closed = False

    @contextlib.contextmanager
    def write(self, *, together: bool = False) -> Iterator[Connection]:
        """A writing transaction on the committer's connection; durable when the block has ended.

        Args:
            together: Whether it is a `Dialect.together` block.
        """
        with self._kept_open(self._committer, together=together) as connection:
            yield connection

    @contextlib.contextmanager
    def write_beside(self) -> Iterator[Connection]:
        """A writing transaction beside the committer's, on a connection that is kept as well."""
        with self._kept_open(self._lease) as connection:
            yield connection

    @property
    def is_writing(self) -> bool:
        """Whether a transaction runs, or waits, on the committer's connection."""
        return self._committer.lock.locked()

    @contextlib.contextmanager
    def _kept_open(self, kept: _Kept, *, together: bool = False) -> Iterator[Connection]:
        with kept.lock:
            connection, kept.connection = kept.connection, None
            if connection is None:
                # The last one broke, or there was none: what else broke with it?
                self._dialect.keep()
            with self._transaction(connection, together=together) as connection:
                yield connection
            kept.connection = connection

    @contextlib.contextmanager
    def write_apart(self) -> Iterator[Connection]:
        """A writing transaction on a connection of its own.

        It waits for the locks of a commit whose outcome is not known.
        """
        with self._transaction(None) as connection:
            yield connection
        _discard(connection)

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A reading transaction beside the committer: one consistent, committed state."""
        with self._transaction(self._idle_reader(), read_only=True) as used:
            yield used
        left: Connection | None = used
        with self._lock_readers:
            if self._dialect.keeps_readers and self._reader is None and not self._closed:
                self._reader, left = used, None
        _discard(left)

    def _idle_reader(self) -> Connection | None:
        """The kept one, if it still answers: a read is not made again by its caller."""
        with self._lock_readers:
            connection, self._reader = self._reader, None
        if connection is not None:
            try:
                with connection.begin():
                    connection.exec_driver_sql("SELECT 1")
            except Exception:  # noqa: BLE001 - whatever it is, a new one is made
                _discard(connection)
                return None
        return connection

    def close(self) -> None:
        """Closes every connection that is not inside a transaction. Never raises."""
        self._closed = True
        for kept in (self._committer, self._lease):
            with kept.lock:
                _discard(kept.connection)
                kept.connection = None
        with self._lock_readers:
            _discard(self._reader)
            self._reader = None
        with contextlib.suppress(Exception):
            self._engine.dispose()

    @contextlib.contextmanager
    def _transaction(
        self,
        connection: Connection | None,
        *,
        read_only: bool = False,
        together: bool = False,
    ) -> Iterator[Connection]:
        if self._closed:
            raise InternalError("the store is closed")
        committing = False
        try:
            if connection is None:
                connection = self._engine.connect()
                if read_only:
                    connection = connection.execution_options(**{READ_ONLY: True})
            transaction = connection.begin()
            with self._dialect.together(connection) if together else contextlib.nullcontext():
                yield connection
                committing = True
                transaction.commit()
        except BaseException as error:
            if committing and together and connection is not None:
                committing = self._dialect.may_have_committed(connection)
            _discard(connection)
            if is_store_error(error, self._dialect.driver_errors):
                raise self._dialect.translate(error, committing=committing) from error
            raise


def _discard(connection: Connection | None) -> None:
    """Closes a connection, whatever state it is in; SQLite rolls back, servers as well."""
    if connection is not None:
        with contextlib.suppress(Exception):
            connection.invalidate()
        with contextlib.suppress(Exception):
            connection.close()
