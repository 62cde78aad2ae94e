"""The event log as jobs read it: rollups where there are any, and the rows of all other files.

`sharecoord.eventlog.rollups` says what they are. Whatever a job makes of them is what it would make
of the rows, because it adds up further what was added up by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.eventlog.rollups import COLUMNS, TABLE, WINDOW_MS, Rollup


@dataclass(frozen=True, slots=True)
class EventLog:
    """A log, or what is wanted of it.

    Attributes:
        rows: All events.
        rolled: The rollups of some files; None when none has any.
        rest: The events of the other files; None when all have rollups.
    """

    rows: DataFrame
    rolled: DataFrame | None = None
    rest: DataFrame | None = None

    def changed(self, change: Callable[[DataFrame], DataFrame]) -> EventLog:
        """The same log with another look: `change` takes rows and rollups alike."""
        rolled = None if self.rolled is None else change(self.rolled)
        rest = None if self.rest is None else change(self.rest)
        return EventLog(change(self.rows), rolled, rest)

    def pieces(
        self,
        rollup: Rollup,
        of_rows: Callable[[DataFrame], DataFrame],
        *,
        window_ms: int = WINDOW_MS,
        beside: tuple[str, ...] = (),
    ) -> DataFrame:
        """What rows of the table there are, several perhaps with the same keys.

        Args:
            rollup: The table.
            of_rows: Makes its columns of events.
            window_ms: Length of the windows that are wanted.
            beside: Further columns that both have.

        Returns:
            The columns of `rollup`, and those.
        """
        columns = (*rollup.columns, *beside)
        rolled = self.fitting(window_ms)
        of_rest = self.of_rest(of_rows, window_ms=window_ms)
        if rolled is None:
            return of_rest[0].select(*columns)
        found = rolled.where(F.col(TABLE) == rollup.table).select(*columns)
        if window_ms != WINDOW_MS and "window" in rollup.keys:
            whole = F.floor(F.col("window") / (window_ms // WINDOW_MS))
            found = found.withColumn("window", whole).select(*columns)
        for each in of_rest:
            found = found.union(each.select(*columns))
        return found

    def of_rest(
        self, of_rows: Callable[[DataFrame], DataFrame], *, window_ms: int = WINDOW_MS
    ) -> list[DataFrame]:
        """What `pieces` makes of rows, to be kept when it makes several tables of it.

        Returns:
            One frame, or none when all files have rollups.
        """
        left = self.rows if self.fitting(window_ms) is None else self.rest
        return [] if left is None else [of_rows(left)]

    def summed(
        self,
        rollup: Rollup,
        of_rows: Callable[[DataFrame], DataFrame],
        *,
        window_ms: int = WINDOW_MS,
    ) -> DataFrame:
        """As `pieces`, with one row for the same keys; `of_rows` has to make one, too."""
        found = self.pieces(rollup, of_rows, window_ms=window_ms)
        if self.fitting(window_ms) is None:
            return found
        return found.groupBy(*rollup.keys).agg(
            *(F.sum(name).alias(name) for name in rollup.sums),
            *(F.min(name).alias(name) for name in rollup.least),
            *(F.max(name).alias(name) for name in rollup.most),
            *(F.min_by(name, "first_us").alias(name) for name in rollup.first),
            *(F.max_by(name, "last_us").alias(name) for name in rollup.last),
        )

    def fitting(self, window_ms: int) -> DataFrame | None:
        """The rollups, if windows of this length can be made of theirs."""
        return None if window_ms % WINDOW_MS else self.rolled


def schema() -> str:
    """Of a file of rollups, as Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
