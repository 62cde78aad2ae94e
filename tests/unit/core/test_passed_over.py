"""Offsets that are settled before they are read: kept few, cut with the log, gaps to a reader."""

from __future__ import annotations

import pytest

from sharecoord.core.partition.passed_over import PASSED_OVER_MAX, added, cut, without
from sharecoord.core.records import ColumnChunk, RecordChunk
from sharecoord.errors import LimitExceededError


def test_ranges_are_joined_and_forgotten_behind_the_window() -> None:
    ranges = added((), 10, 12, end_offset=5)
    ranges = added(ranges, 20, 20, end_offset=5)
    assert ranges == ((10, 12), (20, 20))
    assert added(ranges, 13, 19, end_offset=5) == ((10, 20),)
    assert added(ranges, 11, 11, end_offset=5) == ranges
    assert added(ranges, 1, 30, end_offset=0) == ((1, 30),)
    assert added(ranges, 40, 41, end_offset=13) == ((20, 20), (40, 41))


def test_so_many_and_no_more() -> None:
    ranges = tuple((at, at) for at in range(0, 2 * PASSED_OVER_MAX, 2))
    assert len(added(ranges, 1, 1, end_offset=0)) == PASSED_OVER_MAX - 1
    with pytest.raises(LimitExceededError, match=r"1001 ranges .* 1000 is the most"):
        added(ranges, 5_000, 5_000, end_offset=0)


def test_a_log_that_is_cut_cuts_them() -> None:
    assert cut(((10, 12), (20, 25), (30, 31)), 22) == ((10, 12), (20, 21))
    assert cut(((10, 12),), 10) == ()
    assert cut(((10, 12),), 13) == ((10, 12),)


def chunk_of(offsets: list[int] | None, first: int, last: int) -> RecordChunk:
    found = offsets or [*range(first, last + 1)]
    return ColumnChunk(
        covers_from=first - 1,
        first=first,
        last=last,
        offsets=offsets,
        timestamps=[1_000 + n for n in found],
        timestamp_type=1,
        keys=[b"k%d" % n for n in found],
        values=[b"v%d" % n for n in found],
        headers={at: [("h", b"%d" % n)] for at, n in enumerate(found) if n % 2},
        size_bytes=100 * len(found),
        due_times={at: n for at, n in enumerate(found) if n % 3 == 0},
    )


@pytest.mark.parametrize("offsets", [None, [10, 11, 13, 14, 15, 18]])
@pytest.mark.parametrize("ranges", [((11, 13),), ((10, 10), (18, 18)), ((5, 10), (17, 40))])
def test_a_chunk_without_them_has_all_else_of_each_record(
    offsets: list[int] | None, ranges: tuple[tuple[int, int], ...]
) -> None:
    chunk = chunk_of(offsets, 10, 18)
    hashes = chunk.key_hashes()
    kept = without(chunk, ranges)
    assert kept is not None
    before = offsets or [*range(10, 19)]
    left = [n for n in before if not any(first <= n <= last for first, last in ranges)]
    assert (kept.offsets, kept.first, kept.last) == (left, left[0], left[-1])
    assert kept.covers_from == chunk.covers_from
    assert kept.timestamps == [1_000 + n for n in left]
    assert kept.keys == [b"k%d" % n for n in left]
    assert kept.values == [b"v%d" % n for n in left]
    assert kept.headers == {at: [("h", b"%d" % n)] for at, n in enumerate(left) if n % 2}
    assert kept.due_times == {at: n for at, n in enumerate(left) if n % 3 == 0}
    assert kept.size_bytes == 100 * len(left)
    wanted = b"".join(hashes[8 * at : 8 * at + 8] for at, n in enumerate(before) if n in left)
    assert kept.key_hashes() == wanted
    # The former one is as it was: other readers may have it.
    assert (chunk.count, len(chunk.key_hashes())) == (len(before), 8 * len(before))


def test_a_chunk_with_none_of_them_is_the_same_and_one_with_nothing_else_is_none() -> None:
    chunk = chunk_of(None, 10, 18)
    assert without(chunk, ((5, 9), (19, 30))) is chunk
    assert without(chunk, ((0, 30),)) is None
    assert without(chunk_of([10, 18], 10, 18), ((10, 10), (18, 18))) is None
