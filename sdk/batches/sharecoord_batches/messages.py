"""Messages of the formats v0 and v1: what brokers stored before Kafka 0.11, and still hand out.

A message stands alone, or is the wrapper of compressed ones. There is no C for them: such data is
old, and nobody writes it any more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sharecoord_batches.codecs import LIMIT_BYTES, LZ4, decompress
from sharecoord_batches.errors import BatchError, BrokenBatchError
from sharecoord_batches.headers import (
    APPEND_TIME,
    BEFORE_LENGTH,
    COMPRESSION,
    MESSAGE,
    MESSAGE_LENGTH_MIN,
    MESSAGE_TIMESTAMP,
    BatchHeader,
)
from sharecoord_batches.records import Columns

__all__ = ["message_columns"]

_SIZE: Final = struct.Struct(">i")

_LZ4_CHECKSUM_AT: Final = 6
"""Of the frames that v0 has: no content size, no dictionary."""


class _Message(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def message_columns(
    data: memoryview, headers: Sequence[BatchHeader], limit_bytes: int = LIMIT_BYTES
) -> tuple[int, Columns]:
    """The records of messages that follow each other, and the offset that their deltas start from.

    Args:
        data: What the broker sent.
        headers: Of messages of format v0 or v1, one at least.
        limit_bytes: Of what one wrapper has in it, decompressed.

    Raises:
        BatchError: As of `decompress`, or a message is not what its header says. The text names the
            message's offset.
    """
    found: list[_Message] = []
    for header in headers:
        try:
            inner = list(_messages(data, header, limit_bytes))
        except BatchError as error:
            text = f"the message at offset {header.last_offset}: {error}"
            raise type(error)(text) from None
        if found and inner[0].offset <= found[-1].offset:
            text = f"the messages at offsets {found[-1].offset} and {inner[0].offset}"
            raise BrokenBatchError(f"{text} are not in order of offset")
        found += inner
    base = found[0].offset
    keys = [each.key for each in found]
    return base, (
        [each.offset - base for each in found],
        [each.timestamp for each in found],
        None if keys.count(None) == len(keys) else keys,
        [each.value for each in found],
        {},
    )


def _messages(data: memoryview, header: BatchHeader, limit_bytes: int) -> Iterator[_Message]:
    assert header.magic < len(MESSAGE_LENGTH_MIN), "a batch of format v2 has no messages"
    key, value = _contents(data, header.start, header.end, header.magic)
    codec = header.attributes & COMPRESSION
    if not codec:
        yield _Message(header.last_offset, header.first_timestamp, key, value)
        return
    if value is None:
        raise BrokenBatchError("it is compressed, and has no value")
    if codec == LZ4 and header.magic == 0:
        value = _with_right_checksum(value)
    inner = list(_inner(memoryview(decompress(codec, value, limit_bytes)), header.magic))
    if not inner:
        raise BrokenBatchError("it is compressed, and has no messages")
    # In v1 the wrapper has the offset of the last one, and those in it count from anywhere.
    shift = header.last_offset - inner[-1].offset if header.magic == 1 else 0
    previous = -1
    for row, each in enumerate(inner):
        offset = each.offset + shift
        if not previous < offset <= header.last_offset:
            raise BrokenBatchError(
                f"the offset of message {row} in it is not between those of its neighbours"
            )
        previous = offset
        is_appended = header.attributes & APPEND_TIME
        timestamp = header.first_timestamp if is_appended else each.timestamp
        yield _Message(offset, timestamp, each.key, each.value)


def _inner(data: memoryview, magic: int) -> Iterator[_Message]:
    """The messages in a wrapper, with the offsets that are written there."""
    at = row = 0
    while at < len(data):
        if len(data) - at < MESSAGE.size:
            raise BrokenBatchError("there are bytes behind the last message in it")
        offset, length, _, its_magic, attributes = MESSAGE.unpack_from(data, at)
        end = at + BEFORE_LENGTH + length
        if its_magic != magic or attributes & COMPRESSION:
            raise BrokenBatchError(f"message {row} in it has another format")
        if length < MESSAGE_LENGTH_MIN[magic] or end > len(data):
            raise BrokenBatchError(f"the length of message {row} in it is not possible")
        timestamp = -1
        if magic == 1:
            (timestamp,) = MESSAGE_TIMESTAMP.unpack_from(data, at + MESSAGE.size)
        try:
            key, value = _contents(data, at, end, magic)
        except BrokenBatchError as error:
            raise BrokenBatchError(f"message {row} in it: {error}") from None
        yield _Message(offset, timestamp, key, value)
        at, row = end, row + 1


def _contents(
    data: memoryview, start: int, end: int, magic: int
) -> tuple[bytes | None, bytes | None]:
    """Key and value of the message in [start, end)."""
    at = start + BEFORE_LENGTH + MESSAGE_LENGTH_MIN[magic] - 2 * _SIZE.size
    key, at = _sized(data, at, end, "its key is longer than the message")
    value, at = _sized(data, at, end, "its value is longer than the message")
    if at != end:
        raise BrokenBatchError("it has bytes behind its value")
    return key, value


def _sized(data: memoryview, at: int, end: int, wrong: str) -> tuple[bytes | None, int]:
    if end - at < _SIZE.size:
        raise BrokenBatchError(wrong)
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    if size < 0:
        return None, at
    if size > end - at:
        raise BrokenBatchError(wrong)
    return bytes(data[at : at + size]), at + size


def _with_right_checksum(frame: bytes) -> bytes:
    """An LZ4 frame of v0: its header's checksum counts the magic number, too (KAFKA-3160)."""
    if len(frame) <= _LZ4_CHECKSUM_AT:
        return frame
    checksum = _xxh32(frame[4:_LZ4_CHECKSUM_AT]) >> 8 & 0xFF
    return frame[:_LZ4_CHECKSUM_AT] + bytes([checksum]) + frame[_LZ4_CHECKSUM_AT + 1 :]


def _xxh32(content: bytes) -> int:
    """XXH32 with seed 0 of fewer than four bytes: all that a frame's header needs."""
    found = 374761393 + len(content)
    for byte in content:
        found = found + byte * 374761393 & 0xFFFFFFFF
        found = (found << 11 | found >> 21) * 2654435761 & 0xFFFFFFFF
    found = (found ^ found >> 15) * 2246822519 & 0xFFFFFFFF
    found = (found ^ found >> 13) * 3266489917 & 0xFFFFFFFF
    return found ^ found >> 16
