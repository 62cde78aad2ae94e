"""Log lines about records: one of a kind and topic in some seconds, with a count of the others."""

from __future__ import annotations

import math
import time
from typing import Final

import structlog

log = structlog.get_logger(__name__)

SAY_AGAIN_S: Final = 10.0
"""Least time between two lines of a kind about one topic; a line counts the records since."""


class RecordNotes:
    """A kind of log line, with the time of the last line and a count for each topic."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._topics: dict[str, tuple[float, int]] = {}

    def note(self, topic: str, partition: int, offset: int, records: int, problem: str) -> None:
        """Logs a problem with `records` records, the first at this offset, or counts them."""
        now_s = time.monotonic()
        said_s, unsaid = self._topics.get(topic, (-math.inf, 0))
        if now_s - said_s < SAY_AGAIN_S:
            self._topics[topic] = said_s, unsaid + records
            return
        self._topics[topic] = now_s, 0
        log.warning(
            self._event,
            topic=topic,
            partition=partition,
            offset=offset,
            problem=problem,
            records=records + unsaid,
        )


UNUSABLE_SCHEDULES = RecordNotes("schedule not used, delivered at once")
"""Log lines about records whose own delivery time can not be used."""

LOST_HEADERS = RecordNotes("headers left out")
"""Log lines about records that go on without their headers."""

UNREADABLE = RecordNotes("records can not be read")
"""Log lines about batches that can not be read: their partition stands still."""
