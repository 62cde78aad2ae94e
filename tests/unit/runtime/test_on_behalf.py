"""Acknowledgements out of an outbox, for members that may be gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from sharecoord.config.group import resolve
from sharecoord.core.delivery import Delivery, PartitionResult
from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType
from sharecoord.errors import InvalidRequestError, UnknownTopicOrPartitionError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.acknowledge_for import acknowledge_for, check_allowed
from sharecoord.runtime.partition.collector import Collector
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import counts, offsets, world_with
from tests.world import World, running


def said(delivery: Delivery, kind: AcknowledgeType) -> list[AcknowledgedRange]:
    return [AcknowledgedRange(r.first, r.last, kind, r.lock_token) for r in delivery.ranges]


async def say(
    coordinator: Coordinator,
    member_id: str,
    ranges: Sequence[AcknowledgedRange],
    *,
    topic: str = "orders",
) -> PartitionResult:
    """Acknowledges for a member; returns the answer, which comes after the commit."""
    done: asyncio.Future[list[PartitionResult]] = asyncio.get_running_loop().create_future()
    group = coordinator.groups["g"]
    acknowledge_for(group, member_id, [(topic, "", 0, ranges)], Collector(done.set_result))
    (result,) = await done
    return result


async def holding(
    world: World, coordinator: Coordinator, records: int = 5
) -> tuple[Delivery, list[AcknowledgedRange]]:
    """A member that has records, and whose process dies."""
    member, delivery = await world.handed(coordinator, records, max_poll_records=100)
    member.disconnect()
    return delivery, said(delivery, AcknowledgeType.ACCEPT)


@virtual
async def test_what_a_dead_member_wrote_down_is_settled_and_comes_to_nobody() -> None:
    world = world_with(5)
    async with running(world) as coordinator:
        _, ranges = await holding(world, coordinator)
        result = await say(coordinator, "m", ranges)
        assert (result.error, list(result.exceptions)) == (None, [])
        assert world.start_offset("g", "orders") == 5
        other = await world.joined(coordinator, "other")
        await asyncio.sleep(100)
        assert not other.deliveries


@virtual
async def test_it_is_no_sign_of_life() -> None:
    world = world_with(5)
    async with running(world) as coordinator:
        _, ranges = await holding(world, coordinator)
        other = await world.joined(coordinator, "other", max_poll_records=100)
        await asyncio.sleep(29)
        await say(coordinator, "m", [ranges[0]._replace(last=ranges[0].first)])
        # The lock of the others ends when it would have, and the session of the dead one, too.
        (delivery,) = await other.take(4)
        assert offsets(delivery) == [1, 2, 3, 4]
        assert counts(delivery) == {2}
        await asyncio.sleep(17)
        assert "m" not in coordinator.groups["g"].sessions


@virtual
async def test_said_twice_or_late_it_is_answered_as_ever() -> None:
    world = world_with(5)
    async with running(world) as coordinator:
        _, ranges = await holding(world, coordinator, 5)
        first = [ranges[0]._replace(first=1, last=1)]
        assert not (await say(coordinator, "m", first)).exceptions
        (again,) = (await say(coordinator, "m", first)).exceptions
        assert again.outcome is AcknowledgeOutcome.ALREADY_FINISHED
        other = await world.joined(coordinator, "other", max_poll_records=100)
        deliveries = await other.take(4)
        assert offsets(*deliveries) == [0, 2, 3, 4]
        (late,) = (await say(coordinator, "m", [ranges[0]._replace(last=0)])).exceptions
        assert late.outcome is AcknowledgeOutcome.LOCK_LOST
        # Nor can another member's lock be settled under its name.
        stolen = said(deliveries[0], AcknowledgeType.ACCEPT)
        refused = (await say(coordinator, "m", stolen)).exceptions
        assert {each.outcome for each in refused} == {AcknowledgeOutcome.LOCK_LOST}
        for delivery in deliveries:
            assert not (await other.acknowledge(delivery)).exceptions


@virtual
async def test_a_member_that_nobody_knows_any_more_hears_what_became_of_its_records() -> None:
    world = world_with(5)
    async with running(world) as coordinator:
        _, ranges = await holding(world, coordinator)
        await asyncio.sleep(50)
        assert "m" not in coordinator.groups["g"].sessions
        (gone,) = (await say(coordinator, "m", ranges)).exceptions
        assert gone.outcome is AcknowledgeOutcome.LOCK_LOST
        other, delivery = await world.handed(coordinator, 5, "other", max_poll_records=100)
        await other.acknowledge(delivery)
        (finished,) = (await say(coordinator, "m", ranges)).exceptions
        assert finished.outcome is AcknowledgeOutcome.UNKNOWN_OUTCOME


@virtual
async def test_what_only_the_member_itself_can_say_is_refused() -> None:
    world = world_with(5)
    async with running(world) as coordinator:
        delivery, _ = await holding(world, coordinator)
        for kind in (AcknowledgeType.RENEW, AcknowledgeType.RETURN):
            with pytest.raises(InvalidRequestError, match=rf"{kind.name} of orders\[0\] 0\.\.4"):
                await say(coordinator, "m", said(delivery, kind))
        result = await say(
            coordinator, "m", said(delivery, AcknowledgeType.ACCEPT), topic="invoices"
        )
        assert isinstance(result.error, UnknownTopicOrPartitionError)


def test_the_group_has_to_allow_it() -> None:
    check_allowed(resolve({"share.ack.outbox": "true"}), "m")
    with pytest.raises(InvalidRequestError, match=r"share\.ack\.outbox=true"):
        check_allowed(resolve({}), "m")


@virtual
async def test_a_reset_begins_another_life_and_a_crash_does_not() -> None:
    world = world_with(5)
    async with running(world) as coordinator:
        delivery, _ = await holding(world, coordinator)
        first = delivery.replay_epoch
        await world.kill(coordinator)
        coordinator = await world.start()
        other, again = await world.handed(coordinator, 5, "other", max_poll_records=100)
        assert (offsets(again), again.replay_epoch) == ([0, 1, 2, 3, 4], first)
        world.ledger.reset(again.key)
        world.store.reset_partitions({again.key: 0})
        await other.acknowledge(again)
        (anew,) = await other.take(5, timeout_s=120)
        assert anew.replay_epoch > first
