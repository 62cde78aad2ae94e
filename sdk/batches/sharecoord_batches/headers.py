"""The headers of record batches: all that must be known of records before somebody wants them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last delta, first and greatest
timestamp, producer id, producer epoch, sequence, number of records."""

HEADER_BYTES: Final = HEADER.size
LENGTH_AT: Final = 8
MAGIC_AT: Final = 16
BEFORE_LENGTH: Final = 12
"""Bytes that `length` does not count."""

COMPRESSION: Final = 0x07
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20


class BatchHeader(NamedTuple):
    """One batch in the bytes that a broker sent."""

    start: int
    end: int
    """In the bytes; the records begin at `start + HEADER_BYTES`."""
    base_offset: int
    last_offset: int
    count: int
    attributes: int
    leader_epoch: int
    crc: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int


def batches(data: memoryview) -> Iterator[BatchHeader]:
    """The whole batches in what a broker sent; it may have cut the last one.

    Raises:
        ValueError: The bytes are no batches of format v2.
    """
    at, end = 0, len(data)
    unpack = HEADER.unpack_from
    while end - at >= HEADER_BYTES:
        (
            base, length, epoch, magic, crc, attributes, last_delta, first_ts, max_ts,
            producer, _, _, count,
        ) = unpack(data, at)  # fmt: skip
        stop = at + BEFORE_LENGTH + length
        if magic != 2:
            raise ValueError(f"the batch at offset {base} has format v{magic}")
        if stop > end:
            return
        if (
            length < HEADER_BYTES - BEFORE_LENGTH
            or last_delta < 0
            or not 0 <= count <= last_delta + 1
        ):
            raise ValueError(f"the header of the batch at offset {base} is not possible")
        yield BatchHeader(
            at,
            stop,
            base,
            base + last_delta,
            count,
            attributes,
            epoch,
            crc,
            first_ts,
            max_ts,
            producer,
        )
        at = stop
