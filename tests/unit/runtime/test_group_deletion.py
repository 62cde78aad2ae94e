"""A group or topic that is deleted while somebody joins it, opens it, or loads it.

Each test lets the deletion begin at every turn of the loop of what runs beside it, so that they
interleave at each await. Nothing may stay behind in the actor that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import structlog

from sharecoord.errors import (
    GroupNotEmptyError,
    SharecoordError,
    StoreFencedError,
    StoreUnavailableError,
)
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.testing.virtual_time import run_virtual, virtual
from tests.unit.runtime.worlds import offsets, until, world_with
from tests.world import TOPICS, World, actor_of, running

INFO = CoordinatorInfo("1", "fake-cluster", "kafka:9092", "memory:")
STEPS = range(0, 90, 2)
"""Turns of the loop after which the deletion begins; a join with its loads takes fewer."""

STEP_S = 0.0005
"""Virtual time of a step: half of a store call, the shortest thing that is waited for."""


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> list[PartitionActor]:
    """Every share-partition's actor that is made."""
    made: list[PartitionActor] = []
    make = GroupActor.new_actor

    def noting(group: GroupActor, *args: object) -> PartitionActor:
        made.append(make(group, *args))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(GroupActor, "new_actor", noting)
    return made


@contextlib.asynccontextmanager
async def administered() -> AsyncIterator[tuple[World, Coordinator, Admin]]:
    """A coordinator with an operator, and 20 records."""
    world = world_with(20)
    async with running(world) as coordinator:
        yield world, coordinator, Admin(coordinator, INFO)


def is_served(coordinator: Coordinator) -> bool:
    actor = coordinator.groups["g"].partitions.get(("orders", 0))
    return actor is not None and actor.state is ActorState.ACTIVE


def no_orphans(coordinator: Coordinator, world: World, made: list[PartitionActor]) -> None:
    """Whatever is not in a live group does nothing any more, and nobody reads for it."""
    live = {a for g in coordinator.groups.values() for a in g.partitions.values()}
    for actor in set(made) - live:
        assert actor.state is ActorState.CLOSED, actor.key
        assert actor.partition is None
        assert actor.log.reading is None
        assert not actor._alarm.is_set
        assert actor.load.task is None
    assert len(world.log.readings) == sum(actor.log.reading is not None for actor in live)


async def rows_fit(coordinator: Coordinator, world: World) -> None:
    """What the store has is what lives: no rows of a group that is gone, no member without one."""
    groups = {row.group_id for row in world.store.load_groups()}
    assert groups == set(coordinator.groups)
    members = {(row.group_id, row.member_id) for row in world.store.load_members()}
    live = {(g.group_id, m) for g in coordinator.groups.values() for m in g.sessions}
    assert members == live
    assert {key.group_id for key in world.database.ids} <= groups


async def visited(world: World, coordinator: Coordinator) -> None:
    """A member comes, until its share-partitions are served, and leaves."""
    visitor = await world.joined(coordinator, "v", credit=0)
    await until(lambda: is_served(coordinator), step_s=STEP_S)
    visitor.leave()
    await coordinator.context.committer.flush()


def test_a_join_meets_a_deletion_at_each_step(actors: list[PartitionActor]) -> None:
    outcomes: set[bool] = set()

    async def meet(step: int) -> None:
        async with administered() as (world, coordinator, admin):
            # The group exists, with a load in its past, and nobody in it.
            await visited(world, coordinator)
            former = coordinator.groups["g"]
            deleting = asyncio.ensure_future(admin.delete_groups(["g"]))
            await asyncio.sleep(step * STEP_S)
            member = await world.joined(coordinator, max_poll_records=20)
            (outcome,) = (await deleting).values()
            outcomes.add(outcome is None)
            assert outcome is None or isinstance(outcome, GroupNotEmptyError)
            group = coordinator.groups["g"]
            assert group is member.group
            assert not group.closed
            assert (former is not group) == (outcome is None)
            if former is not group:
                assert former.closed
                assert not former.sessions
                assert not former.partitions
            assert offsets(*await member.take(20)) == list(range(20))
            no_orphans(coordinator, world, actors)
            await rows_fit(coordinator, world)
            actors.clear()

    with structlog.testing.capture_logs() as lines:
        for step in range(16):
            run_virtual(meet(step))
    assert outcomes == {True, False}
    redirected = "joining a group that was deleted meanwhile: a new one"
    assert redirected in {line["event"] for line in lines}


def test_a_deletion_meets_a_join_at_each_step(actors: list[PartitionActor]) -> None:
    outcomes: set[bool] = set()

    async def meet(step: int) -> None:
        async with administered() as (world, coordinator, admin):
            await coordinator.groups.open("g")
            member = world.member("m")
            joining = asyncio.ensure_future(
                member.join(coordinator, "g", TOPICS, max_poll_records=20)
            )
            await asyncio.sleep(step * STEP_S)
            (outcome,) = (await admin.delete_groups(["g"])).values()
            await joining
            outcomes.add(outcome is None)
            assert outcome is None or isinstance(outcome, GroupNotEmptyError)
            assert coordinator.groups["g"] is member.group
            assert offsets(*await member.take(20)) == list(range(20))
            no_orphans(coordinator, world, actors)
            await rows_fit(coordinator, world)
            actors.clear()

    for step in STEPS:
        run_virtual(meet(step))
    # Who was there first is always seen.
    assert outcomes == {False}


def test_a_load_meets_the_deletion_of_its_group_at_each_step(
    actors: list[PartitionActor],
) -> None:
    states: set[ActorState] = set()

    async def meet(step: int) -> None:
        world = world_with(20, partitions=2)
        async with running(world) as coordinator:
            admin = Admin(coordinator, INFO)
            group = await coordinator.groups.open("g")
            # Opens what a member wants who is gone before it is there.
            group.topic_found("orders", (await world.log.describe(["orders"]))["orders"])
            await asyncio.sleep(step * STEP_S)
            states.update(actor.state for actor in actors)
            assert await admin.delete_groups(["g"]) == {"g": None}
            await asyncio.sleep(5)
            assert "g" not in coordinator.groups
            no_orphans(coordinator, world, actors)
            await rows_fit(coordinator, world)
            actors.clear()

    for step in STEPS:
        run_virtual(meet(step))
    assert states >= {ActorState.LOADING, ActorState.ACTIVE}


def test_a_reload_meets_the_deletion_of_its_topic_at_each_step(
    actors: list[PartitionActor],
) -> None:
    async def meet(step: int) -> None:
        async with administered() as (world, coordinator, admin):
            await visited(world, coordinator)
            actor_of(coordinator, "orders").drop(StoreUnavailableError("away"))
            await asyncio.sleep(step * STEP_S)
            assert await admin.delete_offsets("g", ["orders"]) == {"orders": None}
            await asyncio.sleep(5)
            assert not coordinator.groups["g"].partitions
            no_orphans(coordinator, world, actors)
            other = await world.joined(coordinator, "n", max_poll_records=20)
            assert offsets(*await other.take(20)) == list(range(20))
            no_orphans(coordinator, world, actors)
            actors.clear()

    for step in range(20):
        run_virtual(meet(step))


def test_an_opening_meets_the_deletion_of_its_offsets_at_each_step(
    actors: list[PartitionActor],
) -> None:
    async def meet(step: int) -> None:
        async with administered() as (world, coordinator, admin):
            # Its rows are there from the beginning.
            await visited(world, coordinator)
            await admin.delete_offsets("g", ["orders"])
            group = coordinator.groups["g"]
            member = world.member("m")
            joining = asyncio.ensure_future(
                member.join(coordinator, "g", TOPICS, max_poll_records=20)
            )
            await asyncio.sleep(step * STEP_S)
            with contextlib.suppress(SharecoordError):
                await admin._delete_topics("g", ["orders"])
            await joining
            assert group is member.group
            await until(lambda: member.received >= 20, step_s=0.01)
            no_orphans(coordinator, world, actors)
            actors.clear()

    for step in range(30):
        run_virtual(meet(step))


@virtual
async def test_a_topic_made_again_while_its_former_life_loads_is_served() -> None:
    world = world_with(20)
    async with running(world) as coordinator:
        member = world.member("m")
        joining = asyncio.ensure_future(member.join(coordinator, "g", TOPICS, max_poll_records=20))
        await until(lambda: "g" in coordinator.groups, step_s=STEP_S)
        await until(lambda: coordinator.groups["g"].partitions, step_s=STEP_S)
        world.log.delete("orders")
        await joining
        await asyncio.sleep(3)
        world.log.create("orders")
        world.log.append("orders", 7)
        await until(lambda: member.received >= 7, step_s=0.05)
        (found,) = (await world.log.describe(["orders"])).values()
        assert {d.key.topic_id for d in member.deliveries} == {found.topic_id}
        actor = actor_of(coordinator, "orders")
        assert (actor.key.topic_id, actor.state) == (found.topic_id, ActorState.ACTIVE)
        assert len(world.log.readings) == 1


@virtual
async def test_a_deletion_that_fails_leaves_the_group_to_its_next_use() -> None:
    async with administered() as (world, coordinator, admin):
        await admin.alter_group_configs("g", {"share.delivery.count.limit": "7"}, [])
        world.store.fail_next(StoreUnavailableError("away"), method="delete_group")
        (outcome,) = (await admin.delete_groups(["g"])).values()
        assert isinstance(outcome, StoreUnavailableError)
        member = await world.joined(coordinator, max_poll_records=20)
        assert coordinator.groups["g"].config.delivery_count_limit == 7
        assert offsets(*await member.take(20)) == list(range(20))


@virtual
async def test_a_deletion_waits_until_the_group_is_made() -> None:
    async with administered() as (world, coordinator, admin):
        making = asyncio.ensure_future(coordinator.groups.open("g"))
        await asyncio.sleep(0)
        (outcome,) = (await admin.delete_groups(["g"])).values()
        former = await making
        assert outcome is None
        assert former.closed
        assert not coordinator.groups
        assert world.store.load_groups() == []


@virtual
async def test_a_closed_group_takes_nobody_and_says_so() -> None:
    async with administered() as (world, coordinator, admin):
        group = await coordinator.groups.open("g")
        assert await admin.delete_groups(["g"]) == {"g": None}
        member = world.member("m")
        await member.join(coordinator, "other", TOPICS, credit=0)
        with pytest.raises(StoreFencedError, match="'g' was deleted meanwhile; join again") as why:
            group._check_open()
        assert why.value.retriable
        group.topic_found("orders", (await world.log.describe(["orders"]))["orders"])
        assert not group.opener.topics
