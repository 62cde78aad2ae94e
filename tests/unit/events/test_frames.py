"""Frames and their contents."""

from __future__ import annotations

import marshal

import pytest

from sharecoord.eventlog.schema import EventBlock, EventKind, RangeEvent
from sharecoord.events.frames import (
    FrameReader,
    WriterSettings,
    frame,
    frame_of_blocks,
    lost_block,
    rows_of,
    unsaid_of,
)
from tests.unit.events.support import block, payload


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_come_out_whole_however_they_are_cut(size: int) -> None:
    values = [[1], ["text" * 20], [], [b"\0" * 300]]
    stream = b"".join(map(frame, values))
    reader = FrameReader()
    found = []
    for begin in range(0, len(stream), size):
        found += reader.feed(stream[begin : begin + size])
    assert [marshal.loads(each) for each in found] == values


def test_a_frame_that_is_not_whole_does_not_come_out() -> None:
    reader = FrameReader()
    assert reader.feed(frame([1, 2, 3])[:-1]) == []


def test_members_of_enums_travel_as_texts() -> None:
    common = {"kind": EventKind.RANGE, "time": 1, "group_id": "g"}
    rows = [(RangeEvent.ACQUIRED, 1, None, b"k")]
    data = frame_of_blocks([EventBlock(common, ("event", "records", "reason", "key"), rows)])
    ((common_read, _, (row,)),) = marshal.loads(data[4:])
    assert (common_read["kind"], type(common_read["kind"])) == ("range", str)
    assert (row, type(row[0])) == (("acquired", 1, None, b"k"), str)


def test_settings_come_back() -> None:
    settings = WriterSettings(
        kind="kafka",
        target="t",
        coordinator_id="c",
        file_max_bytes=1,
        file_max_age_ms=2,
        kafka={"sasl.password": "secret"},
    )
    assert WriterSettings.read(FrameReader().feed(settings.frame())[0]) == settings


def test_a_row_of_kind_lost_that_is_lost_passes_on_what_it_says() -> None:
    lost = lost_block(5, 40)
    assert lost.common["kind"] == "lost"
    assert unsaid_of(marshal.loads(payload(block(count=3), lost))) == 3 + 1 + 40
    assert rows_of(payload(block(count=3), lost)) == 4
