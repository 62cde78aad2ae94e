"""Reading event files: ranges, groups, other versions, and files that are wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sharecoord.analytics.errors import (
    EventsCorruptError,
    EventsNotFoundError,
    EventsTwiceError,
)
from sharecoord.analytics.fairness import job
from sharecoord.analytics.frames import Range, read_events
from sharecoord.analytics.lag import job as lag
from sharecoord.analytics.locks import job as locks
from sharecoord.eventlog.schema import COLUMN_NAMES, SCHEMA_VERSION
from tests.analytics.support import ARROW_SCHEMA, at, busy, event, handed, sample, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DAY_S = 86_400.0


def times(spark: SparkSession, folder: Path, **wanted: Any) -> list[float]:
    """Seconds of the rows in a range."""
    found = read_events(spark, str(folder), Range(**wanted))
    rows = found.selectExpr("unix_millis(time) AS ms").orderBy("ms").collect()
    return [row["ms"] / 1_000 - at(0).timestamp() for row in rows]


def test_all_columns_as_they_were_written(spark: SparkSession, tmp_path: Path) -> None:
    row = handed(1.5, "a", 3, change_sequence=7, key=b"\x00k", oldest_time=at(1))
    write(tmp_path, [row])
    found = read_events(spark, str(tmp_path))
    assert found.columns == list(COLUMN_NAMES)
    (read,) = found.withColumn("key", found["key"].cast("binary")).collect()
    assert bytes(read["key"]) == b"\x00k"
    same = set(COLUMN_NAMES) - {"time", "oldest_time", "key"}
    assert {name: read[name] for name in same} == {name: row.get(name) for name in same}
    assert times(spark, tmp_path) == [1.5]


def test_a_range_of_time(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [handed(s, "a", 1) for s in (-DAY_S, -1, 0, 1, DAY_S - 1, DAY_S, 2 * DAY_S)])
    assert times(spark, tmp_path, since=at(0), until=at(DAY_S)) == [0, 1, DAY_S - 1]
    assert times(spark, tmp_path, until=at(0)) == [-DAY_S, -1]
    assert times(spark, tmp_path, since=at(DAY_S)) == [DAY_S, 2 * DAY_S]
    # Other dates are not even opened: one of them is broken.
    other = next(tmp_path.glob("date=2026-01-07/*/*"))
    other.write_bytes(b"broken")
    assert times(spark, tmp_path, until=at(DAY_S)) == [-DAY_S, -1, 0, 1, DAY_S - 1]


def test_groups_are_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    names = ["007", "7", "a b/ü=%", "g"]
    write(tmp_path, [handed(1, "a", 1, group_id=name) for name in names])
    write(tmp_path, [event("lost", 1, records=3, group_id="")])
    found = read_events(spark, str(tmp_path), Range(groups=("007", "a b/ü=%")))
    kept = sorted(row["group_id"] for row in found.collect())
    assert kept == ["", "007", "a b/ü=%"]
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "PartitionFilters: [" in plan
    assert "group#" in plan


def test_files_without_folders_are_read_too(spark: SparkSession, tmp_path: Path) -> None:
    (file,) = write(tmp_path / "made", [handed(1, "a", 1)])
    flat = tmp_path / "flat"
    flat.mkdir()
    file.rename(flat / "x.parquet")
    assert times(spark, flat) == [1]


def test_what_begins_with_an_underscore_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [handed(1, "a", 1)])
    write(tmp_path, [handed(2, "a", 1)], name="_events-2")
    (tmp_path / "_truth.json").write_text("{}")
    assert times(spark, tmp_path) == [1]


def test_missing_columns_are_null_and_unknown_ones_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    fewer = pa.schema([f for f in ARROW_SCHEMA if f.name not in ("held_ms", "interval_ms")])
    more = fewer.append(pa.field("colour", pa.string()))
    write(tmp_path, [handed(1, "a", 1, colour="red")], schema=more)
    (row,) = read_events(spark, str(tmp_path)).collect()
    assert row["held_ms"] is None
    assert row["records"] == 1
    assert "colour" not in row.asDict()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda place: None, "there is no such folder"),
        (lambda place: place.mkdir(), "the folder is empty"),
        (lambda place: (place / "date=2026-01-05/group=g").mkdir(parents=True), "no Parquet files"),
        (lambda place: write(place, [handed(-DAY_S, "a", 1)]), "no files between 2026-01-05T00:00"),
    ],
)
def test_nothing_to_read(spark: SparkSession, tmp_path: Path, make: Any, says: str) -> None:
    make(tmp_path / "events")
    with pytest.raises(EventsNotFoundError, match=f"--events .*{says}"):
        read_events(spark, str(tmp_path / "events"), Range(since=at(0)))


def test_a_file_system_that_is_not_known(spark: SparkSession) -> None:
    with pytest.raises(EventsNotFoundError, match="--events what://x"):
        read_events(spark, "what://x/y")


# -- the job on files that are wrong --------------------------------------------------------------


def rows_of(group: str) -> list[dict[str, Any]]:
    made = [sample(second, "a", 9, 5, group_id=group) for second in range(1, 4)]
    return [*made, handed(0.5, "a", 15, group_id=group, change_sequence=1)]


def test_an_unreadable_file_is_named_or_skipped(spark: SparkSession, tmp_path: Path) -> None:
    events = tmp_path / "events"
    write(events, rows_of("g"))
    (whole,) = write(events, rows_of("a%b"))
    content = whole.read_bytes()
    damages = (
        b"no parquet",  # of another kind
        content[: len(content) // 2],  # half written
        content[:40] + b"\xff" * 400 + content[440:],  # pages overwritten, footer whole
        b"",
    )
    for damage in damages:
        whole.write_bytes(damage)
        with pytest.raises(EventsCorruptError) as caught:
            locks.run(spark, str(events), None)
        assert str(whole) in caught.value.message
        assert "--skip-corrupt" in caught.value.message
        result = locks.run(spark, str(events), None, skip_corrupt=True)
        assert [row["group_id"] for row in result.rows] == ["g"]
        assert result.findings.skipped == [str(whole)]
        assert any(str(whole) in line for line in result.warnings())
    next(events.glob("date=*/group=g/*")).write_bytes(b"x")
    with pytest.raises(EventsNotFoundError, match="every file in it is unreadable"):
        locks.run(spark, str(events), None, skip_corrupt=True)


def test_a_newer_schema_is_read_with_a_warning(spark: SparkSession, tmp_path: Path) -> None:
    newer = SCHEMA_VERSION + 1
    rows = [{**row, "schema_version": newer} for row in rows_of("g")]
    write(tmp_path / "e", [*rows, {**event("novelty", 1), "schema_version": newer}])
    result = job.run(spark, str(tmp_path / "e"), str(tmp_path / "out"))
    (row,) = result.rows
    assert (row["members"], row["records"], row["jain"]) == (1, 15, 1.0)
    assert any(f"schema version {newer}" in line for line in result.warnings())


def test_the_tables_replace_those_of_an_earlier_run(spark: SparkSession, tmp_path: Path) -> None:
    events, out = str(tmp_path / "e"), str(tmp_path / "out")
    write(tmp_path / "e", [*rows_of("g"), *rows_of("h")])
    assert len(locks.run(spark, events, out).rows) == 2
    result = locks.run(spark, events, out, wanted=Range(groups=("h",)))
    assert [row["group_id"] for row in result.rows] == ["h"]
    for table, rows in ((locks.MEMBERS, 1), (locks.GROUPS, 1)):
        assert spark.read.parquet(f"{out}/{table}").count() == rows
    assert result.warnings() == []


def test_a_group_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "e", rows_of("g"))
    with pytest.raises(EventsNotFoundError, match="--group nobody"):
        locks.run(spark, str(tmp_path / "e"), None, wanted=Range(groups=("nobody",)))


# -- events that are there twice ------------------------------------------------------------------


def test_a_copy_of_a_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (path,) = write(tmp_path / "e", busy(0, 20))
    shutil.copy(path, path.with_name("copy of it.parquet"))
    for run in (job.run, lag.run):
        with pytest.raises(EventsTwiceError, match="hold the same events") as caught:
            run(spark, str(tmp_path / "e"), str(tmp_path / "out"))
        assert all(name in caught.value.message for name in (path.name, "copy of it.parquet"))
    assert list((tmp_path / "out").iterdir()) == [], "no table has doubled figures"


def test_files_that_were_joined_and_brought_back_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = busy(0, 20)
    write(tmp_path / "e", rows[:30], name="events-1")
    write(tmp_path / "e", rows[30:], name="events-2")
    assert locks.run(spark, str(tmp_path / "e"), None).rows[0]["events"] == len(rows)
    write(tmp_path / "e", rows, name="events-joined")
    with pytest.raises(EventsTwiceError, match=r"events-joined\.parquet"):
        locks.run(spark, str(tmp_path / "e"), None)


def test_a_change_whose_rows_are_in_two_files_is_there_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in (0, 1):
        parts = [handed(1, "a", 5, change_sequence=7, first_offset=5 * number)]
        write(tmp_path / "e", parts, name=f"events-{number}")
    (row,) = job.run(spark, str(tmp_path / "e"), str(tmp_path / "out")).rows
    assert (row["records"], row["complete"]) == (10, 1.0)
