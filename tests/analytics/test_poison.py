"""The poison job's tables on small frames, against results by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sharecoord.analytics.attempts import attempts, with_member
from sharecoord.analytics.census import census
from sharecoord.analytics.poison import transform
from tests.analytics.support import Row, by, change, dicts, event, frame, handed, sample

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def failed(seconds: float, offset: int, count: int, **values: Any) -> Row:
    """One record that is released again."""
    given = {"first_offset": offset, "last_offset": offset, "delivery_count": count}
    what = values.pop("what", "released")
    member, records = values.pop("member", "a"), values.pop("records", 1)
    given["state"] = "available"
    return change(seconds, what, member, records, **{**given, **values})


def accepted(seconds: float, records: int, count: int = 1, **values: Any) -> Row:
    return change(
        seconds,
        "accepted",
        values.pop("member", "a"),
        records,
        **{"state": "acknowledged", "delivery_count": count, **values},
    )


def poisoned(offset: int, key: bytes) -> list[Row]:
    """A record that fails until it is given up."""
    return [
        failed(i, offset, i, key=key, reason=f"ValueError: {i}", state=state)
        for i, state in ((1, "available"), (2, "available"), (3, "archiving"))
    ]


# -- deliveries -----------------------------------------------------------------------------------


def test_how_often_finished_records_were_delivered(spark: SparkSession) -> None:
    rows = [
        accepted(1, 70),
        accepted(2, 20, 2),
        *poisoned(5, b"k"),
        change(9, "dead_lettered", "a", 1, state="archived", delivery_count=3),
        event("range", 9, event="log_start", topic="t", records=9, state="archived")
        | {"delivery_count": 0},
    ]
    found = by(transform.deliveries(attempts(frame(spark, rows))), "delivery_count")
    assert {count: (row["accepted"], row["archived"]) for count, row in found.items()} == {
        0: (0, 9),
        1: (70, 0),
        2: (20, 0),
        3: (0, 1),
    }
    assert found[1]["share"] == 0.7


# -- what fails -----------------------------------------------------------------------------------


def test_records_and_keys_that_fail_most(spark: SparkSession) -> None:
    rows = [
        *poisoned(5, b"bad"),
        *poisoned(7, b"bad"),
        # The same key on another day: bad luck.
        *(failed(i, 100 + i, 1, key=b"once") for i in range(5)),
        # Three deliveries are enough, given up or not.
        *(failed(i, 50, i, key=b"\xff\x00") for i in (1, 2, 3)),
        failed(9, 60, 1, records=4, last_offset=63),
        failed(9, 60, 1, group_id="h"),
    ]
    made = transform.troubles(frame(spark, rows))
    keys = by(transform.worst_keys(transform.keys(made), made), "group_id", "key")
    assert keys.keys() == {("g", "bad"), ("g", "once"), ("g", "0xff00")}
    bad, once = keys["g", "bad"], keys["g", "once"]
    assert (bad["rank"], bad["failures"], bad["records"], bad["given_up"]) == (1, 6, 2, 2)
    assert (bad["poison"], bad["deliveries_max"], bad["reason"]) == (True, 3, "ValueError: #")
    assert (once["rank"], once["failures"], once["poison"]) == (3, 5, False)
    assert keys["g", "0xff00"]["poison"] is True
    records = transform.worst_records(transform.records(made), made)
    found = by(records, "group_id", "first_offset")
    assert (found["g", 5]["failures"], found["g", 5]["rank"], found["g", 5]["key"]) == (3, 1, "bad")
    assert (found["g", 60]["failures"], found["g", 60]["records"]) == (1, 4)
    assert found["h", 60]["rank"] == 1
    assert {row["first_offset"] for row in dicts(transform.top(records, 2))} == {5, 7, 60}


REASONS = [
    ("HTTP 503 after 1.25 s", "HTTP # after # s"),
    ("order 6b0e1c7a-0000-4000-8000-0123456789ab at 0xFFab", "order # at #"),
    ("no digits", "no digits"),
    ("x" * 300, "x" * 200),
    (None, None),
]
"""What was said, and what is kept of it."""


def test_reasons_without_numbers(spark: SparkSession) -> None:
    rows = [
        failed(1, 1, 1, reason=said, records=records, group_id=str(place))
        for place, (said, _) in enumerate(REASONS)
        for records in (1, 9)
    ]
    found = by(transform.reasons(transform.troubles(frame(spark, rows))), "group_id")
    assert len(found) == len(REASONS)
    for place, (_, kept) in enumerate(REASONS):
        row = found[str(place)]
        assert (row["reason"], row["records"], row["ranges"]) == (kept, 10, 2)


# -- what it costs --------------------------------------------------------------------------------


def test_work_that_came_to_nothing(spark: SparkSession) -> None:
    rows = [
        handed(1, "a", 10, lock_ms=30_000),
        sample(1, "a", 10, 10, held=10),
        sample(2, "a", 10, 0, held=0),
        # Known: 18 s in all, 9 s of them for nothing.
        accepted(2, 5, held_ms=800, work_us=9_000_000),
        failed(2, 5, 1, records=5, held_ms=800, work_us=9_000_000),
        # Not known: held for a minute, of which the lock counts, with nine others.
        failed(3, 20, 1, records=10, what="expired", held_ms=60_000),
        # Handed back unseen: no attempt.
        change(3, "returned", "a", 7, state="available", held_ms=5_000),
    ]
    (found,) = dicts(transform.members(attempts(frame(spark, rows))))
    assert (found["attempts"], found["failed"], found["expired"]) == (20, 15, 10)
    assert (found["at_a_time"], found["lock_ms"], found["work_ms"]) == (10, 30_000, 1_800)
    assert found["wasted_hours"] == pytest.approx((9 + 30) / 3_600)
    assert found["spent_hours"] == pytest.approx((9 + 9 + 30) / 3_600)
    assert (found["expired_share"], found["load"]) == (0.5, pytest.approx(18_000 / 30_000))


def test_without_samples_the_ranges_tell_how_many_are_held(spark: SparkSession) -> None:
    rows = [handed(1, "a", 30), handed(2, "a", 10), handed(1, "b", 1)]
    found = by(
        with_member(attempts(frame(spark, rows))).select("member_id", "at_a_time"), "member_id"
    )
    assert {name: row["at_a_time"] for name, row in found.items()} == {"a": 20, "b": 1}


def test_expiries_by_handler_time(spark: SparkSession) -> None:
    rows = []
    for member, work_s, expired in (("fast", 1, 0), ("slow", 28, 6), ("late", 90, 10)):
        rows += [
            handed(1, member, 1, lock_ms=30_000),
            accepted(2, 4, member=member, held_ms=9_000, work_us=4_000_000 * work_s),
            failed(3, 9, 1, member=member, what="expired", records=expired, held_ms=30_000),
        ]
    found = by(transform.expiries(transform.members(attempts(frame(spark, rows)))), "load_from")
    assert {load: row["expired"] for load, row in found.items()} == {0: 0, 0.75: 6, 1: 10}
    assert found[0.75]["expired_share"] == 0.6


# -- groups ---------------------------------------------------------------------------------------


def test_a_line_per_group(spark: SparkSession) -> None:
    rows = [
        accepted(1, 96, held_ms=1_000),
        *poisoned(5, b"bad"),
        failed(4, 9, 1, key=b"x", reason="busy"),
        change(9, "dead_lettered", "a", 1, state="archived", delivery_count=3),
        event("group", 1, event="paused", group_id="idle"),
    ]
    events = frame(spark, rows)
    made, troubles = attempts(events), transform.troubles(events)
    found = by(
        transform.groups(
            transform.deliveries(made),
            transform.members(made),
            transform.keys(troubles),
            transform.reasons(troubles),
            census(events),
        ),
        "group_id",
    )
    group, idle = found["g"], found["idle"]
    assert (group["attempts"], group["failed"], group["failed_share"]) == (100, 4, 0.04)
    assert (group["accepted"], group["archived"], group["dead_lettered"]) == (96, 1, 1)
    assert (group["poison_keys"], group["worst_keys"]) == (1, ["bad"])
    assert (group["delivery_max"], group["top_reason"]) == (3, "ValueError: #")
    assert group["delivery_mean"] == pytest.approx((96 + 3) / 97)
    assert (idle["attempts"], idle["poison_keys"], idle["worst_keys"]) == (0, 0, [])
    assert (idle["failed_share"], idle["wasted_hours"], idle["top_reason"]) == (None, 0, None)
