"""A program that takes no part while its locks run out: it must not wear its records out.

docs/decisions/0012 says why, and what counts as a sign of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sharecoord.core.partition.decisions import handed_back
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.collector import Collector
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import Fleet, fleet_of, joined_fleet
from tests.unit.runtime.worlds import accept, counts, now_s, offsets, world_with
from tests.world import TOPICS, running

PARTITIONS = 8
LOCK_S = 30


@virtual
async def test_who_does_not_poll_costs_its_records_one_delivery_however_long() -> None:
    world = world_with(500)
    async with world.one_member(max_poll_records=500) as (coordinator, member):
        await member.take(500)
        await asyncio.sleep(8 * LOCK_S)
        assert member.received == 500
        assert world.start_offset("g", "orders") == 0
        coordinator.groups["g"].polled(member.joined_session)
        again = await member.take(500)
        assert counts(*again) == {2}


def polls(group: GroupActor, session: Session) -> None:
    """As a Consume stream takes `polled`."""
    group.polled(session)


def subscribes(group: GroupActor, session: Session) -> None:
    """No poll, and no word about a record."""
    group.subscribe(session, TOPICS)


def is_looked_at(group: GroupActor, session: Session) -> None:
    """What the coordinator does by itself."""
    group.dispatcher.wake_all()


@pytest.mark.parametrize(("what", "records"), [(polls, 10), (subscribes, 0), (is_looked_at, 0)])
@virtual
async def test_a_sign_of_the_application_lets_records_pass_again(
    what: Callable[[GroupActor, Session], None], records: int
) -> None:
    world = world_with(10)
    async with world.one_member(max_poll_records=10) as (coordinator, member):
        await member.take(10)
        await asyncio.sleep(LOCK_S + 1)
        what(coordinator.groups["g"], member.joined_session)
        await asyncio.sleep(1)
        assert sum(d.records for d in member.deliveries) == records


@pytest.mark.parametrize("kind", [AcknowledgeType.ACCEPT, AcknowledgeType.RETURN])
@virtual
async def test_a_handler_slower_than_its_lock_goes_on_at_once_with_its_late_word(
    kind: AcknowledgeType,
) -> None:
    world = world_with(10)
    async with world.one_delivery(10) as (_, member, mine):
        await asyncio.sleep(LOCK_S + 1)
        start_s = now_s()
        late = await member.acknowledge(mine, kind)
        lost = [e.outcome for e in late.exceptions]
        assert lost == ([AcknowledgeOutcome.LOCK_LOST] if kind is AcknowledgeType.ACCEPT else [])
        (again,) = await member.take(10)
        assert now_s() - start_s < 0.05
        assert counts(again) == {2}


@virtual
async def test_others_get_what_a_stalled_member_let_run_out() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        stalled = await world.joined(coordinator, "stalled", max_poll_records=100)
        await stalled.take(10)
        other = await world.joined(coordinator, "other", max_poll_records=100)
        start_s = now_s()
        (got,) = await other.take(10)
        assert offsets(got) == list(range(10))
        assert now_s() - start_s < LOCK_S + 0.05
        assert not (await other.acknowledge(got)).exceptions
        world.log.append("orders", 10)
        await other.take(10)
        assert stalled.received == 10


@virtual
async def test_a_new_stream_is_a_sign() -> None:
    world = world_with(10)
    async with world.one_member(max_poll_records=10) as (coordinator, member):
        await member.take(10)
        await asyncio.sleep(LOCK_S + 1)
        await member.join(coordinator, "g", TOPICS, max_poll_records=10)
        assert counts(*await member.take(10)) == {2}


async def after_a_stall(member: FakeMember) -> int:
    """How many records a member gets that polls after its locks have ended."""
    await asyncio.sleep(LOCK_S + 1)
    member.deliveries.clear()
    before = member.received
    member.joined_group.polled(member.joined_session)
    await asyncio.sleep(1)
    return member.received - before


@virtual
async def test_a_fast_member_that_stalled_gets_no_more_than_one_poll_takes() -> None:
    """With its former prefetch most of each delivery would run out unseen at the next stall."""
    world = world_with(5_000)
    async with world.one_member(max_poll_records=10) as (_, member):
        while member.joined_session.pace.prefetch < 100:
            await member.acknowledge(await member.next_delivery())
        assert await after_a_stall(member) == 10


@virtual
async def test_a_lone_member_that_stalled_is_not_new_again() -> None:
    """A handler that is slower than its lock would wear out five hundred records at a time."""
    world = world_with(600)
    async with world.one_member() as (_, member):
        await member.next_delivery()
        assert await after_a_stall(member) == 1


# -- a fleet --------------------------------------------------------------------------------------


@virtual
async def test_a_time_out_at_one_owner_holds_for_all_until_the_member_gives_a_sign() -> None:
    world = world_with(10, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", "c", max_poll_records=1000) as (fleet, member):
        taken = await member.take(10 * PARTITIONS)
        owned = fleet.owned()
        assert all(owned.values())
        for delivery in taken:
            if delivery.key.partition not in owned["b"]:
                await member.settle(delivery)
        await asyncio.sleep(LOCK_S + 1)
        world.append(5, PARTITIONS)
        await asyncio.sleep(5 * LOCK_S)
        assert member.received == 10 * PARTITIONS
        member.joined_group.polled(member.joined_session)
        again = await member.take(5 * PARTITIONS + 10 * len(owned["b"]))
        assert counts(*[d for d in again if d.key.partition in owned["b"]]) == {1, 2}


@virtual
async def test_a_late_word_that_crosses_the_owners_lets_records_pass_again() -> None:
    """It reaches the gateway when the owner has told of the time-out and the gateway not heard."""
    world = world_with(2, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        held = await member.take(2 * PARTITIONS)
        session = member.joined_session
        heard: list[bool] = []
        timed_out = Session.timed_out

        def note(self: Session) -> None:
            timed_out(self)
            heard.append(self is session)

        there = fleet.owned()["b"]
        theirs = next(d for d in held if d.key.partition in there)
        lock_ends_s = theirs.ranges[0].deadline_ms / 1000
        for delivery in held:
            if delivery is not theirs:
                await member.settle(delivery)
        await asyncio.sleep(lock_ends_s - now_s() + 0.0015)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Session, "timed_out", note)
            assert not session.hindrances
            result = await member.acknowledge(theirs)
        assert heard == [True], "after the member's word, before its answer"
        assert [e.outcome for e in result.exceptions] == [AcknowledgeOutcome.LOCK_LOST]
        (again,) = await member.take(2)
        assert counts(again) == {2}
        world.append(1, PARTITIONS)
        await member.take(PARTITIONS)


@pytest.mark.parametrize("names", [(), ("a", "b")])
@virtual
async def test_who_says_that_it_does_not_poll_gets_nothing_before_its_next_poll(
    names: tuple[str, ...],
) -> None:
    """Its SDK hands back what waits: no sign of the application, and no attempt."""
    world = world_with(5, partitions=PARTITIONS)
    async with fleet_of(world, *names) if names else running(world) as found:
        coordinator = found.all["a"] if isinstance(found, Fleet) else found
        member = await world.joined(coordinator, max_poll_records=100)
        first, *held = await member.take(5 * PARTITIONS)
        group, session = member.joined_group, member.joined_session
        await asyncio.sleep(LOCK_S / 2)
        polled_ms = session.presence.last_poll_ms
        for delivery in held:
            returned = handed_back(delivery.ranges)
            key = delivery.key
            world.ledger.sent("m", key, returned)
            said = [(key.name, key.topic_id, key.partition, returned)]
            group.acknowledge(session, said, Collector(lambda _: None), is_sign=False)
        group.dispatcher.stopped_polling(session)
        await asyncio.sleep(1)
        # A word of its application is no poll.
        await member.settle(first)
        assert session.presence.last_poll_ms > polled_ms
        await asyncio.sleep(5)
        assert member.received == 5 * PARTITIONS
        other = await world.joined(coordinator, "n", max_poll_records=100)
        taken = await other.take(5 * PARTITIONS - first.records)
        assert counts(*taken) == {1}
        await accept(other, *taken)
        other.leave()
        world.log.append("orders", 3)
        await asyncio.sleep(2)
        assert member.received == 5 * PARTITIONS
        group.polled(session)
        await member.take(3)
