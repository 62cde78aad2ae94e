"""Translates errors of SQLite; those of servers are in `errors_postgres` and `errors_mysql`.

The class tells what is known of the transaction: it did not happen (StoreUnavailableError), nobody
knows (StoreOutcomeUnknownError), or nothing that the file says can be trusted (StoreFatalError).
"""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from sharecoord.errors import (
    InternalError,
    SharecoordError,
    StoreFatalError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)


class StoreBusyError(StoreUnavailableError):
    """Another transaction has the file, ours or another process's."""


_RECOVER = (
    "Stop every process that uses it, keep a copy, then restore a backup, or save what is "
    "readable with: sqlite3 {path} .recover | sqlite3 {path}.recovered"
)

# Refused before anything was written, so the transaction can not have happened, not even when
# COMMIT itself says it.
_SURELY_NOT_COMMITTED = {
    sqlite3.SQLITE_BUSY: "{path} is locked by another process for longer than the busy timeout; "
    "end the tool that holds it",
    sqlite3.SQLITE_LOCKED: "a table of {path} is locked; end the tool that holds it",
    sqlite3.SQLITE_FULL: "no space left for {path}; the transaction was rolled back: free space",
}

# Certain while the statements run, not any more when COMMIT says it.
_PASSING = {
    sqlite3.SQLITE_NOMEM: "out of memory at {path}",
    sqlite3.SQLITE_PROTOCOL: "the lock protocol of {path} was disturbed; end other users of it",
    sqlite3.SQLITE_CANTOPEN: "cannot open {path} or its -wal and -shm files; check the limit of "
    "open files and the directory's permissions",
    sqlite3.SQLITE_INTERRUPT: "a statement on {path} was interrupted",
    sqlite3.SQLITE_SCHEMA: "the schema of {path} changed under a statement",
}

_FATAL = {
    sqlite3.SQLITE_IOERR: "I/O error at {path}: what is on disk is not known any more. Check the "
    "disk and its file system, then start again",
    sqlite3.SQLITE_CORRUPT: "{path} is damaged. " + _RECOVER,
    sqlite3.SQLITE_NOTADB: "{path} is damaged or no SQLite database. " + _RECOVER,
    sqlite3.SQLITE_READONLY: "{path} cannot be written: the file, its directory or the file "
    "system is read-only, or the file was moved away. Make it writable, then start again",
    sqlite3.SQLITE_PERM: "{path} cannot be accessed. Give this user read and write permission",
    sqlite3.SQLITE_AUTH: "{path} refuses access. Give this user read and write permission",
}

# Mistakes of ours in one row: the driver refuses a value before or while it runs the statement.
_BAD_VALUE = (OverflowError, TypeError, ValueError)


def translate_sqlite(error: BaseException, *, path: str, committing: bool) -> SharecoordError:
    """The error of this package for an error of sqlite3 or SQLAlchemy.

    Args:
        error: What was raised inside a transaction, SQLAlchemy's wrapper or the bare one.
        path: File of the database, for the message.
        committing: Whether COMMIT itself raised it.

    Returns:
        A member of the tree; InternalError for a row that the store refuses (nothing changed).
    """
    bare = unwrapped(error)
    code = getattr(bare, "sqlite_errorcode", None)
    said = f" ({_name(bare)}: {bare})"
    if code is not None:
        primary = code & 0xFF
        if primary in _FATAL:
            return StoreFatalError(_FATAL[primary].format(path=path) + said)
        if primary == sqlite3.SQLITE_BUSY:
            return StoreBusyError(_SURELY_NOT_COMMITTED[primary].format(path=path) + said)
        if primary in _SURELY_NOT_COMMITTED:
            return StoreUnavailableError(_SURELY_NOT_COMMITTED[primary].format(path=path) + said)
        if primary in _PASSING and not committing:
            return StoreUnavailableError(_PASSING[primary].format(path=path) + said)
    if committing:
        return StoreOutcomeUnknownError(f"COMMIT at {path} failed, its outcome is not known{said}")
    return InternalError(f"{path} refused a row or a statement; nothing was changed{said}")


def is_store_error(
    error: BaseException, drivers: tuple[type[BaseException], ...] = (sqlite3.Error,)
) -> bool:
    """Whether `error` came from the driver or from binding a value, and is to be translated."""
    return isinstance(error, (SQLAlchemyError, *drivers, *_BAD_VALUE))


def unwrapped(error: BaseException) -> BaseException:
    """The driver's own error inside SQLAlchemy's."""
    if isinstance(error, (DBAPIError, StatementError)) and error.orig is not None:
        return error.orig
    return error


def _name(error: BaseException) -> str:
    return str(getattr(error, "sqlite_errorname", type(error).__name__))
