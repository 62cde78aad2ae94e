"""Kafka's record batches of deliveries: as they came, or made of columns where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any, Final

from kio.records.schema import NewRecordBatch, Record, RecordHeader
from kio.records.writers import write_new_batch

from sharecoord.core.delivery import Delivery, Slice

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def record_batches(delivery: Delivery) -> Sequence[bytes | memoryview]:
    """The batches with the records of a delivery, in order of offset; one or more in each piece.

    A batch may have records that are not acquired: members leave out what is not in the acquired
    ranges (KIP-932).
    """
    if len(delivery.slices) == 1:
        (part,) = delivery.slices
        raw = part.chunk.raw(part.start, part.stop)
        if raw is not None:
            return [raw]
    found: dict[int, bytes | memoryview] = {}
    for part in delivery.slices:
        whole = part.chunk.whole(part.start, part.stop)
        if whole is None:
            found[part.chunk.offset(part.start)] = _made(part)
        else:
            found.update((batch.first, batch.content) for batch in whole)
    return [found[first] for first in sorted(found)]


def joined_batches(delivery: Delivery) -> bytes:
    """The batches of a delivery one behind the other, in order of offset."""
    return b"".join(record_batches(delivery))


def _made(part: Slice) -> bytes:
    """A batch of records that are not at hand as a broker sent them."""
    chunk, start, stop = part
    columns = chunk.columns(start, stop)
    # kio has a type for each width of numbers, which checks nothing.
    record: Any = Record
    new_batch: Any = NewRecordBatch
    records = [
        record(
            attributes=0,
            timestamp=_EPOCH + timedelta(milliseconds=columns.timestamps[at]),
            offset=chunk.offset(start + at),
            key=None if columns.keys is None else columns.keys[at],
            value=columns.values[at],
            headers=tuple(
                RecordHeader(key=name.encode("utf-8", "surrogateescape"), value=value)
                for name, value in columns.headers.get(at, ())
            ),
        )
        for at in range(stop - start)
    ]
    batch = new_batch(
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records=tuple(records),
        attributes=8 if chunk.timestamp_type == 2 else 0,
    )
    buffer = BytesIO()
    write_new_batch(buffer, batch)
    return buffer.getvalue()
