"""The flood breaker's gauge: shares of a window that moves along."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.letters.flood import FloodGauge, FloodSettings

HALF = FloodSettings(ratio=0.5, window_ms=60_000, records_min=100)


def test_more_than_the_share_and_only_with_enough_records() -> None:
    gauge = FloodGauge()
    gauge.count(0, 99, 99, HALF)
    assert gauge.why_stop(HALF) == ""
    gauge.count(1_000, 99, 0, HALF)
    gauge.count(2_000, 2, 1, HALF)
    assert gauge.why_stop(HALF) == ""
    gauge.count(3_000, 2, 2, HALF)
    assert gauge.why_stop(HALF) == (
        "102 of 202 records of the last 60 s became dead letters (50%), more than "
        "errors.deadletterqueue.flood.ratio=0.5"
    )
    assert gauge.why_stop(HALF._replace(ratio=0.0)) == ""
    gauge.clear()
    assert gauge.why_stop(HALF) == ""


def test_what_is_older_than_the_window_counts_no_more() -> None:
    gauge = FloodGauge()
    gauge.count(0, 200, 200, HALF)
    gauge.count(59_999, 1, 0, HALF)
    assert gauge.why_stop(HALF)
    gauge.count(60_000, 100, 0, HALF)
    assert gauge.why_stop(HALF) == ""


def test_a_letter_is_a_finished_record_whichever_was_counted_first() -> None:
    gauge = FloodGauge()
    gauge.count(0, 10, 120, HALF)
    assert gauge.why_stop(HALF).startswith("120 of 120 records")


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 50), st.integers(0, 50))))
def test_it_says_what_a_plain_sum_says(steps: list[tuple[int, int, int]]) -> None:
    """To a twentieth of the window; with a bounded number of parts."""
    gauge, settings = FloodGauge(), FloodSettings(0.3, 20_000, 10)
    said: list[tuple[int, int, int]] = []
    now_ms = 0
    for wait_ms, accepted, letters in steps:
        now_ms += wait_ms
        said.append((now_ms, accepted + letters, letters))
        gauge.count(now_ms, accepted + letters, letters, settings)
        assert len(gauge._buckets) <= 21
        possible = set()
        for slack_ms in range(0, 1_001, 50):
            recent = [s for s in said if s[0] > now_ms - 20_000 - slack_ms + 1_000]
            finished, gone = sum(s[1] for s in recent), sum(s[2] for s in recent)
            possible.add(finished >= 10 and gone > 0.3 * finished)
        if len(possible) == 1:
            assert bool(gauge.why_stop(settings)) in possible
