"""A folder for people: list, check, retain."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sharecoord.errors import EventsFolderInUseError, InvalidRequestError
from sharecoord.eventlog.schema import SCHEMA_VERSION
from sharecoord.events import folder as folder_module
from sharecoord.events.folder import EventFolder, Listed
from sharecoord.events.parquet_files import ParquetFile
from sharecoord.events.places import SPOOL
from sharecoord.events.schema import SCHEMA, VERSION_KEY, batch_of, columns_as, schema_of
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

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
TODAY = date(2026, 11, 22)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two dates, two groups, three files."""
    write_files(tmp_path, block("g", 0, 5), block("a/b", 0, 1))
    write_files(tmp_path, block("g", 5, 2, time_us=NOON_US + 1_000_000))
    write_files(tmp_path, block("g", 7, 1, time_us=NOON_US - DAY_US))
    return tmp_path


def write(path: Path, schema: pa.Schema, coordinator_id: str = "c") -> None:
    """A file of one row with another schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    block = ({"kind": "range", "time": NOON_US, "group_id": "g"}, ("records",), [(1,)])
    batch = batch_of([block], coordinator_id)
    with ParquetFile(path.with_name("_part"), schema, path.parents[2]) as file:
        file.add(pa.record_batch(columns_as(schema, batch), schema=schema))
        file.finish(path)


# -- list -----------------------------------------------------------------------------------------


def test_files_are_listed_by_date_and_group(root: Path) -> None:
    listed, bad = EventFolder(root).listed()
    assert bad == 0
    assert [(e.date, e.group_id, e.files, e.rows) for e in listed] == [
        (TODAY - timedelta(days=1), "g", 1, 1),
        (TODAY, "a/b", 1, 1),
        (TODAY, "g", 2, 7),
    ]
    last: Listed = listed[-1]
    assert (last.first, last.last) == (NOON, NOON + timedelta(seconds=1))
    assert last.schema_versions == (SCHEMA_VERSION,)
    sizes = [path.stat().st_size for path in parquet_files(root)]
    assert sum(e.bytes for e in listed) == sum(sizes)


def test_what_readers_skip_and_what_can_not_be_read_is_not_listed(root: Path) -> None:
    directory = parquet_files(root)[-1].parent
    (directory / "_x.parquet").write_bytes(b"?")
    (directory / ".x.parquet").write_bytes(b"?")
    (directory / "x.parquet").write_bytes(b"?")
    (root / "date=nonsense" / "group=g").mkdir(parents=True)
    listed, bad = EventFolder(root).listed()
    assert sum(each.files for each in listed) == 4
    assert bad == 1


def test_a_file_that_goes_meanwhile_is_not_missed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = folder_module.facts_of
    (gone, *_) = parquet_files(root)

    def facts_of(path: Path, day: date) -> object:
        gone.unlink(missing_ok=True)
        return real(path, day)

    monkeypatch.setattr(folder_module, "facts_of", facts_of)
    listed, bad = EventFolder(root).listed()
    assert (sum(each.files for each in listed), bad) == (3, 0)
    assert EventFolder(root).check() == []


def test_a_group_whose_directory_was_cut_has_its_name(tmp_path: Path) -> None:
    name = "ü/" * 124
    write_files(tmp_path, block(name, 0, 1))
    ((listed,), _) = EventFolder(tmp_path).listed()
    assert listed.group_id == name


def test_another_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="is no folder of the event log"):
        EventFolder(tmp_path)


# -- check ----------------------------------------------------------------------------------------


def test_a_sound_folder_has_no_findings(root: Path) -> None:
    live = Segment.create(root, "c")
    live.append(records_of(payload(block("g", 50, 1))))
    assert EventFolder(root).check() == []
    live.remove()


def cut(path: Path) -> str:
    os.truncate(path, path.stat().st_size - 10)
    return "not a whole Parquet file"


def cut_to_nothing(path: Path) -> str:
    os.truncate(path, 0)
    return "not a whole Parquet file"


def damage(path: Path) -> str:
    """One bit of a page; its checksum tells."""
    flip_a_bit(path)
    return "corrupt"


def newer(path: Path) -> str:
    write(path, SCHEMA.with_metadata({VERSION_KEY: b"999"}))
    return "schema version 999 is not known to this release"


def of_somebody_else(path: Path) -> str:
    pq.write_table(pa.table({"time": [NOON]}), path)
    return "not of the event log"


def another_type(path: Path) -> str:
    fields = [pa.field("time", SCHEMA.field("time").type), pa.field("records", pa.int32())]
    write(path, pa.schema(fields, SCHEMA.metadata))
    return "column records is of type int32, not int64"


def without_time(path: Path) -> str:
    write(path, pa.schema([SCHEMA.field("records")], SCHEMA.metadata))
    return "no rows with a time"


@pytest.mark.parametrize(
    "spoil", [cut, cut_to_nothing, damage, newer, of_somebody_else, another_type, without_time]
)
def test_a_file_that_is_not_sound_is_named(root: Path, spoil: Callable[[Path], str]) -> None:
    path = parquet_files(root)[-1]
    expected = spoil(path)
    (found,) = EventFolder(root).check()
    assert found.path == str(path.relative_to(root))
    assert expected in found.finding
    assert "\n" not in found.finding
    assert found.fix


def test_rows_in_the_wrong_date_are_named(root: Path) -> None:
    path = parquet_files(root)[-1]
    target = root / "date=2026-11-01" / "group=g"
    target.mkdir(parents=True)
    path.rename(target / path.name)
    (found,) = EventFolder(root).check()
    assert "which is not its date" in found.finding


def test_what_a_killed_process_has_left_is_named(root: Path) -> None:
    left = Segment.create(root, "c")
    left.append(records_of(payload(block("g", 50, 1))))
    left.close()
    (root / SPOOL / "c-000000000000.bad").touch()
    (root / "_deleted-2026-01-01-00").mkdir()
    directory = parquet_files(root)[0].parent
    (directory / "_compaction.json").write_text("{}")
    (directory / "_events.parquet.part").touch()
    found = EventFolder(root).check()
    assert [(Path(each.path).name, each.fix) for each in found] == [
        (left.path.name, "start its coordinator, or run sharecoord events compact"),
        ("c-000000000000.bad", "keep it for a bug report, or delete it"),
        ("_deleted-2026-01-01-00", "run sharecoord events retain again"),
        ("_compaction.json", "run sharecoord events compact"),
        ("_events.parquet.part", "run sharecoord events compact"),
    ]
    with EventFolder(root).locked():
        found = EventFolder(root).check()
    assert len(found) == 3  # a compaction that is at work leaves such files too


def test_what_spark_would_take_for_events_is_named(root: Path) -> None:
    places = [
        root / "notes.txt",
        root / "date=2026-13-01",
        root / "date=2026-11-22" / "topic=x",
        root / "date=2026-11-22" / "group=g" / "x.csv",
    ]
    for place in places:
        place.touch()
    for skipped in (root / ".hidden", root / "_SUCCESS"):
        skipped.touch()
    found = EventFolder(root).check()
    assert {each.path for each in found} == {str(place.relative_to(root)) for place in places}
    assert {each.finding for each in found} == {"not of the event log"}


# -- retain ---------------------------------------------------------------------------------------


def test_dates_that_ended_before_are_deleted(root: Path) -> None:
    folder = EventFolder(root)
    write_files(root, block("g", 8, 1, time_us=NOON_US - 2 * DAY_US))
    keep, now = timedelta(days=1), NOON
    would = folder.retain(keep, now=now, dry_run=True)
    assert offsets(root) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    gone = folder.retain(keep, now=now)
    assert gone == would
    assert [(each.date, each.files) for each in gone] == [(date(2026, 11, 20), 1)]
    assert gone[0].bytes > 1000
    assert offsets(root) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert not (root / "date=2026-11-20").exists()
    assert not list(root.glob("_deleted*"))


def test_a_date_of_which_a_moment_is_young_enough_stays(root: Path) -> None:
    folder = EventFolder(root)
    keep = timedelta(days=1)
    last = datetime(2026, 11, 22, 23, 59, 59, tzinfo=UTC)
    assert folder.retain(keep, now=last) == []
    (gone,) = folder.retain(keep, now=last + timedelta(seconds=1))
    assert gone.date == date(2026, 11, 21)


def test_now_may_be_of_another_time_zone(root: Path) -> None:
    east = datetime.fromisoformat("2026-11-23T05:00:00+10:00")
    assert EventFolder(root).retain(timedelta(days=1), now=east) == []


def test_a_date_vanishes_at_once_and_a_killed_call_is_ended(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    now = NOON + timedelta(days=30)
    with monkeypatch.context() as patch:
        patch.setattr(folder_module.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            EventFolder(root).retain(timedelta(days=1), now=now)
    assert offsets(root) == []
    hidden = [path.name for path in root.glob("_deleted-*")]
    assert len(hidden) == 2
    assert not any("=" in name for name in hidden)  # Spark would read them
    EventFolder(root).retain(timedelta(days=1), now=now)
    assert sorted(path.name for path in root.iterdir()) == ["_spool"]


def test_one_command_at_a_time(root: Path) -> None:
    folder = EventFolder(root)
    with (
        folder.locked(),
        pytest.raises(EventsFolderInUseError, match="another `sharecoord events` command"),
    ):
        EventFolder(root).retain(timedelta(days=1), now=NOON)
    assert folder.retain(timedelta(days=99), now=NOON) == []


def test_the_group_of_a_file_without_metadata_is_that_of_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "date=2026-11-22" / "group=a%2Fb" / "x.parquet"
    write(path, schema_of("x").with_metadata(SCHEMA.metadata))
    ((listed,), _) = EventFolder(tmp_path).listed()
    assert listed.group_id == "a/b"
