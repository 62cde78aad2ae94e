"""A producer can not fill the log with lines about its records."""

from __future__ import annotations

from typing import cast

import pytest
from structlog.testing import capture_logs

from sharecoord.ingest.columns import SAY_AGAIN_S, RecordNotes
from sharecoord.kafka.client import Message


class Record:
    def __init__(self, topic: str, offset: int) -> None:
        self._topic, self._offset = topic, offset

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


def record(topic: str, offset: int) -> Message:
    return cast("Message", Record(topic, offset))


def test_a_topic_gets_one_line_in_so_long_with_all_records_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    notes = RecordNotes("not used")
    with capture_logs() as lines:
        for offset in range(1_000):
            notes.note(record("a", offset), 2, "no number")
        notes.note(record("b", 7), 1, "too late")
        now_s += SAY_AGAIN_S
        notes.note(record("a", 1_000), 2, "no number")
    assert [(each["topic"], each["offset"], each["records"]) for each in lines] == [
        ("a", 0, 2),
        ("b", 7, 1),
        ("a", 1_000, 2_000),
    ]
    assert {each["event"] for each in lines} == {"not used"}
    assert lines[0]["problem"] == "no number"
