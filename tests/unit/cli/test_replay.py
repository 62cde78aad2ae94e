"""`sharecoord replay`."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharecoord_sdk.admin import ReplayedPartition, ReplayOf

from tests.unit.cli.support import FakeAdmin, lines, run

BASE = ("replay", "--group", "g", "--into", "side", "--topic", "orders:0,1")
PARTS = [ReplayedPartition("orders", 0, 20, 50, 30, 7), ReplayedPartition("orders", 1, 0, 0, 0)]


def test_without_execute_it_shows_what_would_happen() -> None:
    admin = FakeAdmin(replay=PARTS)
    result = run(*BASE, "--by-duration", "PT1H30M", "--rate", "7", admin=admin)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == lines(
        """
        GROUP  TOPIC   PARTITION  FIRST-OFFSET  STOPS-AT  RECORDS  RATE
        side   orders  0          20            50        30       7
        side   orders  1          0             0         0        -
        """
    )
    assert "dry run" in result.stderr
    given = {"rate_per_s": 7, "with_settings": False, "dry_run": True}
    what = ReplayOf.duration(90 * 60_000)
    assert admin.calls == [("replay", ("g", "side", what, {"orders": [0, 1]}), given)]


def test_times_and_settings_are_passed_on() -> None:
    admin = FakeAdmin(replay=PARTS)
    times = ("--from-datetime", "1970-01-01T00:00:01", "--to-datetime", "1970-01-01T00:00:02.5Z")
    result = run(*BASE, *times, "--with-settings", "--execute", "-o", "json", admin=admin)
    assert result.exit_code == 0, result.output
    ((_, arguments, given),) = admin.calls
    assert arguments[2] == ReplayOf.times(1_000, 2_500)
    assert given == {"rate_per_s": 0, "with_settings": True, "dry_run": False}
    assert "groups --describe" in result.stderr


def test_offsets_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text("orders,0,5\n\norders, 1, 7-9\n", encoding="utf-8")
    admin = FakeAdmin(replay=PARTS)
    result = run("replay", "--group", "g", "--into", "s", "--offsets", str(path), admin=admin)
    assert result.exit_code == 0, result.output
    ((_, arguments, _),) = admin.calls
    assert arguments[2] == ReplayOf.offsets([("orders", 0, 5, 5), ("orders", 1, 7, 9)])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ((), "say which records"),
        (("--by-duration", "PT1H", "--to-datetime", "2026-01-01T00:00:00"), "one of them"),
        (("--by-duration", "1h"), "--by-duration 1h: it must be an ISO-8601 duration"),
        (("--from-datetime", "yesterday"), "--from-datetime yesterday"),
        (("--by-duration", "PT1H", "--execute", "--dry-run"), "exclude each other"),
        (("--by-duration", "PT1H", "--rate", "0"), "--rate"),
    ],
)
def test_bad_options_are_refused(options: tuple[str, ...], match: str) -> None:
    result = run(*BASE, *options, admin=FakeAdmin())
    assert result.exit_code == 2
    assert match in result.stderr


@pytest.mark.parametrize("line", ["orders,0", "orders,x,5", "orders,0,9-5", ",0,5", "orders,0,5-"])
def test_bad_lines_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text(f"orders,0,1\n{line}\n", encoding="utf-8")
    result = run("replay", "--group", "g", "--into", "s", "--offsets", str(path), admin=FakeAdmin())
    assert result.exit_code == 2
    assert f"{path}:2" in " ".join(result.stderr.split())


def test_a_topic_or_a_file_is_needed(tmp_path: Path) -> None:
    result = run("replay", "--group", "g", "--into", "s", "--by-duration", "PT1H")
    assert (result.exit_code, "--topic" in result.stderr) == (2, True)
    empty = tmp_path / "offsets.csv"
    empty.write_text("\n", encoding="utf-8")
    result = run("replay", "--group", "g", "--into", "s", "--offsets", str(empty))
    assert (result.exit_code, "no offsets in it" in result.stderr) == (2, True)
