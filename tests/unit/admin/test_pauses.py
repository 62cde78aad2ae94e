"""What is paused gives, or gets, nothing new, and all else goes on."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from sharecoord.core.dispatch.pauses import FLOOD_BREAKER, WHOLE_GROUP, Pause, PauseScope
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import (
    GroupNotFoundError,
    StoreOutcomeUnknownError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from sharecoord.eventlog.schema import EventKind, GroupEvent
from sharecoord.runtime.admin.pauses import PauseAnswer
from sharecoord.testing.harness import FakeMember
from tests.support import named
from tests.unit.admin.support import Bench, virtual
from tests.unit.runtime.worlds import offsets

ORDERS = PauseScope("orders")
FIRST, SECOND = PauseScope("orders", 0), PauseScope("orders", 1)


async def pause(bench: Bench, *scopes: PauseScope, reason: str = "") -> PauseAnswer:
    return await bench.admin.pause_group("g", *named(*scopes), reason=reason)


async def resume(bench: Bench, *scopes: PauseScope) -> PauseAnswer:
    return await bench.admin.resume_group("g", *named(*scopes))


async def nothing_comes(*members: FakeMember) -> None:
    """Not in a minute of virtual time."""
    before = [member.received for member in members]
    await asyncio.sleep(60)
    assert [member.received for member in members] == before


async def settled(*members: FakeMember) -> dict[int, int]:
    """Lets time pass and accepts all that comes; how many records of each partition."""
    await asyncio.sleep(5)
    found: Counter[int] = Counter()
    for member in members:
        while member.deliveries:
            delivery = await member.next_delivery()
            found[delivery.key.partition] += delivery.records
            await member.acknowledge(delivery)
    return dict(found)


@virtual
async def test_a_paused_group_hands_out_nothing_new_and_all_else_goes_on(bench: Bench) -> None:
    await bench.admin.alter_group_configs("g", {"share.record.lock.duration.ms": "20000"}, [])
    member = await bench.member()
    deliveries = await member.take(100)
    await pause(bench)
    bench.log.append("orders", 10)
    bench.log.append("orders", 10, partition=1)
    result = await member.acknowledge(deliveries[0], first=0, last=49)
    assert not result.error
    assert not result.exceptions
    result = await member.acknowledge(deliveries[0], AcknowledgeType.RENEW, first=50, last=59)
    assert not result.error
    await nothing_comes(member)
    seen = await bench.partition()
    # Locks went on and ended, the renewed ones too; reading ahead went on.
    assert (seen.start_offset, seen.acquired_records, seen.available_records) == (50, 0, 50)
    assert bench.coordinator.groups["g"].partitions["orders", 1].log.fresh.records == 10
    member.joined_group.polled(member.joined_session)
    await resume(bench)
    assert sorted(offsets(*await member.take(70))) == [*range(10), *range(50, 110)]


@virtual
async def test_nothing_comes_after_the_answer(bench: Bench) -> None:
    """What was acquired, and waits for its commit, has arrived by then."""
    member = await bench.member()
    await member.take(100)
    for _ in range(20):
        bench.log.append("orders", 3)
        bench.log.append("orders", 3, partition=1)
        await asyncio.sleep(0.0005)
        await pause(bench)
        before = member.received
        await asyncio.sleep(1)
        assert member.received == before
        await resume(bench)
        await asyncio.sleep(0.01)
    assert member.received == 220


@virtual
async def test_a_topic_a_partition_a_member(bench: Bench) -> None:
    one, two = await bench.member("m1"), await bench.member("m2")
    assert await settled(one, two) == {0: 100}
    await pause(bench, FIRST)
    for partition in (0, 1):
        bench.log.append("orders", 10, partition=partition)
    assert await settled(one, two) == {1: 10}
    await resume(bench, FIRST)
    assert await settled(one, two) == {0: 10}
    # One topic: both partitions, and one that is added later.
    await pause(bench, ORDERS)
    bench.log.create("orders", 3)
    for partition in (0, 1, 2):
        bench.log.append("orders", 2, partition=partition)
    assert await settled(one, two) == {}
    await resume(bench, ORDERS)
    assert await settled(one, two) == {0: 2, 1: 2, 2: 2}
    # One member: the other one gets everything.
    await pause(bench, PauseScope(member_id="m1"))
    before = one.received
    for _ in range(5):
        bench.log.append("orders", 40)
        assert await settled(one, two) == {0: 40}
    assert one.received == before
    await resume(bench, PauseScope(member_id="m1"))
    for _ in range(5):
        bench.log.append("orders", 40)
        assert await settled(one, two) == {0: 40}
    assert one.received > before


@virtual
async def test_a_paused_member_keeps_its_session_its_locks_and_its_pause(bench: Bench) -> None:
    await bench.admin.alter_group_configs("g", {"share.record.lock.duration.ms": "600000"}, [])
    member = await bench.member()
    deliveries = await member.take(100)
    await pause(bench, PauseScope(member_id="m1"), reason="it swaps")
    bench.log.append("orders", 5)
    await nothing_comes(member)
    assert (await bench.partition()).acquired_records == 100
    # Another stream of it is the same member.
    assert await member.join(bench.coordinator, "g", ("orders",), max_poll_records=500) == []
    await nothing_comes(member)
    for delivery in deliveries:
        result = await member.acknowledge(delivery)
        assert not result.error
        assert not result.exceptions
    (group,) = await bench.admin.describe_groups(["g"])
    (seen,) = group.members
    assert seen.pause is not None
    assert (seen.pause.by, seen.pause.reason) == ("operator", "it swaps")
    await resume(bench, PauseScope(member_id="m1"))
    await member.take(5)


@virtual
async def test_a_pause_and_its_end_name_who_did_it(bench: Bench) -> None:
    await bench.member()
    await bench.admin.pause_group("g", reason="why", by="User:alice")
    (group,) = await bench.admin.describe_groups(["g"])
    assert [(pause.by, pause.reason) for pause in group.pauses] == [("User:alice", "why")]
    await bench.admin.resume_group("g", by="User:bob")
    told = [
        (row["event"], row["reason"])
        for row in bench.world.events.rows(EventKind.GROUP)
        if row["event"] in (GroupEvent.PAUSED, GroupEvent.RESUMED)
    ]
    assert told == [("paused", "User:alice: why"), ("resumed", "User:bob")]


@virtual
async def test_pauses_survive_a_restart(bench: Bench) -> None:
    await bench.admin.alter_group_configs("g", {"share.record.lock.duration.ms": "600000"}, [])
    member = await bench.member()
    await member.take(100)
    await pause(bench, SECOND, PauseScope(member_id="m1"), reason="why")
    await bench.world.kill(bench.coordinator)
    again = bench.coordinator = await bench.world.start()
    bench.log.append("orders", 5, partition=1)
    other = bench.world.member("m2")
    await member.join(again, "g", ("orders",), max_poll_records=500)
    await other.join(again, "g", ("orders",), max_poll_records=500)
    bench.log.append("orders", 5)
    await other.take(5)
    await nothing_comes(member, other)
    assert [str(pause.scope) for pause in bench.world.database.groups["g"].pauses] == [
        "orders[1]",
        "member 'm1'",
    ]


@virtual
async def test_it_is_said_what_was_so_before_and_what_stays(bench: Bench) -> None:
    await bench.member()
    first = await pause(bench, FIRST, reason="the disk is full")
    (result,) = first.results
    assert (result.changed, result.note) == (True, "")
    assert result.pause is not None
    again = await pause(bench, FIRST, SECOND, reason="another reason")
    old, new = again.results
    assert (old.changed, old.note) == (False, "orders[0] was paused already")
    assert old.pause == result.pause
    assert (new.changed, len(again.pauses)) == (True, 2)
    await pause(bench, ORDERS)
    await pause(bench)
    for scope, note in (
        (FIRST, "orders is still paused"),
        (FIRST, "orders[0] was not paused; orders is still paused"),
        (ORDERS, "the group is still paused"),
        (WHOLE_GROUP, ""),
        (WHOLE_GROUP, "the group was not paused"),
    ):
        (result,) = (await resume(bench, scope)).results
        assert (result.changed, result.note) == ("not" not in note, note)
    assert [str(each.scope) for each in (await resume(bench)).pauses] == ["orders[1]"]


@virtual
async def test_what_does_not_exist_is_not_paused(bench: Bench) -> None:
    with pytest.raises(GroupNotFoundError, match="share group 'g' does not exist"):
        await pause(bench)
    with pytest.raises(GroupNotFoundError):
        await resume(bench)
    await bench.member()
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'nowhere'"):
        await pause(bench, FIRST, PauseScope("nowhere"))
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no partition 2; it has 2 \(0 to 1\)"):
        await pause(bench, PauseScope("orders", 2))
    with pytest.raises(UnknownMemberError, match="no member 'm9'"):
        await pause(bench, PauseScope(member_id="m9"))
    assert bench.world.database.groups["g"].pauses == ()
    # A topic that nobody of the group has read yet is one all the same.
    bench.log.create("bills", 1)
    await pause(bench, PauseScope("bills"))


@virtual
async def test_an_outcome_that_is_not_known_is_what_the_store_has(bench: Bench) -> None:
    member = await bench.member()
    await member.take(100)
    unknown = StoreOutcomeUnknownError("?")
    bench.world.store.fail_next(unknown, after_commit=True, method="change_pauses")
    with pytest.raises(StoreOutcomeUnknownError):
        await pause(bench)
    bench.log.append("orders", 5)
    await nothing_comes(member)
    member.joined_group.polled(member.joined_session)
    await resume(bench)
    await member.take(5)


@virtual
async def test_a_description_shows_what_holds_a_partition_up(bench: Bench) -> None:
    await bench.member()
    await asyncio.sleep(1)
    await pause(bench, SECOND, reason="why")
    assert (await bench.partition(0)).pause is None
    shown = (await bench.partition(1)).pause
    assert shown is not None
    assert (shown.by, shown.reason) == ("operator", "why")
    await bench.admin.pause_group("g", reason="x", by=FLOOD_BREAKER)
    shown = (await bench.partition(1)).pause
    assert isinstance(shown, Pause)
    assert str(shown) == "flood breaker: x"
    (group,) = await bench.admin.describe_groups(["g"])
    assert [pause.scope for pause in group.pauses] == [WHOLE_GROUP, SECOND]
