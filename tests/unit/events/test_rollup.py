"""Rollups beside large files: when there are some, and that they go with their file."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sharecoord.eventlog.rollups import DIRECTORY, TABLE
from sharecoord.events import compaction, parquet_files
from sharecoord.events.compaction import EventTools
from sharecoord.events.folder import EventFolder
from sharecoord.events.places import events_path, rollup_path
from sharecoord.events.rollup import rows_of
from tests.unit.events.support import DAY_US, NOON_US, block, write_files
from tests.unit.events.support import parquet_files as files_of

MIB = 1 << 20
TODAY, TOMORROW = date(2026, 11, 22), date(2026, 11, 23)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 8 rows are large."""
    for module in (parquet_files, compaction):
        monkeypatch.setattr(module, "ROWS_MIN", 8)
    monkeypatch.setattr(parquet_files, "ROW_GROUP_ROWS", 8)
    monkeypatch.setattr(parquet_files, "BATCH_ROWS", 4)


def rollups(root: Path) -> list[Path]:
    return sorted(path for path in (root / DIRECTORY).rglob("*") if path.is_file())


def test_a_large_file_has_rollups_and_a_small_one_has_none(tmp_path: Path) -> None:
    write_files(tmp_path, block("g", 0, 11), block("a/b", 0, 7))
    large, small = (next(p for p in files_of(tmp_path) if name in str(p)) for name in ("=g", "=a"))
    assert rollups(tmp_path) == [rollup_path(large)]
    assert events_path(rollup_path(large)) == large
    assert events_path(rollup_path(small)) == small
    assert rows_of(rollup_path(large)) == 11
    table = pq.read_table(rollup_path(large), partitioning=None)
    handed = [row for row in table.to_pylist() if row[TABLE] == "places"]
    assert sum(row["events"] for row in handed) == 11
    assert not list((tmp_path / "_spool").iterdir())
    assert EventFolder(tmp_path).check() == []


def test_compaction_makes_those_of_the_new_file_and_deletes_the_others(tmp_path: Path) -> None:
    for n in range(3):
        write_files(tmp_path, block("g", 10 * n, 10, time_us=NOON_US + n * 1_000_000))
    assert len(rollups(tmp_path)) == 3
    list(EventTools(tmp_path).compact(before=TOMORROW, file_max_bytes=MIB))
    (path,) = files_of(tmp_path)
    assert rollups(tmp_path) == [rollup_path(path)]
    assert rows_of(rollup_path(path)) == 30
    assert not list(path.parent.glob("_*"))


def test_compaction_makes_what_is_missing_and_deletes_what_is_left(tmp_path: Path) -> None:
    write_files(tmp_path, block("g", 0, 10))
    write_files(tmp_path, block("g", 0, 10, time_us=NOON_US + DAY_US))
    for path in rollups(tmp_path):
        path.unlink()
    first, second = files_of(tmp_path)
    place = rollup_path(first).parent
    gone, part = place / "events-gone.parquet", place / "_events-x.parquet.part"
    for each in (gone, part):
        each.write_bytes(b"")
    EventTools(tmp_path).roll_up(TOMORROW)
    assert rollups(tmp_path) == [rollup_path(first)]
    assert rows_of(rollup_path(first)) == 10
    EventTools(tmp_path).roll_up()
    assert rollups(tmp_path) == [rollup_path(first), rollup_path(second)]


def test_a_file_that_can_not_be_read_has_none(tmp_path: Path) -> None:
    write_files(tmp_path, block("g", 0, 10))
    (path,) = files_of(tmp_path)
    rollup_path(path).unlink()
    path.write_bytes(path.read_bytes()[:100])
    EventTools(tmp_path).roll_up()
    assert rollups(tmp_path) == []


def test_retention_deletes_them_with_their_date(tmp_path: Path) -> None:
    write_files(tmp_path, block("g", 0, 10), block("g", 20, 10, time_us=NOON_US + DAY_US))
    former = [tmp_path / "_rollups-1" / f"date={day}" for day in (TODAY, TOMORROW)]
    for each in former:
        each.mkdir(parents=True)
    now = datetime.combine(TODAY, datetime.min.time(), UTC) + timedelta(days=2)
    (deleted,) = EventFolder(tmp_path).retain(timedelta(days=1), now=now)
    assert (deleted.date, deleted.files) == (TODAY, 1)
    (path,) = files_of(tmp_path)
    assert rollups(tmp_path) == [rollup_path(path)]
    assert [each.exists() for each in former] == [False, True]
    assert not list(tmp_path.glob("_deleted*"))


@pytest.mark.parametrize("finding", ["not whole", "of 10 rows, and there are 12"])
def test_what_is_wrong_with_them_is_found(tmp_path: Path, finding: str) -> None:
    write_files(tmp_path, block("g", 0, 10))
    write_files(tmp_path, block("g", 0, 12, time_us=NOON_US + 1_000_000))
    first, second = (rollup_path(path) for path in files_of(tmp_path))
    second.write_bytes(b"PAR1" if finding == "not whole" else first.read_bytes())
    (found,) = EventFolder(tmp_path).check()
    assert found.finding == f"rollups {finding}"
    assert found.path == str(second.relative_to(tmp_path))
    second.unlink()
    list(EventTools(tmp_path).compact(before=TOMORROW, file_max_bytes=1))
    assert EventFolder(tmp_path).check() == []


def test_a_conversion_that_breaks_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files.ParquetFile, "finish", _full)
    with pytest.raises(OSError, match="full"):
        write_files(tmp_path, block("g", 0, 20))
    assert rollups(tmp_path) == []
    assert not list((tmp_path / "_spool").glob("*.part"))


def _full(*_: object) -> None:
    raise OSError("full")
