"""What a writer makes of the rows that it is given, counted."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from sharecoord.events.frames import Block, lost_block

log = structlog.get_logger(__name__)

LOG_AGAIN_S: Final = 10.0
"""What goes wrong for every row is logged once in so long."""


@dataclass(slots=True)
class Counts:
    """Rows since the writer began.

    Attributes:
        written: Safely taken over.
        lost: Could not be written.
        settled: Of those that came through the pipe, how many are not under way any more.
        unsaid: Rows that are missing, and no row of kind `lost` says so yet.
        newest_us: Time of the newest row.
    """

    written: int = 0
    lost: int = 0
    settled: int = 0
    unsaid: int = 0
    newest_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    _logged_s: float | None = None

    def missing(self, rows: int, unsaid: int, where: str, reason: object) -> None:
        """Counts rows that are lost, and logs it now and then."""
        self.lost += rows
        self.unsaid += unsaid
        now_s = time.monotonic()
        if self._logged_s is None or now_s - self._logged_s >= LOG_AGAIN_S:
            self._logged_s = now_s
            log.error(
                "event log: rows are lost", where=where, reason=str(reason), lost_so_far=self.lost
            )

    def lost_row(self) -> list[Block]:
        """The row that says what is missing, as a list of blocks."""
        common, names, rows = lost_block(self.newest_us, self.unsaid)
        return [(dict(common), names, list(rows))]


class WriterSink(Protocol):
    """What a writer writes to; its calls may take their time, the pipe waits meanwhile."""

    counts: Counts

    def take(self, payload: bytes) -> None:
        """Takes the blocks of a frame."""

    def work(self) -> None:
        """Does what is due; to be called after some frames, and when `wait_s` is over."""

    def wait_s(self) -> float | None:
        """How long from now `work` has nothing to do, if nothing comes; None = for ever."""

    def close(self) -> None:
        """Finishes everything."""
