"""Decompresses records, within a limit.

gzip is Python's own; the others are cramjam's (extra `compression`). cramjam writes into a buffer
of a given size and stops where that is full: so a batch that would not end takes no more memory
than the limit, and a usual one little more than its records.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Final

from sharecoord_batches.errors import (
    BatchError,
    BatchTooLargeError,
    BrokenBatchError,
    CodecMissingError,
    UnknownFormatError,
)
from sharecoord_batches.headers import COMPRESSION, HEADER_BYTES, BatchHeader

try:
    import cramjam
except ImportError:
    HAS_CRAMJAM = False
else:
    HAS_CRAMJAM = True

__all__ = ["GZIP", "LIMIT_BYTES", "LZ4", "SNAPPY", "ZSTD", "decompress", "decompressed_records"]

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
NAMES: Final = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
"""By the number of the codec in a batch's attributes."""

LIMIT_BYTES: Final = 128 << 20
"""Of the records of one batch, for callers without a limit of their own. Producers count their
batch size before they compress: 1 MB in librdkafka, 16 kB in Java. One record of a topic with a
raised `max.message.bytes` may be larger; what needs more than this is no data for a queue."""

BUFFER_BYTES_MIN: Final = 64 << 10
GROWTH: Final = 8
"""The first buffer has so many times the compressed bytes, each next one so many times the last:
text is seldom compressed better, and untouched pages of a buffer take no memory."""

SNAPPY_RATIO_MAX: Final = 24
"""Three bytes copy 64 at most: a block that claims more lies."""

XERIAL: Final = b"\x82SNAPPY\x00"
"""The beginning of Java's framing of snappy blocks; versions follow (8 bytes)."""
XERIAL_HEADER_BYTES: Final = 16

SPARE_BYTES_MAX: Final = 8 << 20
"""A buffer of at most this size is kept for the next batch: zeros and fresh pages for each of 1 MB
cost a tenth of what its decompression does."""

_spare: list[bytearray] = []
"""The buffer that is kept; who decompresses takes it out for the time."""

_MARK: Final = os.urandom(16)
"""At the end of a buffer: when it is gone, the buffer was full."""


def decompress(codec: int, data: memoryview | bytes, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """The records behind a batch's header.

    Args:
        codec: The number in a batch's attributes, one of `NAMES`.
        data: All of it; nothing may be left over.
        limit_bytes: Of the result.

    Raises:
        BrokenBatchError: The data was not compressed so, or was damaged.
        BatchTooLargeError: There is more than `limit_bytes`.
        UnknownFormatError: There is no such codec.
        CodecMissingError: cramjam is not installed.
    """
    name = NAMES.get(codec)
    if name is None:
        raise UnknownFormatError(f"the records are compressed with the unknown codec {codec}")
    if codec == GZIP:
        return _gzip(data, limit_bytes)
    if not HAS_CRAMJAM:
        text = "install the extra, sharecoord-batches[compression] (it brings cramjam)"
        raise CodecMissingError(f"records compressed with {name} can not be read: {text}")
    if codec == SNAPPY:
        return _snappy(data, limit_bytes)
    into = (cramjam.lz4 if codec == LZ4 else cramjam.zstd).decompress_into
    return _grown(name, data, into, limit_bytes)


def decompressed_records(
    data: memoryview, header: BatchHeader, limit_bytes: int = LIMIT_BYTES
) -> bytes:
    """The records of a compressed batch (format v2).

    Raises:
        BatchError: As of `decompress`; the text names the batch's offset.
    """
    content = data[header.start + HEADER_BYTES : header.end]
    try:
        return decompress(header.attributes & COMPRESSION, content, limit_bytes)
    except BatchError as error:
        raise type(error)(f"the batch at offset {header.base_offset}: {error}") from None


def _grown(
    name: str,
    data: memoryview | bytes,
    into: Callable[[memoryview | bytes, memoryview], int],
    limit_bytes: int,
) -> bytes:
    """Decompresses into ever larger buffers."""
    room = max(GROWTH * len(data), BUFFER_BYTES_MIN)
    while True:
        room = min(room, limit_bytes)
        buffer = _buffer(room + len(_MARK))
        try:
            with memoryview(buffer)[: room + len(_MARK)] as view:
                view[room:] = _MARK
                try:
                    size = into(data, view)
                except cramjam.DecompressionError as error:
                    # A full buffer is no error of the data; the error's text is not ours to read.
                    if view[room:] == _MARK:
                        raise BrokenBatchError(f"the records are no {name}: {error}") from None
                    size = room + 1
                if size <= room:
                    return bytes(view[:size])
        finally:
            if len(buffer) <= SPARE_BYTES_MAX:
                _spare[:] = [buffer]
        if room == limit_bytes:
            raise _too_large(name, limit_bytes)
        room *= GROWTH


def _buffer(size_bytes: int) -> bytearray:
    """The spare buffer if it is large enough, else a new one; nobody else has it meanwhile."""
    try:
        found = _spare.pop()
    except IndexError:
        return bytearray(size_bytes)
    return found if len(found) >= size_bytes else bytearray(size_bytes)


def _gzip(data: memoryview | bytes, limit_bytes: int) -> bytes:
    out: list[bytes] = []
    left = limit_bytes
    rest: memoryview | bytes = data
    try:
        while True:  # gzip allows for several, one behind the other
            member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            piece = member.decompress(rest, left + 1)
            if len(piece) > left:
                raise _too_large("gzip", limit_bytes)
            if not member.eof:
                raise BrokenBatchError("the records are no gzip: the end is missing")
            out.append(piece)
            left -= len(piece)
            rest = member.unused_data
            if not rest:
                return b"".join(out) if len(out) > 1 else piece
    except zlib.error as error:
        raise BrokenBatchError(f"the records are no gzip: {error}") from None


def _snappy(data: memoryview | bytes, limit_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(XERIAL)]) != XERIAL:
        return _snappy_block(view, limit_bytes, limit_bytes)
    out: list[bytes] = []
    left, at = limit_bytes, XERIAL_HEADER_BYTES
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        at += 4
        if not 0 < size <= len(view) - at:
            raise BrokenBatchError("the records are no snappy: a block is longer than the data")
        out.append(_snappy_block(view[at : at + size], left, limit_bytes))
        left -= len(out[-1])
        at += size
    return b"".join(out)


def _snappy_block(block: memoryview, left: int, limit_bytes: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > SNAPPY_RATIO_MAX * len(block):
            raise BrokenBatchError(f"the records are no snappy: {len(block)} bytes claim {size}")
        if size > left:
            raise _too_large("snappy", limit_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise BrokenBatchError(f"the records are no snappy: {error}") from None


def _too_large(name: str, limit_bytes: int) -> BatchTooLargeError:
    return BatchTooLargeError(f"the records, {name}, have more than {limit_bytes} bytes")
