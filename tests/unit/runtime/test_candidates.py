"""One call hands out what one column batch can hold, and asks for what it can not read."""

from __future__ import annotations

import dataclasses

import pytest

from sharecoord.core.changes import PartitionHead
from sharecoord.core.limits import DELIVERY_BYTES_MAX
from sharecoord.core.offset_set import OffsetSet
from sharecoord.core.partition.share_partition import AcknowledgedRange, SharePartition
from sharecoord.core.records import RECORD_OVERHEAD_BYTES, ColumnChunk, RecordChunk, key_hash
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcknowledgeType, AcquireMode, Ordering
from sharecoord.ingest.batch_chunk import Source
from sharecoord.ingest.log_bytes import LogBytes
from sharecoord.ingest.open_batches import OpenBatches
from sharecoord.runtime.kernel.budget import GroupBudget, MemoryBudget
from sharecoord.runtime.partition.candidates import BATCH_SPAN_MAX, Candidates, candidates
from sharecoord.runtime.partition.record_cache import RecordCache, parts_without
from tests.raw_batches import Rec, batch
from tests.unit.runtime.worlds import At

FAR = BATCH_SPAN_MAX


def chunk_of(*offsets: int, covers_from: int, timestamp_type: int = 1) -> RecordChunk:
    return ColumnChunk(
        covers_from=covers_from,
        first=offsets[0],
        last=offsets[-1],
        offsets=list(offsets),
        timestamps=[0] * len(offsets),
        timestamp_type=timestamp_type,
        keys=None,
        values=[b""] * len(offsets),
        headers={},
        size_bytes=100,
    )


def made(*chunks: RecordChunk) -> tuple[SharePartition, RecordCache]:
    settings = PartitionSettings(record_locks_max=100_000)
    partition = SharePartition(PartitionHead(0, 0, -1, 0, 0), owner_epoch=1, settings=settings)
    cache = RecordCache(GroupBudget(MemoryBudget(1 << 20)))
    for chunk in chunks:
        cache.add(chunk)
    return partition, cache


def look(
    partition: SharePartition,
    cache: RecordCache,
    count: int = 100,
    *,
    whole: bool = False,
    soft: bool = False,
) -> Candidates:
    return candidates(
        partition,
        cache,
        At(0),
        member_id="m",
        max_records=count,
        lookahead=2_000,
        with_fresh=True,
        whole=whole,
        soft=soft,
    )


def acquire_and_release(partition: SharePartition, found: Candidates) -> None:
    decision = partition.decide_acquire(
        0, "m", max_records=100, mode=AcquireMode.FAIR, due=found.due, fresh=found.fresh
    )
    partition.apply(decision)
    for taken in decision.acquired:
        back = AcknowledgedRange(taken.first, taken.last, AcknowledgeType.RELEASE, taken.lock_token)
        partition.apply(partition.decide_acknowledge(0, "m", [back]))


@pytest.mark.parametrize(("second", "together"), [(FAR - 1, True), (FAR, False), (FAR + 1, False)])
def test_a_batch_spans_no_more_than_32_bits(second: int, together: bool) -> None:
    partition, cache = made(chunk_of(0, second, covers_from=0))
    found = look(partition, cache)
    assert [run.first for run in found.fresh] == [0, second][: 2 if together else 1]
    acquire_and_release(partition, found)
    if not together:
        acquire_and_release(partition, look(partition, cache, 1)._replace(due=[]))
    found = look(partition, cache)
    assert [first for first, _, _ in found.due] == [0, second][: 2 if together else 1]


def test_a_batch_has_one_type_of_timestamps() -> None:
    partition, cache = made(
        chunk_of(0, covers_from=0), chunk_of(1, 2, covers_from=1, timestamp_type=2)
    )
    found = look(partition, cache)
    assert [(run.first, run.last) for run in found.fresh] == [(0, 0)]
    acquire_and_release(partition, found)
    # What is due again does not go together with new records of the other type either.
    found = look(partition, cache)
    assert ([first for first, _, _ in found.due], found.fresh) == ([0], [])


def sized(chunk: RecordChunk, record_bytes: int) -> RecordChunk:
    """The chunk with records of this mean size."""
    assert isinstance(chunk, ColumnChunk)
    size_bytes = chunk.count * (record_bytes + RECORD_OVERHEAD_BYTES)
    return dataclasses.replace(chunk, size_bytes=size_bytes)


def test_a_batch_has_no_more_bytes_than_a_message_is_worth() -> None:
    each = DELIVERY_BYTES_MAX // 10
    chunks = [sized(chunk_of(*range(at, at + 8), covers_from=at), each) for at in range(0, 24, 8)]
    partition, cache = made(*chunks)
    found = look(partition, cache)
    assert [(run.first, run.last) for run in found.fresh] == [(0, 7), (8, 9)]
    acquire_and_release(partition, found)
    found = look(partition, cache)
    assert [(first, last) for first, last, _ in found.due] == [(0, 7), (8, 9)]
    assert not found.fresh, "the due ones fill the batch"


def test_a_batch_has_a_record_of_any_size() -> None:
    huge = sized(chunk_of(0, 1, 2, covers_from=0), 3 * DELIVERY_BYTES_MAX)
    partition, cache = made(huge)
    for offset in range(3):
        found = look(partition, cache)
        assert [(run.first, run.last) for run in found.fresh] == [(offset, offset)]
        decision = partition.decide_acquire(
            0, "m", max_records=100, mode=AcquireMode.FAIR, due=found.due, fresh=found.fresh
        )
        partition.apply(decision)


def raw_tens(records: list[Rec]) -> list[RecordChunk]:
    """Records as a broker sends them, ten to a batch."""
    tens = (batch(records[at : at + 10]) for at in range(0, len(records), 10))
    data = memoryview(b"".join(tens))
    source = Source(("t", 0), OpenBatches())
    return list(LogBytes(source, 0, committed=True).take(data, ()).chunks)


@pytest.mark.parametrize(
    ("count", "end"), [(1, 9), (9, 9), (10, 9), (11, 19), (29, 29), (30, 29), (500, 29)]
)
def test_a_soft_limit_ends_with_the_batch_that_reaches_it(count: int, end: int) -> None:
    """As `lastOffsetFromBatchWithRequestOffset` of a broker (KIP-1206)."""
    partition, cache = made(*raw_tens([Rec(n, b"x") for n in range(30)]))
    found = look(partition, cache, count, whole=True, soft=True)
    assert [(found.fresh[0].first, found.fresh[-1].last)] == [(0, end)]


def test_a_soft_limit_is_strict_where_no_batches_are_known() -> None:
    partition, cache = made(chunk_of(*range(30), covers_from=0))
    assert [(run.first, run.last) for run in look(partition, cache, 4, soft=True).fresh] == [(0, 3)]


def test_nothing_is_passed_over_behind_a_soft_limit_of_blocked_records() -> None:
    """They do not count, and yet no later records may follow those that the limit left out."""
    stopped = raw_tens([Rec(n, b"x", key=b"stopped") for n in range(30)])
    goes = raw_tens([Rec(n, b"x", key=b"goes") for n in range(30, 60)])
    partition, cache = made(*stopped, *goes)
    blocked = frozenset({int.from_bytes(key_hash(b"stopped"), "big")})
    partition.settings = PartitionSettings(ordering=Ordering.KEY, blocked_keys=blocked)
    seen: list[int] = []
    while not seen or seen[-1] < 59:
        found = look(partition, cache, 1, soft=True)
        decision = partition.decide_acquire(
            0, "m", max_records=1, mode=AcquireMode.BATCH_OPTIMIZED, due=(), fresh=found.fresh
        )
        partition.apply(decision)
        seen += [offset for run in found.fresh for offset in range(run.first, run.last + 1)]
        assert seen == list(range(len(seen)))


def test_a_raw_batch_that_stays_whole_is_not_cut() -> None:
    chunks = raw_tens([Rec(n, b"x" * (DELIVERY_BYTES_MAX // 8)) for n in range(30)])
    partition, cache = made(*chunks)
    assert [(run.first, run.last) for run in look(partition, cache).fresh] == [(0, 6)]
    found = look(partition, cache, whole=True)
    assert [(run.first, run.last) for run in found.fresh] == [(0, 9)]


def test_records_that_nobody_wants_yet_do_not_count() -> None:
    each = DELIVERY_BYTES_MAX // 10
    partition, cache = made(sized(chunk_of(*range(100), covers_from=0), each))
    found = look(partition, cache, 5)
    assert [(run.first, run.last) for run in found.fresh] == [(0, 99)]


def test_records_without_payload_are_asked_for_together() -> None:
    whole = chunk_of(*range(50), covers_from=0)
    partition, cache = made(dataclasses.replace(whole, offsets=None))
    acquire_and_release(partition, look(partition, cache))
    cache.clear()
    cache.add(chunk_of(10, 11, covers_from=10))
    found = look(partition, cache, 1)
    assert [(first, last) for first, last, _ in found.due] == [(10, 11)]
    assert found.missing == (0, 49)
    cache.add(chunk_of(0, 3, covers_from=0))
    found = look(partition, cache, 100)
    assert [(first, last) for first, last, _ in found.due] == [(0, 0), (3, 3), (10, 11)]
    assert found.gaps == [(1, 2)]
    assert found.missing == (4, 49)


def test_what_the_store_has_is_not_asked_of_the_log() -> None:
    whole = chunk_of(*range(50), covers_from=0)
    partition, cache = made(dataclasses.replace(whole, offsets=None))
    acquire_and_release(partition, look(partition, cache))
    cache.clear()
    for first, last in ((0, 4), (10, 14), (40, 49)):
        partition.kept.add(first, last)
    found = look(partition, cache)
    assert found.due == []
    assert found.missing == (5, 39)
    assert found.stored == [*range(5), *range(10, 15), *range(40, 50)]
    cache.add(dataclasses.replace(chunk_of(*range(12), covers_from=0), offsets=None))
    found = look(partition, cache)
    assert [(first, last) for first, last, _ in found.due] == [(0, 11)]
    assert (found.missing, found.stored) == ((15, 39), [*range(12, 15), *range(40, 50)])


def test_what_is_read_again_goes_on_where_the_last_read_ended() -> None:
    """Else those with high offsets waited as long as new ones with low offsets come due."""
    partition, cache = made(chunk_of(*range(0, 10_000, 100), covers_from=0))
    acquire_and_release(partition, look(partition, cache))
    cache.clear()
    spans = []
    for _ in range(7):
        missing = look(partition, cache, 1).missing
        assert missing is not None
        spans.append(missing)
        cache.reread_end = missing[1] + 1
    whole = [(first, first + 1_900) for first in range(0, 10_000, 2_000)]
    assert spans == [*whole, *whole[:2]]


def test_what_has_its_payload_does_not_wait_for_what_has_it_not() -> None:
    partition, cache = made(chunk_of(*range(0, 10_000, 100), covers_from=0))
    acquire_and_release(partition, look(partition, cache))
    cache.clear()
    cache.add(chunk_of(9_800, 9_900, covers_from=9_701))
    found = look(partition, cache, 1)
    assert [(first, last) for first, last, _ in found.due] == [(9_800, 9_800), (9_900, 9_900)]
    assert found.missing == (0, 1_900)


def test_a_chunk_of_the_log_says_nothing_of_what_is_kept() -> None:
    kept = OffsetSet()
    whole = chunk_of(0, 1, 5, 6, 9, covers_from=0)
    assert parts_without(whole, kept) == [whole]
    kept.add(1, 3)
    kept.add(6, 9)
    parts = parts_without(whole, kept)
    assert [(part.covers_from, part.last, part.runs(0)) for part in parts] == [
        (0, 0, [(0, 0)]),
        (4, 5, [(5, 5)]),
    ]
