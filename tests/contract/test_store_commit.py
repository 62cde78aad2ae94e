"""The group commit: what is written, what is fenced, what an error leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharecoord.core.changes import (
    Checkpoint,
    CommitBatch,
    DeadLetter,
    InFlightRow,
    LoadedPartition,
    PartitionClaim,
    PartitionHead,
)
from sharecoord.errors import InternalError, StoreOutcomeUnknownError
from tests.contract.store_worlds import (
    START_MS,
    AnyStore,
    World,
    change_of,
    claim_partition,
    claimed,
    commit,
    head_of,
    kept_of,
    key_of,
    letter_of,
    member_of,
    open_partition,
    ranges,
    row_of,
)

BIG = 2**63 - 1


def test_every_field_of_a_range_comes_back(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    rows = [
        InFlightRow(0, 9, 1, 3, 4, "m-1", (5 << 32) | 1, START_MS, 30_000, 0, 0, 10, None, None),
        InFlightRow(
            10,
            11,
            0,
            1,
            1,
            None,
            7,
            0,
            0,
            START_MS + 5,
            10,
            2,
            "später \U0001f600",
            b"\0" * 16,
            '{"first_ms":7,"members":["ä","…"],"error":"\\u0000"}',
        ),
        InFlightRow(
            BIG - 1, BIG, 4, 2**31 - 1, 2**31 - 1, None, BIG, BIG, BIG, BIG, BIG, 2, "", b""
        ),
    ]
    commit(store, change_of(loaded, upserted=rows))
    again = claim_partition(
        store, loaded.row.partition_id, incarnation=2, previous_incarnation=None
    )
    assert again is not None
    assert again.in_flight == tuple(rows)
    assert all(isinstance(row, InFlightRow) for row in again.in_flight)


TEXTS = ["", " ", "NULL", "null", '"', '""', "\\", "\\x", ",", "(a,b)", "a\nb", "\n", "\0", "ä,'\t"]


def test_texts_of_every_kind_come_back_and_equal_ones_are_one_object(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    holder = 'a,"(member)\\'
    rows = [
        row_of(2 * at + again, 2 * at + again)._replace(
            member_id=holder, reason=text, lock_token=at, batch_base=0, batch_size=100
        )
        for at, text in enumerate([*TEXTS, None])
        for again in (0, 1)
    ]
    commit(store, change_of(loaded, upserted=rows))
    again = claim_partition(
        store, loaded.row.partition_id, incarnation=2, previous_incarnation=None
    )
    assert again is not None
    assert again.in_flight == tuple(rows)
    assert again.in_flight.members == {holder}
    states = again.in_flight.states
    assert all(one is two for one, two in zip(states[::2], states[1::2], strict=True))


def test_the_head_is_replaced(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    head = PartitionHead(
        start_offset=5, end_offset=BIG, end_leader_epoch=-1, finished_count=17, change_sequence=99
    )
    commit(store, change_of(loaded, head=head))
    (row,) = store.list_partitions("group")
    assert row.head == head


@pytest.mark.parametrize("epoch", [0, 7, 2**31 - 1, -1])
def test_the_leader_epoch_goes_with_the_end_and_comes_back_with_a_claim(
    world: World, epoch: int
) -> None:
    store = world.open()
    loaded = claimed(store)
    head = replace(head_of(3, 20), end_leader_epoch=epoch)
    commit(store, change_of(loaded, head=head))
    # Commits that change nothing else leave it as they show it.
    commit(store, change_of(loaded, head=replace(head, change_sequence=5)))
    again = claim_partition(
        store, loaded.row.partition_id, incarnation=2, previous_incarnation=None
    )
    assert again is not None
    assert again.row.head is not None
    assert (again.row.head.end_offset, again.row.head.end_leader_epoch) == (20, epoch)


def test_a_truncation_takes_a_lower_epoch_along(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    commit(store, change_of(loaded, head=head_of(5, 20), upserted=[row_of(5, 19)]))
    change = change_of(loaded, head=replace(head_of(3, 3), end_leader_epoch=2))
    change.raises_state_epoch, change.truncated_at = True, 3
    assert not commit(store, change)
    (row,) = store.list_partitions("group")
    assert row.head is not None
    assert (row.head.start_offset, row.head.end_offset, row.head.end_leader_epoch) == (3, 3, 2)
    assert ranges(store, loaded.row.partition_id) == []


def test_a_range_is_split_merged_and_replaced(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    partition_id = loaded.row.partition_id
    commit(store, change_of(loaded, upserted=[row_of(0, 9), row_of(10, 19)]))

    # Same first offset = replaced; the rest of the old range gets a row of its own.
    split = [row_of(0, 3, state=0), row_of(4, 9)]
    commit(store, change_of(loaded, upserted=split))
    assert ranges(store, partition_id) == [*split, row_of(10, 19)]

    # What a merged range swallows is deleted in the same commit.
    merged = [row_of(0, 19, state=4)]
    commit(store, change_of(loaded, deleted=[4, 10], upserted=merged))
    assert ranges(store, partition_id) == merged

    commit(store, change_of(loaded, deleted=[0, 12345]))
    assert ranges(store, partition_id) == []


def test_partitions_do_not_touch_each_other(world: World) -> None:
    store = world.open()
    first, second = claimed(store, key_of(0)), claimed(store, key_of(1))
    commit(
        store,
        change_of(first, upserted=[row_of(0, 4)], dead_letters=[letter_of(1)]),
        change_of(second, upserted=[row_of(0, 8)], dead_letters=[letter_of(1, value=b"second")]),
    )
    commit(store, change_of(first, deleted=[0], dead_letters_done=[1]))
    assert ranges(store, first.row.partition_id) == []
    assert ranges(store, second.row.partition_id) == [row_of(0, 8)]
    again = claim_partition(
        store, second.row.partition_id, incarnation=2, previous_incarnation=None
    )
    assert again is not None
    assert again.dead_letters == (letter_of(1, value=b"second"),)


@pytest.mark.parametrize("field", ["owner_epoch", "state_epoch"])
@pytest.mark.parametrize("step", [-1, 1])
def test_a_partition_of_another_epoch_is_left_out_and_the_rest_commits(
    world: World, field: str, step: int
) -> None:
    store = world.open()
    good, bad = claimed(store, key_of(0)), claimed(store, key_of(1))
    stale = change_of(bad, upserted=[row_of(0, 4)], dead_letters=[letter_of(0)])
    setattr(stale, field, getattr(stale, field) + step)
    batch = CommitBatch(
        partitions=[stale, change_of(good, head=head_of(0, 7), upserted=[row_of(0, 6)])],
    )
    assert store.commit(batch).fenced == {bad.row.partition_id}
    assert ranges(store, bad.row.partition_id) == []
    assert ranges(store, good.row.partition_id) == [row_of(0, 6)]
    heads = {row.partition_id: row.head for row in store.list_partitions("group")}
    assert heads == {good.row.partition_id: head_of(0, 7), bad.row.partition_id: head_of(0, 0)}


def test_a_partition_that_is_gone_is_fenced(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    gone = replace(loaded, row=replace(loaded.row, partition_id=loaded.row.partition_id + 1000))
    assert commit(store, change_of(gone), change_of(loaded)) == {gone.row.partition_id}


def test_many_partitions_in_one_commit(world: World) -> None:
    store = world.open()
    rows = store.open_partitions([key_of(number) for number in range(530)])
    ids = [row.partition_id for row in rows]
    claims = store.claim_partitions([PartitionClaim(id_, 1) for id_ in ids])
    changes = [
        change_of(loaded, upserted=[row_of(0, 1)]) for loaded in claims if loaded is not None
    ]
    assert len(changes) == len(ids)
    changes[7].owner_epoch += 1
    changes[529].state_epoch += 1
    # Their order in the batch is of no account.
    assert commit(store, *reversed(changes)) == {ids[7], ids[529]}
    again = store.claim_partitions([PartitionClaim(id_, 2, 1) for id_ in ids])
    written = [n for n, loaded in enumerate(again) if loaded is not None and loaded.in_flight]
    assert written == [number for number in range(530) if number not in (7, 529)]


def test_an_empty_commit_is_allowed(world: World) -> None:
    assert world.open().commit(CommitBatch()).fenced == frozenset()


def test_the_same_batch_can_be_committed_again(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    commit(store, change_of(loaded, upserted=[row_of(0, 4)], dead_letters=[letter_of(77)]))
    change = change_of(
        loaded,
        head=head_of(2, 9, sequence=4),
        deleted=[0],
        upserted=[row_of(5, 8)],
        dead_letters=[letter_of(3)],
        dead_letters_done=[77],
    )
    for _ in range(2):
        assert commit(store, change) == frozenset()
    again = claim_partition(
        store, loaded.row.partition_id, incarnation=2, previous_incarnation=None
    )
    assert again is not None
    assert again.row.head == head_of(2, 9, sequence=4)
    assert again.in_flight == (row_of(5, 8),)
    assert again.dead_letters == (letter_of(3),)


# -- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_are_byte_exact(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    letters = (
        DeadLetter(
            offset=0,
            reason="DELIVERY_LIMIT",
            delivery_count=5,
            message=None,
            key=None,
            value=None,
            headers=(),
            timestamp_ms=-1,
            payload_known=False,
        ),
        DeadLetter(
            offset=BIG,
            reason="REJECTED",
            delivery_count=1,
            message="zeile 1\nzeile 2",
            key=b"",
            value=bytes(range(256)),
            headers=(
                ("a", b"text"),
                ("a", b"\xff\xfe\x00"),
                ("a", None),
                ("", b""),
                ("größe", "10\u20ac".encode()),
                ("nul", b"\0"),
            ),
            timestamp_ms=START_MS,
            member_id="größe😀",
            failed_at_ms=START_MS + 1,
            state_epoch=BIG,
            kept=True,
        ),
    )
    commit(store, change_of(loaded, dead_letters=list(reversed(letters))))
    again = claim_partition(
        store, loaded.row.partition_id, incarnation=2, previous_incarnation=None
    )
    assert again is not None
    assert again.dead_letters == letters


def test_outboxes_are_listed_while_something_waits_in_them(world: World) -> None:
    store = world.open()
    first, second, third = (claimed(store, key_of(n)) for n in range(3))
    kept = replace(letter_of(7), kept=True)
    commit(store, change_of(first, dead_letters=[letter_of(1), letter_of(2), kept]))
    commit(store, change_of(second, dead_letters=[kept]))
    assert [row.key for row in store.list_outboxes()] == [first.row.key]
    commit(store, change_of(third, dead_letters=[letter_of(5)]))
    assert [row.key for row in store.list_outboxes()] == [first.row.key, third.row.key]
    commit(store, change_of(first, dead_letters_done=[1, 2]))
    store.close_partition(third.row.partition_id, owner_epoch=third.row.owner_epoch)
    assert [(row.key, row.closed) for row in store.list_outboxes()] == [(third.row.key, True)]
    unsent = replace(kept, sequence=1)
    commit(store, change_of(second, dead_letters=[unsent], dead_letters_done=[7]))
    assert [row.key for row in store.list_outboxes()] == [second.row.key, third.row.key]


def test_letters_without_their_share_partition_leave_its_head_alone(world: World) -> None:
    store = world.open()
    parts = [claimed(store, key_of(n)) for n in range(2)]
    commit(store, *(change_of(part, dead_letters=[letter_of(1)]) for part in parts))
    store.delete_group("group")
    rows = store.list_outboxes()
    assert [row.head for row in rows] == [None, None]
    claims = [PartitionClaim(row.partition_id, 9) for row in rows]
    loaded = [each for each in store.claim_partitions(claims) if each is not None]
    commit(store, *(replace(change_of(part, dead_letters_done=[1]), head=None) for part in loaded))
    assert store.list_outboxes() == []
    assert [row.head for row in store.list_partitions("group")] == [None, None]


def test_checkpoints_are_written_replaced_and_deleted(world: World) -> None:
    store = world.open()
    loaded, other = claimed(store, key_of(0)), claimed(store, key_of(1))
    largest = Checkpoint(7, bytes(range(256)) * 256, START_MS)
    some = [Checkpoint(9, b"", START_MS), largest, Checkpoint(2, b"one", START_MS)]
    commit(store, change_of(loaded, checkpoints=some), change_of(other, checkpoints=[largest]))
    id_ = loaded.row.partition_id
    assert store.checkpoint_sizes(id_, 0, 9) == {2: 3, 7: 65_536, 9: 0}
    assert store.checkpoint_sizes(id_, 3, 8) == {7: 65_536}
    assert store.checkpoint_sizes(id_ + 99, 0, 9) == {}
    newer = Checkpoint(2, b"two", START_MS + 1)
    commit(store, change_of(loaded, checkpoints=[newer], checkpoints_done=[2, 9, 55]))
    found = [
        claim_partition(store, each.row.partition_id, incarnation=2, previous_incarnation=None)
        for each in (loaded, other)
    ]
    assert [None if each is None else each.checkpoints for each in found] == [
        (newer, largest),
        (largest,),
    ]


@pytest.mark.parametrize("ends_by", ["reset", "topics", "group"])
def test_checkpoints_end_with_what_is_in_flight(world: World, ends_by: str) -> None:
    """Also where an outbox keeps the share-partition: its letters have what they need."""
    store = world.open()
    loaded, plain = claimed(store, key_of(0)), claimed(store, key_of(1))
    letter = replace(letter_of(3), checkpoint=b"half \x00\xff")
    kept = [Checkpoint(1, b"half", START_MS)]
    commit(
        store,
        change_of(loaded, upserted=[row_of(0, 4)], dead_letters=[letter], checkpoints=kept),
        change_of(plain, upserted=[row_of(0, 4)], checkpoints=kept),
    )
    keys = [loaded.row.key, plain.row.key]
    if ends_by == "reset":
        store.reset_partitions(dict.fromkeys(keys, 0))
    elif ends_by == "topics":
        store.delete_topics("group", ["orders"])
    else:
        store.delete_group("group")
    rows = [open_partition(store, key) for key in keys]
    found = [
        claim_partition(store, row.partition_id, incarnation=2, previous_incarnation=None)
        for row in rows
    ]
    assert [None if each is None else each.checkpoints for each in found] == [(), ()]
    assert found[0] is not None
    assert found[0].dead_letters == (letter,)


def sizes(store: AnyStore, *loaded: LoadedPartition) -> list[dict[int, int]]:
    """What the next claims of share-partitions say of kept payloads."""
    claims = [
        PartitionClaim(open_partition(store, each.row.key).partition_id, 2) for each in loaded
    ]
    found = [each for each in store.claim_partitions(claims) if each is not None]
    assert all(list(each.kept) == sorted(each.kept) for each in found)
    return [dict(each.kept) for each in found]


def test_kept_payloads_are_written_replaced_read_and_deleted(world: World) -> None:
    store = world.open()
    loaded, other = claimed(store, key_of(0)), claimed(store, key_of(1))
    bare = kept_of(9, key=None, value=None, headers=(), timestamp_ms=-1, timestamp_type=0)
    large = kept_of(7, value=bytes(range(256)) * 4_096, size_bytes=BIG)
    some = [bare, large, kept_of(2)]
    commit(store, change_of(loaded, kept=some), change_of(other, kept=[large]))
    id_, offsets = loaded.row.partition_id, [9, 2, 55, 7]
    assert store.read_kept(id_, offsets) == [kept_of(2), large, bare]
    assert store.read_kept(id_, [7, 8]) == [large]
    assert store.read_kept(id_, []) == []
    assert store.read_kept(id_, list(range(500))) == [kept_of(2), large, bare]
    newer = kept_of(2, value=b"", key=b"", size_bytes=1)
    commit(store, change_of(loaded, kept=[newer], kept_done=[2, 9, 55]))
    assert store.read_kept(id_, offsets) == [newer, large]
    assert sizes(store, loaded, other) == [{2: 1, 7: BIG}, {7: BIG}]


def test_a_fenced_commit_keeps_no_payload(world: World) -> None:
    store = world.open()
    loaded, other = claimed(store, key_of(0)), claimed(store, key_of(1))
    commit(store, change_of(loaded, kept=[kept_of(3)]))
    store.reset_partitions({other.row.key: 0})
    late = change_of(other, kept=[kept_of(1)])
    fenced = commit(store, change_of(loaded, kept=[kept_of(4)], kept_done=[3]), late)
    assert fenced == {other.row.partition_id}
    assert sizes(store, loaded, other) == [{4: 300}, {}]


@pytest.mark.parametrize("ends_by", ["reset", "topics", "group", "close"])
def test_kept_payloads_end_with_what_is_in_flight(world: World, ends_by: str) -> None:
    """Also where an outbox keeps the share-partition."""
    store = world.open()
    loaded, plain = claimed(store, key_of(0)), claimed(store, key_of(1))
    rows, kept = [row_of(0, 4)], [kept_of(1), kept_of(3)]
    commit(
        store,
        change_of(loaded, upserted=rows, dead_letters=[letter_of(3)], kept=kept),
        change_of(plain, upserted=rows, kept=kept),
    )
    keys = [loaded.row.key, plain.row.key]
    if ends_by == "reset":
        store.reset_partitions(dict.fromkeys(keys, 0))
    elif ends_by == "topics":
        store.delete_topics("group", ["orders"])
    elif ends_by == "group":
        store.delete_group("group")
    else:
        for each in (loaded, plain):
            id_, epoch = each.row.partition_id, each.row.owner_epoch
            store.close_partition(id_, owner_epoch=epoch - 1)
            assert len(store.read_kept(id_, [1, 3])) == 2, "a former owner"
            store.close_partition(id_, owner_epoch=epoch)
    assert sizes(store, loaded, plain) == [{}, {}]
    for each in (loaded, plain):
        assert store.read_kept(each.row.partition_id, [1, 3]) == []


def test_an_outbox_is_read_page_by_page(world: World) -> None:
    store = world.open()
    first, second = (claimed(store, key_of(n)) for n in range(2))
    kept = replace(letter_of(7), kept=True)
    commit(store, change_of(first, dead_letters=[letter_of(9), letter_of(1), kept]))
    commit(store, change_of(second, dead_letters=[letter_of(2)]))
    id_ = first.row.partition_id
    read = store.read_dead_letters
    assert read(id_, from_offset=0, max_rows=2) == [letter_of(1), kept]
    assert read(id_, from_offset=8, max_rows=2) == [letter_of(9)]
    assert read(id_, from_offset=10, max_rows=2) == []
    assert read(10**9, from_offset=0, max_rows=2) == []


def test_a_dead_letter_at_the_same_offset_is_replaced(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    commit(store, change_of(loaded, dead_letters=[letter_of(3, reason="REJECTED")]))
    newer = letter_of(3, reason="DELIVERY_LIMIT", value=None)
    commit(store, change_of(loaded, dead_letters=[newer], dead_letters_done=[3]))
    again = claim_partition(
        store, loaded.row.partition_id, incarnation=2, previous_incarnation=None
    )
    assert again is not None
    assert again.dead_letters == (newer,)


# -- members in a commit --------------------------------------------------------------------------


def test_members_are_removed_with_the_batch(world: World) -> None:
    store = world.open(fleet=False)
    store.join_members([member_of("old"), member_of("other")])
    removed = [("group", "old", 1), ("group", "never there", 1)]
    store.commit(CommitBatch(members_removed=removed))
    assert store.load_members() == [member_of("other", epoch=1)]


# -- errors ---------------------------------------------------------------------------------------


def test_a_row_that_is_refused_leaves_nothing_of_its_batch(world: World) -> None:
    store = world.open()
    first, second = claimed(store, key_of(0)), claimed(store, key_of(1))
    bad = row_of(0, 4)._replace(lock_token=2**63)
    with pytest.raises(InternalError, match="refused"):
        commit(
            store,
            change_of(first, head=head_of(1, 9), upserted=[row_of(0, 4)]),
            change_of(second, upserted=[bad]),
        )
    assert ranges(store, first.row.partition_id) == []
    assert store.list_partitions("group")[0].head == head_of(0, 0)
    assert commit(store, change_of(first, upserted=[row_of(0, 4)])) == frozenset()
    assert ranges(store, first.row.partition_id) == [row_of(0, 4)]


@pytest.mark.parametrize("after", [False, True])
def test_an_unknown_outcome_is_settled_by_a_claim(world: World, after: bool) -> None:
    store = world.open()
    loaded = claimed(store)
    world.break_next_commit(store, after=after)
    with pytest.raises(StoreOutcomeUnknownError):
        commit(store, change_of(loaded, head=head_of(0, 5), upserted=[row_of(0, 4)]))
    again = claim_partition(store, loaded.row.partition_id, incarnation=2, previous_incarnation=1)
    assert again is not None
    assert again.in_flight == ((row_of(0, 4),) if after else ())
    assert again.row.head == (head_of(0, 5) if after else head_of(0, 0))
    # Whatever became of it: under the old epoch nothing is written any more.
    assert commit(store, change_of(loaded)) == {loaded.row.partition_id}
    assert commit(store, change_of(again, upserted=[row_of(5, 6)])) == frozenset()


def test_a_late_leave_of_a_fenced_stream_does_not_remove_the_newer_member(world: World) -> None:
    store = world.open(fleet=False)
    store.join_members([member_of("m1")])
    store.join_members([member_of("m1")])
    store.commit(CommitBatch(members_removed=[("group", "m1", 1)]))
    assert store.load_members() == [member_of("m1", epoch=2)]
    store.commit(CommitBatch(members_removed=[("group", "m1", 2)]))
    assert store.load_members() == []


def test_a_truncation_raises_the_state_epoch_with_its_commit(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    epoch = loaded.row.state_epoch
    change = change_of(loaded)
    change.raises_state_epoch = True
    assert not commit(store, change)
    (row,) = store.list_partitions("group")
    assert (row.state_epoch, row.replay_epoch) == (epoch + 1, epoch + 1)
    assert row.stops_at is None
    assert commit(store, change) == {loaded.row.partition_id}
