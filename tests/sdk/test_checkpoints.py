"""Checkpoints from the application's side: both consumers, workers, tests of handlers."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sharecoord_sdk import (
    AcknowledgeType,
    IllegalStateException,
    KafkaError,
    KafkaException,
    Message,
    Retry,
)
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk.testing import make_message, run_handler

from tests.sdk.driver import EXPLICIT, Drivers, joined
from tests.sdk.fake_coordinator import TOPIC_ID, Ack, FakeCoordinator, FakeStream, make_batch
from tests.sdk.worker_running import Make, values, wait_covered

LOCK_LOST = types_pb.ACKNOWLEDGE_OUTCOME_LOCK_LOST
RENEW_DISABLED = types_pb.ACKNOWLEDGE_OUTCOME_RENEW_DISABLED


def batch_with(*kept: tuple[int, bytes], count: int = 3, **more: Any) -> types_pb.RecordBatch:
    """Records, some of them with a checkpoint (row, data)."""
    batch = make_batch(values(count), **more)
    for row, data in kept:
        batch.checkpoints.add(index=row, data=data)
    return batch


def refuse(coordinator: FakeCoordinator, **fields: Any) -> None:
    """Answers RENEWs with this outcome for the partition."""
    place = types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID)
    outcome = types_pb.PartitionOutcome(partition=place, **fields)
    coordinator.script.outcomes = lambda acks: [outcome] if acks[0].kind == "RENEW" else []


def lost(offset: int, what: int = LOCK_LOST) -> list[types_pb.RangeOutcome]:
    return [types_pb.RangeOutcome(first_offset=offset, last_offset=offset, outcome=what)]  # type: ignore[arg-type]


def stored(stream: FakeStream) -> list[tuple[int, bytes]]:
    """What came over the wire."""
    return [
        (item.first_offset, item.checkpoint)
        for request in stream.requests
        for part in request.acknowledgements
        for item in part.ranges
        if item.HasField("checkpoint")
    ]


@pytest.mark.parametrize("config", [EXPLICIT, {}])
def test_a_checkpoint_is_confirmed_and_the_record_stays(
    drivers: Drivers, coordinator: FakeCoordinator, config: dict[str, Any]
) -> None:
    consumer, stream = joined(drivers, coordinator, **config)
    stream.send(batch_with((1, b"before"), (2, b""), deltas=[0, 4, 9], base=10))
    messages = consumer.poll(10)
    assert [m.checkpoint_data() for m in messages] == [None, b"before", b""]
    consumer.checkpoint(messages[1], b"half")
    assert stored(stream) == [(14, b"half")], "of the record alone, not of the gap behind it"
    assert stream.acks() == [Ack("t", 0, 14, 14, "RENEW", 1)]
    assert not stream.requests[-1].may_wait
    assert messages[1].checkpoint_data() == b"half"
    if config:
        for message in messages:
            consumer.acknowledge(message)
    assert list(consumer.commit_sync().values()) == [None]
    assert stream.acks()[1:] == [Ack("t", 0, 10, 19, "ACCEPT", 1)]


def test_what_goes_wrong_is_told(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(batch_with(count=2))
    message, other = consumer.poll(10)
    refuse(coordinator, exceptions=lost(0))
    with pytest.raises(KafkaException) as caught:
        consumer.checkpoint(message, b"x")
    assert caught.value.args[0].code() == KafkaError.INVALID_RECORD_STATE
    refuse(coordinator, exceptions=lost(0, RENEW_DISABLED))
    with pytest.raises(KafkaException, match=r"share\.renew\.acknowledge\.enable"):
        consumer.checkpoint(message, b"x")
    refuse(coordinator, error_reason="INVALID_REQUEST", error_message="too large")
    with pytest.raises(KafkaException, match="too large") as caught:
        consumer.checkpoint(message, b"x")
    assert not caught.value.args[0].retriable()
    refuse(coordinator, error_reason="LIMIT_EXCEEDED", error_retriable=True, error_message="full")
    with pytest.raises(KafkaException, match="full") as caught:
        consumer.checkpoint(message, b"x")
    assert caught.value.args[0].retriable(), "told at once: the lock would end meanwhile"
    assert caught.value.args[0].code() == KafkaError.THROTTLING_QUOTA_EXCEEDED
    assert message.checkpoint_data() is None
    coordinator.script.answers_acknowledgements = False
    with pytest.raises(KafkaException) as caught:
        consumer.checkpoint(other, b"x", 0.01)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT


def test_a_passing_failure_is_tried_again(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(batch_with())
    message = consumer.poll(10)[0]
    place = types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID)
    away = [
        types_pb.PartitionOutcome(
            partition=place, error_reason="STORE_UNAVAILABLE", error_retriable=True
        )
    ]
    coordinator.script.outcomes = lambda acks: [away.pop()] if away else []
    consumer.checkpoint(message, b"x")
    assert stored(stream) == [(0, b"x")] * 2


def test_it_is_said_again_when_the_stream_broke(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(batch_with())
    message = consumer.poll(10)[0]
    coordinator.script.answers_acknowledgements = False
    with pytest.raises(KafkaException):
        consumer.checkpoint(message, b"x", 0)
    stream.wait_for(stored)
    coordinator.script.answers_acknowledgements = True
    stream.end()
    consumer.acknowledge(message, AcknowledgeType.RELEASE)
    consumer.commit_sync(10)
    again = coordinator.stream()
    assert stored(again) == [(0, b"x")]


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        ("text", TypeError, "a checkpoint must be bytes, not str"),
        (None, TypeError, "a checkpoint must be bytes, not NoneType"),
        (b"x" * 65537, ValueError, "at most 65536 bytes, not 65537; store large state elsewhere"),
    ],
)
def test_what_is_no_checkpoint_is_refused(
    drivers: Drivers, coordinator: FakeCoordinator, data: Any, kind: type[Exception], text: str
) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(batch_with())
    message = consumer.poll(10)[0]
    with pytest.raises(kind, match=text):
        consumer.checkpoint(message, data)
    with pytest.raises(kind, match=text):
        make_message().checkpoint(data)
    assert stored(stream) == []


def test_only_records_in_flight_have_one(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(batch_with())
    first, second, _ = consumer.poll(10)
    with pytest.raises(IllegalStateException, match=r"use checkpoint\(\) of the consumer"):
        first.checkpoint(b"x")
    consumer.acknowledge(second)
    with pytest.raises(IllegalStateException, match="in flight, not acknowledged"):
        consumer.checkpoint(second, b"x")
    with pytest.raises(IllegalStateException, match="in flight"):
        consumer.checkpoint(make_message(topic="t", offset=77), b"x")
    with pytest.raises(TypeError):
        consumer.checkpoint("no message", b"x")


def test_a_changed_message_keeps_its_record(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(batch_with((0, b"before")))
    message = consumer.poll(10)[0]
    message.set_value({"id": 7})
    assert message.checkpoint_data() == b"before"
    consumer.checkpoint(message, b"half")
    assert (stored(stream), message.checkpoint_data()) == ([(0, b"half")], b"half")
    assert pickle.loads(pickle.dumps(message)).checkpoint_data() == b"half"


# -- workers ----------------------------------------------------------------------------------


def handler_of(kind: str, seen: list[Any]) -> Callable[[Message], Any]:
    """Stores two checkpoints and fails after the second one, unless it finds one."""

    def plain(message: Message) -> None:
        seen.append(message.checkpoint_data())
        if message.checkpoint_data() is None:
            message.checkpoint(b"1")
            message.checkpoint(b"2")
            seen.append(message.checkpoint_data())
            raise Retry

    async def coroutine(message: Message) -> None:
        seen.append(message.checkpoint_data())
        if message.checkpoint_data() is None:
            await message.checkpoint(b"1")
            await message.checkpoint(b"2")
            seen.append(message.checkpoint_data())
            raise Retry

    async def on_a_thread(message: Message) -> None:
        await asyncio.to_thread(plain, message)

    return {"plain": plain, "async": coroutine, "to_thread": on_a_thread}[kind]


@pytest.mark.parametrize("ordering", [None, "partition"])
@pytest.mark.parametrize("kind", ["plain", "async", "to_thread"])
def test_a_handler_goes_on_where_the_last_one_was(
    kind: str, ordering: str | None, make: Make
) -> None:
    running, seen = make(), list[Any]()
    running.worker.handler("t", ordering=ordering)(handler_of(kind, seen))
    stream = running.start()
    stream.send(make_batch(values(1), token=7))
    stream.wait_for(lambda s: any(ack.kind == "RELEASE" for ack in s.acks()))
    assert stored(stream) == [(0, b"1"), (0, b"2")]
    stream.send(batch_with((0, b"2"), count=1, token=8))
    stream.wait_for(lambda s: any(ack.kind == "ACCEPT" for ack in s.acks()))
    assert seen == [None, b"2", b"2"]
    running.stop()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_hears_that_its_lock_is_lost(
    kind: str, make: Make, coordinator: FakeCoordinator
) -> None:
    refuse(coordinator, exceptions=lost(0))
    running, errors = make(), list[int]()

    def plain(message: Message) -> None:
        try:
            message.checkpoint(b"1")
        except KafkaException as error:
            errors.append(error.args[0].code())

    async def coroutine(message: Message) -> None:
        try:
            await message.checkpoint(b"1")
        except KafkaException as error:
            errors.append(error.args[0].code())

    running.worker.handler("t")(plain if kind == "plain" else coroutine)
    stream = running.start()
    stream.send(make_batch(values(1)))
    stream.wait_for(lambda s: any(ack.kind == "ACCEPT" for ack in s.acks()))
    assert errors == [KafkaError.INVALID_RECORD_STATE]
    running.stop()


def test_each_record_of_a_batch_has_its_own(make: Make) -> None:
    running = make()

    async def handle(messages: list[Message]) -> None:
        await asyncio.gather(*(m.checkpoint(m.value()) for m in messages[1:]))

    running.worker.handler("t", batch=10)(handle)
    stream = running.start()
    stream.send(make_batch(values(4)))
    assert wait_covered(stream, 4)
    assert sorted(stored(stream)) == [(1, b"1"), (2, b"2"), (3, b"3")]
    running.stop()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_worker_that_ends_lets_nobody_wait(
    kind: str, make: Make, coordinator: FakeCoordinator
) -> None:
    coordinator.script.answers_acknowledgements = False
    running, over = make(drain_timeout_s=0.05), threading.Event()

    def plain(message: Message) -> None:
        try:
            message.checkpoint(b"1")
        finally:
            over.set()

    async def coroutine(message: Message) -> None:
        try:
            await message.checkpoint(b"1")
        finally:
            over.set()

    running.worker.handler("t")(plain if kind == "plain" else coroutine)
    stream = running.start()
    stream.send(make_batch(values(1)))
    stream.wait_for(stored)
    running.worker.stop()
    assert over.wait(20)
    coordinator.script.answers_leaves = True
    running.join()


def test_a_finished_record_has_none(make: Make) -> None:
    running, kept = make(), list[Message]()
    running.worker.handler("t")(kept.append)
    stream = running.start()
    stream.send(make_batch(values(1)))
    assert wait_covered(stream, 1)
    with pytest.raises(IllegalStateException, match="whose handler runs"):
        kept[0].checkpoint(b"late")
    running.stop()
    with pytest.raises(IllegalStateException):
        kept[0].checkpoint(b"later")


def test_handlers_with_checkpoints_are_tested_without_a_queue() -> None:
    message = make_message(checkpoint=b"1")

    async def handle(found: Message) -> None:
        assert found.checkpoint_data() == b"1"
        await found.checkpoint(b"2")

    assert run_handler(handle, message).type is AcknowledgeType.ACCEPT
    assert message.checkpoint_data() == b"2"
