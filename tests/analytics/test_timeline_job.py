"""The timeline that Spark reads is the one that is read without it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sharecoord.analytics.errors import AnalyticsError, EventsNotFoundError
from sharecoord.analytics.frames import Range
from sharecoord.analytics.timeline import files, job
from sharecoord.analytics.timeline.files import Wanted
from sharecoord.analytics.timeline.story import story
from tests.analytics.support import Row, at, change, event, sample, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def changed(sequence: int, what: str, first: int, last: int, **values: Any) -> Row:
    given = {
        "first_offset": first,
        "last_offset": last,
        "change_sequence": sequence,
        "delivery_count": 1,
        "state": "available",
        "held_ms": 5,
        "lock_ms": 30_000,
    }
    member = values.pop("member", "a")
    return change(sequence, what, member, last - first + 1, **{**given, **values})


ROWS = [
    event("group", 0, event="joined", member_id="a", client_id="client-a"),
    changed(1, "acquired", 0, 9),
    changed(2, "released", 5, 5, key=b"k", reason="busy"),
    changed(3, "accepted", 0, 4, state="acknowledged"),
    changed(4, "acquired", 5, 5, member="b", delivery_count=2),
    changed(5, "rejected", 5, 5, member="b", key=b"k", state="archived", delivery_count=2),
    changed(6, "truncated", 3, 9, state=None),
    changed(7, "reset", 100, 100, state=None),
    changed(3, "acquired", 5, 5, partition=1, member="b"),
    changed(4, "released", 6, 6, partition=1, key=b"k"),
    changed(4, "acquired", 5, 5, topic="other", member="b"),
    changed(4, "acquired", 5, 5, group_id="h", member="b"),
    sample(4, "a", 5, 5),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("log") / "events"
    write(made, ROWS)
    return made


@pytest.mark.parametrize(
    ("whose", "count"),
    [
        (Wanted("g", "t", 0, offset=5), 6),
        (Wanted("g", "t", 0, offset=0), 3),
        (Wanted("g", key=b"k"), 7),
        (Wanted("g", "t", 1, key=b"k"), 1),
        (Wanted("g", member_id="a"), 7),
        (Wanted("g", member_id="nobody"), 0),
    ],
)
def test_the_same_story(spark: SparkSession, folder: Path, whose: Wanted, count: int) -> None:
    expected = [
        (step.time.isoformat(timespec="milliseconds"), step.text)
        for step in story(files.read_events(folder, whose))
    ]
    if not expected:
        with pytest.raises(EventsNotFoundError):
            job.run(spark, str(folder), None, whose=whose)
        return
    found = job.run(spark, str(folder), None, whose=whose)
    assert sorted((row["time"], row["text"]) for row in found.rows) == sorted(expected)
    assert len(found.rows) == count


def test_in_order_with_a_table(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    whose = Wanted("g", "t", 0, offset=5)
    found = job.run(spark, str(folder), str(tmp_path), whose=whose)
    assert [row["event"] for row in found.rows] == [
        *("acquired", "released", "acquired", "rejected", "truncated", "reset"),
    ]
    assert found.rows[0]["time"] == "2026-01-05T00:00:01.000+00:00"
    assert len(list(found.lines())) == 6
    assert spark.read.parquet(f"{tmp_path}/{job.EVENTS}").count() == 6


def test_less_time_is_a_shorter_story(spark: SparkSession, folder: Path) -> None:
    whose, wanted = Wanted("g", "t", 0, offset=5), Range(at(2), at(5))
    found = job.run(spark, str(folder), None, whose=whose, wanted=wanted)
    assert [row["event"] for row in found.rows] == ["released", "acquired"]


def test_more_than_anybody_reads(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "STORY_EVENTS_MAX", 5)
    with pytest.raises(AnalyticsError, match="more than 5 events"):
        job.run(spark, str(folder), None, whose=Wanted("g", member_id="a"))
