"""When the start offset moves (specification 1.4), room, and loading."""

from __future__ import annotations

import pytest

from sharecoord.core import limits
from sharecoord.core.partition.acquire import Run
from sharecoord.core.states import AcquireMode, RecordState
from sharecoord.core.window.window import INDEX_ENTRIES_MIN, NEVER_MS, Edit, RangeState, Window
from tests.support import columns_of
from tests.unit.core.scene import (
    ACCEPT,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    REJECT,
    RELEASE,
    RENEW,
    Scene,
)


def test_1_4_item_2_the_start_stays_while_its_record_is_not_final() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(ACCEPT, 1, 9)
    assert scene.span() == (0, 10)
    assert scene.partition.head.finished_count == 9


def test_1_4_item_4_everything_final_empties_the_window() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(ACCEPT, 0, 4)
    scene.acknowledge(REJECT, 5, 9)
    assert scene.span() == (10, 10)
    assert len(scene.window.ranges) == 0
    assert scene.partition.head.finished_count == 0


def test_1_4_item_5_natural_gaps_are_jumped() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9), (20, 29)])
    scene.acknowledge(ACCEPT, 0, 9)
    assert scene.span() == (20, 30)


def test_1_4_item_6_the_start_stops_inside_a_batch() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(REJECT, 0, 3)
    assert scene.span() == (4, 10)


def test_1_4_item_7_finished_offsets_leave_the_count_with_the_window() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(ACCEPT, 2, 4)
    assert scene.partition.head.finished_count == 3
    scene.acknowledge(ACCEPT, 0, 1)
    assert (scene.span(), scene.partition.head.finished_count) == ((5, 10), 0)


def test_1_4_the_first_acquire_jumps_gaps_at_the_front() -> None:
    scene = Scene(start=5)
    scene.acquire(new=[(8, 9)])
    assert scene.span() == (8, 10)


def test_a_proven_gap_at_the_end_is_skipped() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.apply(scene.partition.decide_gap_ahead(15))
    assert scene.span() == (0, 15)
    assert not scene.partition.decide_gap_ahead(15).changes_anything
    assert not scene.partition.decide_gap_ahead(3).changes_anything


def test_finished_and_delayed_records_do_not_use_up_the_window() -> None:
    scene = Scene(record_locks_max=100)
    scene.acquire(new=[(0, 99)])
    assert scene.partition.room == 0
    scene.acknowledge(ACCEPT, 50, 59)
    scene.acknowledge(RELEASE, 60, 69, delay_ms=1_000)
    scene.acknowledge(RELEASE, 70, 79)
    assert scene.partition.room == 20


def test_the_window_is_full_at_its_limit_of_ranges() -> None:
    scene = Scene(window_ranges_max=3)
    scene.acquire(new=[(0, 4)])
    assert scene.partition.room > 0
    scene.acknowledge(ACCEPT, 1)
    scene.acknowledge(ACCEPT, 3)
    assert scene.partition.room == 0
    assert scene.acquire(new=[(5, 9)]) == []


@pytest.mark.parametrize("mode", [AcquireMode.FAIR, AcquireMode.RECORD_LIMIT])
def test_2_6_record_limit_takes_exactly_what_fits(mode: AcquireMode) -> None:
    scene = Scene(record_locks_max=7)
    assert scene.acquire(records=5, new=[(0, 9)], mode=mode) == [(0, 4, 1)]
    assert scene.acquire("bob", records=5, new=[(5, 9)], mode=mode) == [(5, 6, 1)]


def test_2_6_batch_optimized_takes_whole_runs() -> None:
    scene = Scene()
    taken = scene.acquire(records=5, new=[(0, 9), (10, 19)], mode=AcquireMode.BATCH_OPTIMIZED)
    assert taken == [(0, 9, 1)]


def test_2_3_redelivery_goes_lowest_offset_first_and_before_new_data() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(RELEASE, 7, 8)
    scene.acknowledge(RELEASE, 2, 3)
    assert scene.acquire("bob", records=5, new=[(10, 19)]) == [(2, 3, 2), (7, 8, 2), (10, 10, 1)]


def test_one_acquire_takes_at_most_its_limit() -> None:
    scene = Scene(record_locks_max=100_000)
    taken = scene.acquire(records=50_000, new=[(0, 49_999)])
    assert taken == [(0, limits.ACQUIRE_RECORDS_MAX - 1, 1)]


def test_new_data_inside_the_window_is_a_mistake() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    with pytest.raises(AssertionError, match="inside the window"):
        scene.acquire(new=[(9, 12)])


def test_no_acquire_beyond_the_last_token_of_an_owner_epoch() -> None:
    scene = Scene()
    scene.partition._token_sequence = limits.TOKEN_SEQUENCE_MAX - 1
    assert scene.partition.tokens_left == 1
    assert scene.acquire(new=[(0, 3), (5, 9)]) == []
    assert scene.acquire(new=[(0, 3)]) == [(0, 3, 1)]
    assert scene.tokens()[0] == (1 << 32) | limits.TOKEN_SEQUENCE_MAX
    assert scene.partition.tokens_left == 0
    assert scene.acquire(new=[(4, 5)]) == []


def test_stored_final_rows_at_the_front_are_deleted() -> None:
    window = Window(0, 20)
    rejected = RangeState(ARCHIVED, 1, reason="REJECTED")
    window.load([0, 8], [4, 9], [rejected, RangeState(AVAILABLE, 1)])
    assert window.start_offset == 8
    assert window.dirty == {0: None}


def test_loaded_ranges_that_share_a_value_count_each_for_itself() -> None:
    held = RangeState(ACQUIRED, 1, 1, "m", 7, deadline_ms=50, granted_ms=50)
    other = held._replace(lock_token=8, deadline_ms=60)
    due, late = RangeState(AVAILABLE, 1), RangeState(AVAILABLE, 1, available_at_ms=70)
    window = Window(0, 40)
    rows = [
        *((0, 1, held), (2, 2, other), (3, 3, held), (4, 9, due), (10, 10, other)),
        *((12, 13, due), (20, 22, late), (30, 30, RangeState(RecordState.ARCHIVING))),
        (31, 33, RangeState(ARCHIVED)),
    ]
    window.load(*columns_of(rows))
    assert [*window.ranges] == rows
    counts = (window.acquired, window.due, window.delayed, window.archiving, window.archived)
    assert counts == (5, 8, 3, 1, 3)
    assert window.held == {"m": 5}
    grants = {token: (g.first, g.last, g.remaining) for token, g in window.grants.items()}
    assert grants == {7: (0, 3, 3), 8: (2, 10, 2)}
    assert window.expired(50) == [Edit(0, 1, held), Edit(3, 3, held)]
    assert window.due_ranges(100) == [(4, 9, due), (12, 13, due)]
    assert (window.next_deadline_ms(), window.next_due_ms()) == (60, 70)
    assert window.dirty == {}


def test_loading_nothing_means_that_everything_is_finished() -> None:
    window = Window(5, 20)
    window.load([], [], [])
    assert (window.start_offset, window.end_offset, window.dirty) == (20, 20, {})


def test_the_end_of_a_window_never_moves_back_by_an_edit() -> None:
    window = Window(0, 20)
    with pytest.raises(AssertionError, match="moved back"):
        window.apply([], 19)


@pytest.mark.parametrize("state", [RecordState.ARCHIVING, RecordState.ARCHIVED])
@pytest.mark.parametrize("value", [RangeState(AVAILABLE), None])
def test_an_illegal_move_is_a_mistake(state: RecordState, value: RangeState | None) -> None:
    window = Window(0, 0)
    window.apply([Edit(0, 1, RangeState(AVAILABLE))], 2)
    window.apply([Edit(1, 1, RangeState(state))])
    with pytest.raises(AssertionError, match="illegal move"):
        window.apply([Edit(1, 1, value)])


def test_an_edit_across_ranges_is_a_mistake() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 4)])
    scene.acquire("bob", new=[(5, 9)])
    with pytest.raises(AssertionError, match="crosses"):
        scene.window.apply([Edit(3, 6, None)])


def test_indexes_do_not_grow_with_renewals() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    token = scene.tokens()[0]
    for _ in range(5 * INDEX_ENTRIES_MIN):
        scene.now += 1
        value = scene.at(0)
        assert value is not None
        renewed = value._replace(deadline_ms=scene.now + 30_000)
        scene.window.apply([Edit(0, 9, renewed)])
    assert sum(map(len, scene.window.index_entries())) <= 2 * INDEX_ENTRIES_MIN + 1
    assert scene.window.next_deadline_ms() is not None
    assert scene.tokens()[0] == token
    scene.now += 30_000
    scene.apply(scene.partition.decide_expire(scene.now))
    assert scene.states() == [(0, 9, "AVAILABLE", 1)]


def test_due_records_are_found_after_the_indexes_were_rebuilt() -> None:
    scene = Scene(delivery_limit=1_000)
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(RELEASE, 8, delay_ms=100_000)
    for _ in range(3 * INDEX_ENTRIES_MIN):
        scene.window.apply([Edit(0, 0, scene.at(0)._replace(deadline_ms=scene.now))])  # type: ignore[union-attr]
        scene.now += 1
    scene.acknowledge(RELEASE, 3, 4)
    assert [found[:2] for found in scene.partition.due_ranges(10)] == [(3, 4)]
    assert scene.window.next_due_ms() == 101_000
    assert scene.state(0) is ACQUIRED


def test_a_renewal_of_a_part_keeps_what_the_member_holds() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.now += 10
    scene.acknowledge(RENEW, 3, 5)
    assert scene.window.held == {"ann": 10}
    assert len(scene.window.grants) == 1


def test_fresh_runs_are_one_batch_for_throttling() -> None:
    scene = Scene()
    decision = scene.partition.decide_acquire(
        0,
        "ann",
        max_records=8,
        mode=AcquireMode.FAIR,
        due=(),
        fresh=[Run(3, 6), Run(9, 20)],
    )
    values = [edit.value for edit in decision.edits if edit.value is not None]
    assert {(value.batch_base, value.batch_size) for value in values} == {(3, 8)}
    assert decision.end_offset == 13


def test_a_record_of_a_truncated_log_that_is_delayed_again_becomes_due_once() -> None:
    window = Window(0, 0)
    delayed = RangeState(AVAILABLE, 1, 1, available_at_ms=300)
    for _ in range(2):
        window.apply([Edit(0, 3, delayed)], 4)
        window.truncate(0)
    window.apply([Edit(0, 3, delayed)], 4)
    assert (window.advance(299), window.due, window.delayed) == (0, 0, 4)
    assert (window.advance(300), window.due, window.delayed) == (4, 4, 0)


def test_a_truncation_that_takes_all_that_was_left_to_the_store_leaves_no_time_to_look() -> None:
    window = Window(0, 0)
    delayed = RangeState(AVAILABLE, 1, 1, available_at_ms=300)
    window.apply([Edit(0, 3, delayed)], 4)
    window.dirty.clear()
    window.park(0)
    assert (window.parked.records, window.parked_from_ms) == (4, 300)
    window.truncate(2)
    assert (window.parked.records, window.parked_from_ms) == (2, 300)
    window.truncate(0)
    assert (window.parked.records, window.parked_from_ms) == (0, NEVER_MS)
