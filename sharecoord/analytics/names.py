"""Numbers in the place of names, for passes over all events.

To hash, copy, sort and compare texts costs most where groupings have many results, as those of
the fairness job. So it groups by numbers, and puts the names back into its small results:

    events ── numbered ── … ── named (with texts) ── tables

A number is the XXH64 of the text. That two of a million texts have the same one happens in one of
40 million logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics.jobs import persisted
from sharecoord.eventlog.rollups import PLACES, TABLE, WAITS
from sharecoord.eventlog.schema import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharecoord.analytics.rollups import EventLog

NAMES: Final = ("group_id", "topic", "topic_id", "member_id", "client_id")
_WITH_NAMES: Final = (EventKind.MEMBER.value, EventKind.PARTITION.value, EventKind.GROUP.value)
"""Kinds of few rows in which nearly all names stand."""
_TABLES: Final = (PLACES.table, WAITS.table)
"""Rollup tables of few rows in which nearly all names stand."""


def _number(text: Column) -> Column:
    return F.when(text.isNotNull(), F.xxhash64(text))


def numbered(events: DataFrame) -> DataFrame:
    """The same rows with numbers in the columns of `NAMES`; null stays null."""
    return events.withColumns({name: _number(F.col(name)) for name in NAMES})


def texts(log: EventLog, *results: DataFrame) -> DataFrame:
    """The names that stand behind the numbers in kept results, as rows of number and text.

    They are looked up in rollups, or in the rows of samples and groups, of the log before
    `numbered`; only when one is not there all events are read for it.
    """
    looks = (_listed(rows.select(*NAMES).distinct()) for rows in _first_looks(log))
    known = reduce(DataFrame.union, looks).distinct()
    needed = reduce(DataFrame.union, [_numbers(frame) for frame in results]).distinct()
    missing = needed.join(known, "number", "anti")
    # An empty broadcast lets adaptive execution leave the events alone.
    others = _listed(log.rows).join(F.broadcast(missing), "number", "semi")
    return known.union(others).distinct()


def _first_looks(log: EventLog) -> Iterator[DataFrame]:
    if log.rolled is not None:
        yield log.rolled.where(F.col(TABLE).isin(*_TABLES))
    rows = log.rows if log.rolled is None else log.unrolled
    if rows is not None:
        yield rows.where(F.col("kind").isin(*_WITH_NAMES))


def _listed(frame: DataFrame) -> DataFrame:
    """All names of a frame, with their numbers."""
    listed = frame.select(F.explode(F.array(*NAMES)).alias("text")).where(F.col("text").isNotNull())
    return listed.select(_number(F.col("text")).alias("number"), "text").distinct()


def _numbers(frame: DataFrame) -> DataFrame:
    columns = F.array(*(name for name in NAMES if name in frame.columns))
    numbers = frame.select(F.explode(columns).alias("number"))
    return numbers.where(F.col("number").isNotNull()).distinct()


def named(frame: DataFrame, known: DataFrame, *columns: str) -> DataFrame:
    """A frame with names in the place of numbers, from `texts`.

    Each column costs a join; without any named ones all of `NAMES` are replaced.
    """
    wanted = [name for name in columns or NAMES if name in frame.columns]
    joined = frame
    for name in wanted:
        pairs = known.select(F.col("number").alias(name), F.col("text").alias(f"_{name}"))
        joined = joined.join(F.broadcast(pairs), name, "left")
    return joined.select(
        *(F.col(f"_{name}").alias(name) if name in wanted else name for name in frame.columns)
    )


@contextmanager
def naming(log: EventLog, *results: DataFrame) -> Iterator[Callable[..., DataFrame]]:
    """Keeps results and their names; gives `named` for frames that are made of these results.

    The log is that before `numbered`. Every number that `named` meets is in one of the results.
    """
    known = texts(log, *results)
    with persisted(*results, known):
        yield lambda frame, *columns: named(frame, known, *columns)
