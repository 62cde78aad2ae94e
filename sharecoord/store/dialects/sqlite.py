"""SQLite: a file, one writer at a time."""

# ruff: noqa: D102 - `Dialect` documents the methods

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import NullPool

from sharecoord.errors import InvalidConfigError, StoreFatalError
from sharecoord.ports import LOCK_TIMEOUT_MS
from sharecoord.store.clock import wall_clock_ms
from sharecoord.store.dialects.base import READ_ONLY, Dialect
from sharecoord.store.dialects.errors_sqlite import read_sqlite
from sharecoord.store.dialects.file_lock import FileLock

WAL_AUTOCHECKPOINT_PAGES = 4000
"""16 MiB of WAL per checkpoint, the automatic one: it blocks the commit that triggers it."""
WAL_SIZE_LIMIT_BYTES = 64 * 1024 * 1024
CACHE_KIB = 16 * 1024


class SqliteDialect(Dialect):
    """A file on a local disk, WAL, synchronous=FULL: what COMMIT says is on disk."""

    read_error = staticmethod(read_sqlite)
    driver_errors = (sqlite3.Error,)
    insert = staticmethod(sqlite.insert)

    def __init__(
        self,
        path: Path,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        pragmas: Mapping[str, str | int] | None = None,
    ) -> None:
        """Touches nothing.

        Args:
            path: The database file.
            clock_ms: The store's clock, milliseconds since the epoch.
            lock_timeout_ms: How long a transaction waits for another process's.
            pragmas: Set on every connection after ours, e.g. `max_page_count`.
        """
        # Two names of one file must find the same lock and the same WAL.
        self.path = Path(os.path.realpath(path))
        self.where = str(self.path)
        self._clock_ms = clock_ms
        self._lock_timeout_ms = lock_timeout_ms
        self._lock = FileLock(self.path)
        self._identity: tuple[int, int] | None = None
        self._pragmas: dict[str, str | int] = {
            "synchronous": "FULL",
            "foreign_keys": "ON",
            "wal_autocheckpoint": WAL_AUTOCHECKPOINT_PAGES,
            "journal_size_limit": WAL_SIZE_LIMIT_BYTES,
            "cache_size": -CACHE_KIB,
            **(pragmas or {}),
        }

    def make_engine(self) -> Engine:
        self._make_file()
        engine = create_engine(
            URL.create("sqlite+pysqlite", database=str(self.path)),
            poolclass=NullPool,
            # Payloads of records are parameters, and do not belong into a traceback in the log.
            hide_parameters=True,
            connect_args={
                "timeout": self._lock_timeout_ms / 1000,
                # We begin by ourselves (below); the driver would begin too late and deferred.
                "isolation_level": None,
                "check_same_thread": False,
            },
        )
        self._identity = self._identify()
        event.listen(engine, "do_connect", self._before_connect)
        event.listen(engine, "connect", self._set_up)
        event.listen(engine, "begin", self._begin)
        return engine

    def take(self, *, coordinator_id: str, alone: bool) -> None:
        if alone:
            self._make_directory()
            self._lock.acquire(coordinator_id=coordinator_id)

    def give_back(self) -> None:
        self._lock.release()

    def now_ms(self, connection: Connection) -> int:
        return self._clock_ms()

    def _make_directory(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidConfigError(
                f"store: cannot make the directory {self.path.parent}: {error.strerror}. Give a "
                "path that this user can write to"
            ) from error

    def _make_file(self) -> None:
        """A new file is for this user alone: it may come to hold payloads of dead letters."""
        self._make_directory()
        try:
            # Only when it is new: closing a descriptor of an open database drops its locks.
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            if not self.path.is_file():
                raise InvalidConfigError(
                    f"store: {self.path} is not a file. Give the path of a database file"
                ) from None
        except OSError as error:
            raise InvalidConfigError(
                f"store: cannot make {self.path}: {error.strerror}. Give a path that this user "
                "can write to"
            ) from error

    def _set_up(self, connection: sqlite3.Connection, record: object) -> None:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreFatalError(
                f"the file system of {self.path} does not allow SQLite's WAL mode (it says "
                f"{mode!r}). Put the store on a local disk"
            )
        for name, value in self._pragmas.items():
            connection.execute(f"PRAGMA {name} = {value}")

    def _identify(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino)

    def _check_identity(self) -> None:
        """SQLite goes on writing to a file that was deleted; a restart would not find it."""
        if self._identify() != self._identity:
            raise StoreFatalError(
                f"{self.path} was moved, deleted or replaced while it was in use: what is "
                "committed now would be lost. Put it back with its -wal file, then start again"
            )

    def _before_connect(self, *_: object) -> None:
        self._check_identity()

    def _begin(self, connection: Connection) -> None:
        self._check_identity()
        reading = connection.get_execution_options().get(READ_ONLY, False)
        driver: Any = connection.connection.driver_connection
        # What begins as a reader and then writes can fail with SQLITE_BUSY without any waiting.
        driver.execute("BEGIN" if reading else "BEGIN IMMEDIATE")
