"""How a member's pace is learnt, and what it is for."""

from __future__ import annotations

from typing import Any

import pytest

from sharecoord.core.dispatch.pace import (
    BULK_REST_MAX,
    BULK_REST_MIN,
    BULK_TRIAL_MS,
    BULK_TRIAL_RECORDS,
    PACE_SLICE_MS,
    PREFETCH_MS,
    REFILL_MS,
    REFILL_PART,
    Pace,
)
from sharecoord.core.limits import DELIVERY_BYTES_MAX

BUSY: dict[str, Any] = {"holds": 10_000_000, "drained": False, "lock_ms": 30_000}
"""It holds more."""
ALL: dict[str, Any] = {"holds": 10_000_000, "drained": True, "lock_ms": 30_000}
"""It has worked off all that it held."""


def answered(records: int, now_ms: int, *, drained: bool = True) -> Pace:
    """The pace of a member that got records at 0 and has finished these at `now_ms`."""
    pace = Pace()
    pace.started(0)
    pace.finished(records, now_ms, drained=drained)
    return pace


def worked(records: int, took_ms: float) -> Pace:
    """The pace of a busy member that says how long these took it."""
    pace = Pace()
    pace.worked(records, took_ms, **BUSY)
    return pace


def test_a_quick_answer_of_an_idle_member_counts_at_once() -> None:
    pace = answered(1, 2)
    assert pace.prefetch == 100


def test_the_tail_of_a_busy_time_says_nothing() -> None:
    pace = answered(6, 400, drained=False)
    assert pace.prefetch == 3
    pace.finished(2, 401, drained=True)
    assert pace.prefetch == 3


def test_a_member_that_gets_slow_is_followed_down() -> None:
    pace, now = answered(100, 10), 0
    assert pace.prefetch == 2_000
    for _ in range(40):
        pace.started(now)
        now += PACE_SLICE_MS
        pace.finished(1, now, drained=True)
    assert pace.prefetch == 4


def test_a_member_that_works_something_off_gets_one_at_least() -> None:
    pace = answered(1, 5_000)
    assert pace.prefetch == 1


def test_the_members_own_time_counts_without_the_way() -> None:
    pace = worked(1, 50.0)
    assert pace.prefetch == 4
    for _ in range(10):
        pace.worked(4, 200.0, **BUSY)
    assert pace.prefetch == 4


def test_a_fast_member_is_not_held_to_its_first_record_in_a_cold_program() -> None:
    """What it works off takes too little time to fill a measurement: their number does."""
    pace = worked(1, 1.57)
    assert pace.prefetch == 127
    for _ in range(4):
        pace.worked(127, 0.02, holds=127, drained=True, lock_ms=30_000)
    assert pace.prefetch > 1_000_000


def test_records_that_were_worked_on_together_do_not_make_a_member_fast() -> None:
    """500 records of 10 s at a time: the first word has all the time, the others have none."""
    pace = worked(1, 10_000.0)
    for _ in range(499):
        pace.worked(1, 0.001, holds=500, drained=False, lock_ms=30_000)
    assert pace.prefetch == 1


def test_short_times_are_added_up_before_they_count() -> None:
    pace = worked(1, 10.0)
    assert pace.prefetch == 20
    for _ in range(4):
        pace.worked(1, 11.0, **BUSY)
        assert pace.prefetch == 20
    pace.worked(1, 60.0, **BUSY)
    assert pace.prefetch == 16
    pace.worked(100, 50.0, **BUSY)
    assert pace.prefetch == 400


def test_no_time_at_all_is_a_bounded_pace() -> None:
    pace = worked(1_000, 0.000_001)
    assert pace.prefetch == 20_000_000


# -- members that pay by the batch ----------------------------------------------------------------


def batches(pace: Pace, batch_ms: float, record_ms: float, *, times: int = 30) -> list[int]:
    """Sizes of batches of a member that works off all it may hold, and then says so."""
    sizes = []
    for _ in range(times):
        sizes.append(pace.prefetch)
        pace.worked(sizes[-1], batch_ms + record_ms * sizes[-1], **ALL)
    return sizes


@pytest.mark.parametrize("batch_ms", [150.0, 250.0, 500.0, 950.0])
def test_who_pays_by_the_batch_gets_large_ones(batch_ms: float) -> None:
    sizes = batches(Pace(), batch_ms, 0.5)
    # Half of what it could reach with batches without end, or a second for a batch.
    took_ms = batch_ms + 0.5 * sizes[-1]
    assert sizes[-1] / took_ms >= 0.5 * (1 / 0.5) or took_ms > BULK_TRIAL_MS


def test_large_batches_come_within_a_few() -> None:
    sizes = batches(Pace(), 300.0, 0.01, times=BULK_REST_MIN + 8)
    assert sizes == [*[1] * BULK_REST_MIN, 1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize("record_ms", [12.5, 50.0, 200.0, 500.0])
def test_who_pays_by_the_record_is_seldom_given_more(record_ms: float) -> None:
    pace = Pace()
    usual = max(1, int(PREFETCH_MS / record_ms))
    sizes = batches(pace, 0.0, record_ms, times=1_000)[1:]
    assert set(sizes) <= {usual, 2 * usual}
    # After 4 batches, after 64, and after 1,024.
    assert sizes.count(2 * usual) == 2


def test_who_is_very_slow_is_never_given_more() -> None:
    assert set(batches(Pace(), 0.0, BULK_TRIAL_MS + 1.0)) == {1}


def test_larger_batches_are_not_tried() -> None:
    record_ms = PREFETCH_MS / (BULK_TRIAL_RECORDS + 1)
    assert set(batches(Pace(), 0.0, record_ms)[1:]) == {BULK_TRIAL_RECORDS + 1}


def test_a_trial_never_takes_half_of_the_lock() -> None:
    pace = Pace()
    for _ in range(BULK_REST_MAX):
        pace.worked(1, 300.0, holds=10_000_000, drained=True, lock_ms=1_000)
        assert pace.prefetch == 1


def test_who_acknowledges_one_by_one_shows_no_batch() -> None:
    pace = Pace()
    for _ in range(100):
        held = pace.prefetch
        for left in reversed(range(held)):
            pace.worked(1, 300.0, **(BUSY if left else ALL))
    assert pace.prefetch <= 2
    assert pace.bulk.pause >= 64


def test_few_records_in_a_batch_say_nothing_of_large_ones() -> None:
    pace = Pace()
    batches(pace, 300.0, 0.01, times=12)
    large = pace.prefetch
    for _ in range(50):
        pace.worked(1, 300.0, **ALL)
    assert pace.prefetch == large


def test_another_work_than_before_begins_anew() -> None:
    pace = Pace()
    batches(pace, 300.0, 0.5)
    assert pace.prefetch > 100
    batches(pace, 0.0, 100.0, times=60)
    assert pace.prefetch <= 4


@pytest.mark.parametrize(
    ("per_ms", "ceiling", "record_bytes", "refill"),
    [
        (0.0, 500, 100, 0),
        (0.1, 20, 100, 0),
        (2.0, 400, 100, 2 * REFILL_MS),
        (1e6, 12_000, 100, 12_000 // REFILL_PART),
        (1e6, 12_000, 1_200, DELIVERY_BYTES_MAX // 1_200),
        (1e6, 1, 10 << 20, 0),
        (1e6, 3, 0, 0),
    ],
)
def test_room_that_is_worth_a_message(
    per_ms: float, ceiling: int, record_bytes: int, refill: int
) -> None:
    assert Pace(records_per_ms=per_ms).refill(ceiling, record_bytes) == refill
