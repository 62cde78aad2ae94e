"""Moving start offsets: the plan, and what happens to a group that is working."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from sharecoord.core.changes import GroupRow
from sharecoord.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidRequestError,
    KafkaUnavailableError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.runtime.admin.group_access import REFRESH_RETRY_MAX_S, REFRESH_RETRY_S
from sharecoord.runtime.admin.in_flight import PartitionName
from sharecoord.runtime.admin.reset import NO_PARTITION, ResetCommand, ResetKind, ResetTo
from sharecoord.runtime.partition.claimed import ActorState
from tests.unit.admin.support import Bench, virtual
from tests.unit.runtime.worlds import accept

EARLIEST = ResetTo(ResetKind.EARLIEST)
LATEST = ResetTo(ResetKind.LATEST)
CURRENT = ResetTo(ResetKind.CURRENT)


@virtual
async def test_a_reset_makes_a_group_that_starts_there(bench: Bench) -> None:
    (result,) = await bench.reset(ResetTo(ResetKind.OFFSET, 40), orders=(0,))
    assert (result.new_offset, result.old_offset, result.requested_offset) == (40, None, None)
    member = await bench.member()
    delivery = await member.next_delivery()
    assert delivery.ranges[0].first == 40


@virtual
async def test_what_is_stored_is_seen_though_the_store_goes_away_before_it_is(bench: Bench) -> None:
    member = await bench.member()
    delivery = await member.next_delivery()
    await member.settle(delivery)
    store = bench.world.store
    ensure_group = store.ensure_group

    def away(group_id: str) -> GroupRow:
        store.ensure_group = ensure_group  # type: ignore[method-assign]
        raise StoreUnavailableError("away")

    store.ensure_group = away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError):
        await bench.reset(EARLIEST, force=True, orders=(0,))
    # Nothing else was to be committed: who has nothing to commit is told.
    assert (await member.next_delivery()).ranges[0].first == 0


@virtual
async def test_settings_come_into_force_though_the_store_goes_away_before_they_do(
    bench: Bench,
) -> None:
    await bench.member()
    store = bench.world.store
    load_groups = store.load_groups

    def away(group_id: str = "") -> NoReturn:
        # Nobody can see what was stored.
        store.load_groups = away  # type: ignore[method-assign]
        raise StoreUnavailableError("away")

    store.ensure_group = away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError):
        await bench.admin.alter_group_configs("g", {"share.delivery.count.limit": "9"}, ())
    await asyncio.sleep(3 * REFRESH_RETRY_S)
    group = bench.coordinator.groups["g"]
    assert group.settings.delivery_limit == 5
    store.load_groups = load_groups  # type: ignore[method-assign]
    await asyncio.sleep(REFRESH_RETRY_MAX_S)
    assert group.settings.delivery_limit == 9


@virtual
async def test_each_target_gives_its_offset(bench: Bench) -> None:
    bench.log.move_log_start("orders", 10)
    targets = [
        (EARLIEST, 10),
        (LATEST, 100),
        (ResetTo(ResetKind.TIMESTAMP, 1_050), 50),
        (ResetTo(ResetKind.TIMESTAMP, 9_999), 100),
        (ResetTo(ResetKind.OFFSET, 33), 33),
        (ResetTo(ResetKind.OFFSETS, offsets={("orders", 0): 44}), 44),
    ]
    for to, offset in targets:
        (result,) = await bench.reset(to, orders=(0,))
        assert (result.error, result.new_offset) == (None, offset), to
        assert (await bench.partition()).start_offset == offset


@virtual
async def test_a_duration_goes_back_from_now(bench: Bench) -> None:
    """Record n was written at 1,000 + n ms; a reset takes a few milliseconds by itself."""
    clock = bench.coordinator.context.clock
    to = ResetTo(ResetKind.DURATION, clock.to_store(clock.now_ms()) - 1_050)
    (result,) = await bench.reset(to, orders=(0,))
    assert 50 <= result.new_offset <= 60
    for value, offset in ((0, 100), (1 << 60, 0)):
        (result,) = await bench.reset(ResetTo(ResetKind.DURATION, value), orders=(0,))
        assert result.new_offset == offset
    with pytest.raises(InvalidRequestError, match="by_duration_ms is -1; it must be 0 or more"):
        await bench.reset(ResetTo(ResetKind.DURATION, -1), orders=(0,))
    missing, beyond = await bench.reset(ResetTo(ResetKind.DURATION, 5), nowhere=(), orders=(7,))
    assert str(missing.error) == "the cluster has no topic 'nowhere'"
    assert str(beyond.error) == "topic 'orders' has no partition 7; it has 2 (0 to 1)"


@virtual
async def test_an_offset_outside_of_the_log_becomes_the_nearest_one(bench: Bench) -> None:
    bench.log.move_log_start("orders", 10)
    (low,) = await bench.reset(ResetTo(ResetKind.OFFSET, 3), orders=(0,))
    (high,) = await bench.reset(ResetTo(ResetKind.OFFSET, 1_000), orders=(0,))
    assert (low.new_offset, low.requested_offset) == (10, 3)
    assert (high.new_offset, high.requested_offset) == (100, 1_000)


@virtual
async def test_current_keeps_the_offset_and_forgets_what_is_in_flight(bench: Bench) -> None:
    member = await bench.member()
    delivery = await member.next_delivery()
    await member.acknowledge(delivery, last=delivery.ranges[0].first)
    await bench.leave(member)
    results = await bench.reset(CURRENT)
    assert [(r.partition, r.old_offset, r.new_offset) for r in results] == [(0, 1, 1), (1, 0, 0)]
    assert await bench.admin.list_in_flight("g", PartitionName("orders", 0)) == []


@virtual
async def test_current_without_an_offset_is_the_log_end(bench: Bench) -> None:
    (result,) = await bench.reset(CURRENT, orders=(0,))
    assert result.new_offset == 100


@virtual
async def test_partitions_that_a_first_reset_leaves_out_start_by_the_policy(bench: Bench) -> None:
    bench.log.create("wide", 3)
    for partition in range(3):
        bench.log.append("wide", 10, partition=partition)
    await bench.admin.alter_group_configs("g", {"share.auto.offset.reset": "latest"}, [])
    await bench.reset(ResetTo(ResetKind.OFFSET, 4), wide=(1,))
    await bench.member(topic="wide")
    await asyncio.sleep(1)
    (group,) = await bench.admin.describe_groups(["g"])
    assert [(p.partition, p.start_offset) for p in group.partitions] == [(0, 10), (1, 4), (2, 10)]


@virtual
async def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    command = ResetCommand("g", LATEST, {"orders": ()}, dry_run=True)
    results = await bench.admin.reset_offsets(command)
    assert [(r.partition, r.new_offset) for r in results] == [(0, 100), (1, 0)]
    assert await bench.admin.list_groups() == []


@virtual
async def test_what_does_not_exist_carries_an_error_and_the_rest_is_reset(bench: Bench) -> None:
    results = await bench.reset(EARLIEST, orders=(0, 7), nowhere=(), elsewhere=(3,))
    found = {(r.topic, r.partition): r.error and r.error.reason for r in results}
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert found == {
        ("elsewhere", 3): unknown,
        ("nowhere", NO_PARTITION): unknown,
        ("orders", 0): None,
        ("orders", 7): unknown,
    }
    assert (await bench.partition(0)).start_offset == 0


@virtual
async def test_offsets_by_partition_can_be_limited_to_topics(bench: Bench) -> None:
    bench.log.create("other")
    offsets = {("orders", 0): 5, ("orders", 1): 0, ("other", 0): 0}
    to = ResetTo(ResetKind.OFFSETS, offsets=offsets)
    assert len(await bench.reset(to)) == 3
    assert [r.partition for r in await bench.reset(to, orders=())] == [0, 1]
    assert [r.partition for r in await bench.reset(to, orders=(0,))] == [0]


@virtual
async def test_a_group_with_members_is_refused(bench: Bench) -> None:
    await bench.member()
    with pytest.raises(GroupNotEmptyError, match=r"group 'g' has 1 member; stop them, or .* force"):
        await bench.reset(EARLIEST, orders=())


@virtual
async def test_bad_requests_are_refused(bench: Bench) -> None:
    with pytest.raises(GroupNotFoundError, match="share group 'g' does not exist"):
        await bench.reset(EARLIEST)
    with pytest.raises(InvalidRequestError, match="to_offset is -1"):
        await bench.reset(ResetTo(ResetKind.OFFSET, -1), orders=())
    with pytest.raises(InvalidRequestError, match=r"orders\[0\] has offset -2"):
        await bench.reset(ResetTo(ResetKind.OFFSETS, offsets={("orders", 0): -2}))
    bench.log.set_down(down=True)
    with pytest.raises(KafkaUnavailableError):
        await bench.reset(EARLIEST, orders=())


@virtual
async def test_under_traffic_old_tokens_are_dead_and_the_reset_offset_is_next(
    bench: Bench,
) -> None:
    member = await bench.member()
    old = await member.next_delivery()
    results = await bench.reset(ResetTo(ResetKind.OFFSET, 90), force=True, orders=(0,))
    assert results[0].new_offset == 90
    new = await member.next_delivery()
    assert (new.ranges[0].first, new.ranges[0].delivery_count) == (90, 1)
    late = await member.acknowledge(old)
    assert late.error is not None or late.exceptions
    assert (await bench.partition()).start_offset == 90
    await member.acknowledge(new)


@virtual
async def test_a_share_partition_that_waits_for_nothing_notices_too(bench: Bench) -> None:
    member = await bench.member()
    await accept(member, *await member.take(100))
    assert (await bench.partition()).lag == 0
    await bench.reset(EARLIEST, force=True, orders=(0,))
    again = await member.next_delivery()
    assert again.ranges[0].first == 0


@virtual
async def test_a_share_partition_that_is_loading_notices_too(bench: Bench) -> None:
    member = await bench.member()
    await accept(member, *await member.take(100))
    group = bench.coordinator.groups["g"]
    actor = group.partitions["orders", 0]
    # Kafka is away while the share-partition loads: it claimed, and has not read its bounds.
    bench.log.set_down(down=True)
    actor.drop(StoreUnavailableError("a commit failed"))
    await asyncio.sleep(0.05)
    assert actor.state is ActorState.LOADING
    bench.log.set_down(down=False)
    await bench.reset(EARLIEST, force=True, orders=(0,))
    again = await member.next_delivery()
    assert again.ranges[0].first == 0


@virtual
async def test_a_stopped_share_partition_is_served_again(bench: Bench) -> None:
    member = await bench.member()
    await member.next_delivery()
    actor = bench.coordinator.groups["g"].partitions["orders", 0]
    actor.deactivate(ActorState.STOPPED, "LOG_REGRESSED")
    assert (await bench.partition()).stopped_reason == "LOG_REGRESSED"
    await bench.reset(ResetTo(ResetKind.OFFSET, 50), force=True, orders=(0,))
    delivery = await member.next_delivery()
    assert delivery.ranges[0].first == 50
    assert (await bench.partition()).stopped_reason == ""


@virtual
async def test_a_reset_whose_outcome_is_unknown_says_so_and_is_noticed(bench: Bench) -> None:
    member = await bench.member()
    await accept(member, *await member.take(100))
    error = StoreOutcomeUnknownError("connection lost")
    bench.world.store.fail_next(error, after_commit=True, method="reset_partitions")
    with pytest.raises(StoreOutcomeUnknownError):
        await bench.reset(EARLIEST, force=True, orders=(0,))
    again = await member.next_delivery()
    assert again.ranges[0].first == 0


@virtual
async def test_after_many_resets_under_traffic_everything_from_the_last_one_is_done(
    bench: Bench,
) -> None:
    member = await bench.member()
    seen: list[tuple[int, int]] = []

    async def work() -> None:
        while True:
            delivery = await member.next_delivery()
            seen.extend((r.first, r.last) for r in delivery.ranges)
            await member.acknowledge(delivery)

    worker = asyncio.create_task(work())
    for turn in range(40):
        await bench.reset(ResetTo(ResetKind.OFFSET, turn * 7 % 100), force=True, orders=(0,))
        await asyncio.sleep(turn % 5 / 1000)
    seen.clear()
    await bench.reset(EARLIEST, force=True, orders=(0,))
    async with asyncio.timeout(60):
        while (partition := await bench.partition()).lag != 0:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)
    worker.cancel()
    assert (partition.start_offset, partition.acquired_records) == (100, 0)
    assert {offset for first, last in seen for offset in range(first, last + 1)} >= set(range(100))
