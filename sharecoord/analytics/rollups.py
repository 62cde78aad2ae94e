"""The event log as jobs read it: rollups where there are any, and the rows of all other files.

`sharecoord.core.rollups` says what they are. Whatever a job makes of them is what it would make of
the rows, because it adds up further what was added up by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.core.rollups import COLUMNS, TABLE, WINDOW_MS, Rollup


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
    ) -> DataFrame:
        """What rows of the table there are, several perhaps with the same keys.

        Args:
            rollup: The table.
            of_rows: Makes it of events, with one row for the same keys.
            window_ms: Length of the windows that are wanted.

        Returns:
            The columns of `rollup`.
        """
        rolled = self._fitting(window_ms)
        if rolled is None:
            return of_rows(self.rows).select(*rollup.columns)
        found = rolled.where(F.col(TABLE) == rollup.table).select(*rollup.columns)
        if window_ms != WINDOW_MS and "window" in rollup.keys:
            whole = F.floor(F.col("window") / (window_ms // WINDOW_MS))
            found = found.withColumn("window", whole).select(*rollup.columns)
        if self.rest is not None:
            found = found.union(of_rows(self.rest).select(*rollup.columns))
        return found

    def summed(
        self,
        rollup: Rollup,
        of_rows: Callable[[DataFrame], DataFrame],
        *,
        window_ms: int = WINDOW_MS,
    ) -> DataFrame:
        """As `pieces`, with one row for the same keys."""
        found = self.pieces(rollup, of_rows, window_ms=window_ms)
        if self._fitting(window_ms) is None:
            return found
        return found.groupBy(*rollup.keys).agg(
            *(F.sum(name).alias(name) for name in rollup.sums),
            *(F.min(name).alias(name) for name in rollup.least),
            *(F.max(name).alias(name) for name in rollup.most),
            *(F.bit_or(name).alias(name) for name in rollup.bits),
            *(F.min_by(name, "first_us").alias(name) for name in rollup.first),
            *(F.max_by(name, "last_us").alias(name) for name in rollup.last),
        )

    def _fitting(self, window_ms: int) -> DataFrame | None:
        return None if window_ms % WINDOW_MS else self.rolled


def schema() -> str:
    """Of a file of rollups, as Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
