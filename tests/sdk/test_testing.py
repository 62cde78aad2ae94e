"""The helpers for tests of handlers, and deserialization."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sharecoord_sdk import (
    AcknowledgeType,
    AsyncShareConsumer,
    DeserializingShareConsumer,
    KafkaError,
    Message,
    Messages,
    Reject,
    Retry,
)
from sharecoord_sdk.testing import make_message, make_messages, run_handler, run_handler_async

from tests.sdk.fake_coordinator import Ack, FakeCoordinator, make_batch


def test_made_messages_look_like_polled_ones() -> None:
    made = make_message(
        b"v", key=b"k", topic="orders", partition=2, offset=7, timestamp_ms=5, delivery_count=3
    )
    assert (made.value(), made.key(), made.topic()) == (b"v", b"k", "orders")
    assert (made.partition(), made.offset(), made.delivery_count()) == (2, 7, 3)
    assert made.timestamp() == (1, 5)
    batch = make_messages([b"a", None], first_offset=4)
    assert [(m.offset(), m.value()) for m in batch] == [(4, b"a"), (5, None)]


@pytest.mark.parametrize("wrong", [{"partition": -1}, {"offset": -1}, {"delivery_count": 0}])
def test_messages_that_no_partition_has_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_message(**wrong)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (7, AcknowledgeType.ACCEPT),
        (Retry(1.5), AcknowledgeType.RELEASE),
        (Reject("no"), AcknowledgeType.REJECT),
        (Reject, AcknowledgeType.REJECT),
        (KeyError("x"), AcknowledgeType.RELEASE),
        ((each for each in ()), AcknowledgeType.RELEASE),
    ],
)
def test_what_a_handler_returns_means_what_it_means_to_a_worker(
    returned: object, told: AcknowledgeType
) -> None:
    async def handler(message: Message) -> object:
        return returned

    assert run_handler(lambda message: returned, make_message()).type is told
    assert run_handler(handler, make_message()).type is told


def test_what_a_handler_does_is_told() -> None:
    def handler(message: Message) -> None:
        match message.value():
            case b"retry":
                raise Retry(1.5, "busy")
            case b"reject":
                raise Reject("no such order")
            case b"bug":
                raise KeyError("x")
            case _:
                return

    ok, retry, reject, bug = (
        run_handler(handler, make_message(value)) for value in (b"", b"retry", b"reject", b"bug")
    )
    assert (ok.type, ok.error) == (AcknowledgeType.ACCEPT, None)
    assert (retry.type, retry.delay_ms, retry.reason) == (AcknowledgeType.RELEASE, 1500, "busy")
    assert (reject.type, reject.reason) == (AcknowledgeType.REJECT, "no such order")
    assert (bug.type, bug.reason) == (AcknowledgeType.RELEASE, "KeyError: 'x'")
    assert isinstance(bug.error, KeyError)


def test_async_handlers_and_batches() -> None:
    seen: list[int] = []

    async def handler(messages: Messages) -> None:
        seen.append(len(messages))
        raise Reject

    assert run_handler(handler, make_messages([b"a", b"b"])).type is AcknowledgeType.REJECT
    assert seen == [2]


async def test_handlers_inside_a_loop() -> None:
    async def good(_: Message) -> None:
        return

    def bad(_: Message) -> None:
        raise Retry

    assert (await run_handler_async(good, make_message())).type is AcknowledgeType.ACCEPT
    assert (await run_handler_async(bad, make_message())).type is AcknowledgeType.RELEASE


def test_a_negative_retry_is_refused() -> None:
    with pytest.raises(ValueError, match="after_s"):
        Retry(-1)


def test_deserialized_records_can_still_be_acknowledged(coordinator: FakeCoordinator) -> None:
    consumer = DeserializingShareConsumer(
        {
            "bootstrap.servers": coordinator.address,
            "group.id": "g",
            "share.acknowledgement.mode": "explicit",
            "value.deserializer": lambda data, _: data.decode("ascii"),
        }
    )
    consumer.subscribe(["t"])
    stream = coordinator.stream()
    stream.send(make_batch([b"good", b"\xff"]))
    good, bad = consumer.poll(10)
    assert (good.value(), good.error(), good.delivery_count()) == ("good", None, 1)
    assert bad.value() == b"\xff"
    assert bad.error() == KafkaError._VALUE_DESERIALIZATION
    consumer.acknowledge(good)
    consumer.acknowledge(bad, AcknowledgeType.REJECT, reason="not ASCII")
    consumer.commit_sync(10)
    consumer.close()
    assert stream.acks() == [
        Ack("t", 0, 0, 0, "ACCEPT", 1),
        Ack("t", 0, 1, 1, "REJECT", 1, 0, "not ASCII"),
    ]


async def test_async_iteration_polls_and_accepts(coordinator: FakeCoordinator) -> None:
    config = {"bootstrap.servers": coordinator.address, "group.id": "g"}
    async with AsyncShareConsumer(config) as consumer:
        await consumer.subscribe(["t"])
        stream = await asyncio.to_thread(coordinator.stream)
        stream.send(make_batch([b"a", b"b"]))
        stream.send(make_batch([b"c"], base=2, token=2))
        seen = []
        async for message in consumer:
            seen.append(message.value())
            if len(seen) == 3:
                break
    assert seen == [b"a", b"b", b"c"]
    # The first poll was accepted by the second; the last one was left unaccepted (KIP-932).
    assert stream.acks() == [Ack("t", 0, 0, 1, "ACCEPT", 1)]
