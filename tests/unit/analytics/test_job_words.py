"""Settings and verdicts of the jobs lag, poison and locks; what a timeline can be asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.jobs import JobResult
from sharecoord.analytics.lag import verdict as lag_words
from sharecoord.analytics.lag.job import JSON_KEYS
from sharecoord.analytics.lag.settings import LagSettings
from sharecoord.analytics.locks.settings import Advice
from sharecoord.analytics.locks.verdict import verdict as locks_verdict
from sharecoord.analytics.poison.settings import PoisonSettings
from sharecoord.analytics.poison.verdict import verdict as poison_verdict
from sharecoord.analytics.timeline.files import Wanted
from sharecoord.analytics.timeline.job import make_wanted
from sharecoord.analytics.times import span
from sharecoord.eventlog.schema import KEY_BYTES_MAX

PLACE: dict[str, Any] = {
    "group_id": "g",
    "topic": "t",
    "partition": 0,
    "lag": 900,
    "waiting": 800,
    "behind": False,
    "behind_ms": 65_000,
    "arrival_rate": 5.0,
    "service_rate": 4.0,
    "trend": "steady",
    "slope": 0.0,
    "drain_s": None,
    "forecast_error": 3.0,
    "forecast_error_naive": 5.0,
    "lag_share": 0.4,
    "topic_gini": 0.1,
    "stretches": 0,
    "last_without_lag": None,
    "since": None,
    "until": None,
    "causes": [],
    "complete": 1.0,
    "changes_seen": 9,
    "changes_expected": 9,
}
CAUSES = [
    {"cause": "arrival_rate", "before": 10.0, "around": 60.52, "score": 9.0},
    {"cause": "left", "before": 0.0, "around": 0.5, "score": 5.0},
]
BEHIND = {
    "behind": True,
    "since": "2026-01-05 00:01:00Z",
    "last_without_lag": "2026-01-05 00:00:50Z",
}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"waiting": 0}, "keeps up"),
        ({}, "keeps up: 800 records wait (65 s)"),
        ({"waiting": 1, "behind_ms": None}, "keeps up: 1 record waits"),
        (
            {"trend": "grows", "slope": 2.5},
            "keeps up: 800 records wait (65 s), growing by 2.5/s",
        ),
        (
            {**BEHIND, "causes": CAUSES},
            (
                "behind by 800 records (65 s), neither grows nor drains; behind since 2026-01-05 "
                "00:01:00Z: more records came (10 → 60.5/s), members left (0 → 0.5)"
            ),
        ),
        (
            {**BEHIND, "trend": "grows", "slope": 12.0, "behind_ms": None, "lag_share": 0.9},
            (
                "behind by 800 records, grows by 12.0/s; behind since 2026-01-05 00:01:00Z; it has "
                "90% of the topic's lag; an earlier forecast was off by 3 records"
            ),
        ),
        (
            {**BEHIND, "trend": "drains", "drain_s": 300.0, "forecast_error": 9.0},
            (
                "behind by 800 records (65 s), drained in 5 min; behind since 2026-01-05 00:01:00Z"
                "; an earlier forecast was off by 9 records, worse than no forecast"
            ),
        ),
        (
            {**BEHIND, "trend": None, "last_without_lag": None, "lag_share": None},
            (
                "behind by 800 records (65 s), too few windows for a forecast; behind from the "
                "beginning of the range"
            ),
        ),
        (
            {**BEHIND, "behind": False, "waiting": 0, "until": "2026-01-05 00:02:00Z"},
            "keeps up; was behind since 2026-01-05 00:01:00Z until 2026-01-05 00:02:00Z",
        ),
        (
            {"waiting": 0, "complete": 0.9, "changes_seen": 8},
            "keeps up; the log lacks 1 of 9 changes",
        ),
    ],
)
def test_words_about_lag(given: dict[str, Any], says: str) -> None:
    assert lag_words.verdict({**PLACE, **given}) == says


@pytest.mark.parametrize(
    ("hours", "says"),
    [(0.0001, "360 ms of"), (0.002, "7.2 s of"), (0.1, "6 min"), (30.0, "30.0 h")],
)
def test_wasted_time_has_a_unit_in_which_it_can_be_read(hours: float, says: str) -> None:
    given = {"failed": 20, "failed_share": 0.02, "wasted_hours": hours, "wasted_share": 0.25}
    assert f"{says}" in poison_verdict({**GROUP, **given})


def test_a_line_per_share_partition() -> None:
    (line,) = JobResult([PLACE], JSON_KEYS).lines()
    found = json.loads(line)
    assert tuple(found) == JSON_KEYS
    assert (found["group"], found["topic"], found["partition"]) == ("g", "t", 0)


GROUP: dict[str, Any] = {
    "attempts": 1_000,
    "failed": 0,
    "failed_share": 0.0,
    "expired": 0,
    "archived": 0,
    "poison_keys": 0,
    "worst_keys": [],
    "top_reason": None,
    "wasted_hours": 0.0,
    "wasted_share": 0.0,
    "complete": 1.0,
    "changes_seen": 9,
    "changes_expected": 9,
}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "nothing failed"),
        ({"attempts": 0}, "nothing was delivered"),
        ({"failed": 1, "failed_share": 0.001}, "0.10% of attempts failed; no key is poison"),
        (
            {"failed": 20, "failed_share": 0.02, "poison_keys": 1, "worst_keys": ["k"]}
            | {"top_reason": "ValueError: #", "archived": 4},
            "poison: 1 key (k); 2.00% of attempts failed, mostly ValueError: #; 4 records given up",
        ),
        (
            {"failed": 20, "failed_share": 0.02, "poison_keys": 9, "worst_keys": ["a", "b"]}
            | {"expired": 1, "wasted_hours": 1.25, "wasted_share": 0.25, "complete": 0.5},
            (
                "poison: 9 keys (a, b, …); 2.00% of attempts failed; the lock of one record "
                "expired; 75 min of the members' working time wasted (25%); the log lacks 0 of 9 "
                "changes"
            ),
        ),
    ],
)
def test_words_about_poison(given: dict[str, Any], says: str) -> None:
    assert poison_verdict({**GROUP, **given}) == says


LOCKS: dict[str, Any] = {
    "acknowledged": 5_000,
    "expired": 7,
    "near_misses": 3,
    "lock_ms": 30_000.0,
    "held_p50_ms": 900.0,
    "held_p999_ms": 29_000.0,
    "advised_lock_ms": 45_000,
    "at_a_time": 50.0,
    "work_ms": 500.0,
    "poll_records": 40,
    "complete": 1.0,
}


@pytest.mark.parametrize(
    ("advice", "says"),
    [
        (Advice.FITS, "the lock of 30 s fits: 99.9 % of records need at most 29 s"),
        (Advice.SHORTER, "the lock of 30 s is longer than needed: 99.9 % of records need at most "),
        (
            Advice.GONE,
            "locks of 7 records expired although 99.9 % of records need at most 29 s of ",
        ),
        (Advice.FEWER_RECORDS, "locks of 7 records expired, of 3 nearly: a record takes 500 ms, "),
        (Advice.RENEW, "locks of 7 records expired, of 3 nearly: few records take long (half need"),
        (Advice.LONGER, "locks of 7 records expired, of 3 nearly: 99.9 % of records need 29 s of "),
        (Advice.TOO_FEW, "no advice: 5000 records were acknowledged, locks of 7 records expired"),
    ],
)
def test_words_about_locks(advice: Advice, says: str) -> None:
    text = locks_verdict({**LOCKS, "advice": advice.value})
    assert text.startswith(says)
    assert ("45 s" in text) is (advice not in (Advice.FITS, Advice.TOO_FEW))


def test_a_group_in_which_nothing_was_delivered() -> None:
    idle = {**dict.fromkeys(LOCKS), "advice": None, "complete": 1.0}
    assert locks_verdict(idle) == "no advice: 0 records were acknowledged"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "500 ms"), (2.5, "2.5 s"), (65, "65 s"), (300, "5 min"), (9_000, "2.5 h")],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_settings_out_of_their_bounds() -> None:
    with pytest.raises(AnalyticsError, match="--window"):
        LagSettings(window_ms=1_500)
    with pytest.raises(AnalyticsError, match="--behind"):
        LagSettings(behind_ms=0)
    with pytest.raises(AnalyticsError, match="--top 0"):
        PoisonSettings(top=0)


def test_whose_life_is_told() -> None:
    assert make_wanted("g", topic="t", partition=0, offset=5) == Wanted("g", "t", 0, 5)
    assert make_wanted("g", key="ä") == Wanted("g", key="ä".encode())
    assert make_wanted("g", topic="t", key="0xff00") == Wanted("g", "t", key=b"\xff\x00")
    assert make_wanted("g", member_id="m") == Wanted("g", member_id="m")
    # Longer keys are cut in the log.
    assert make_wanted("g", key="k" * 300).key == b"k" * KEY_BYTES_MAX


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, "--offset"),
        ({"key": "k", "member_id": "m"}, "--key"),
        ({"offset": 5, "topic": "t"}, "--partition"),
        ({"member_id": "m", "topic": "t"}, "--member"),
        ({"key": "0xf"}, "hex"),
    ],
)
def test_what_is_no_story(given: dict[str, Any], names: str) -> None:
    with pytest.raises(AnalyticsError, match=names):
        make_wanted("g", **given)
