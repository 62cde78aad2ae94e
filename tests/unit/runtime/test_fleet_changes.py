"""What happens to a group at one coordinator of a fleet, and what becomes of it at the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sharecoord.core.dispatch.pauses import WHOLE_GROUP, PauseScope
from sharecoord.core.fleet.held_book import lock_book_of
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import GroupNotEmptyError, StoreUnavailableError
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.admin.replay import OffsetRange, ReplayCommand
from sharecoord.runtime.admin.reset import ResetCommand, ResetKind, ResetTo
from sharecoord.runtime.fleet import hand_over
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.support import named
from tests.unit.runtime.fleets import (
    Fleet,
    admin_of,
    everything_finished,
    finish,
    fleet_of,
    joined_fleet,
)
from tests.unit.runtime.worlds import accept, at_work, counts, now_s, offsets, until, world_with
from tests.world import TOPICS, World

PARTITIONS = 8


async def reset_to(admin: Admin, offset: int) -> None:
    results = await admin.reset_offsets(ResetCommand("g", ResetTo(ResetKind.OFFSET, offset)))
    assert [result.error for result in results] == [None] * PARTITIONS


def starts(world: World) -> set[int]:
    heads = [partition.row.head for partition in world.database.partitions.values()]
    return {head.start_offset for head in heads if head is not None}


async def work_off(world: World, fleet: Fleet, name: str, records: int = 3) -> None:
    """Everything is finished by a member that leaves; every coordinator still owns its part."""
    member = await world.joined(fleet.all[name], f"at-{name}")
    await finish(world, member, records * PARTITIONS)
    member.leave()
    await asyncio.sleep(1)


@asynccontextmanager
async def worked_off() -> AsyncIterator[tuple[World, Fleet]]:
    """Coordinators a and b that have served a group of a; everything is finished."""
    world = world_with(3, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        await work_off(world, fleet, "a")
        yield world, fleet


# -- hand-over ------------------------------------------------------------------------------------


@virtual
async def test_what_could_not_be_sent_is_back_before_a_share_partition_is_given_away() -> None:
    """Nobody compares lock books at the next owner before locks end there, and that would count."""
    world = world_with(3, partitions=PARTITIONS)
    async with fleet_of(world, "a") as fleet:
        a = fleet.all["a"]
        member = await world.joined(a, credit=0)
        group, session, caller = a.groups["g"], member.joined_session, fleet.caller("a")
        await asyncio.sleep(1)
        caller.delay_s, session.credit.records = 1.0, 1_000
        group.dispatcher.offer(session)
        await until(lambda: all(actor.sending for actor in group.partitions.values()))
        group.disconnected(session)
        group.elsewhere |= dict.fromkeys(group.partitions, "b")
        assert a.fleet is not None
        await hand_over.hand_over(a.fleet, group)
        rows = [
            row for each in world.database.partitions.values() for row in each.in_flight.values()
        ]
        assert rows, "the delivery was stored"
        assert {row.delivery_count for row in rows} == {0}


# -- an operator at another coordinator -----------------------------------------------------------


@virtual
async def test_a_reset_reaches_owners_that_have_nothing_to_commit() -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b", "c") as fleet:
        await work_off(world, fleet, "a")
        await reset_to(fleet.admin("b"), 1)
        await asyncio.sleep(2)
        for coordinator in fleet.all.values():
            for actor in coordinator.groups["g"].partitions.values():
                assert actor.state is ActorState.ACTIVE
                assert actor.partition is not None
                assert actor.partition.window.start_offset == 1
        again = await world.joined(fleet.all["c"], "again", max_poll_records=1000)
        assert counts(*await again.take(2 * PARTITIONS)) == {1}


@virtual
async def test_what_was_loaded_while_nobody_was_there_is_seen_by_who_takes_one_at_a_time() -> None:
    world = world_with(1, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        await work_off(world, fleet, "a", records=1)
        places = {("orders", partition) for partition in range(PARTITIONS)}
        for name, most in (("first", PARTITIONS), ("second", 1)):
            replay = ReplayCommand(
                "g", "side", offsets=tuple(OffsetRange(*place, 0, 0) for place in places)
            )
            await fleet.admin("a").replay(replay)
            await asyncio.sleep(20)
            member = world.member(name)
            await member.join(fleet.all["a"], "side", TOPICS, max_poll_records=most)
            await accept(member, *await member.take(len(places), timeout_s=5))
            member.leave()
            places = {min(fleet.all["a"].groups["side"].partitions)}


@virtual
async def test_a_partition_of_which_a_delivery_told_first_is_opened_by_who_should_own_it() -> None:
    world = world_with(0, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", at="b", max_poll_records=1000) as (fleet, member):
        # Its owner looked at the topic earlier than its gateway, and delivered from it.
        told = {("orders", partition): "a" for partition in range(PARTITIONS, 2 * PARTITIONS)}
        fleet.all["b"].groups["g"].elsewhere.update(told)
        world.log.create("orders", 2 * PARTITIONS)
        for _, partition in told:
            world.log.append("orders", 1, partition=partition)
        taken = await member.take(PARTITIONS, timeout_s=10)
        assert {delivery.key.place for delivery in taken} == told.keys()


@virtual
async def test_a_pause_reaches_all_owners_at_once() -> None:
    world = world_with(0, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", "c", max_poll_records=1000) as (fleet, member):
        await asyncio.sleep(1)
        assert all(fleet.owned().values())
        for scope in (WHOLE_GROUP, PauseScope("orders"), PauseScope(member_id="m")):
            await fleet.admin("b").pause_group("g", *named(scope))
            await asyncio.sleep(0.1)
            before = member.received
            world.append(2, PARTITIONS)
            await asyncio.sleep(3)
            assert member.received == before, scope
            await fleet.admin("c").resume_group("g", *named(scope))
            await accept(member, *await member.take(2 * PARTITIONS, 0.5))


@virtual
async def test_a_pause_without_a_link_is_seen_within_seconds() -> None:
    world = world_with(0, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        await asyncio.sleep(1)
        world.peers.cut_off |= {"a", "b"}
        for pair in list(world.peers.links):
            world.peers.cut(*pair)
        await fleet.admin("b").pause_group("g")
        await asyncio.sleep(1.5)
        world.append(2, PARTITIONS)
        await asyncio.sleep(3)
        assert member.received == 0
        await fleet.admin("b").resume_group("g")
        await member.take(2 * len(fleet.owned()["a"]), 2)


@virtual
async def test_who_could_not_look_for_long_looks_before_it_hands_out() -> None:
    world = world_with(0, partitions=PARTITIONS)
    async with fleet_of(world, "a") as fleet:
        store_of_a = world.caller
        await fleet.add("b")
        member = await world.joined(fleet.all["a"], max_poll_records=1000)
        await until(lambda: fleet.owned()["a"], step_s=0.01)
        await asyncio.sleep(1)
        world.peers.cut_off |= {"a", "b"}
        for pair in list(world.peers.links):
            world.peers.cut(*pair)
        store_of_a.down = True
        await fleet.admin("b").pause_group("g")
        world.append(2, PARTITIONS)
        # Less than its lease: what it owns is still its own.
        await asyncio.sleep(6)
        a = fleet.all["a"].fleet
        assert a is not None
        assert a.is_blind
        store_of_a.down = False
        await asyncio.sleep(3)
        assert (a.is_blind, member.received) == (False, 0)
        await fleet.admin("b").resume_group("g")
        await member.take(2, 3)


@virtual
async def test_a_reset_without_a_link_is_seen_within_seconds() -> None:
    async with worked_off() as (world, fleet):
        world.peers.cut_off |= {"a", "b"}
        for pair in list(world.peers.links):
            world.peers.cut(*pair)
        await reset_to(fleet.admin("a"), 2)
        await asyncio.sleep(2)
        windows = [
            actor.partition.window.start_offset
            for coordinator in fleet.all.values()
            for actor in coordinator.groups["g"].partitions.values()
            if actor.partition is not None
        ]
        assert windows == [2] * PARTITIONS


@virtual
async def test_settings_changed_at_one_act_at_all() -> None:
    world = world_with(0, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        await world.member("m").join(fleet.all["a"], "g", TOPICS)
        await asyncio.sleep(1)
        setting = "share.record.lock.duration.ms"
        await fleet.admin("b").alter_group_configs("g", {setting: "12000"}, [])
        await asyncio.sleep(0.5)
        durations = {c.groups["g"].settings.lock_duration_ms for c in fleet.all.values()}
        assert durations == {12_000}


@virtual
async def test_a_group_that_is_deleted_at_one_is_gone_at_all() -> None:
    async with worked_off() as (world, fleet):
        assert await fleet.admin("b").delete_groups(["g"]) == {"g": None}
        await asyncio.sleep(0.5)
        assert all("g" not in coordinator.groups for coordinator in fleet.all.values())
        member = await world.joined(fleet.all["a"], max_poll_records=1000)
        assert counts(*await member.take(3 * PARTITIONS)) == {1}


@virtual
async def test_offsets_deleted_at_one_are_gone_at_all() -> None:
    async with worked_off() as (world, fleet):
        assert await fleet.admin("a").delete_offsets("g", TOPICS) == {"orders": None}
        await asyncio.sleep(0.5)
        assert not any(c.groups["g"].partitions for c in fleet.all.values())
        member = await world.joined(fleet.all["b"], max_poll_records=1000)
        assert counts(*await member.take(3 * PARTITIONS)) == {1}


@virtual
async def test_a_change_made_here_hides_no_deletion_elsewhere() -> None:
    async with worked_off() as (_, fleet):
        setting = {"share.record.lock.duration.ms": "12000"}
        # Whoever deleted them was gone before it told anybody.
        store = fleet.all["a"].context.store
        await fleet.caller("a").call(store.delete_topics, "g", TOPICS)
        await fleet.admin("b").alter_group_configs("g", setting, [])
        assert fleet.all["b"].groups["g"].group_epoch == 2, "settings newer than the deletion"
        await asyncio.sleep(3)
        assert not any(c.groups["g"].partitions for c in fleet.all.values())


@virtual
async def test_members_of_other_gateways_keep_a_group_from_deletion() -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        await world.member("m").join(fleet.all["a"], "g", TOPICS)
        (error,) = (await fleet.admin("b").delete_groups(["g"])).values()
        assert isinstance(error, GroupNotEmptyError)
        with pytest.raises(GroupNotEmptyError):
            await fleet.admin("b").delete_offsets("g", TOPICS)


@virtual
async def test_a_reset_while_partitions_move_is_whole() -> None:
    async with worked_off() as (world, fleet):
        coming = asyncio.create_task(fleet.add("c"))
        await reset_to(fleet.admin("b"), 1)
        assert starts(world) == {1}
        await coming
        member = await world.joined(fleet.all["c"], max_poll_records=1000)
        assert counts(*await member.take(2 * PARTITIONS)) == {1}


# -- coordinators go ------------------------------------------------------------------------------


@virtual
async def test_who_drains_gives_everything_away_and_tells_its_members_where_to_go() -> None:
    world = world_with(20, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", "c", max_poll_records=1000) as (fleet, member):
        held = await member.take(20 * PARTITIONS)
        began_s = now_s()
        coordinator = fleet.all.pop("a")
        await coordinator.drain()
        assert now_s() - began_s < 2
        assert member.drained_to == ["b:7070", "c:7070"]
        assert not coordinator.groups["g"].partitions
        # As gateway it goes on until its members have gone: nothing is lost, nothing comes twice.
        assert (await member.settle(held[0])).error is None
        await member.join(fleet.all["b"], "g", TOPICS, max_poll_records=1000)
        await accept(member, *held[1:])
        world.peers.gone("a")
        await coordinator.close()
        assert everything_finished(world, 20 * PARTITIONS)


@virtual
async def test_the_last_one_keeps_its_partitions_when_it_drains() -> None:
    world = world_with(2, partitions=PARTITIONS)
    async with fleet_of(world, "a") as fleet:
        await world.member("m").join(fleet.all["a"], "g", TOPICS)
        await asyncio.sleep(1)
        await fleet.all["a"].drain()
        assert len(fleet.owned()["a"]) == PARTITIONS


@virtual
async def test_members_of_a_gateway_that_died_leave_after_their_session() -> None:
    world = world_with(3, partitions=PARTITIONS, session_timeout_ms="10000")
    async with fleet_of(world, "a", "b", "c") as fleet:
        for number in range(6):
            await world.joined(fleet.all["a"], f"m{number}")
        await fleet.kill("a")
        assert len(world.database.members) == 6
        await asyncio.sleep(12)
        assert not world.database.members


@virtual
async def test_a_member_that_came_back_elsewhere_stays() -> None:
    world = world_with(3, partitions=PARTITIONS, session_timeout_ms="10000")
    async with joined_fleet(world, "a", "b") as (fleet, member):
        await fleet.kill("a")
        await member.join(fleet.all["b"], "g", TOPICS)
        await fleet.add("c")
        await asyncio.sleep(30)
        assert list(world.database.members) == [("g", "m")]


@virtual
async def test_a_link_that_is_down_for_longer_than_a_session_takes_nobody_out() -> None:
    world = world_with(3, partitions=PARTITIONS, session_timeout_ms="10000")
    async with joined_fleet(world, "a", "b") as (_, member):
        world.peers.cut_off.add("g")
        world.peers.cut("a", "b")
        await asyncio.sleep(30)
        assert list(world.database.members) == [("g", "m")]
        world.peers.cut_off.clear()
        await finish(world, member, 3 * PARTITIONS)


@virtual
async def test_what_could_not_be_released_is_released_later() -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with joined_fleet(world, "a") as (fleet, member):
        await asyncio.sleep(1)
        store = fleet.all["a"].context.store
        release, fails = store.release_partitions, iter([True, False])

        def release_once(releases: object) -> None:
            if next(fails, False):
                raise StoreUnavailableError("the store is away")
            release(releases)  # type: ignore[arg-type]

        store.release_partitions = release_once  # type: ignore[method-assign]
        await fleet.add("b")
        await until(lambda: fleet.owned().get("b"), step_s=0.1)
        await finish(world, member, 3 * PARTITIONS)
        assert not list(fails)


@virtual
async def test_what_a_former_owner_sent_is_not_passed_on_when_the_link_to_the_next_is_new() -> None:
    world = world_with(0, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        await until(lambda: sum(map(len, fleet.owned().values())) == PARTITIONS, step_s=0.1)
        of_b = fleet.owned()["b"]
        world.peers.links["a", "b"].slow_down(10)
        world.append(3, PARTITIONS)
        await asyncio.sleep(1)
        world.peers.cut_off.add("n")
        await fleet.add("n")
        await world.member("n").join(fleet.all["n"], "g", TOPICS, credit=0)
        await until(lambda: fleet.owned()["n"] & of_b, step_s=0.1)
        world.peers.cut_off.clear()
        await fleet.see()
        taken = await member.take(3 * PARTITIONS, timeout_s=60)
        await asyncio.gather(*map(member.settle, taken))
        await until(lambda: everything_finished(world, 3 * PARTITIONS), step_s=0.1)
        await asyncio.sleep(10)
        assert member.received == 3 * PARTITIONS
        assert counts(*taken) == {1}


# -- members --------------------------------------------------------------------------------------


@virtual
async def test_who_leaves_counts_what_its_book_shows_at_all_owners() -> None:
    world = world_with(2, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        first = await world.joined(fleet.all["a"], "m1", max_poll_records=1000)
        await first.take(2 * PARTITIONS)
        shown = world.ledger.book("m1")
        book = lock_book_of((log_id, held) for log_id, held in shown if log_id[2] in (0, 1))
        world.ledger.gone("m1")
        first.joined_group.leave(first.joined_session, book)
        second = await world.joined(fleet.all["b"], "m2", max_poll_records=1000)
        again = await second.take(2 * PARTITIONS)
        seen = {(d.key.partition, r.first): r.delivery_count for d in again for r in d.ranges}
        assert {place[0] for place, count in seen.items() if count == 2} == {0, 1}


@virtual
async def test_an_owner_that_can_not_take_a_member_in_is_asked_again() -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        fleet.caller("b").down = True
        member = await world.joined(fleet.all["a"])
        await asyncio.sleep(0.5)
        fleet.caller("b").down = False
        await finish(world, member, 3 * PARTITIONS)
        assert member.ended is False


@virtual
async def test_an_owner_that_comes_while_a_member_joins_hears_of_it() -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        fleet.caller("b").delay_s = 0.5
        member = world.member("m")
        joining = asyncio.create_task(member.join(fleet.all["a"], "g", TOPICS))
        await asyncio.sleep(0.1)
        coming = asyncio.create_task(fleet.add("c"))
        sees = fleet.all["a"].fleet
        await until(lambda: sees is not None and "c" in sees.present, step_s=0.01)
        assert not joining.done()
        await asyncio.gather(joining, coming)
        fleet.caller("b").delay_s = 0
        async with at_work(member):
            await until(lambda: everything_finished(world, 3 * PARTITIONS), step_s=0.1)
            assert fleet.owned()["c"]


@virtual
async def test_released_records_go_to_members_of_other_gateways() -> None:
    world = world_with(2, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        one = await world.joined(fleet.all["a"], "m1", max_poll_records=1000)
        held = await one.take(2 * PARTITIONS)
        two = await world.joined(fleet.all["b"], "m2", max_poll_records=1000)
        places = frozenset(("orders", partition) for partition in range(PARTITIONS))
        one.joined_group.pause(one.joined_session, places)
        await asyncio.sleep(0.1)
        for delivery in held:
            await one.settle(delivery, AcknowledgeType.RELEASE)
        assert counts(*await two.take(2 * PARTITIONS)) == {2}


@virtual
async def test_a_blocked_key_is_seen_by_all_owners() -> None:
    """At once over links; by the next look where they are broken."""
    world = world_with(0, partitions=PARTITIONS, ordering="key")
    for partition in range(PARTITIONS):
        world.log.append("orders", key=b"a", partition=partition)
        world.log.append("orders", key=b"b", partition=partition)
    async with fleet_of(world, "c1", "c2") as fleet:
        admin = fleet.admin("c1")
        await admin.block_keys("g", [b"a"])
        member = await world.joined(fleet.all["c2"], "m1")
        assert await settled(member) == {1}
        assert min(map(len, fleet.owned().values())) > 0
        for coordinator in fleet.all.values():
            (view,) = await admin_of(coordinator).list_blocked_keys("g")
            assert view.waiting_records == PARTITIONS
        before_s = now_s()
        await fleet.admin("c2").unblock_keys("g", [b"a"])
        assert await settled(member) == {0}
        assert now_s() - before_s < 0.9


async def settled(member: FakeMember) -> set[int]:
    """The offsets of one record of each partition that a member takes and accepts."""
    found: list[int] = []
    while len(found) < PARTITIONS:
        delivery = await member.next_delivery()
        await member.settle(delivery)
        found += offsets(delivery)
    return set(found)


@virtual
async def test_a_member_s_figures_are_told_by_the_coordinator_that_has_its_stream() -> None:
    world = world_with(40, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        await member.take(40 * PARTITIONS)
        found = []
        for name in "ab":
            (group,) = await fleet.admin(name).describe_groups(["g"])
            (described,) = group.members
            assert (described.coordinator_id, described.acquired_records) == ("a", 40 * PARTITIONS)
            found.append((described.delivered_total, described.acknowledged_total))
        assert found == [(40 * PARTITIONS, 0), (None, None)]


@virtual
async def test_what_follows_a_delivery_that_came_late_goes_back_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a group that keeps order: its owner has sent it before it heard of that."""
    world = world_with(0, ordering="key")
    async with fleet_of(world, "a", "b") as fleet:
        probe = await world.joined(fleet.all["a"], "probe")
        await until(lambda: any(fleet.owned().values()), step_s=0.1)
        (owner,) = (name for name, served in fleet.owned().items() if served)
        (gateway,) = fleet.all.keys() - {owner}
        probe.leave()
        member = await world.joined(fleet.all[gateway], max_poll_records=1000)
        await asyncio.sleep(1)
        seen = fleet.all[gateway].fleet
        assert seen is not None
        late = iter([True])
        monkeypatch.setattr(seen.gateway, "_comes_late", lambda *_: next(late, False))
        world.peers.links[gateway, owner].slow_down(0.5)
        world.log.append("orders", 1, key=b"k")
        await asyncio.sleep(0.2)
        world.log.append("orders", 1, key=b"k")
        came = await member.take(2, timeout_s=30)
        assert offsets(*came) == [0, 1]
        assert next(late, None) is None, "one was late"
