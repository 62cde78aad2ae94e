"""What `sharecoord events` does with a folder."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from sharecoord.events.compaction import Joined, compact, roll_up_all
from sharecoord.events.folder import Deleted, EventFolder, Finding, Listed
from sharecoord.events.spool import waiting_rows


class EventTools:
    """A folder of the event log.

    Raises:
        InvalidRequestError: It is not one.
    """

    def __init__(self, root: Path) -> None:
        self._folder = EventFolder(root)

    def listed(self) -> tuple[list[Listed], int]:
        """Files by date and group with what waits in the spool, and how many can not be read."""
        return self._folder.listed()

    def spooled(self, group_id: str) -> Iterator[dict[str, Any]]:
        """The rows of a group that are in no Parquet file yet; `time` in microseconds."""
        for _, row in waiting_rows(self._folder.root, group_id):
            yield row

    def compact(
        self, *, before: date | None, file_max_bytes: int, dry_run: bool
    ) -> Iterator[Joined]:
        """Joins small files, by default of the dates that are over; see `compaction.compact`."""
        last = before or datetime.now(UTC).date()
        return compact(self._folder, before=last, file_max_bytes=file_max_bytes, dry_run=dry_run)

    def roll_up(self) -> None:
        """Makes the rollups of large files that have none; see `compaction.roll_up_all`."""
        roll_up_all(self._folder, date.max)

    def retain(self, keep_ms: int, *, dry_run: bool) -> list[Deleted]:
        """Deletes old dates; see `EventFolder.retain`."""
        keep = timedelta(milliseconds=keep_ms)
        return self._folder.retain(keep, now=datetime.now(UTC), dry_run=dry_run)

    def check(self) -> list[Finding]:
        """Everything that is wrong."""
        return self._folder.check()
