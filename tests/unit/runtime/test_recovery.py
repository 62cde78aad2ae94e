"""What a claim loads: times of this process, and the time that workers get to come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.changes import (
    InFlight,
    InFlightRow,
    LoadedPartition,
    PartitionHead,
    PartitionKey,
    PartitionRow,
)
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import RecordState
from sharecoord.core.window.window import Edit
from sharecoord.runtime.partition.recovery import commit_of, ranges_of

from .worlds import At

GRACE_MS = 10_000


def acquired(deadline_ms: int, granted_ms: int) -> InFlightRow:
    return InFlightRow(
        0, 9, int(RecordState.ACQUIRED), 1, 1, "m", 1 << 32, deadline_ms, granted_ms, 0, 0, 10,
        None, None,
    )  # fmt: skip


def recovered(row: InFlightRow, at_ms: int, *, touched: bool) -> InFlightRow:
    """The row as it stands after a recovery, and after a commit when its range was touched."""
    head = PartitionHead(0, 10, -1, 0, 0)
    key = PartitionKey("g", "t", "", 0)
    place = PartitionRow(1, key, head, "c", owner_epoch=1, incarnation=1, state_epoch=0)
    loaded = LoadedPartition(place, InFlight.of([row]), (), at_ms)
    clock = At(at_ms)
    partition = SharePartition(head, owner_epoch=1, settings=PartitionSettings())
    partition.load(*ranges_of(loaded.in_flight, clock, lock_grace_ms=GRACE_MS))
    if not touched:
        return row
    (first, last, value) = next(iter(partition.window.ranges))
    partition.window.apply([Edit(first, last, value._replace(hand_outs=value.hand_outs + 1))])
    (stored,) = commit_of(partition, 1, 0, clock).upserted
    return stored


@pytest.mark.parametrize(
    ("at_ms", "end_ms"), [(0, 30_000), (25_000, 35_000), (45_000, 55_000), (59_000, 60_000)]
)
def test_workers_get_time_to_come_back_but_no_more_than_one_duration(
    at_ms: int, end_ms: int
) -> None:
    stored = recovered(acquired(30_000, 30_000), at_ms, touched=True)
    assert (stored.deadline_ms, stored.deadline_ms + stored.granted_ms) == (end_ms, 60_000)


@given(
    st.integers(1_000, 100_000),
    st.lists(st.tuples(st.integers(0, 150_000), st.booleans()), max_size=6),
)
def test_all_extensions_together_are_at_most_one_duration(
    duration_ms: int, recoveries: list[tuple[int, bool]]
) -> None:
    row = acquired(duration_ms, duration_ms)
    for at_ms, touched in sorted(recoveries):
        before = row
        row = recovered(row, at_ms, touched=touched)
        assert before.deadline_ms <= row.deadline_ms <= 2 * duration_ms
        assert row.granted_ms >= 0


def test_ranges_with_the_same_hashes_have_keys_of_their_own() -> None:
    key = PartitionKey("g", "t", "", 0)
    head = PartitionHead(0, 2, -1, 0, 0)
    place = PartitionRow(1, key, head, "c", owner_epoch=1, incarnation=1, state_epoch=0)
    rows = [acquired(30_000, 30_000)._replace(first_offset=at, last_offset=at) for at in (0, 1)]
    for hashes in (b"\0" * 8, None):
        stored = InFlight.of(row._replace(key_hashes=hashes) for row in rows)
        assert stored.states[0] is stored.states[1]
        loaded = LoadedPartition(place, stored, (), 0)
        _, _, found = ranges_of(loaded.in_flight, At(0), lock_grace_ms=GRACE_MS)
        if hashes is None:
            assert found[0] is found[1]
        else:
            assert [value.keys and value.keys.base_offset for value in found] == [0, 1]
