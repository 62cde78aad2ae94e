"""Fetch (KIP-74, 227, 320, 392, 516), written by hand: all records that are read pass through here.

Version 13 names topics by their ids, version 12 by their names; both are the same in all else that
is used here. An answer keeps the records where they are, in the memory that they came in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sharecoord.errors import KafkaUnavailableError

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

_DIVERGING_TAG: Final = 0
_LEADER_TAG: Final = 1

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
    """The epoch and end offset at which the log leaves what was read (KIP-595); None = it does not."""
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
    topics, at = _read_uvarint(data, _ANSWER.size)
    for _ in range(topics - 1):
        topic: TopicName
        if version == BY_ID:
            topic, at = bytes(data[at : at + 16]), at + 16
        else:
            size, at = _read_uvarint(data, at)
            topic, at = str(data[at : at + size - 1], "utf-8"), at + size - 1
        partitions, at = _read_uvarint(data, at)
        for _ in range(partitions - 1):
            one, at = _partition(topic, data, at)
            found.append(one)
        _, at = _tags(data, at)
    return Answer(throttle_ms, error, session_id, found)


def _partition(topic: TopicName, data: memoryview, at: int) -> tuple[Found, int]:
    head = _ANSWER_PARTITION.unpack_from(data, at)
    count, at = _read_uvarint(data, at + _ANSWER_PARTITION.size)
    aborted: list[Aborted] = []
    for _ in range(count - 1):
        aborted.append(Aborted(*_ABORTED.unpack_from(data, at)))
        _, at = _tags(data, at + _ABORTED.size)
    read_at = int.from_bytes(data[at : at + 4], "big", signed=True)
    size, at = _read_uvarint(data, at + 4)
    end = at + max(size - 1, 0)
    if end > len(data):
        raise ValueError(f"its records end at {end} of {len(data)} bytes")
    records = data[at:end]
    tags, at = _tags(data, end)
    diverging, leader = tags.get(_DIVERGING_TAG), tags.get(_LEADER_TAG)
    return (
        Found(
            topic,
            *head,
            None if diverging is None else _EPOCH_END.unpack_from(diverging),  # type: ignore[arg-type]
            None if leader is None else struct.unpack_from(">ii", leader),  # type: ignore[arg-type]
            aborted,
            read_at,
            records,
        ),
        at,
    )


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


def _read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7


def _tags(data: memoryview, at: int) -> tuple[dict[int, memoryview], int]:
    """Tagged fields (KIP-482), and where they end."""
    count, at = _read_uvarint(data, at)
    found: dict[int, memoryview] = {}
    for _ in range(count):
        tag, at = _read_uvarint(data, at)
        size, at = _read_uvarint(data, at)
        if at + size > len(data):
            raise ValueError("a tagged field is longer than the answer")
        found[tag] = data[at : at + size]
        at += size
    return found, at
