"""What is rejected or fails for the last time reaches the dead-letter topic, whatever happens."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from sharecoord.core.delivery import Delivery
from sharecoord.core.letters.dead_letters import ID_HEADER, KAFKA_PREFIX, PAYLOAD_HEADER, PREFIX
from sharecoord.core.partition.share_partition import AcknowledgedRange
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import (
    InvalidConfigError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import OutgoingMessage
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.partition.letter_sender import AGAIN_S
from sharecoord.store.book_entries import DEAD_LETTER
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import Crash, counts, doing, offsets, until, world_with
from tests.world import TOPICS, World, actor_of, running

REJECT, RELEASE = AcknowledgeType.REJECT, AcknowledgeType.RELEASE
NAME = "errors.deadletterqueue.topic.name"
INFO = CoordinatorInfo("1.2.3", "fake-cluster", "kafka:9092", "memory:")


def letters_world(records: int, *, partitions: int = 1, **more: str) -> World:
    world = world_with(records, partitions=partitions)
    world.defaults |= {NAME: "dead"} | {
        f"errors.deadletterqueue.{name.replace('_', '.')}": text for name, text in more.items()
    }
    world.dead_letters.topics["dead"] = []
    return world


def arrived(world: World) -> list[OutgoingMessage]:
    return world.dead_letters.topics["dead"]


def text(message: OutgoingMessage, name: str) -> str:
    (value,) = (value for each, value in message.headers if each == name)
    assert value is not None
    return value.decode()


def offsets_of(messages: list[OutgoingMessage]) -> list[int]:
    return [int(text(message, KAFKA_PREFIX + "offset")) for message in messages]


def outbox(world: World) -> list[int]:
    return [
        n for each in world.database.partitions.values() for n in sorted(each.entries[DEAD_LETTER])
    ]


async def release(member: FakeMember, delivery: Delivery, words: str | None) -> None:
    """Releases it for so long that it does not come back to this member."""
    key = delivery.key
    ranges = [
        AcknowledgedRange(r.first, r.last, RELEASE, r.lock_token, 100_000, words)
        for r in delivery.ranges
    ]
    await member.send([(key.topic, key.topic_id, key.partition, ranges)])


async def reject(member: FakeMember, delivery: Delivery) -> None:
    await member.settle(delivery, REJECT)


async def rejecting(world: World, coordinator: Coordinator, name: str, most: int) -> None:
    member = await world.joined(coordinator, name, max_poll_records=most)
    while True:
        for delivery in await member.take(1):
            await reject(member, delivery)


@virtual
async def test_a_rejected_record_arrives_byte_for_byte() -> None:
    world = letters_world(0)
    headers = [("a", b"1"), ("a", None), ("", b"\xff\x00"), ("größe", b"")]
    world.log.append("orders", 1, key=b"\x00k", headers=headers)
    async with world.one_delivery(1, max_poll_records=100) as (_, member, delivery):
        await reject(member, delivery)
        await until(lambda: world.start_offset("g", "orders") == 1, step_s=0.01)
        (message,) = arrived(world)
        (chunk,) = (each.chunk for each in delivery.slices)
        assert (message.key, message.value) == (b"\x00k", chunk.values[0])
        assert list(message.headers[: len(headers)]) == headers
        assert text(message, KAFKA_PREFIX + "topic") == "orders"
        assert text(message, KAFKA_PREFIX + "group") == "g"
        assert text(message, KAFKA_PREFIX + "partition") == "0"
        assert text(message, KAFKA_PREFIX + "delivery.count") == "1"
        assert text(message, PREFIX + "reason") == "REJECTED"
        assert text(message, PREFIX + "member") == "m"
        assert text(message, PAYLOAD_HEADER) == "whole"
        assert outbox(world) == []


@virtual
async def test_the_last_failure_makes_a_dead_letter() -> None:
    world = letters_world(1)
    async with world.one_member(max_poll_records=100) as (_, member):
        for _ in range(5):
            (delivery,) = await member.take(1)
            await member.settle(delivery, RELEASE)
        await until(lambda: arrived(world), step_s=0.01)
        (message,) = arrived(world)
        assert text(message, PREFIX + "reason") == "DELIVERY_LIMIT"
        assert text(message, KAFKA_PREFIX + "delivery.count") == "5"


@virtual
async def test_it_tells_who_had_the_record_since_when_and_what_they_said_over_a_crash() -> None:
    world = letters_world(1)
    async with running(world) as coordinator:
        for name, words in (("ann", "no such customer"), ("bob", None), ("ann", None)):
            member = await world.joined(coordinator, name, max_poll_records=1)
            (delivery,) = await member.take(1)
            await release(member, delivery, words)
            member.leave()
            await asyncio.sleep(101)
        await world.kill(coordinator)
    async with world.one_member("eve", max_poll_records=1) as (_, member):
        for _ in range(2):
            (delivery,) = await member.take(1)
            await member.settle(delivery, RELEASE)
        await until(lambda: arrived(world), step_s=0.01)
    (message,) = arrived(world)
    assert json.loads(text(message, PREFIX + "members")) == ["ann", "bob", "eve"]
    assert text(message, PREFIX + "member") == "eve"
    assert text(message, KAFKA_PREFIX + "message") == "no such customer", "the last words"
    first_ms = int(text(message, PREFIX + "first-failed-at-ms"))
    last_ms = int(text(message, PREFIX + "failed-at-ms"))
    assert 300_000 <= last_ms - first_ms < 310_000


@virtual
async def test_letters_wait_while_the_topic_is_away_and_hold_nothing_up() -> None:
    world = letters_world(50)
    world.dead_letters.down = True
    async with world.one_delivery(50) as (coordinator, member, delivery):
        await reject(member, delivery)
        world.log.append("orders", 10)
        (after,) = await member.take(10)
        await member.settle(after)
        await asyncio.sleep(100)
        assert (arrived(world), outbox(world)) == ([], list(range(50)))
        assert world.start_offset("g", "orders") == 0
        assert "down" in actor_of(coordinator, "orders").books.letters.problem
        world.dead_letters.down = False
        await until(lambda: world.start_offset("g", "orders") == 60, step_s=1)
        assert offsets_of(arrived(world)) == list(range(50))
        assert (outbox(world), actor_of(coordinator, "orders").budget.outbox_bytes) == ([], 0)


@virtual
async def test_what_a_killed_coordinator_left_is_sent_by_the_next() -> None:
    world = letters_world(20)
    world.dead_letters.forgets = True
    async with world.one_delivery(20, max_poll_records=100) as (coordinator, member, delivery):
        await reject(member, delivery)
        await until(lambda: len(arrived(world)) == 20, step_s=0.01)
        await world.kill(coordinator)
    world.dead_letters.forgets = False
    async with running(world):
        member = world.member("m2")
        await until(lambda: len(arrived(world)) == 40, step_s=0.1)
        ids = Counter(text(message, ID_HEADER) for message in arrived(world))
        assert (len(ids), set(ids.values())) == (20, {2}), "each twice, under one id"
        await until(lambda: world.start_offset("g", "orders") == 20, step_s=0.01)


@virtual
@Crash.at_calls(range(8, 24))
async def test_a_crash_at_any_call_to_the_store_loses_none(crash: Crash) -> None:
    world = letters_world(6)
    await crash.hits(world, lambda first: rejecting(world, first, "m1", 2))
    async with running(world) as coordinator, doing(rejecting(world, coordinator, "m2", 2)):
        await until(lambda: set(offsets_of(arrived(world))) == set(range(6)), step_s=0.1)
        await until(lambda: world.start_offset("g", "orders") == 6, step_s=0.1)
    assert outbox(world) == []


@virtual
async def test_a_payload_that_memory_has_no_more_is_read_again() -> None:
    world = letters_world(10)
    async with world.one_delivery(10, max_poll_records=100) as (coordinator, member, delivery):
        actor_of(coordinator, "orders").cache.clear()
        await reject(member, delivery)
        await until(lambda: world.start_offset("g", "orders") == 10, step_s=0.01)
        assert {text(message, PAYLOAD_HEADER) for message in arrived(world)} == {"whole"}
        assert all(message.value for message in arrived(world))


@virtual
async def test_a_payload_that_the_log_has_no_more_leaves_its_headers() -> None:
    world = letters_world(10)
    async with world.one_delivery(10, max_poll_records=100) as (coordinator, member, delivery):
        actor_of(coordinator, "orders").cache.clear()
        world.log.move_log_start("orders", 4)
        await reject(member, delivery)
        await until(lambda: len(arrived(world)) == 10, step_s=0.01)
        found = {
            n: text(message, PAYLOAD_HEADER)
            for n, message in zip(offsets_of(arrived(world)), arrived(world), strict=True)
        }
        assert found == {n: "gone" if n < 4 else "whole" for n in range(10)}


@virtual
async def test_what_the_topic_does_not_take_stays_in_the_store() -> None:
    world = letters_world(3)
    world.dead_letters.most_bytes = 0
    async with world.one_delivery(3, max_poll_records=100) as (coordinator, member, delivery):
        await reject(member, delivery)
        await until(lambda: world.start_offset("g", "orders") == 3, step_s=0.01)
        assert {text(message, PAYLOAD_HEADER) for message in arrived(world)} == {"kept"}
        (partition,) = world.database.partitions.values()
        assert [letter.kept for letter in partition.entries[DEAD_LETTER].values()] == [True] * 3
        assert all(letter.value for letter in partition.entries[DEAD_LETTER].values())
        await world.kill(coordinator)
    async with running(world):
        await asyncio.sleep(60)
        assert len(arrived(world)) == 3, "what is kept is not sent again"


@virtual
async def test_what_waits_is_sent_without_members() -> None:
    world = letters_world(10)
    world.dead_letters.down = True
    async with world.one_delivery(10, max_poll_records=100) as (coordinator, member, delivery):
        actor_of(coordinator, "orders").cache.clear()
        world.log.set_down(down=True)
        await reject(member, delivery)
        member.leave()
        await asyncio.sleep(1)
        assert outbox(world) == list(range(10)), "stored before their payloads are known"
    world.dead_letters.down = False
    world.log.set_down(down=False)
    async with running(world):
        await until(lambda: world.start_offset("g", "orders") == 10, step_s=0.1)
        assert {text(message, PAYLOAD_HEADER) for message in arrived(world)} == {"whole"}
        assert {text(message, PREFIX + "member") for message in arrived(world)} == {"m"}


@virtual
async def test_headers_alone_go_where_the_group_says_so() -> None:
    world = letters_world(2, copy_record_enable="false")
    async with world.one_delivery(2, max_poll_records=100) as (_, member, delivery):
        await reject(member, delivery)
        await until(lambda: world.start_offset("g", "orders") == 2, step_s=0.01)
        assert {(m.key, m.value, text(m, PAYLOAD_HEADER)) for m in arrived(world)} == {
            (None, None, "off")
        }


@virtual
async def test_a_full_outbox_stops_the_group_until_there_is_room() -> None:
    world = letters_world(0, outbox_max_bytes=str(1 << 20))
    world.dead_letters.down = True
    async with world.one_member(max_poll_records=100) as (_, member):
        for _ in range(11):
            world.log.append("orders", 1, headers=[("pad", bytes(100_000))])
            (delivery,) = await member.take(1)
            await reject(member, delivery)
        world.log.append("orders", 1, headers=[("pad", bytes(100_000))])
        with pytest.raises(TimeoutError):
            await member.take(1, timeout_s=30)
        world.dead_letters.down = False
        (delivery,) = await member.take(1)
        await reject(member, delivery)
        await until(lambda: world.start_offset("g", "orders") == 12, step_s=0.01)


@virtual
async def test_a_topic_is_made_where_that_is_allowed() -> None:
    world = letters_world(2, auto_create_topics_enable="true")
    del world.dead_letters.topics["dead"]
    async with world.one_delivery(2, max_poll_records=100) as (_, member, delivery):
        await reject(member, delivery)
        await until(lambda: world.start_offset("g", "orders") == 2, step_s=0.01)
        assert world.dead_letters.made == ["dead"]


@virtual
async def test_letters_go_to_the_topic_that_is_set_in_the_meantime() -> None:
    world = letters_world(2)
    world.dead_letters.topics = {"other": []}
    async with world.one_delivery(2, max_poll_records=100) as (coordinator, member, delivery):
        await reject(member, delivery)
        await asyncio.sleep(20 * AGAIN_S)
        assert outbox(world) == [0, 1]
        await Admin(coordinator, INFO).alter_group_configs("g", {NAME: "other"}, [])
        await until(lambda: world.start_offset("g", "orders") == 2, step_s=0.01)
        assert offsets_of(world.dead_letters.topics["other"]) == [0, 1]


@virtual
async def test_a_delivery_after_a_reset_is_another_letter() -> None:
    world = letters_world(1)
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        for _ in range(2):
            (delivery,) = await member.take(1)
            assert (offsets(delivery), counts(delivery)) == ([0], {1})
            await reject(member, delivery)
            await until(lambda: world.start_offset("g", "orders") == 1, step_s=0.01)
            member.leave()
            await Admin(coordinator, INFO).delete_offsets("g", TOPICS)
            world.ledger.reset(delivery.key)
            member = await world.joined(coordinator, max_poll_records=100)
        assert len({text(message, ID_HEADER) for message in arrived(world)}) == 2


@virtual
async def test_bad_settings_are_refused_by_name() -> None:
    world = letters_world(1)
    world.defaults.pop(NAME)
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        await member.take(1)
        admin = Admin(coordinator, INFO)
        with pytest.raises(InvalidConfigError, match="the group reads this topic itself"):
            await admin.alter_group_configs("g", {NAME: "orders"}, [])
        with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere' does not exist"):
            await admin.alter_group_configs("g", {NAME: "nowhere"}, [])
        await admin.alter_group_configs("g", {NAME: "dead"}, [])
        with pytest.raises(InvalidRequestError, match="takes this group's own dead letters"):
            await world.member("m2").join(coordinator, "g", ("dead",))
