"""What the coordinator tells the event log, on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from sharecoord.core.delivery import Delivery
from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.states import AcknowledgeType
from sharecoord.eventlog.schema import EventKind
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.admin.reset import ResetCommand, ResetKind, ResetTo
from sharecoord.runtime.partition.collector import Collector
from sharecoord.runtime.status.event_samples import EventSampler
from sharecoord.testing.fake_log import FakeLog
from sharecoord.testing.harness import STORE_EPOCH_MS, FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.world import World, running

RELEASE, RENEW = AcknowledgeType.RELEASE, AcknowledgeType.RENEW
INFO = CoordinatorInfo("test", "", "", "")


def world_with(count: int, *, key: bytes | None = None, **defaults: str) -> World:
    """A topic with records."""
    log = FakeLog()
    log.create("orders")
    if count:
        log.append("orders", count, key=key)
    return World(log, defaults={name.replace("_", "."): text for name, text in defaults.items()})


async def everything(member: FakeMember, count: int) -> Delivery:
    """Accepts the first of all records, and returns their delivery."""
    delivery = await member.next_delivery()
    assert delivery.records == count
    await member.acknowledge(delivery, last=0)
    return delivery


def told(world: World, *names: str, kind: EventKind = EventKind.RANGE) -> list[tuple[Any, ...]]:
    """These columns of all rows of a kind."""
    return [tuple(row.get(name) for name in names) for row in world.events.rows(kind)]


@virtual
async def test_the_life_of_a_record_is_told_with_its_times() -> None:
    world = world_with(1, key=b"k" * 300)
    async with world.one_member() as (_, member):
        delivery = await member.next_delivery()
        await asyncio.sleep(3)
        await member.acknowledge(delivery, RENEW)
        await asyncio.sleep(2)
        await member.acknowledge(delivery, RELEASE, delay_ms=10_000)
        delivery = await member.next_delivery()
        await asyncio.sleep(1)
        await member.acknowledge(delivery)
    assert world.events.complete(world.database)
    first, renewed, released, second, accepted = world.events.rows(EventKind.RANGE)
    assert [r["event"] for r in (first, renewed, released, second, accepted)] == [
        "acquired",
        "renewed",
        "released",
        "acquired",
        "accepted",
    ]
    common = {
        "kind": "range",
        "group_id": "g",
        "topic": "orders",
        "topic_id": world.partition("g", "orders").topic_id,
        "partition": 0,
        "first_offset": 0,
        "last_offset": 0,
        "records": 1,
        "member_id": "m",
        "client_id": "client-m",
    }
    assert all(common.items() <= row.items() for row in world.events.rows(EventKind.RANGE))
    # A step of time is 2 ms here: commits take so long.
    assert first["available_ms"] <= 10
    # The record is of the year 1970.
    assert first["age_ms"] == first["time"] // 1000 - 1_000
    assert (first["state"], first["delivery_count"], first["lock_ms"]) == (
        "acquired",
        1,
        30_000,
    )
    assert 3_000 <= renewed["held_ms"] <= 3_010
    assert 26_990 <= renewed["lock_left_ms"] <= 27_000
    assert (renewed["state"], renewed["lock_ms"]) == ("acquired", 30_000)
    assert 5_000 <= released["held_ms"] <= 5_010
    assert 27_980 <= released["lock_left_ms"] <= 28_000
    assert (released["state"], released["delivery_count"]) == ("available", 1)
    assert released["delay_ms"] == 10_000
    assert released["key"] == b"k" * 256
    assert 0 <= second["available_ms"] <= 60
    assert second["delivery_count"] == 2
    assert (accepted["state"], accepted["delivery_count"]) == ("acknowledged", 2)
    assert 1_000 <= accepted["held_ms"] <= 1_010
    assert "key" not in accepted
    assert [row["change_sequence"] for row in world.events.rows(EventKind.RANGE)] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert released["time"] - first["time"] >= 5_000_000
    assert first["time"] >= STORE_EPOCH_MS * 1000


@virtual
async def test_how_locks_end_is_told_apart() -> None:
    world = world_with(41, share_delivery_count_limit="2")
    async with world.one_member() as (coordinator, member):
        delivery = await everything(member, 41)
        for kind, (first, last) in {
            AcknowledgeType.ACCEPT: (1, 10),
            AcknowledgeType.REJECT: (11, 20),
            AcknowledgeType.RETURN: (21, 30),
        }.items():
            await member.acknowledge(delivery, kind, first=first, last=last)
        again = await member.next_delivery()
        assert (again.ranges[0].first, again.ranges[0].last) == (21, 30)
        await member.acknowledge(again)
        await asyncio.sleep(35)
        coordinator.groups["g"].polled(member.joined_session)
        while member.received < 61:
            await member.acknowledge(await member.next_delivery(), RELEASE)
    rows = told(world, "event", "state", "first_offset", "last_offset", "reason", "member_id")
    assert rows[:8] == [
        ("acquired", "acquired", 0, 40, None, "m"),
        ("accepted", "acknowledged", 0, 0, None, "m"),
        ("accepted", "acknowledged", 1, 10, None, "m"),
        ("rejected", "archived", 11, 20, "REJECTED", "m"),
        ("returned", "available", 21, 30, None, "m"),
        ("acquired", "acquired", 21, 30, None, "m"),
        ("accepted", "acknowledged", 21, 30, None, "m"),
        ("expired", "available", 31, 40, None, "m"),
    ]
    worn_out = {row[:2] + row[4:] for row in rows[8:] if row[0] != "acquired"}
    assert worn_out == {("released", "archived", "DELIVERY_LIMIT", "m")}
    assert world.events.complete(world.database)


@virtual
async def test_who_leaves_departs_from_its_records_under_its_name() -> None:
    world = world_with(5)
    async with world.one_member() as (coordinator, member):
        await member.next_delivery()
        member.leave()
        await coordinator.context.committer.flush()
        other = await world.joined(coordinator, "n")
        await other.next_delivery()
        other.disconnect()
        await asyncio.sleep(60)
    departed = [row for row in told(world, "event", "client_id", "held_ms") if row[0] == "departed"]
    assert [row[1] for row in departed] == ["client-m"]
    assert told(world, "event", "member_id", "client_id", "reason", kind=EventKind.GROUP) == [
        ("joined", "m", "client-m", None),
        ("owned", None, None, None),
        ("left", "m", "client-m", None),
        ("joined", "n", "client-n", None),
        ("session_ended", "n", "client-n", "session timeout"),
    ]


@virtual
async def test_gaps_and_the_ways_of_the_log_are_told() -> None:
    world = world_with(30)
    world.log.compact("orders", [3, 4, *range(20, 25)])
    world.log.skip("orders", 2)
    async with world.one_member() as (_, member):
        while member.received < 23:
            await member.settle(await member.next_delivery())
        await asyncio.sleep(1)
    gaps = [
        row[1:]
        for row in told(world, "event", "first_offset", "last_offset", "records")
        if row[0] == "gap"
    ]
    assert gaps == [(3, 4, 0), (20, 24, 0), (30, 31, 0)]
    assert world.events.complete(world.database)


@virtual
async def test_what_is_not_durable_is_not_told() -> None:
    world = world_with(10)
    async with world.one_member() as (_, member):
        delivery = await everything(member, 10)
        before = told(world, "event")
        world.caller.down = True
        acknowledging = asyncio.ensure_future(member.acknowledge(delivery, first=1))
        await asyncio.sleep(3)
        # The commit was given up: it did not happen, the share-partition is loaded anew.
        result = await acknowledging
        assert result.error is not None
        assert told(world, "event") == before
        world.caller.down = False
        await asyncio.sleep(3)
        await member.acknowledge(delivery, first=1)
    assert [row[0] for row in told(world, "event")[2:]] == ["accepted"]
    assert world.events.complete(world.database)


@virtual
async def test_the_time_of_the_application_is_divided_among_its_records() -> None:
    world = world_with(11)
    async with world.one_member() as (coordinator, member):
        delivery = await everything(member, 11)
        key, (held,) = delivery.key, delivery.ranges
        ranges = [
            AcknowledgedRange(1, 6, AcknowledgeType.ACCEPT, held.lock_token),
            AcknowledgedRange(7, 8, RELEASE, held.lock_token),
            AcknowledgedRange(9, 10, AcknowledgeType.RETURN, held.lock_token),
        ]
        member.ledger.sent("m", key, ranges)
        member.joined_group.acknowledge(
            member.joined_session,
            [(key.topic, key.topic_id, key.partition, ranges)],
            Collector(lambda _: None),
            busy_us=5_000,
        )
        await coordinator.context.committer.flush()
        rows = told(world, "event", "records", "work_us")
    assert rows[2:5] == [
        ("accepted", 6, 3_000),
        ("released", 2, 1_000),
        ("returned", 2, None),
    ]


@virtual
async def test_operators_leave_their_traces() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        admin = Admin(coordinator, INFO)
        member = await world.joined(coordinator)
        await member.acknowledge(await everything(member, 10), first=1)
        member.leave()
        await coordinator.context.committer.flush()
        await admin.alter_group_configs("g", {"share.delivery.count.limit": "7"}, [])
        await admin.reset_offsets(ResetCommand("g", ResetTo(ResetKind.OFFSET, 4)))
        complete = world.events.complete(world.database)
        await admin.delete_offsets("g", ["orders"])
        await admin.delete_groups(["g"])
    assert complete
    assert told(world, "event", "first_offset", "change_sequence")[-1] == ("reset", 4, 4)
    events = told(world, "event", "topic", "reason", kind=EventKind.GROUP)
    assert [row for row in events if row[0] in ("configured", "deleted")] == [
        ("configured", None, "share.delivery.count.limit=7"),
        ("deleted", "orders", None),
        ("deleted", None, None),
    ]


@virtual
async def test_samples_say_what_there_was_and_what_was_wanted() -> None:
    world = world_with(100)
    async with running(world) as coordinator:
        sampler = EventSampler(coordinator.context, coordinator.groups, interval_ms=500)
        group_task = asyncio.ensure_future(sampler.run())
        member = await world.joined(coordinator, credit=60)
        delivery = await everything(member, 60)
        await member.acknowledge(delivery, RELEASE, delay_ms=60_000, first=1, last=4)
        await member.acknowledge(delivery, first=5, last=9)
        group = coordinator.groups["g"]
        sampler.sample_members(group, group.dispatcher.measure(), 1_000)
        await asyncio.sleep(1.1)
        sampler.sample_members(group, group.dispatcher.measure(), 1_000)
        group_task.cancel()
    assert told(world, "member_id", "demand", "got", "interval_ms", kind=EventKind.MEMBER) == [
        ("m", 60, 60, 1_000),
    ]
    samples = list(world.events.rows(EventKind.PARTITION))
    assert len(samples) == 2
    wanted = {
        "group_id": "g",
        "topic": "orders",
        "partition": 0,
        "log_end_offset": 100,
        "start_offset": 1,
        "end_offset": 60,
        "lag": 94,
        "due": 0,
        "acquired": 50,
        "delayed": 4,
        "archiving": 0,
        "window_max": 2_000,
        "oldest_time": 1_001_000,
        "members": 1,
        "members_waiting": 0,
        "interval_ms": 500,
        "change_sequence": 4,
    }
    assert wanted.items() <= samples[-1].items()


@virtual
async def test_nobody_listens_and_nothing_is_kept() -> None:
    world = world_with(10)
    coordinator = world.build()
    coordinator.context.events = None
    await coordinator.start()
    member = await world.joined(coordinator)
    await member.settle(await member.next_delivery())
    assert not world.events.blocks
    await coordinator.close()
