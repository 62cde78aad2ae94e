"""An operator skips, finishes or releases records that others hold, wait for, or have not read."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.core.letters.dead_letters import PREFIX
from sharecoord.core.limits import CHECKPOINT_HEADER_BYTES_MAX
from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.partition.passed_over import PASSED_OVER_MAX
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, ForceAction, RecordState
from sharecoord.errors import (
    GroupNotFoundError,
    InvalidRequestError,
    LimitExceededError,
    SharecoordError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from sharecoord.eventlog.schema import EventKind
from sharecoord.runtime.admin.force import ForcedRange
from sharecoord.runtime.admin.in_flight import PartitionName
from sharecoord.runtime.kernel.context import Limits
from sharecoord.runtime.partition.log import Divergence
from sharecoord.store.book_entries import CHECKPOINT
from sharecoord.testing.harness import FakeMember
from tests.unit.admin.support import Bench, virtual
from tests.unit.runtime.worlds import counts, offsets
from tests.world import actor_of

SKIP, FINISH, RELEASE = ForceAction.SKIP, ForceAction.FINISH, ForceAction.RELEASE
RECORDS = 100
ORDERS = PartitionName("orders", 0)


async def force(
    bench: Bench, action: ForceAction, first: int, last: int = -1, *, dry_run: bool = False
) -> list[ForcedRange]:
    span = first, max(first, last)
    return await bench.admin.force_records("g", ORDERS, *span, action, dry_run=dry_run)


@virtual
async def test_nothing_is_forced_while_a_cut_of_the_log_is_not_stored(bench: Bench) -> None:
    """The load that comes would void what was said of the new records."""
    await holding(bench)
    actor = actor_of(bench.coordinator, "orders")
    actor.log.diverged = Divergence(actor.state_epoch, 1, 50)
    with pytest.raises(StoreUnavailableError, match="was cut just now") as refused:
        await force(bench, SKIP, 60, 70)
    assert refused.value.retriable
    actor.log.diverged = None
    assert await force(bench, SKIP, 60, 70)


async def holding(bench: Bench, **settings: str) -> FakeMember:
    """A member that holds all records."""
    config = {f"share.{name.replace('_', '.')}": text for name, text in settings.items()}
    await bench.admin.alter_group_configs("g", config, [])
    member = await bench.member()
    await asyncio.sleep(1)
    assert member.received == RECORDS
    return member


async def accept_all(
    member: FakeMember, got: list[int] | None = None
) -> dict[AcknowledgeOutcome, list[int]]:
    """Accepts all that came; which offsets were answered with something else than OK.

    Args:
        member: Whose.
        got: Where the offsets that came are added.
    """
    found: dict[AcknowledgeOutcome, list[int]] = {}
    while member.deliveries:
        delivery = await member.next_delivery()
        if got is not None:
            got += offsets(delivery)
        result = await member.acknowledge(delivery)
        while result.error is not None:
            # It is loaded anew: a member says it again.
            assert result.error.retriable
            await asyncio.sleep(0.1)
            result = await member.acknowledge(delivery)
        for each in result.exceptions:
            found.setdefault(each.outcome, []).extend(range(each.first, each.last + 1))
    return found


@virtual
async def test_what_is_forced_names_who_did_it(bench: Bench) -> None:
    await holding(bench, ordering="key")
    for offset, action in enumerate((SKIP, FINISH, RELEASE)):
        await bench.admin.force_records("g", ORDERS, offset, offset, action, by="User:alice")
    told = {
        (row["event"], row["first_offset"]): row.get("reason")
        for row in bench.world.events.rows(EventKind.RANGE)
        if row["event"].endswith("_by_admin")
    }
    assert told == {
        ("archived_by_admin", 0): "User:alice",
        ("finished_by_admin", 1): "User:alice",
        ("released_by_admin", 2): "User:alice",
    }


@virtual
async def test_a_record_is_finished_while_others_are_held(bench: Bench) -> None:
    member = await holding(bench)
    assert await force(bench, FINISH, 10, 12) == [
        ForcedRange(10, 12, "acquired", "finished", "m1", 1)
    ]
    view = await bench.partition()
    assert (view.acquired_records, view.archived_records, view.lag) == (97, 0, 97)
    # Their tokens have lived on; who held the three hears that they are finished.
    assert await accept_all(member) == {AcknowledgeOutcome.ALREADY_FINISHED: [10, 11, 12]}
    await asyncio.sleep(60)
    assert (member.received, (await bench.partition()).start_offset) == (RECORDS, RECORDS)


@virtual
async def test_a_record_is_skipped_and_the_window_moves_over_it(bench: Bench) -> None:
    member = await holding(bench)
    assert await force(bench, SKIP, 0) == [ForcedRange(0, 0, "acquired", "archived", "m1", 1)]
    assert await force(bench, SKIP, 50) == [ForcedRange(50, 50, "acquired", "archived", "m1", 1)]
    view = await bench.partition()
    assert (view.start_offset, view.archived_records, view.lag) == (1, 1, 98)
    rows = await bench.admin.list_in_flight("g", ORDERS, from_offset=50)
    assert (rows[0].state, rows[0].reason) == (RecordState.ARCHIVED, "ADMIN")
    first = await member.next_delivery()
    result = await member.acknowledge(first, first=50, last=50)
    (said,) = result.exceptions
    assert (said.outcome, said.final_state) == (
        AcknowledgeOutcome.ALREADY_FINISHED,
        RecordState.ARCHIVED,
    )


@virtual
async def test_a_record_is_released_and_its_holder_has_lost_it(bench: Bench) -> None:
    member = await holding(bench)
    other = await bench.member("m2")
    await bench.admin.pause_group("g", member_ids=["m1"])
    assert await force(bench, RELEASE, 7) == [ForcedRange(7, 7, "acquired", "available", "m1", 1)]
    delivery = await other.next_delivery(1)
    assert (offsets(delivery), counts(delivery)) == ([7], {2})
    assert await accept_all(member) == {AcknowledgeOutcome.LOCK_LOST: [7]}
    assert not (await other.acknowledge(delivery)).exceptions
    assert (await bench.partition()).start_offset == RECORDS


@virtual
async def test_what_waits_for_its_time_is_due_at_once_wherever_it_waits(bench: Bench) -> None:
    """Also delayed ranges that are left to the store."""
    context = bench.coordinator.context
    context.limits = Limits(parking=context.limits.parking._replace(kept=2, most=4))
    member = await holding(bench)
    (delivery,) = [*member.deliveries]
    for offset in range(0, 40, 2):
        delay_ms = 100_000 + offset * 1_000
        release = AcknowledgeType.RELEASE
        await member.acknowledge(delivery, release, delay_ms=delay_ms, first=offset, last=offset)
    await asyncio.sleep(1)
    partition = actor_of(bench.coordinator, "orders").partition
    assert partition is not None
    assert partition.window.parked.records > 10
    member.deliveries.clear()
    before = await force(bench, RELEASE, 30, 30, dry_run=True)
    assert before == [ForcedRange(30, 30, "delayed", "available", "", 1)]
    assert before == await force(bench, RELEASE, 30)
    assert offsets(await member.next_delivery(1)) == [30]
    assert [r.after for r in await force(bench, FINISH, 36, 38)] == ["finished"] * 3
    await asyncio.sleep(200)
    assert {36, 38}.isdisjoint(offsets(*member.deliveries))


@virtual
async def test_what_was_not_read_yet_is_never_delivered(bench: Bench) -> None:
    member = await holding(bench, partition_max_record_locks="100")
    await accept_all(member)
    bench.log.append("orders", 1_000)
    assert await force(bench, SKIP, 500, 502) == [ForcedRange(500, 502, "unread", "passed_over")]
    assert await force(bench, FINISH, 501, 509) == [
        ForcedRange(501, 502, "passed_over", "passed_over"),
        ForcedRange(503, 509, "unread", "passed_over"),
    ]
    assert await force(bench, RELEASE, 700) == [ForcedRange(700, 700, "unread", "unread")]
    # The last ones of the log, too: the lag comes to nothing all the same.
    await force(bench, FINISH, 1_090, 1_099)
    await bench.world.kill(bench.coordinator)
    bench.coordinator = await bench.world.start()
    await member.join(bench.coordinator, "g", ("orders",), max_poll_records=100)
    got: list[int] = []
    while len(got) < 980:
        delivery = await member.next_delivery()
        got += offsets(delivery)
        await member.acknowledge(delivery)
    gone = {*range(500, 510), *range(1_090, 1_100)}
    assert sorted(got) == [n for n in range(RECORDS, 1_100) if n not in gone]
    await asyncio.sleep(1)
    bench.admin = type(bench.admin)(bench.coordinator, bench.admin._info)
    view = await bench.partition()
    assert (view.start_offset, view.lag) == (1_100, 0)
    await asyncio.sleep(60)
    assert member.received == RECORDS + 980


@virtual
async def test_a_truncated_log_has_other_records_at_those_offsets(bench: Bench) -> None:
    member = await holding(bench, partition_max_record_locks="100")
    await accept_all(member)
    bench.log.append("orders", 400)
    await force(bench, FINISH, 350, 360)
    await force(bench, FINISH, 450, 460)
    bench.log.truncate("orders", 400)
    got: list[int] = []
    for second in range(20):
        if second == 5:
            bench.log.append("orders", 100)
            # What is void stays so, though the log reaches as far again.
            actor_of(bench.coordinator, "orders").drop(SharecoordError("loads anew"))
        await asyncio.sleep(1)
        await accept_all(member, got)
    assert sorted(got) == [n for n in range(RECORDS, 500) if not 350 <= n <= 360]


@virtual
async def test_what_is_settled_already_stays_as_it_is(bench: Bench) -> None:
    member = await holding(bench)
    delivery = await member.next_delivery()
    await member.acknowledge(delivery, first=0, last=9)
    await member.acknowledge(delivery, first=20, last=20)
    await member.acknowledge(delivery, AcknowledgeType.REJECT, first=21, last=21)
    epochs = [part.row.state_epoch for part in bench.world.database.partitions.values()]
    for action in ForceAction:
        for first, last, state in ((0, 9, "finished"), (20, 20, "finished"), (21, 21, "archived")):
            (found,) = await force(bench, action, first, last)
            assert (found.before, found.after) == (state, state)
    # Nobody had to load anything anew for that, nor for a dry run.
    (found,) = await force(bench, SKIP, 30, dry_run=True)
    assert (found.before, found.after, found.changed) == ("acquired", "archived", True)
    assert [p.row.state_epoch for p in bench.world.database.partitions.values()] == epochs
    assert (await bench.partition()).acquired_records == 88


@virtual
async def test_a_release_for_the_last_time_makes_a_dead_letter(bench: Bench) -> None:
    bench.world.dead_letters.topics["dead"] = []
    config = {"errors.deadletterqueue.topic.name": "dead", "share.delivery.count.limit": "1"}
    await bench.admin.alter_group_configs("g", config, [])
    await bench.member()
    await asyncio.sleep(1)
    (found,) = await force(bench, RELEASE, 5)
    assert (found.before, found.after) == ("acquired", "archiving")
    await asyncio.sleep(5)
    (letter,) = bench.world.dead_letters.topics["dead"]
    (chunk,) = await bench.log.reread("orders", 0, 5, 5, committed=False)
    assert letter.value == chunk.values[0]
    (found,) = await force(bench, SKIP, 5)
    assert (found.before, found.after) == ("archived", "archived")


@virtual
async def test_a_letter_takes_a_small_checkpoint_along_and_no_large_one(bench: Bench) -> None:
    """As the letter of any release for the last time."""
    bench.world.dead_letters.topics["dead"] = []
    config = {"errors.deadletterqueue.topic.name": "dead", "share.delivery.count.limit": "1"}
    await bench.admin.alter_group_configs("g", config, [])
    member = await bench.member()
    await asyncio.sleep(1)
    (delivery,) = member.deliveries
    key, token = delivery.key, delivery.ranges[0].lock_token
    renew, most = AcknowledgeType.RENEW, CHECKPOINT_HEADER_BYTES_MAX
    said = [
        AcknowledgedRange(at, at, renew, token, checkpoint=b"x" * size)
        for at, size in ((5, most), (6, most + 1))
    ]
    (result,) = await member.send([(key.topic, key.topic_id, key.partition, said)])
    assert result.error is None
    await force(bench, RELEASE, 5, 6)
    await asyncio.sleep(5)
    found = [dict(letter.headers) for letter in bench.world.dead_letters.topics["dead"]]
    name = PREFIX + "checkpoint"
    assert [len(headers.get(name) or b"") for headers in found] == [most, 0]


@virtual
async def test_a_checkpoint_goes_with_its_record_and_others_stay(bench: Bench) -> None:
    member = await holding(bench)
    (delivery,) = member.deliveries
    key, token = delivery.key, delivery.ranges[0].lock_token
    renew = AcknowledgeType.RENEW
    said = [AcknowledgedRange(at, at, renew, token, checkpoint=b"half") for at in (3, 4, 5, 6)]
    (result,) = await member.send([(key.topic, key.topic_id, key.partition, said)])
    assert result.error is None
    (partition,) = [p for p in bench.world.database.partitions.values() if p.entries[CHECKPOINT]]
    epoch = partition.row.replay_epoch
    await force(bench, FINISH, 3)
    await force(bench, SKIP, 4)
    await force(bench, RELEASE, 5)
    assert sorted(partition.entries[CHECKPOINT]) == [5, 6]
    # Offsets go on with the life that they have.
    assert partition.row.replay_epoch == epoch
    member.deliveries.clear()
    await asyncio.sleep(1)
    assert [d.checkpoints for d in member.deliveries] == [[(5, b"half")]]


@virtual
async def test_order_is_kept(bench: Bench) -> None:
    """The later records of a key that the holder has go back with the one that is released."""
    log = bench.log
    log.create("keyed", 1)
    for key in (b"a", b"b", b"a", b"b", b"a"):
        log.append("keyed", 1, key=key)
    await bench.admin.alter_group_configs("g", {"share.ordering": "key"}, [])
    member = await bench.member(topic="keyed")
    await asyncio.sleep(1)
    held = await member.take(5)
    other = await bench.member("m2", topic="keyed")
    found = await bench.admin.force_records("g", PartitionName("keyed", 0), 2, 2, RELEASE)
    assert [(each.before, each.after) for each in found] == [("acquired", "available")]
    await asyncio.sleep(1)
    # Offset 0 of key a is still held: nobody else may go on with that key.
    assert other.received == 0
    results = [await member.acknowledge(delivery) for delivery in held]
    lost = [n for r in results for e in r.exceptions for n in range(e.first, e.last + 1)]
    assert lost == [2, 4]
    await asyncio.sleep(1)
    for expected in ((2, 2), (4, 1)):
        ((who, again),) = [(m, m.deliveries.pop()) for m in (member, other) if m.deliveries]
        assert [(r.first, r.delivery_count) for r in again.ranges] == [expected]
        await who.acknowledge(again)
        await asyncio.sleep(1)


@virtual
async def test_a_coordinator_that_does_not_own_it_does_it_too(bench: Bench) -> None:
    """Nobody owns it here: whoever comes next finds what was done."""
    member = await holding(bench)
    await bench.leave(member)
    await bench.world.kill(bench.coordinator)
    bench.coordinator = await bench.world.start()
    bench.admin = type(bench.admin)(bench.coordinator, bench.admin._info)
    (found,) = await force(bench, FINISH, 0, 49)
    assert (found.before, found.after, found.delivery_count) == ("available", "finished", 1)
    view = await bench.partition()
    assert (view.start_offset, view.available_records, view.lag) == (50, 50, 50)
    again = await bench.member("m2")
    assert offsets(*await again.take(50)) == [*range(50, 100)]


@virtual
async def test_an_outcome_that_is_not_known_is_seen(bench: Bench) -> None:
    member = await holding(bench)
    unknown = StoreOutcomeUnknownError("?")
    bench.world.store.fail_next(unknown, after_commit=True, method="change_partition")
    with pytest.raises(StoreOutcomeUnknownError):
        await force(bench, FINISH, 3)
    assert await accept_all(member) == {AcknowledgeOutcome.ALREADY_FINISHED: [3]}


@virtual
async def test_bad_input_is_one_clear_error(bench: Bench) -> None:
    with pytest.raises(GroupNotFoundError, match="share group 'g' does not exist"):
        await force(bench, SKIP, 0)
    await holding(bench)
    for place in (("orders", 2), ("nowhere", 0)):
        with pytest.raises(UnknownTopicOrPartitionError, match="has no share-partition"):
            await bench.admin.force_records("g", PartitionName(*place), 0, 0, SKIP)
    for first, last, text in (
        (-1, 5, "offsets -1 to 5 are no range"),
        (6, 5, "offsets 6 to 5 are no range"),
        (0, 100_000, "100001 records at once; 100000 is the most"),
        (90, 100, r"offset 100 of orders\[0\] does not exist yet: the log ends at 100"),
    ):
        with pytest.raises(InvalidRequestError, match=text):
            await bench.admin.force_records("g", ORDERS, first, last, SKIP)


@virtual
async def test_so_much_is_passed_over_and_no_more(bench: Bench) -> None:
    await holding(bench, partition_max_record_locks="100")
    bench.log.append("orders", 3_000)
    for first in range(200, 200 + 2 * PASSED_OVER_MAX, 2):
        await force(bench, SKIP, first)
    with pytest.raises(LimitExceededError, match="1001 ranges of records that were not read yet"):
        await force(bench, SKIP, 3_000)
    # One that touches others makes them fewer.
    await force(bench, SKIP, 201)
    await force(bench, SKIP, 3_000)
