"""Redriven records: they look as before they became dead letters, and are settled as such."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from sharecoord_sdk import AcknowledgeType, IllegalStateException, Message, TopicPartition
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from tests.sdk.driver import EXPLICIT, Drivers, joined
from tests.sdk.fake_coordinator import FakeCoordinator, make_batch
from tests.sdk.worker_running import Make
from tests.sdk.world import World

SOURCE = [(3, 17), (0, 41), (3, 18)]


def letters(places: list[tuple[int, int]] = SOURCE, **fields: Any) -> types_pb.RecordBatch:
    """Letters of topic "t" in partition 5 of topic "dead"."""
    batch = make_batch([b"x"] * len(places), topic="dead", partition=5, base=100, **fields)
    batch.partition.lane = "t"
    for index, (partition, offset) in enumerate(places):
        headers = [
            ("own", b"1"),
            # The record's own, from another cluster's queue: the last one counts.
            ("__dlq.errors.offset", b"999"),
            ("__dlq.errors.topic", b"t"),
            ("__dlq.errors.partition", str(partition).encode()),
            ("__dlq.errors.offset", str(offset).encode()),
            ("sharecoord-dead-letter-id", b"g:t:0:0"),
        ]
        batch.headers.add(
            index=index, headers=[types_pb.Header(key=key, value=value) for key, value in headers]
        )
    return batch


def places(messages: Any) -> list[tuple[str | None, int | None, int | None]]:
    return [(each.topic(), each.partition(), each.offset()) for each in messages]


def test_a_redriven_record_is_as_it_was(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator)
    stream.send(letters(), make_batch([b"plain"], partition=5, base=100))
    messages = [*consumer.poll(10)]
    assert places(messages) == [*(("t", *each) for each in SOURCE), ("t", 5, 100)]
    assert [m.redriven() for m in messages] == [("dead", 5, 100 + n) for n in range(3)] + [None]
    assert messages[0].headers() == [("own", b"1")]
    assert messages[0].delivery_count() == 1
    copy = pickle.loads(pickle.dumps(messages[0]))
    assert copy == messages[0]
    messages[1].set_value(b"changed")
    assert places(messages[1:2]) == [("t", 0, 41)]
    assert messages[1].headers() == [("own", b"1")]
    assert messages[1].redriven() == ("dead", 5, 101)


def test_a_letter_that_does_not_say_whence_shows_its_own_place(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator)
    batch = letters()
    del batch.headers[:]
    batch.headers.add(index=1, headers=[types_pb.Header(key="__dlq.errors.offset", value=b"?")])
    stream.send(batch)
    messages = [*consumer.poll(10)]
    assert places(messages) == [("t", 5, 100), ("t", 5, 101), ("t", 5, 102)]
    assert messages[0].headers() is None


def test_its_word_goes_to_the_lane(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    heard: list[Any] = []
    consumer.set_acknowledgement_commit_callback(lambda *given: heard.append(given))
    stream.send(letters())
    first, *_ = consumer.poll(10)
    consumer.acknowledge(first, AcknowledgeType.ACCEPT)
    consumer.acknowledge(Message("t", 0, 41), AcknowledgeType.REJECT)
    consumer.acknowledge_offset("t", 3, 18)
    for wrong in (("t", 5, 100), ("dead", 5, 100), ("t", 3, 999)):
        with pytest.raises(IllegalStateException, match="not in flight"):
            consumer.acknowledge_offset(*wrong)
    assert consumer.commit_sync(10) == {TopicPartition("t", 3): None, TopicPartition("t", 0): None}
    (request,) = [each for each in stream.requests if each.acknowledgements]
    (part,) = request.acknowledgements
    assert (part.partition.topic, part.partition.partition) == ("dead", 5)
    assert part.partition.lane == "t"
    assert [(r.first_offset, r.last_offset) for r in part.ranges] == [
        (100, 100),
        (101, 101),
        (102, 102),
    ]
    told: dict[TopicPartition, set[int]] = {}
    for offsets, error in heard:
        assert error is None
        for place, found in offsets.items():
            told.setdefault(place, set()).update(found)
    assert told == {TopicPartition("t", 3): {17, 18}, TopicPartition("t", 0): {41}}


def test_the_lock_book_names_the_lane() -> None:
    world = World()
    world.join()
    world.receive(letters(), make_batch([b"x"], topic="dead", partition=5, base=100, token=7))
    world.fail()
    world.now += 10
    world.drive()
    (request,) = [each for each in world.sent if each.HasField("join")][-1:]
    held = {(h.partition.topic, h.partition.lane, h.lock_token) for h in request.join.lock_book}
    assert ("dead", "t", 1) in held


@pytest.mark.parametrize("paused", [("t", 3), ("t", 9)])
def test_a_paused_partition_stops_the_letters_of_its_topic(paused: tuple[str, int]) -> None:
    world = World()
    world.join()
    world.core.set_paused({paused}, world.now)
    world.receive(letters())
    assert world.poll() == []
    assert [ack.kind for ack in world.acks()] == ["RETURN"]


def test_a_worker_serves_them_by_the_topic_they_came_from(make: Make) -> None:
    running = make()
    seen: list[Any] = []

    @running.worker.handler("t")
    async def handle(message: Message) -> None:
        seen.append((message.topic(), message.partition(), message.offset(), message.redriven()))

    stream = running.start()
    stream.send(letters())
    stream.wait_acks(1)
    assert sorted(seen)[0] == ("t", 0, 41, ("dead", 5, 101))
    assert len(seen) == 3
