"""How a member's pace is learnt."""

from __future__ import annotations

from sharecoord.runtime.sessions import PACE_SLICE_MS, Pace


def test_a_quick_answer_of_an_idle_member_counts_at_once() -> None:
    pace = Pace()
    pace.started(0)
    pace.finished(1, 2, drained=True)
    assert pace.prefetch == 100


def test_the_tail_of_a_busy_time_says_nothing() -> None:
    pace = Pace()
    pace.started(0)
    pace.finished(6, 400, drained=False)
    assert pace.prefetch == 3
    pace.finished(2, 401, drained=True)
    assert pace.prefetch == 3


def test_a_member_that_gets_slow_is_followed_down() -> None:
    pace, now = Pace(), 0
    pace.started(0)
    pace.finished(100, 10, drained=True)
    assert pace.prefetch == 2_000
    for _ in range(40):
        pace.started(now)
        now += PACE_SLICE_MS
        pace.finished(1, now, drained=True)
    assert pace.prefetch == 4


def test_a_member_that_works_something_off_gets_one_at_least() -> None:
    pace = Pace()
    pace.started(0)
    pace.finished(1, 5_000, drained=True)
    assert pace.prefetch == 1


def test_the_members_own_time_counts_without_the_way() -> None:
    pace = Pace()
    pace.worked(1, 50.0)
    assert pace.prefetch == 4
    for _ in range(10):
        pace.worked(4, 200.0)
    assert pace.prefetch == 4


def test_short_times_are_added_up_before_they_count() -> None:
    pace = Pace()
    pace.worked(1, 10.0)
    assert pace.prefetch == 20
    for _ in range(4):
        pace.worked(1, 11.0)
        assert pace.prefetch == 20
    pace.worked(1, 60.0)
    assert pace.prefetch == 16
    pace.worked(100, 50.0)
    assert pace.prefetch == 400


def test_no_time_at_all_is_a_bounded_pace() -> None:
    pace = Pace()
    pace.worked(1_000, 0.000_001)
    assert pace.prefetch == 20_000_000
