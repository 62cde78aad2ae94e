"""From librdkafka's messages to columns: the only per-message code between Kafka and a worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

from sharecoord.core.dispatch.schedule import due_times
from sharecoord.core.records import RECORD_OVERHEAD_BYTES, ColumnChunk, Headers, RecordChunk
from sharecoord.errors import (
    KafkaUnavailableError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ingest.notes import LOST_HEADERS, UNUSABLE_SCHEDULES, RecordNotes
from sharecoord.kafka.client import END_OF_PARTITION, GONE, OUT_OF_RANGE, Message
from sharecoord.kafka.headers import read_headers


def build_chunks(messages: Sequence[Message], covers_from: int) -> list[RecordChunk]:
    """Columns of messages of one partition: one chunk for each type of timestamps and each leader.

    The type is the topic's `message.timestamp.type` when a batch was written; both hardly change,
    and epochs of leaders never go back.
    """
    if messages and _kind(messages[0]) == _kind(messages[-1]):
        return [build_chunk(messages, covers_from)]
    chunks: list[RecordChunk] = []
    for _, run in groupby(messages, key=_kind):
        chunks.append(build_chunk(list(run), covers_from))
        covers_from = chunks[-1].last + 1
    return chunks


def _kind(message: Message) -> tuple[int, int | None]:
    return message.timestamp()[0], message.leader_epoch()


def build_chunk(messages: Sequence[Message], covers_from: int) -> RecordChunk:
    """Columns of messages of one kind (see `build_chunks`), in order of offset, none an error."""
    first, last = messages[0].offset(), messages[-1].offset()
    assert first is not None, "a message of a log has an offset"
    assert last is not None, "a message of a log has an offset"
    values = [m.value() for m in messages]
    keys: list[bytes | None] | None = [m.key() for m in messages]
    assert keys is not None, "just made"
    timestamps = [m.timestamp() for m in messages]
    size = sum(map(len, filter(None, values)))
    if any(keys):
        size += sum(map(len, filter(None, keys)))
    elif not any(key is not None for key in keys):
        keys = None
    found, lost = read_headers(messages)
    if lost:
        _note(LOST_HEADERS, messages[lost[0]], len(lost), "the Kafka client could not read them")
    headers: dict[int, Headers] = {}
    if any(found):
        headers = {index: each for index, each in enumerate(found) if each}
    due: dict[int, int] = {}
    if headers:
        due, unusable = due_times(headers, [t[1] for t in timestamps], time.time_ns() // 1_000_000)
        for index, problem in unusable[:1]:
            _note(UNUSABLE_SCHEDULES, messages[index], len(unusable), problem)
    contiguous = last - first + 1 == len(messages)
    epoch = messages[-1].leader_epoch()
    return ColumnChunk(
        covers_from=covers_from,
        first=first,
        last=last,
        offsets=None if contiguous else [m.offset() for m in messages],  # type: ignore[misc]
        timestamps=[t[1] for t in timestamps],
        timestamp_type=timestamps[0][0],
        keys=keys,
        values=values,
        headers=headers,
        size_bytes=size + RECORD_OVERHEAD_BYTES * len(values),
        leader_epoch=-1 if epoch is None else epoch,
        due_times=due,
    )


def _note(notes: RecordNotes, first: Message, records: int, problem: str) -> None:
    place = first.topic() or "", first.partition() or 0, first.offset() or 0
    notes.note(*place, records, problem)


def is_end(message: Message, where: str, position: int) -> bool:
    """Whether an event says that the log of `where` ends at or after `position`.

    Raises:
        SharecoordError: The event is an error: nothing can be read at `position`.
    """
    error = message.error()
    assert error is not None, "only events come here"
    if error.code() == END_OF_PARTITION:
        return (message.offset() or 0) >= position
    if error.code() in OUT_OF_RANGE:
        raise OffsetOutOfRangeError(f"offset {position} of {where} is not in the log any more")
    if error.code() in GONE:
        raise UnknownTopicOrPartitionError(f"{where} does not exist any more")
    raise KafkaUnavailableError(f"reading {where} failed: {error.str()}", retry_after_ms=500)
