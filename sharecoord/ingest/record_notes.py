"""Log lines about records: any producer can cause as many as it likes, so they come seldom."""

from __future__ import annotations

import math
import time
from typing import Final

import structlog

from sharecoord.kafka.client import Message

log = structlog.get_logger(__name__)

SAY_AGAIN_S: Final = 10.0
"""A topic's records get one line of a kind in so long, with the number of records since."""


class RecordNotes:
    """One kind of line; remembers a time and a count for each topic that is read."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._topics: dict[str | None, tuple[float, int]] = {}

    def note(self, first: Message, records: int, problem: str) -> None:
        """Says what is wrong with records, or counts them for the next line.

        Args:
            first: The first of them.
            records: How many.
            problem: What is wrong with the first.
        """
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
