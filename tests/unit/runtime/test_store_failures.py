"""Commits that fail, claims that fence, a store that goes away (design 4)."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.core.changes import CommitBatch, CommitResult, PartitionClaim
from sharecoord.core.delivery import LostRange
from sharecoord.core.partition.decisions import HeldRange
from sharecoord.core.states import AcknowledgeOutcome, RecordState
from sharecoord.errors import (
    InternalError,
    SharecoordError,
    StoreFatalError,
    StoreInUseError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.runtime.group import lock_books
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.store.memory.store import MemoryStore
from sharecoord.testing.harness import VirtualStoreCaller
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import at_work, counts, now_s, offsets, until, world_with
from tests.world import TOPICS, World, actor_of, running

EPOCH = 32
"""The owner epoch is the high half of a lock token."""


def fail_commits(world: World, error: SharecoordError, *, after: bool) -> None:
    """The next commit fails; one that is certain not to have happened fails until given up."""
    times = 1 if after or isinstance(error, StoreOutcomeUnknownError) else 30
    for _ in range(times):
        world.store.fail_next(error, after_commit=after, method="commit")


UNAVAILABLE = StoreUnavailableError("away", retry_after_ms=50)
UNKNOWN = StoreOutcomeUnknownError("broke while committing", retry_after_ms=50)
FAILURES = pytest.mark.parametrize(
    ("error", "after"),
    [(UNAVAILABLE, False), (UNKNOWN, False), (UNKNOWN, True)],
    ids=["not-done", "unknown-not-done", "unknown-done"],
)


@FAILURES
@virtual
async def test_deliveries_of_a_failed_commit_come_again_unseen(
    error: SharecoordError, after: bool
) -> None:
    world = world_with(0)
    async with world.one_member(max_poll_records=20) as (_, member):
        await asyncio.sleep(1)
        fail_commits(world, error, after=after)
        world.log.append("orders", 20)
        (delivery,) = await member.take(20)
        assert delivery.ranges[0].delivery_count == 1
        assert delivery.ranges[0].lock_token >> EPOCH > 1
        # Long before a lock ends, and the credit of what was not sent is back.
        assert now_s() < 5
        assert member.joined_session.credit.delivered_records == 20
        assert member.joined_session.credit.delivered_bytes == delivery.size_bytes
        assert member.joined_session.totals.delivered == 20
        assert (await member.acknowledge(delivery)).error is None
        assert world.start_offset("g", "orders") == 20


@virtual
async def test_a_hand_back_whose_own_commit_fails_is_made_again() -> None:
    world = world_with(0, delivery_count_limit="1")
    async with world.one_member(max_poll_records=20) as (_, member):
        await asyncio.sleep(1.5)
        for after in (True, False, False):
            world.store.fail_next(UNKNOWN, after_commit=after, method="commit")
        world.log.append("orders", 20)
        (delivery,) = await member.take(20)
        assert delivery.ranges[0].delivery_count == 1
        assert now_s() < 5
        await member.acknowledge(delivery)


@FAILURES
@virtual
async def test_what_a_lock_book_hands_back_comes_again_when_its_commit_failed(
    error: SharecoordError, after: bool
) -> None:
    world = world_with(20)
    async with world.one_delivery(20) as (coordinator, member, seen):
        member.disconnect()
        token = seen.ranges[0].lock_token
        book = [(seen.key.log_id, HeldRange(5, 9, token))]
        fail_commits(world, error, after=after)
        await member.join(coordinator, "g", TOPICS, max_poll_records=100, lock_book=book)
        again = await member.take(15)
        assert offsets(*again) == [*range(5), *range(10, 20)]
        assert counts(*again) == {1}
        assert now_s() < 5, "long before a lock ends"


@FAILURES
@virtual
async def test_a_loss_is_reported_once_it_is_stored(error: SharecoordError, after: bool) -> None:
    world = world_with(20)
    async with world.one_delivery(20) as (_, member, seen):
        group, session = member.joined_group, member.joined_session
        entry = LostRange(seen.key, HeldRange(0, 4, seen.ranges[0].lock_token))
        fail_commits(world, error, after=after)
        assert await lock_books.stored(group, session, [entry]) == []
        (actor,) = group.partitions.values()
        await until(lambda: actor.state is ActorState.ACTIVE, step_s=0.01)
        assert await lock_books.stored(group, session, [entry]) == [entry]


@FAILURES
@virtual
async def test_an_acknowledgement_whose_commit_failed_is_repeated(
    error: SharecoordError, after: bool
) -> None:
    world = world_with(30)
    async with world.one_delivery(30) as (_, member, delivery):
        fail_commits(world, error, after=after)
        first = await member.acknowledge(delivery, last=9)
        assert first.error is not None
        assert first.error.retriable
        while (again := await member.acknowledge(delivery, last=9)).error is not None:
            assert again.error.retriable
            await asyncio.sleep(0.1)
        outcomes = [e.outcome for e in again.exceptions]
        assert outcomes == ([AcknowledgeOutcome.UNKNOWN_OUTCOME] if after else [])
        rest = await member.acknowledge(delivery, first=10)
        assert rest.error is None
        assert not rest.exceptions, "tokens outlive the reload"
        assert world.start_offset("g", "orders") == 30
        assert member.received == 30


@virtual
async def test_a_commit_in_the_middle_of_a_window_answers_already_finished() -> None:
    world = world_with(30)
    async with world.one_delivery(30) as (_, member, delivery):
        fail_commits(world, UNKNOWN, after=True)
        assert (await member.acknowledge(delivery, first=10, last=19)).error is not None
        await asyncio.sleep(1)
        again = await member.acknowledge(delivery, first=10, last=19)
        assert [(e.outcome, e.final_state) for e in again.exceptions] == [
            (AcknowledgeOutcome.ALREADY_FINISHED, RecordState.ACKNOWLEDGED)
        ]


@virtual
async def test_an_acknowledgement_that_waited_behind_a_failed_commit_is_not_confirmed() -> None:
    """Both were decided by an incarnation that is gone; neither may be called durable."""
    world = world_with(30)
    async with world.one_delivery(30) as (_, member, delivery):
        fail_commits(world, UNKNOWN, after=False)
        first = asyncio.create_task(member.acknowledge(delivery, last=9))
        await asyncio.sleep(0.0005)
        second = asyncio.create_task(member.acknowledge(delivery, first=10, last=19))
        assert (await first).error is not None
        assert (await second).error is not None
        await asyncio.sleep(1)
        result = await member.settle(delivery)
        assert not result.exceptions
        assert world.start_offset("g", "orders") == 30


@virtual
async def test_other_partitions_of_a_failed_batch_reload_too_and_lose_nothing() -> None:
    world = world_with(100, partitions=4)
    async with world.one_member(max_poll_records=50) as (_, member):
        async with at_work(member):
            for _ in range(5):
                await asyncio.sleep(0.011)
                fail_commits(world, UNKNOWN, after=False)
            await asyncio.sleep(5)
        assert world.ledger.confirmed() == 400
        assert [world.start_offset("g", "orders", p) for p in range(4)] == [100] * 4


@virtual
async def test_a_claim_by_another_coordinator_fences() -> None:
    world = world_with(10)
    coordinator = await world.start()
    member, delivery = await world.handed(coordinator, 10)
    other = MemoryStore(world.database, fleet=True)
    other.open(coordinator_id="c2", cluster_id="", address="", version="")
    world.database.leases.pop("c1")
    actor = actor_of(coordinator, "orders")
    (claimed,) = other.claim_partitions([PartitionClaim(actor.partition_id, 99)])
    assert claimed
    result = await member.acknowledge(delivery)
    assert result.error is not None
    assert result.error.reason == "STORE_FENCED"
    await asyncio.sleep(1)
    # It serves nothing, until its lease says that it has no business here any more.
    assert actor.state is ActorState.LOADING
    again = await member.acknowledge(delivery)
    assert again.error is not None
    assert again.error.retriable
    # The former owner changed nothing: the new one still has the lock of the member.
    rows = other.read_in_flight(actor.partition_id, from_offset=0, max_rows=10)
    assert [(r.state, r.member_id) for r in rows] == [(RecordState.ACQUIRED, "m")]
    await world.kill(coordinator)


@virtual
async def test_a_late_claim_of_a_former_process_is_made_good() -> None:
    """What it had said may reach the store after its death; nobody else serves it then."""
    world = world_with(10)
    async with world.one_delivery(10) as (coordinator, member, delivery):
        actor = actor_of(coordinator, "orders")
        (claimed,) = world.store.claim_partitions([PartitionClaim(actor.partition_id, 99)])
        assert claimed
        result = await member.acknowledge(delivery)
        assert result.error is not None
        assert result.error.retriable
        await asyncio.sleep(5)
        assert not (await member.acknowledge(delivery)).exceptions


@virtual
async def test_a_reset_under_traffic_reloads_and_goes_on_there() -> None:
    world = world_with(100)
    async with world.one_delivery(10) as (_, member, first):
        key = world.partition("g", "orders")
        world.ledger.reset(key)
        world.store.reset_partitions({key: 50})
        result = await member.acknowledge(first)
        assert result.error is not None
        delivery = await member.next_delivery()
        assert delivery.ranges[0].first == 50
        late = await member.acknowledge(first)
        assert [e.outcome for e in late.exceptions] == [AcknowledgeOutcome.UNKNOWN_OUTCOME]


@pytest.mark.parametrize("lock_s", [30, 60])
@virtual
async def test_a_store_that_is_gone_for_a_minute_loses_nothing(lock_s: int) -> None:
    world = world_with(1_000, record_lock_duration_ms=str(1000 * lock_s))
    async with world.one_member(max_poll_records=50) as (coordinator, member):
        async with at_work(member, seconds_per_record=0.001):
            await asyncio.sleep(0.2)
            world.caller.down = True
            await asyncio.sleep(2)
            seen = member.received
            assert seen < 1_000
            await asyncio.sleep(58)
            assert member.received == seen, "nothing was handed out without the store"
            told = [coordinator.store_ok]
            world.caller.down = False
            await asyncio.sleep(10)
        told.append(coordinator.store_ok)
        assert told == [False, True]
        assert world.ledger.confirmed() == 1_000
        if lock_s == 60:  # all extensions of one lock together never exceed one duration
            assert member.received == 1_000, "nothing came twice"
        assert world.start_offset("g", "orders") == 1_000


@virtual
async def test_locks_that_ended_while_the_store_was_gone_get_grace() -> None:
    world = world_with(10)
    async with world.one_delivery(10) as (coordinator, member, delivery):
        await asyncio.sleep(20)
        world.caller.down = True
        result = await member.acknowledge(delivery)
        assert result.error is not None
        await asyncio.sleep(15)
        world.caller.down = False
        await asyncio.sleep(2.5)
        # Deadline 30 s, now 38 s: it holds until 46 s or so.
        assert actor_of(coordinator, "orders").state is ActorState.ACTIVE
        result = await member.acknowledge(delivery)
        assert result.error is None
        assert not result.exceptions


@virtual
async def test_a_slow_store_stops_acquiring_but_not_acknowledging() -> None:
    world = world_with(10_000)
    async with running(world) as coordinator:
        members = [await world.joined(coordinator, f"m{i}", max_poll_records=10) for i in range(3)]
        idle = await world.joined(coordinator, "idle", max_poll_records=10, credit=0)
        working = [asyncio.create_task(m.work(seconds_per_record=0.001)) for m in members]
        await asyncio.sleep(1)
        world.caller.delay_s = 5.0
        await asyncio.sleep(1.0)
        idle.joined_session.credit.records = 10
        partition = actor_of(coordinator, "orders").partition
        assert partition is not None
        end = partition.window.end_offset
        coordinator.groups["g"].dispatcher.wake_all()
        await asyncio.sleep(3)
        assert partition.window.end_offset == end
        world.caller.delay_s = 0.001
        await asyncio.sleep(10)
        assert partition.window.end_offset > end
        for task in working:
            task.cancel()


@virtual
async def test_a_session_does_not_time_out_while_nobody_can_join() -> None:
    world = world_with(10)
    async with world.one_member(max_poll_records=10) as (coordinator, member):
        await member.take(10)
        member.disconnect()
        world.caller.down = True
        await asyncio.sleep(100)
        assert "m" in coordinator.groups["g"].sessions
        with pytest.raises(StoreUnavailableError):
            await member.join(coordinator, "g", TOPICS)
        world.caller.down = False
        await asyncio.sleep(2)
        await member.join(coordinator, "g", TOPICS)


@virtual
async def test_who_leaves_while_a_partition_loads_leaves_no_lock_behind() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        one, delivery = await world.handed(coordinator, 10, "one")
        two = await world.joined(coordinator, "two", max_poll_records=10)
        fail_commits(world, UNKNOWN, after=False)
        assert (await one.acknowledge(delivery)).error is not None
        one.leave()
        (again,) = await two.take(10, timeout_s=2)
        assert again.ranges[0].delivery_count == 2


@virtual
async def test_one_refused_row_costs_one_partition_an_incarnation() -> None:
    world = world_with(100, partitions=3)
    async with running(world) as coordinator:
        commit = world.store.commit
        refused = 0

        def refuse(batch: CommitBatch) -> CommitResult:
            nonlocal refused
            for part in batch.partitions:
                hurt = part.partition_id == 2 and part.upserted
                if hurt and refused < 2:
                    refused += 1
                    raise InternalError("a row that no database takes")
            return commit(batch)

        world.store.commit = refuse  # type: ignore[method-assign]
        member = await world.joined(coordinator, max_poll_records=300)
        async with at_work(member):
            await asyncio.sleep(3)
        assert refused == 2
        assert world.ledger.confirmed() == 300
        epochs = {
            r.row.key.partition: r.row.owner_epoch for r in world.database.partitions.values()
        }
        assert epochs[1] > epochs[0] == epochs[2] == 1


@pytest.mark.parametrize("error", [StoreFatalError("disk"), StoreInUseError("taken")])
@virtual
async def test_a_lost_store_ends_the_process(error: SharecoordError) -> None:
    world = world_with(10)
    coordinator = await world.start()
    world.store.fail_next(error, method="renew_lease")
    await asyncio.sleep(3)
    assert world.fatal == [error]
    await coordinator.close()


@virtual
async def test_a_lease_is_renewed_while_a_commit_takes_longer_than_it_lasts() -> None:
    world = world_with(0)
    world.lease_caller = VirtualStoreCaller()
    coordinator = world.build(fleet=True)
    await coordinator.start()
    await asyncio.sleep(2)
    world.caller.delay_s = 10.0
    commit = asyncio.create_task(coordinator.groups.open("g"))
    for _ in range(9):
        await asyncio.sleep(1)
        assert not commit.done()
        assert world.database.lives("c1")
        assert coordinator.store_ok
    world.caller.delay_s = 0.001
    await commit
    await coordinator.close()


@virtual
async def test_a_claim_with_unknown_outcome_is_made_again() -> None:
    world = world_with(10)
    async with world.one_delivery(10) as (_, member, delivery):
        fail_commits(world, UNKNOWN, after=False)
        for after in (True, False, True):
            world.store.fail_next(UNKNOWN, after_commit=after, method="claim_partitions")
        assert (await member.acknowledge(delivery)).error is not None
        assert not (await member.settle(delivery)).exceptions
        assert world.start_offset("g", "orders") == 10


@virtual
async def test_a_reload_that_meets_an_absent_kafka_goes_on_when_it_is_back() -> None:
    world = world_with(10)
    async with world.one_delivery(10) as (_, member, delivery):
        fail_commits(world, UNKNOWN, after=False)
        world.log.set_down(down=True)
        assert (await member.acknowledge(delivery)).error is not None
        await asyncio.sleep(5)
        world.log.set_down(down=False)
        assert not (await member.settle(delivery)).exceptions


@virtual
async def test_topics_open_in_spite_of_a_store_that_fails_in_the_middle() -> None:
    world = world_with(10, partitions=5)
    async with running(world) as coordinator:
        for method in ("list_partitions", "open_partitions", "initialize_partitions"):
            world.store.fail_next(UNAVAILABLE, method=method)
            world.store.fail_next(UNKNOWN, after_commit=True, method=method)
        member = await world.joined(coordinator, max_poll_records=100)
        async with at_work(member):
            await asyncio.sleep(3)
        assert world.ledger.confirmed() == 50


@virtual
async def test_a_close_without_a_store_ends() -> None:
    world = world_with(10)
    coordinator = await world.start()
    member, delivery = await world.handed(coordinator, 10)
    world.caller.down = True
    waiting = asyncio.create_task(member.acknowledge(delivery))
    await asyncio.sleep(0.1)
    await coordinator.drain()
    assert (await waiting).error is not None
    await coordinator.close()
    assert len(asyncio.all_tasks()) == 1
