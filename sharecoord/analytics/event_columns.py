"""The columns of the event log in Spark's types (`eventlog.schema.COLUMNS`)."""

from __future__ import annotations

from typing import Final

from sharecoord.eventlog.schema import COLUMNS, ColumnType

SPARK_TYPES = {
    ColumnType.INT32: "int",
    ColumnType.INT64: "bigint",
    ColumnType.STRING: "string",
    ColumnType.BINARY: "binary",
    ColumnType.DOUBLE: "double",
    # A session may take a plain `timestamp` for one without a time zone.
    ColumnType.TIMESTAMP: "timestamp_ltz",
}
SCHEMA: Final = ", ".join(f"{column.name} {SPARK_TYPES[column.type]}" for column in COLUMNS)
"""All columns as Spark's DDL, as `DataFrameReader.schema` takes it."""
