"""Which folders, times and errors a reader knows, without Spark."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta, timezone

import pytest

from sharecoord.analytics import frames
from sharecoord.analytics.errors import AnalyticsError, EventsCorruptError, JobFailedError
from sharecoord.analytics.frames import Findings, Range
from sharecoord.eventlog.schema import COLUMNS, SCHEMA_VERSION

BROKEN = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///e/{}. SQLSTATE"


def test_the_schema_is_that_of_the_events() -> None:
    names = [part.split()[0] for part in frames.SCHEMA.split(", ")]
    assert names == [column.name for column in COLUMNS]
    assert "time timestamp" in frames.SCHEMA
    assert "key binary" in frames.SCHEMA


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-05", datetime(2026, 1, 5, tzinfo=UTC)),
        ("2026-01-05T10:00", datetime(2026, 1, 5, 10, tzinfo=UTC)),
        ("2026-01-05T10:00Z", datetime(2026, 1, 5, 10, tzinfo=UTC)),
        ("2026-01-05T10:00+02:00", datetime(2026, 1, 5, 8, tzinfo=UTC)),
    ],
)
def test_times_are_utc(text: str, time: datetime) -> None:
    found = frames.parse_time(text)
    assert (found, found.utcoffset()) == (time, timedelta(0))


def test_what_is_no_time() -> None:
    for text in ("", "yesterday", "2026-13-01"):
        with pytest.raises(ValueError, match=r".+"):
            frames.parse_time(text)


def test_an_empty_range_is_refused() -> None:
    time = datetime(2026, 1, 5, tzinfo=UTC)
    frames.check_range(Range())
    frames.check_range(Range(time, time + timedelta(seconds=1)))
    with pytest.raises(AnalyticsError, match=r"--since .* must be before --until"):
        frames.check_range(Range(time, time))


@pytest.mark.parametrize(
    ("name", "meets"),
    [
        ("date=2026-01-03", False),
        ("date=2026-01-04", True),
        ("date=2026-01-05", True),
        ("date=2026-01-06", False),
        ("date=someday", True),
        ("events.parquet", True),
    ],
)
def test_folders_of_other_dates_are_not_looked_into(name: str, *, meets: bool) -> None:
    # Another zone: it is the date in UTC that counts.
    zone = timezone(timedelta(hours=2))
    wanted = Range(datetime(2026, 1, 5, 1, tzinfo=zone), datetime(2026, 1, 6, 2, tzinfo=zone))
    assert frames._meets(f"file:/e/{name}", wanted) is meets
    assert frames._meets(f"file:/e/{name}/", Range())


def test_paths_as_people_write_them() -> None:
    assert frames.plain_path("file:///e/group=a%2520b/x") == "/e/group=a%20b/x"
    assert frames.plain_path("file:/e/group=a%20b/x") == "/e/group=a%20b/x"
    assert frames.plain_path("hdfs://h/e%20") == "hdfs://h/e%20"


def test_a_file_that_spark_complains_about() -> None:
    assert frames.corrupt_file(BROKEN.format("a.parquet")) == "/e/a.parquet"
    text = "Could not read footer for file: file:/e/b.parquet. SQLSTATE"
    assert frames.corrupt_file(text) == "/e/b.parquet"
    assert frames.corrupt_file("Job aborted") is None


def test_an_unreadable_file_is_named() -> None:
    def job(_: Collection[str]) -> int:
        raise RuntimeError(BROKEN.format("a.parquet"))

    findings = Findings()
    with pytest.raises(EventsCorruptError, match=r"^/e/a\.parquet can not be read") as caught:
        frames.reading(job, skip_corrupt=False, findings=findings)
    assert caught.value.path == "/e/a.parquet"
    assert findings.skipped == []
    # What was left out and still fails is not tried for ever.
    with pytest.raises(EventsCorruptError):
        frames.reading(job, skip_corrupt=True, findings=findings)


def test_unreadable_files_are_skipped_and_said() -> None:
    broken = ["/e/a.parquet", "/e/b.parquet"]

    def job(without: Collection[str]) -> int:
        for path in broken:
            if path not in without:
                raise RuntimeError(BROKEN.format(path.rpartition("/")[2]))
        return len(without)

    findings = Findings()
    assert frames.reading(job, skip_corrupt=True, findings=findings) == 2
    assert findings.skipped == broken
    assert [line.rpartition(" ")[2] for line in findings.warnings(SCHEMA_VERSION)] == broken


def test_a_disk_full_of_unreadable_files_ends_it() -> None:
    def job(without: Collection[str]) -> int:
        raise RuntimeError(BROKEN.format(f"{len(without)}.parquet"))

    with pytest.raises(EventsCorruptError, match="more than 100 files"):
        frames.reading(job, skip_corrupt=True, findings=Findings())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("java.io.IOException: No space left on device", "make room where --out"),
        ("java.lang.OutOfMemoryError: Java heap space", "--driver-memory"),
        (
            "Py4J\nsharecoord.analytics.errors.EventsCorruptError: t-0@1: broken\n\tat x",
            "^t-0@1: broken$",
        ),
        ("\n  something else\nat org.apache", "Spark failed: something else"),
    ],
)
def test_other_failures_say_what_helps(text: str, says: str) -> None:
    def job(_: Collection[str]) -> int:
        raise RuntimeError(text)

    with pytest.raises(JobFailedError, match=says):
        frames.reading(job, skip_corrupt=True, findings=Findings())


def test_a_newer_schema_is_said() -> None:
    assert Findings().warnings(None) == Findings().warnings(SCHEMA_VERSION) == []
    (line,) = Findings().warnings(SCHEMA_VERSION + 1)
    assert f"schema version {SCHEMA_VERSION + 1}, this release knows {SCHEMA_VERSION}" in line
