"""How complete an event log is, by the numbers of the changes in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.core.events import EventKind
from sharecoord.core.rollups import PLACES, RUNS, WINDOW_MS

if TYPE_CHECKING:
    from sharecoord.analytics.rollups import EventLog

PLACE = ["group_id", "topic", "topic_id", "partition"]


def census(events: DataFrame) -> DataFrame:
    """How complete the log is, per share-partition; see `of_words`."""
    return of_words(words(events))


def census_of(
    log: EventLog,
    made: Callable[[DataFrame], DataFrame],
    *,
    window_ms: int = WINDOW_MS,
) -> DataFrame:
    """The same of a log with rollups.

    Args:
        log: The log.
        made: `words`, or what has their columns, if a caller keeps that.
        window_ms: Length of the windows by which its rows are told apart.
    """
    if log.fitting(window_ms) is None:
        return of_words(made(log.rows))
    places = log.pieces(PLACES, lambda rows: places_of(made(rows)), window_ms=window_ms)
    runs = log.pieces(RUNS, lambda rows: runs_of(made(rows)), window_ms=window_ms)
    return of_runs(places, runs)


def words(events: DataFrame, *keys: Column, **sums: Column) -> DataFrame:
    """The changes of each share-partition as words of 64 bits, one for each change.

    Args:
        events: The events.
        keys: By what a word's rows are told apart besides.
        sums: What is added up besides, so that a caller needs no pass of its own.

    Returns:
        The key and `PLACE`, word, and what `of_words` needs.
    """
    is_range = F.col("kind") == EventKind.RANGE.value
    sequence = F.col("change_sequence")
    bit = F.expr("shiftleft(1L, cast(change_sequence & 63L as int))")
    return events.groupBy(*PLACE, *keys, F.shiftright(sequence, 6).alias("word")).agg(
        F.count(F.lit(1)).alias("events"),
        F.sum(F.when(F.col("kind") == EventKind.LOST.value, F.col("records"))).alias("lost"),
        F.bit_or(F.when(is_range, bit)).alias("bits"),
        F.min(F.when(is_range, sequence)).alias("first"),
        F.min(F.when(~is_range, sequence + 1)).alias("first_sampled"),
        F.max(sequence).alias("last"),
        F.max("schema_version").alias("schema_version"),
        *(value.alias(name) for name, value in sums.items()),
    )


def of_words(pieces: DataFrame) -> DataFrame:
    """How complete the log is, per share-partition; rows of no share-partition have none.

    A partition's first change is its first event, or the one after the newest that its first sample
    knew; the last likewise. Between the two every change has its event, or it was lost. Distinct
    ones are counted exactly.

    Args:
        pieces: From `words`.

    Returns:
        group_id, topic, topic_id, partition, events, lost (rows that `lost` rows speak of), seen,
        expected (changes), schema_version (the highest).
    """
    by_word = _by_word(pieces)
    seen = by_word.groupBy(*PLACE).agg(F.sum(F.bit_count("bits")).alias("seen"))
    return _counted(places_of(by_word), seen)


def of_runs(places: DataFrame, runs: DataFrame) -> DataFrame:
    """The same, by runs of changes without a gap, which may overlap.

    Args:
        places: From `places_of`, several rows perhaps of the same share-partition.
        runs: From `runs_of`.
    """
    earlier = Window.partitionBy(*PLACE).orderBy("run_first")
    before = F.max("run_last").over(earlier.rowsBetween(Window.unboundedPreceding, -1))
    known = F.greatest(before, F.col("run_first") - 1)
    fresh = runs.withColumn("fresh", F.greatest(F.col("run_last") - known, F.lit(0)))
    return _counted(places, fresh.groupBy(*PLACE).agg(F.sum("fresh").alias("seen")))


def _by_word(pieces: DataFrame) -> DataFrame:
    return pieces.groupBy(*PLACE, "word").agg(
        *(F.sum(name).alias(name) for name in ("events", "lost")),
        *(F.min(name).alias(name) for name in ("first", "first_sampled")),
        *(F.max(name).alias(name) for name in ("last", "schema_version")),
        F.bit_or("bits").alias("bits"),
    )


def places_of(pieces: DataFrame) -> DataFrame:
    """Rows, and first and last change, of each share-partition: `PLACES`, from `words`."""
    return pieces.groupBy(*PLACE).agg(
        *(F.sum(name).alias(name) for name in PLACES.sums),
        F.least(F.min("first"), F.min("first_sampled")).alias("first"),
        *(F.max(name).alias(name) for name in PLACES.most),
    )


def runs_of(pieces: DataFrame) -> DataFrame:
    """Changes of each share-partition in a row: `RUNS`, from `words`."""
    start = F.shiftleft("word", 6)
    bits = F.filter(F.sequence(F.lit(0), F.lit(63)), lambda bit: F.getbit(F.col("bits"), bit) == 1)
    single = F.transform(bits, lambda bit: F.struct(bit.alias("from"), bit.alias("to")))
    whole = F.array(F.struct(F.lit(0).alias("from"), F.lit(63).alias("to")))
    parts = F.when(F.col("bits") == -1, whole).otherwise(single)
    found = _by_word(pieces).select(*PLACE, start.alias("start"), F.inline(parts))
    return found.select(
        *PLACE,
        (F.col("start") + F.col("from")).alias("run_first"),
        (F.col("start") + F.col("to")).alias("run_last"),
    )


def _counted(places: DataFrame, seen: DataFrame) -> DataFrame:
    """Both beside each other, null for null; at most a few rows of each share-partition."""
    expected = F.max("last") - F.min("first") + 1
    return (
        places.unionByName(seen, allowMissingColumns=True)
        .groupBy(*PLACE)
        .agg(
            F.sum("events").alias("events"),
            F.coalesce(F.sum("lost"), F.lit(0)).alias("lost"),
            F.coalesce(F.sum("seen"), F.lit(0)).alias("seen"),
            F.coalesce(F.greatest(expected, F.lit(0)), F.lit(0)).alias("expected"),
            F.max("schema_version").alias("schema_version"),
        )
    )


def completeness(counted: DataFrame, keys: Sequence[str]) -> DataFrame:
    """How complete the log is, by group or share-partition; what names no group is not among them.

    Args:
        counted: From `census`.
        keys: What the rows are of.

    Returns:
        The keys, events, partitions, incomplete_partitions, changes_seen, changes_expected,
        complete (0 to 1), lost, schema_version.
    """
    missing = (F.col("seen") < F.col("expected")).cast("int")
    return (
        counted.where(F.col("group_id") != "")
        .groupBy(*keys)
        .agg(
            F.sum("events").alias("events"),
            F.sum(F.col("topic_id").isNotNull().cast("int")).alias("partitions"),
            F.sum(missing).alias("incomplete_partitions"),
            F.sum("seen").alias("changes_seen"),
            F.sum("expected").alias("changes_expected"),
            measures.ratio(F.sum("seen"), F.sum("expected"), 1.0).alias("complete"),
            F.sum("lost").alias("lost"),
            F.max("schema_version").alias("schema_version"),
        )
    )


def unassigned(counted: DataFrame) -> DataFrame:
    """One row: `lost` rows that name no group, and the highest schema version of all rows."""
    nameless = F.col("group_id").isNull() | (F.col("group_id") == "")
    return counted.agg(
        F.coalesce(F.sum(F.when(nameless, F.col("lost"))), F.lit(0)).alias("lost"),
        F.max("schema_version").alias("schema_version"),
    )


def beside(counted: DataFrame) -> dict[str, Any]:
    """`lost` and `schema_version` of `unassigned`, for a job's result."""
    found: dict[str, Any] = unassigned(counted).collect()[0].asDict()
    return found
