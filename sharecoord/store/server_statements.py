"""The hot statements for servers: one round trip for many rows, whatever their number.

PostgreSQL takes each column as one array and unnests them; what does not need an answer goes out in
a pipeline. MySQL and MariaDB take keys and numbers as one JSON document; rows of ranges go as an
INSERT of many rows, which PyMySQL makes of them.
"""

# ruff: noqa: D102 - `Statements` documents the methods

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, Table
from sqlalchemy.engine import Dialect as CoreDialect

from sharecoord.store.dialects import Dialect
from sharecoord.store.statements import FLIGHT_KEYS, HEAD_COLUMNS, RECORD_KEYS, Rows, Statements
from sharecoord.store.tables import DEAD_LETTER, IN_FLIGHT, SHARE_PARTITION


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
    """Arrays, on the driver's own cursor: SQLAlchemy's waits for each answer."""

    def __init__(self, dialect: Dialect, core: CoreDialect) -> None:
        super().__init__(dialect, core)
        self._dialect = dialect
        ids = "SELECT id, owner_epoch, state_epoch FROM share_partition WHERE id = "
        # The lock that an UPDATE of these columns takes.
        self._epochs_sql = f"{ids}ANY(%s::bigint[]) ORDER BY id FOR NO KEY UPDATE"
        self._ranges_sql = self._make_ranges_sql()
        self._record_keys = _Arrays(DEAD_LETTER, RECORD_KEYS)
        gone = f"USING {self._record_keys.sql} AS v(p, o) "
        gone += "WHERE d.partition_id = v.p AND d.record_offset = v.o"
        self._letter_delete_sql = f"DELETE FROM dead_letter d {gone}"
        self._checkpoint_delete_sql = f"DELETE FROM record_checkpoint d {gone}"
        self._kept_delete_sql = f"DELETE FROM kept_payload d {gone}"

    def _make_ranges_sql(self) -> str:
        """One statement: each part sees the state before all of them, and no row is in two."""
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

    def truncate_ranges(self, connection: Connection, partition_id: int, offset: int) -> None:
        for sql, values in self._truncations(partition_id, offset):
            _send_many(connection, sql, [values])

    def raise_state_epochs(self, connection: Connection, rows: Rows) -> None:
        _send_many(connection, self._raise_state_epoch, rows)

    def pass_over(self, connection: Connection, rows: Rows) -> None:
        _send_many(connection, self._pass_over, rows)

    def delete_dead_letters(self, connection: Connection, rows: Rows) -> None:
        _send(connection, self._letter_delete_sql, self._record_keys.of(rows))

    def upsert_dead_letters(self, connection: Connection, rows: Rows) -> None:
        _send_many(connection, self._upsert_dead_letter, rows)

    def delete_checkpoints(self, connection: Connection, rows: Rows) -> None:
        _send(connection, self._checkpoint_delete_sql, self._record_keys.of(rows))

    def upsert_checkpoints(self, connection: Connection, rows: Rows) -> None:
        _send_many(connection, self._upsert_checkpoint, rows)

    def delete_kept(self, connection: Connection, rows: Rows) -> None:
        _send(connection, self._kept_delete_sql, self._record_keys.of(rows))

    def upsert_kept(self, connection: Connection, rows: Rows) -> None:
        _send_many(connection, self._upsert_kept, rows)

    def delete_members(self, connection: Connection, rows: Rows) -> None:
        _send_many(connection, self._delete_member, rows)

    def read_epochs(self, connection: Connection, ids: Sequence[int]) -> list[Sequence[Any]]:
        cursor = _send(connection, self._epochs_sql, [_numbers(ids)])
        self._dialect.catch_up(connection)
        rows: list[Sequence[Any]] = cursor.fetchall()
        return rows


def _send(connection: Connection, sql: str, values: Sequence[str]) -> Any:
    driver: Any = connection.connection.driver_connection
    return driver.cursor().execute(sql, values, prepare=True)


def _send_many(connection: Connection, sql: str, rows: Rows) -> None:
    driver: Any = connection.connection.driver_connection
    driver.cursor().executemany(sql, rows)


# -- MySQL and MariaDB ----------------------------------------------------------------------------


def _json_table(columns: Sequence[str]) -> str:
    """A table `v` of numbers from a JSON array of arrays, the one parameter."""
    places = ", ".join(
        f"{name} BIGINT PATH '$[{index}]' ERROR ON ERROR" for index, name in enumerate(columns)
    )
    return f"JSON_TABLE(%s, '$[*]' COLUMNS ({places})) v"


class MySqlStatements(Statements):
    """STRAIGHT_JOIN: the rows of the parameter are looked up by primary key, never the reverse."""

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
        self._letter_delete_sql, self._checkpoint_delete_sql, self._kept_delete_sql = (
            f"DELETE d FROM {keys} STRAIGHT_JOIN {table} d "
            "ON d.partition_id = v.p AND d.record_offset = v.o"
            for table in ("dead_letter", "record_checkpoint", "kept_payload")
        )

    def write_ranges(
        self, connection: Connection, heads: Rows, deleted: Rows, upserted: Rows
    ) -> None:
        if heads:
            connection.exec_driver_sql(self._heads_sql, (json.dumps(heads),))
        if deleted:
            connection.exec_driver_sql(self._flight_delete_sql, (json.dumps(deleted),))
        if upserted:
            connection.exec_driver_sql(self._upsert_in_flight, upserted)

    def delete_dead_letters(self, connection: Connection, rows: Rows) -> None:
        connection.exec_driver_sql(self._letter_delete_sql, (json.dumps(rows),))

    def delete_checkpoints(self, connection: Connection, rows: Rows) -> None:
        connection.exec_driver_sql(self._checkpoint_delete_sql, (json.dumps(rows),))

    def delete_kept(self, connection: Connection, rows: Rows) -> None:
        connection.exec_driver_sql(self._kept_delete_sql, (json.dumps(rows),))
