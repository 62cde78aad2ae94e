"""Rollups of the event log: sums over each large file, for the questions that jobs ask first.

A file of more than `ROWS_MIN` rows has a file of rollups beside it, a hundredth as large, with the
tables below. Their sums can be added up further: a job that reads them instead of the rows has the
same result, because both follow the rules of this module.

`VERSION` grows whenever a table, a column or a rule changes; a reader looks for its own alone, and
takes the rows of files for which there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sharecoord.eventlog import schema
from sharecoord.eventlog.schema import ColumnType, GroupEvent, RangeEvent

VERSION: Final = 2
DIRECTORY: Final = f"_rollups-{VERSION}"
"""Folder beside those of dates, with the same folders in it. Readers of the log skip its name."""
EVERY_VERSION: Final = "_rollups-*"
"""Pattern of the folders of all releases."""
TABLE: Final = "table"
"""The column with the name of the table that a row is of."""

ROWS_MIN: Final = 131_072
"""Least rows of a file with rollups (one row group): fewer are read as fast as their rollups."""

WINDOW_MS: Final = 10_000
"""Length of a window in the tables that have one; jobs with windows that are no multiple of it take
the rows. The default of all jobs."""

# -- rules ----------------------------------------------------------------------------------------

ACCEPTED: Final = RangeEvent.ACCEPTED.value
FAILED: Final = (
    RangeEvent.RELEASED.value,
    RangeEvent.REJECTED.value,
    RangeEvent.EXPIRED.value,
    RangeEvent.DEPARTED.value,
)
"""Events that end an attempt without success. A record handed back unseen was no attempt."""
BESIDE: Final = (
    RangeEvent.WORN_OUT.value,
    RangeEvent.LOG_START.value,
    RangeEvent.ARCHIVED_BY_ADMIN.value,
    RangeEvent.DEAD_LETTERED.value,
)
"""Events that end a record that no member holds."""
GRANTED: Final = (RangeEvent.ACQUIRED.value, RangeEvent.RENEWED.value)
SETTLED: Final = (ACCEPTED, *FAILED, RangeEvent.RETURNED.value)
"""Events that end the time for which a member held records."""
NEAR_MISS: Final = 0.1
"""Share of the lock's duration: an acknowledgement with less left is a near miss."""

PAUSES: Final = (GroupEvent.PAUSED.value, GroupEvent.RESUMED.value)
OF_PARTITION: Final = (GroupEvent.OWNED.value, RangeEvent.RESET.value)
"""Events of a share-partition that may make it lag."""
OF_GROUP: Final = (
    GroupEvent.JOINED.value,
    GroupEvent.LEFT.value,
    GroupEvent.SESSION_ENDED.value,
    *PAUSES,
    GroupEvent.CONFIGURED.value,
)
"""Events of a group that may make its share-partitions lag."""

HELD_DIGITS: Final = 3
"""Significant digits of how long records waited and were held."""
LEFT_DIGITS: Final = 2
"""Significant digits of how long a lock would have lasted."""
LONG_DIGITS: Final = 18
"""Digits of a whole number that always fits into 64 bits."""


def steps(digits: int) -> list[int]:
    """Rounding steps by the length of a whole number, which leave it `digits` significant digits.

    A value is replaced by the middle of its step, so it changes by less than 10^(1 - digits) of
    itself. Numbers with more than `LONG_DIGITS` digits stay as they are.
    """
    return [1] * digits + [10**power for power in range(1, LONG_DIGITS + 1 - digits)] + [1]


# -- tables ---------------------------------------------------------------------------------------


class Rollup(NamedTuple):
    """A table of rollups. A reader adds up rows with the same keys, if the table has sums."""

    table: str
    keys: tuple[str, ...]
    sums: tuple[str, ...] = ()
    """Columns that are added up; null counts nothing."""
    least: tuple[str, ...] = ()
    """Columns of which the least value counts."""
    most: tuple[str, ...] = ()
    """Columns of which the greatest value counts."""
    first: tuple[str, ...] = ()
    """Columns whose value is that of the least `first_us`."""
    last: tuple[str, ...] = ()
    """Columns whose value is that of the greatest `last_us`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, keys first."""
        return tuple(name for names in self[1:] for name in names)


_PLACE = ("group_id", "topic", "topic_id", "partition")
PLACES: Final = Rollup(
    "places", _PLACE, sums=("events", "lost"), least=("first",), most=("last", "schema_version")
)
"""Number of rows of each share-partition, and its first and last change."""

RUNS: Final = Rollup("runs", (*_PLACE, "run_first", "run_last"))
"""Runs of changes of share-partitions without a gap, which show how complete a log is. A change may
be in several runs."""

HAPPENED: Final = Rollup(
    "happened",
    ("group_id", "topic", "partition", "window", "event"),
    sums=("events", "records"),
    most=("age_ms",),
)
"""Events that may make a share-partition lag (null: all others), by window."""

ATTEMPTS: Final = Rollup(
    "attempts",
    (
        *("group_id", "topic", "member_id", "client_id", "event", "state", "delivery_count"),
        *("lock_ms", "held_ms", "left_ms"),
    ),
    sums=("ranges", "records", "work_us", "worked", "samples", "holding"),
)
"""Outcomes of deliveries; see `sharecoord.analytics.attempts`."""

WAITS: Final = Rollup(
    "waits",
    ("group_id", "member_id", "client_id", "dwell_ms"),
    sums=("acquired", "settled", "held_record_ms"),
)
"""How long records waited and were held, by member."""

HANDED: Final = Rollup(
    "handed", ("group_id", "topic", "partition", "window", "member_id"), sums=("records",)
)
"""Records handed out."""

LAGS: Final = Rollup(
    "lags",
    ("group_id", "topic", "partition", "window"),
    sums=("behind_unknown",),
    least=("first_us",),
    most=("last_us", "lag_max", "waiting_max", "behind_max_ms"),
    first=("first_log_end_offset", "first_finished"),
    last=("log_end_offset", "finished", "start_offset", "lag", "waiting", "behind_ms"),
)
"""First and last sample of share-partitions, and the highest figures."""

TROUBLES: Final = Rollup(
    "troubles",
    (
        *("group_id", "topic", "partition", "first_offset", "records", "time", "event", "state"),
        *("delivery_count", "reason", "key"),
    ),
)
"""Every range that failed or was given up, by itself."""

ROLLUPS: Final = (PLACES, RUNS, HAPPENED, ATTEMPTS, WAITS, HANDED, LAGS, TROUBLES)

_TYPES: Final = {column.name: column.type for column in schema.COLUMNS} | {
    "held_record_ms": ColumnType.DOUBLE
}
COLUMNS: Final[Mapping[str, ColumnType]] = {
    TABLE: ColumnType.STRING,
    **{
        name: _TYPES.get(name, ColumnType.INT64)
        for name in dict.fromkeys(name for rollup in ROLLUPS for name in rollup.columns)
    },
}
"""Columns of a file of rollups with their types; null outside of their tables. Those of the event
log keep their types."""
