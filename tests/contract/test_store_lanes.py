"""Lanes and replays: what is taken in, what is left out, and that owners notice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharecoord.core.changes import KeptPayload, PartitionKey
from sharecoord.core.letters.lanes import (
    Mark,
    Marking,
    MarkKind,
    Replayed,
    Selection,
    SelectionResult,
)
from tests.contract.store_worlds import (
    AnyStore,
    World,
    change_of,
    claim_partition,
    claimed,
    commit,
    head_of,
    key_of,
    letter_of,
    member_of,
    open_partition,
    ranges,
    row_of,
)

LONGEST = "t" * 249
"""The longest name that Kafka has for a topic."""

REDRIVE, DISCARD = Marking(MarkKind.REDRIVEN, "run-1"), Marking(MarkKind.DISCARDED, "run-2")


def lane_of(partition: int = 0, topic: str = "orders") -> PartitionKey:
    return replace(key_of(partition, topic="dead"), lane=topic)


def take(
    store: AnyStore, *runs: tuple[int, int], marking: Marking = REDRIVE, keys: bytes | None = None
) -> SelectionResult:
    selection = Selection(lane_of(), runs, keys, rate_limit=7)
    (taken,) = store.take_in([selection], marking)
    return taken


def marks(store: AnyStore) -> list[Mark]:
    found = store.read_marks("group", "dead", "ab" * 16, 0)
    return [mark._replace(at_ms=0) for mark in found]


def test_a_selection_becomes_ranges_that_are_due(world: World) -> None:
    store = world.open()
    taken = take(store, (3, 5), (9, 9), keys=b"".join(bytes([n]) * 8 for n in range(4)))
    assert taken == SelectionResult(lane_of(), ((3, 5), (9, 9)), 0, 0)
    (row,) = store.list_lanes()
    assert (row.key, row.stops_at, row.rate_limit) == (lane_of(), 10, 7)
    assert row.head is not None
    assert (row.head.start_offset, row.head.end_offset, row.head.finished_count) == (3, 10, 3)
    found = ranges(store, row.partition_id)
    assert [(r.first_offset, r.last_offset, r.state, r.delivery_count) for r in found] == [
        (3, 5, 0, 0),
        (9, 9, 0, 0),
    ]
    assert [r.key_hashes for r in found] == [bytes(8) + b"\1" * 8 + b"\2" * 8, b"\3" * 8]
    assert marks(store) == [Mark(3, 5, "redriven", "run-1", 0), Mark(9, 9, "redriven", "run-1", 0)]
    assert store.read_marks("group", "dead", "ab" * 16, 1) == []
    assert store.read_marks("group", "orders", "ab" * 16, 0) == []
    assert [group.group_epoch > 0 for group in store.load_groups()] == [True]


def test_lanes_of_several_topics_stand_side_by_side(world: World) -> None:
    store = world.open()
    keys = [lane_of(), lane_of(topic="pay"), key_of(topic="dead"), lane_of(1)]
    rows = store.open_partitions(keys)
    assert [row.key for row in rows] == keys
    assert len({row.partition_id for row in rows}) == 4
    wanted = [Selection(key, ((0, 1),)) for key in keys[:2]]
    assert [taken.key for taken in store.take_in(wanted, REDRIVE)] == keys[:2]
    assert {row.key for row in store.list_lanes()} == set(keys[:2])
    assert [(m.first_offset, m.last_offset) for m in marks(store)] == [(0, 1), (0, 1)]
    assert {row.key for row in store.list_partitions("group")} == set(keys)


def test_what_bears_a_mark_is_taken_when_asked_for(world: World) -> None:
    store = world.open()
    take(store, (0, 4))
    assert take(store, (3, 6), marking=DISCARD) == SelectionResult(lane_of(), ((5, 6),), 2, 0)
    assert take(store, (4, 7)) == SelectionResult(lane_of(), ((7, 7),), 3, 0)
    again = Marking(MarkKind.REDRIVEN, "run-3", again=True)
    assert take(store, (4, 7), marking=again) == SelectionResult(lane_of(), ((5, 6),), 0, 2)
    assert [(m.first_offset, m.last_offset, m.kind, m.run_id) for m in marks(store)] == [
        (0, 4, "redriven", "run-1"),
        (5, 6, "discarded", "run-2"),
        (5, 6, "redriven", "run-3"),
        (7, 7, "redriven", "run-1"),
    ]


def test_what_is_not_finished_stays_and_its_owner_notices(world: World) -> None:
    store = world.open()
    take(store, (10, 19))
    (row,) = store.list_lanes()
    loaded = claim_partition(store, row.partition_id, incarnation=1, previous_incarnation=None)
    assert loaded is not None
    assert len(loaded.in_flight) == 1
    held = row_of(10, 12)._replace(lock_token=(loaded.row.owner_epoch << 32) + 1)
    gone = row_of(15, 17, state=4)._replace(reason="REJECTED")
    change = change_of(
        loaded,
        head=head_of(10, 20, finished=7),
        upserted=[held, gone],
        dead_letters=[letter_of(16)],
    )
    assert commit(store, change) == frozenset()
    again = Marking(MarkKind.REDRIVEN, "run-2", again=True)
    assert take(store, (5, 16), marking=again).taken == ((5, 9), (13, 16))
    found = ranges(store, row.partition_id)
    assert [(r.first_offset, r.last_offset, r.state) for r in found] == [
        (5, 9, 0),
        (10, 12, 1),
        (13, 16, 0),
        (17, 17, 4),
    ]
    assert found[1] == held
    assert commit(store, change) == {row.partition_id}, "fenced by the state epoch"
    after = claim_partition(store, row.partition_id, incarnation=2, previous_incarnation=1)
    assert after is not None
    assert after.row.head is not None
    assert (after.row.head.start_offset, after.row.stops_at) == (5, 20)
    assert after.row.head.finished_count == 15 - 12
    assert [letter.offset for letter in after.dead_letters] == [16]


def test_a_truncation_ends_what_was_asked_for(world: World) -> None:
    store = world.open()
    assert take(store, (5, 19)).taken == ((5, 19),)
    (row,) = store.list_lanes()
    loaded = claim_partition(store, row.partition_id, incarnation=1, previous_incarnation=None)
    assert loaded is not None
    change = change_of(loaded, head=head_of(5, 12))
    change.raises_state_epoch, change.truncated_at = True, 12
    assert commit(store, change) == frozenset()
    (row,) = store.list_lanes()
    assert row.stops_at == 12
    assert row.state_epoch == loaded.row.state_epoch + 1


def test_a_discard_alone_leaves_nothing_to_do(world: World) -> None:
    store = world.open()
    assert take(store, (100, 109), marking=DISCARD).taken == ((100, 109),)
    assert store.list_lanes() == []
    assert take(store, (200, 200)).taken == ((200, 200),)
    (row,) = store.list_lanes()
    assert row.head is not None
    assert (row.head.start_offset, row.stops_at) == (200, 201)


def test_what_was_never_handed_out_can_be_withdrawn(world: World) -> None:
    store = world.open()
    take(store, (0, 9))
    take(store, (20, 24), marking=DISCARD)
    (row,) = store.list_lanes()
    loaded = claim_partition(store, row.partition_id, incarnation=1, previous_incarnation=None)
    assert loaded is not None
    tried = row_of(3, 4, state=0)
    rest = row_of(5, 9, state=0)._replace(hand_outs=0, delivery_count=0, lock_token=0)
    commit(store, change_of(loaded, head=head_of(3, 10), upserted=[tried, rest], deleted=[0]))
    (taken,) = store.withdraw([lane_of()])
    assert taken.taken == ((5, 9),)
    assert ranges(store, row.partition_id) == [tried]
    assert [(m.first_offset, m.last_offset) for m in marks(store)] == [(0, 4), (20, 24)]
    assert commit(store, change_of(loaded, head=head_of(3, 10))) == {row.partition_id}


def test_what_the_topic_did_not_take_goes_with_its_letters(world: World) -> None:
    store = world.open()
    kept = [KeptPayload.of(at, None, b"%d" % at, (("h", None),), (7, 0)) for at in (3, 5, 8)]
    selection = Selection(lane_of(), ((3, 5),), kept=tuple(kept))
    store.take_in([selection], DISCARD)
    (row,) = [row for row in store.list_partitions("group") if row.key == lane_of()]
    assert store.read_kept(row.partition_id, [3, 5, 8]) == []
    for _ in range(2):
        store.take_in([selection], REDRIVE._replace(again=True))
        assert store.read_kept(row.partition_id, [3, 5, 8]) == kept[:2]
        assert claimed(store, lane_of()).kept == {each.offset: each.size_bytes for each in kept[:2]}
        assert store.withdraw([lane_of()])[0].taken == ((3, 5),)
        assert store.read_kept(row.partition_id, [3, 5, 8]) == []


def test_lanes_go_with_their_topic_and_their_group(world: World) -> None:
    store = world.open()
    take(store, (0, 4))
    claimed(store, key_of(topic="dead"))
    of_one = [lane_of(topic=lane) for lane in (f"{LONGEST}/2147483647", "orders/7")]
    others = [lane_of(topic=lane) for lane in ("orders2/7", "Orders/7", "order/7")]
    selections = [Selection(key, ((8, 9),)) for key in of_one + others]
    assert {taken.key for taken in store.take_in(selections, REDRIVE)} == {*of_one, *others}
    assert store.delete_topics("group", ["orders", LONGEST]) == 3
    assert {row.key for row in store.list_lanes()} == set(others)
    assert store.delete_topics("group", ["orders2", "Orders", "order"]) == 3
    assert store.list_lanes() == []
    assert marks(store) == []
    assert [row.key for row in store.list_partitions("group")] == [key_of(topic="dead")]
    take(store, (0, 4))
    assert store.delete_group("group")
    assert store.list_partitions("group") == []
    assert marks(store) == []
    assert take(store, (0, 4)).taken == ((0, 4),), "nothing of before is known"


def test_the_dead_letter_topic_itself_begins_by_the_group_s_policy(world: World) -> None:
    store = world.open()
    take(store, (0, 4))
    assert not open_partition(store, key_of(topic="dead")).starts_at_zero


def replayed(partition: int, *runs: tuple[int, int], start: int = 0, stop: int = 0) -> Replayed:
    key = key_of(partition, group="side")
    return Replayed(key, start, stop, runs, rate_limit=3)


@pytest.mark.parametrize("config", [None, {"share.ordering": "key"}])
def test_a_replay_has_its_part_of_the_log(world: World, config: dict[str, str] | None) -> None:
    store = world.open()
    parts = [replayed(0, start=10, stop=30), replayed(1, (3, 4), (8, 8), start=3, stop=9)]
    assert store.make_replay([*parts, replayed(2)], config=config)
    rows = store.list_partitions("side")
    assert [(row.stops_at, row.rate_limit, row.is_open) for row in rows] == [
        (30, 3, True),
        (9, 3, True),
        (0, 3, False),
    ]
    heads = [row.head for row in rows]
    assert all(heads)
    assert [(h.start_offset, h.end_offset, h.finished_count) for h in heads if h] == [
        (10, 10, 0),
        (3, 9, 3),
        (0, 0, 0),
    ]
    assert [r.first_offset for r in ranges(store, rows[1].partition_id)] == [3, 8]
    (group,) = store.load_groups()
    assert (group.group_id, group.config) == ("side", config or {})
    later = open_partition(store, key_of(3, group="side"))
    assert (later.stops_at, later.is_open, later.starts_at_zero) == (0, False, False)


def test_a_replay_goes_into_a_new_group_or_a_finished_one(world: World) -> None:
    store = world.open()
    assert store.make_replay([replayed(0, start=10, stop=30)])
    assert not store.make_replay([replayed(0, start=0, stop=5)]), "not finished"
    (row,) = store.list_partitions("side")
    loaded = claim_partition(store, row.partition_id, incarnation=1, previous_incarnation=None)
    assert loaded is not None
    commit(store, change_of(loaded, head=head_of(30, 30)))
    assert store.make_replay([replayed(0, start=0, stop=5)])
    assert commit(store, change_of(loaded, head=head_of(30, 30))) == {row.partition_id}
    claimed(store, key_of(group="own"))
    part = replace(replayed(0, start=0, stop=5), key=key_of(group="own"))
    assert not store.make_replay([part])
    store.join_members([member_of()])
    (own,) = store.list_partitions("own")
    assert own.stops_at is None
