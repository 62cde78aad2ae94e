"""`sharecoord events`."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sharecoord.events.parquet_files import convert
from tests.unit.cli.support import run, words
from tests.unit.events.support import (
    DAY_US,
    NOON_US,
    block,
    flip_a_bit,
    offsets,
    parquet_files,
    spool,
    write_files,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of a group in 2026, one of another in 1970."""
    root = tmp_path / "events"
    write_files(root, block("g", 0, 5))
    write_files(root, block("g", 5, 2, time_us=NOON_US + 1))
    write_files(root, block("a/b", 0, 1, time_us=DAY_US))
    return root


def test_list(folder: Path) -> None:
    result = run("events", "list", str(folder))
    assert (result.exit_code, result.stderr) == (0, "")
    header, first, second = result.stdout.splitlines()
    assert words(header) == words("DATE GROUP FILES ROWS BYTES SPOOLED FIRST LAST SCHEMA")
    assert words(first)[:4] == ["1970-01-02", "a/b", "1", "1"]
    assert words(second)[:4] == ["2026-11-22", "g", "2", "7"]
    rows = json.loads(run("events", "list", str(folder), "-o", "json").stdout)
    size = sum(path.stat().st_size for path in parquet_files(folder)[1:])
    assert rows[1] == {
        "date": "2026-11-22",
        "group": "g",
        "files": 2,
        "rows": 7,
        "bytes": size,
        "spooled": 0,
        "first": "2026-11-22T12:00:00+00:00",
        "last": "2026-11-22T12:00:00.000001+00:00",
        "schema_versions": "1",
    }
    assert "  group: a/b" in run("events", "list", str(folder), "-o", "yaml").stdout


def test_list_tells_of_rows_that_are_in_no_file_yet(folder: Path) -> None:
    spool(folder, block("g", 7, 3, time_us=NOON_US + 5_000_000), block("new", 0, 2))
    result = run("events", "list", str(folder), "-o", "json")
    rows = {row["group"]: row for row in json.loads(result.stdout)}
    assert (rows["g"]["files"], rows["g"]["rows"], rows["g"]["spooled"]) == (2, 7, 3)
    assert rows["g"]["last"] == "2026-11-22T12:00:05+00:00"
    assert (rows["new"]["files"], rows["new"]["spooled"]) == (0, 2)
    assert rows["new"]["first"] == "2026-11-22T12:00:00+00:00"
    assert result.stderr.startswith("5 rows are in no file yet: their coordinator makes files")


def test_rows_on_their_way_from_the_spool_are_told_once(folder: Path) -> None:
    """Files of the first group are there, and the spool file is still, too."""
    made = spool(folder, block("g", 7, 3), block("new", 0, 2))
    convert(made, folder, 1 << 30)
    assert made.path.exists()
    rows = json.loads(run("events", "list", str(folder), "-o", "json").stdout)
    assert {row["group"]: (row["rows"], row["spooled"]) for row in rows} == {
        "a/b": (1, 0),
        "g": (10, 0),
        "new": (2, 0),
    }


def test_list_says_what_it_can_not_read(folder: Path) -> None:
    parquet_files(folder)[0].write_bytes(b"?")
    result = run("events", "list", str(folder))
    assert result.exit_code == 0
    assert result.stderr == f"1 more can not be read: sharecoord events check {folder}\n"


def test_compact(folder: Path) -> None:
    would = run("events", "compact", str(folder), "--before", "2026-11-23", "--dry-run")
    assert would.stderr == "2 files would be joined into 1\n"
    assert len(parquet_files(folder)) == 3
    done = run("events", "compact", str(folder), "--before", "2026-11-23", "-o", "json")
    assert (done.exit_code, done.stderr) == (0, "2 files joined into 1\n")
    (row,) = json.loads(done.stdout)
    assert (row["group"], row["files"], row["rows"]) == ("g", 2, 7)
    assert 0 < row["bytes_after"] < row["bytes"]
    assert offsets(folder) == list(range(7))


def test_compact_leaves_today_alone(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    day_us = int(now.timestamp()) // 86_400 * DAY_US
    for n in range(2):
        write_files(tmp_path, block("today", n, 1, time_us=day_us))
        write_files(tmp_path, block("g", n, 1, time_us=day_us - DAY_US))
    rows = json.loads(run("events", "compact", str(tmp_path), "-o", "json").stdout)
    # At midnight today becomes yesterday between the two calls.
    assert [row["group"] for row in rows if row["date"] < str(now.date())] == ["g"]


def test_retain(folder: Path) -> None:
    would = run("events", "retain", str(folder), "--keep", "3650d", "--dry-run")
    assert would.stderr == "1 dates would be deleted\n"
    assert len(parquet_files(folder)) == 3
    done = run("events", "retain", str(folder), "--keep", "3650d")
    assert words(done.stdout)[3:5] == ["1970-01-02", "1"]
    assert done.stderr == "1 dates deleted\n"
    assert len(parquet_files(folder)) == 2


def test_check(folder: Path) -> None:
    result = run("events", "check", str(folder))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{folder}: sound\n")
    bad = parquet_files(folder)[-1]
    flip_a_bit(bad)
    result = run("events", "check", str(folder), "-o", "json")
    assert result.exit_code == 1
    (row,) = json.loads(result.stdout)
    assert row["file"] == str(bad.relative_to(folder))
    assert "corrupt" in row["finding"]
    assert row["fix"] == "move it out of the folder"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["retain", "DIR"], "Missing option '--keep'"),
        (["retain", "DIR", "--keep", "30"], "it must be 1d or more"),
        (["retain", "DIR", "--keep", "soon"], "it must be a duration such as"),
        (["compact", "DIR", "--file-max-bytes", "1k"], "it must be"),
        (["compact", "DIR", "--file-max-bytes", "1kB"], "it must be 1MiB or more"),
        (["compact", "DIR", "--before", "yesterday"], "'yesterday'"),
        (["list", "/nowhere/at/all"], "does not exist"),
    ],
)
def test_wrong_usage(folder: Path, arguments: list[str], expected: str) -> None:
    result = run("events", *(str(folder) if each == "DIR" else each for each in arguments))
    assert result.exit_code == 2
    assert expected in result.stderr


@pytest.mark.parametrize("command", ["list", "compact", "check"])
def test_another_directory_is_one_line(tmp_path: Path, command: str) -> None:
    result = run("events", command, str(tmp_path))
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "is no folder of the event log" in line


def test_without_pyarrow_the_fix_is_named(folder: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None; from sharecoord.cli.main import main; main()"
    )
    command = [sys.executable, "-c", program, "events", "list", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'sharecoord[events]'" in done.stderr


def test_a_young_folder_keeps_everything(folder: Path) -> None:
    keep = datetime.now(UTC) - datetime(1969, 1, 1, tzinfo=UTC) + timedelta(days=1)
    result = run("events", "retain", str(folder), "--keep", f"{keep.days}d")
    assert (result.exit_code, result.stderr) == (0, "0 dates deleted\n")
