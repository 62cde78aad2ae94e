"""Messages of the events' topic as record batches with the columns of the events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from sharecoord.analytics.errors import EventsCorruptError
from sharecoord.eventlog.schema import COLUMNS

SCHEMA: Final = pa.schema([(column.name, column.type.in_arrow(pa)) for column in COLUMNS])

BATCH_ROWS: Final = 10_000
"""Messages are joined to batches of at least so many rows: each batch costs Spark some time."""

BAD_MESSAGE: Final = (pa.ArrowException, ValueError, TypeError, KeyError, OSError)
"""Errors that pyarrow and `decode` raise for bytes that are no stream of events."""

Place = tuple[str, int, int]
"""Topic, partition and offset of a message."""


def batches(
    messages: Iterable[tuple[Place, bytes | None]], on_corrupt: Callable[[str], None] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of messages, in order; columns that are missing are null, unknown ones left out.

    A message that is no Arrow stream is left out when `on_corrupt` takes its name
    (`topic-partition@offset`).

    Raises:
        EventsCorruptError: A message is no Arrow stream, and there is no `on_corrupt`.
    """
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for place, value in messages:
        try:
            decoded = decode(value)
        except BAD_MESSAGE as error:
            name = "{}-{}@{}".format(*place)
            if on_corrupt is None:
                raise EventsCorruptError(_text(name, error), name) from None
            on_corrupt(name)
            continue
        waiting += decoded
        rows += sum(batch.num_rows for batch in decoded)
        if rows >= BATCH_ROWS:
            yield from _joined(waiting)
            waiting, rows = [], 0
    if rows:
        yield from _joined(waiting)


def decode(value: bytes | None) -> list[pa.RecordBatch]:
    """The record batches of one message.

    Raises:
        BAD_MESSAGE: It has no value, record batch or column `kind`, or a column of another type.
    """
    if value is None:
        raise ValueError("it has no value")
    with pa.ipc.open_stream(value) as stream:
        record_batches = list(stream)
        if "kind" not in stream.schema.names:
            raise ValueError("its stream has no column `kind`")
    if not record_batches:
        raise ValueError("its stream has no record batch")
    return [_known(batch) for batch in record_batches]


def _known(batch: pa.RecordBatch) -> pa.RecordBatch:
    # Corrupt offsets that point outside of their buffer would end the process.
    batch.validate(full=True)
    if batch.schema.equals(SCHEMA):
        # Without the metadata of the writer: Spark compares schemas.
        return pa.RecordBatch.from_arrays(batch.columns, schema=SCHEMA)
    names = set(batch.schema.names)
    arrays = [
        batch.column(column.name).cast(column.type)
        if column.name in names
        else pa.nulls(batch.num_rows, column.type)
        for column in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _joined(waiting: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(waiting) == 1:
        return waiting
    joined: list[pa.RecordBatch] = pa.Table.from_batches(waiting).combine_chunks().to_batches()
    return joined


def _text(name: str, error: Exception) -> str:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"{name}: the message is no Arrow stream of events ({reason}): is it the right topic? "
        "Leave such messages out with --skip-corrupt (option skip.corrupt=true)"
    )
