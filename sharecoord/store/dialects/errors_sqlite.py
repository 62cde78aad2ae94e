"""Reads errors of SQLite by their result code."""

from __future__ import annotations

import sqlite3

from sharecoord.store.dialects.errors import Kind, Reading

_RECOVER = (
    "Stop every process that uses it, keep a copy, then restore a backup, or save what is "
    "readable with: sqlite3 {where} .recover | sqlite3 {where}.recovered"
)
_RIGHTS = "the file can not be accessed. Give this user read and write permission"
_CANT_OPEN = (
    "the file or its -wal and -shm files can not be opened; check the limit of open files and the "
    "directory's permissions"
)
_IO_ERROR = (
    "I/O error: what is on disk is not known any more. Check the disk and its file system, then "
    "start again"
)
_READ_ONLY = (
    "the file cannot be written: it, its directory or the file system is read-only, or it was "
    "moved away. Make it writable, then start again"
)

_CODES = {
    # Refused before anything was written, whatever statement says it.
    sqlite3.SQLITE_BUSY: (
        Kind.BUSY,
        "locked by another process for longer than the busy timeout; end the tool that holds it",
    ),
    sqlite3.SQLITE_LOCKED: (Kind.NOT_COMMITTED, "a table is locked; end the tool that holds it"),
    sqlite3.SQLITE_FULL: (
        Kind.NOT_COMMITTED,
        "no space left; the transaction was rolled back: free space",
    ),
    sqlite3.SQLITE_NOMEM: (Kind.PASSING, "out of memory"),
    sqlite3.SQLITE_PROTOCOL: (
        Kind.PASSING,
        "the lock protocol of the file was disturbed; end other users of it",
    ),
    sqlite3.SQLITE_CANTOPEN: (Kind.PASSING, _CANT_OPEN),
    sqlite3.SQLITE_INTERRUPT: (Kind.PASSING, "a statement was interrupted"),
    sqlite3.SQLITE_SCHEMA: (Kind.PASSING, "the schema changed under a statement"),
    sqlite3.SQLITE_IOERR: (Kind.FATAL, _IO_ERROR),
    sqlite3.SQLITE_CORRUPT: (Kind.FATAL, "the file is damaged. " + _RECOVER),
    sqlite3.SQLITE_NOTADB: (Kind.FATAL, "the file is damaged or no SQLite database. " + _RECOVER),
    sqlite3.SQLITE_READONLY: (Kind.FATAL, _READ_ONLY),
    sqlite3.SQLITE_PERM: (Kind.FATAL, _RIGHTS),
    sqlite3.SQLITE_AUTH: (Kind.FATAL, _RIGHTS),
}


def read_sqlite(error: BaseException) -> Reading:
    """Reads an error of sqlite3, or of binding a value."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kind, hint = _CODES.get(primary, (Kind.OURS, ""))
    return Reading(
        kind, hint, f"{getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}"
    )
