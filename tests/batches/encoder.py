"""Writes batches and messages as Kafka's documentation has them, field by field."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import crc32c
from sharecoord_batches.records import Fields, Part

Header = tuple[bytes, bytes | None]
INT64 = 1 << 64

FIELDS = Fields(
    deltas=4, timestamps=5, keys=7, values=8, null_keys=9, null_values=10, headers=11, index=1,
    entries=2, name=1, value=2,
)  # fmt: skip
"""As proto/sharecoord/v1/share_types.proto numbers them."""


@dataclass(frozen=True)
class Record:
    """One record of a batch."""

    delta: int
    time: int = 0
    """Milliseconds after the batch's first timestamp."""
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: Sequence[Header] = field(default=())

    def encoded(self) -> bytes:
        """With its length."""
        out = b"\0" + varint(self.time) + varint(self.delta) + sized(self.key) + sized(self.value)
        out += varint(len(self.headers))
        for name, value in self.headers:
            out += sized(name) + sized(value)
        return varint(len(out)) + out


def varint(number: int) -> bytes:
    """A number that may be negative (zigzag), of 64 bits."""
    return unsigned((number << 1 ^ number >> 63) % INT64)


def unsigned(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    out = []
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def sized(content: bytes | None) -> bytes:
    """A length and so many bytes; None has the length -1."""
    return varint(-1) if content is None else varint(len(content)) + content


def body(records: Iterable[Record]) -> bytes:
    """What stands behind the header of a batch that is not compressed."""
    return b"".join([record.encoded() for record in records])


def batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    last_delta: int | None = None,
    attributes: int = 0,
    first_timestamp: int = 1_000,
    max_timestamp: int | None = None,
    content: bytes | None = None,
) -> bytes:
    """A whole batch; `content` = its records, compressed."""
    last = last_delta if last_delta is not None else records[-1].delta if records else 0
    if max_timestamp is None:
        max_timestamp = first_timestamp + max([record.time for record in records], default=0)
    tail = struct.pack(
        ">hiqqqhii", attributes, last, first_timestamp, max_timestamp, -1, -1, -1, len(records)
    )
    tail += body(records) if content is None else content
    middle = struct.pack(">ibI", 7, 2, crc32c.crc32c(tail))
    return struct.pack(">qi", base_offset, len(middle) + len(tail)) + middle + tail


def message(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int = 1,
    attributes: int = 0,
    timestamp: int = 1_000,
) -> bytes:
    """An entry of a message set, as brokers before 0.11 stored them."""
    time = struct.pack(">q", timestamp) if magic else b""
    tail = struct.pack(">bb", magic, attributes) + time + _sized_32(key) + _sized_32(value)
    return struct.pack(">qiI", offset, len(tail) + 4, zlib.crc32(tail)) + tail


def _sized_32(content: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if content is None else struct.pack(">i", len(content)) + content


def part(records: Sequence[Record], **changes: object) -> Part:
    """All of a batch's records as a part."""
    data = body(records)
    whole = Part(
        data=data, position=0, row=0, previous_delta=-1, end=len(data), count=len(records),
        base_offset=0, last_delta=records[-1].delta if records else 0, first_timestamp=1_000,
        append_timestamp=-1, first=0, last=(1 << 63) - 1,
    )  # fmt: skip
    return whole._replace(**changes)  # type: ignore[arg-type]
