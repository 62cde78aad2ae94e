"""The event log's schema for Arrow, and rows as columns."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Final

import pyarrow as pa

from sharecoord.eventlog.schema import COLUMNS, SCHEMA_VERSION, ColumnType
from sharecoord.events.frames import Block, Value

_TYPES: Final = {
    ColumnType.INT32: pa.int32(),
    ColumnType.INT64: pa.int64(),
    ColumnType.STRING: pa.string(),
    ColumnType.BINARY: pa.binary(),
    ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}

VERSION_KEY: Final = b"sharecoord.schema.version"
"""Metadata of a file or stream: the schema version that its columns are of."""
GROUP_KEY: Final = b"sharecoord.group.id"
"""Metadata of a Parquet file: the group of all its rows."""

SCHEMA: Final = pa.schema(
    [pa.field(column.name, _TYPES[column.type]) for column in COLUMNS],
    {VERSION_KEY: str(SCHEMA_VERSION).encode()},
)
"""Every column may be null: a reader takes what a file does not have for null."""

TEXT_COLUMNS: Final = [c.name for c in COLUMNS if c.type is ColumnType.STRING]

BAD_ROWS: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""What `Rows` raises for values that do not fit their columns."""


def schema_of(group_id: str) -> pa.Schema:
    """The schema of a file with the rows of one group."""
    return SCHEMA.with_metadata({**SCHEMA.metadata, GROUP_KEY: group_id.encode()})


class _Alike:
    """Blocks with the same columns, and where their rows stand among all."""

    __slots__ = ("blocks", "places")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.places: list[int] = []


class Rows:
    """Rows that become a record batch. What a block leaves out is null."""

    def __init__(self, coordinator_id: str, schema_version: int = SCHEMA_VERSION) -> None:
        self.count = 0
        self._always: dict[str, str | int] = {
            "coordinator_id": coordinator_id,
            "schema_version": schema_version,
        }
        self._by_columns: dict[tuple[tuple[str, ...], ...], _Alike] = {}

    def add(self, blocks: list[Block]) -> None:
        """Takes rows; those before them stay first."""
        for block in blocks:
            common, names, rows = block
            alike = self._by_columns.setdefault((tuple(common), names), _Alike())
            alike.blocks.append(block)
            end = self.count + len(rows)
            alike.places += range(self.count, end)
            self.count = end

    def take(self) -> pa.RecordBatch:
        """All rows as one batch with every column of the schema; none are left.

        Raises:
            BAD_ROWS: A value does not fit its column, a row has not as many values as there are
                names; the rows are gone.
        """
        parts, self._by_columns, self.count = list(self._by_columns.values()), {}, 0
        table = pa.Table.from_batches([self._batch(part.blocks) for part in parts], SCHEMA)
        if len(parts) > 1:
            order = [0] * table.num_rows
            for number, place in enumerate(chain.from_iterable(part.places for part in parts)):
                order[place] = number
            table = table.take(order)
        found = table.combine_chunks().to_batches()
        return found[0] if found else pa.RecordBatch.from_pylist([], SCHEMA)

    def _batch(self, blocks: list[Block]) -> pa.RecordBatch:
        """Blocks with the same columns."""
        counts = [len(rows) for _, _, rows in blocks]
        count = sum(counts)
        columns: dict[str, Iterable[Value]] = {
            name: list(chain.from_iterable(map(repeat, [b[0][name] for b in blocks], counts)))
            for name in blocks[0][0]
        }
        if count:
            rows = chain.from_iterable(rows for _, _, rows in blocks)
            columns.update(zip(blocks[0][1], zip(*rows, strict=True), strict=True))
        columns.update({name: [value] * count for name, value in self._always.items()})
        arrays = [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(count, field.type)
            for field in SCHEMA
        ]
        return pa.record_batch(arrays, schema=SCHEMA)
