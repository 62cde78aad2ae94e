"""Fetch (KIP-74, 227, 320, 392, 516), written by hand: all records that are read pass through here.

Version 13 names topics by their ids, version 12 by their names; both are the same in all else that
is used here. An answer keeps the records where they are, in the memory that they came in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sharecoord.errors import KafkaUnavailableError
from sharecoord.kafka.wire.fields import read_tags, read_uvarint

KEY: Final = 1
BY_NAME: Final = 12
BY_ID: Final = 13

NO_EPOCH: Final = -1

_HEAD = struct.Struct(">iiiibii")
_PARTITION = struct.Struct(">iiqiqi")
_ANSWER = struct.Struct(">ihi")
_ANSWER_PARTITION = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")

_DIVERGING_TAG: Final = 0
_LEADER_TAG: Final = 1

_ID_BYTES: Final = 16

_PLACE = struct.Struct(">qi")
"""What every format of batches begins with: base offset, and the length of all behind it."""
_MAGIC_AT: Final = 16
_EPOCH = struct.Struct(">i")
_EPOCH_AT: Final = 12
_LAST_DELTA_AT: Final = 23
_LENGTH_MIN: Final = 14
"""Of a message of format v0 without key and value."""
_LENGTH_MIN_V2: Final = 49

TopicName = str | bytes
"""A topic's name, or (version 13) the 16 bytes of its id."""


class Wanted(NamedTuple):
    """A partition to be read on."""

    partition: int
    offset: int
    leader_epoch: int
    """The epoch of the leader that is asked, as the metadata had it; -1 = not known."""
    last_epoch: int
    """The epoch of the last record before `offset`; -1 = not known: nothing is compared."""
    max_bytes: int


class Aborted(NamedTuple):
    """A transaction that was aborted: records of this producer from `first_offset` on."""

    producer_id: int
    first_offset: int


class Found(NamedTuple):
    """What a broker has of a partition."""

    topic: TopicName
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None
    """The epoch and end offset at which the log leaves what was read (KIP-595); None = nowhere."""
    leader: tuple[int, int] | None
    """Id and epoch of the leader, with an error that says that it is another one."""
    aborted: Sequence[Aborted]
    read_at: int
    """Id of the replica to read at (KIP-392); -1 = the leader."""
    records: memoryview


class Answer(NamedTuple):
    """An answer to a fetch."""

    throttle_ms: int
    error: int
    session_id: int
    found: list[Found]


class Reach(NamedTuple):
    """How far the whole batches in what a broker sent reach."""

    next_offset: int
    """-1 = there is no whole batch."""
    last_epoch: int
    """The epoch of the last one; -1 = not known, as in formats v0 and v1."""
    wanted_bytes: int
    """Length of the first batch when it was cut; 0 = it is whole."""


def reach(records: memoryview) -> Reach:
    """Looks at the length of each batch, and at what the last whole one says of itself.

    Raises:
        ValueError: A batch is not possible.
    """
    at, end, last = 0, len(records), -1
    unpack = _PLACE.unpack_from
    while end - at >= _PLACE.size:
        base, length = unpack(records, at)
        if length < _LENGTH_MIN:
            raise ValueError(f"the batch at offset {base} has an impossible length, {length}")
        if at + _PLACE.size + length > end:
            if last < 0:
                return Reach(-1, NO_EPOCH, _PLACE.size + length)
            break
        last = at
        at += _PLACE.size + length
    if last < 0:
        return Reach(-1, NO_EPOCH, 2 * _PLACE.size if end else 0)
    base, length = unpack(records, last)
    if records[last + _MAGIC_AT] < 2:
        # A message, or a compressed set of messages that has the offset of its last one.
        return Reach(base + 1, NO_EPOCH, 0)
    if length < _LENGTH_MIN_V2:
        raise ValueError(f"the batch at offset {base} has an impossible length, {length}")
    (delta,) = _EPOCH.unpack_from(records, last + _LAST_DELTA_AT)
    (epoch,) = _EPOCH.unpack_from(records, last + _EPOCH_AT)
    if base < 0 or delta < 0:
        raise ValueError(f"the batch at offset {base} has no last offset")
    return Reach(base + delta + 1, max(epoch, NO_EPOCH), 0)


def request(
    version: int,
    topics: Iterable[tuple[TopicName, Sequence[Wanted]]],
    forgotten: Iterable[tuple[TopicName, Sequence[int]]],
    *,
    session: tuple[int, int],
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    committed: bool,
    rack: str,
) -> bytes:
    """The body of a request; `session` is its id and epoch."""
    out = [_HEAD.pack(-1, max_wait_ms, min_bytes, max_bytes, committed, *session)]
    wanted = list(topics)
    out.append(_uvarint(len(wanted) + 1))
    for topic, partitions in wanted:
        out += (_topic(version, topic), _uvarint(len(partitions) + 1))
        for each in partitions:
            place = (each.partition, each.leader_epoch, each.offset, each.last_epoch)
            out += (_PARTITION.pack(*place, -1, each.max_bytes), b"\0")
        out.append(b"\0")
    gone = list(forgotten)
    out.append(_uvarint(len(gone) + 1))
    for topic, numbers in gone:
        out += (_topic(version, topic), _uvarint(len(numbers) + 1))
        out += [number.to_bytes(4, "big") for number in numbers]
        out.append(b"\0")
    out += (_text(rack.encode()), b"\0")
    return b"".join(out)


def answer(version: int, data: memoryview) -> Answer:
    """Reads an answer.

    Raises:
        KafkaUnavailableError: It can not be read.
    """
    try:
        return _answer(version, data)
    except (IndexError, struct.error, ValueError) as error:
        raise KafkaUnavailableError(
            f"an answer to Fetch can not be read: {error}", retry_after_ms=500
        ) from error


def _answer(version: int, data: memoryview) -> Answer:
    throttle_ms, error, session_id = _ANSWER.unpack_from(data, 0)
    found: list[Found] = []
    topics, at = read_uvarint(data, _ANSWER.size)
    for _ in range(topics - 1):
        topic: TopicName
        if version == BY_ID:
            topic, at = bytes(data[at : at + _ID_BYTES]), at + _ID_BYTES
        else:
            size, at = read_uvarint(data, at)
            end = at + max(size - 1, 0)
            topic, at = str(data[at:end], "utf-8"), end
        partitions, at = read_uvarint(data, at)
        for _ in range(partitions - 1):
            one, at = _partition(topic, data, at)
            found.append(one)
        _, at = read_tags(data, at)
    return Answer(throttle_ms, error, session_id, found)


def _partition(topic: TopicName, data: memoryview, at: int) -> tuple[Found, int]:
    number, error, high, stable, log_start = _ANSWER_PARTITION.unpack_from(data, at)
    count, at = read_uvarint(data, at + _ANSWER_PARTITION.size)
    aborted: list[Aborted] = []
    for _ in range(count - 1):
        aborted.append(Aborted(*_ABORTED.unpack_from(data, at)))
        _, at = read_tags(data, at + _ABORTED.size)
    (read_at,) = _EPOCH.unpack_from(data, at)
    size, at = read_uvarint(data, at + 4)
    end = at + max(size - 1, 0)
    if end > len(data):
        raise ValueError(f"its records end at {end} of {len(data)} bytes")
    records = data[at:end]
    tags, at = read_tags(data, end)
    leader = tags.get(_LEADER_TAG)
    found = Found(
        topic,
        number,
        error,
        high,
        stable,
        log_start,
        _diverging(tags.get(_DIVERGING_TAG)),
        None if leader is None else _LEADER.unpack_from(leader),
        aborted,
        read_at,
        records,
    )
    return found, at


def _diverging(tag: memoryview | None) -> tuple[int, int] | None:
    if tag is None:
        return None
    epoch, end_offset = _EPOCH_END.unpack_from(tag)
    return None if end_offset < 0 else (epoch, end_offset)


def _topic(version: int, topic: TopicName) -> bytes:
    if version == BY_ID:
        assert isinstance(topic, bytes), "version 13 has ids"
        return topic
    assert isinstance(topic, str), "version 12 has names"
    return _text(topic.encode())


def _text(content: bytes) -> bytes:
    return _uvarint(len(content) + 1) + content


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
