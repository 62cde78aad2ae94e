"""Logs that were cut and grew again before anybody looked: leader epochs tell (design 5.12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from sharecoord.core.changes import PartitionRow
from sharecoord.core.delivery import Delivery
from sharecoord.core.letters.dead_letters import ID_HEADER, PAYLOAD_HEADER
from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, ForceAction, TakenBackReason
from sharecoord.errors import SharecoordError, StoreUnavailableError
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.admin.in_flight import PartitionName
from sharecoord.runtime.group.log_changes import LOG_REGRESSED, UNKNOWN_EPOCHS_MAX
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.store.book_entries import KEPT_PAYLOAD
from sharecoord.testing.fake_log import FakeLog
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.admin.support import INFO
from tests.unit.runtime.test_dead_letters import arrived, letters_world, offsets_of, text
from tests.unit.runtime.test_topic_lives import finished, values_of
from tests.unit.runtime.worlds import accept, offsets, until, world_with
from tests.world import TOPICS, World, actor_of, running

REJECT, RELEASE = AcknowledgeType.REJECT, AcknowledgeType.RELEASE


def watched(records: int, **more: str) -> World:
    """A world whose reader compares leader epochs, and whose values are anything."""
    return _compared(world_with(records, **more))


def _compared(world: World) -> World:
    world.log.compares_epochs = True
    world.ledger = type(world.ledger)(values_are_offsets=False)
    return world


def row_of(world: World) -> PartitionRow:
    (row,) = world.store.list_partitions("g")
    return row


def cut(world: World, offset: int, end: int) -> None:
    """The log loses its end and grows again, to `end`; no turn of the loop sees it shorter."""
    world.log.truncate("orders", offset)
    world.log.append("orders", end - offset, value=b"new")
    world.ledger.truncated(world.partition("g", "orders"), offset)


async def is_new(world: World, member: FakeMember, offset: int, end: int) -> None:
    """The member gets the new records, all of them once, and finishes them."""
    deliveries = await member.take(end - offset)
    assert offsets(*deliveries) == list(range(offset, end))
    assert {value for each in deliveries for value in values_of(each)} == {b"new"}
    assert {r.delivery_count for each in deliveries for r in each.ranges} == {1}
    await accept(member, *deliveries)
    await until(lambda: world.start_offset("g", "orders") == end, step_s=0.01)


def epochs_of(world: World) -> tuple[int, int]:
    """State epoch, and leader epoch before the window's end."""
    row = row_of(world)
    assert row.head is not None
    return row.state_epoch, row.head.end_leader_epoch


@pytest.mark.parametrize("end", [700, 1_000, 1_400])
@virtual
async def test_finished_records_that_were_cut_and_written_anew_are_delivered(end: int) -> None:
    world = watched(1_000)
    async with running(world) as coordinator:
        member = await finished(world, coordinator, 1_000)
        assert epochs_of(world) == (0, 0)
        cut(world, 500, end)
        await is_new(world, member, 500, end)
        assert epochs_of(world) == (1, 1)


@virtual
async def test_locks_end_where_the_log_was_cut_and_hold_below() -> None:
    world = watched(10)
    async with world.one_delivery(10, max_poll_records=20) as (coordinator, member, old):
        cut(world, 6, 20)
        deliveries = await member.take(14)
        assert offsets(*deliveries) == list(range(6, 20))
        assert {told.reason for told in member.taken_back} == {TakenBackReason.TRUNCATED}
        late = await member.acknowledge(old, first=6)
        assert {each.outcome for each in late.exceptions} == {AcknowledgeOutcome.LOCK_LOST}
        assert not (await member.acknowledge(old, last=5)).exceptions
        await accept(member, *deliveries)
        await until(lambda: world.start_offset("g", "orders") == 20, step_s=0.01)
        assert actor_of(coordinator, "orders").state is ActorState.ACTIVE


@pytest.mark.parametrize("successor", ["c1", "c2"])
@virtual
async def test_a_log_that_is_cut_while_the_coordinator_is_away(successor: str) -> None:
    """After a restart, and at another coordinator."""
    world = watched(100)
    first = await world.start()
    await finished(world, first, 100)
    await world.kill(first)
    cut(world, 40, 300)
    second = await world.start(successor)
    member = await world.joined(second, "n", max_poll_records=500)
    await is_new(world, member, 40, 300)
    assert epochs_of(world)[1] == 1
    await world.kill(second)


@virtual
async def test_a_log_that_is_cut_while_memory_is_short() -> None:
    world = watched(100)
    async with running(world) as coordinator:
        member = await finished(world, coordinator, 100)
        follower = actor_of(coordinator, "orders").log
        follower.give_up()
        cut(world, 40, 300)
        await asyncio.sleep(1)
        assert epochs_of(world)[0] == 0, "nobody reads"
        follower.given_up = False
        follower.start(committed=False)
        await is_new(world, member, 40, 300)


@virtual
async def test_what_was_read_ahead_is_read_anew_and_no_state_is_void() -> None:
    world = watched(100)
    async with world.one_delivery(10, credit=10) as (coordinator, member, first):
        actor = actor_of(coordinator, "orders")
        await until(lambda: actor.log.proven_end == 100, step_s=0.001)
        name = PartitionName("orders", 0)
        force = Admin(coordinator, INFO).force_records
        await force("g", name, 30, 30, ForceAction.FINISH)
        await force("g", name, 60, 60, ForceAction.FINISH)
        await asyncio.sleep(1)
        assert actor.log.proven_end == 100
        before = epochs_of(world)[0]
        cut(world, 50, 120)
        await until(lambda: actor.log.proven_end == 120, step_s=0.01)
        member.joined_session.credit.records = 1 << 40
        assert not (await member.acknowledge(first)).exceptions
        got: list[Delivery] = []
        while len(offsets(*got)) < 109:
            got.append(await member.next_delivery())
            await accept(member, got[-1])
        # What an operator settled beyond the cut were other records.
        assert sorted(offsets(*got)) == [n for n in range(10, 120) if n != 30]
        values = {o: v for d in got for o, v in zip(offsets(d), values_of(d), strict=True)}
        assert {values[n] for n in range(50, 120)} == {b"new"}
        assert epochs_of(world) == (before + 1, 1), "the list of what is settled has changed"


@pytest.mark.parametrize("compares", [True, False])
@virtual
async def test_a_record_that_is_read_again_is_never_another_one(compares: bool) -> None:
    """Also with a reader that compares no epochs: a re-read shows the epoch of what it finds."""
    world = watched(100)
    world.log.compares_epochs = compares
    async with world.one_delivery(100) as (coordinator, member, old):
        actor = actor_of(coordinator, "orders")
        await member.acknowledge(old, last=59)
        for reading in world.log.readings:
            reading.wanted = False  # as one that is full
        actor.cache.clear()
        cut(world, 60, 160)
        await member.acknowledge(old, RELEASE, first=60)
        await is_new(world, member, 60, 160)
        assert epochs_of(world)[1] == 1


@virtual
async def test_another_leader_with_the_same_log_voids_nothing() -> None:
    world = watched(100)
    first = await world.start()
    await finished(world, first, 100)
    world.log.log("orders").elect()
    world.log.append("orders", 10)
    await asyncio.sleep(1)
    world.log.log("orders").elect()
    await world.kill(first)
    second = await world.start()
    member = await world.joined(second, "n", max_poll_records=500)
    await member.take(10)
    assert epochs_of(world) == (0, 1)
    await world.kill(second)


@pytest.mark.parametrize("elections", [0, 1])
@virtual
async def test_a_marker_at_the_end_has_the_epoch_of_its_leader(elections: int) -> None:
    """Else each start would find that the epoch of the last record ended before the marker."""
    world = watched(10)
    first = await world.start()
    await finished(world, first, 10)
    for _ in range(elections):
        world.log.log("orders").elect()
    world.log.skip("orders", 1)
    await until(lambda: world.start_offset("g", "orders") == 11, step_s=0.1)
    assert epochs_of(world) == (0, elections)
    await world.kill(first)
    second = await world.start()
    member = await world.joined(second, "n", max_poll_records=500)
    world.log.append("orders", 1)
    assert offsets(*await member.take(1)) == [11]
    assert epochs_of(world) == (0, elections)
    await world.kill(second)


@virtual
async def test_an_end_without_a_known_epoch_is_as_before() -> None:
    """A store of an older version: what nobody can see is not seen, and nothing else changes."""
    world = watched(100)
    first = await world.start()
    await finished(world, first, 100)
    await world.kill(first)
    (stored,) = world.database.partitions.values()
    assert stored.row.head is not None
    stored.row = replace(stored.row, head=replace(stored.row.head, end_leader_epoch=-1))
    world.log.truncate("orders", 40)
    world.log.append("orders", 70, value=b"new")
    second = await world.start()
    member = await world.joined(second, "n", max_poll_records=500)
    assert offsets(*await member.take(10)) == list(range(100, 110))
    assert epochs_of(world) == (0, 1), "from the next record on it is known"
    await world.kill(second)


@virtual
async def test_two_cuts_are_found_one_after_the_other() -> None:
    world = watched(100)
    async with running(world) as coordinator:
        member = await finished(world, coordinator, 100)
        cut(world, 60, 130)
        await is_new(world, member, 60, 130)
        cut(world, 20, 50)
        await is_new(world, member, 20, 50)
        assert epochs_of(world) == (2, 2)


@virtual
async def test_a_cut_that_is_not_stored_at_first_is_not_forgotten() -> None:
    world = watched(100)
    async with running(world) as coordinator:
        member = await finished(world, coordinator, 100)
        commit, failures = world.store.commit, 3

        def fails(batch: object) -> object:
            nonlocal failures
            if failures:
                failures -= 1
                raise StoreUnavailableError("the store is away", retry_after_ms=10)
            return commit(batch)  # type: ignore[arg-type]

        world.store.commit = fails  # type: ignore[method-assign, assignment]
        cut(world, 40, 140)
        await is_new(world, member, 40, 140)
        assert not failures
        assert epochs_of(world) == (1, 1)
        assert actor_of(coordinator, "orders").log.diverged is not None
        # The finding is about a state that is gone: a load later makes nothing of it.
        actor_of(coordinator, "orders").drop(SharecoordError("loads anew"))
        await until(lambda: actor_of(coordinator, "orders").state is ActorState.ACTIVE, step_s=0.1)
        assert world.start_offset("g", "orders") == 140
        assert epochs_of(world) == (1, 1)


# -- which log it is -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_away", [False, True])
@virtual
async def test_a_topic_made_again_is_told_by_its_id_before_its_epochs(is_away: bool) -> None:
    """Its epochs begin anew: Kafka knows none as high as the one that is shown."""
    world = watched(0)
    for _ in range(5):
        world.log.log("orders").elect()
    world.log.append("orders", 10)
    coordinator = await world.start()
    member = await finished(world, coordinator, 10)
    assert epochs_of(world) == (0, 5)
    if is_away:
        await world.kill(coordinator)
    world.make_again(30)
    if is_away:
        coordinator = await world.start()
        member = await world.joined(coordinator, "n", max_poll_records=500)
    deliveries = await member.take(30, timeout_s=120)
    assert offsets(*deliveries) == list(range(30))
    former, present = sorted(world.store.list_partitions("g"), key=lambda row: not row.closed)
    assert (former.closed, former.state_epoch, former.stopped_reason) == (True, 0, "")
    assert present.key.topic_id == world.log.topic_id("orders")
    await world.kill(coordinator)


class NamelessLog(FakeLog):
    """A cluster without topic ids."""

    def create(self, topic: str, partitions: int = 1) -> None:
        super().create(topic, partitions)
        self._topics[topic] = "", self._topics[topic][1]


def is_another(log: FakeLog) -> None:
    """A log of the same name with other epochs, as from a backup."""
    log.log("orders").epochs = [(1, 0)]


def is_cut(log: FakeLog) -> None:
    log.truncate("orders", 40)
    log.append("orders", 100)


@pytest.mark.parametrize(
    ("kind", "change"), [(FakeLog, is_another), (NamelessLog, is_another), (NamelessLog, is_cut)]
)
@virtual
async def test_a_log_of_which_nothing_tells_what_it_is_stops(
    kind: type[FakeLog], change: Callable[[FakeLog], None]
) -> None:
    world = _compared(World(kind()))
    world.log.create("orders")
    for _ in range(3):
        world.log.log("orders").elect()
    world.log.append("orders", 100)
    first = await world.start()
    await finished(world, first, 100)
    change(world.log)
    await world.kill(first)
    calls = world.caller.calls
    second = await world.start()
    await world.joined(second, "n")
    await until(lambda: row_of(world).stopped_reason == LOG_REGRESSED, step_s=0.1)
    assert world.caller.calls < calls + 15 * UNKNOWN_EPOCHS_MAX
    assert epochs_of(world) == (0, 3)
    await world.kill(second)


# -- what hangs on records that are cut ------------------------------------------------------------


@virtual
async def test_letters_of_lost_records_arrive_with_the_payload_that_was_read() -> None:
    """A letter takes nothing from the records that stand there now; those have their own."""
    world = _compared(letters_world(10))
    async with world.one_delivery(10, max_poll_records=100) as (coordinator, member, old):
        world.dead_letters.down = True
        await member.acknowledge(old, REJECT, last=4)
        actor = actor_of(coordinator, "orders")
        actor.cache.clear()
        for reading in world.log.readings:
            reading.wanted = False  # as one that is full
        world.log.truncate("orders", 2)
        world.log.append("orders", 10, value=b"new")
        await member.acknowledge(old, REJECT, first=5)
        world.ledger.truncated(old.key, 2)
        await until(lambda: epochs_of(world)[0] == 1, step_s=0.01)
        world.dead_letters.down = False
        await until(lambda: len(arrived(world)) == 10, step_s=0.1)
        found = {
            n: (text(letter, PAYLOAD_HEADER), letter.value)
            for n, letter in zip(offsets_of(arrived(world)), arrived(world), strict=True)
        }
        whole = {n: ("whole", b"%d" % n) for n in range(5)}
        assert found == whole | dict.fromkeys(range(5, 10), ("gone", None))
        deliveries = await member.take(10)
        assert offsets(*deliveries) == list(range(2, 12))
        for each in deliveries:
            await member.settle(each, REJECT)
        await until(lambda: len(arrived(world)) == 20, step_s=0.1)
        assert {letter.value for letter in arrived(world)[10:]} == {b"new"}
        assert len({text(letter, ID_HEADER) for letter in arrived(world)}) == 20
        await until(lambda: world.start_offset("g", "orders") == 12, step_s=0.01)


@virtual
async def test_a_letter_that_lacks_its_payload_takes_none_from_where_the_log_was_cut() -> None:
    world = _compared(letters_world(10))
    async with world.one_delivery(10, max_poll_records=100) as (coordinator, member, old):
        actor_of(coordinator, "orders").cache.clear()
        world.log.set_down(down=True)
        await member.acknowledge(old, REJECT, first=5)
        assert not (await member.acknowledge(old, last=4)).exceptions
        await asyncio.sleep(1)
        world.log.truncate("orders", 3)
        world.log.append("orders", 9, value=b"new")
        world.ledger.truncated(old.key, 3)
        world.log.set_down(down=False)
        deliveries = await member.take(9)
        assert offsets(*deliveries) == list(range(3, 12))
        await until(lambda: len(arrived(world)) == 5, step_s=0.1)
        assert offsets_of(arrived(world)) == [5, 6, 7, 8, 9]
        assert {text(letter, PAYLOAD_HEADER) for letter in arrived(world)} == {"gone"}
        await accept(member, *deliveries)


@virtual
async def test_checkpoints_and_kept_payloads_go_with_their_records() -> None:
    world = watched(10, retry_keep_payload="true")
    async with world.one_delivery(10, max_poll_records=100) as (_, member, old):
        key = old.key
        (held,) = old.ranges
        said = [
            AcknowledgedRange(n, n, AcknowledgeType.RENEW, held.lock_token, checkpoint=b"half")
            for n in (2, 7, 8)
        ] + [AcknowledgedRange(9, 9, RELEASE, held.lock_token, 3_000)]
        for each in said:
            await member.send([(key.topic, key.topic_id, key.partition, [each])])
        (stored,) = world.database.partitions.values()
        await until(lambda: sorted(stored.entries[KEPT_PAYLOAD]) == [9], step_s=0.01)
        cut(world, 5, 15)
        deliveries = await member.take(10)
        assert offsets(*deliveries) == list(range(5, 15))
        assert {value for each in deliveries for value in values_of(each)} == {b"new"}
        assert not any(each.checkpoints for each in deliveries)
        assert not stored.entries[KEPT_PAYLOAD]
        await accept(member, *deliveries)
        assert not (await member.acknowledge(old, last=4)).exceptions


@virtual
async def test_a_key_whose_chain_was_cut_goes_on_with_what_was_written_anew() -> None:
    world = watched(0, ordering="key")
    world.log.append("orders", 10, key=b"k")
    async with world.one_delivery(10, max_poll_records=100) as (coordinator, member, old):
        world.log.truncate("orders", 4)
        world.log.append("orders", 4, key=b"k", value=b"new")
        world.log.append("orders", 2, key=b"other", value=b"new")
        world.ledger.truncated(old.key, 4)
        other = await world.joined(coordinator, "n", max_poll_records=100)
        (free,) = await other.take(2)
        assert offsets(free) == [8, 9], "the key is out"
        chain = await member.take(3)
        assert offsets(*chain) == [4, 5, 6]
        assert not (await member.acknowledge(old, last=3)).exceptions
        await accept(member, *chain)
        await accept(other, free)
        other.leave()
        rest = await member.take(1)
        assert offsets(*rest) == [7]
        await accept(member, *rest)
        await until(lambda: world.start_offset("g", "orders") == 10, step_s=0.01)


@virtual
async def test_of_a_resting_share_partition_it_is_found_when_a_member_comes() -> None:
    world = watched(100)
    async with running(world) as coordinator:
        member = await finished(world, coordinator, 100)
        actor = actor_of(coordinator, "orders")
        member.leave()
        await until(lambda: actor.log.resting, step_s=1)
        cut(world, 30, 200)
        await asyncio.sleep(60)
        assert epochs_of(world)[0] == 0
        await member.join(coordinator, "g", TOPICS, max_poll_records=2_000)
        await is_new(world, member, 30, 200)
