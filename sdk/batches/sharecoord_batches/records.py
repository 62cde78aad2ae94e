"""The records of Kafka's record batches (format v2), without C: slower, and equal in all else.

See `Part` for what both take, `columns` and `encode` for what they do. Whoever calls this has
checked the batch's header and decompressed its records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

RECORD_BYTES_MIN = 7
"""A record without key, value and headers: seven varints and bytes of one byte each."""

_INT64 = 1 << 64


class Part(NamedTuple):
    """The records of one batch that are wanted, and where in it to begin.

    A cursor (`position`, `row`, `previous_delta`) is where the last call ended; (start of the
    records, 0, -1) is the beginning.
    """

    data: bytes | bytearray | memoryview
    """Decompressed."""
    position: int
    row: int
    previous_delta: int
    end: int
    """Of the records in `data`."""
    count: int
    """Records of the whole batch, as its header says."""
    base_offset: int
    last_delta: int
    first_timestamp: int
    append_timestamp: int
    """Of all records, where the topic has log append time; else -1."""
    first: int
    last: int
    """Wanted are offsets in [first, last]."""


class Fields(NamedTuple):
    """Numbers of the fields of `RecordBatch` in protobuf, and of the messages behind `headers`."""

    deltas: int
    timestamps: int
    keys: int
    values: int
    null_keys: int
    null_values: int
    headers: int
    index: int
    entries: int
    name: int
    value: int


Headers: TypeAlias = list[tuple[str, bytes | None]]
"""A byte of a name that is not UTF-8 is a lone surrogate (`surrogateescape`)."""

Columns: TypeAlias = tuple[
    list[int], list[int], list[bytes | None] | None, list[bytes | None], dict[int, Headers]
]
"""Offset deltas, timestamps, keys (None: all are null), values, headers by index."""

Cursor: TypeAlias = tuple[int, int, int]
"""Position, row and previous delta of the next part of the same batch."""

Encoded: TypeAlias = tuple[bytes, int, int, int, int, list[Cursor]]
"""Columns in protobuf's encoding, records, first and last offset, bytes of keys and values, and a
cursor for each part."""


class _Record(NamedTuple):
    delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None


def columns(part: Part) -> Columns:
    """The wanted records of a batch as columns.

    Raises:
        ValueError: A record is not what the batch says, and which one.
    """
    reader = _Reader(part)
    records = list(reader)
    keys = [record.key for record in records]
    return (
        [record.delta for record in records],
        [record.timestamp for record in records],
        None if all(key is None for key in keys) else keys,
        [record.value for record in records],
        {i: record.headers for i, record in enumerate(records) if record.headers},
    )


def encode(parts: Sequence[Part], fields: Fields) -> Encoded:
    """The wanted records of batches, in order of offset, as one message's columns.

    Raises:
        ValueError: As of `columns`, or there are no records, or they are not in order.
    """
    rows: list[tuple[int, _Record]] = []
    cursors: list[Cursor] = []
    for part in parts:
        reader = _Reader(part)
        rows += [(part.base_offset + record.delta, record) for record in reader]
        cursors.append(reader.cursor)
    if not rows:
        raise ValueError("the parts have none of the records that are wanted")
    offsets = [offset for offset, _ in rows]
    deltas = [offset - offsets[0] for offset in offsets]
    if deltas[-1] >> 32 or any(a >= b for a, b in zip(deltas, deltas[1:], strict=False)):
        raise ValueError("the parts are not in order of offset, or too far apart")
    records = [record for _, record in rows]
    keys = [record.key for record in records]
    values = [record.value for record in records]
    out = bytearray()
    if deltas[-1] != len(rows) - 1:
        out += _field(fields.deltas, b"".join(map(_varint, deltas)))
    out += _field(fields.timestamps, b"".join([_varint(r.timestamp % _INT64) for r in records]))
    has_keys = any(key is not None for key in keys)
    if has_keys:
        out += b"".join([_field(fields.keys, key or b"") for key in keys])
    out += b"".join([_field(fields.values, value or b"") for value in values])
    if has_keys and None in keys:
        out += _field(fields.null_keys, _null_bits(keys))
    if None in values:
        out += _field(fields.null_values, _null_bits(values))
    for index, record in enumerate(records):
        if record.headers:
            out += _field(fields.headers, _encoded_headers(fields, index, record.headers))
    payload = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
    return bytes(out), len(rows), offsets[0], offsets[-1], payload, cursors


class _Reader:
    """Reads the records of a part; it is at `cursor`."""

    def __init__(self, part: Part) -> None:
        size = len(part.data)
        room = (part.end - part.position) // RECORD_BYTES_MIN
        if (
            not 0 <= part.position <= part.end <= size
            or not 0 <= part.row <= part.count
            or part.previous_delta < -1
            or part.count - part.row > room
            or part.base_offset < 0
            or not 0 <= part.last_delta < 1 << 31
            or part.base_offset >= (1 << 63) - part.last_delta
            or not 0 <= part.first <= part.last
        ):
            text = f"a batch of {part.end - part.position} bytes can not have these {part.count} records"
            raise ValueError(text)
        self._part = part
        self.cursor: Cursor = (part.position, part.row, part.previous_delta)

    def __iter__(self) -> Iterator[_Record]:
        part = self._part
        first, last = part.first - part.base_offset, part.last - part.base_offset
        position, row, previous = self.cursor
        while row < part.count:
            try:
                end, delta, record = self._next(position, previous, first, last)
            except _WrongError as error:
                raise ValueError(f"record {row} of the batch: {error}") from None
            if delta > last:
                return
            position, row, previous = end, row + 1, delta
            self.cursor = position, row, previous
            if record is not None:
                yield record
        if position != part.end:
            raise ValueError("there are bytes behind the last record of the batch")

    def _next(
        self, at: int, previous: int, first: int, last: int
    ) -> tuple[int, int, _Record | None]:
        """Where the record at `at` ends, its delta, and the record; None = it is not wanted."""
        part = self._part
        data = part.data
        length, at = _read(data, at, part.end, "its length can not be read")
        if not RECORD_BYTES_MIN - 1 <= length <= part.end - at:
            raise _WrongError("its length is not that of a record")
        end = at + length
        delta_ms, at = _read(data, at + 1, end, "its timestamp can not be read")
        delta, at = _read(data, at, end, "its offset can not be read")
        if not previous < delta <= part.last_delta:
            raise _WrongError("its offset is not between those of its neighbours")
        if delta < first:
            return end, delta, None
        key, at = _sized(data, at, end, "its key is longer than the record")
        value, at = _sized(data, at, end, "its value is longer than the record")
        count, at = _read(data, at, end, "its number of headers is not possible")
        if not 0 <= count <= end - at:
            raise _WrongError("its number of headers is not possible")
        headers: Headers | None = None
        if count:
            headers, at = self._headers(at, end, count)
        if at != end:
            raise _WrongError("it has bytes behind its headers")
        timestamp = part.append_timestamp
        if timestamp < 0:
            timestamp = (part.first_timestamp + delta_ms + _INT64 // 2) % _INT64 - _INT64 // 2
        return end, delta, _Record(delta, timestamp, key, value, headers)

    def _headers(self, at: int, end: int, count: int) -> tuple[Headers, int]:
        data = self._part.data
        headers: Headers = []
        for _ in range(count):
            name, at = _sized(data, at, end, "the name of a header is longer than the record")
            if name is None:
                raise _WrongError("the name of a header is longer than the record")
            value, at = _sized(data, at, end, "the value of a header is longer than the record")
            headers.append((name.decode(errors="surrogateescape"), value))
        return headers, at


class _WrongError(Exception):
    """What is wrong with a record."""


def _read(data: bytes | bytearray | memoryview, at: int, end: int, wrong: str) -> tuple[int, int]:
    """A zigzag varint of at most 64 bits, and where it ends."""
    found = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            if found >> 64:
                break
            return found >> 1 ^ -(found & 1), at
        shift += 7
        if shift > 63:
            break
    raise _WrongError(wrong)


def _sized(
    data: bytes | bytearray | memoryview, at: int, end: int, wrong: str
) -> tuple[bytes | None, int]:
    """So many bytes as a varint says, and where they end; a negative length is a null."""
    size, at = _read(data, at, end, wrong)
    if size < 0:
        return None, at
    if size > end - at:
        raise _WrongError(wrong)
    return bytes(data[at : at + size]), at + size


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _null_bits(column: Sequence[bytes | None]) -> bytes:
    bits = bytearray((len(column) + 7) // 8)
    for i, entry in enumerate(column):
        if entry is None:
            bits[i >> 3] |= 1 << (i & 7)
    return bytes(bits)


def _encoded_headers(fields: Fields, index: int, headers: Headers) -> bytes:
    out = bytearray()
    if index:
        out += _varint(fields.index << 3) + _varint(index)
    for name, value in headers:
        text = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        entry = _field(fields.name, text.encode())
        if value is not None:
            entry += _field(fields.value, value)
        out += _field(fields.entries, entry)
    return bytes(out)
