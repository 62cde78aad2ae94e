"""Polling, acknowledging and committing: the same for both shells."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sharecoord_sdk import (
    AcknowledgeType,
    ConcurrentModificationException,
    IllegalStateException,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from tests.sdk.driver import EXPLICIT, Drivers, inner, joined, served, with_a_record
from tests.sdk.fake_coordinator import TOPIC_ID, Ack, FakeCoordinator, make_batch
from tests.support import eventually

T0 = TopicPartition("t", 0)


def outcome(
    first: int, last: int, what: int, final_state: int = 0, topic: str = "t"
) -> types_pb.PartitionOutcome:
    """An exception for a range."""
    return types_pb.PartitionOutcome(
        partition=types_pb.TopicPartition(topic=topic, partition=0, topic_id=TOPIC_ID),
        exceptions=[
            types_pb.RangeOutcome(
                first_offset=first,
                last_offset=last,
                outcome=what,  # type: ignore[arg-type]
                final_state=final_state,  # type: ignore[arg-type]
            )
        ],
    )


def test_join_says_who_and_how(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    _, stream = joined(
        drivers,
        coordinator,
        "a",
        "b",
        client_id="me",
        max_poll_records=7,
        max_poll_interval_ms=1234,
        share_acquire_mode="record_limit",
        client_rack="r1",
    )
    join = stream.join
    assert (join.group_id, join.client_id, list(join.topics)) == ("g", "me", ["a", "b"])
    assert (join.max_poll_records, join.max_poll_interval_ms) == (7, 1234)
    assert join.acquire_mode == types_pb.ACQUIRE_MODE_RECORD_LIMIT
    assert (join.protocol_version, join.sdk_version, join.rack_id) == (1, "0.1.0", "r1")
    assert len(join.member_id) == 36
    assert (join.credit.records_total, join.credit.bytes_total) == (100_000, 64 * 1024 * 1024)
    assert not join.lock_book


def test_messages_carry_every_field(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator)
    batch = make_batch([b"v0", None, b"v2"], base=5, delivery_count=3)
    batch.keys.extend([b"k0", b"", b""])
    batch.null_keys = b"\x04"
    header = batch.headers.add(index=1)
    header.headers.add(key="h", value=b"x")
    header.headers.add(key="n")
    stream.send(batch)
    messages = consumer.poll(10)
    assert [m.value() for m in messages] == [b"v0", None, b"v2"]
    assert [m.key() for m in messages] == [b"k0", b"", None]
    assert [m.headers() for m in messages] == [None, [("h", b"x"), ("n", None)], None]
    assert [(m.topic(), m.partition(), m.offset()) for m in messages] == [
        ("t", 0, 5),
        ("t", 0, 6),
        ("t", 0, 7),
    ]
    assert {m.delivery_count() for m in messages} == {3}
    assert messages[2].timestamp() == (1, 1002)
    assert messages[0].error() is None


def test_poll_without_records_is_empty(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, _ = joined(drivers, coordinator)
    assert consumer.poll(0).is_empty()
    assert len(consumer.poll(0.01)) == 0


def test_max_poll_records_is_strict_and_acks_follow_the_polls(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator, max_poll_records=2)
    stream.send(make_batch([b"a", b"b", b"c"], token=9))
    assert [m.value() for m in consumer.poll(10)] == [b"a", b"b"]
    assert [m.value() for m in consumer.poll(10)] == [b"c"]
    assert stream.wait_acks(1) == [Ack("t", 0, 0, 1, "ACCEPT", 9)]
    assert consumer.poll(0).is_empty()
    assert stream.wait_acks(2)[1:] == [Ack("t", 0, 2, 2, "ACCEPT", 9)]


def test_offsets_of_a_poll_ascend_per_partition(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator)
    stream.send(
        make_batch([b"new"], base=7, token=1),
        make_batch([b"other"], partition=1, token=2),
        make_batch([b"again"], base=3, token=3, delivery_count=2),
    )
    assert [m.value() for m in consumer.poll(10)] == [b"again", b"new", b"other"]
    consumer.commit_async()
    assert [(a.partition, a.first) for a in stream.wait_acks(3)] == [(0, 3), (0, 7), (1, 0)]


def test_explicit_acks_collapse_to_ranges(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream, messages = served(
        drivers, coordinator, make_batch([b"%d" % i for i in range(10)], token=4), **EXPLICIT
    )
    for message in messages:
        consumer.acknowledge(message)
    consumer.acknowledge(messages[3], AcknowledgeType.RELEASE, delay_ms=250)
    consumer.acknowledge(messages[4], AcknowledgeType.RELEASE, delay_ms=250)
    consumer.acknowledge(messages[7], AcknowledgeType.REJECT, reason="bad")
    consumer.acknowledge_offset("t", 0, 9, AcknowledgeType.RELEASE)
    assert consumer.commit_sync(10) == {T0: None}
    assert stream.acks() == [
        Ack("t", 0, 0, 2, "ACCEPT", 4),
        Ack("t", 0, 3, 4, "RELEASE", 4, 250),
        Ack("t", 0, 5, 6, "ACCEPT", 4),
        Ack("t", 0, 7, 7, "REJECT", 4, 0, "bad"),
        Ack("t", 0, 8, 8, "ACCEPT", 4),
        Ack("t", 0, 9, 9, "RELEASE", 4),
    ]


def test_a_later_acknowledgement_replaces_details(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(make_batch([b"a"]))
    (message,) = consumer.poll(10)
    consumer.acknowledge(message, AcknowledgeType.RELEASE, delay_ms=5, reason="x")
    consumer.acknowledge(message)
    consumer.commit_sync(10)
    assert stream.acks() == [Ack("t", 0, 0, 0, "ACCEPT", 1)]


@pytest.mark.parametrize(
    ("delay_ms", "error", "text"),
    [
        ("x", TypeError, "^delay_ms must be int, not str"),
        (None, TypeError, "^delay_ms must be int, not None"),
        (True, TypeError, "^delay_ms must be int, not bool"),
        (1.5, TypeError, "^delay_ms must be int, not float"),
        (float("nan"), TypeError, "^delay_ms must be int, not float"),
        (-1, ValueError, "^delay_ms must be 0 to 9007199254740992, not -1"),
        (2**53 + 1, ValueError, "^delay_ms must be 0 to 9007199254740992, not 9007199254740993"),
    ],
)
def test_a_delay_that_can_not_be_is_refused_by_name(
    drivers: Drivers,
    coordinator: FakeCoordinator,
    delay_ms: Any,
    error: type[Exception],
    text: str,
) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(make_batch([b"a"]))
    (message,) = consumer.poll(10)
    with pytest.raises(error, match=text):
        consumer.acknowledge(message, AcknowledgeType.RELEASE, delay_ms=delay_ms)
    with pytest.raises(error, match=text):
        consumer.acknowledge_offset("t", 0, 0, AcknowledgeType.RELEASE, delay_ms=delay_ms)
    consumer.acknowledge(message, AcknowledgeType.RELEASE, delay_ms=2**53)
    consumer.commit_sync(10)
    assert stream.acks() == [Ack("t", 0, 0, 0, "RELEASE", 1, 2**53)]


def test_explicit_poll_wants_every_record_acknowledged(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(make_batch([b"a", b"b"]))
    first, second = consumer.poll(10)
    consumer.acknowledge(first)
    with pytest.raises(IllegalStateException, match="must be acknowledged"):
        consumer.poll(0)
    consumer.acknowledge(second, AcknowledgeType.RELEASE)
    stream.send(make_batch([b"c"], base=2, token=2))
    assert [m.value() for m in consumer.poll(10)] == [b"c"]
    assert [a.kind for a in stream.wait_acks(2)] == ["ACCEPT", "RELEASE"]
    consumer.acknowledge_offset("t", 0, 2)


def test_partial_commit_leaves_the_rest_in_flight(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream, messages = served(
        drivers, coordinator, make_batch([b"a", b"b", b"c"]), **EXPLICIT
    )
    consumer.acknowledge(messages[1])
    assert consumer.commit_sync(10) == {T0: None}
    assert stream.acks() == [Ack("t", 0, 1, 1, "ACCEPT", 1)]
    with pytest.raises(IllegalStateException, match="not in flight"):
        consumer.acknowledge(messages[1])
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    assert consumer.commit_sync(10) == {T0: None}
    assert [(a.first, a.last) for a in stream.acks()[1:]] == [(0, 0), (2, 2)]


def test_commit_without_anything_is_empty(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, _ = joined(drivers, coordinator)
    assert consumer.commit_sync(10) == {}


def test_implicit_mode_refuses_acknowledge(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator)
    stream.send(make_batch([b"a"]))
    (message,) = consumer.poll(10)
    with pytest.raises(IllegalStateException, match="implicit"):
        consumer.acknowledge(message)
    assert consumer.commit_sync(10) == {T0: None}
    assert stream.acks() == [Ack("t", 0, 0, 0, "ACCEPT", 1)]


def test_a_message_of_another_consumer_is_not_in_flight(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    one, first = joined(drivers, coordinator, **EXPLICIT)
    two, _ = joined(drivers, coordinator, **EXPLICIT)
    first.send(make_batch([b"a"]))
    (message,) = one.poll(10)
    with pytest.raises(IllegalStateException, match="not in flight"):
        two.acknowledge(message)
    one.acknowledge(message)
    assert one.commit_sync(10) == {T0: None}


@pytest.mark.parametrize(
    ("kind", "what", "state", "code"),
    [
        (1, types_pb.ACKNOWLEDGE_OUTCOME_LOCK_LOST, 0, KafkaError.INVALID_RECORD_STATE),
        (1, types_pb.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED, 2, None),
        (1, types_pb.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED, 4, KafkaError.INVALID_RECORD_STATE),
        (3, types_pb.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED, 4, None),
        (3, types_pb.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED, 3, None),
        (2, types_pb.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED, 4, KafkaError.INVALID_RECORD_STATE),
        (1, types_pb.ACKNOWLEDGE_OUTCOME_UNKNOWN_OUTCOME, 0, None),
        (4, types_pb.ACKNOWLEDGE_OUTCOME_UNKNOWN_OUTCOME, 0, KafkaError.INVALID_RECORD_STATE),
        (4, types_pb.ACKNOWLEDGE_OUTCOME_RENEW_DISABLED, 0, KafkaError.INVALID_RECORD_STATE),
        (1, types_pb.ACKNOWLEDGE_OUTCOME_INVALID_REQUEST, 0, KafkaError.INVALID_REQUEST),
    ],
)
def test_outcomes_become_results(
    drivers: Drivers,
    coordinator: FakeCoordinator,
    kind: int,
    what: int,
    state: int,
    code: int | None,
) -> None:
    coordinator.script.outcomes = lambda acks: [outcome(1, 1, what, state)]
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(make_batch([b"a", b"b", b"c"]))
    heard: list[tuple[dict[TopicPartition, set[int]], KafkaException | None]] = []
    consumer.set_acknowledgement_commit_callback(lambda *given: heard.append(given))
    for message in consumer.poll(10):
        consumer.acknowledge(message, AcknowledgeType(kind))
    (result,) = consumer.commit_sync(10).values()
    if code is None:
        assert result is None
        assert heard == [({T0: {0, 1, 2}}, None)]
    else:
        assert result.args[0].code() == code
        good, bad = sorted(heard, key=lambda item: item[1] is not None)
        assert good == ({T0: {0, 2}}, None)
        assert bad[0] == {T0: {1}}
        assert bad[1] is not None
        assert bad[1].args[0].code() == code


def test_commit_sync_times_out_per_partition(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    coordinator.script.answers_acknowledgements = False
    consumer, stream, _ = served(
        drivers, coordinator, make_batch([b"a"]), make_batch([b"b"], partition=1, token=2)
    )
    results = consumer.commit_sync(0.01)
    assert {tp.partition: error.args[0].code() for tp, error in results.items()} == {
        0: KafkaError._TIMED_OUT,
        1: KafkaError._TIMED_OUT,
    }
    # The acknowledgement is still under way: its answer is taken later.
    stream.answer(stream.wait_for(lambda s: s.requests[-1].acknowledge_id))


def test_retriable_partition_errors_are_tried_again(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    answers = [
        types_pb.PartitionOutcome(
            partition=types_pb.TopicPartition(topic="t", topic_id=TOPIC_ID),
            error_reason="STORE_UNAVAILABLE",
            error_retriable=True,
        )
    ]
    coordinator.script.outcomes = lambda _: [answers.pop()] if answers else []
    consumer, stream = with_a_record(drivers, coordinator)
    assert consumer.commit_sync(10) == {T0: None}
    assert stream.acks() == [Ack("t", 0, 0, 0, "ACCEPT", 1)] * 2


def test_final_partition_errors_keep_their_reason(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    coordinator.script.outcomes = lambda _: [
        types_pb.PartitionOutcome(
            partition=types_pb.TopicPartition(topic="t", topic_id=TOPIC_ID),
            error_reason="UNKNOWN_TOPIC_OR_PARTITION",
            error_message="topic t is gone",
        )
    ]
    consumer, _ = with_a_record(drivers, coordinator)
    error = consumer.commit_sync(10)[T0].args[0]
    assert (error.code(), error.str()) == (KafkaError.UNKNOWN_TOPIC_OR_PART, "topic t is gone")


def test_commit_async_reports_to_the_callback_in_a_later_call(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream, _ = served(drivers, coordinator, make_batch([b"a", b"b"], base=3))
    heard: list[Any] = []
    raised: list[str] = []

    def callback(offsets: Any, error: Any) -> None:
        heard.append((offsets, error))
        for call in (consumer.subscription, lambda: consumer.acknowledge_offset("t", 0, 3)):
            try:
                # The asynchronous driver would wait for its own loop here: ask the consumer.
                inner(consumer).subscription()
            except IllegalStateException as problem:
                raised.append(f"{call.__name__}: {problem}")

    consumer.set_acknowledgement_commit_callback(callback)
    consumer.commit_async()
    stream.send(make_batch([b"c"], base=5, token=2))
    while not heard:
        consumer.poll(0.05)
    assert heard[0] == ({T0: {3, 4}}, None)
    assert len(raised) >= 2
    assert "callback" in raised[0]


def test_clearing_the_callback_drops_what_it_was_not_told(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, _ = with_a_record(drivers, coordinator)
    heard: list[Any] = []
    consumer.set_acknowledgement_commit_callback(lambda *given: heard.append(given))
    consumer.set_acknowledgement_commit_callback(None)
    assert consumer.commit_sync(10) == {T0: None}
    assert heard == []


def test_renewed_records_come_back_before_new_ones(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    coordinator.script.answers_acknowledgements = False
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(make_batch([b"a", b"b"], token=6))
    first, second = consumer.poll(10)
    consumer.acknowledge(first, AcknowledgeType.RENEW)
    consumer.acknowledge(second)
    stream.send(make_batch([b"new"], base=2, token=7))
    # The renewal has no answer: nothing new comes, however long it takes.
    assert consumer.poll(0.05).is_empty()
    acks = stream.wait_acks(2)
    assert [a.kind for a in acks] == ["RENEW", "ACCEPT"]
    with pytest.raises(IllegalStateException, match="not in flight"):
        consumer.acknowledge(first)
    stream.answer(stream.requests[-1].acknowledge_id or stream.requests[1].acknowledge_id)
    (again,) = consumer.poll(10)
    assert (again.value(), again.offset()) == (b"a", 0)
    coordinator.script.answers_acknowledgements = True
    consumer.acknowledge(again)
    assert consumer.commit_sync(10) == {T0: None}
    assert [m.value() for m in consumer.poll(10)] == [b"new"]
    consumer.acknowledge_offset("t", 0, 2)


def test_a_failed_renewal_drops_the_record(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    lost = outcome(0, 0, types_pb.ACKNOWLEDGE_OUTCOME_LOCK_LOST)
    coordinator.script.outcomes = lambda acks: [lost] if acks[0].kind == "RENEW" else []
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(make_batch([b"a"]))
    (message,) = consumer.poll(10)
    consumer.acknowledge(message, AcknowledgeType.RENEW)
    error = consumer.commit_sync(10)[T0]
    assert error.args[0].code() == KafkaError.INVALID_RECORD_STATE
    stream.send(make_batch([b"b"], base=1, token=2))
    assert [m.value() for m in consumer.poll(10)] == [b"b"]
    consumer.acknowledge_offset("t", 0, 1)


def test_records_whose_lock_ended_in_the_buffer_go_back(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator)
    ranges = [
        types_pb.AcquiredRange(first_offset=0, last_offset=1, lock_token=1, lock_remaining_ms=0),
        types_pb.AcquiredRange(
            first_offset=2, last_offset=2, lock_token=2, lock_remaining_ms=60_000, delivery_count=1
        ),
    ]
    stream.send(make_batch([b"a", b"b", b"c"], ranges=ranges))
    assert [m.value() for m in consumer.poll(10)] == [b"c"]
    assert stream.wait_acks(1) == [Ack("t", 0, 0, 1, "RETURN", 1)]


def test_gaps_belong_to_the_lock_that_covers_them(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream, messages = served(
        drivers,
        coordinator,
        make_batch([b"a", b"b", b"c"], base=10, deltas=(0, 3, 9), token=5),
        max_poll_records=2,
    )
    assert [m.offset() for m in messages] == [10, 13]
    assert [m.offset() for m in consumer.poll(10)] == [19]
    consumer.commit_sync(10)
    assert [(a.first, a.last) for a in stream.acks()] == [(10, 18), (19, 19)]


def test_a_record_delivered_twice_goes_in_two_messages(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator)
    stream.send(make_batch([b"a", b"b"], token=1), make_batch([b"b"], base=1, token=2))
    assert len(consumer.poll(10)) == 3
    assert consumer.commit_sync(10) == {T0: None}
    with_acks = [r for r in stream.requests if r.acknowledge_id]
    assert len(with_acks) == 2
    assert sorted((a.first, a.token) for a in stream.acks()) == [(0, 1), (1, 2)]
    assert with_acks[0].acknowledge_id < with_acks[1].acknowledge_id


def test_credit_is_refilled_when_an_eighth_was_used(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(
        drivers, coordinator, max_poll_records=10, sharecoord_buffer_records=80
    )
    assert stream.join.credit.records_total == 80
    stream.send(make_batch([b"x"] * 30))
    for _ in range(3):
        assert len(consumer.poll(10)) == 10
    stream.wait_for(lambda s: any(r.credit.records_total == 110 for r in s.requests))
    totals = [r.credit.records_total for r in stream.requests if r.HasField("credit")]
    assert totals == [90, 100, 110]


def test_lock_duration_is_known_after_the_join(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer = drivers.make(coordinator.address)
    assert consumer.acquisition_lock_timeout_ms() is None
    consumer.subscribe(["t"])
    coordinator.stream().send(make_batch([b"a"]))
    consumer.poll(10)
    assert consumer.acquisition_lock_timeout_ms() == 30_000


def test_a_second_user_is_refused(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator)
    one = inner(consumer)
    polled: list[Any] = []
    first = threading.Thread(target=lambda: polled.append(consumer.poll(10)))
    first.start()
    eventually(lambda: one._user is not None)
    with pytest.raises(ConcurrentModificationException, match="not safe for multi-threaded access"):
        one.subscription()
    with pytest.raises(ConcurrentModificationException):
        one.commit_async()
    stream.send(make_batch([b"a"]))
    first.join(10)
    assert [m.value() for m in polled[0]] == [b"a"]


def test_a_batch_that_contradicts_itself_is_reported(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator)
    batch = make_batch([b"a", b"b"])
    batch.record_count = 3
    stream.send(batch)
    with pytest.raises(KafkaException, match="malformed batch of t") as caught:
        consumer.poll(10)
    assert caught.value.args[0].code() == KafkaError._BAD_MSG
