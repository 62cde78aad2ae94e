"""Joins that are written together, and share-partitions that are loaded together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sharecoord.core.changes import PartitionKey
from sharecoord.errors import (
    GroupMaxSizeReachedError,
    InternalError,
    SharecoordError,
    StoreUnavailableError,
)
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.kernel.calls import CLAIMS_MAX
from sharecoord.runtime.kernel.gatherer import CALLS_MAX
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import until, world_with
from tests.world import TOPICS, running


async def joined(coordinator: Coordinator, members: Sequence[FakeMember]) -> list[object]:
    """All join at once; what became of each."""
    joins = (member.join(coordinator, "g", TOPICS) for member in members)
    return list(await asyncio.gather(*joins, return_exceptions=True))


@virtual
async def test_a_thousand_members_join_in_a_few_transactions() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        await world.member("first").join(coordinator, "g", TOPICS)
        before = world.caller.calls
        members = [FakeMember(f"m{i}") for i in range(5 * CALLS_MAX)]
        assert await joined(coordinator, members) == [[]] * len(members)
        assert world.caller.calls - before <= 10
        assert len(world.database.members) == len(members) + 1
        assert len(coordinator.groups["g"].sessions) == len(members) + 1


@virtual
async def test_two_streams_of_one_member_join_one_after_the_other() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        one, two, three = (FakeMember("m") for _ in range(3))
        await one.join(coordinator, "g", TOPICS)
        outcomes = await joined(coordinator, [two, three])
        assert outcomes[1] == []
        assert isinstance(outcomes[0], SharecoordError) or two.ended, "a newer stream came"
        assert three.joined_session.member_epoch == 3
        assert three.ended is False


@pytest.mark.parametrize("error", [InternalError("a bad row"), ValueError("not to be read")])
@virtual
async def test_a_member_that_the_store_refuses_hurts_nobody_else(error: Exception) -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        await world.member("first").join(coordinator, "g", TOPICS)
        members = [FakeMember(f"m{i}") for i in range(3)]
        # All together, then the first of them alone.
        for _ in range(2):
            world.store.fail_next(error, method="join_members")
        outcomes = await joined(coordinator, members)
        assert [o is error for o in outcomes] == [True, False, False]
        assert coordinator.groups["g"].sessions.keys() == {"first", "m1", "m2"}


@virtual
async def test_a_store_that_is_away_refuses_all_and_is_asked_anew() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        await world.member("first").join(coordinator, "g", TOPICS)
        members = [FakeMember(f"m{i}") for i in range(3)]
        world.caller.down = True
        outcomes = await joined(coordinator, members)
        assert all(isinstance(o, StoreUnavailableError) for o in outcomes), outcomes
        world.caller.down = False
        assert await joined(coordinator, members) == [[], [], []]


@virtual
async def test_who_is_joining_counts_for_the_size_of_the_group() -> None:
    world = world_with(0, group_max_size="100")
    async with running(world) as coordinator:
        members = [FakeMember(f"m{i}") for i in range(120)]
        outcomes = await joined(coordinator, members)
        full = [o for o in outcomes if isinstance(o, GroupMaxSizeReachedError)]
        assert len(full) == 20
        assert len(world.database.members) == 100


@virtual
async def test_a_join_that_is_given_up_is_not_written_and_holds_no_place() -> None:
    world = world_with(0, group_max_size="2")
    async with running(world) as coordinator:
        await world.member("first").join(coordinator, "g", TOPICS)
        world.caller.delay_s = 1.0
        busy = asyncio.create_task(FakeMember("busy").join(coordinator, "g", TOPICS))
        await asyncio.sleep(0.5)
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        world.caller.delay_s = 0.001
        await world.member("second").join(coordinator, "g", TOPICS)
        assert coordinator.groups["g"].sessions.keys() == {"first", "second"}


@virtual
async def test_the_end_of_the_coordinator_ends_waiting_joins() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        await world.member("first").join(coordinator, "g", TOPICS)
        world.caller.delay_s = 60.0
        waiting = asyncio.create_task(FakeMember("m").join(coordinator, "g", TOPICS))
        await until(lambda: coordinator.groups["g"]._joining, step_s=0.01)
        await coordinator.context.stop_tasks()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        world.caller.delay_s = 0.001


@virtual
async def test_a_wide_topic_is_loaded_in_a_few_calls() -> None:
    partitions = 2 * CALLS_MAX
    world = world_with(1, partitions=partitions)
    async with running(world) as coordinator:
        # The first looks at what waits in the store are over.
        await asyncio.sleep(1)
        before = world.caller.calls
        await world.member("m").join(coordinator, "g", TOPICS)
        actors = coordinator.groups["g"].partitions
        await until(lambda: sum(map(_is_served, actors.values())) == partitions, step_s=0.01)
        # Claims and starts together; besides the join, the rows, a lease and a few commits.
        assert world.caller.calls - before <= 10 + 2 * partitions / CLAIMS_MAX


@virtual
async def test_one_partition_that_another_coordinator_owns_hurts_no_other() -> None:
    world = world_with(1, partitions=3)
    async with running(world) as coordinator:
        topic_id = (await world.log.describe(["orders"]))["orders"].topic_id
        world.database.leases["other"] = 1 << 60
        row = world.store.open_partitions([PartitionKey("g", "orders", topic_id, 1)])[0]
        taken = world.database.partitions[row.partition_id]
        taken.row = replace(taken.row, owner="other", owner_epoch=5)
        await world.member("m").join(coordinator, "g", TOPICS)
        actors = coordinator.groups["g"].partitions
        await until(lambda: sum(map(_is_served, actors.values())) == 2, step_s=0.01)
        assert {place[1] for place, actor in actors.items() if _is_served(actor)} == {0, 2}
        assert taken.row.owner == "other"


def _is_served(actor: PartitionActor) -> bool:
    return actor.state is ActorState.ACTIVE
