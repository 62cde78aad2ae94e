"""The spool file: appended, locked, read again after a kill."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sharecoord.errors import InvalidConfigError
from sharecoord.eventlog.schema import SCHEMA_VERSION, EventBlock
from sharecoord.events import spool
from sharecoord.events.places import SPOOL
from sharecoord.events.spool import BAD_ROWS, Segment, is_left, records_of, spool_files
from tests.unit.events.support import DAY_US, NOON_US, block, payload, raw_payload

DAY = NOON_US // DAY_US


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / SPOOL).mkdir()
    return tmp_path


def die(segment: Segment) -> None:
    """What the kernel does for a process that was killed."""
    segment.close()


# -- records --------------------------------------------------------------------------------------


def test_a_frame_of_one_group_and_date_is_a_record_as_it_is() -> None:
    data = payload(block("g", 0, 2), block("g", 2, 3, time_us=NOON_US + 5))
    (record,) = records_of(data)
    assert record == ((DAY, "g"), data, 5, 5, NOON_US)


def test_a_frame_is_cut_by_group_and_date() -> None:
    data = payload(
        block("g", 0, 2),
        block("h", 2, 1),
        EventBlock(
            {"kind": "range", "group_id": "g"},
            ("time", "first_offset"),
            [(NOON_US, 3), (NOON_US + DAY_US, 4), (NOON_US, 5)],
        ),
        EventBlock({"time": NOON_US}, ("group_id", "first_offset"), [("i", 6), ("g", 7)]),
    )
    found = {record.key: record for record in records_of(data)}
    assert {key: record.rows for key, record in found.items()} == {
        (DAY, "g"): 5,
        (DAY, "h"): 1,
        (DAY + 1, "g"): 1,
        (DAY, "i"): 1,
    }
    assert found[DAY + 1, "g"].time_us == NOON_US + DAY_US
    again = [records_of(record.payload) for record in found.values()]
    assert [[each.key for each in records] for records in again] == [[key] for key in found]


def test_rows_that_pass_midnight_in_one_block() -> None:
    rows = [(NOON_US + 1,), (NOON_US + 2,)]
    data = payload(EventBlock({"group_id": "g"}, ("time",), rows))
    (record,) = records_of(data)
    assert record.payload == data


@pytest.mark.parametrize(
    "bad",
    [
        ({"group_id": "g"}, ("event",), [("x",)]),
        ({"group_id": "g", "time": None}, ("event",), [("x",)]),
        ({"group_id": "g"}, ("time",), [(None,)]),
        ({"group_id": "g"}, ("event", "time"), [("x",)]),
        ({"time": NOON_US}, ("event",), [("x",)]),
        ({"time": NOON_US, "group_id": None}, ("event",), [("x",)]),
        ({"time": NOON_US, "group_id": 5}, ("event",), [("x",)]),
        ({"time": 1 << 70, "group_id": "g"}, ("event",), [("x",)]),
    ],
)
def test_rows_without_time_or_group_are_refused(bad: tuple[object, ...]) -> None:
    with pytest.raises(BAD_ROWS):
        records_of(raw_payload(bad))


# -- the file -------------------------------------------------------------------------------------


def test_what_was_appended_is_read_after_a_kill(root: Path) -> None:
    first = Segment.create(root, "c-1")
    first.append([*records_of(payload(block("g", 0, 2), block("h", 2, 1)))])
    first.append(records_of(payload(block("g", 3, 4))))
    die(first)
    again = Segment.adopt(first.path)
    assert again is not None
    assert (again.coordinator_id, again.schema_version) == ("c-1", SCHEMA_VERSION)
    assert (again.name, again.size, again.rows) == (first.name, first.size, 7)
    assert again.index == first.index
    blocks = [again.read(offset) for offset in again.index[DAY, "g"]]
    assert [row[1] for ((_, _, rows),) in blocks for row in rows] == [0, 1, 3, 4, 5, 6]
    again.remove()
    assert spool_files(root) == []


@pytest.mark.parametrize("cut", [1, 4, 7, 9, 30])
def test_a_record_that_is_not_whole_ends_the_file(root: Path, cut: int) -> None:
    segment = Segment.create(root, "c")
    segment.append(records_of(payload(block("g", 0, 2))))
    whole = segment.size
    segment.append(records_of(payload(block("g", 2, 2))))
    os.truncate(segment.path, segment.size - cut)
    die(segment)
    again = Segment.adopt(segment.path)
    assert again is not None
    assert (again.size, again.rows) == (whole, 2)
    again.close()


def test_a_damaged_record_ends_the_file(root: Path) -> None:
    segment = Segment.create(root, "c")
    segment.append(records_of(payload(block("g", 0, 2))))
    whole = segment.size
    segment.append(records_of(payload(block("g", 2, 2))))
    with segment.path.open("r+b") as file:
        file.seek(whole + 20)
        file.write(b"\xff")
    die(segment)
    again = Segment.adopt(segment.path)
    assert again is not None
    assert again.rows == 2
    again.close()


def test_an_empty_file_is_one_without_rows(root: Path) -> None:
    path = root / SPOOL / "c-000000000000.spool"
    path.touch()
    found = Segment.adopt(path)
    assert found is not None
    assert found.index == {}
    found.remove()


def test_a_file_with_records_of_another_kind_is_put_aside(root: Path) -> None:
    segment = Segment.create(root, "c")
    record = records_of(payload(block()))[0]
    segment.append([record._replace(payload=raw_payload("what is this"))])
    die(segment)
    assert Segment.adopt(segment.path) is None
    assert [path.suffix for path in (root / SPOOL).iterdir()] == [".bad"]


def test_a_file_in_use_is_not_adopted(root: Path) -> None:
    segment = Segment.create(root, "c")
    assert Segment.adopt(segment.path) is None
    assert not is_left(segment.path)
    die(segment)
    assert is_left(segment.path)
    segment.path.unlink()
    assert Segment.adopt(segment.path) is None


def test_a_write_that_fails_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = Segment.create(root, "c")
    segment.append(records_of(payload(block("g", 0, 2))))
    before = (segment.size, segment.rows, dict(segment.index))
    real, calls = os.pwrite, []

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "no room")
        return real(descriptor, data[:10], offset)

    with monkeypatch.context() as patch:
        patch.setattr(spool.os, "pwrite", pwrite)
        with pytest.raises(OSError, match="no room"):
            segment.append(records_of(payload(block("g", 2, 2))))
    assert len(calls) == 2
    assert (segment.size, segment.rows, dict(segment.index)) == before
    assert segment.path.stat().st_size == segment.size
    segment.append(records_of(payload(block("g", 4, 1))))
    die(segment)
    again = Segment.adopt(segment.path)
    assert again is not None
    assert again.rows == 3
    again.close()


def test_a_file_system_without_locks_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(spool.fcntl, "flock", flock)
    with pytest.raises(InvalidConfigError, match="can not lock files"):
        Segment.create(root, "c")
