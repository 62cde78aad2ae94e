"""The event log as Parquet files: rows go to a spool file, and from there to the files of groups.

Only two files are open at a time, and memory does not grow with the number of groups.
"""

from __future__ import annotations

import marshal
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from sharecoord.config.setting import invalid_config
from sharecoord.errors import InvalidConfigError
from sharecoord.events.counts import Counts
from sharecoord.events.frames import MARSHAL_VERSION
from sharecoord.events.parquet_files import finish, finish_left
from sharecoord.events.places import SPOOL
from sharecoord.events.spool import BAD_ROWS, Record, Segment, records_of, spool_files

log = structlog.get_logger(__name__)

SEGMENT_BYTES_MAX: Final = 512 << 20
"""Largest spool file: bounds the room on the disk (`PENDING_MAX` + 1 files) and the time of a
conversion."""

FILES_PER_SEGMENT: Final = 4
"""A spool file is this many times as large as the files that are wanted: its rows take several
times the room that they take in a Parquet file."""

PENDING_MAX: Final = 2
"""Full spool files that may wait for their conversion; beyond it the pipe waits, and overflows."""

RETRY_S: Final = 10.0
"""Time until the disk is tried again after a failed conversion or write."""

LOOK_S: Final = 300.0
"""How often a writer looks for spool files of writers that died: their coordinators may never come
back."""


class ParquetSink:
    """The `WriterSink` of a folder."""

    def __init__(
        self,
        root: Path,
        *,
        coordinator_id: str,
        file_max_bytes: int,
        file_max_age_ms: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes the folder; see `WriterSettings` for the arguments.

        Raises:
            InvalidConfigError: The folder can not be made or written, or not locked.
        """
        self.counts = Counts()
        self._root = root
        self._coordinator_id = coordinator_id
        self._file_max_bytes = file_max_bytes
        self._max_age_s = file_max_age_ms / 1000
        self._segment_max_bytes = min(SEGMENT_BYTES_MAX, file_max_bytes * FILES_PER_SEGMENT)
        self._now_s = now_s
        self._taken: list[Record] = []
        self._segment: Segment | None = None
        self._begun_s = 0.0
        self._pending: deque[Segment] = deque()
        self._converter = ThreadPoolExecutor(1, "convert")
        self._job: Future[int] | None = None
        self._converts_own = False
        self._retry_s = 0.0
        _prepare(root, coordinator_id)
        self._left: deque[Path] = deque()
        self._look_s = now_s()

    # -- rows in --------------------------------------------------------------------------------

    def take(self, payload: bytes) -> None:
        """Takes the blocks of a frame."""
        try:
            records = records_of(payload)
        except BAD_ROWS as error:
            self.counts.bad(payload, str(self._root), error)
        else:
            self._taken += records

    def work(self) -> None:
        """Writes the rows that were taken to the spool; begins and ends conversions."""
        self._append()
        self._collect()
        now_s = self._now_s()
        segment = self._segment
        if segment is not None and len(self._pending) < PENDING_MAX:
            is_full = segment.size >= self._segment_max_bytes
            if is_full or now_s >= self._begun_s + self._max_age_s:
                self._pending.append(segment)
                self._segment = None
        if self._job is None and now_s >= self._retry_s:
            self._convert_next()

    def wait_s(self) -> float | None:
        """Seconds until the next work is due; few while the converter is busy."""
        if self._job is not None:
            return 0.05
        now_s = self._now_s()
        if self._pending or self._left or self.counts.unsaid:
            return max(0.0, self._retry_s - now_s)
        due_s = self._look_s
        if self._segment is not None:
            due_s = min(due_s, self._begun_s + self._max_age_s)
        return max(0.0, due_s - now_s)

    def _append(self) -> None:
        """Writes the rows that were taken, and how many are missing when it is time to say so."""
        counts = self.counts
        records, self._taken = self._taken, []
        if not records and not (counts.unsaid and self._now_s() >= self._retry_s):
            return
        rows = sum(record.rows for record in records)
        counts.settled += rows
        if records:
            counts.newest_us = records[-1].time_us
        said = counts.unsaid
        if said:
            records = [*records_of(marshal.dumps(counts.lost_row(), MARSHAL_VERSION)), *records]
        try:
            self._open_segment().append(records)
        except OSError as error:
            unsaid = sum(record.unsaid for record in records) - said - bool(said)
            counts.missing(rows, unsaid, str(self._root), error.strerror or error)
            self._retry_s = self._now_s() + RETRY_S
        else:
            counts.written += rows
            counts.unsaid -= said

    def _open_segment(self) -> Segment:
        """The segment for new rows; waits for the converter when it is far behind.

        Raises:
            OSError: No room.
        """
        segment = self._segment
        if segment is not None and segment.size >= self._segment_max_bytes:
            while len(self._pending) >= PENDING_MAX:
                if self._job is None:
                    if self._now_s() < self._retry_s:
                        raise OSError("full spool files wait for room in the folder")
                    self._convert_next()
                assert self._job is not None, "something is pending"
                self._job.exception()
                self._collect()
            self._pending.append(segment)
            segment = self._segment = None
        if segment is None:
            segment = self._segment = Segment.create(self._root, self._coordinator_id)
            self._begun_s = self._now_s()
        return segment

    # -- files out ------------------------------------------------------------------------------

    def _convert_next(self) -> None:
        """Gives the converter its next segment; spool files of dead writers come last."""
        size = self._file_max_bytes
        now_s = self._now_s()
        if not self._pending and now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            ours = None if self._segment is None else self._segment.path
            self._left = deque(path for path in spool_files(self._root) if path != ours)
        self._converts_own = bool(self._pending)
        if self._pending:
            self._job = self._converter.submit(finish, self._pending[0], self._root, size)
        elif self._left:
            self._job = self._converter.submit(finish_left, self._left[0], self._root, size)

    def _collect(self) -> None:
        """Takes the result of the last conversion, if it has ended."""
        if self._job is None or not self._job.done():
            return
        job, self._job = self._job, None
        try:
            bad_rows = job.result()
        except OSError as error:
            self._retry_s = self._now_s() + RETRY_S
            log.error(
                "event log: Parquet files can not be written; their rows wait in the spool",
                directory=str(self._root),
                reason=error.strerror or str(error),
            )
            return
        if self._converts_own:
            self._pending.popleft()
            self.counts.lost += bad_rows
            self.counts.unsaid += bad_rows
        else:
            self._left.popleft()

    def close(self) -> None:
        """Makes Parquet files of all rows; rows that can not be written stay in the spool."""
        self._finish_all()
        if self.counts.unsaid:
            self._finish_all()  # writes the row that tells of rows that did not fit
        self._converter.shutdown()
        for segment in self._pending:
            segment.close()

    def _finish_all(self) -> None:
        self._retry_s = 0.0
        self._append()
        if self._segment is not None:
            self._pending.append(self._segment)
            self._segment = None
        self._retry_s = 0.0
        while self._retry_s == 0.0:
            if self._job is None:
                self._convert_next()
            if self._job is None:
                break
            self._job.exception()
            self._collect()


def _prepare(root: Path, coordinator_id: str) -> None:
    """Makes the folder and tries to write to it."""
    try:
        (root / SPOOL).mkdir(parents=True, exist_ok=True)
        Segment.create(root, coordinator_id).remove()
    except OSError as error:
        problem = f"the directory can not be made or written: {error.strerror}"
        fix = f"Give a directory that user {os.getuid()} can write to"
        raise invalid_config("events.sink", f"parquet:{root}", problem, fix=fix) from error
    except InvalidConfigError as error:
        fix = "Choose a directory on another file system"
        raise invalid_config("events.sink", f"parquet:{root}", error.message, fix=fix) from error
