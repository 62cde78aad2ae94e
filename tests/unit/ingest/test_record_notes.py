"""A producer can not fill the log with lines about its records."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from sharecoord.ingest.notes import SAY_AGAIN_S, RecordNotes


def test_a_topic_gets_one_line_in_so_long_with_all_records_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    notes = RecordNotes("not used")
    with capture_logs() as lines:
        for offset in range(1_000):
            notes.note("a", 0, offset, 2, "no number")
        notes.note("b", 0, 7, 1, "too late")
        now_s += SAY_AGAIN_S
        notes.note("a", 0, 1_000, 2, "no number")
    assert [(each["topic"], each["offset"], each["records"]) for each in lines] == [
        ("a", 0, 2),
        ("b", 7, 1),
        ("a", 1_000, 2_000),
    ]
    assert {each["event"] for each in lines} == {"not used"}
    assert lines[0]["problem"] == "no number"
