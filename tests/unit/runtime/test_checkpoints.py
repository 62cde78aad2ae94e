"""What a member stored with a record is what the next delivery of it shows, whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.core.delivery import Delivery, PartitionResult
from sharecoord.core.letters.dead_letters import PREFIX
from sharecoord.core.partition.share_partition import AcknowledgedRange
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType
from sharecoord.errors import InvalidRequestError, LimitExceededError, StoreOutcomeUnknownError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.store.book_entries import CHECKPOINT
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import joined_fleet
from tests.unit.runtime.worlds import Crash, counts, until, world_with
from tests.world import World, actor_of, running

RELEASE, REJECT = AcknowledgeType.RELEASE, AcknowledgeType.REJECT


async def keep(
    member: FakeMember, delivery: Delivery, offset: int, data: bytes, *, token: int = 0
) -> PartitionResult:
    """Stores a checkpoint with one record."""
    (held,) = (r for r in delivery.ranges if r.first <= offset <= r.last)
    token = token or held.lock_token
    said = AcknowledgedRange(offset, offset, AcknowledgeType.RENEW, token, checkpoint=data)
    key = delivery.key
    (result,) = await member.send([(key.topic, key.topic_id, key.partition, [said])])
    return result


def done(result: PartitionResult) -> bool:
    return result.error is None and not result.exceptions


def stored(world: World) -> dict[int, bytes]:
    return {
        offset: each.data
        for partition in world.database.partitions.values()
        for offset, each in partition.entries[CHECKPOINT].items()
    }


@virtual
async def test_the_next_delivery_shows_it_until_the_record_is_finished() -> None:
    world = world_with(5)
    async with world.one_delivery(5, max_poll_records=100) as (coordinator, member, delivery):
        assert delivery.checkpoints == ()
        assert done(await keep(member, delivery, 3, b"one"))
        assert stored(world) == {3: b"one"}, "durable before the answer"
        assert done(await keep(member, delivery, 3, b"two"))
        assert done(await keep(member, delivery, 1, b""))
        await member.acknowledge(delivery, RELEASE)
        (again,) = await member.take(5)
        assert (again.checkpoints, counts(again)) == ([(1, b""), (3, b"two")], {2})
        await member.acknowledge(again, first=2, last=4)
        assert stored(world) == {1: b""}
        await member.acknowledge(again, RELEASE, first=0, last=1)
        (last,) = await member.take(2)
        assert last.checkpoints == [(1, b"")]
        await member.acknowledge(last)
        assert stored(world) == {}
        assert actor_of(coordinator, "orders").budget.checkpoint_bytes == 0


@virtual
async def test_the_lock_starts_again_with_it() -> None:
    world = world_with(2, record_lock_duration_ms="10000")
    async with world.one_delivery(2, max_poll_records=100) as (coordinator, member, delivery):
        await asyncio.sleep(8)
        result = await keep(member, delivery, 0, b"half")
        assert result.lock_remaining_ms == 10_000
        await asyncio.sleep(4)
        actor = actor_of(coordinator, "orders")
        assert actor.partition is not None
        assert actor.partition.window.held["m"] == 1, "the other one's lock has ended"


@virtual
async def test_a_lock_that_ends_leaves_it_to_the_next_member() -> None:
    world = world_with(1, record_lock_duration_ms="10000")
    async with world.one_delivery(1, max_poll_records=100) as (coordinator, member, delivery):
        await keep(member, delivery, 0, b"half")
        _, again = await world.handed(coordinator, 1, "n", max_poll_records=100)
        assert (again.checkpoints, counts(again)) == ([(0, b"half")], {2})
        late = await keep(member, delivery, 0, b"late")
        assert [each.outcome for each in late.exceptions] == [AcknowledgeOutcome.LOCK_LOST]
        assert stored(world) == {0: b"half"}


@virtual
async def test_a_wrong_token_stores_nothing() -> None:
    world = world_with(1)
    async with world.one_delivery(1, max_poll_records=100) as (_, member, delivery):
        result = await keep(member, delivery, 0, b"x", token=99)
        assert [each.outcome for each in result.exceptions] == [AcknowledgeOutcome.LOCK_LOST]
        assert stored(world) == {}


@virtual
async def test_a_group_without_renewals_stores_none() -> None:
    world = world_with(1, renew_acknowledge_enable="false")
    async with world.one_delivery(1, max_poll_records=100) as (_, member, delivery):
        result = await keep(member, delivery, 0, b"x")
        assert [each.outcome for each in result.exceptions] == [AcknowledgeOutcome.RENEW_DISABLED]
        assert stored(world) == {}


@virtual
@pytest.mark.parametrize(
    ("most", "data", "text"),
    [
        ("10", b"12345678901", "offset 0 has 11 bytes; share.checkpoint.max.bytes of this group"),
        ("0", b"", "checkpoints are off in this group: share.checkpoint.max.bytes is 0"),
    ],
)
async def test_what_the_group_does_not_allow_is_refused(most: str, data: bytes, text: str) -> None:
    world = world_with(1, checkpoint_max_bytes=most)
    async with world.one_delivery(1, max_poll_records=100) as (_, member, delivery):
        result = await keep(member, delivery, 0, data)
        assert isinstance(result.error, InvalidRequestError)
        assert text in result.error.message
        assert not result.error.retriable
        assert stored(world) == {}
        assert done(await member.acknowledge(delivery)), "the lock is untouched"


@virtual
async def test_a_full_group_refuses_more_and_says_that_a_retry_helps() -> None:
    world = world_with(20, checkpoint_total_max_bytes=str(1 << 20))
    async with world.one_delivery(20, max_poll_records=100) as (_, member, delivery):
        results = [await keep(member, delivery, n, b"x" * 65536) for n in range(16)]
        error = results[-1].error
        assert [done(each) for each in results] == [True] * 15 + [False]
        assert isinstance(error, LimitExceededError)
        assert error.retriable
        assert "share.checkpoint.total.max.bytes is 1048576" in error.message
        assert done(await keep(member, delivery, 3, b"y" * 65536)), "in the place of another"
        await member.acknowledge(delivery, first=0, last=0)
        assert done(await keep(member, delivery, 15, b"x" * 65536))


@virtual
async def test_it_is_counted_as_memory() -> None:
    world = world_with(1)
    async with world.one_delivery(1, max_poll_records=100) as (coordinator, member, delivery):
        budget = actor_of(coordinator, "orders").budget
        before, size = budget.used_bytes, delivery.size_bytes
        await keep(member, delivery, 0, b"x" * 5000)
        assert 5000 < budget.used_bytes - before < 6000
        await member.acknowledge(delivery, RELEASE)
        (again,) = await member.take(1)
        assert again.size_bytes == size + 5000, "credits count it, too"


@virtual
@Crash.at_calls(range(6, 22))
async def test_a_crash_at_any_call_to_the_store_loses_none_that_was_confirmed(crash: Crash) -> None:
    world = world_with(1, record_lock_duration_ms="5000", delivery_count_limit="100")
    confirmed, tried = -1, -1

    async def counts_up(first: Coordinator) -> None:
        nonlocal confirmed, tried
        member, delivery = await world.handed(first, 1, "m1", max_poll_records=100)
        while True:
            tried += 1
            if done(await keep(member, delivery, 0, b"%d" % tried)):
                confirmed = tried

    await crash.hits(world, counts_up)
    async with running(world) as coordinator:
        _, delivery = await world.handed(coordinator, 1, "m2", max_poll_records=100)
        shown = int(delivery.checkpoints[0][1]) if delivery.checkpoints else -1
        assert confirmed <= shown <= tried


@virtual
async def test_a_commit_that_fails_leaves_what_was_stored_before() -> None:
    world = world_with(1)
    async with world.one_delivery(1, max_poll_records=100) as (coordinator, member, delivery):
        await keep(member, delivery, 0, b"first")
        world.store.fail_next(StoreOutcomeUnknownError("broke"), method="commit")
        result = await keep(member, delivery, 0, b"second")
        assert result.error is not None
        actor = actor_of(coordinator, "orders")
        await until(lambda: actor.partition is not None, step_s=0.01)
        assert actor.books.checkpoints.of(delivery.ranges) == [(0, b"first")]
        assert done(await keep(member, delivery, 0, b"second"))
        assert stored(world) == {0: b"second"}


@virtual
async def test_a_fleet_passes_it_on_and_a_new_owner_has_it() -> None:
    world = world_with(1, partitions=4, record_lock_duration_ms="20000")
    async with joined_fleet(world, "a", "b", max_poll_records=100) as (fleet, member):
        held = await member.take(4)
        for delivery in held:
            name = b"p%d" % delivery.key.partition
            assert done(await keep(member, delivery, 0, name))
        await fleet.add("c")
        await fleet.drain("b")
        other = await world.joined(fleet.all["c"], "n", max_poll_records=100)
        for delivery in held:
            await member.settle(delivery, RELEASE)
        member.leave()
        again = await other.take(4)
        shown = {each.key.partition: each.checkpoints for each in again}
        assert shown == {n: [(0, b"p%d" % n)] for n in range(4)}


@virtual
async def test_a_small_one_goes_with_the_dead_letter() -> None:
    world = world_with(3, delivery_count_limit="1")
    world.defaults["errors.deadletterqueue.topic.name"] = "dead"
    world.dead_letters.topics["dead"] = []
    async with world.one_delivery(3, max_poll_records=100) as (coordinator, member, delivery):
        await keep(member, delivery, 0, b"half \xff\x00")
        await keep(member, delivery, 1, b"x" * 4097)
        world.dead_letters.down = True
        await member.settle(delivery, REJECT)
        assert stored(world) == {}
        await world.kill(coordinator)
    world.dead_letters.down = False
    async with running(world):
        letters = world.dead_letters.topics["dead"]
        await until(lambda: len(letters) == 3, step_s=0.1)
        name = PREFIX + "checkpoint"
        found = [value for each in letters for key, value in each.headers if key == name]
        assert found == [b"half \xff\x00"], "also after a crash; what is large stays out"


@virtual
async def test_a_truncated_log_takes_it_away() -> None:
    world = world_with(10)
    async with world.one_delivery(10, max_poll_records=100) as (_, member, delivery):
        await keep(member, delivery, 2, b"stays")
        await keep(member, delivery, 7, b"goes")
        world.log.truncate("orders", 5)
        world.ledger.truncated(delivery.key, 5)
        await until(lambda: stored(world) == {2: b"stays"}, step_s=0.01)
