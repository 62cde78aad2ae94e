"""Log lines about records, limited in rate: any producer can cause as many as it likes."""

from __future__ import annotations

import math
import time
from typing import Final

import structlog

from sharecoord.kafka.client import Message

log = structlog.get_logger(__name__)

SAY_AGAIN_S: Final = 10.0
"""Least time between two lines of a kind about one topic; a line counts the records since."""


class RecordNotes:
    """A kind of log line, with the time of the last line and a count for each topic."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._topics: dict[str | None, tuple[float, int]] = {}

    def note(self, first: Message, records: int, problem: str) -> None:
        """Logs a problem with `records` records, `first` being the first, or counts them."""
        topic, now_s = first.topic(), time.monotonic()
        said_s, unsaid = self._topics.get(topic, (-math.inf, 0))
        if now_s - said_s < SAY_AGAIN_S:
            self._topics[topic] = said_s, unsaid + records
            return
        self._topics[topic] = now_s, 0
        log.warning(
            self._event,
            topic=topic,
            partition=first.partition(),
            offset=first.offset(),
            problem=problem,
            records=records + unsaid,
        )
