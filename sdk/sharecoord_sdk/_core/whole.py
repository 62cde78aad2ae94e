"""Whole record batches: what the coordinator did not open is opened here, once somebody asks.

`sharecoord_batches` does it, a distribution of its own (extra `fast`). Without it the coordinator
is asked for columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

try:
    from sharecoord_batches import checksums, codecs, headers, opener
    from sharecoord_batches.records import Part
except ImportError:
    HAS_BATCHES = False
else:
    HAS_BATCHES = True

#: Most bytes of the records of one batch. A batch that claims more is not opened.
OPENED_BYTES_MAX: Final = 128 * 1024 * 1024

#: Most records of one message: ten times what a coordinator acquires at once. Each takes a byte
#: here before its batch is opened.
RECORDS_MAX: Final = 100_000

_NONE: Final = 0

#: `sharecoord_batches.headers.BatchHeader`.
BatchHeader: TypeAlias = Any

HeadersList = list[tuple[str, bytes | None]]


class Opened(NamedTuple):
    """Records of a batch by column."""

    timestamps: list[int]
    #: None: all are null.
    keys: list[bytes | None] | None
    values: list[bytes | None]
    #: By index; sparse.
    headers: dict[int, HeadersList]


def compressions() -> tuple[int, ...]:
    """The compressions (Kafka's numbers) of the batches that are opened here; none = columns."""
    if not HAS_BATCHES or not opener.HAS_NATIVE:
        return ()
    others = (codecs.SNAPPY, codecs.LZ4, codecs.ZSTD) if codecs.HAS_CRAMJAM else ()
    return (_NONE, codecs.GZIP, *others)


def header_of(content: memoryview | bytes) -> BatchHeader:
    """The header of a batch.

    Raises:
        ValueError: It is no batch.
    """
    found = next(headers.batches(memoryview(content)), None)
    if found is None or found.end != len(content) or found.magic != headers.V2:
        raise ValueError(f"{len(content)} bytes are no record batch of format v2")
    return found


def read(content: memoryview | bytes, header: BatchHeader, offsets: Sequence[int]) -> Opened:
    """The records of a batch at these offsets, which are in order.

    Raises:
        ValueError: The batch can not be opened, or has not all of them.
    """
    view = memoryview(content)
    if checksums.HAS_CRC32C and not checksums.is_intact(view, header):
        raise ValueError(f"its checksum is not {header.crc:#x}: its bytes are damaged")
    data: memoryview | bytes = content
    start = headers.HEADER_BYTES
    if header.attributes & headers.COMPRESSION:
        data, start = codecs.decompressed_records(view, header, OPENED_BYTES_MAX), 0
    base = header.base_offset
    deltas, timestamps, keys, values, named = opener.columns(
        Part(
            data, start, 0, -1, len(data), header.count, base, header.last_offset - base,
            header.first_timestamp,
            header.max_timestamp if header.attributes & headers.APPEND_TIME else -1,
            offsets[0], offsets[-1],
        )
    )  # fmt: skip
    named = {row: _with_texts(each) for row, each in named.items()} if named else named
    found = Opened(timestamps, keys, values, named)
    # Deltas grow, so consecutive ones are what their number says.
    is_run = isinstance(offsets, range) and deltas and base + deltas[0] == offsets[0]
    if is_run and len(deltas) == len(offsets):
        return found
    return _picked(found, {base + delta: row for row, delta in enumerate(deltas)}, offsets)


def _picked(found: Opened, row_of: dict[int, int], offsets: Iterable[int]) -> Opened:
    """The records at some of the offsets."""
    try:
        rows = [row_of[offset] for offset in offsets]
    except KeyError as missing:
        raise ValueError(f"it has no record at offset {missing}") from None
    keys = found.keys
    return Opened(
        [found.timestamps[row] for row in rows],
        None if keys is None else [keys[row] for row in rows],
        [found.values[row] for row in rows],
        {at: found.headers[row] for at, row in enumerate(rows) if row in found.headers},
    )


def _with_texts(pairs: HeadersList) -> HeadersList:
    r"""Headers with names that are text: `\xff` for each byte that is not UTF-8, as in columns."""
    return [
        (name if name.isascii() else _text(name), None if value is None else bytes(value))
        for name, value in pairs
    ]


def _text(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
