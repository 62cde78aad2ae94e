"""The share-partition as the store has it, read from the coordinator's SQLite file.

Committed state only, also while the coordinator is dead: what is locked stays locked over a
crash, and this is where one can see it. Reads do not block the coordinator (WAL).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sharecoord.core.states import RecordState

READ_TIMEOUT_S = 1.0

_HEAD = (
    "SELECT id, start_offset, end_offset, finished_count FROM share_partition "
    "WHERE topic = ? AND partition_index = 0 AND NOT closed AND start_offset IS NOT NULL"
)
_RANGES = (
    "SELECT first_offset, last_offset, state, delivery_count, available_at_ms, reason "
    "FROM in_flight WHERE partition_id = ? ORDER BY first_offset"
)


class WindowRange(NamedTuple):
    """Records of equal state, from `first` to `last`."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    delayed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class WindowState:
    """The window, from `start_offset` to before `end_offset`; what no range covers is accepted."""

    start_offset: int = 0
    end_offset: int = 0
    finished_count: int = 0
    ranges: tuple[WindowRange, ...] = field(default=())

    def lag(self, log_end_offset: int) -> int:
        """Number of records that are not finished."""
        return max(log_end_offset - self.start_offset - self.finished_count, 0)


def read_window(store: Path, topic: str) -> WindowState | None:
    """The window of partition 0; None when there is nothing yet, or the file is busy."""
    try:
        connection = sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True, timeout=READ_TIMEOUT_S)
        with closing(connection), connection:
            connection.execute("BEGIN")  # both statements see the same commit
            head = connection.execute(_HEAD, (topic,)).fetchone()
            if head is None:
                return None
            rows = connection.execute(_RANGES, (head[0],)).fetchall()
    except sqlite3.OperationalError:
        return None
    ranges = tuple(
        # A reason is `CAUSE` or `CAUSE: what the worker said`.
        WindowRange(
            first,
            last,
            RecordState(state),
            count,
            available_at_ms > 0,
            (reason or "").partition(":")[0],
        )
        for first, last, state, count, available_at_ms, reason in rows
    )
    return WindowState(head[1], head[2], head[3] or 0, ranges)
