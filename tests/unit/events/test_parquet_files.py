"""From a spool file to Parquet files."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sharecoord.eventlog.schema import SCHEMA_VERSION, EventBlock
from sharecoord.events import parquet_files
from sharecoord.events.parquet_files import ParquetFile, convert, finish, finish_left
from sharecoord.events.places import SPOOL
from sharecoord.events.schema import GROUP_KEY, SCHEMA, VERSION_KEY, batch_of
from sharecoord.events.spool import Segment, records_of, spool_files
from tests.unit.events.support import DAY_US, NOON_US, block, offsets, payload, table_of
from tests.unit.events.support import parquet_files as files_of

MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / SPOOL).mkdir()
    return tmp_path


@pytest.fixture
def segment(root: Path) -> Segment:
    """Two groups, two dates."""
    made = Segment.create(root, "c-1")
    for n in range(0, 100, 10):
        made.append(records_of(payload(block("g", n, 10), block("a/b", n, 1))))
    made.append(records_of(payload(block("g", 100, 1, time_us=NOON_US + DAY_US))))
    return made


def test_each_date_and_group_gets_a_file(root: Path, segment: Segment) -> None:
    assert finish(segment, root, MIB) == 0
    name = f"events-c-1-20261122T120000-{segment.name}-0.parquet"
    assert [str(path.relative_to(root)) for path in files_of(root)] == [
        f"date=2026-11-22/group=a%2Fb/{name}",
        f"date=2026-11-22/group=g/{name}",
        f"date=2026-11-23/group=g/{name.replace('20261122', '20261123')}",
    ]
    assert offsets(root, "g") == list(range(101))
    assert offsets(root, "a/b") == list(range(0, 100, 10))
    assert list((root / SPOOL).iterdir()) == []


def test_a_file_is_whole_by_itself(root: Path, segment: Segment) -> None:
    convert(segment, root, MIB)
    path = files_of(root)[0]
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        metadata = file.metadata
        table = file.read()
    assert table.schema.equals(SCHEMA)
    assert metadata.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()
    assert metadata.metadata[GROUP_KEY] == b"a/b"
    assert table["first_offset"].to_pylist() == list(range(0, 100, 10))  # as they came
    first = table.slice(0, 1).to_pylist()[0]
    assert first["group_id"] == "a/b"
    assert first["coordinator_id"] == "c-1"
    assert first["time"] == datetime(2026, 11, 22, 12, tzinfo=UTC)
    group = metadata.row_group(0).column(1)
    assert group.compression == "ZSTD"
    assert "PLAIN_DICTIONARY" in group.encodings or "RLE_DICTIONARY" in group.encodings
    segment.remove()


def test_row_groups_and_files_are_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "BATCH_ROWS", 50)
    monkeypatch.setattr(parquet_files, "ROW_GROUP_ROWS", 100)
    segment = Segment.create(root, "c")
    for n in range(0, 1000, 10):
        segment.append(records_of(payload(block("g", n, 10, time_us=NOON_US + n))))
    convert(segment, root, 10_000)
    files = [pq.ParquetFile(path).metadata for path in files_of(root)]
    assert len(files) > 2
    sizes = [m.row_group(n).num_rows for m in files for n in range(m.num_row_groups)]
    assert set(sizes) == {100}
    assert all(file.stat().st_size >= 10_000 for file in files_of(root)[:-1])
    assert sorted(offsets(root)) == list(range(1000))
    segment.remove()


def test_a_conversion_that_was_broken_off_is_done_again_and_nothing_is_there_twice(
    root: Path, segment: Segment
) -> None:
    convert(segment, root, MIB)
    segment.close()  # killed before it was deleted
    again = Segment.adopt(segment.path)
    assert again is not None
    assert finish(again, root, MIB) == 0
    assert len(files_of(root)) == 3
    assert offsets(root, "g") == list(range(101))


def test_files_that_another_release_has_cut_differently_are_replaced(
    root: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(parquet_files, "BATCH_ROWS", 10)
        patch.setattr(parquet_files, "ROW_GROUP_ROWS", 10)
        convert(segment, root, 1)
    assert len(files_of(root)) == 10 + 1 + 1
    segment.close()
    finish_left(segment.path, root, MIB)
    assert len(files_of(root)) == 3
    assert offsets(root, "g") == list(range(101))


def failing(after: int) -> Callable[..., None]:
    """A rename that finds no room from some call on."""
    real, calls = Path.replace, []

    def replace(self: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, "no room")
        real(self, target)

    return replace


def test_no_room_loses_nothing(
    root: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing(1))
        with pytest.raises(OSError, match="no room"):
            finish(segment, root, MIB)
    assert len(files_of(root)) == 1
    assert [path.suffix for path in (root / SPOOL).iterdir()] == [".spool"]
    assert len(segment.index) == 2
    finish(segment, root, MIB)
    assert offsets(root, "g") == list(range(101))
    assert spool_files(root) == []


def test_rows_that_do_not_fit_are_counted_and_the_others_written(root: Path) -> None:
    segment = Segment.create(root, "c")
    bad = EventBlock({"time": NOON_US, "group_id": "g"}, ("first_offset",), [("x",), ("y",)])
    for blocks in ([block("g", 0, 2)], [bad], [block("g", 2, 2)]):
        segment.append(records_of(payload(*blocks)))
    assert finish(segment, root, MIB) == 2
    assert offsets(root) == [0, 1, 2, 3]


def test_a_segment_that_can_not_be_converted_is_put_aside(
    root: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(parquet_files, "convert", broken)
    assert finish(segment, root, MIB) == segment.rows == 111
    assert [path.suffix for path in (root / SPOOL).iterdir()] == [".bad"]


def test_the_file_of_a_killed_conversion_is_deleted(root: Path, segment: Segment) -> None:
    part = segment.path.with_suffix(".part")
    part.write_bytes(b"PAR1 half")
    assert finish_left(segment.path, root, MIB) == 0  # its writer lives
    assert part.exists()
    segment.close()
    finish_left(segment.path, root, MIB)
    assert list((root / SPOOL).iterdir()) == []
    assert table_of(root).num_rows == 111


def test_a_file_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    with ParquetFile(tmp_path / "x.part", SCHEMA, tmp_path) as file:
        file.add(batch_of([], "c"))
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
