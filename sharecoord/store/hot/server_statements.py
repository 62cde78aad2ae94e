"""The hot statements for servers: one round trip for many rows, whatever their number.

PostgreSQL takes each column as one array and unnests them; statements without an answer go out in a
pipeline. MySQL and MariaDB take keys and numbers as one JSON document; rows of ranges go as an
INSERT of many rows, which PyMySQL makes of them.
"""

# ruff: noqa: D102 - `Statements` documents the methods

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, Table
from sqlalchemy.engine import Dialect as CoreDialect

from sharecoord.store.book_entries import ENTRY_KEYS, KINDS
from sharecoord.store.dialects import Dialect
from sharecoord.store.hot.statements import FLIGHT_KEYS, Rows, Statements
from sharecoord.store.row_codec import HEAD_COLUMNS
from sharecoord.store.tables import BOOK_ENTRY, IN_FLIGHT, SHARE_PARTITION


def make_statements(dialect: Dialect, core: CoreDialect) -> Statements:
    """The statements of a database, by SQLAlchemy's name for it."""
    kinds: dict[str, type[Statements]] = {
        "postgresql": PostgresStatements,
        "mysql": MySqlStatements,
        "mariadb": MySqlStatements,
    }
    return kinds.get(core.name, Statements)(dialect, core)


# -- PostgreSQL -----------------------------------------------------------------------------------


def _numbers(values: Iterable[Any]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def _texts(values: Iterable[str | None]) -> str:
    """Few texts stand in many rows: member ids, reasons."""
    quoted: dict[str | None, str] = {None: "NULL"}
    parts = []
    for value in values:
        part = quoted.get(value)
        if part is None:
            assert value is not None
            inside = value.replace("\\", "\\\\").replace('"', '\\"')
            part = quoted[value] = f'"{inside}"'
        parts.append(part)
    return "{" + ",".join(parts) + "}"


def _blobs(values: Iterable[bytes | None]) -> str:
    parts = ("NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values)
    return "{" + ",".join(parts) + "}"


def _array_of(column: Column[Any]) -> tuple[str, Callable[[Iterable[Any]], str]]:
    """The type of a column's array, and what writes one."""
    if isinstance(column.type, BigInteger):
        return "bigint[]", _numbers
    if isinstance(column.type, Integer):
        return "integer[]", _numbers
    if isinstance(column.type, LargeBinary):
        return "bytea[]", _blobs
    return "text[]", _texts


class _Arrays:
    """Rows of some columns as parameters of `unnest`, one per column."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        made = [_array_of(table.c[name]) for name in columns]
        self._writers = [write for _, write in made]
        self.sql = f"unnest({', '.join(f'%s::{kind}' for kind, _ in made)})"
        self.names = ", ".join(columns)

    def of(self, rows: Rows) -> list[str]:
        columns = zip(*rows, strict=True) if rows else [()] * len(self._writers)
        return [write(values) for write, values in zip(self._writers, columns, strict=True)]


class PostgresStatements(Statements):
    """Statements with arrays, on the driver's own cursor: SQLAlchemy's waits for each answer."""

    def __init__(self, dialect: Dialect, core: CoreDialect) -> None:
        super().__init__(dialect, core)
        self._dialect = dialect
        ids = "SELECT id, owner_epoch, state_epoch FROM share_partition WHERE id = "
        # The lock that an UPDATE of these columns takes.
        self._epochs_sql = f"{ids}ANY(%s::bigint[]) ORDER BY id FOR NO KEY UPDATE"
        self._ranges_sql = self._make_ranges_sql()
        self._entry_keys = _Arrays(BOOK_ENTRY, ENTRY_KEYS)
        self._entries_sql = (
            f"DELETE FROM book_entry e USING {self._entry_keys.sql} AS v(k, p, o) "
            "WHERE e.kind = v.k AND e.partition_id = v.p AND e.record_offset = v.o"
        )

    def _make_ranges_sql(self) -> str:
        """Builds a statement of three parts. All see the state before it: no row may be in two."""
        self._heads = _Arrays(SHARE_PARTITION, (*HEAD_COLUMNS, "id"))
        self._flight_keys = _Arrays(IN_FLIGHT, FLIGHT_KEYS)
        names = IN_FLIGHT.columns.keys()
        self._flight = _Arrays(IN_FLIGHT, names)
        heads = ", ".join(f"{name} = v.{name}" for name in HEAD_COLUMNS)
        replaced = ", ".join(f"{n} = excluded.{n}" for n in names if n not in FLIGHT_KEYS)
        return (
            f"WITH heads AS (UPDATE share_partition p SET {heads} "
            f"FROM {self._heads.sql} AS v({self._heads.names}) WHERE p.id = v.id), "
            f"deleted AS (DELETE FROM in_flight f USING {self._flight_keys.sql} AS v(p, o) "
            "WHERE f.partition_id = v.p AND f.first_offset = v.o) "
            f"INSERT INTO in_flight ({self._flight.names}) SELECT * FROM {self._flight.sql} "
            f"ON CONFLICT ({self._flight_keys.names}) DO UPDATE SET {replaced}"
        )

    def write_ranges(
        self, connection: Connection, heads: Rows, deleted: Rows, upserted: Rows
    ) -> None:
        arrays = (self._heads.of(heads), self._flight_keys.of(deleted), self._flight.of(upserted))
        _send(connection, self._ranges_sql, [value for each in arrays for value in each])

    def delete_entries(self, connection: Connection, rows: Rows) -> None:
        _send(connection, self._entries_sql, self._entry_keys.of(rows))

    def _run(self, connection: Connection, sql: str, rows: Rows) -> None:
        driver: Any = connection.connection.driver_connection
        driver.cursor().executemany(sql, rows)

    def read_epochs(self, connection: Connection, ids: Sequence[int]) -> list[Sequence[Any]]:
        cursor = _send(connection, self._epochs_sql, [_numbers(ids)])
        self._dialect.catch_up(connection)
        rows: list[Sequence[Any]] = cursor.fetchall()
        return rows


def _send(connection: Connection, sql: str, values: Sequence[str]) -> Any:
    driver: Any = connection.connection.driver_connection
    return driver.cursor().execute(sql, values, prepare=True)


# -- MySQL and MariaDB ----------------------------------------------------------------------------


def _json_table(columns: Sequence[str]) -> str:
    """A table `v` of numbers from a JSON array of arrays, the one parameter."""
    places = ", ".join(
        f"{name} BIGINT PATH '$[{index}]' ERROR ON ERROR" for index, name in enumerate(columns)
    )
    return f"JSON_TABLE(%s, '$[*]' COLUMNS ({places})) v"


class MySqlStatements(Statements):
    """Statements with JSON. STRAIGHT_JOIN makes the server look the parameter's rows up by key."""

    def __init__(self, dialect: Dialect, core: CoreDialect) -> None:
        super().__init__(dialect, core)
        heads = ", ".join(f"p.{name} = v.{name}" for name in HEAD_COLUMNS)
        self._heads_sql = (
            f"UPDATE {_json_table((*HEAD_COLUMNS, 'id'))} STRAIGHT_JOIN share_partition p "
            f"ON p.id = v.id SET {heads}"
        )
        keys = _json_table(("p", "o"))
        self._flight_delete_sql = (
            f"DELETE f FROM {keys} STRAIGHT_JOIN in_flight f "
            "ON f.partition_id = v.p AND f.first_offset = v.o"
        )
        # The kind as a literal: a text of JSON_TABLE has a collation of its own.
        self._entry_delete_sql = {
            kind: f"DELETE e FROM {keys} STRAIGHT_JOIN book_entry e "
            f"ON e.kind = '{kind}' AND e.partition_id = v.p AND e.record_offset = v.o"
            for kind in KINDS
        }

    def write_ranges(
        self, connection: Connection, heads: Rows, deleted: Rows, upserted: Rows
    ) -> None:
        if heads:
            connection.exec_driver_sql(self._heads_sql, (json.dumps(heads),))
        if deleted:
            connection.exec_driver_sql(self._flight_delete_sql, (json.dumps(deleted),))
        if upserted:
            connection.exec_driver_sql(self._upsert_in_flight, upserted)

    def delete_entries(self, connection: Connection, rows: Rows) -> None:
        for kind, sql in self._entry_delete_sql.items():
            if keys := [key for name, *key in rows if name == kind]:
                connection.exec_driver_sql(sql, (json.dumps(keys),))
