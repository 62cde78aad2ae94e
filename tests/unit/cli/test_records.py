"""`sharecoord records`: in flight, and the life of one record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sharecoord_sdk.admin import (
    ForceAction,
    ForcedRange,
    GroupDescription,
    InFlightRange,
    PartitionOffsets,
    RecordState,
)

from sharecoord.eventlog.schema import EventBlock
from tests.unit.analytics.test_timeline import LIFE, write
from tests.unit.cli.support import FakeAdmin, run
from tests.unit.events.support import spool

HELD = InFlightRange(5, 9, RecordState.ACQUIRED, 2, "ann", 7, 12_300)


def admin_with(
    *ranges: InFlightRange, start: int | None = 3, end: int | None = 20, log_end: int = 100
) -> FakeAdmin:
    """A coordinator with one share-partition."""
    offsets = PartitionOffsets(
        "orders", 0, start_offset=start, end_offset=end, log_end_offset=log_end, lag=80
    )
    return FakeAdmin(
        list_in_flight=list(ranges),
        describe_groups=[GroupDescription("billing", offsets=[offsets])],
    )


def explained(offset: int, admin: FakeAdmin) -> str:
    """What the record is now."""
    result = run(
        "records", "explain", "orders", "0", str(offset), "--group", "billing", "-o", "json",
        admin=admin,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    text: str = json.loads(result.stdout)[-1]["text"]
    return text


@pytest.mark.parametrize(
    ("admin", "offset", "text"),
    [
        (admin_with(HELD), 6, "ann holds it, delivery 2; its lock ends in 12.3 s"),
        (admin_with(HELD), 2, "finished: it is below the group's start offset 3"),
        (admin_with(HELD), 4, "finished: accepted, or a gap"),
        (admin_with(), 30, "it waits behind the window, which ends at 20; lag is 80"),
        (admin_with(), 100, "there is no such record yet: the log ends at 100"),
        (
            admin_with(start=None, end=None),
            0,
            "its share-partition has no start offset yet: no member has wanted it",
        ),
        (
            admin_with(InFlightRange(5, 5, RecordState.AVAILABLE, 1, reason="no stock")),
            5,
            "it is due, after 1 deliveries (no stock)",
        ),
        (
            admin_with(InFlightRange(5, 5, RecordState.AVAILABLE, 1, available_at_ms=1_000)),
            5,
            "it waits until 1970-01-01T00:00:01.000+00:00, after 1 deliveries",
        ),
        (
            admin_with(InFlightRange(5, 5, RecordState.ARCHIVED, 5, reason="DELIVERY_LIMIT")),
            5,
            "archived after 5 deliveries (DELIVERY_LIMIT): never delivered again",
        ),
        (
            admin_with(InFlightRange(5, 5, RecordState.ARCHIVING, 5)),
            5,
            "on its way to the dead-letter topic, after 5 deliveries",
        ),
        (
            admin_with(InFlightRange(5, 5, RecordState.AVAILABLE, 1, checkpoints=1)),
            5,
            "it is due, after 1 deliveries; it has a checkpoint of 0 bytes",
        ),
        (
            admin_with(
                InFlightRange(5, 9, RecordState.AVAILABLE, 1, checkpoints=2, checkpoint_bytes=300)
            ),
            6,
            "it is due, after 1 deliveries; of 5-9, 2 have a checkpoint, 300 bytes together",
        ),
    ],
)
def test_what_a_record_is_now(admin: FakeAdmin, offset: int, text: str) -> None:
    assert explained(offset, admin) == text


def test_the_event_log_tells_what_happened_before(tmp_path: Path) -> None:
    write(tmp_path, LIFE)
    result = run(
        "records", "explain", "orders", "0", "5", "--group", "billing",
        "--events", str(tmp_path), "-o", "json", admin=admin_with(HELD),
    )  # fmt: skip
    steps = json.loads(result.stdout)
    assert [step["event"] for step in steps] == [
        "acquired",
        "released",
        "acquired",
        "rejected",
        "now",
    ]
    assert steps[0]["time"] == "2026-11-22T12:00:01.000+00:00"
    assert "--events" not in result.stderr


def spooled(folder: Path, *rows: dict[str, Any]) -> None:
    """Events that a coordinator has noted, and has made no Parquet file of yet."""
    common = {"kind": "range", "group_id": "billing", "topic": "orders", "partition": 0}
    for row in rows:
        values = {**row, "time": round(row["time"].timestamp() * 1_000_000)}
        own = {name: value for name, value in values.items() if name not in common}
        names = tuple(own)
        spool(folder, EventBlock({**common}, names, [tuple(own[name] for name in names)]))


@pytest.mark.parametrize("in_files", [0, 2])
def test_what_is_in_no_file_yet_is_told_too(tmp_path: Path, in_files: int) -> None:
    if in_files:
        write(tmp_path, LIFE[:in_files])
    spooled(tmp_path, *LIFE[in_files:])
    result = run(
        "records", "explain", "orders", "0", "5", "--group", "billing",
        "--events", str(tmp_path), "-o", "json", admin=admin_with(HELD),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = [step["event"] for step in json.loads(result.stdout)]
    assert told == ["acquired", "released", "acquired", "rejected", "now"]


def test_a_record_that_nothing_was_noted_of(tmp_path: Path) -> None:
    spooled(tmp_path, *LIFE[:2])
    result = run(
        "records", "explain", "orders", "0", "70", "--group", "billing",
        "--events", str(tmp_path), "-o", "json", admin=admin_with(HELD),
    )  # fmt: skip
    assert [step["event"] for step in json.loads(result.stdout)] == ["now"]


def test_without_the_event_log_it_says_how_to_learn_more() -> None:
    result = run("records", "explain", "orders", "0", "6", "--group", "b", admin=admin_with(HELD))
    assert result.exit_code == 0
    assert "ann holds it" in result.stdout
    assert "--events DIR" in result.stderr


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run(
        "records", "explain", "orders", "0", "6", "--group", "b",
        "--events", str(tmp_path / "nowhere"), admin=admin_with(HELD),
    )  # fmt: skip
    assert result.exit_code == 1
    assert "nowhere is not a folder" in result.stderr


def test_what_is_in_flight_is_listed() -> None:
    admin = admin_with(HELD)
    arguments = ("records", "list", "--group", "billing", "--topic", "orders", "-o", "json")
    rows: list[dict[str, Any]] = json.loads(run(*arguments, admin=admin).stdout)
    assert rows == [
        {
            "first_offset": 5,
            "last_offset": 9,
            "state": "acquired",
            "delivery_count": 2,
            "member": "ann",
            "lock_remaining_ms": 12_300,
            "available_at": None,
            "checkpoints": 0,
            "checkpoint_bytes": 0,
            "reason": "",
        }
    ]
    assert admin.calls == [
        ("list_in_flight", ("billing", "orders", 0), {"from_offset": 0, "max_ranges": 1_000})
    ]


def test_a_full_page_says_how_to_go_on() -> None:
    result = run(
        "records", "list", "--group", "g", "--topic", "t", "--max-ranges", "1",
        admin=admin_with(HELD),
    )  # fmt: skip
    assert "--from-offset 10" in result.stderr


# -- skip, finish, release ------------------------------------------------------------------------

FORCED = [
    ForcedRange(5, 9, "acquired", "finished", "ann", 2),
    ForcedRange(10, 12, "unread", "passed_over"),
]


def test_nothing_is_done_without_execute() -> None:
    admin = FakeAdmin(force_records=FORCED)
    result = run("records", "finish", "orders", "0", "5-12", "--group", "billing", admin=admin)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["FIRST-OFFSET", "LAST-OFFSET", "BEFORE", "AFTER", "MEMBER", "DELIVERY-COUNT"],
        ["5", "9", "acquired", "finished", "ann", "2"],
        ["10", "12", "unread", "passed_over", "-", "0"],
    ]
    assert result.stderr == "dry run: nothing was changed; use --execute to do it\n"
    arguments = ("billing", "orders", 0, 5, 12, ForceAction.FINISH)
    assert admin.calls == [("force_records", arguments, {"dry_run": True})]


@pytest.mark.parametrize("name", ["skip", "finish", "release"])
def test_execute_does_it(name: str) -> None:
    admin = FakeAdmin(force_records=[ForcedRange(7, 7, "finished", "finished")])
    arguments = ("records", name, "orders", "3", "7", "--group", "billing", "--execute")
    result = run(*arguments, "-o", "json", admin=admin)
    assert json.loads(result.stdout)[0]["before"] == "finished"
    assert result.stderr == "nothing was changed: there was nothing to do\n"
    expected = ("billing", "orders", 3, 7, 7, ForceAction(name))
    assert admin.calls == [("force_records", expected, {"dry_run": False})]


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        ("x", "'x' is neither OFFSET nor OFFSET-OFFSET"),
        ("-3", "No such option"),
        ("3-", "'3-' is neither OFFSET nor OFFSET-OFFSET"),
        ("9-3", "'9-3' ends before it begins"),
        (
            "7-9223372036854775808",
            "9223372036854775808 is not in the range 0<=x<=9223372036854775807",
        ),
    ],
)
def test_offsets_that_are_none(offset: str, text: str) -> None:
    arguments = ("records", "skip", "orders", "0", offset, "--group", "billing")
    result = run(*arguments, admin=FakeAdmin(force_records=[]))
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())
