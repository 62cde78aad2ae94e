"""Streams that break, move or are refused; consumers that come and go: for both shells."""

from __future__ import annotations

import gc
import logging
import socket
import threading
import weakref
from pathlib import Path
from typing import Any

import grpc
import pytest
from sharecoord_sdk import (
    IllegalStateException,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from tests.sdk.driver import EXPLICIT, Drivers, inner, joined, served, with_a_record
from tests.sdk.fake_coordinator import (
    TOPIC_ID,
    Ack,
    FakeCoordinator,
    FakeStream,
    Refusal,
    make_batch,
)
from tests.support import eventually

T0 = TopicPartition("t", 0)
UNAVAILABLE = Refusal(grpc.StatusCode.UNAVAILABLE, "gone for a moment")


def held(join: service_pb.Join) -> list[tuple[int, int, int]]:
    """The lock book of a join."""
    return sorted((h.first_offset, h.last_offset, h.lock_token) for h in join.lock_book)


def lost_range(first: int, last: int, token: int) -> types_pb.HeldRange:
    """A range that the owner does not know any more."""
    return types_pb.HeldRange(
        partition=types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID),
        first_offset=first,
        last_offset=last,
        lock_token=token,
    )


def _stream_after_poll(consumer: Any, coordinator: FakeCoordinator) -> FakeStream | None:
    consumer.poll(0.05)
    return coordinator.stream_now()


def rejoined(consumer: Any, coordinator: FakeCoordinator) -> FakeStream:
    """Polls until the consumer has opened a new stream."""
    return eventually(lambda: _stream_after_poll(consumer, coordinator))


# -- broken streams -------------------------------------------------------------------------------


def test_a_broken_stream_is_joined_again_with_the_lock_book(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    coordinator.script.answers_acknowledgements = False
    consumer, stream, first = served(
        drivers,
        coordinator,
        make_batch([b"%d" % i for i in range(6)], token=3),
        max_poll_records=2,
        **EXPLICIT,
    )
    for message in first:
        consumer.acknowledge(message)
    second = consumer.poll(10)
    stream.wait_acks(1)
    coordinator.script.answers_acknowledgements = True
    stream.end(UNAVAILABLE)
    consumer.acknowledge(second[0])
    consumer.acknowledge(second[1])
    assert consumer.commit_sync(10) == {T0: None}
    again = coordinator.stream()
    assert again.join.member_id == stream.join.member_id
    assert again.join.join_number > stream.join.join_number > 0
    # Acknowledged without an answer, in the application's hands, and in the buffer: all one lock.
    assert held(again.join) == [(0, 5, 3)]
    assert again.wait_acks(2)[:2] == [
        Ack("t", 0, 0, 1, "ACCEPT", 3),
        Ack("t", 0, 2, 3, "ACCEPT", 3),
    ]
    assert [m.value() for m in consumer.poll(10)] == [b"4", b"5"]
    consumer.acknowledge_offset("t", 0, 4)
    consumer.acknowledge_offset("t", 0, 5)


def test_lost_locks_leave_the_buffer_and_fail_when_acknowledged(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator, max_poll_records=2)
    stream.send(make_batch([b"%d" % i for i in range(5)], token=3))
    assert len(consumer.poll(10)) == 2
    coordinator.script.joined.lost.extend([lost_range(1, 1, 3), lost_range(3, 3, 3)])
    stream.end(UNAVAILABLE)
    results = eventually(lambda: _commit_after(consumer, coordinator))
    assert results[T0].args[0].code() == KafkaError.INVALID_RECORD_STATE
    again = coordinator.streams_seen[-1]
    assert again.acks() == [Ack("t", 0, 0, 0, "ACCEPT", 3)]
    assert [m.value() for m in consumer.poll(10)] == [b"2", b"4"]


def _commit_after(consumer: Any, coordinator: FakeCoordinator) -> Any:
    """Commits once the consumer has joined for the second time and knows what it lost."""
    consumer.acquisition_lock_timeout_ms()
    consumer.pause([])
    one = inner(consumer)
    assert len(coordinator.streams_seen) == 2
    assert one._core.link.phase.value == "joined"
    return consumer.commit_sync(10)


def test_totals_of_credit_start_again_on_a_new_stream(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(
        drivers, coordinator, max_poll_records=10, sharecoord_buffer_records=100
    )
    stream.send(make_batch([b"x"] * 40))
    assert len(consumer.poll(10)) == 10
    stream.end(UNAVAILABLE)
    again = rejoined(consumer, coordinator)
    waiting = 100 - again.join.credit.records_total
    assert waiting in (0, 10, 20, 30)


def test_a_refused_join_raises_once_with_the_reason(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    coordinator.script.refusals = [
        Refusal(grpc.StatusCode.PERMISSION_DENIED, "u may not read t", "AUTHORIZATION_FAILED")
    ]
    consumer, _ = joined(drivers, coordinator)
    with pytest.raises(KafkaException, match="u may not read t") as caught:
        consumer.poll(10)
    assert caught.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert coordinator.address in caught.value.args[0].str()
    # It goes on trying: the reason may be gone.
    again = rejoined(consumer, coordinator)
    again.send(make_batch([b"a"]))
    assert len(consumer.poll(10)) == 1


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal(grpc.StatusCode.INVALID_ARGUMENT), KafkaError.INVALID_REQUEST),
        (Refusal(grpc.StatusCode.UNAUTHENTICATED), KafkaError._AUTHENTICATION),
        (Refusal(grpc.StatusCode.UNIMPLEMENTED), KafkaError.UNSUPPORTED_VERSION),
        (
            Refusal(grpc.StatusCode.FAILED_PRECONDITION, reason="MEMBER_FENCED"),
            KafkaError.FENCED_MEMBER_EPOCH,
        ),
        (
            Refusal(grpc.StatusCode.FAILED_PRECONDITION, reason="UNSUPPORTED_VERSION"),
            KafkaError.UNSUPPORTED_VERSION,
        ),
        (
            Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "", "GROUP_MAX_SIZE_REACHED", 5),
            KafkaError.GROUP_MAX_SIZE_REACHED,
        ),
    ],
)
def test_statuses_become_kafka_errors(
    drivers: Drivers, coordinator: FakeCoordinator, refusal: Refusal, code: int
) -> None:
    coordinator.script.refusals = [refusal]
    consumer, _ = joined(drivers, coordinator)
    with pytest.raises(KafkaException) as caught:
        consumer.poll(10)
    assert caught.value.args[0].code() == code


@pytest.mark.parametrize(
    "refusal",
    [
        UNAVAILABLE,
        Refusal(grpc.StatusCode.UNAVAILABLE, "draining", "DRAINING", 1),
        Refusal(grpc.StatusCode.INTERNAL, "a mistake"),
        Refusal(grpc.StatusCode.FAILED_PRECONDITION, "later", "GROUP_PAUSED", 1),
        Refusal(grpc.StatusCode.NOT_FOUND, "who?", "UNKNOWN_MEMBER"),
    ],
)
def test_what_passes_is_not_told(
    drivers: Drivers, coordinator: FakeCoordinator, refusal: Refusal
) -> None:
    coordinator.script.refusals = [refusal]
    consumer, _ = joined(drivers, coordinator)
    again = rejoined(consumer, coordinator)
    again.send(make_batch([b"a"]))
    assert len(consumer.poll(10)) == 1


def test_the_next_address_is_tried(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        consumer = drivers.make(f"{dead},{coordinator.address}")
        consumer.subscribe(["t"])
        stream = rejoined(consumer, coordinator)
    stream.send(make_batch([b"a"]))
    assert len(consumer.poll(10)) == 1


def test_a_drained_coordinator_sends_its_members_on(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    other = FakeCoordinator()
    try:
        consumer, stream = joined(drivers, coordinator)
        stream.send(make_batch([b"a", b"b"]))
        assert len(consumer.poll(10)) == 2
        notice = service_pb.DrainNotice(addresses=[other.address], grace_ms=60_000)
        stream.send(make_batch([b"c"] * 3, base=2, token=2), drain=notice)
        rejoined(consumer, other)
        # The handler's records are accepted; what no handler saw goes back uncounted.
        assert sorted(stream.acks(), key=lambda ack: ack.first) == [
            Ack("t", 0, 0, 1, "ACCEPT", 1),
            Ack("t", 0, 2, 4, "RETURN", 2),
        ]
        moved = other.streams_seen[0]
        assert moved.join.member_id == stream.join.member_id
        assert moved.join.lock_book == []
        stream.wait_over()
        consumer.close()
    finally:
        other.stop()


def test_a_kafka_broker_is_recognised_and_told_once(
    drivers: Drivers, coordinator: FakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[KafkaError] = []
    with _BrokerLike() as broker, caplog.at_level(logging.ERROR, "sharecoord_sdk"):
        consumer = drivers.make_with(
            {
                "bootstrap.servers": broker.address,
                "group.id": "g",
                "error_cb": heard.append,
                "socket.connection.setup.timeout.ms": 1000,
            }
        )
        consumer.subscribe(["t"])
        eventually(lambda: consumer.poll(0.05).is_empty() and heard)
        assert consumer.poll(0.05).is_empty()
        consumer.close()
    (error,) = heard
    assert error.code() == KafkaError._TRANSPORT
    assert broker.address in error.str()
    assert "Is this a Kafka broker?" in error.str()
    assert sum("Is this a Kafka broker?" in r.getMessage() for r in caplog.records) == 1


class _BrokerLike:
    """Listens and hangs up on whoever does not speak Kafka, as a broker does."""

    def __enter__(self) -> _BrokerLike:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(64)

    def __exit__(self, *exc_info: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


# -- subscriptions --------------------------------------------------------------------------------


def test_unsubscribed_topics_go_back_unseen(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator, "t", "u", max_poll_records=1)
    stream.send(make_batch([b"a"]), make_batch([b"b", b"c"], topic="u", token=8))
    assert [m.value() for m in consumer.poll(10)] == [b"a"]
    consumer.subscribe(["t"])
    assert consumer.subscription() == ["t"]
    assert stream.wait_acks(1) == [Ack("u", 0, 0, 1, "RETURN", 8)]
    change = stream.wait_for(lambda s: [r for r in s.requests if r.HasField("subscription")])
    assert list(change[0].subscription.topics) == ["t"]
    # What was on its way goes back as well.
    stream.send(
        make_batch([b"late"], topic="u", base=2, token=9), make_batch([b"d"], base=1, token=2)
    )
    assert [m.value() for m in consumer.poll(10)] == [b"d"]
    assert Ack("u", 0, 2, 2, "RETURN", 9) in stream.wait_acks(3)


def test_unsubscribe_keeps_what_the_application_has(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = with_a_record(drivers, coordinator)
    consumer.unsubscribe()
    assert consumer.subscription() == []
    with pytest.raises(IllegalStateException, match="not subscribed"):
        consumer.poll(0)
    assert consumer.commit_sync(10) == {T0: None}
    assert stream.acks() == [Ack("t", 0, 0, 0, "ACCEPT", 1)]


def test_a_last_word_is_said_after_unsubscribe_and_a_broken_stream(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = with_a_record(drivers, coordinator)
    consumer.unsubscribe()
    stream.end(UNAVAILABLE)
    assert consumer.commit_sync(10) == {T0: None}
    again = coordinator.stream()
    assert list(again.join.topics) == ["t"]
    assert any(
        r.HasField("subscription") and not r.subscription.topics
        for r in again.wait_for(lambda s: s.requests[1:])
    )


def test_paused_partitions_get_nothing_until_resumed(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator, max_poll_records=1)
    stream.send(make_batch([b"a", b"b"]), make_batch([b"c"], partition=1, token=2))
    assert [m.value() for m in consumer.poll(10)] == [b"a"]
    consumer.pause([T0])
    assert stream.wait_acks(1) == [Ack("t", 0, 1, 1, "RETURN", 1)]
    paused = stream.wait_for(lambda s: [r for r in s.requests if r.HasField("paused")])[0].paused
    assert [(p.topic, p.partition) for p in paused.partitions] == [("t", 0)]
    stream.send(make_batch([b"late"], base=2, token=3))
    assert [m.value() for m in consumer.poll(10)] == [b"c"]
    assert consumer.poll(0.5).is_empty()
    assert Ack("t", 0, 2, 2, "RETURN", 3) in stream.wait_acks(3)
    stream.end(UNAVAILABLE)
    again = rejoined(consumer, coordinator)
    assert len(again.requests[0].paused.partitions) == 1
    consumer.resume([T0])
    again.wait_for(lambda s: any(r.HasField("paused") for r in s.requests[1:]))
    again.send(make_batch([b"d"], base=3, token=4))
    assert [m.value() for m in consumer.poll(10)] == [b"d"]


# -- the end --------------------------------------------------------------------------------------


def test_close_sends_the_last_word_and_leaves(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream, messages = served(
        drivers,
        coordinator,
        make_batch([b"a", b"b", b"c", b"d", b"e"]),
        max_poll_records=3,
        **EXPLICIT,
    )
    consumer.acknowledge(messages[0])
    heard: list[Any] = []
    consumer.set_acknowledgement_commit_callback(lambda *given: heard.append(given))
    consumer.close()
    assert stream.acks() == [Ack("t", 0, 0, 0, "ACCEPT", 1), Ack("t", 0, 3, 4, "RETURN", 1)]
    assert stream.requests[-1].leave
    assert heard == [({T0: {0}}, None)]
    consumer.close()
    for call in (
        lambda: consumer.poll(0),
        consumer.subscription,
        consumer.commit_async,
        consumer.commit_sync,
        consumer.unsubscribe,
        lambda: consumer.acknowledge(messages[1]),
        lambda: consumer.pause([]),
        consumer.acquisition_lock_timeout_ms,
    ):
        with pytest.raises(IllegalStateException, match="Share consumer closed"):
            call()


def test_close_accepts_nothing_in_implicit_mode(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = with_a_record(drivers, coordinator)
    consumer.close()
    assert stream.acks() == []
    assert stream.requests[-1].leave


def test_close_says_the_last_word_on_a_new_stream_when_the_old_one_broke(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(make_batch([b"a"]))
    (message,) = consumer.poll(10)
    consumer.acknowledge(message)
    coordinator.script.answers_acknowledgements = False
    coordinator.script.answers_leaves = False
    consumer.commit_async()
    stream.wait_acks(1)
    coordinator.script.answers_acknowledgements = True
    coordinator.script.answers_leaves = True
    stream.end(UNAVAILABLE)
    consumer.close()
    again = coordinator.stream()
    assert again.acks() == [Ack("t", 0, 0, 0, "ACCEPT", 1)]
    assert again.requests[-1].leave


def test_close_waits_no_longer_than_the_socket_timeout(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    coordinator.script.answers_leaves = False
    consumer, stream = with_a_record(drivers, coordinator, socket_timeout_ms=50)
    consumer.close()
    stream.wait_over()
    assert stream.requests[-1].leave


def test_a_consumer_that_never_subscribed_opens_nothing(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer = drivers.make(coordinator.address)
    assert consumer.commit_sync(0) == {}
    consumer.close()
    assert coordinator.streams_seen == []


def test_a_dropped_consumer_is_collected_and_its_stream_ended(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = with_a_record(drivers, coordinator)
    gone = weakref.ref(inner(consumer))
    drivers.forget(consumer)
    del consumer

    def collected() -> bool:
        gc.collect()
        return gone() is None

    eventually(collected)
    stream.wait_over()
    assert stream.is_over
    assert not any(request.leave for request in stream.requests), "no close, no leave"


# -- where and how --------------------------------------------------------------------------------


def test_unix_sockets(drivers: Drivers, tmp_path: Path) -> None:
    fake = FakeCoordinator(f"unix:{tmp_path}/s")
    try:
        consumer, stream = joined(drivers, fake)
        stream.send(make_batch([b"a"]))
        assert len(consumer.poll(10)) == 1
        consumer.close()
    finally:
        fake.stop()


def test_async_consumers_of_a_loop_share_their_channel(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    streams = [joined(drivers, coordinator)[1] for _ in range(20)]
    peers = {stream.peer for stream in streams}
    assert len(peers) == (20 if drivers.kind == "sync" else 1)
    assert len({stream.join.member_id for stream in streams}) == 20
