"""The locks job's tables on small frames, against results by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from sharecoord.analytics.attempts import attempts
from sharecoord.analytics.census import census
from sharecoord.analytics.locks import transform
from tests.analytics.support import Row, by, change, event, frame, handed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LOCK_MS = 30_000


def said(held_ms: int, records: int = 1, *, member: str = "a", **values: Any) -> Row:
    """An acknowledgement of a lock that was not renewed."""
    given = {"held_ms": held_ms, "lock_left_ms": LOCK_MS - held_ms, "state": "acknowledged"}
    return change(9, values.pop("what", "accepted"), member, records, **{**given, **values})


def test_quantiles_expiries_and_near_misses(spark: SparkSession) -> None:
    rows = [
        *(handed(1, name, 100, lock_ms=LOCK_MS) for name in ("a", "b")),
        said(100, 90),
        said(500, 9, what="released"),
        said(28_000, 1, what="rejected"),
        # Nearly all the time was over, but not of the lock that was renewed.
        said(100_000, 1, lock_left_ms=9_000),
        change(9, "renewed", "a", 1, lock_ms=LOCK_MS, held_ms=20_000, lock_left_ms=10_000),
        change(9, "expired", "b", 4, held_ms=LOCK_MS, state="available"),
        change(9, "departed", "b", 2, held_ms=5, state="available"),
    ]
    found = by(transform.members(attempts(frame(spark, rows))), "member_id")
    a, b = found["a"], found["b"]
    assert (a["acknowledged"], a["renewed"], a["expired"], a["near_misses"]) == (101, 1, 0, 1)
    assert (a["held_p50_ms"], a["held_p95_ms"], a["lock_ms"]) == (100, 500, LOCK_MS)
    assert a["held_max_ms"] == pytest.approx(100_000, rel=0.005)
    assert (a["near_share"], a["expired_share"], a["client_id"]) == (1 / 101, 0, "client-a")
    assert (b["acknowledged"], b["expired"], b["departed"]) == (0, 4, 2)
    assert (b["held_p50_ms"], b["near_share"], b["expired_share"]) == (None, None, 1)


DURATIONS = [
    (1, 1_000),
    (2_100, 3_000),
    (10_000, 10_000),
    (10_001, 15_000),
    (61_000, 90_000),
    (601_000, 900_000),
    (3_600_001, 5_400_000),
    (10**12, 43_200_000),
]
"""What is needed, and what people set."""


def test_durations_that_people_set(spark: SparkSession) -> None:
    needed = spark.createDataFrame([(float(ms),) for ms, _ in DURATIONS], "ms double").coalesce(1)
    rounded = needed.select(transform.rounded(F.col("ms"))).collect()
    assert [row[0] for row in rounded] == [ms for _, ms in DURATIONS]


FIGURES: dict[str, Any] = {
    "acknowledged": 100_000,
    "expired": 0,
    "expired_share": 0.0,
    "near_share": 0.0,
    "held_p50_ms": 4_000.0,
    "held_p999_ms": 16_000.0,
    "lock_ms": 30_000.0,
    "at_a_time": 50.0,
    "work_ms": None,
}


ADVICE: list[tuple[dict[str, Any], str, int | None, int | None]] = [
    ({}, "fits", 25_000, None),
    ({"acknowledged": 999}, "too_few", 25_000, None),
    ({"held_p999_ms": 2_000.0}, "shorter", 3_000, None),
    # Nobody needs half of the lock, and yet some expire.
    ({"expired_share": 0.01, "held_p999_ms": 2_000.0}, "gone", 3_000, None),
    # How long the expired ones would have taken nobody knows.
    ({"expired_share": 0.01}, "longer", 60_000, None),
    ({"near_share": 0.01, "held_p999_ms": 29_000.0}, "longer", 45_000, None),
    ({"expired_share": 0.01, "held_p50_ms": 900.0}, "renew", 60_000, None),
    ({"expired_share": 0.01, "work_ms": 500.0}, "fewer_records", 60_000, 40),
    # A single record takes longer than the lock: fewer at a time do not help.
    ({"expired_share": 0.01, "work_ms": 40_000.0}, "longer", 60_000, 1),
    ({"work_ms": 100.0}, "fits", 25_000, 200),
    ({"acknowledged": 0, "held_p50_ms": None, "held_p999_ms": None}, "too_few", None, None),
]
"""What differs from `FIGURES`; advice, advised lock in ms, records of a poll."""


@pytest.fixture(scope="module")
def advised(spark: SparkSession) -> list[Any]:
    """The advice on each of `ADVICE`, in order."""
    types = ", ".join(
        f"{name} {'bigint' if name in ('acknowledged', 'expired') else 'double'}"
        for name in FIGURES
    )
    rows = [tuple({**FIGURES, **given}.values()) for given, *_ in ADVICE]
    return transform.advised(spark.createDataFrame(rows, types).coalesce(1)).collect()


@pytest.mark.parametrize("number", range(len(ADVICE)), ids=[f"{given}" for given, *_ in ADVICE])
def test_advice(advised: list[Any], number: int) -> None:
    _, advice, lock_ms, poll = ADVICE[number]
    row = advised[number]
    assert (row["advice"], row["advised_lock_ms"], row["poll_records"]) == (advice, lock_ms, poll)


def test_a_line_per_group(spark: SparkSession) -> None:
    rows = [
        handed(1, "a", 1_000, lock_ms=LOCK_MS, change_sequence=1),
        said(100, 2_000, work_us=2_000 * 5_000, change_sequence=2),
        event("group", 1, event="paused", group_id="idle"),
    ]
    events = frame(spark, rows)
    found = by(transform.groups(attempts(events), census(events)), "group_id")
    group, idle = found["g"], found["idle"]
    assert (group["acknowledged"], group["lock_ms"], group["held_p999_ms"]) == (2_000, LOCK_MS, 100)
    assert (group["advice"], group["advised_lock_ms"], group["work_ms"]) == ("shorter", 1_000, 5)
    assert (group["at_a_time"], group["poll_records"], group["complete"]) == (1_000, 4_000, 1)
    assert (idle["advice"], idle["acknowledged"], idle["lock_ms"]) == (None, None, None)
