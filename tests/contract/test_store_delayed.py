"""Delayed ranges that stay in the store: what a claim leaves, pages of it, a log that is cut."""

from __future__ import annotations

import random

import pytest

from sharecoord.core.changes import (
    DelayedPlace,
    InFlightRow,
    LoadedPartition,
    PartitionClaim,
)
from tests.contract.store_worlds import (
    AnyStore,
    World,
    change_of,
    claimed,
    commit,
    head_of,
    key_of,
    ranges,
    row_of,
)

BEGIN = DelayedPlace(0, -1)


def delayed(first: int, at_ms: int, *, size: int = 1) -> InFlightRow:
    """Records that wait for their time."""
    return row_of(first, first + size - 1)._replace(
        state=0, member_id=None, deadline_ms=0, granted_ms=0, available_at_ms=at_ms
    )


def claim_again(store: AnyStore, loaded: LoadedPartition, most: int | None) -> LoadedPartition:
    """The next claim of the same coordinator."""
    (again,) = store.claim_partitions([PartitionClaim(loaded.row.partition_id, 2, None, most)])
    assert again is not None
    return again


def place_of(row: InFlightRow) -> DelayedPlace:
    return DelayedPlace(row.available_at_ms, row.first_offset)


@pytest.fixture
def rows() -> list[InFlightRow]:
    """Acquired, due and delayed ranges in turn; many are due at the same time."""
    drawn = random.Random(5)
    found = []
    for n in range(60):
        first = n * 10
        if n % 3 == 0:
            found.append(row_of(first, first + 4))
        else:
            at_ms = drawn.choice([0, 5_000, 5_000, 6_000, 7_000 + n])
            found.append(delayed(first, at_ms, size=1 + n % 4))
    return found


def test_a_claim_leaves_what_is_due_last(world: World, rows: list[InFlightRow]) -> None:
    store = world.open()
    loaded = claimed(store)
    commit(store, change_of(loaded, head=head_of(0, 600), upserted=rows))
    waiting = sorted((row for row in rows if row.available_at_ms), key=place_of)
    for most in (1, 7, len(waiting) - 1):
        again = claim_again(store, loaded, most)
        left = waiting[most:]
        assert [*again.in_flight] == [row for row in rows if row not in left]
        offsets = {n for row in left for n in range(row.first_offset, row.last_offset + 1)}
        found = again.parked.offsets.spans(0, 600)
        assert {n for first, last in found for n in range(first, last + 1)} == offsets
        assert again.parked.after == place_of(waiting[most - 1])
    for all_of_them in (None, len(waiting), 1_000):
        again = claim_again(store, loaded, all_of_them)
        assert [*again.in_flight] == rows
        assert again.parked.offsets.records == 0


def test_share_partitions_of_one_claim_are_cut_each_for_itself(world: World) -> None:
    store = world.open()
    one, other, third = (claimed(store, key_of(number)) for number in range(3))
    many = [delayed(n, 1_000 + n) for n in range(20)]
    commit(store, *(change_of(each, head=head_of(0, 20), upserted=many) for each in (one, other)))
    ids = [each.row.partition_id for each in (one, other, third)]
    found = store.claim_partitions(
        [PartitionClaim(ids[0], 2, None, 5), PartitionClaim(ids[1], 2), PartitionClaim(ids[2], 2)]
    )
    assert [len(each.in_flight) for each in found if each] == [5, 20, 0]
    assert [each.parked.offsets.records for each in found if each] == [15, 0, 0]


def test_pages_come_in_the_order_in_which_they_are_due(
    world: World, rows: list[InFlightRow]
) -> None:
    store = world.open()
    loaded = claimed(store)
    commit(store, change_of(loaded, head=head_of(0, 600), upserted=rows))
    waiting = sorted((row for row in rows if row.available_at_ms), key=place_of)
    id_ = loaded.row.partition_id
    assert [*store.read_delayed(id_, after=BEGIN, max_rows=1_000)] == waiting
    for size in (1, 4):
        after, seen = BEGIN, list[InFlightRow]()
        while page := store.read_delayed(id_, after=after, max_rows=size):
            assert len(page) <= size
            seen += page
            after = place_of(seen[-1])
        assert seen == waiting
    assert not store.read_delayed(id_ + 1_000, after=BEGIN, max_rows=10)


def test_a_cut_takes_offsets_out_of_every_row_and_what_is_new_stays(world: World) -> None:
    store = world.open()
    loaded, other = claimed(store), claimed(store, key_of(1))
    old = [delayed(0, 9_000, size=5), delayed(10, 9_000, size=10), delayed(30, 9_000)]
    commit(store, *(change_of(each, upserted=old) for each in (loaded, other)))
    change = change_of(loaded, head=head_of(0, 20), upserted=[row_of(15, 19)])
    change.truncated_at = 13
    for _ in range(2):
        assert commit(store, change) == frozenset()
        assert ranges(store, loaded.row.partition_id) == [
            old[0],
            old[1]._replace(last_offset=12),
            row_of(15, 19),
        ]
    assert ranges(store, other.row.partition_id) == old
