"""Members hear of locks that ended without their word: durable, and ahead of what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Delivery, PartitionResult
from sharecoord.core.partition.decisions import TakenBack
from sharecoord.core.states import AcknowledgeType, ForceAction, TakenBackReason
from sharecoord.errors import StoreOutcomeUnknownError
from sharecoord.runtime.admin.in_flight import PartitionName
from sharecoord.runtime.admin.reset import ResetCommand, ResetKind, ResetTo
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.ledger import Ledger
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import Fleet, admin_of, fleet_of
from tests.unit.runtime.worlds import offsets, until, world_with
from tests.world import TOPICS, World, actor_of, running

LOCK_S = 30
RELEASE = AcknowledgeType.RELEASE


class Listener(FakeMember):
    """Keeps what comes on its stream in one list, in order."""

    def __init__(self, member_id: str, world: World) -> None:
        super().__init__(member_id, world.ledger)
        world.members[member_id] = self
        self.heard: list[str] = []

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        super().deliver(delivery, now_ms)
        self.heard.append(f"records {offsets(delivery)}")

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        super().acknowledged(acknowledge_id, results)
        self.heard.append("answer")

    def lost(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        super().lost(key, ranges)
        self.heard += [f"{each.reason.name} {each.first}..{each.last}" for each in ranges]


def keyed(records: int, *, ordering: str = "key", partitions: int = 1) -> World:
    """A world with records of one key."""
    world = world_with(0, ordering=ordering, partitions=partitions)
    for partition in range(partitions):
        for _ in range(records):
            world.log.append("orders", 1, key=b"a", partition=partition)
    return world


@pytest.mark.parametrize("ordering", ["key", "partition"])
@virtual
async def test_the_rest_of_a_chain_is_taken_back_before_the_answer_and_the_next_delivery(
    ordering: str,
) -> None:
    world = keyed(5, ordering=ordering)
    async with running(world) as coordinator:
        member = Listener("m", world)
        await member.join(coordinator, "g", TOPICS, max_poll_records=5)
        (delivery,) = await member.take(5)
        await member.acknowledge(delivery, last=0)
        await member.acknowledge(delivery, RELEASE, first=1, last=1)
        await until(lambda: len(member.deliveries) > 0, step_s=0.01)
    heard = [
        "records [0, 1, 2, 3, 4]",
        "answer",
        "CHAIN_BROKE 2..4",
        "answer",
        "records [1, 2, 3, 4]",
    ]
    assert member.heard == heard


@virtual
async def test_a_lock_that_ends_is_told_when_that_is_durable_and_before_anybody_has_it() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        member, other = Listener("m", world), Listener("n", world)
        await member.join(coordinator, "g", TOPICS, max_poll_records=10)
        await member.take(10)
        await other.join(coordinator, "g", TOPICS, max_poll_records=10)
        world.caller.delay_s = 2.0
        await asyncio.sleep(LOCK_S + 0.1)
        assert member.taken_back == [], "the commit is under way"
        await until(lambda: other.received == 10, step_s=0.1)
        assert member.heard[1:] == ["LOCK_ENDED 0..9"]


async def resets(world: World, coordinator: Coordinator) -> None:
    command = ResetCommand("g", ResetTo(ResetKind.OFFSET, 0), {"orders": (0,)}, force=True)
    await admin_of(coordinator).reset_offsets(command)


async def forces(world: World, coordinator: Coordinator) -> None:
    admin = admin_of(coordinator)
    await admin.force_records("g", PartitionName("orders", 0), 0, 9, ForceAction.RELEASE)


async def truncates(world: World, coordinator: Coordinator) -> None:
    actor_of(coordinator, "orders").log.truncated(0)


async def fails(world: World, coordinator: Coordinator) -> None:
    """A lock ends by a commit of which nobody knows what became, and which was stored."""
    store = world.store
    commit = store.commit

    def unknown(batch: object) -> object:
        store.commit = commit  # type: ignore[method-assign]
        commit(batch)  # type: ignore[arg-type]
        raise StoreOutcomeUnknownError("the answer was lost")

    await asyncio.sleep(LOCK_S - 1)
    store.commit = unknown  # type: ignore[method-assign, assignment]
    await asyncio.sleep(2)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (resets, TakenBackReason.STATE_CHANGED),
        (forces, TakenBackReason.STATE_CHANGED),
        (truncates, TakenBackReason.TRUNCATED),
        (fails, TakenBackReason.LOCK_ENDED),
    ],
)
@virtual
async def test_whoever_ends_locks_their_holder_is_told(
    what: Callable[[World, Coordinator], Awaitable[None]], reason: TakenBackReason
) -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        # What begins anew is no broken promise: not the world's ledger.
        member = FakeMember("m", Ledger())
        await member.join(coordinator, "g", TOPICS, max_poll_records=10)
        (delivery,) = await member.take(10)
        token = delivery.ranges[0].lock_token
        await what(world, coordinator)
        await until(lambda: len(member.taken_back) > 0, step_s=0.1)
    assert member.taken_back[0] == TakenBack("m", 0, 9, token, reason)


@virtual
async def test_what_a_member_said_itself_is_not_taken_back() -> None:
    world = keyed(4)
    async with world.one_delivery(4) as (coordinator, member, delivery):
        await member.acknowledge(delivery, last=1)
        await member.acknowledge(delivery, AcknowledgeType.REJECT, first=2, last=2)
        actor = actor_of(coordinator, "orders")
        coordinator.groups["g"].dropped(actor, StoreOutcomeUnknownError("for the test"))
        await until(lambda: actor.partition is not None, step_s=0.01)
        await member.acknowledge(delivery, first=3)
    assert member.taken_back == []


@virtual
async def test_a_deleted_topic_takes_its_locks_with_it() -> None:
    world = world_with(10)
    async with world.one_member(max_poll_records=10) as (coordinator, member):
        await member.take(10)
        world.log.delete("orders")
        await coordinator.groups["g"].topic_gone("orders")
    assert [each.reason for each in member.taken_back] == [TakenBackReason.DELETED]


async def fleet_member(fleet: Fleet, world: World) -> tuple[Listener, Delivery, str]:
    """A member at one coordinator with records of another, and that one's name."""
    scout = await world.joined(fleet.all["a"], "scout", credit=0)
    await until(lambda: any(fleet.owned().values()), step_s=0.1)
    scout.leave()
    owner = next(name for name, places in fleet.owned().items() if places)
    gateway = next(name for name in fleet.all if name != owner)
    member = Listener("m", world)
    await member.join(fleet.all[gateway], "g", TOPICS, max_poll_records=5)
    (delivery,) = await member.take(5)
    return member, delivery, owner


@virtual
async def test_an_owner_tells_through_the_gateway_in_order() -> None:
    world = keyed(5)
    async with fleet_of(world, "a", "b") as fleet:
        member, delivery, _ = await fleet_member(fleet, world)
        await member.acknowledge(delivery, RELEASE, last=0)
        assert member.heard[1:3] == ["CHAIN_BROKE 1..4", "answer"]
        session = member.joined_session
        assert session.away is not None
        await until(lambda: member.received == 10, step_s=0.1)


@virtual
async def test_a_next_owner_tells_what_the_former_one_did_not() -> None:
    world = keyed(5)
    async with fleet_of(world, "a", "b") as fleet:
        member, delivery, owner = await fleet_member(fleet, world)
        # It ends the lock of the first, dies, and nobody hears of it.
        actor = actor_of(fleet.all[owner], "orders")
        actor.notices.tell = lambda _: None  # type: ignore[method-assign, assignment]
        await resets(world, fleet.all[owner])
        world.ledger.reset(delivery.key)
        await fleet.kill(owner)
        await until(lambda: len(member.taken_back) > 0, step_s=0.1)
    assert member.taken_back[0][1:3] == (0, 4)
