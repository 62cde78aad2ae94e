"""Counts of a writer's rows, and the port of its sinks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from sharecoord.events.frames import Block, lost_block, rows_of

log = structlog.get_logger(__name__)

LOG_AGAIN_S: Final = 10.0
"""Least time between two log lines about lost rows."""


@dataclass(slots=True)
class Counts:
    """Rows since the writer began.

    Attributes:
        written: Rows that are safe.
        lost: Rows that could not be written.
        settled: Rows of the pipe that are not under way any more.
        unsaid: Lost rows of which no row of kind `lost` tells yet.
        newest_us: Time of the newest row, microseconds since the epoch.
    """

    written: int = 0
    lost: int = 0
    settled: int = 0
    unsaid: int = 0
    newest_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    _logged_s: float | None = None

    def missing(self, rows: int, unsaid: int, where: str, reason: object) -> None:
        """Counts lost rows, and logs that at most every `LOG_AGAIN_S`."""
        self.lost += rows
        self.unsaid += unsaid
        now_s = time.monotonic()
        if self._logged_s is None or now_s - self._logged_s >= LOG_AGAIN_S:
            self._logged_s = now_s
            log.error(
                "event log: rows are lost", where=where, reason=str(reason), lost_so_far=self.lost
            )

    def bad(self, payload: bytes, where: str, reason: object) -> None:
        """Counts all rows of a frame that can not be read as lost."""
        rows = rows_of(payload)
        self.settled += rows
        self.missing(rows, rows, where, reason)

    def lost_row(self) -> list[Block]:
        """The row that tells of lost rows, as a list of blocks."""
        common, names, rows = lost_block(self.newest_us, self.unsaid)
        return [(dict(common), names, list(rows))]


class WriterSink(Protocol):
    """The sink of a writer; the pipe waits while a call runs."""

    counts: Counts

    def take(self, payload: bytes) -> None:
        """Takes the blocks of a frame."""

    def work(self) -> None:
        """Does the work that is due; to be called after some frames, and when `wait_s` is over."""

    def wait_s(self) -> float | None:
        """Seconds until `work` is due if no frame comes; None = for ever."""

    def close(self) -> None:
        """Finishes everything."""
