"""Few files in the place of many: what is joined, and what a kill leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sharecoord.errors import EventsFolderInUseError
from sharecoord.eventlog.schema import COLUMN_NAMES, SCHEMA_VERSION
from sharecoord.events import compaction
from sharecoord.events.compaction import EventTools, Joined, recover
from sharecoord.events.folder import EventFolder
from sharecoord.events.parquet_files import convert
from sharecoord.events.places import SPOOL
from sharecoord.events.schema import SCHEMA, VERSION_KEY
from sharecoord.events.spool import Segment, records_of
from tests.unit.events.support import (
    DAY_US,
    NOON_US,
    block,
    flip_a_bit,
    offsets,
    parquet_files,
    payload,
    write_files,
)
from tests.unit.events.test_folder import write

MIB = 1 << 20
TODAY = date(2026, 11, 22)
TOMORROW = date(2026, 11, 23)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four small files of a group, two of another, one of the day before."""
    for n in range(4):
        write_files(tmp_path, block("g", 10 * n, 10, time_us=NOON_US + n * 1_000_000))
    write_files(tmp_path, block("a/b", 0, 2))
    write_files(tmp_path, block("a/b", 2, 2))
    write_files(tmp_path, block("g", 100, 1, time_us=NOON_US - DAY_US))
    return tmp_path


def run(root: Path, before: date = TOMORROW, size: int = MIB, **options: Any) -> list[Joined]:
    return list(EventTools(root).compact(before=before, file_max_bytes=size, **options))


ALL = [*range(40), 100]


def test_the_files_of_a_date_and_group_are_joined(root: Path) -> None:
    would = run(root, dry_run=True)
    assert len(parquet_files(root)) == 7
    joined = run(root)
    assert [each._replace(bytes_after=None) for each in joined] == would
    assert [(each.date, each.group_id, each.files, each.rows) for each in joined] == [
        (TODAY, "a/b", 2, 4),
        (TODAY, "g", 4, 40),
    ]
    assert all(each.bytes_after < each.bytes_before for each in joined if each.bytes_after)
    assert len(parquet_files(root)) == 3
    assert offsets(root) == ALL
    assert offsets(root, "a/b") == [0, 1, 2, 3]
    path = parquet_files(root)[-1]
    assert path.name.startswith("events-compacted-20261122T120000-")
    assert pq.read_table(path, partitioning=None)["first_offset"].to_pylist() == list(range(40))
    assert EventFolder(root).check() == []
    assert run(root) == []


def test_a_compacted_file_is_joined_again_with_later_ones(root: Path) -> None:
    run(root)
    write_files(root, block("g", 40, 5))
    assert [(each.group_id, each.files) for each in run(root)] == [("g", 2)]
    assert offsets(root) == [*range(45), 100]


def test_only_dates_before_are_touched(root: Path) -> None:
    assert run(root, before=TODAY) == []
    assert len(parquet_files(root)) == 7


def test_large_files_are_left_and_the_new_ones_bounded(root: Path) -> None:
    size = max(path.stat().st_size for path in parquet_files(root))
    assert run(root, size=size) == []
    joined = run(root, size=2 * size + 1)
    assert [(each.group_id, each.files) for each in joined] == [("a/b", 2), ("g", 2), ("g", 2)]
    assert offsets(root) == ALL


def test_row_groups_are_joined_too(root: Path) -> None:
    run(root)
    for path in parquet_files(root):
        with pq.ParquetFile(path) as file:
            assert file.metadata.num_row_groups == 1


def test_older_files_get_todays_columns(root: Path) -> None:
    old = root / "date=2026-11-22" / "group=g" / "old.parquet"
    fields = [field for field in SCHEMA if field.name not in ("interval_ms", "pace_us")]
    write(old, pa.schema(fields, {VERSION_KEY: b"0"}))
    (joined,) = [each for each in run(root) if each.group_id == "g"]
    assert joined.files == 5
    path = parquet_files(root)[-1]
    assert tuple(pq.ParquetFile(path).schema_arrow.names) == COLUMN_NAMES
    assert pq.ParquetFile(path).metadata.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()
    assert old.exists() is False


def test_newer_and_corrupt_files_are_left_alone(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = root / "date=2026-11-22" / "group=g"
    newer = directory / "newer.parquet"
    write(newer, SCHEMA.with_metadata({VERSION_KEY: b"999"}))
    corrupt = directory / "corrupt.parquet"
    corrupt.write_bytes(b"PAR1")
    assert len(run(root)) == 2
    assert newer.exists()
    assert corrupt.exists()
    assert "a file is left alone" in capsys.readouterr().out


def test_a_corrupt_page_leaves_everything_as_it_was(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_a_bit(parquet_files(root)[-1])
    before = parquet_files(root)
    assert [each.group_id for each in run(root)] == ["a/b"]
    assert "left as they are" in capsys.readouterr().out
    assert [each for each in parquet_files(root) if "group=g" in str(each)] == [
        each for each in before if "group=g" in str(each)
    ]
    assert not list(root.rglob("*.part"))


def test_a_file_that_grows_meanwhile_loses_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_batches", lambda _: iter(()))
    assert run(root) == []
    assert offsets(root) == ALL


def test_files_of_a_segment_that_is_still_there_are_left_alone(root: Path) -> None:
    """Their writer was killed before it had all, and the next one makes the same files again."""
    segment = Segment.create(root, "c")
    segment.append(records_of(payload(block("g", 200, 1))))
    convert(segment, root, MIB)
    (joined,) = [each for each in run(root) if each.group_id == "g"]
    assert joined.files == 4
    assert any(segment.name in path.name for path in parquet_files(root))
    segment.remove()
    (joined,) = run(root)
    assert joined.files == 2
    assert offsets(root) == [*range(40), 100, 200]


def test_what_dead_writers_left_is_finished_first(root: Path) -> None:
    segment = Segment.create(root, "other")
    segment.append(records_of(payload(block("g", 40, 1))))
    segment.close()
    (joined,) = [each for each in run(root) if each.group_id == "g"]
    assert joined.files == 5
    assert offsets(root) == [*range(41), 100]
    assert [path.name for path in (root / SPOOL).iterdir()] == ["maintenance.lock"]


def test_one_command_at_a_time(root: Path) -> None:
    with EventFolder(root).locked(), pytest.raises(EventsFolderInUseError):
        run(root)


# -- kill -9 at every step ------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone; nothing that it does has an effect any more."""


class Fuse:
    """Lets so many changes of the file system happen."""

    def __init__(self, patch: pytest.MonkeyPatch, steps: int) -> None:
        self.left = steps
        self.is_dead = False
        for name in ("replace", "rename", "unlink", "fsync", "truncate", "rmdir", "mkdir"):
            patch.setattr(os, name, self._fused(getattr(os, name)))

    def _fused(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.left == 0:
                self.is_dead = True
                raise Killed
            self.left -= 1
            return real(*args, **kwargs)

        return call


def kills(root: Path) -> Iterator[int]:
    """Runs the compaction, killed before its first change, before its second, and so on."""
    for steps in range(1000):
        with pytest.MonkeyPatch.context() as patch:
            fuse = Fuse(patch, steps)
            try:
                run(root)
            except Killed:
                pass
        if not fuse.is_dead:
            return
        yield steps


def test_no_kill_loses_a_row_or_doubles_one(tmp_path: Path) -> None:
    for n in range(3):
        write_files(tmp_path, block("g", 10 * n, 10, time_us=NOON_US + n))
    expected = list(range(30))
    seen_missing, steps = 0, 0
    for steps in kills(tmp_path):
        # Before the next run: never twice, and all or (in the moment of the change) none.
        now = offsets(tmp_path)
        assert len(now) == len(set(now)), steps
        seen_missing += now != expected
        # The next run, whole.
        for _, directory in EventFolder(tmp_path).group_directories():
            recover(directory)
        assert offsets(tmp_path) == expected, steps
        assert not list(tmp_path.rglob("*.part"))
        assert not list(tmp_path.rglob("*.json"))
        if len(parquet_files(tmp_path)) == 1:
            run(tmp_path)
            (only,) = parquet_files(tmp_path)
            only.unlink()
            for n in range(3):
                write_files(tmp_path, block("g", 10 * n, 10, time_us=NOON_US + n))
    assert steps > 5
    assert seen_missing > 0
    assert EventFolder(tmp_path).check() == []


def test_kills_in_a_row_without_a_whole_run_between(tmp_path: Path) -> None:
    for n in range(3):
        write_files(tmp_path, block("g", 10 * n, 10, time_us=NOON_US + n))
    for _ in kills(tmp_path):
        now = offsets(tmp_path)
        assert len(now) == len(set(now))
    assert offsets(tmp_path) == list(range(30))
    assert len(parquet_files(tmp_path)) == 1
    assert EventFolder(tmp_path).check() == []
