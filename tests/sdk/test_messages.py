"""`Messages` by columns, acknowledged as a whole; kept messages: the same for both shells."""

from __future__ import annotations

import gc
import pickle
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharecoord_sdk import (
    AcknowledgeType,
    DeserializingShareConsumer,
    IllegalStateException,
    KafkaError,
    Message,
    Messages,
    ShareConsumer,
)
from sharecoord_sdk._core.columns import Columns, PartitionKey
from sharecoord_sdk._core.core import Arrival, Connection
from sharecoord_sdk._core.frames import frame_of
from sharecoord_sdk._core.records import messages_of
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk.testing import make_messages

from tests.sdk.driver import EXPLICIT, Drivers, served
from tests.sdk.fake_coordinator import TOPIC_ID, Ack, FakeCoordinator, acks_of, make_batch
from tests.sdk.world import equal_ranges

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType


class Fed(ShareConsumer):
    """A consumer that was sent what a test says, without a connection."""

    def __init__(self, *batches: types_pb.RecordBatch, **config: Any) -> None:
        named = {name.replace("_", "."): value for name, value in config.items()}
        super().__init__({"group.id": "g", **named})
        self.requests: list[service_pb.ConsumeRequest] = []
        self._batches = list(batches)
        self.subscribe(["t"])

    def _open_stream(self, connection: Connection) -> None:
        self._generation = connection.generation
        joined = service_pb.Joined(lock_duration_ms=30_000)
        self._hear(service_pb.ConsumeResponse(joined=joined, batches=self._batches))

    def _hear(self, response: service_pb.ConsumeResponse) -> None:
        self._inbox.put(Arrival(self._generation, frame_of(response), self._now()))

    def hear(self, *batches: types_pb.RecordBatch, **fields: Any) -> None:
        """A message comes in."""
        self._hear(service_pb.ConsumeResponse(batches=batches, **fields))

    def _send(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        for request in requests:
            self.requests.append(request)
            response = service_pb.ConsumeResponse(left=request.leave)
            if request.acknowledge_id:
                response.results.add(acknowledge_id=request.acknowledge_id)
            self._hear(response)

    def _schedule_hand_back(self, at: float) -> None:
        """The tests are quick."""

    def acks(self) -> list[Ack]:
        """All that was acknowledged."""
        return [ack for request in self.requests for ack in acks_of(request)]


def batch_with_all(count: int = 4, **fields: Any) -> types_pb.RecordBatch:
    """Values and keys, some of them null, and headers."""
    values = [None if row % 3 == 2 else b"v%d" % row for row in range(count)]
    keys = [None if row % 4 == 1 else b"k%d" % row for row in range(count)]
    batch = make_batch(values, keys=keys, **fields)
    batch.headers.add(index=1).headers.add(key="h", value=b"x")
    return batch


# -- columns -----------------------------------------------------------------------------------


def test_columns_are_what_the_messages_say(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    batches = batch_with_all(base=5, deltas=[0, 1, 4, 9]), make_batch([b"w"], partition=1, token=2)
    _, _, messages = served(drivers, coordinator, *batches)
    for _ in range(2):
        # Before and after the messages are objects.
        assert messages.values() == [b"v0", b"v1", None, b"v3", b"w"]
        assert messages.keys() == [b"k0", None, b"k2", b"k3", None]
        assert messages.offsets() == [5, 6, 9, 14, 0]
        found = [(each.value(), each.key(), each.offset()) for each in messages]
        assert found == list(
            zip(messages.values(), messages.keys(), messages.offsets(), strict=True)
        )


def test_columns_belong_to_the_caller_and_need_no_message(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    _, _, messages = served(drivers, coordinator, batch_with_all())
    messages.values().clear()
    messages.keys().clear()
    messages.offsets().clear()
    assert messages._records is None, "no object was made for a record"
    assert len(messages.values()) == len(messages.keys()) == len(messages.offsets()) == 4
    assert [each.value() for each in messages] == messages.values()


def test_a_poll_of_a_part_of_a_batch_has_its_own_columns(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, _, first = served(drivers, coordinator, batch_with_all(5), max_poll_records=2)
    second = consumer.poll(10)
    assert (first.offsets(), first.keys()) == ([0, 1], [b"k0", None])
    assert (second.offsets(), second.values()) == ([2, 3], [None, b"v3"])


def test_columns_show_what_the_application_changed() -> None:
    messages = make_messages([b"a", None], first_offset=7)
    messages[0].set_value("seen")
    messages[1].set_key("k")
    assert messages.values() == ["seen", None]
    assert messages.keys() == [None, "k"]
    assert messages.offsets() == [7, 8]
    assert messages[1:].values() == [None]
    assert Messages().values() == Messages().keys() == Messages().offsets() == []


def test_columns_of_a_batch_outlive_the_poll(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream, messages = served(drivers, coordinator, batch_with_all())
    consumer.commit_sync(10)
    stream.send(make_batch([b"next"], base=9, token=2))
    assert consumer.poll(10).values() == [b"next"]
    assert messages.values() == [b"v0", b"v1", None, b"v3"]
    assert [each.key() for each in messages] == [b"k0", None, b"k2", b"k3"]


def test_columns_of_redriven_records_are_those_of_their_messages() -> None:
    batch = make_batch([b"a", b"b"], topic="t.dlq", base=40)
    for index in range(2):
        headers = batch.headers.add(index=index).headers
        headers.add(key="__dlq.errors.partition", value=b"3")
        headers.add(key="__dlq.errors.offset", value=b"%d" % (100 + index))
    batch.partition.lane = "t"
    with Fed(batch, **EXPLICIT) as consumer:
        messages = consumer.poll(1)
        assert messages.offsets() == [100, 101]
        assert messages.offsets() == [each.offset() for each in messages]
        consumer.acknowledge(messages)
        consumer.commit_sync(1)
        assert [(ack.first, ack.last, ack.kind) for ack in consumer.acks()] == [(40, 41, "ACCEPT")]


def test_values_that_can_not_be_read_are_bytes_and_their_messages_have_an_error(
    coordinator: FakeCoordinator,
) -> None:
    def read(value: bytes | None, _: object) -> int | None:
        return None if value is None else int(value)

    config = {"bootstrap.servers": coordinator.address, "group.id": "g", "value.deserializer": read}
    explicit = {"share.acknowledgement.mode": "explicit"}
    with DeserializingShareConsumer({**config, **explicit}) as consumer:
        consumer.subscribe(["t"])
        stream = coordinator.stream()
        stream.send(make_batch([b"1", b"two", None], keys=[b"a", b"b", b"c"]))
        messages = consumer.poll(10)
        assert messages.values() == [1, b"two", None]
        assert messages.keys() == [b"a", b"b", b"c"]
        errors = [each.error() for each in messages]
        assert [error and error.code() for error in errors] == [
            None,
            KafkaError._VALUE_DESERIALIZATION,
            None,
        ]
        consumer.acknowledge(messages, REJECT, reason="all of them")
        consumer.commit_sync(10)
        assert stream.acks() == [Ack("t", 0, 0, 2, "REJECT", 1, 0, "all of them")]


# -- acknowledged as a whole -------------------------------------------------------------------

SHAPES: dict[str, Callable[[Messages], Any]] = {
    "messages": lambda messages: messages,
    "a list": list,
    "a slice": lambda messages: messages[:],
    "an iterator": iter,
    "copies": lambda messages: [each.copy() for each in messages],
    "pickled": lambda messages: pickle.loads(pickle.dumps(messages)),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_whole_poll_is_acknowledged(
    drivers: Drivers, coordinator: FakeCoordinator, shape: Callable[[Messages], Any]
) -> None:
    batches = make_batch([b"x"] * 5), make_batch([b"y"] * 3, partition=1, base=7, token=2)
    consumer, stream, messages = served(drivers, coordinator, *batches, **EXPLICIT)
    consumer.acknowledge(shape(messages))
    assert set(consumer.commit_sync(10).values()) == {None}
    assert sorted(stream.acks(), key=lambda ack: ack.partition) == [
        Ack("t", 0, 0, 4, "ACCEPT", 1),
        Ack("t", 1, 7, 9, "ACCEPT", 2),
    ]


def test_a_whole_poll_is_acknowledged_with_details_which_a_later_word_replaces(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream, messages = served(drivers, coordinator, make_batch([b"x"] * 4), **EXPLICIT)
    consumer.acknowledge(messages, RELEASE, delay_ms=500, reason="away")
    consumer.acknowledge(messages[1])
    consumer.acknowledge(messages[2:], REJECT, reason="bad")
    consumer.commit_sync(10)
    assert stream.acks() == [
        Ack("t", 0, 0, 0, "RELEASE", 1, 500, "away"),
        Ack("t", 0, 1, 1, "ACCEPT", 1),
        Ack("t", 0, 2, 3, "REJECT", 1, 0, "bad"),
    ]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_one_that_is_not_in_flight_is_named_and_nothing_is_half_done(
    drivers: Drivers, coordinator: FakeCoordinator, shape: Callable[[Messages], Any]
) -> None:
    batch = make_batch([b"x"] * 5, base=10)
    consumer, stream, messages = served(drivers, coordinator, batch, **EXPLICIT)
    consumer.acknowledge(messages[3], REJECT)
    consumer.commit_sync(10)
    with pytest.raises(IllegalStateException, match=r"not in flight: t \[0\] offset 13$"):
        consumer.acknowledge(shape(messages), RELEASE)
    for at in (0, 1, 2, 4):
        consumer.acknowledge(messages[at])
    consumer.commit_sync(10)
    told = [(ack.first, ack.last, ack.kind) for ack in stream.acks()]
    assert told == [(13, 13, "REJECT"), (10, 12, "ACCEPT"), (14, 14, "ACCEPT")]


def test_renewed_ones_come_back_and_are_acknowledged_as_a_whole(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream, messages = served(drivers, coordinator, make_batch([b"x"] * 4), **EXPLICIT)
    consumer.acknowledge(messages, RENEW)
    consumer.commit_sync(10)
    with pytest.raises(IllegalStateException, match="offset 0"):
        consumer.acknowledge(messages)
    again = consumer.poll(10)
    assert again.values() == messages.values() == [b"x"] * 4
    consumer.acknowledge(messages)
    consumer.commit_sync(10)
    told = [(ack.first, ack.last, ack.kind) for ack in stream.acks()]
    assert told == [(0, 3, "RENEW"), (0, 3, "ACCEPT")]


def test_nothing_is_acknowledged_without_complaint_but_only_in_explicit_mode(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, _, _ = served(drivers, coordinator, make_batch([b"x"]), **EXPLICIT)
    consumer.acknowledge(Messages())
    consumer.acknowledge([])
    with pytest.raises(ValueError, match="9 is no AcknowledgeType"):
        consumer.acknowledge([], 9)
    implicit, _, messages = served(drivers, coordinator, make_batch([b"x"]))
    for given_messages in (messages, [], list(messages)):
        with pytest.raises(IllegalStateException, match="mode is implicit"):
            implicit.acknowledge(given_messages)


@pytest.mark.parametrize("wrong", [None, 5, "text", b"bytes", {"a": 1}, ["text"], [None], [[]]])
def test_what_is_no_message_is_refused(
    drivers: Drivers, coordinator: FakeCoordinator, wrong: object
) -> None:
    consumer, _, _ = served(drivers, coordinator, make_batch([b"x"]), **EXPLICIT)
    with pytest.raises(TypeError, match=r"must be sharecoord_sdk\.Message, not"):
        consumer.acknowledge(wrong)


def test_messages_of_another_consumer_stand_for_their_coordinates(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    one, stream, messages = served(drivers, coordinator, make_batch([b"x"] * 2), **EXPLICIT)
    other, _, _ = served(drivers, coordinator, make_batch([b"y"], base=50, token=9), **EXPLICIT)
    with pytest.raises(IllegalStateException, match=r"offset 0$"):
        other.acknowledge(messages)
    one.acknowledge(messages)
    one.commit_sync(10)
    assert stream.acks() == [Ack("t", 0, 0, 1, "ACCEPT", 1)]


def test_a_lost_record_fails_with_its_commit_not_before() -> None:
    with Fed(make_batch([b"x"] * 3), **EXPLICIT) as consumer:
        messages = consumer.poll(1)
        place = types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID)
        notice = service_pb.TakenBack(partition=place)
        notice.ranges.add(first_offset=1, last_offset=1, lock_token=1)
        consumer.hear(taken_back=[notice])
        assert consumer.acquisition_lock_timeout_ms() == 30_000
        consumer.acknowledge(messages, REJECT, reason="late")
        (error,) = consumer.commit_sync(1).values()
        assert error is not None
        assert error.args[0].code() == KafkaError.INVALID_RECORD_STATE
        assert [(ack.first, ack.last) for ack in consumer.acks()] == [(0, 0), (2, 2)]


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[types_pb.RecordBatch], int, list[tuple[Any, ...]]]:
    """Batches, `max.poll.records`, and what a program says: rows of the poll, type, details."""
    batches = []
    for partition in range(draw(st.integers(1, 3))):
        count, locks = draw(st.integers(1, 12)), draw(st.integers(1, 4))
        batch = make_batch([b"x"] * count, partition=partition, ranges=equal_ranges(count, locks))
        batches.append(batch)
    word = st.tuples(
        st.lists(st.integers(0, 30), max_size=8) | st.none(),
        st.sampled_from([*AcknowledgeType, 9]),
        st.sampled_from([0, 0, 5, -1]),
        st.sampled_from(["", "", "why"]),
    )
    said = st.one_of(word, st.just(("commit",)))
    return batches, draw(st.integers(1, 40)), draw(st.lists(said, max_size=5))


def told(story: tuple[Any, ...], *, as_a_whole: bool) -> list[Any]:
    """What goes over the wire, and the errors, of a program that acknowledges either way."""
    batches, limit, words = story
    heard: list[Any] = []
    consumer = Fed(*batches, max_poll_records=limit, **EXPLICIT)
    messages = consumer.poll(1)
    for rows, *what in (("", *word) if word == ("commit",) else word for word in words):
        if rows == "":
            consumer.commit_sync(0)
            continue
        wanted = messages if rows is None else [messages[at] for at in rows if at < len(messages)]
        kind, delay_ms, reason = what
        try:
            acknowledge(consumer, wanted, as_a_whole, kind, delay_ms=delay_ms, reason=reason)
        except (IllegalStateException, ValueError) as error:
            heard.append((type(error), str(error)))
    consumer.commit_sync(0)
    consumer.close()
    return [heard, consumer.acks()]


def acknowledge(
    consumer: Fed, wanted: Iterable[Message], as_a_whole: bool, kind: int, **details: Any
) -> None:
    if as_a_whole:
        consumer.acknowledge(wanted, kind, **details)
        return
    # One by one, if nothing is wrong with any: a whole is not half done.
    states = {id(each._source): bytes(each._source.states) for each in wanted}  # type: ignore[union-attr]
    said = {id(each._source): dict(each._source.details or {}) for each in wanted}  # type: ignore[union-attr]
    try:
        for each in wanted:
            consumer.acknowledge(each, kind, **details)
        if not list(wanted):
            consumer._read_details("message", kind, details["delay_ms"], details["reason"])
    except (IllegalStateException, ValueError):
        for each in wanted:
            each._source.states[:] = states[id(each._source)]  # type: ignore[union-attr]
            each._source.details = said[id(each._source)]  # type: ignore[union-attr]
        raise


@settings(max_examples=150, deadline=None)
@given(stories())
def test_a_whole_is_what_its_parts_are_one_by_one(story: tuple[Any, ...]) -> None:
    assert told(story, as_a_whole=True) == told(story, as_a_whole=False)


# -- what is read only when somebody asks --------------------------------------------------------


def test_times_and_headers_are_made_when_somebody_asks() -> None:
    columns = Columns(batch_with_all(), PartitionKey("t", 0, TOPIC_ID), 0.0)
    columns.unpack()
    messages = messages_of(columns, 0, 4)
    assert [each.value() for each in messages] == [b"v0", b"v1", None, b"v3"]
    assert columns._timestamps is None
    assert columns._headers is None
    assert columns._by_row is None
    assert messages[3].timestamp() == (1, 1_003)
    assert messages[1].headers() == [("h", b"x")]
    assert messages[0].headers() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=40))
def test_the_lock_of_a_row_is_the_one_that_covers_it(parts: list[tuple[int, int]]) -> None:
    """Also with rows under no lock, and with locks that cover no row."""
    ranges, row = [], 0
    for number, (gap, size) in enumerate(parts):
        first, row = row + gap, row + gap + size
        ranges.append(
            types_pb.AcquiredRange(
                first_offset=first, last_offset=row - 1, delivery_count=number + 1
            )
        )
        ranges.append(types_pb.AcquiredRange(first_offset=row, last_offset=row - 1))
    batch = make_batch([b"x"] * (row + 2), ranges=ranges)
    columns = Columns(batch, PartitionKey("t", 0, TOPIC_ID), 0.0)
    for at in range(columns.count):
        plain = next((lock for lock in columns.locks if lock.start <= at < lock.stop), None)
        assert columns.lock_at(at) is plain
        assert columns.delivery_count_at(at) == (plain and plain.delivery_count)


@pytest.mark.parametrize("column", ["keys", "timestamps_ms", "offset_deltas"])
def test_a_batch_with_a_column_of_another_length_is_refused(
    drivers: Drivers, coordinator: FakeCoordinator, column: str
) -> None:
    batch = make_batch([b"x"] * 3)
    batch.ClearField("timestamps_ms")
    getattr(batch, column).append(b"k" if column == "keys" else 0)
    with pytest.raises(Exception, match="malformed batch of t"):
        served(drivers, coordinator, batch)


# -- kept messages -------------------------------------------------------------------------------


def kept_bytes(keep: Callable[[Message], Any], polls: int = 30) -> int:
    """Bytes that a program holds for each poll of which it keeps one message."""
    kept = []
    with Fed() as consumer:
        consumer.poll(0)
        gc.collect()
        tracemalloc.start()
        for number in range(polls + 3):
            if number == 3:  # From here on as many batches are under way as at the end.
                before = tracemalloc.get_traced_memory()[0]
            values = [b"%04d" % row + b"x" * 1000 for row in range(500)]
            consumer.hear(make_batch(values, base=500 * number, token=number + 1))
            kept.append(keep(consumer.poll(1)[number]))
        gc.collect()
        found = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert all(each.value()[:4] == b"%04d" % row for row, each in enumerate(kept))
    return found // polls


def test_a_kept_message_does_not_keep_the_payload_of_its_batch() -> None:
    """A poll has 500 kB; the message's own kB, and a few bytes per record are what stays."""
    assert kept_bytes(lambda message: message) < 10_000


def test_a_copy_keeps_nothing_of_its_batch() -> None:
    assert kept_bytes(Message.copy) < 3_000


def test_a_copy_says_what_the_message_says(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    batch = batch_with_all(base=5, delivery_count=3)
    batch.checkpoints.add(index=1, data=b"half")
    _, _, messages = served(drivers, coordinator, batch)
    for message in messages:
        copied = message.copy()
        assert copied == message
        assert copied.delivery_count() == 3
        assert copied.checkpoint_data() == message.checkpoint_data()
        copied.set_value(b"changed")
        assert message.value() != b"changed"
    assert sys.getsizeof(messages[0]) < 100, "a message is a row, a key and a value"


def test_a_copy_of_a_redriven_message_knows_its_letter() -> None:
    batch = make_batch([b"a"], topic="t.dlq", base=40)
    headers = batch.headers.add(index=0).headers
    headers.add(key="own", value=b"1")
    headers.add(key="__dlq.errors.partition", value=b"3")
    headers.add(key="__dlq.errors.offset", value=b"100")
    batch.partition.lane = "t"
    with Fed(batch, **EXPLICIT) as consumer:
        (message,) = consumer.poll(1)
        copied = message.copy()
        assert copied == message
        assert copied.redriven() == message.redriven() == ("t.dlq", 0, 40)
        consumer.acknowledge(copied)
        consumer.commit_sync(1)
        assert [(ack.first, ack.kind) for ack in consumer.acks()] == [(40, "ACCEPT")]
