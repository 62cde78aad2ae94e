"""Work of `sharecoord events` on a folder of the event log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

from sharecoord.events.compaction import Joined, compact, roll_up_all
from sharecoord.events.folder import EventFolder
from sharecoord.events.spool import waiting_rows


class EventTools(EventFolder):
    """A folder of the event log with the work of compaction on it."""

    def spooled(self, group_id: str) -> Iterator[dict[str, Any]]:
        """The rows of a group that are in no Parquet file yet; `time` in microseconds."""
        for _, row in waiting_rows(self.root, group_id):
            yield row

    def compact(
        self, *, before: date | None, file_max_bytes: int, dry_run: bool
    ) -> Iterator[Joined]:
        """Joins small files, by default of the dates that are over; see `compaction.compact`."""
        last = before or datetime.now(UTC).date()
        return compact(self, before=last, file_max_bytes=file_max_bytes, dry_run=dry_run)

    def roll_up(self) -> None:
        """Makes the rollups of large files that have none; see `compaction.roll_up_all`."""
        roll_up_all(self, date.max)
