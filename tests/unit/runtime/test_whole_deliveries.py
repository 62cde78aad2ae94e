"""Which form deliveries have, by what their members open, the group's settings and the records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sharecoord.api.grpc.unary import UnaryCalls
from sharecoord.api.grpc.validation import join_command
from sharecoord.core.delivery import Delivery
from sharecoord.core.dispatch.schedule import DELIVER_AT_HEADER
from sharecoord.core.records import RecordChunk
from sharecoord.core.states import AcknowledgeType
from sharecoord.ingest.batch_chunk import Source
from sharecoord.ingest.log_bytes import LogBytes
from sharecoord.ingest.open_batches import OpenBatches
from sharecoord.runtime.fleet.gateway import Gateway
from sharecoord.runtime.partition import whole_batches
from sharecoord.runtime.partition.record_cache import RecordCache
from sharecoord.runtime.partition.whole_batches import up_to_a_batch
from sharecoord.runtime.status.status import StatusBoard
from sharecoord.security.principals import Caller
from sharecoord.testing import fake_log
from sharecoord.testing.fake_log import FakeRecord
from sharecoord.testing.harness import STORE_EPOCH_MS
from sharecoord.testing.ledger import Ledger
from sharecoord.testing.virtual_time import virtual
from sharecoord.wire import share_service_pb2 as service
from tests.raw_batches import Rec, batch
from tests.unit.runtime.fleets import joined_fleet
from tests.unit.runtime.test_lanes import LANE, lane_world, selection
from tests.unit.runtime.worlds import accept, counts, looked_at, now_s, offsets, world_with
from tests.world import running

BATCH_RECORDS = 10
ALL = frozenset(range(5))


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Logs give compressed raw batches; returns the base offsets of those that were opened."""
    found: list[int] = []

    class Noting(OpenBatches):
        def records(self, key: tuple[int, int], codec: int, content: memoryview) -> bytes:
            found.append(key[1])
            return super().records(key, codec, content)

    shared = Noting()

    def build(records: Sequence[FakeRecord], covers_from: int) -> RecordChunk:
        recs = [Rec(r.offset, r.value, r.key, r.headers, r.timestamp_ms) for r in records]
        log = LogBytes(Source(("orders", 0), shared), covers_from, committed=True)
        (chunk,), error = log.take(memoryview(batch(recs, codec=3)), [])
        assert error is None
        return chunk

    monkeypatch.setattr(whole_batches, "BYTES_MIN", 0)
    monkeypatch.setattr(fake_log, "build_chunk", build)
    monkeypatch.setattr(fake_log, "CHUNK_RECORDS_MAX", BATCH_RECORDS)
    return found


def forms(*deliveries: Delivery) -> list[int]:
    """Whole batches of each delivery; 0 = columns."""
    return [len(each.whole) for each in deliveries]


@virtual
async def test_a_member_that_opens_gets_batches_that_nobody_has_opened(
    opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The ledger of the tests looks at each record.
    monkeypatch.setattr(Ledger, "delivered", lambda *_: None)
    world = world_with(40, scheduled_delivery="false")
    async with world.one_member(max_poll_records=40, opens=ALL) as (_, member):
        found = await member.take(40)
        assert offsets(*found) == list(range(40))
        assert sum(forms(*found)) == 4
        for each in found:
            assert each.size_bytes == sum(len(one.content) for one in each.whole)
    assert opened == []


@virtual
async def test_delivered_records_are_counted_by_their_form() -> None:
    world = world_with(10)
    async with world.one_member(max_poll_records=10, opens=ALL) as (coordinator, member):
        (first,) = await member.take(10)
        await member.settle(first, AcknowledgeType.RELEASE)
        assert set(forms(*await member.take(10))) == {0}
        board = StatusBoard()
        board.update(coordinator)
        assert board.latest is not None
        (place,) = board.latest.partitions
        assert (place.delivered, place.delivered_whole) == (20, 10)


@virtual
async def test_by_default_members_get_columns() -> None:
    world = world_with(40)
    async with world.one_member(max_poll_records=40) as (_, member):
        assert set(forms(*await member.take(40))) == {0}


@virtual
async def test_members_of_both_kinds_share_a_group() -> None:
    world = world_with(200)
    async with world.one_member("opens", max_poll_records=20, opens=ALL) as (coordinator, one):
        other = await world.joined(coordinator, "columns", max_poll_records=20)
        done: list[int] = []
        while len(done) < 200:
            for member in (one, other):
                while member.deliveries:
                    delivery = member.deliveries.pop(0)
                    assert not (member is other and delivery.whole)
                    done += offsets(delivery)
                    await accept(member, delivery)
            await asyncio.sleep(0.01)
        assert sorted(done) == list(range(200))


@virtual
async def test_deliveries_end_with_batches_and_what_comes_again_comes_as_columns() -> None:
    world = world_with(10)
    async with world.one_member(max_poll_records=15, opens=ALL) as (_, member):
        (first,) = await member.take(10)
        assert (offsets(first), forms(first)) == (list(range(10)), [1])
        await member.settle(first, AcknowledgeType.RELEASE)
        again = await member.take(10)
        assert counts(*again) == {2}
        assert set(forms(*again)) == {0}


@pytest.mark.parametrize(("records_per_ms", "waits"), [(0.5, True), (0.4, False)])
@virtual
async def test_a_member_waits_for_room_for_a_batch_if_it_works_that_off_in_20_ms(
    records_per_ms: float, waits: bool
) -> None:
    world = world_with(0)
    async with world.one_member(max_poll_records=10, opens=ALL) as (coordinator, member):
        (session,) = coordinator.groups["g"].sessions.values()
        session.pace.records_per_ms = records_per_ms
        world.log.append("orders", 200)
        first, *_ = await member.take(int(records_per_ms * 200))
        assert forms(first) == [1]
        await member.acknowledge(first, last=4)
        await asyncio.sleep(0.02)
        assert (member.deliveries == []) is waits
        await member.acknowledge(first, first=5)
        assert len(await member.take(10)) == (1 if waits else 2)


@virtual
async def test_slow_members_that_open_batches_are_not_looked_at_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next batch is larger than the room of each."""
    world = world_with(0, scheduled_delivery="false")
    async with running(world) as coordinator:
        members = [
            await world.joined(coordinator, f"m{i}", max_poll_records=20, opens=ALL)
            for i in range(50)
        ]
        for session in coordinator.groups["g"].sessions.values():
            session.pace.records_per_ms = 0.1
        world.log.append("orders", 2_000)
        await asyncio.sleep(1)
        firsts = [member.deliveries[0] for member in members]
        looks = looked_at(monkeypatch)
        for member, first in zip(members, firsts, strict=True):
            offset = first.ranges[0].first
            await member.acknowledge(first, first=offset, last=offset)
        assert 50 < len(looks) < 50 * 30


@virtual
async def test_a_member_that_has_nothing_else_to_do_does_not_wait() -> None:
    world = world_with(40)
    async with world.one_member(max_poll_records=40, credit=15, opens=ALL) as (_, member):
        found = await member.take(15)
        assert offsets(*found) == list(range(15))
        assert now_s() < 0.5


@virtual
async def test_what_must_be_shared_is_not_waited_for() -> None:
    world = world_with(0)
    async with world.one_member("a", max_poll_records=100, opens=ALL) as (coordinator, one):
        other = await world.joined(coordinator, "b", max_poll_records=100, opens=ALL)
        world.log.append("orders", 40)
        await asyncio.sleep(1)
        first = [each for member in (one, other) for each in member.deliveries]
        assert sorted(offsets(*first)) == list(range(40))
        # Both work for long; what is new is less than a batch for each.
        world.log.append("orders", 10)
        await asyncio.sleep(1)
        now = [each for member in (one, other) for each in member.deliveries]
        assert sorted(offsets(*now)) == list(range(50))


@virtual
async def test_in_a_group_with_order_by_key_all_comes_as_columns() -> None:
    world = world_with(20, ordering="key")
    async with world.one_member(max_poll_records=20, opens=ALL) as (_, member):
        assert set(forms(*await member.take(20))) == {0}


@virtual
async def test_redriven_letters_come_as_columns_and_wait_for_no_batch() -> None:
    world = lane_world(20, scheduled_delivery="false")
    async with world.one_member(max_poll_records=15, opens=ALL) as (coordinator, member):
        await coordinator.lanes.redrive("g", [selection(world, (0, 19))], run_id="r")
        assert set(forms(*await member.take(15))) == {0}
        lane = coordinator.groups["g"].partitions[(LANE, 0)]
        assert not lane.opens(member.joined_session), "nothing is waited for"


@virtual
async def test_small_batches_that_were_opened_for_a_schedule_come_as_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole_batches, "BYTES_MIN", 1_000)
    world = world_with(20)
    async with world.one_member(max_poll_records=20, opens=ALL) as (_, member):
        assert set(forms(*await member.take(20))) == {0}


@virtual
async def test_scheduled_records_are_left_out_of_whole_batches_until_their_time() -> None:
    world = world_with(0)
    at_ms = str(STORE_EPOCH_MS + 20_000).encode()
    world.log.append("orders", 2)
    world.log.append("orders", 1, headers=[(DELIVER_AT_HEADER, at_ms)])
    world.log.append("orders", 7)
    async with world.one_member(max_poll_records=20, opens=ALL) as (_, member):
        now = await member.take(9)
        assert offsets(*now) == [0, 1, *range(3, 10)]
        assert sum(forms(*now))
        await accept(member, *now)
        (last,) = await member.take(1)
        assert (offsets(last), forms(last)) == ([2], [0])
        assert now_s() >= 19.9


@virtual
async def test_an_owner_knows_what_the_member_of_a_gateway_opens() -> None:
    world = world_with(20, partitions=2)
    async with joined_fleet(world, "a", "b", max_poll_records=40, opens=ALL) as (fleet, member):
        found = await member.take(40)
        assert {each.key.partition for each in found} == {0, 1}
        assert sum(map(len, fleet.owned().values())) == 2
        assert sum(forms(*found)) == 4


@virtual
async def test_an_owner_that_is_told_nothing_of_batches_sends_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a gateway of an older release; nor does an owner of one hear what it is told."""
    member_up = Gateway._member_up
    monkeypatch.setattr(
        Gateway, "_member_up", lambda *told: replace(member_up(*told), opens=frozenset())
    )
    world = world_with(10, partitions=8)
    async with joined_fleet(world, "a", "b", max_poll_records=80, opens=ALL) as (fleet, member):
        found = await member.take(80)
        owned = fleet.owned()
        assert {each.key.partition for each in found if each.whole} == owned["a"] != set()
        assert {each.key.partition for each in found if not each.whole} == owned["b"] != set()


@virtual
async def test_a_fetch_without_a_stream_gives_them_too() -> None:
    world = world_with(20, scheduled_delivery="false")
    async with running(world) as coordinator:
        calls = UnaryCalls(coordinator)
        join = service.Join(
            group_id="g", member_id="m", topics=["orders"], protocol_version=1,
            opens=[0, 3, 77],  # type: ignore[list-item]
        )  # fmt: skip
        _, command = join_command(join, Caller())
        assert command.opens == {0, 3}
        joined = (await calls.join(service.JoinRequest(join=join), Caller())).joined
        answer = await calls.fetch(
            service.FetchRequest(
                group_id="g", member_id="m", member_epoch=joined.member_epoch, request_id=1,
                max_records=20, max_wait_ms=1_000,
            ),
            Caller(),
        )  # fmt: skip
        assert sum(len(each.whole_batches) for each in answer.batches) == 2


# -- where a delivery ends ------------------------------------------------------------------------


@pytest.fixture
def cache() -> RecordCache:
    """Batches of ten records at the offsets from 0 to 29."""
    made = RecordCache(_Budget())  # type: ignore[arg-type]
    for first in range(0, 30, 10):
        recs = [Rec(offset, b"v") for offset in range(first, first + 10)]
        log = LogBytes(Source(("orders", 0), OpenBatches()), first, committed=True)
        (chunk,), _ = log.take(memoryview(batch(recs, codec=3)), [])
        made.add(chunk)
    return made


class _Budget:
    def grew(self, _: int) -> None: ...


@pytest.mark.parametrize(
    ("first", "records", "held", "found"),
    [
        (0, 10, 0, 10),
        (0, 15, 0, 10),
        (0, 25, 0, 20),
        (5, 10, 0, 5),
        (5, 3, 0, 3),
        (0, 4, 9, 4),
        (0, 9, 10, 0),
        (5, 4, 5, 0),
        (5, 4, 4, 4),
        (20, 50, 0, 50),
        (40, 3, 0, 3),
    ],
)
def test_deliveries_end_with_a_batch_or_wait_for_room(
    cache: RecordCache, first: int, records: int, held: int, found: Any
) -> None:
    assert up_to_a_batch(cache, first, records, held, {0, 3}, opened=False) == found


@pytest.mark.parametrize(("opens", "opened"), [({0, 3}, True), ({0, 4}, False), (set(), False)])
def test_nothing_waits_for_the_end_of_a_batch_that_comes_as_columns(
    cache: RecordCache, opens: set[int], opened: bool
) -> None:
    assert up_to_a_batch(cache, 0, 15, 0, opens, opened=opened) == 15
    assert up_to_a_batch(cache, 0, 9, 10, opens, opened=opened) == 9
