"""Locks, sessions, credits and subscriptions, end to end on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.core.partition.decisions import AcknowledgedRange, HeldRange
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType
from sharecoord.errors import (
    GroupMaxSizeReachedError,
    KafkaUnavailableError,
    MemberFencedError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import accept, at_work, counts, now_s, offsets, until, world_with
from tests.world import TOPICS, World, actor_of, running


async def two(world: World, coordinator: Coordinator) -> tuple[FakeMember, FakeMember]:
    """The first holds everything; the second waits."""
    one = await world.joined(coordinator, "one", max_poll_records=100)
    await one.take(10)
    other = await world.joined(coordinator, "other", max_poll_records=100)
    return one, other


@virtual
async def test_a_lock_that_ends_gives_its_records_to_another() -> None:
    world = world_with(10)
    async with world.one_delivery(10, "one", max_poll_records=100) as (coordinator, one, mine):
        start_s = now_s()
        other = await world.joined(coordinator, "other", max_poll_records=100)
        one.joined_session.credit.records = 0
        (delivery,) = await other.take(10)
        assert offsets(delivery) == list(range(10))
        assert counts(delivery) == {2}
        assert 29.99 < now_s() - start_s < 30.05
        late = await one.acknowledge(mine)
        assert [e.outcome for e in late.exceptions] == [AcknowledgeOutcome.LOCK_LOST]


@virtual
async def test_renewed_locks_go_on() -> None:
    world = world_with(10)
    async with world.one_delivery(10, "one", max_poll_records=100) as (coordinator, one, mine):
        other = await world.joined(coordinator, "other", max_poll_records=100)
        one.joined_session.credit.records = 0
        for _ in range(4):
            await asyncio.sleep(20)
            result = await one.acknowledge(mine, AcknowledgeType.RENEW, first=5)
            assert not result.exceptions
            assert result.lock_remaining_ms == 30_000
            coordinator.groups["g"].polled(other.joined_session)
        assert sorted(offsets(*other.deliveries)) == sorted([0, 1, 2, 3, 4] * 2)
        last = await one.acknowledge(mine, first=5)
        assert not last.exceptions


@virtual
async def test_a_release_with_a_delay_comes_back_on_time() -> None:
    world = world_with(3)
    async with world.one_delivery(3, max_poll_records=100) as (_, member, delivery):
        await member.acknowledge(delivery, AcknowledgeType.RELEASE, delay_ms=5_000, last=0)
        start_s = now_s()
        await member.acknowledge(delivery, first=1)
        (again,) = await member.take(1)
        assert offsets(again) == [0]
        assert 4.95 < now_s() - start_s < 5.05


@virtual
async def test_backoff_doubles_up_to_its_limit() -> None:
    world = world_with(
        1, retry_backoff_ms="1000", retry_backoff_max_ms="3000", delivery_count_limit="6"
    )
    async with world.one_member() as (_, member):
        waits: list[int] = []
        delivery = await member.next_delivery()
        for count in range(1, 6):
            assert counts(delivery) == {count}
            await member.acknowledge(delivery, AcknowledgeType.RELEASE)
            start_s = now_s()
            delivery = await member.next_delivery()
            waits.append(round(now_s() - start_s))
        assert waits == [1, 2, 3, 3, 3]


@pytest.mark.parametrize("how", ["release", "time out", "reject"])
@virtual
async def test_no_record_goes_out_beyond_its_limit(how: str) -> None:
    world = world_with(5, delivery_count_limit="3")
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        seen: list[int] = []
        while len(seen) < (5 if how == "reject" else 15):
            delivery = await member.next_delivery()
            seen += offsets(delivery)
            if how != "time out":
                kind = AcknowledgeType[how.upper()]
                assert not (await member.acknowledge(delivery, kind)).exceptions
            elif not member.deliveries:
                await asyncio.sleep(30.1)
                coordinator.groups["g"].polled(member.joined_session)
        await asyncio.sleep(100)
        assert not member.deliveries
        assert world.start_offset("g", "orders") == 5
        assert sorted(seen) == sorted(list(range(5)) * (1 if how == "reject" else 3))


@virtual
async def test_a_poisoned_batch_goes_out_in_shrinking_parts() -> None:
    """One record of 64 kills its consumer: the others are worked off all the same."""
    world = world_with(64)
    poison = 20
    async with running(world) as coordinator:
        sizes: dict[int, list[int]] = {}
        for number in range(200):
            member = await world.joined(coordinator, f"m{number}", max_poll_records=64)
            try:
                while True:
                    delivery = await member.next_delivery(timeout_s=40)
                    count = delivery.ranges[0].delivery_count
                    sizes.setdefault(count, []).append(delivery.records)
                    if poison in offsets(delivery):
                        break
                    await member.acknowledge(delivery)
            except TimeoutError:
                break
            member.leave()
            await asyncio.sleep(0.1)
        assert world.start_offset("g", "orders") == 64
        assert world.ledger.confirmed() == 63
        life = world.ledger.life(world.partition("g", "orders"), poison)
        assert life.count == 5
        assert max(sizes[3]) <= 64
        assert max(sizes[4]) <= 32
        assert set(sizes[5]) == {1}


@virtual
async def test_a_broken_stream_keeps_its_locks_until_the_session_ends() -> None:
    world = world_with(10, record_lock_duration_ms="60000")
    async with running(world) as coordinator:
        one, other = await two(world, coordinator)
        start_s = now_s()
        one.disconnect()
        await asyncio.sleep(44.9)
        assert not other.received
        world.ledger.gone("one")
        (delivery,) = await other.take(10)
        assert counts(delivery) == {2}
        assert 44.99 < now_s() - start_s < 45.05
        await asyncio.sleep(1)
        assert set(world.database.members) == {("g", "other")}


@virtual
async def test_who_comes_back_in_time_goes_on() -> None:
    world = world_with(10, record_lock_duration_ms="60000")
    async with world.one_delivery(10, "one", max_poll_records=100) as (coordinator, one, mine):
        one.disconnect()
        await asyncio.sleep(40)
        assert not await one.join(coordinator, "g", TOPICS)
        await asyncio.sleep(15)
        assert not (await one.acknowledge(mine)).exceptions
        assert world.start_offset("g", "orders") == 10


@virtual
async def test_a_second_join_of_a_member_fences_the_older_stream() -> None:
    world = world_with(10)
    async with world.one_delivery(4, "one") as (coordinator, one, mine):
        twin = FakeMember("one", world.ledger)
        old_session = one.joined_session
        await twin.join(coordinator, "g", TOPICS, max_poll_records=4)
        assert isinstance(one.ended, MemberFencedError)
        assert twin.joined_session.member_epoch == old_session.member_epoch + 1
        channel = twin.joined_session.channel
        coordinator.groups["g"].disconnected(old_session)
        assert channel is not None
        assert twin.joined_session.channel is channel, "the old stream's end changes nothing"
        assert twin.joined_session.presence.expiry is None
        # Same member, same book, same locks.
        assert not (await twin.acknowledge(mine)).exceptions
        (more,) = await twin.take(4)
        assert offsets(more) == [4, 5, 6, 7]
        with pytest.raises(MemberFencedError):
            coordinator.groups["g"].session("one", old_session.member_epoch)


@virtual
async def test_a_join_that_is_overtaken_compares_nothing() -> None:
    """Its book is older than what the newer stream holds by then."""
    world = world_with(10)
    async with world.one_delivery(10, "one") as (coordinator, _, mine):
        world.log.create("late", 1)
        found = await world.log.describe(["late"])
        world.log.set_down(down=True)
        coordinator.groups["g"].topic_found("late", found["late"])
        book = [(("late", "", 0), HeldRange(0, 0, 1))]
        real_book = world.ledger.book("one")
        stale = FakeMember("one")  # a ledger of its own: it is not what the member knows
        waiting = asyncio.create_task(stale.join(coordinator, "g", TOPICS, lock_book=book))
        await asyncio.sleep(0.5)
        newest = FakeMember("one", world.ledger)
        await newest.join(coordinator, "g", TOPICS, lock_book=real_book)
        world.log.set_down(down=False)
        with pytest.raises(MemberFencedError):
            await waiting
        assert not (await newest.acknowledge(mine)).exceptions


@virtual
async def test_a_lock_book_settles_both_ways() -> None:
    world = world_with(10)
    async with world.one_delivery(10, "one") as (coordinator, one, mine):
        token, key = mine.ranges[0].lock_token, mine.key
        one.disconnect()
        book = [
            (key.log_id, HeldRange(0, 3, token)),
            (key.log_id, HeldRange(5, 5, token + 7)),
            (key.log_id, HeldRange(50, 60, token)),
            (("orders", "f" * 32, 0), HeldRange(7, 7, token)),
            (("other", "", 0), HeldRange(0, 0, token)),
        ]
        lost = await one.join(coordinator, "g", TOPICS, max_poll_records=100, lock_book=book)
        assert sorted(lost) == [
            HeldRange(5, 5, token + 7),
            HeldRange(7, 7, token),
            HeldRange(50, 60, token),
        ]
        (again,) = await one.take(6)
        assert offsets(again) == list(range(4, 10))
        assert counts(again) == {1}, "handed back unseen"
        assert not (await one.acknowledge(mine, last=3)).exceptions
        assert not (await one.acknowledge(again)).exceptions


@virtual
async def test_nothing_is_lost_from_a_book_while_kafka_is_away() -> None:
    world = world_with(10)
    first = await world.start()
    one, mine = await world.handed(first, 10, "one")
    await world.kill(first)
    world.log.set_down(down=True)
    async with running(world) as second:
        assert not await one.join(second, "g", TOPICS, max_poll_records=10)
        result = await one.acknowledge(mine)
        assert isinstance(result.error, KafkaUnavailableError)
        assert result.error.retriable
        await asyncio.sleep(5)
        world.log.set_down(down=False)
        assert not (await one.settle(mine)).exceptions
        assert now_s() < 8


@virtual
async def test_who_does_not_poll_is_removed() -> None:
    world = world_with(10, record_lock_duration_ms="60000")
    async with world.one_member("one", max_poll_records=100, max_poll_interval_ms=20_000) as (
        coordinator,
        one,
    ):
        await one.take(10)
        await asyncio.sleep(15)
        coordinator.groups["g"].polled(one.joined_session)
        other = await world.joined(coordinator, "other", max_poll_records=100)
        await asyncio.sleep(19.9)
        assert not one.ended
        (delivery,) = await other.take(10)
        assert isinstance(one.ended, UnknownMemberError)
        assert "max.poll.interval.ms=20000" in one.ended.message
        assert counts(delivery) == {2}
        assert 34.9 < now_s() < 35.2


@virtual
async def test_leaving_releases_and_counts() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        one, other = await two(world, coordinator)
        start_s = now_s()
        one.leave()
        (delivery,) = await other.take(10)
        assert counts(delivery) == {2}
        assert now_s() - start_s < 0.1
        told: list[object] = []
        coordinator.after_commit(told.append)
        await asyncio.sleep(0.1)
        assert told == [None]
        assert set(world.database.members) == {("g", "other")}


@virtual
async def test_who_leaves_counts_what_its_book_shows_and_nothing_else() -> None:
    """The rest was sent, and was on its way when the member left; even at the last attempt."""
    world = world_with(4, delivery_count_limit="2")
    async with running(world) as coordinator:
        one, got = await world.handed(coordinator, 4, "one", max_poll_records=100)
        one.broken()
        world.log.append("orders", 6)
        group = coordinator.groups["g"]
        await until(lambda: group.totals.get("one") == 10, step_s=0.001)
        await asyncio.sleep(0.1)
        held = [HeldRange(each.first, each.last, each.lock_token) for each in got.ranges]
        group.leave(one.joined_session, {got.key.log_id: held})
        world.ledger.gone("one")
        other = await world.joined(coordinator, "other", max_poll_records=100)
        again = await other.take(10)
        assert {
            offset: each.delivery_count
            for delivery in again
            for each in delivery.ranges
            for offset in range(each.first, each.last + 1)
        } == {offset: 2 if offset < 4 else 1 for offset in range(10)}


@virtual
async def test_what_is_not_sent_yet_when_a_member_leaves_goes_back_unseen() -> None:
    """Even at the last attempt: nobody saw it, so it must not be archived."""
    world = world_with(0, delivery_count_limit="1")
    async with running(world) as coordinator:
        one = await world.joined(coordinator, "one", max_poll_records=100)
        await asyncio.sleep(1.5)
        world.log.append("orders", 5)
        await until(lambda: coordinator.groups["g"].totals.get("one"), step_s=0.0001)
        assert not one.received
        one.leave()
        other, delivery = await world.handed(coordinator, 5, "other", max_poll_records=100)
        assert counts(delivery) == {1}
        await other.acknowledge(delivery)


@virtual
async def test_a_stream_that_breaks_before_the_commit_hands_back_unseen() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        one = await world.joined(coordinator, "one", max_poll_records=100)
        await asyncio.sleep(1.5)
        world.log.append("orders", 5)
        await until(lambda: coordinator.groups["g"].totals.get("one"), step_s=0.0001)
        one.disconnect()
        other = await world.joined(coordinator, "other", max_poll_records=100)
        (delivery,) = await other.take(5, timeout_s=1)
        assert counts(delivery) == {1}


@virtual
async def test_a_delivery_that_can_not_be_sent_is_handed_back() -> None:
    world = world_with(5)
    async with running(world) as coordinator:
        one = world.member("one")

        def fail(*_: object) -> None:
            raise ValueError("no such codec")

        one.deliver = fail  # type: ignore[method-assign,assignment]
        await one.join(coordinator, "g", TOPICS, max_poll_records=100)
        await asyncio.sleep(1)
        assert one.ended
        coordinator.groups["g"].disconnected(one.joined_session)
        other = await world.joined(coordinator, "other", max_poll_records=100)
        (delivery,) = await other.take(5, timeout_s=1)
        assert counts(delivery) == {1}
        assert not world.fatal


@virtual
async def test_topics_follow_the_subscription() -> None:
    world = world_with(10)
    world.log.create("payments")
    world.log.append("payments", 10)
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        await accept(member, *await member.take(10))
        member.joined_group.subscribe(member.joined_session, ["payments"])
        coordinator.groups.subscription_changed(member.joined_group, member.joined_session)
        world.log.append("orders", 10)
        (delivery,) = await member.take(10)
        assert delivery.key.topic == "payments"
        assert list(member.assignments[-1].topics) == ["payments"]
        await asyncio.sleep(5)
        assert not member.deliveries


@virtual
async def test_paused_partitions_deliver_nothing_until_they_are_resumed() -> None:
    world = world_with(10, partitions=2)
    async with world.one_member(max_poll_records=100, credit=0) as (_, member):
        member.joined_session.paused = frozenset({("orders", 1)})
        member.joined_session.credit.records = 1_000
        member.joined_group.dispatcher.wake_all()
        (delivery,) = await member.take(10)
        await asyncio.sleep(10)
        assert delivery.key.partition == 0
        assert not member.deliveries
        member.joined_session.paused = frozenset()
        member.joined_group.dispatcher.wake_all()
        (delivery,) = await member.take(10)
        assert delivery.key.partition == 1


@virtual
async def test_records_stop_at_the_credit() -> None:
    world = world_with(1_000)
    async with world.one_member(max_poll_records=500, credit=30) as (_, member):
        assert offsets(*await member.take(30)) == list(range(30))
        await asyncio.sleep(10)
        assert not member.deliveries
        member.joined_session.credit.records = 45
        member.joined_group.dispatcher.wake_all()
        assert offsets(*await member.take(15)) == list(range(30, 45))
        await asyncio.sleep(10)
        assert not member.deliveries


@virtual
async def test_bytes_stop_at_the_credit() -> None:
    """A batch may exceed it, nothing comes beyond."""
    world = world_with(1_000)
    async with (
        world.one_member(max_poll_records=10, credit_bytes=5_000) as (_, member),
        at_work(member),
    ):
        await asyncio.sleep(10)
        session = member.joined_session
        assert 5_000 <= session.credit.delivered_bytes < 5_000 + 10 * 110
        seen = member.received
        session.credit.size_bytes *= 2
        member.joined_group.dispatcher.wake_all()
        await asyncio.sleep(10)
        assert member.received > seen
        assert 10_000 <= session.credit.delivered_bytes < 10_000 + 10 * 110


@virtual
async def test_a_stream_that_is_not_read_gets_nothing_more() -> None:
    world = world_with(100)
    async with running(world) as coordinator:
        one = world.member("one")
        one.unsent_bytes = coordinator.context.limits.memory.stream_unsent_max_bytes + 1
        await one.join(coordinator, "g", TOPICS, max_poll_records=10)
        other = await world.joined(coordinator, "other", max_poll_records=10)
        async with at_work(other):
            await asyncio.sleep(1)
        assert other.received == 100
        assert not one.received


@virtual
async def test_a_full_group_says_so() -> None:
    world = world_with(1, group_max_size="2")
    async with running(world) as coordinator:
        for name in ("one", "two"):
            await world.member(name).join(coordinator, "g", TOPICS)
        with pytest.raises(GroupMaxSizeReachedError, match="2 members"):
            await world.member("three").join(coordinator, "g", TOPICS)
        await world.member("two").join(coordinator, "g", TOPICS)


@virtual
async def test_wrong_acknowledgements_change_nothing() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        one, other = await two(world, coordinator)
        key = world.partition("g", "orders")
        grants = actor_of(coordinator, "orders").partition
        assert grants is not None
        (token,) = grants.window.grants
        accept = AcknowledgeType.ACCEPT
        theirs = [AcknowledgedRange(0, 9, accept, token)]
        (result,) = await other.send([("orders", key.topic_id, 0, theirs)])
        assert [e.outcome for e in result.exceptions] == [AcknowledgeOutcome.LOCK_LOST]
        mixed = [
            AcknowledgedRange(0, 0, accept, token + 1),
            AcknowledgedRange(0, 0, accept, token),
            AcknowledgedRange(9, 30, accept, token),
        ]
        (result,) = await one.send([("orders", key.topic_id, 0, mixed)])
        assert [(e.first, e.last, e.outcome) for e in result.exceptions] == [
            (0, 0, AcknowledgeOutcome.LOCK_LOST),
            (0, 0, AcknowledgeOutcome.INVALID_REQUEST),
            (10, 30, AcknowledgeOutcome.INVALID_REQUEST),
        ]
        for topic, topic_id, partition in (
            ("no", "", 0),
            ("orders", "", 7),
            ("orders", "0" * 32, 0),
        ):
            (result,) = await one.send([(topic, topic_id, partition, theirs)])
            assert isinstance(result.error, UnknownTopicOrPartitionError)
        with pytest.raises(UnknownMemberError):
            coordinator.groups["g"].session("nobody")


@virtual
async def test_an_acknowledgement_that_is_repeated_is_answered() -> None:
    world = world_with(10)
    async with world.one_delivery(10, max_poll_records=100) as (_, member, delivery):
        assert not (await member.acknowledge(delivery, first=5)).exceptions
        again = await member.acknowledge(delivery, first=5)
        assert [e.outcome for e in again.exceptions] == [AcknowledgeOutcome.ALREADY_FINISHED]
        released = await member.acknowledge(delivery, AcknowledgeType.RELEASE, last=4)
        assert not released.exceptions
