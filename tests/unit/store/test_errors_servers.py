"""Which error of psycopg and PyMySQL means what; what COMMIT says counts differently."""

from __future__ import annotations

from functools import partial

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest

from sharecoord.errors import (
    InternalError,
    SharecoordError,
    StoreFatalError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.store.dialects.errors import (
    Read,
    StoreConflictError,
    StoreRefusedError,
    is_store_error,
    translate,
)
from sharecoord.store.dialects.errors_mysql import read_mysql
from sharecoord.store.dialects.errors_postgres import read_postgres
from tests.unit.store.translations import check_translation

translate_mysql = partial(translate, read_mysql)
translate_postgres = partial(translate, read_postgres)
AWAY = StoreUnavailableError
UNKNOWN = StoreOutcomeUnknownError
CONFLICT = StoreConflictError
REFUSED = StoreRefusedError
FATAL = StoreFatalError
OURS = InternalError
WHERE = "store postgresql://u:***@db/s"


@pytest.mark.parametrize(
    ("state", "working", "committing"),
    [
        ("40001", CONFLICT, CONFLICT),
        ("40P01", CONFLICT, CONFLICT),
        ("55P03", AWAY, AWAY),
        ("25006", REFUSED, REFUSED),
        ("28P01", REFUSED, REFUSED),
        ("28000", REFUSED, REFUSED),
        ("3D000", REFUSED, REFUSED),
        ("42501", REFUSED, REFUSED),
        ("53100", AWAY, UNKNOWN),
        ("53300", AWAY, UNKNOWN),
        ("57014", AWAY, UNKNOWN),
        ("57P01", AWAY, UNKNOWN),
        ("57P02", AWAY, UNKNOWN),
        ("57P03", AWAY, UNKNOWN),
        ("08006", AWAY, UNKNOWN),
        ("25P03", AWAY, UNKNOWN),
        ("58030", AWAY, UNKNOWN),
        ("XX001", FATAL, FATAL),
        ("22003", OURS, UNKNOWN),
        ("23505", OURS, UNKNOWN),
        ("42P01", OURS, UNKNOWN),
    ],
)
def test_states_of_postgresql(
    state: str, working: type[SharecoordError], committing: type[SharecoordError]
) -> None:
    error = psycopg.errors.lookup(state)("what it says")
    said = state, "what it says"
    check_translation(translate_postgres, error, (working, committing), *said, where=WHERE)


@pytest.mark.parametrize(
    ("text", "kind", "hint"),
    [
        ('FATAL:  password authentication failed for user "u"', REFUSED, "pg_hba"),
        ("fe_sendauth: no password supplied", REFUSED, "user or password"),
        ('FATAL:  no pg_hba.conf entry for host "1.2.3.4"', REFUSED, "pg_hba"),
        ('FATAL:  database "nope" does not exist', REFUSED, "CREATE DATABASE"),
        ('FATAL:  role "nobody" does not exist', REFUSED, "user or password"),
        ("FATAL:  the database system is in recovery mode", AWAY, "wait for it"),
        ("FATAL:  the database system is starting up", AWAY, "wait for it"),
        ("FATAL:  sorry, too many clients already", AWAY, "max_connections"),
        ("connection refused", AWAY, "is the server up"),
        ("server closed the connection unexpectedly", AWAY, "connection is lost"),
        ("consuming input failed: could not receive data", AWAY, "connection is lost"),
        ("session is read-only", REFUSED, "primary"),
    ],
)
def test_connecting_to_postgresql(text: str, kind: type[SharecoordError], hint: str) -> None:
    error = psycopg.OperationalError(f"connection failed: {text}")
    translated = translate_postgres(error, where=WHERE, committing=False)
    assert type(translated) is kind
    assert hint in translated.message
    lost = translate_postgres(error, where=WHERE, committing=True)
    assert type(lost) is (UNKNOWN if kind is AWAY else kind)


@pytest.mark.parametrize(
    ("code", "working", "committing"),
    [
        (1213, CONFLICT, CONFLICT),
        (1205, AWAY, AWAY),
        (1290, REFUSED, REFUSED),
        (1792, REFUSED, REFUSED),
        (1044, REFUSED, REFUSED),
        (1045, REFUSED, REFUSED),
        (1049, REFUSED, REFUSED),
        (1665, REFUSED, REFUSED),
        (1021, AWAY, UNKNOWN),
        (1114, AWAY, UNKNOWN),
        (1040, AWAY, UNKNOWN),
        (1053, AWAY, UNKNOWN),
        (1317, AWAY, UNKNOWN),
        (1927, AWAY, UNKNOWN),
        (1969, AWAY, UNKNOWN),
        (2003, AWAY, UNKNOWN),
        (2006, AWAY, UNKNOWN),
        (2013, AWAY, UNKNOWN),
        (1712, FATAL, FATAL),
        (1153, OURS, UNKNOWN),
        (1264, OURS, UNKNOWN),
        (1062, OURS, UNKNOWN),
    ],
)
def test_codes_of_mysql(
    code: int, working: type[SharecoordError], committing: type[SharecoordError]
) -> None:
    error = pymysql.err.OperationalError(code, "what it says")
    said = f"{code}: what it says"
    check_translation(translate_mysql, error, (working, committing), said, where=WHERE)


@pytest.mark.parametrize("error", [pymysql.err.InterfaceError(0, ""), OSError("cut off")])
def test_a_connection_that_the_driver_finds_closed(error: Exception) -> None:
    assert is_store_error(error, (pymysql.Error, OSError))
    assert type(translate_mysql(error, where=WHERE, committing=False)) is AWAY
    assert type(translate_mysql(error, where=WHERE, committing=True)) is UNKNOWN


def test_a_row_that_is_too_long_for_mysql_says_what_to_raise() -> None:
    error = pymysql.err.OperationalError(1153, "what it says")
    assert "raise it at the server" in translate_mysql(error, where=WHERE, committing=False).message


@pytest.mark.parametrize("read", [read_mysql, read_postgres])
@pytest.mark.parametrize("error", [OverflowError("too large"), ValueError("surrogate")])
def test_a_value_that_cannot_be_stored_is_our_mistake(read: Read, error: Exception) -> None:
    assert is_store_error(error, (psycopg.Error,))
    found = translate(read, error, where=WHERE, committing=False)
    assert type(found) is InternalError
    assert "nothing was changed" in found.message
