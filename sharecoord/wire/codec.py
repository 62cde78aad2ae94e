"""Between proto messages and core values. The only code that knows the columns of a batch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import cast

from sharecoord_batches.opener import encode
from sharecoord_batches.records import Fields, varint

from sharecoord.core import limits
from sharecoord.core.changes import LANE_MARK, LogId, PartitionKey
from sharecoord.core.delivery import Assignment, Delivery, LostRange, PartitionResult
from sharecoord.core.partition.decisions import Acknowledgements, TakenBack
from sharecoord.core.partition.share_partition import AcknowledgedRange, HeldRange, RangeOutcome
from sharecoord.core.records import Columns, Headers, Part, header_text
from sharecoord.core.states import AcknowledgeType, TakenBackReason
from sharecoord.errors import InvalidRequestError, UnreadableRecordsError
from sharecoord.wire import share_service_pb2 as service
from sharecoord.wire import share_types_pb2 as types

DELAY_MS_MAX = 2**53
"""Longest delay of a release; a time that far ahead still fits 64 bits of every database."""

PREFIXES_MAX = 4_096
"""Most lengths of payloads whose encoding is remembered: half a megabyte."""

_COMPRESSIONS = frozenset(types.Compression.values())

_TYPES = {int(kind): kind for kind in AcknowledgeType}


def topic_partition(key: PartitionKey) -> types.TopicPartition:
    """A share-partition's place on the wire."""
    return types.TopicPartition(
        topic=key.topic, partition=key.partition, topic_id=key.topic_id_bytes, lane=key.lane
    )


def name_of(place: types.TopicPartition) -> str:
    """The topic's name, or a lane's; see `PartitionKey.name`."""
    return f"{place.topic}{LANE_MARK}{place.lane}" if place.lane else place.topic


def fill_record_batch(batch: types.RecordBatch, delivery: Delivery, now_ms: int) -> None:
    """Fills an empty message with a delivery: its columns, or its whole batches.

    The message is made by its parent (`batches.add()`): putting a finished one into a parent
    would copy every payload once more.

    Raises:
        UnreadableRecordsError: A raw batch can not be opened.
    """
    if delivery.whole:
        _fill_envelope(batch, delivery, now_ms)
        batch.whole_batches.extend(bytes(each.content) for each in delivery.whole)
        return
    raw = _encoded(delivery)
    if raw is not None:
        batch.MergeFromString(raw)
    _fill_envelope(batch, delivery, now_ms)
    if raw is None:
        values, keys = _fill_columns(batch, delivery)
        batch.values.extend(values)
        batch.keys.extend(keys)


def delivery_frame(delivery: Delivery, now_ms: int) -> bytes:
    """A serialised ConsumeResponse with one batch.

    Payloads are joined to the rest by hand, in protobuf's encoding: through a message they would
    be copied four times, into fresh memory each time (docs/decisions/0005).

    Raises:
        UnreadableRecordsError: A raw batch can not be opened.
    """
    batch = types.RecordBatch()
    _fill_envelope(batch, delivery, now_ms)
    if delivery.whole:
        return _whole_frame(batch, delivery)
    raw = _encoded(delivery)
    if raw is not None:
        head = batch.SerializeToString()
        return b"".join([_prefix(_BATCHES, len(head) + len(raw)), head, raw])
    values, keys = _fill_columns(batch, delivery)
    head = batch.SerializeToString()
    keys_bytes, key_parts = _entries(_KEY_PREFIXES, keys)
    values_bytes, value_parts = _entries(_VALUE_PREFIXES, values)
    size = len(head) + keys_bytes + values_bytes
    return b"".join([_prefix(_BATCHES, size), head, *key_parts, *value_parts])


def _whole_frame(batch: types.RecordBatch, delivery: Delivery) -> bytes:
    """The frame of a delivery of whole batches, which are copied once."""
    head = batch.SerializeToString()
    parts: list[bytes | memoryview] = [b"", head]
    size = len(head)
    for each in delivery.whole:
        before = _WHOLE_PREFIXES[len(each.content)]
        size += len(before) + len(each.content)
        parts += before, each.content
    parts[0] = _prefix(_BATCHES, size)
    return b"".join(parts)


def _encoded(delivery: Delivery) -> bytes | None:
    """The columns of a delivery in protobuf's encoding, if all its records lie in raw batches."""
    parts: list[Part] = []
    ends: list[int] = []
    for chunk, start, stop in delivery.slices:
        found = chunk.parts(start, stop)
        if found is None:
            return None
        parts += found
        ends.append(len(parts) - 1)
    try:
        columns, records, _, _, _, cursors = encode(parts, _FIELDS)
        if records != delivery.records:
            raise ValueError(f"there are {records} records in place of {delivery.records}")
    except ValueError as error:
        place = delivery.key.topic, delivery.key.partition
        raise UnreadableRecordsError.of(*place, _base(delivery), error) from error
    for (chunk, _, stop), at in zip(delivery.slices, ends, strict=True):
        chunk.read_to(chunk.offset(stop - 1), cursors[at])
    return columns


def _prefix(field: int, length: int) -> bytes:
    """Tag and length of a length-delimited field, both as varints."""
    return varint(field << 3 | 2) + varint(length)


class _Prefixes(dict[int, bytes]):
    """Encoded tag and length before an entry of a column, by the entry's length."""

    def __init__(self, column: str) -> None:
        self._field = types.RecordBatch.DESCRIPTOR.fields_by_name[column].number

    def __missing__(self, length: int) -> bytes:
        if len(self) >= PREFIXES_MAX:
            self.clear()
        self[length] = found = _prefix(self._field, length)
        return found


_BATCHES = service.ConsumeResponse.DESCRIPTOR.fields_by_name["batches"].number
_KEY_PREFIXES = _Prefixes("keys")
_VALUE_PREFIXES = _Prefixes("values")
_WHOLE_PREFIXES = _Prefixes("whole_batches")


def _fields() -> Fields:
    """The numbers of what `encode` writes."""
    columns = types.RecordBatch.DESCRIPTOR.fields_by_name
    names = ("offset_deltas", "timestamps_ms", "keys", "values", "null_keys", "null_values")
    record, header = types.RecordHeaders, types.Header
    of_record, of_header = (each.DESCRIPTOR.fields_by_name for each in (record, header))
    return Fields(
        *(columns[name].number for name in (*names, "headers")),
        *(of_record[name].number for name in ("index", "headers")),
        *(of_header[name].number for name in ("key", "value")),
    )


_FIELDS = _fields()


def _entries(prefixes: _Prefixes, column: list[bytes]) -> tuple[int, list[bytes]]:
    """A column as it stands in a serialised message: its size in bytes, and its parts."""
    lengths = list(map(len, column))
    before = list(map(prefixes.__getitem__, lengths))
    parts = before + column
    parts[::2] = before
    parts[1::2] = column
    return sum(lengths) + sum(map(len, before)), parts


def _base(delivery: Delivery) -> int:
    chunk, start, _ = delivery.slices[0]
    return chunk.offset(start)


def _fill_envelope(batch: types.RecordBatch, delivery: Delivery, now_ms: int) -> None:
    """Fills everything except the columns."""
    key = delivery.key
    place = batch.partition
    place.topic, place.partition, place.topic_id = key.topic, key.partition, key.topic_id_bytes
    place.lane = key.lane
    batch.base_offset = _base(delivery)
    batch.record_count = delivery.records
    batch.credit_bytes = delivery.size_bytes
    batch.timestamp_type = delivery.slices[0].chunk.timestamp_type
    batch.replay_epoch = delivery.replay_epoch
    for r in delivery.ranges:
        batch.ranges.add(
            first_offset=r.first,
            last_offset=r.last,
            delivery_count=r.delivery_count,
            lock_token=r.lock_token,
            lock_remaining_ms=max(r.deadline_ms - now_ms, 0),
        )
    if delivery.whole and delivery.records != sum(r.last - r.first + 1 for r in delivery.ranges):
        _add_offset_deltas(batch, delivery)
    if delivery.checkpoints:
        _add_checkpoints(batch, delivery)


def _fill_columns(batch: types.RecordBatch, delivery: Delivery) -> tuple[list[bytes], list[bytes]]:
    """Fills all columns except values and keys.

    Returns:
        Values and keys, nulls as empty entries; no keys = an empty column.
    """
    slices = delivery.slices
    found = [chunk.columns(start, stop) for chunk, start, stop in slices]
    timestamps, keys, values, _ = found[0] if len(found) == 1 else _joined(found)
    batch.timestamps_ms.extend(timestamps)
    last, _, stop = slices[-1]
    if last.offset(stop - 1) - _base(delivery) + 1 != delivery.records:
        _add_offset_deltas(batch, delivery)
    position = 0
    for columns in found:
        for index, headers in columns.headers.items():
            _add_each(batch.headers.add(index=position + index), headers)
        position += len(columns.values)
    values, batch.null_values = _without_nulls(values)
    if keys is not None and keys.count(None) == len(keys):
        keys = None
    if keys is not None:
        keys, batch.null_keys = _without_nulls(keys)
    return cast("tuple[list[bytes], list[bytes]]", (values, keys or []))


def _joined(parts: Sequence[Columns]) -> Columns:
    """Columns of several slices; their headers stay apart."""
    any_keys = any(part.keys is not None for part in parts)
    keys: list[bytes | None] = []
    for part in parts if any_keys else ():
        keys += part.keys if part.keys is not None else [None] * len(part.values)
    return Columns(
        list(chain.from_iterable(part.timestamps for part in parts)),
        keys if any_keys else None,
        list(chain.from_iterable(part.values for part in parts)),
        {},
    )


def _add_offset_deltas(batch: types.RecordBatch, delivery: Delivery) -> None:
    base = _base(delivery)
    for chunk, start, stop in delivery.slices:
        for first, last in chunk.runs(chunk.offset(start), chunk.offset(stop - 1)):
            batch.offset_deltas.extend(range(first - base, last - base + 1))


def _without_nulls(column: list[bytes | None]) -> tuple[list[bytes | None], bytes]:
    """The column with its nulls as empty entries, and their bits (none without nulls)."""
    if None not in column:
        return column, b""
    bits = bytearray((len(column) + 7) // 8)
    for i, entry in enumerate(column):
        if entry is None:
            bits[i >> 3] |= 1 << (i & 7)
    return [entry or b"" for entry in column], bytes(bits)


def _add_each(entry: types.RecordHeaders, headers: Headers) -> None:
    for name, value in headers:
        try:
            entry.headers.add(key=name, value=value)
        except UnicodeEncodeError:
            entry.headers.add(key=header_text(name), value=value)


def _add_checkpoints(batch: types.RecordBatch, delivery: Delivery) -> None:
    position = 0
    offsets = [offset for offset, _ in delivery.checkpoints]
    for chunk, start, stop in delivery.slices:
        first, last = chunk.offset(start), chunk.offset(stop - 1)
        for at in range(bisect_left(offsets, first), bisect_right(offsets, last)):
            offset, data = delivery.checkpoints[at]
            index, end = chunk.span(offset, offset)
            if index < end:
                batch.checkpoints.add(index=position + index - start, data=data)
        position += stop - start


def opened(compressions: Iterable[int]) -> frozenset[int]:
    """The compressions that a member can open; numbers that this release does not know are not."""
    return frozenset(compressions) & _COMPRESSIONS


def acknowledged_ranges(ranges: Iterable[types.AcknowledgedRange]) -> list[AcknowledgedRange]:
    """A member's acknowledgements, checked as far as a message can be checked by itself.

    Raises:
        InvalidRequestError: A type that does not exist, a reason, a delay or a checkpoint that is
            too long, or a checkpoint that goes with another type than RENEW.
    """
    found: list[AcknowledgedRange] = []
    for item in ranges:
        kind = _TYPES.get(item.type)
        if kind is None:
            raise InvalidRequestError(
                f"acknowledgements.ranges.type {item.type} for offsets {item.first_offset} to "
                f"{item.last_offset} is not one of ACCEPT, RELEASE, REJECT, RENEW, RETURN"
            )
        # A NUL is a character to protobuf, and none to databases.
        reason: str | None = item.reason.replace("\x00", "\ufffd") or None
        if reason is not None and len(reason.encode()) > limits.REASON_BYTES_MAX:
            raise InvalidRequestError(
                f"acknowledgements.ranges.reason has more than {limits.REASON_BYTES_MAX} bytes"
            )
        if item.delay_ms > DELAY_MS_MAX:
            raise InvalidRequestError(
                f"acknowledgements.ranges.delay_ms {item.delay_ms} is more than {DELAY_MS_MAX}"
            )
        found.append(
            AcknowledgedRange(
                item.first_offset,
                item.last_offset,
                kind,
                item.lock_token,
                item.delay_ms,
                reason,
                _checkpoint(item, kind) if item.HasField("checkpoint") else None,
            )
        )
    return found


def put_acknowledged_ranges(
    into: types.PartitionAcknowledgements, ranges: Iterable[AcknowledgedRange]
) -> None:
    """Writes acknowledgements, for the partition's owner; `acknowledged_ranges` reads them."""
    for each in ranges:
        into.ranges.add(
            first_offset=each.first,
            last_offset=each.last,
            type=int(each.type),
            lock_token=each.lock_token,
            delay_ms=each.delay_ms,
            reason=each.reason or "",
            checkpoint=each.checkpoint,
        )


def _checkpoint(item: types.AcknowledgedRange, kind: AcknowledgeType) -> bytes:
    name = "acknowledgements.ranges.checkpoint"
    if kind is not AcknowledgeType.RENEW or item.first_offset != item.last_offset:
        raise InvalidRequestError(f"{name} goes with the RENEW of one record only")
    if len(item.checkpoint) > limits.CHECKPOINT_BYTES_MAX:
        raise InvalidRequestError(
            f"{name} of offset {item.first_offset} has {len(item.checkpoint)} bytes; "
            f"{limits.CHECKPOINT_BYTES_MAX} is the most"
        )
    return item.checkpoint


def acknowledgements(items: Iterable[types.PartitionAcknowledgements]) -> Acknowledgements:
    """Acknowledgements by place, topics by name; see `GroupActor.acknowledge`."""
    return [
        (
            name_of(item.partition),
            item.partition.topic_id.hex(),
            item.partition.partition,
            acknowledged_ranges(item.ranges),
        )
        for item in items
    ]


def held_range(item: types.HeldRange) -> tuple[LogId, HeldRange]:
    """An entry of a lock book."""
    place = item.partition
    held = HeldRange(item.first_offset, item.last_offset, item.lock_token)
    return (name_of(place), place.topic_id.hex(), place.partition), held


def taken_back(key: PartitionKey, ranges: Iterable[TakenBack]) -> list[service.TakenBack]:
    """Notices for a member about locks that others ended, one for each reason."""
    notices: dict[TakenBackReason, service.TakenBack] = {}
    for each in ranges:
        notice = notices.get(each.reason)
        if notice is None:
            notice = notices[each.reason] = service.TakenBack(
                partition=topic_partition(key),
                reason=int(each.reason),  # type: ignore[arg-type]
            )
        notice.ranges.add(
            first_offset=each.first, last_offset=each.last, lock_token=each.lock_token
        )
    return list(notices.values())


def lost_range(lost: LostRange) -> types.HeldRange:
    """A lock-book entry that is no longer the member's."""
    return types.HeldRange(
        partition=topic_partition(lost.key),
        first_offset=lost.held.first,
        last_offset=lost.held.last,
        lock_token=lost.held.lock_token,
    )


def range_outcome(outcome: RangeOutcome) -> types.RangeOutcome:
    """An answer other than OK."""
    return types.RangeOutcome(
        first_offset=outcome.first,
        last_offset=outcome.last,
        outcome=int(outcome.outcome),  # type: ignore[arg-type]
        final_state=None if outcome.final_state is None else int(outcome.final_state),  # type: ignore[arg-type]
    )


def partition_outcome(result: PartitionResult) -> types.PartitionOutcome:
    """The answer for one partition."""
    message = types.PartitionOutcome(
        partition=topic_partition(result.key),
        exceptions=[range_outcome(e) for e in result.exceptions],
        lock_remaining_ms=result.lock_remaining_ms,
    )
    if result.error is not None:
        message.error_reason = result.error.reason
        message.error_message = result.error.message
        message.error_retriable = result.error.retriable
    return message


def assignment(found: Assignment) -> service.Assignment:
    """The topics and partitions that a member may receive from."""
    return service.Assignment(
        topics=[
            service.AssignedTopic(
                topic=topic, topic_id=bytes.fromhex(topic_id), partitions=partitions
            )
            for topic, (topic_id, partitions) in found.topics.items()
        ],
        unknown_topics=found.unknown_topics,
        starts_at_end=found.starts_at_end,
        ordering=found.ordering,
        refused_topics=found.refused_topics,
    )
