"""Share-partitions over raw batches: what must be opened, and what if that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from sharecoord.core.delivery import Delivery
from sharecoord.core.dispatch.schedule import DELIVER_AT_HEADER
from sharecoord.core.records import RecordChunk
from sharecoord.errors import UnreadableRecordsError
from sharecoord.ingest.batch_chunk import Source
from sharecoord.ingest.log_bytes import LogBytes
from sharecoord.ingest.open_batches import OpenBatches
from sharecoord.runtime.partition.payloads import OPEN_AGAIN_S
from sharecoord.testing import fake_log
from sharecoord.testing.fake_log import FakeRecord
from sharecoord.testing.harness import STORE_EPOCH_MS, _Stream
from sharecoord.testing.virtual_time import virtual
from tests.raw_batches import Rec, batch
from tests.unit.runtime.worlds import accept, counts, now_s, offsets, world_with

BATCH_RECORDS = 4


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Logs give compressed raw batches; those that begin at these offsets can not be opened."""
    found: set[int] = set()
    opened = OpenBatches()

    def encoded(records: Sequence[FakeRecord]) -> bytes:
        recs = [Rec(r.offset, r.value, r.key, r.headers, r.timestamp_ms) for r in records]
        made = bytearray(batch(recs, codec=3))
        if recs[0].offset in found:
            made[61:65] = b"\0\0\0\0"
        return bytes(made)

    def build(records: Sequence[FakeRecord], covers_from: int) -> RecordChunk:
        starts = range(0, len(records), BATCH_RECORDS)
        data = b"".join(encoded(records[i : i + BATCH_RECORDS]) for i in starts)
        log = LogBytes(Source(("orders", 0), opened), covers_from, committed=True, checks_crc=False)
        (chunk,), error = log.take(memoryview(data), [])
        assert error is None
        return chunk

    monkeypatch.setattr(fake_log, "build_chunk", build)
    monkeypatch.setattr(fake_log, "CHUNK_RECORDS_MAX", BATCH_RECORDS)
    return found


@virtual
async def test_scheduled_records_in_compressed_batches_wait(damaged: set[int]) -> None:
    world = world_with(2)
    at_ms = str(STORE_EPOCH_MS + 20_000).encode()
    world.log.append("orders", 1, headers=[(DELIVER_AT_HEADER, at_ms)])
    world.log.append("orders", 3)
    async with world.one_member(max_poll_records=10) as (_, member):
        now = await member.take(5)
        assert offsets(*now) == [0, 1, 3, 4, 5]
        await accept(member, *now)
        (last,) = await member.take(1)
        assert offsets(last) == [2]
        assert now_s() >= 19.9


@virtual
async def test_a_group_may_do_without_scheduled_delivery(damaged: set[int]) -> None:
    world = world_with(0, scheduled_delivery="false")
    at_ms = str(STORE_EPOCH_MS + 20_000).encode()
    world.log.append("orders", 2, headers=[(DELIVER_AT_HEADER, at_ms)])
    async with world.one_member(max_poll_records=10) as (_, member):
        assert offsets(*await member.take(2)) == [0, 1]
        assert now_s() < 1


@virtual
async def test_new_records_that_can_not_be_opened_are_waited_for_and_none_is_left_out(
    damaged: set[int],
) -> None:
    damaged.add(4)
    world = world_with(12)
    async with world.one_member(max_poll_records=20) as (coordinator, member):
        before = await member.take(4)
        assert offsets(*before) == [0, 1, 2, 3]
        (again,) = before
        await member.settle(again)
        await asyncio.sleep(3 * OPEN_AGAIN_S)
        assert world.start_offset("g", "orders") == 4
        damaged.clear()
        for actor in coordinator.groups["g"].partitions.values():
            actor.drop(UnreadableRecordsError("read anew"))
        after = await member.take(8)
        assert offsets(*after) == list(range(4, 12))
        await accept(member, *after)


@virtual
async def test_a_delivery_that_can_not_be_opened_goes_back_unseen_and_its_member_stays(
    damaged: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_with(4)
    fails = 2
    deliver = _Stream.deliver

    def failing(self: _Stream, delivery: Delivery, now_ms: int) -> None:
        nonlocal fails
        if fails:
            fails -= 1
            raise UnreadableRecordsError.of("orders", 0, 0, "damaged")
        deliver(self, delivery, now_ms)

    monkeypatch.setattr(_Stream, "deliver", failing)
    async with world.one_member(max_poll_records=10) as (_, member):
        found = await member.take(4)
        assert (offsets(*found), counts(*found)) == ([0, 1, 2, 3], {1})
        await accept(member, *found)
    assert fails == 0
