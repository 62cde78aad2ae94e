"""Which error of SQLite means what; what COMMIT says counts differently."""

from __future__ import annotations

import sqlite3
from functools import partial

import pytest

from sharecoord.errors import (
    InternalError,
    SharecoordError,
    StoreFatalError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.store.dialects.errors import StoreBusyError, is_store_error, translate
from sharecoord.store.dialects.errors_sqlite import read_sqlite
from tests.unit.store.translations import check_translation

translate_sqlite = partial(translate, read_sqlite)
DRIVER = (sqlite3.Error,)
UNAVAILABLE = StoreUnavailableError
UNKNOWN = StoreOutcomeUnknownError
FATAL = StoreFatalError


def driver_error(code: int) -> sqlite3.OperationalError:
    """As the driver raises it."""
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_NAME"
    return error


@pytest.mark.parametrize(
    ("code", "working", "committing"),
    [
        (sqlite3.SQLITE_BUSY, StoreBusyError, StoreBusyError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreBusyError, StoreBusyError),
        (sqlite3.SQLITE_LOCKED, UNAVAILABLE, UNAVAILABLE),
        (sqlite3.SQLITE_FULL, UNAVAILABLE, UNAVAILABLE),
        (sqlite3.SQLITE_NOMEM, UNAVAILABLE, UNKNOWN),
        (sqlite3.SQLITE_CANTOPEN, UNAVAILABLE, UNKNOWN),
        (sqlite3.SQLITE_IOERR, FATAL, FATAL),
        (sqlite3.SQLITE_IOERR_FSYNC, FATAL, FATAL),
        (sqlite3.SQLITE_CORRUPT, FATAL, FATAL),
        (sqlite3.SQLITE_NOTADB, FATAL, FATAL),
        (sqlite3.SQLITE_READONLY_DBMOVED, FATAL, FATAL),
        (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, InternalError, UNKNOWN),
        (sqlite3.SQLITE_ERROR, InternalError, UNKNOWN),
    ],
)
def test_codes(
    code: int, working: type[SharecoordError], committing: type[SharecoordError]
) -> None:
    said = "SQLITE_NAME: what SQLite says"
    kinds = working, committing
    check_translation(translate_sqlite, driver_error(code), kinds, said, where="/data/s.db")


@pytest.mark.parametrize("error", [OverflowError("too large"), ValueError("surrogate")])
def test_a_value_that_cannot_be_stored_is_our_mistake(error: Exception) -> None:
    assert is_store_error(error, DRIVER)
    translated = translate_sqlite(error, where="s.db", committing=False)
    assert type(translated) is InternalError
    assert "nothing was changed" in translated.message
    assert not translated.retriable


def test_an_error_without_code_while_committing_is_of_unknown_outcome() -> None:
    error = sqlite3.OperationalError("?")
    assert type(translate_sqlite(error, where="s.db", committing=True)) is StoreOutcomeUnknownError


def test_other_errors_are_none_of_ours() -> None:
    assert not is_store_error(KeyboardInterrupt(), DRIVER)
    assert not is_store_error(StoreFatalError("x"), DRIVER)
    assert is_store_error(driver_error(1), DRIVER)
