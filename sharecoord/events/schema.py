"""The event log's schema for Arrow, and rows as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from typing import Any, Final

import pyarrow as pa

from sharecoord.eventlog.schema import COLUMNS, SCHEMA_VERSION, ColumnType
from sharecoord.events.frames import Block, Value

VERSION_KEY: Final = b"sharecoord.schema.version"
"""Metadata of a file or stream: the schema version that its columns are of."""
GROUP_KEY: Final = b"sharecoord.group.id"
"""Metadata of a Parquet file: the group of all its rows."""

SCHEMA: Final = pa.schema(
    [pa.field(column.name, column.type.in_arrow(pa)) for column in COLUMNS],
    {VERSION_KEY: str(SCHEMA_VERSION).encode()},
)
"""Every column may be null: a reader takes what a file does not have for null."""

TEXT_COLUMNS: Final = [c.name for c in COLUMNS if c.type is ColumnType.STRING]

BAD_ROWS: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""Errors of `batch_of` for values that do not fit their columns."""


def schema_of(group_id: str) -> pa.Schema:
    """The schema of a file with the rows of one group."""
    return SCHEMA.with_metadata({**SCHEMA.metadata, GROUP_KEY: group_id.encode()})


def batch_of(
    blocks: Iterable[Block], coordinator_id: str, schema_version: int = SCHEMA_VERSION
) -> pa.RecordBatch:
    """Rows as one batch with every column of the schema; columns that a block leaves out are null.

    Raises:
        BAD_ROWS: A value does not fit its column, or a row has not as many values as names.
    """
    always: dict[str, str | int] = {
        "coordinator_id": coordinator_id,
        "schema_version": schema_version,
    }
    alike: dict[tuple[tuple[str, ...], ...], tuple[list[Block], list[int]]] = {}
    count = 0
    for block in blocks:
        common, names, rows = block
        # Blocks with the same columns, and the places of their rows among all rows.
        same, places = alike.setdefault((tuple(common), names), ([], []))
        same.append(block)
        places += range(count, count + len(rows))
        count += len(rows)
    table = pa.Table.from_batches([_batch(same, always) for same, _ in alike.values()], SCHEMA)
    if len(alike) > 1:
        order = [0] * count
        for number, place in enumerate(chain.from_iterable(each for _, each in alike.values())):
            order[place] = number
        table = table.take(order)
    found = table.combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], SCHEMA)


def _batch(blocks: list[Block], always: Mapping[str, str | int]) -> pa.RecordBatch:
    """The rows of blocks with the same columns."""
    counts = [len(rows) for _, _, rows in blocks]
    count = sum(counts)
    columns: dict[str, Iterable[Value]] = {
        name: list(chain.from_iterable(map(repeat, [b[0][name] for b in blocks], counts)))
        for name in blocks[0][0]
    }
    if count:
        rows = chain.from_iterable(rows for _, _, rows in blocks)
        columns.update(zip(blocks[0][1], zip(*rows, strict=True), strict=True))
    columns.update({name: [value] * count for name, value in always.items()})
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.record_batch(arrays, schema=SCHEMA)


def columns_as(schema: pa.Schema, rows: pa.RecordBatch | pa.Table) -> list[Any]:
    """The columns of a schema, cast to its types; null where `rows` has no such column."""
    known = set(rows.schema.names)
    return [
        rows.column(field.name).cast(field.type)
        if field.name in known
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
