"""The headers of record batches: all that must be known of records before somebody wants them.

A message of the formats v0 and v1 (Kafka before 0.11) stands for a batch of its own: `messages`
opens it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from sharecoord_batches.errors import BrokenBatchError, UnknownFormatError

__all__ = [
    "APPEND_TIME",
    "COMPRESSION",
    "CONTROL",
    "HEADER_BYTES",
    "TRANSACTIONAL",
    "UNKNOWN",
    "V2",
    "BatchHeader",
    "batches",
]

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last delta, first and greatest
timestamp, producer id, producer epoch, sequence, number of records."""

HEADER_BYTES: Final = HEADER.size
BEFORE_LENGTH: Final = 12
"""Bytes that `length` does not count."""

MESSAGE: Final = struct.Struct(">qiIbB")
"""The beginning of a message (v0, v1): offset, length, CRC, magic, attributes."""

MESSAGE_TIMESTAMP: Final = struct.Struct(">q")
MESSAGE_LENGTH_MIN: Final = (14, 22)
"""CRC, magic, attributes, (v1) timestamp, sizes of key and value: in v0, in v1."""

COMPRESSION: Final = 0x07
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

V2: Final = 2
"""The format of batches; messages have 0 or 1."""

UNKNOWN: Final = -1
"""What only the records tell: base offset and count of a compressed message of v0 or v1."""


class BatchHeader(NamedTuple):
    """One batch in the bytes that a broker sent, or one message of an old format."""

    start: int
    end: int
    """In the bytes; the records begin at `start + HEADER_BYTES`."""
    base_offset: int
    last_offset: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    attributes: int
    leader_epoch: int
    """-1 = not known; so of old formats."""
    crc: int
    first_timestamp: int
    """-1 in format v0."""
    max_timestamp: int
    producer_id: int
    """-1 = none."""
    magic: int
    """The format: `V2`, or 1 and 0 for messages."""


def batches(data: memoryview) -> Iterator[BatchHeader]:
    """The whole batches in what a broker sent; it may have cut the last one.

    None at all, though there are bytes: the first batch is larger than what was asked for.

    Raises:
        BrokenBatchError: A header contradicts itself. Those before it were handed out.
        UnknownFormatError: A batch has a format above v2.
    """
    at, end = 0, len(data)
    unpack, new = HEADER.unpack_from, tuple.__new__
    while True:
        if end - at >= HEADER_BYTES:
            (
                base, length, epoch, magic, crc, attributes, last_delta, first_ts, max_ts,
                producer, _, _, count,
            ) = unpack(data, at)  # fmt: skip
            if magic == V2:
                stop = at + BEFORE_LENGTH + length
                if stop > end:
                    return
                last = base + last_delta
                if stop - at < HEADER_BYTES or base < 0 or not -1 < count <= last_delta + 1:
                    raise BrokenBatchError(
                        f"the header of the batch at offset {base} is not possible"
                    )
                if last >> 63:
                    raise BrokenBatchError(f"the batch at offset {base} ends behind all offsets")
                yield new(
                    BatchHeader,
                    (
                        at,
                        stop,
                        base,
                        last,
                        count,
                        attributes,
                        epoch,
                        crc,
                        first_ts,
                        max_ts,
                        producer,
                        V2,
                    ),
                )
                at = stop
                continue
        found = _message(data, at, end)
        if found is None:
            return
        yield found
        at = found.end


def _message(data: memoryview, at: int, end: int) -> BatchHeader | None:
    """The message at `at`; None = it was cut."""
    if end - at < MESSAGE.size:
        return None
    offset, length, crc, magic, attributes = MESSAGE.unpack_from(data, at)
    if not 0 <= magic <= V2:
        raise UnknownFormatError(f"the batch at offset {offset} has the unknown format v{magic}")
    stop = at + BEFORE_LENGTH + length
    if magic == V2 or stop > end:
        return None
    if length < MESSAGE_LENGTH_MIN[magic] or offset < 0:
        raise BrokenBatchError(f"the header of the message at offset {offset} is not possible")
    timestamp = -1
    if magic == 1:
        (timestamp,) = MESSAGE_TIMESTAMP.unpack_from(data, at + MESSAGE.size)
    else:
        attributes &= COMPRESSION
    base, count = (UNKNOWN, UNKNOWN) if attributes & COMPRESSION else (offset, 1)
    return BatchHeader(
        at, stop, base, offset, count, attributes, -1, crc, timestamp, timestamp, -1, magic
    )
