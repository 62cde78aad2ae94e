"""Files that are no backup, or none any more, are refused before anything is touched."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharecoord.errors import (
    InvalidRequestError,
    StoreVersionError,
)
from sharecoord.store.tools.backup import restore_store
from tests.contract.store_worlds import (
    SqliteWorld,
)
from tests.unit.store.backups import (
    Lines,
    access_of,
    header_with,
    refused,
    restored_state,
    state_of,
    swap,
    with_lines,
)


def test_a_file_that_is_no_backup(tmp_path: Path) -> None:
    file = tmp_path / "b.gz"
    assert f"{file}: cannot be read: No such file" in refused(file)
    for content in (b"", b"name,value\n", gzip.compress(b'{"format": "other"}\n'), b"\x1f"):
        file.write_bytes(content)
        assert "is not a backup of a store" in refused(file) or "truncated" in refused(file)
    file.unlink()
    file.mkdir()
    assert "cannot be read: Is a directory" in refused(file)


def test_a_truncated_backup(backup: Path) -> None:
    whole = backup.read_bytes()
    for length in range(1, len(whole)):
        backup.write_bytes(whole[:length])
        message = refused(backup)
        assert "the rest is missing (truncated)" in message or "is not a backup" in message


def test_any_damaged_byte_is_noticed_or_does_not_matter(
    world: SqliteWorld, backup: Path, tmp_path: Path
) -> None:
    whole, wanted = backup.read_bytes(), restored_state(state_of(world.path))
    harmless = 0
    for at in range(len(whole)):
        backup.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        path = tmp_path / f"{at}.db"
        try:
            restore_store(access_of(path), backup, replace=False)
        except (InvalidRequestError, StoreVersionError):
            assert not path.exists()
        else:
            assert state_of(path) == wanted
            harmless += 1
    assert harmless <= 10, "only what gzip's own header says of time and system"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines.pop(2), "checksum is not|no row of|does not begin"),
        (lambda lines: lines.insert(2, lines[2]), "damaged at line"),
        (lambda lines: lines.pop(), "damaged at line"),
        (lambda lines: lines.append(b"[]\n"), "it goes on after its end"),
        (lambda lines: lines.__setitem__(2, b'["cluster_id","other"]\n'), "the checksum is not"),
    ],
    ids=["a row less", "a row more", "no end", "more after the end", "another value"],
)
def test_other_lines_are_noticed(
    backup: Path, change: Callable[[Lines], None], message: str
) -> None:
    with_lines(backup, change, summed=False)
    with pytest.raises(InvalidRequestError, match=message):
        restore_store(access_of(backup.with_name("o.db")), backup, replace=False)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            b'["group","m1",1700000000000,',
            b'["group","m1","1",',
            "member_epoch is str '1', not an integer",
        ),
        (
            b'["group","m1",1700000000000,',
            b'["group",null,1,',
            "no row of member: member_id is missing",
        ),
        (
            b'["group","m1",1700000000000,',
            b'["group","m1",9223372036854775808,',
            "too large for its column",
        ),
        (
            b'["group","m1",1700000000000,',
            b'["group","%s",1,' % (b"m" * 256),
            "256 characters; 255 is the most",
        ),
        (b'{"base64":"aw=="}', b'{"base64":"a"}', "no row of book_entry"),
        (b'{"base64":"aw=="}', b'{"hex":"aw"}', "an object that is not base64"),
        (
            b'["group","m1",1700000000000,',
            b'["group",1,',
            "no row of member: not a list of 9 values",
        ),
        (b'"paused"', b'"stopped"', "table share_group does not begin here"),
    ],
)
def test_rows_of_other_types_are_refused(
    backup: Path, old: bytes, new: bytes, message: str
) -> None:
    with_lines(backup, lambda lines: swap(lines, old, new))
    assert message in refused(backup)
    assert "is damaged at line " in refused(backup)


@pytest.mark.parametrize("values", [{"rows": 3}, {"taken_at_ms": -1}, {"cluster_id": None}])
def test_a_damaged_header(backup: Path, values: dict[str, Any]) -> None:
    with_lines(backup, lambda lines: header_with(lines, **values))
    assert f"is damaged at line 1: {next(iter(values))} is " in refused(backup)


def test_a_backup_of_another_release(backup: Path) -> None:
    with_lines(backup, lambda lines: header_with(lines, schema_revision="0000", release="0.0.9"))
    message = refused(backup, StoreVersionError)
    assert "has schema 0000, written by sharecoord 0.0.9" in message
    with_lines(backup, lambda lines: header_with(lines, version=2, release="9.9.9"))
    message = refused(backup, StoreVersionError)
    assert "format version 2, written by sharecoord 9.9.9" in message
