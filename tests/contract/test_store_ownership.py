"""Opening a store, leases, and who may own a share-partition."""

from __future__ import annotations

import pytest

from sharecoord.core.changes import PartitionClaim, PartitionRelease, PartitionStart
from sharecoord.errors import (
    InternalError,
    StoreClusterMismatchError,
    StoreInUseError,
    StoreOutcomeUnknownError,
)
from tests.contract.store_worlds import (
    World,
    change_of,
    claim_partition,
    claimed,
    commit,
    head_of,
    initialize_partition,
    key_of,
    letter_of,
    open_partition,
    ranges,
    row_of,
)

# -- open and close -------------------------------------------------------------------------------


def test_what_was_committed_is_there_after_reopening(world: World) -> None:
    store = world.open(fleet=False)
    loaded = claimed(store, start=3)
    commit(store, change_of(loaded, head=head_of(3, 9), upserted=[row_of(3, 8)]))
    store.close()
    again = world.open(fleet=False)
    (row,) = again.list_partitions("group")
    assert (row.key, row.head) == (key_of(), head_of(3, 9))
    assert ranges(again, row.partition_id) == [row_of(3, 8)]


def test_another_cluster_is_refused_naming_both(world: World) -> None:
    world.open(cluster_id="kafka-1", fleet=False).close()
    with pytest.raises(StoreClusterMismatchError, match=r"kafka-1.*kafka-2.*--store"):
        world.open(cluster_id="kafka-2", fleet=False)
    # The refused one holds nothing.
    world.open(cluster_id="kafka-1", fleet=False).close()


def test_an_unknown_cluster_is_neither_noted_nor_checked(world: World) -> None:
    world.open(cluster_id="", fleet=False).close()
    world.open(cluster_id="kafka-2", fleet=False).close()
    world.open(cluster_id="", fleet=False).close()
    with pytest.raises(StoreClusterMismatchError):
        world.open(cluster_id="kafka-1", fleet=False)


def test_a_second_standalone_coordinator_is_refused_until_the_first_closes(world: World) -> None:
    first = world.open("one", fleet=False)
    with pytest.raises(StoreInUseError, match="coordinator one"):
        world.open("two", fleet=False)
    first.ensure_group("group")
    first.close()
    assert world.open("two", fleet=False).load_groups() != []


def test_a_store_that_is_not_open_says_so(world: World) -> None:
    store = world.make()
    with pytest.raises(InternalError, match="not open"):
        store.load_groups()
    store = world.open()
    with pytest.raises(InternalError, match="open already"):
        store.open(coordinator_id="x", cluster_id="", address="x", version="x")
    store.load_groups()
    store.close()
    store.close()
    with pytest.raises(InternalError, match="not open"):
        store.ensure_group("group")


def test_the_clock_is_the_stores(world: World) -> None:
    store = world.open()
    world.time_ms += 17
    assert store.now_ms() == world.time_ms
    assert store.renew_lease(duration_ms=1000) == world.time_ms


# -- open_partition -------------------------------------------------------------------------------


def test_a_share_partition_is_made_once(world: World) -> None:
    store = world.open()
    row = open_partition(store, key_of(3))
    assert row.key == key_of(3)
    assert (row.head, row.owner, row.owner_epoch, row.state_epoch) == (None, None, 0, 0)
    assert (row.closed, row.stopped_reason) == (False, "")
    assert open_partition(store, key_of(3)) == row


def test_share_partitions_differ_in_every_part_of_their_name(world: World) -> None:
    store = world.open()
    keys = [
        key_of(0),
        key_of(1),
        key_of(0, group="other"),
        key_of(0, group="Group"),
        key_of(0, topic="other"),
        key_of(0, topic_id="cd" * 16),
        key_of(0, topic_id=""),
    ]
    rows = [open_partition(store, key) for key in keys]
    assert len({row.partition_id for row in rows}) == len(keys)
    assert [row.key for row in rows] == keys


# -- claims ---------------------------------------------------------------------------------------


def test_a_free_partition_is_claimed_and_loaded(world: World) -> None:
    store = world.open("one")
    row = open_partition(store, key_of())
    world.time_ms += 5
    loaded = claim_partition(store, row.partition_id, incarnation=9, previous_incarnation=None)
    assert loaded is not None
    assert (loaded.row.owner, loaded.row.owner_epoch, loaded.row.incarnation) == ("one", 1, 9)
    assert (loaded.row.head, loaded.in_flight, loaded.dead_letters) == (None, (), ())
    assert loaded.store_now_ms == world.time_ms


def test_a_claim_reads_ranges_and_outbox_in_order(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    change = change_of(
        loaded,
        upserted=[row_of(20, 29), row_of(0, 9), row_of(10, 19)],
        dead_letters=[letter_of(30), letter_of(7)],
    )
    commit(store, change)
    again = claim_partition(store, loaded.row.partition_id, incarnation=2, previous_incarnation=1)
    assert again is not None
    assert again.in_flight == (row_of(0, 9), row_of(10, 19), row_of(20, 29))
    assert again.dead_letters == (letter_of(7), letter_of(30))
    assert again.row.owner_epoch == loaded.row.owner_epoch + 1


def test_a_live_owner_keeps_its_partition(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    loaded = claimed(one)
    lease_until_ms = one.renew_lease(duration_ms=4000) + 4000
    world.time_ms = lease_until_ms
    partition_id = loaded.row.partition_id
    claim = claim_partition(two, partition_id, incarnation=1, previous_incarnation=None)
    assert claim is None
    assert commit(one, change_of(loaded, upserted=[row_of(0, 4)])) == frozenset()

    world.time_ms = lease_until_ms + 1
    claim = claim_partition(two, partition_id, incarnation=1, previous_incarnation=None)
    assert claim is not None
    assert (claim.row.owner, claim.row.owner_epoch) == ("two", loaded.row.owner_epoch + 1)
    assert claim.in_flight == (row_of(0, 4),)


def test_the_former_owner_is_fenced(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    old = claimed(one)
    world.time_ms += 60_000
    partition_id = old.row.partition_id
    new = claim_partition(two, partition_id, incarnation=1, previous_incarnation=None)
    assert new is not None
    two.renew_lease(duration_ms=4000)
    assert commit(one, change_of(old, upserted=[row_of(0, 4)])) == {partition_id}
    # A reload does not get it back, not even under a number that the new owner happens to use.
    assert claim_partition(one, partition_id, incarnation=2, previous_incarnation=1) is None
    assert not initialize_partition(
        one, partition_id, owner_epoch=old.row.owner_epoch, head=head_of(50, 50)
    )
    one.release_partitions([PartitionRelease(partition_id, old.row.owner_epoch)])
    one.close_partition(partition_id, owner_epoch=old.row.owner_epoch)
    one.stop_partition(partition_id, owner_epoch=old.row.owner_epoch, reason="x")
    (row,) = two.list_partitions("group")
    assert row == new.row
    assert ranges(two, partition_id) == []


def test_a_coordinator_claims_its_own_partition_again(world: World) -> None:
    one = world.open("one")
    loaded = claimed(one)
    again = claim_partition(one, loaded.row.partition_id, incarnation=5, previous_incarnation=None)
    assert again is not None
    assert (again.row.owner_epoch, again.row.incarnation) == (loaded.row.owner_epoch + 1, 5)
    assert commit(one, change_of(loaded)) == {loaded.row.partition_id}


def test_a_reload_needs_the_incarnation_that_it_replaces(world: World) -> None:
    one = world.open("one")
    partition_id = claimed(one, incarnation=4).row.partition_id
    assert claim_partition(one, partition_id, incarnation=6, previous_incarnation=5) is None
    again = claim_partition(one, partition_id, incarnation=6, previous_incarnation=4)
    assert again is not None
    assert again.row.incarnation == 6


@pytest.mark.parametrize("after", [False, True])
def test_a_claim_of_unknown_outcome_is_made_again(world: World, after: bool) -> None:
    one = world.open("one")
    loaded = claimed(one, incarnation=1)
    partition_id = loaded.row.partition_id
    world.break_next_commit(one, after=after)
    with pytest.raises(StoreOutcomeUnknownError):
        claim_partition(one, partition_id, incarnation=2, previous_incarnation=1)
    again = claim_partition(one, partition_id, incarnation=2, previous_incarnation=1)
    assert again is not None
    assert again.row.owner_epoch == loaded.row.owner_epoch + (2 if after else 1)


def test_a_released_partition_is_free(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    loaded = claimed(one)
    one.release_partitions([PartitionRelease(loaded.row.partition_id, loaded.row.owner_epoch)])
    claim = claim_partition(two, loaded.row.partition_id, incarnation=1, previous_incarnation=None)
    assert claim is not None
    assert claim.row.owner == "two"


def test_a_coordinator_that_closed_owns_nothing(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    partition_id = claimed(one).row.partition_id
    one.close()
    claim = claim_partition(two, partition_id, incarnation=1, previous_incarnation=None)
    assert claim is not None


def test_a_standalone_restart_takes_over_at_once(world: World) -> None:
    crashed = world.open("before", fleet=False)
    partition_id = claimed(crashed).row.partition_id
    crashed.renew_lease(duration_ms=60_000)
    # No close: its lease lasts another minute, but nobody holds the store.
    world.crash(crashed)
    store = world.open("after", fleet=False)
    claim = claim_partition(store, partition_id, incarnation=1, previous_incarnation=None)
    assert claim is not None
    assert claim.row.owner == "after"


def test_no_partition_no_claim(world: World) -> None:
    store = world.open()
    assert claim_partition(store, 42, incarnation=1, previous_incarnation=None) is None
    assert not initialize_partition(store, 42, owner_epoch=0, head=head_of())


def test_several_are_opened_claimed_and_started_together(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    two.renew_lease(duration_ms=60_000)
    taken = claimed(two, key_of(2)).row
    keys = [key_of(n) for n in (3, 0, 2, 1)]
    rows = one.open_partitions(keys)
    assert [row.key for row in rows] == keys
    fresh = [row.partition_id for row in rows if row.partition_id != taken.partition_id]
    assert fresh == sorted(fresh), "ids in the order of the keys"
    assert one.open_partitions(keys) == rows
    claims = [PartitionClaim(row.partition_id, 7) for row in rows]
    loaded = one.claim_partitions(claims)
    assert [None if each is None else each.row.key for each in loaded] == [
        key_of(3),
        key_of(0),
        None,
        key_of(1),
    ]
    # One of them is reloaded, and one that does not exist is asked for.
    again = one.claim_partitions(
        [PartitionClaim(rows[0].partition_id, 8, 7), PartitionClaim(99, 8)]
    )
    assert [each is None for each in again] == [False, True]
    epochs = [1 if each is None else each.row.owner_epoch for each in loaded]
    starts = [
        PartitionStart(row.partition_id, epoch, head_of(n, n))
        for n, (row, epoch) in enumerate(zip(rows, epochs, strict=True))
    ]
    # The first has been claimed anew since; the third was initialised before.
    assert one.initialize_partitions(starts) == [False, True, True, True]
    heads = {row.key.partition: row.head for row in one.list_partitions("group")}
    assert heads == {0: head_of(1, 1), 1: head_of(3, 3), 2: head_of(0, 0), 3: None}


def test_a_claim_of_several_reads_each_its_own_ranges(world: World) -> None:
    store = world.open()
    parts = [claimed(store, key_of(n)) for n in range(3)]
    for part, first in zip(parts, (0, 10, 20), strict=True):
        rows = [row_of(first + 5, first + 8), row_of(first, first + 3)]
        letters = [letter_of(first + 9), letter_of(first + 4)]
        commit(store, change_of(part, upserted=rows, dead_letters=letters))
    loaded = store.claim_partitions(
        [PartitionClaim(part.row.partition_id, 2, 1) for part in reversed(parts)]
    )
    found = [
        ([r.first_offset for r in each.in_flight], [d.offset for d in each.dead_letters])
        for each in loaded
        if each is not None
    ]
    assert found == [([20, 25], [24, 29]), ([10, 15], [14, 19]), ([0, 5], [4, 9])]


# -- initialise, close, stop ----------------------------------------------------------------------


def test_a_partition_is_initialised_once(world: World) -> None:
    store = world.open()
    row = open_partition(store, key_of())
    loaded = claim_partition(store, row.partition_id, incarnation=1, previous_incarnation=None)
    assert loaded is not None
    epoch = loaded.row.owner_epoch
    assert not initialize_partition(
        store, row.partition_id, owner_epoch=epoch - 1, head=head_of(1, 1)
    )
    assert store.list_partitions("group")[0].head is None
    assert initialize_partition(store, row.partition_id, owner_epoch=epoch, head=head_of(7, 7))
    assert initialize_partition(store, row.partition_id, owner_epoch=epoch, head=head_of(9, 9))
    assert store.list_partitions("group")[0].head == head_of(7, 7)


def test_closed_and_stopped_are_kept_and_shown(world: World) -> None:
    store = world.open()
    first, second = claimed(store, key_of(0)), claimed(store, key_of(1))
    store.close_partition(first.row.partition_id, owner_epoch=first.row.owner_epoch)
    store.stop_partition(
        second.row.partition_id, owner_epoch=second.row.owner_epoch, reason="LOG_REGRESSED"
    )
    rows = store.list_partitions("group")
    assert [row.closed for row in rows] == [True, False]
    assert [row.stopped_reason for row in rows] == ["", "LOG_REGRESSED"]
    again = claim_partition(store, first.row.partition_id, incarnation=2, previous_incarnation=1)
    assert again is not None
    assert again.row.closed
