"""The event log as jobs read it: rollups where there are any, and the rows of all other files.

`sharecoord.eventlog.rollups` describes the tables. A job finds by rollups exactly what it finds by
rows, because it adds up further what was added up by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics.event_columns import SPARK_TYPES
from sharecoord.eventlog.rollups import COLUMNS, TABLE, WINDOW_MS, Rollup


@dataclass(frozen=True, slots=True)
class EventLog:
    """An event log, or the part of it that a job asks for.

    Attributes:
        rows: All events.
        rolled: The rollups of some files; None when no file has any.
        unrolled: The events of the other files; None when all have rollups.
    """

    rows: DataFrame
    rolled: DataFrame | None = None
    unrolled: DataFrame | None = None

    def changed(self, change: Callable[[DataFrame], DataFrame]) -> EventLog:
        """The same log after a change of its frames; `change` takes rows and rollups alike."""
        rolled = None if self.rolled is None else change(self.rolled)
        unrolled = None if self.unrolled is None else change(self.unrolled)
        return EventLog(change(self.rows), rolled, unrolled)

    def partial_rows(
        self,
        rollup: Rollup,
        of_events: Callable[[DataFrame], DataFrame],
        *,
        window_ms: int = WINDOW_MS,
        further: tuple[str, ...] = (),
    ) -> DataFrame:
        """The rows of a rollup table over the whole log; several may have the same keys.

        `of_events` makes the table of events, for files without rollups; both have `further`
        columns.
        """
        columns = (*rollup.columns, *further)
        rolled = self.rolled_for(window_ms)
        of_unrolled = self.of_unrolled(of_events, window_ms=window_ms)
        if rolled is None:
            return of_unrolled[0].select(*columns)
        rows = rolled.where(F.col(TABLE) == rollup.table).select(*columns)
        if window_ms != WINDOW_MS and "window" in rollup.keys:
            longer = F.floor(F.col("window") / (window_ms // WINDOW_MS))
            rows = rows.withColumn("window", longer).select(*columns)
        for frame in of_unrolled:
            rows = rows.union(frame.select(*columns))
        return rows

    def of_unrolled(
        self, of_events: Callable[[DataFrame], DataFrame], *, window_ms: int = WINDOW_MS
    ) -> list[DataFrame]:
        """A table of the events of files without rollups: one frame, or none without such files.

        A caller that makes several tables by the same `of_events` keeps the frame with `persist`.
        """
        events = self.rows if self.rolled_for(window_ms) is None else self.unrolled
        return [] if events is None else [of_events(events)]

    def summed_rows(
        self,
        rollup: Rollup,
        of_events: Callable[[DataFrame], DataFrame],
        *,
        window_ms: int = WINDOW_MS,
    ) -> DataFrame:
        """As `partial_rows`, with one row for the same keys; `of_events` makes one, too."""
        rows = self.partial_rows(rollup, of_events, window_ms=window_ms)
        if self.rolled_for(window_ms) is None:
            return rows
        return rows.groupBy(*rollup.keys).agg(
            *(F.sum(name).alias(name) for name in rollup.sums),
            *(F.min(name).alias(name) for name in rollup.least),
            *(F.max(name).alias(name) for name in rollup.most),
            *(F.min_by(name, "first_us").alias(name) for name in rollup.first),
            *(F.max_by(name, "last_us").alias(name) for name in rollup.last),
        )

    def rolled_for(self, window_ms: int) -> DataFrame | None:
        """The rollups, if time windows of this length can be made of theirs."""
        return None if window_ms % WINDOW_MS else self.rolled


def schema() -> str:
    """The columns of a file of rollups, as Spark's DDL."""
    return ", ".join(f"`{name}` {SPARK_TYPES[kind]}" for name, kind in COLUMNS.items())
