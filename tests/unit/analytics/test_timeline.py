"""Stories of records, keys and members, told from event files without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sharecoord.analytics.timeline import files
from sharecoord.analytics.timeline.files import Wanted, read_events
from sharecoord.analytics.timeline.story import sentence, story
from sharecoord.errors import InvalidRequestError
from sharecoord.eventlog.schema import COLUMNS, EventKind, GroupEvent, RangeEvent

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
SCHEMA = pa.schema([(column.name, column.type.in_arrow(pa)) for column in COLUMNS])


def changed(number: int, event: RangeEvent, first: int, last: int, **more: Any) -> dict[str, Any]:
    """A row of kind `range`."""
    return {
        "schema_version": 1,
        "kind": EventKind.RANGE.value,
        "time": NOON + timedelta(seconds=number),
        "coordinator_id": "c1",
        "group_id": "billing",
        "topic": "orders",
        "topic_id": "",
        "partition": 0,
        "change_sequence": number,
        "event": event.value,
        "first_offset": first,
        "last_offset": last,
        "records": last - first + 1,
        "member_id": "ann",
        "client_id": "host-1",
        **more,
    }


LIFE = [
    changed(1, RangeEvent.ACQUIRED, 0, 9, delivery_count=1, available_ms=1_500, lock_ms=30_000),
    changed(2, RangeEvent.ACCEPTED, 0, 4, state="acknowledged", held_ms=400, work_us=10_000),
    changed(
        3,
        RangeEvent.RELEASED,
        5,
        5,
        state="available",
        held_ms=700,
        delay_ms=5_000,
        reason="no stock",
        key=b"k5",
    ),
    changed(4, RangeEvent.EXPIRED, 6, 9, state="available", held_ms=30_000),
    changed(5, RangeEvent.ACQUIRED, 5, 5, delivery_count=2, lock_ms=30_000, member_id="bob"),
    changed(6, RangeEvent.REJECTED, 5, 5, state="archived", held_ms=9, reason="REJECTED: bad"),
]


FIRST = (
    "handed to ann (host-1), delivery 1, after it had waited for 1.5 s; locked for 30.0 s "
    "(with offsets 0 to 9)"
)


def write(folder: Path, rows: Iterable[dict[str, Any]], name: str = "events-c1.parquet") -> Path:
    """A file of the event log, as a coordinator writes it."""
    place = folder / "date=2026-11-22" / "group=billing"
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), place / name)
    return place / name


def test_a_copy_of_a_file_tells_nothing_twice(tmp_path: Path) -> None:
    write(tmp_path, LIFE, "events-a.parquet")
    write(tmp_path, LIFE, "copy.parquet")
    steps = story(read_events(tmp_path, Wanted("billing", "orders", 0, offset=5)))
    assert [step.event["event"] for step in steps] == [
        *("acquired", "released", "acquired", "rejected"),
    ]


def test_the_life_of_a_record_is_told_in_order(tmp_path: Path) -> None:
    write(tmp_path, LIFE[3:], "events-b.parquet")
    write(tmp_path, LIFE[:3], "events-a.parquet")
    write(tmp_path, [changed(99, RangeEvent.GAP, 5, 5)], "_half.parquet")
    steps = story(read_events(tmp_path, Wanted("billing", "orders", 0, offset=5)))
    assert [(step.time, step.text) for step in steps] == [
        (
            NOON + timedelta(seconds=1),
            FIRST,
        ),
        (
            NOON + timedelta(seconds=3),
            "ann (host-1) released it after 700 ms: no stock; available again in 5.0 s",
        ),
        (NOON + timedelta(seconds=5), "handed to bob (host-1), delivery 2; locked for 30.0 s"),
        (
            NOON + timedelta(seconds=6),
            "ann (host-1) rejected it after 9 ms: REJECTED: bad; archived, never delivered again",
        ),
    ]


def test_a_group_whose_name_was_too_long_for_a_directory_is_found(tmp_path: Path) -> None:
    file = write(tmp_path, LIFE)
    file.parent.rename(file.parent.parent / f"group=billi~{'0f' * 8}")
    wanted = Wanted("billing", "orders", 0, offset=5)
    assert len(read_events(tmp_path, wanted)) == 4
    assert not read_events(tmp_path, Wanted("bill", "orders", 0, offset=5))


def test_a_reset_and_a_truncation_belong_to_every_record_that_they_concern(tmp_path: Path) -> None:
    rows = [
        LIFE[0],
        changed(2, RangeEvent.TRUNCATED, 3, 9, member_id=None, client_id=None),
        changed(3, RangeEvent.RESET, 20, 20, member_id=None, client_id=None),
    ]
    write(tmp_path, rows)

    def events(offset: int) -> list[str]:
        wanted = Wanted("billing", "orders", 0, offset=offset)
        return [step.event["event"] for step in story(read_events(tmp_path, wanted))]

    assert events(2) == ["acquired", "reset"]
    assert events(4) == ["acquired", "truncated", "reset"]
    assert events(15) == ["truncated", "reset"]


def test_a_key_is_followed_through_its_records_that_failed(tmp_path: Path) -> None:
    write(tmp_path, LIFE)
    steps = story(read_events(tmp_path, Wanted("billing", key=b"k5")))
    assert [step.event["change_sequence"] for step in steps] == [1, 3, 5, 6]
    assert not read_events(tmp_path, Wanted("billing", key=b"other"))


def test_a_member_is_followed_from_its_joining_on(tmp_path: Path) -> None:
    came = {
        "schema_version": 1,
        "kind": EventKind.GROUP.value,
        "time": NOON,
        "coordinator_id": "c1",
        "group_id": "billing",
        "event": GroupEvent.JOINED.value,
        "member_id": "bob",
        "client_id": "bob",
    }
    gone = {
        **came,
        "time": NOON + timedelta(minutes=1),
        "event": "session_ended",
        "reason": "session timeout",
    }
    write(tmp_path, [gone, *LIFE, came])
    steps = story(read_events(tmp_path, Wanted("billing", member_id="bob")))
    assert [step.text.split(";")[0] for step in steps] == [
        "bob joined",
        "handed to bob (host-1), delivery 2",
        "the session of bob ended: session timeout",
    ]


@pytest.mark.parametrize("event", list(RangeEvent))
def test_every_event_has_a_sentence(event: RangeEvent) -> None:
    text = sentence(changed(1, event, 3, 3, delivery_count=1))
    assert text
    assert "None" not in text
    assert "{" not in text


@pytest.mark.parametrize(
    ("reason", "by"),
    [("User:alice", "User:alice"), ("operator", "an operator"), (None, "an operator")],
)
def test_what_was_forced_names_who_did_it(reason: str | None, by: str) -> None:
    for event, text in (
        (RangeEvent.ARCHIVED_BY_ADMIN, "archived by"),
        (RangeEvent.RELEASED_BY_ADMIN, "released by"),
        (RangeEvent.FINISHED_BY_ADMIN, "taken for done by"),
    ):
        assert sentence(changed(1, event, 3, 3, reason=reason)) == f"{text} {by}"


@pytest.mark.parametrize("event", list(GroupEvent))
def test_every_event_of_a_group_has_a_sentence(event: GroupEvent) -> None:
    text = sentence({"kind": "group", "event": event.value, "coordinator_id": "c1", "reason": "x"})
    assert text.endswith(": x")
    assert "{" not in text


def test_missing_events_are_said() -> None:
    assert sentence({"kind": "lost", "records": 7}).startswith("7 events are missing")


def test_lengths_of_time_are_written_as_people_do() -> None:
    def held(ms: int | None) -> str:
        return sentence(changed(1, RangeEvent.ACCEPTED, 1, 1, held_ms=ms)).split(" after ")[1]

    assert [held(ms) for ms in (0, 999, 1_000, 119_999, 120_000, 7_200_000, None)] == [
        "0 ms",
        "999 ms",
        "1.0 s",
        "120.0 s",
        "2.0 min",
        "2.0 h",
        "a time that is not known",
    ]


class TestBadInput:
    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequestError, match="is not a folder"):
            read_events(tmp_path / "nowhere", Wanted("billing", offset=1))

    def test_no_events_of_the_group(self, tmp_path: Path) -> None:
        write(tmp_path, LIFE)
        with pytest.raises(InvalidRequestError, match="no events of group 'other'"):
            read_events(tmp_path, Wanted("other", offset=1))

    def test_a_corrupt_file_is_named(self, tmp_path: Path) -> None:
        write(tmp_path, LIFE).write_bytes(b"not parquet at all")
        with pytest.raises(InvalidRequestError, match=r"events-c1\.parquet"):
            read_events(tmp_path, Wanted("billing", offset=1))

    def test_more_than_anybody_reads(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "STORY_EVENTS_MAX", 2)
        write(tmp_path, LIFE)
        with pytest.raises(InvalidRequestError, match="more than 2 events"):
            read_events(tmp_path, Wanted("billing", member_id="ann"))
