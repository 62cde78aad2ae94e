"""Several coordinators over one database: one group, whoever holds its members' streams."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from sharecoord.core.delivery import Delivery
from sharecoord.core.fleet.peering import MemberUp
from sharecoord.core.partition.decisions import AcknowledgedRange, HeldRange
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, AcquireMode
from sharecoord.errors import UnknownMemberError
from sharecoord.runtime.fleet.owner import GatewayLink
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import everything_finished, finish, fleet_of, joined_fleet
from tests.unit.runtime.worlds import accept, counts, offsets, until, world_with
from tests.world import TOPICS

PARTITIONS = 8


@virtual
async def test_a_member_gets_the_records_of_all_owners_through_its_gateway() -> None:
    world = world_with(50, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", "c") as (fleet, member):
        await finish(world, member, 50 * PARTITIONS)
        owned = fleet.owned()
        assert sorted(p for places in owned.values() for p in places) == list(range(PARTITIONS))
        assert len([places for places in owned.values() if places]) > 1
        assert member.received == 50 * PARTITIONS
        assert member.joined_session.totals.acknowledged == 50 * PARTITIONS


@virtual
async def test_all_owners_together_keep_to_a_members_credit() -> None:
    world = world_with(50, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", "c", max_poll_records=100, credit=7) as (_, member):
        await until(lambda: member.received == 7, step_s=0.001)
        await asyncio.sleep(5)
        assert member.received == 7
        session = member.joined_session
        session.credit.records += 5
        member.joined_group.dispatcher.offer(session)
        await until(lambda: member.received == 12, step_s=0.001)
        await asyncio.sleep(5)
        assert member.received == 12


@virtual
async def test_whole_batches_may_pass_what_was_lent_and_are_taken_from_the_credit() -> None:
    """What was acquired together comes again together (KIP-1206), whoever the owner is."""
    world = world_with(50, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b", "c") as fleet:
        first = await world.joined(fleet.all["a"], "m1", max_poll_records=1000)
        await first.take(50 * PARTITIONS)
        first.leave()
        mode = AcquireMode.BATCH_OPTIMIZED
        member = await world.joined(fleet.all["a"], mode=mode, max_poll_records=3, credit=7)
        await until(lambda: member.received >= 7, step_s=0.001)
        await asyncio.sleep(5)
        assert 7 < member.received < 50 * PARTITIONS
        session = member.joined_session
        taken: list[Delivery] = []
        while len(taken) < PARTITIONS:
            session.credit.records = max(
                session.credit.records, session.credit.delivered_records + 1
            )
            member.joined_group.dispatcher.offer(session)
            delivery = await member.next_delivery(timeout_s=5)
            assert delivery.records == 50
            taken.append(delivery)
            await member.settle(delivery)
        assert counts(*taken) == {2}
        assert session.credit.delivered_records == 50 * PARTITIONS


@virtual
async def test_members_of_all_gateways_share_fairly() -> None:
    world = world_with(400, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b", "c") as fleet:
        members = [world.member(f"m{n}") for n in range(9)]
        for member, name in zip(members, "abcabcabc", strict=True):
            await member.join(fleet.all[name], "g", TOPICS)
        works = [asyncio.create_task(m.work(seconds_per_record=0.005)) for m in members]
        await asyncio.sleep(1.2)
        got = [member.joined_session.totals.acknowledged for member in members]
        for work in works:
            work.cancel()
        assert min(got) > 0.8 * max(got) > 0


@virtual
async def test_who_leaves_releases_what_it_held_of_all_owners() -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        first = await world.joined(fleet.all["a"], "m1", max_poll_records=1000)
        await first.take(3 * PARTITIONS)
        first.leave()
        second = await world.joined(fleet.all["b"], "m2", max_poll_records=1000)
        again = await second.take(3 * PARTITIONS)
        assert counts(*again) == {2}


@virtual
async def test_a_stream_that_breaks_keeps_its_locks_of_all_owners() -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        held = await member.take(3 * PARTITIONS)
        member.disconnect()
        lost = await member.join(fleet.all["b"], "g", TOPICS, max_poll_records=1000)
        assert lost == []
        await accept(member, *held)
        assert everything_finished(world, 3 * PARTITIONS)


@virtual
async def test_what_is_held_of_a_topic_made_again_is_not_lost_at_who_does_not_know_it_yet() -> None:
    world = world_with(0, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        await until(lambda: sum(map(len, fleet.owned().values())) == PARTITIONS, step_s=0.1)
        world.make_again(3, PARTITIONS)
        await fleet.all["a"]._look_at_topics(everything=True)
        known = fleet.all["b"].groups["g"].topic_ids
        former = known["orders"]
        while (held := await member.next_delivery(timeout_s=5)).key.topic_id == former:
            pass
        assert await member.join(fleet.all["b"], "g", TOPICS, max_poll_records=1000) == []
        assert known["orders"] == former
        await fleet.all["b"]._look_at_topics(everything=True)
        await asyncio.sleep(1)
        assert not (await member.settle(held)).exceptions
        await finish(world, member, 3 * PARTITIONS)


@virtual
async def test_what_another_coordinator_takes_over_stays_locked_under_the_same_token() -> None:
    world = world_with(5, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        held = await member.take(5 * PARTITIONS)
        before = fleet.owned()
        await fleet.add("c")
        other = await world.joined(fleet.all["c"], "n", max_poll_records=1000)
        await until(lambda: sum(map(len, fleet.owned().values())) == PARTITIONS, step_s=0.01)
        await asyncio.sleep(3)
        after = fleet.owned()
        assert after["c"]
        assert after["a"] <= before["a"]
        assert other.received == 0
        await accept(member, *held)
        assert everything_finished(world, 5 * PARTITIONS)


@virtual
async def test_an_owner_that_is_killed_costs_no_lock_of_a_live_worker_and_no_attempt() -> None:
    world = world_with(40, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", "c", max_poll_records=320) as (fleet, member):
        await until(lambda: member.received > 20, step_s=0.0005)
        await fleet.kill("b")
        seen: list[Delivery] = []
        while not everything_finished(world, 40 * PARTITIONS):
            delivery = await member.next_delivery()
            seen.append(delivery)
            assert (await member.settle(delivery)).error is None
        assert counts(*seen) == {1}
        places = Counter((d.key.partition, o) for d in seen for o in offsets(d))
        assert max(places.values()) == 1


@virtual
async def test_a_gateway_that_is_killed_costs_nothing_its_members_join_elsewhere() -> None:
    world = world_with(40, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", "c", max_poll_records=320) as (fleet, member):
        await until(lambda: member.received > 20, step_s=0.0005)
        held = list(member.deliveries)
        member.deliveries.clear()
        await fleet.kill("a")
        assert await member.join(fleet.all["b"], "g", TOPICS, max_poll_records=1000) == []
        await accept(member, *held)
        await finish(world, member, 40 * PARTITIONS)


@virtual
async def test_a_broken_link_is_a_broken_stream_to_the_owner_and_is_made_again() -> None:
    world = world_with(40, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=10) as (_, member):
        await until(lambda: member.received >= 10, step_s=0.0005)
        world.peers.cut("a", "b")
        await finish(world, member, 40 * PARTITIONS)


@virtual
async def test_released_records_of_another_owner_come_again() -> None:
    world = world_with(2, partitions=PARTITIONS, delivery_count_limit="3")
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (_, member):
        histories: dict[tuple[int, int], list[int]] = {}
        while not everything_finished(world, 2 * PARTITIONS):
            delivery = await member.next_delivery()
            for acquired in delivery.ranges:
                for offset in range(acquired.first, acquired.last + 1):
                    place = delivery.key.partition, offset
                    histories.setdefault(place, []).append(acquired.delivery_count)
            await member.settle(delivery, AcknowledgeType.RELEASE)
        assert len(histories) == 2 * PARTITIONS
        assert all(history == [1, 2, 3] for history in histories.values())


@virtual
async def test_a_new_stream_with_fewer_topics_settles_all_and_the_old_one_gets_nothing() -> None:
    world = world_with(0)
    world.log.create("payments", PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        member = world.member("m")
        other = await world.joined(fleet.all["b"], "n")
        await until(lambda: any(fleet.owned().values()), step_s=0.01)
        # Nobody but its gateway has what it wants in the end.
        (here,) = (name for name, places in fleet.owned().items() if places)
        await member.join(fleet.all[here], "g", (*TOPICS, "payments"), max_poll_records=1000)
        world.append(3, PARTITIONS, "payments")
        held = await member.take(3 * PARTITIONS)
        # Nobody has seen its former stream end.
        assert await member.join(fleet.all[here], "g", TOPICS, max_poll_records=1000) == []
        world.append(2, PARTITIONS, "payments")
        await accept(member, *held)
        await other.join(fleet.all["b"], "g", ("payments",), max_poll_records=1000)
        assert counts(*await other.take(2 * PARTITIONS, timeout_s=1)) == {1}


@virtual
async def test_a_member_whose_session_ended_while_its_gateway_stood_still_joins_again() -> None:
    world = world_with(3, partitions=PARTITIONS, session_timeout_ms="10000")
    async with fleet_of(world, "a") as fleet:
        store_of_a = world.caller
        await fleet.add("b")
        member = await world.joined(fleet.all["a"], max_poll_records=1000)
        await member.take(3 * PARTITIONS)
        store_of_a.down, world.database.leases["a"] = True, 0
        await until(lambda: not world.database.members, step_s=0.1)
        store_of_a.down = False
        await until(lambda: member.ended, step_s=0.1)
        # Not as if a newer stream had fenced it: that is for good.
        assert isinstance(member.ended, UnknownMemberError)
        await member.join(fleet.all["a"], "g", TOPICS, max_poll_records=1000)
        await finish(world, member, 3 * PARTITIONS)


@virtual
async def test_a_member_has_all_of_its_session_timeout_when_its_gateway_dies() -> None:
    """However long another coordinator, which takes it out then, had heard nothing of it."""
    world = world_with(0, partitions=PARTITIONS, session_timeout_ms="30000")
    async with fleet_of(world, "a") as fleet:
        await fleet.add("b")
        await world.joined(fleet.all["a"], max_poll_records=1000)
        seen = fleet.all["b"].fleet
        assert seen is not None
        seen.gateway_went(seen.gateway_links["a"])
        assert fleet.all["b"].groups["g"].sessions["m"].presence.expiry is not None
        await asyncio.sleep(15)
        await fleet.kill("a")
        await asyncio.sleep(29)
        assert world.database.members
        await until(lambda: not world.database.members, step_s=0.1)


@virtual
async def test_a_gateway_without_the_store_introduces_its_members_to_an_owner_that_asks() -> None:
    world = world_with(3, partitions=1, session_timeout_ms="10000")
    async with fleet_of(world, "a", "b") as fleet:
        probe = await world.joined(fleet.all["a"], "probe", max_poll_records=1)
        await until(lambda: any(fleet.owned().values()), step_s=0.1)
        (owner,) = (name for name, served in fleet.owned().items() if served)
        probe.leave()
        member = await world.joined(fleet.all[owner], max_poll_records=1000)
        held = await member.take(3)
        fleet.caller(owner).down, world.database.leases[owner] = True, 0
        (heir,) = fleet.all.keys() - {owner}
        await until(lambda: fleet.owned()[heir] == {0}, step_s=0.1)
        # Longer than its session, whose sign it is that its gateway says so.
        await asyncio.sleep(15)
        fleet.caller(owner).down = False
        for delivery in held:
            reply = await member.settle(delivery)
            assert (reply.error, reply.exceptions) == (None, [])
        assert member.deliveries == []


@virtual
async def test_a_member_that_others_took_out_is_told_by_an_owner_that_hears_its_gateway() -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        fleet.caller("a").down, world.database.leases["a"] = True, 0
        await asyncio.sleep(3)
        assert not member.ended
        (row,) = world.database.members.values()
        fleet.all["b"].context.committer.remove_member("g", "m", row.member_epoch)
        async with asyncio.timeout(5):
            await until(lambda: member.ended, step_s=0.1)
        assert isinstance(member.ended, UnknownMemberError)


@pytest.mark.parametrize("is_here", [False, True], ids=["elsewhere", "here"])
@virtual
async def test_what_an_owner_refuses_as_nonsense_stays_in_the_lock_book(is_here: bool) -> None:
    world = world_with(5, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        held = await member.take(5 * PARTITIONS)
        here = fleet.owned()["a"]
        delivery = next(each for each in held if (each.key.partition in here) is is_here)
        (lock,) = delivery.ranges
        accept = AcknowledgedRange(0, 4, AcknowledgeType.ACCEPT, lock.lock_token)
        first = accept._replace(first=3, last=3)
        key = delivery.key
        said = [(key.topic, key.topic_id, key.partition, [first, accept])]
        (result,) = await member.send(said)
        assert [each.outcome for each in result.exceptions] == [AcknowledgeOutcome.INVALID_REQUEST]
        away = member.joined_session.away
        assert away is not None
        left = [(each.first, each.last) for each in away.books[key.log_id].held()]
        assert left == [(0, 2), (4, 4)]


@virtual
async def test_what_a_join_reports_as_lost_takes_up_no_room() -> None:
    world = world_with(5, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", credit=0) as (fleet, member):
        await until(lambda: fleet.owned().get("b"), step_s=0.01)
        there = min(fleet.owned()["b"])
        topic_id = world.log.topic_id("orders")
        never_held = [(("orders", topic_id, there), HeldRange(0, 4, 77))]
        lost = await member.join(fleet.all["a"], "g", TOPICS, credit=0, lock_book=never_held)
        assert lost == [HeldRange(0, 4, 77)]
        assert member.joined_group.held(member.joined_session) == 0


@virtual
async def test_what_no_lock_can_be_left_on_takes_up_no_room() -> None:
    world = world_with(5, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        ended = [(("orders", "of a former life", 0), HeldRange(0, 999, 77))]
        member = await world.joined(fleet.all["a"], max_poll_records=1, lock_book=ended)
        await finish(world, member, 5 * PARTITIONS)


@virtual
async def test_what_is_still_under_way_on_a_former_link_is_not_heard() -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        await member.take(3 * PARTITIONS)
        fleet_of_b = fleet.all["b"].fleet
        assert fleet_of_b is not None
        link = fleet_of_b.gateway_links["a"]
        owner = fleet.all["b"]
        former = GatewayLink(owner.context, owner.groups, fleet_of_b.look_now, "a", link.way)
        former.close()
        session = fleet.all["b"].groups["g"].sessions["m"]
        up = MemberUp(
            *(99, "g", "m", session.member_epoch, "c", "h", TOPICS, session.mode, 0, frozenset()),
            [],
        )
        former.hear(up)
        await asyncio.sleep(1)
        # A lock book from then would have released what was delivered since.
        assert fleet.all["b"].groups["g"].sessions["m"] is session


@virtual
async def test_a_stream_that_was_replaced_has_no_say_in_what_its_member_wants() -> None:
    world = world_with(1)
    async with joined_fleet(world, "a") as (fleet, member):
        former = member.joined_session
        await member.join(fleet.all["a"], "g", TOPICS)
        member.joined_group.subscribe(former, ["payments"])
        assert member.joined_group.dispatcher.topics == {"orders": 1}
