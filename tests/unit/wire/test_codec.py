"""Records are the same before and after: chunks to columns on the wire to the SDK's messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharecoord_sdk._core.columns import Columns, HandOut, Span
from sharecoord_sdk._core.columns import PartitionKey as SdkKey
from sharecoord_sdk._core.records import Messages

from sharecoord.core import limits
from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Assignment, Delivery, LostRange, PartitionResult, Slice
from sharecoord.core.partition.share_partition import AcquiredRange, HeldRange, RangeOutcome
from sharecoord.core.records import ColumnChunk, Headers, RecordChunk
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, RecordState
from sharecoord.errors import InvalidRequestError, StoreUnavailableError
from sharecoord.wire import codec
from sharecoord.wire import share_service_pb2 as service
from sharecoord.wire import share_types_pb2 as types

TOPIC_ID = "00112233445566778899aabbccddeeff"
KEY = PartitionKey("g", "orders", TOPIC_ID, 3)
NOW_MS = 5_000
OFFSET_SPAN_MAX = 2**32 - 1


class Record(NamedTuple):
    """What must be the same on both sides."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int
    delivery_count: int


payloads = st.none() | st.binary(max_size=20)
headers_of_a_record = st.none() | st.lists(
    st.tuples(st.sampled_from(["a", "b", "", "ключ", "x\udcffy"]), payloads),
    min_size=1,
    max_size=4,
)
gaps = st.integers(0, 3).map(lambda n: max(0, n - 1)) | st.integers(0, 100_000)
"""Offsets missing before a record: mostly none."""


@st.composite
def records_in_order(draw: st.DrawFn) -> list[Record]:
    """Records of one partition with gaps, nulls, empty payloads and repeated header names."""
    offset = draw(st.integers(0, 2**62))
    found: list[Record] = []
    all_keys_null = draw(st.booleans())
    for gap in draw(st.lists(gaps, min_size=1, max_size=40)):
        offset += gap
        key = None if all_keys_null else draw(payloads)
        time_ms = draw(st.integers(-1, 2**62))
        headers = draw(headers_of_a_record)
        count = draw(st.integers(1, 3))
        found.append(Record(offset, key, draw(payloads), headers, time_ms, count))
        offset += 1
    return found


def as_received(headers: Headers | None) -> Headers | None:
    r"""A byte of a name that is not UTF-8 is `\xff` to a member."""
    return headers and [(name.replace("\udcff", "\\xff"), value) for name, value in headers]


def chunk_of(records: Sequence[Record], timestamp_type: int) -> RecordChunk:
    """A chunk as a read gives it: no offsets when contiguous, no keys when all are null."""
    first, last = records[0].offset, records[-1].offset
    contiguous = last - first + 1 == len(records)
    keys = [r.key for r in records]
    return ColumnChunk(
        covers_from=first,
        first=first,
        last=last,
        offsets=None if contiguous else [r.offset for r in records],
        timestamps=[r.timestamp_ms for r in records],
        timestamp_type=timestamp_type,
        keys=keys if any(key is not None for key in keys) else None,
        values=[r.value for r in records],
        headers={i: r.headers for i, r in enumerate(records) if r.headers},
        size_bytes=0,
    )


def ranges_of(records: Sequence[Record]) -> list[AcquiredRange]:
    """One range per run of consecutive offsets with one delivery count, as acquire makes them."""
    found: list[AcquiredRange] = []
    for r in records:
        same = found and (found[-1].last, found[-1].delivery_count) == (
            r.offset - 1,
            r.delivery_count,
        )
        if same:
            found[-1] = found[-1]._replace(last=r.offset)
        else:
            token = 2**63 + len(found)
            found.append(AcquiredRange(r.offset, r.offset, r.delivery_count, token, NOW_MS + 700))
    return found


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[Delivery, list[Record], int]:
    """A delivery out of one or several chunks, of which a part each, and its records."""
    timestamp_type = draw(st.sampled_from([1, 2]))
    records = draw(records_in_order())
    cuts = draw(st.sets(st.integers(1, max(1, len(records) - 1)), max_size=3))
    bounds = [0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]
    slices: list[Slice] = []
    delivered: list[Record] = []
    for start, stop in pairwise(bounds):
        part = records[start:stop]
        left = draw(st.integers(0, len(part) - 1))
        right = draw(st.integers(left + 1, len(part)))
        slices.append(Slice(chunk_of(part, timestamp_type), left, right))
        delivered += part[left:right]
    delivery = Delivery(KEY, slices, ranges_of(delivered), len(delivered), 12_345)
    return delivery, delivered, timestamp_type


def sent(delivery: Delivery) -> types.RecordBatch:
    """The message as it arrives: serialised and parsed."""
    batch = types.RecordBatch()
    codec.fill_record_batch(batch, delivery, NOW_MS)
    return types.RecordBatch.FromString(batch.SerializeToString())


def received(batch: types.RecordBatch) -> tuple[Columns, Messages]:
    """What the SDK makes of it."""
    place = batch.partition
    columns = Columns(batch, SdkKey(place.topic, place.partition, place.topic_id), 1.0)
    columns.unpack()
    spans = [Span(columns, lock, lock.start, lock.stop) for lock in columns.locks]
    return columns, Messages._of(HandOut(spans))


@given(deliveries())
def test_records_are_the_same_on_both_sides(case: tuple[Delivery, list[Record], int]) -> None:
    delivery, records, timestamp_type = case
    columns, messages = received(sent(delivery))
    assert [
        Record(
            m.offset() or 0,
            m.key(),
            m.value(),
            m.headers(),
            m.timestamp()[1],
            m.delivery_count() or 0,
        )
        for m in messages
    ] == [record._replace(headers=as_received(record.headers)) for record in records]
    assert {m.timestamp()[0] for m in messages} == {timestamp_type}
    assert {(m.topic(), m.partition()) for m in messages} == {("orders", 3)}
    assert (columns.count, columns.credit_bytes) == (len(records), 12_345)
    assert columns.key.topic_id == bytes.fromhex(TOPIC_ID)


@given(deliveries(), st.data())
def test_checkpoints_are_the_same_on_both_sides(
    case: tuple[Delivery, list[Record], int], data: st.DataObject
) -> None:
    delivery, records, _ = case
    offsets = data.draw(st.lists(st.sampled_from([r.offset for r in records]), unique=True))
    kept = dict(zip(sorted(offsets), map(b"%d".__mod__, range(len(offsets))), strict=True))
    delivery.checkpoints = list(kept.items())
    columns, messages = received(sent(delivery))
    assert {m.offset(): m.checkpoint_data() for m in messages} == {
        r.offset: kept.get(r.offset) for r in records
    }
    batch = service.ConsumeResponse.FromString(codec.delivery_frame(delivery, NOW_MS)).batches[0]
    assert received(batch)[0].checkpoints == columns.checkpoints


@given(deliveries())
def test_locks_are_the_same_on_both_sides(case: tuple[Delivery, list[Record], int]) -> None:
    delivery, _, _ = case
    columns, _ = received(sent(delivery))
    assert [
        (lock.first_offset, lock.last_offset, lock.delivery_count, lock.token)
        for lock in columns.locks
    ] == [(r.first, r.last, r.delivery_count, r.lock_token) for r in delivery.ranges]
    assert {round(lock.deadline - 1.0, 3) for lock in columns.locks} == {0.7}


@given(deliveries())
def test_a_batch_is_as_small_as_its_records_let_it(
    case: tuple[Delivery, list[Record], int],
) -> None:
    delivery, records, _ = case
    batch = sent(delivery)
    assert batch.record_count == len(batch.values) == len(batch.timestamps_ms) == len(records)
    assert len(batch.keys) in (0, len(records))
    if len(delivery.slices) == 1 and len(delivery.ranges) == 1:
        assert not batch.offset_deltas or delivery.slices[0].chunk.offsets is not None
    assert bool(batch.null_values) == any(r.value is None for r in records)
    assert [entry.index for entry in batch.headers] == [
        i for i, r in enumerate(records) if r.headers
    ]


@given(deliveries())
def test_a_frame_is_the_same_message(case: tuple[Delivery, list[Record], int]) -> None:
    delivery, _, _ = case
    frame = service.ConsumeResponse.FromString(codec.delivery_frame(delivery, NOW_MS))
    assert frame == service.ConsumeResponse(batches=[sent(delivery)])


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_a_frame_holds_payloads_of_every_length(length: int) -> None:
    records = [
        Record(0, b"k" * length, b"v", None, 1, 1),
        Record(1, None, b"v" * length, None, 1, 1),
    ]
    delivery = Delivery(KEY, [Slice(chunk_of(records, 1), 0, 2)], ranges_of(records), 2, 0)
    frame = service.ConsumeResponse.FromString(codec.delivery_frame(delivery, NOW_MS))
    assert frame == service.ConsumeResponse(batches=[sent(delivery)])


def test_nine_nulls_need_a_second_byte_of_bits() -> None:
    records = [Record(i, None, None if i in (0, 8) else b"", None, 1, 1) for i in range(9)]
    chunk = chunk_of(records, 1)
    delivery = Delivery(KEY, [Slice(chunk, 0, 9)], ranges_of(records), 9, 0)
    batch = sent(delivery)
    assert batch.null_values == b"\x01\x01"
    assert [m.value() for m in received(batch)[1]] == [None, *[b""] * 7, None]


def test_a_lock_that_is_over_has_nothing_left() -> None:
    records = [Record(0, None, b"v", None, 1, 1)]
    expired = ranges_of(records)[0]._replace(deadline_ms=NOW_MS - 1)
    delivery = Delivery(KEY, [Slice(chunk_of(records, 1), 0, 1)], [expired], 1, 0)
    assert sent(delivery).ranges[0].lock_remaining_ms == 0


def test_records_as_far_apart_as_the_wire_can_say() -> None:
    records = [
        Record(5, b"k", b"first", None, 1, 1),
        Record(5 + OFFSET_SPAN_MAX, None, b"last", [("h", None)], 2, 1),
    ]
    slices = [Slice(chunk_of([record], 1), 0, 1) for record in records]
    delivery = Delivery(KEY, slices, ranges_of(records), 2, 0)
    assert [m.offset() for m in received(sent(delivery))[1]] == [5, 5 + OFFSET_SPAN_MAX]


# -- what members say -----------------------------------------------------------------------------


def said(**fields: object) -> types.AcknowledgedRange:
    whole: dict[str, object] = {"first_offset": 1, "last_offset": 2, "type": 1, **fields}
    return types.AcknowledgedRange(**whole)  # type: ignore[arg-type]


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(list(AcknowledgeType)),
    st.integers(0, 2**64 - 1),
    st.integers(0, codec.DELAY_MS_MAX),
    st.text(max_size=limits.REASON_BYTES_MAX // 4),
)
def test_an_acknowledged_range_is_taken_as_it_is(
    first: int, last: int, kind: AcknowledgeType, token: int, delay_ms: int, reason: str
) -> None:
    message = said(
        first_offset=first,
        last_offset=last,
        type=int(kind),
        lock_token=token,
        delay_ms=delay_ms,
        reason=reason,
    )
    (found,) = codec.acknowledged_ranges([message])
    assert found == (first, last, kind, token, delay_ms, reason or None, None)


@pytest.mark.parametrize("data", [b"", b"x", b"x" * limits.CHECKPOINT_BYTES_MAX])
def test_a_checkpoint_comes_with_the_renewal_of_a_record(data: bytes) -> None:
    message = said(last_offset=1, type=int(AcknowledgeType.RENEW), checkpoint=data)
    (found,) = codec.acknowledged_ranges([message])
    assert found.checkpoint == data


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"type": 0}, r"ranges\.type 0 for offsets 1 to 2 is not one of ACCEPT"),
        ({"type": 5}, r"ranges\.type 5"),
        ({"type": -1}, r"ranges\.type -1"),
        ({"reason": "x" * 1025}, r"ranges\.reason has more than 1024 bytes"),
        ({"reason": "ü" * 513}, r"ranges\.reason has more than 1024 bytes"),
        (
            {"type": 4, "last_offset": 1, "checkpoint": b"x" * 65537},
            r"ranges\.checkpoint of offset 1 has 65537 bytes; 65536 is the most",
        ),
        ({"type": 4, "checkpoint": b""}, r"ranges\.checkpoint goes with the RENEW of one record"),
        ({"last_offset": 1, "checkpoint": b""}, r"ranges\.checkpoint goes with the RENEW of one"),
        ({"delay_ms": codec.DELAY_MS_MAX + 1}, r"ranges\.delay_ms 9007199254740993 is more than"),
    ],
)
def test_a_malformed_range_names_its_field(fields: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        codec.acknowledged_ranges([said(), said(**fields)])


def test_places_keep_their_topic_id() -> None:
    place = codec.topic_partition(KEY)
    items = [types.PartitionAcknowledgements(partition=place, ranges=[said()])]
    ((topic, topic_id, partition, ranges),) = codec.acknowledgements(items)
    assert (topic, topic_id, partition, len(ranges)) == ("orders", TOPIC_ID, 3, 1)
    held = HeldRange(4, 9, 2**64 - 1)
    shown = codec.lost_range(LostRange(KEY, held))
    assert codec.held_range(shown) == (("orders", TOPIC_ID, 3), held)


def test_an_outcome_says_what_was_not_ok() -> None:
    finished = RangeOutcome(1, 2, AcknowledgeOutcome.ALREADY_FINISHED, RecordState.ARCHIVED)
    lost = RangeOutcome(3, 3, AcknowledgeOutcome.LOCK_LOST)
    message = codec.partition_outcome(
        PartitionResult(KEY, exceptions=[finished, lost], lock_remaining_ms=77)
    )
    assert (message.error_reason, message.lock_remaining_ms) == ("", 77)
    assert [(e.first_offset, e.last_offset, e.outcome) for e in message.exceptions] == [
        (1, 2, types.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED),
        (3, 3, types.ACKNOWLEDGE_OUTCOME_LOCK_LOST),
    ]
    assert message.exceptions[0].final_state == types.RECORD_STATE_ARCHIVED
    error = StoreUnavailableError("the store is away")
    failed = codec.partition_outcome(PartitionResult(KEY, error=error))
    assert (failed.error_reason, failed.error_message, failed.error_retriable) == (
        "STORE_UNAVAILABLE",
        "the store is away",
        True,
    )


def test_numbers_of_enums_are_the_same_on_the_wire() -> None:
    for server, prefix, wire in (
        (AcknowledgeType, "ACKNOWLEDGE_TYPE_", types.AcknowledgeType),
        (AcknowledgeOutcome, "ACKNOWLEDGE_OUTCOME_", types.AcknowledgeOutcome),
        (RecordState, "RECORD_STATE_", types.RecordState),
    ):
        known = {name: number for name, number in wire.items() if not name.endswith("UNSPECIFIED")}
        assert {prefix + member.name: int(member) for member in server} == known


def test_an_assignment_names_topics_with_their_ids() -> None:
    refused = {"closed": "allow READ"}
    found = Assignment({"orders": (TOPIC_ID, (0, 1))}, ("later",), ("orders",), "", refused)
    message = codec.assignment(found)
    (topic,) = message.topics
    assert (topic.topic, topic.topic_id.hex()) == ("orders", TOPIC_ID)
    assert list(topic.partitions) == [0, 1]
    assert list(message.unknown_topics) == ["later"]
    assert list(message.starts_at_end) == ["orders"]
    assert dict(message.refused_topics) == refused
