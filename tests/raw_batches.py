"""Record batches as producers and brokers write them (format v2), for tests of what reads them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import cramjam
import crc32c
from sharecoord_batches.headers import APPEND_TIME, CONTROL, TRANSACTIONAL

from sharecoord.core.records import Headers

COMPRESS: dict[int, Callable[[bytes], object]] = {
    0: bytes,
    1: cramjam.gzip.compress,
    2: cramjam.snappy.compress_raw,
    3: cramjam.lz4.compress,
    4: cramjam.zstd.compress,
}

ABORT, COMMIT = 0, 1


class Rec(NamedTuple):
    """A record of a batch."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = []
    timestamp_ms: int = 1_000


def batch(
    records: Sequence[Rec],
    *,
    base: int | None = None,
    last: int | None = None,
    codec: int = 0,
    append_ms: int | None = None,
    producer: int = -1,
    transactional: bool = False,
    control: bool = False,
    epoch: int = 5,
    count: int | None = None,
    crc: int | None = None,
) -> bytes:
    """A batch; `base` and `last` are its ends where compaction has taken records from them."""
    if base is None:
        base = records[0].offset
    if last is None:
        last = records[-1].offset
    times = [each.timestamp_ms for each in records] or [0]
    content = b"".join(_record(each, base, times[0]) for each in records)
    attributes = codec
    attributes |= APPEND_TIME if append_ms is not None else 0
    attributes |= (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    behind_crc = struct.pack(
        ">hiqqqhii", attributes, last - base, times[0],
        max(times) if append_ms is None else append_ms, producer, 0, 0,
        len(records) if count is None else count,
    ) + bytes(COMPRESS[codec](content))  # type: ignore[call-overload]  # fmt: skip
    if crc is None:
        crc = crc32c.crc32c(behind_crc)
    head = struct.pack(">ibI", epoch, 2, crc)
    return struct.pack(">qi", base, len(head) + len(behind_crc)) + head + behind_crc


def marker(offset: int, producer: int, kind: int) -> bytes:
    """The control batch that ends a transaction."""
    record = Rec(offset, struct.pack(">hi", 0, 0), struct.pack(">hh", 0, kind))
    return batch([record], producer=producer, transactional=True, control=True)


def _record(each: Rec, base: int, first_ms: int) -> bytes:
    body = b"\0" + _varint(each.timestamp_ms - first_ms) + _varint(each.offset - base)
    body += _sized(each.key) + _sized(each.value) + _varint(len(each.headers))
    for name, value in each.headers:
        body += _sized(name.encode(errors="surrogateescape")) + _sized(value)
    return _varint(len(body)) + body


def _sized(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _varint(len(content)) + content


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
