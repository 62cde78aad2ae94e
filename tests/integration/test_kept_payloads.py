"""Payloads that are in the store alone, from a real Kafka whose log has lost them."""

from __future__ import annotations

import time
from collections.abc import Callable

from sharecoord_sdk import AcknowledgeType, AdminClient, Message, ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.support import eventually, unique_name

RECORDS = [
    (b"k\x00", b"\xff\x00value", [("a", b"1"), ("a", None), ("größe", b"\xff")]),
    (None, b"", None),
    (b"", None, None),
    (b"last", b"x" * 100_000, None),
]
DELAY_MS = 15_000
WAIT_S = 60.0

Whole = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], tuple[int, int]]


def whole(message: Message) -> Whole:
    headers = [(name, value) for name, value in message.headers() or []]
    return message.key(), message.value(), headers, message.timestamp()


def test_a_delayed_record_comes_byte_for_byte_after_delete_records_and_kill_9(
    topic: Callable[..., str], topics: Topics, coordinator: CoordinatorProcess
) -> None:
    name, group = topic(), unique_name("g")
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        admin.alter_group_configs(group, {"share.retry.keep.payload": "true"})
    topics.produce(name, RECORDS)
    config = {
        "bootstrap.servers": coordinator.address,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
    }
    first: dict[int, Whole] = {}
    again: dict[int, Whole] = {}
    with ShareConsumer(config) as consumer:
        consumer.subscribe([name])

        def all_released() -> bool:
            for message in consumer.poll(0.2):
                first[message.offset() or 0] = whole(message)
                consumer.acknowledge(message, AcknowledgeType.RELEASE, delay_ms=DELAY_MS)
            return len(first) == len(RECORDS)

        eventually(all_released, WAIT_S, what="all records")
        assert set(consumer.commit_sync(10).values()) <= {None}
        released_s = time.monotonic()
        topics.delete_records(name, {0: -1})
        coordinator.kill()
        coordinator.restart()

        def all_came_again() -> bool:
            for message in consumer.poll(0.2):
                assert message.delivery_count() == 2
                again[message.offset() or 0] = whole(message)
                consumer.acknowledge(message)
            return len(again) == len(RECORDS)

        eventually(all_came_again, WAIT_S, what="all records again")
        assert set(consumer.commit_sync(10).values()) <= {None}
    assert time.monotonic() - released_s > DELAY_MS / 1000 - 1
    assert again == first
    assert [first[at][:2] for at in range(len(RECORDS))] == [each[:2] for each in RECORDS]
    assert first[0][2] == RECORDS[0][2]
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        (offsets,) = admin.describe_groups([group])[0].offsets
    assert (offsets.start_offset, offsets.lag) == (len(RECORDS), 0)
    assert offsets.payloads_not_kept == 0
