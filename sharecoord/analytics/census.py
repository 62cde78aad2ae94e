"""How complete an event log is, by the numbers of the changes in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.core.events import EventKind
from sharecoord.core.rollups import WORDS

if TYPE_CHECKING:
    from sharecoord.analytics.rollups import EventLog

PLACE = ["group_id", "topic", "topic_id", "partition"]


def census(events: DataFrame) -> DataFrame:
    """How complete the log is, per share-partition; see `of_words`."""
    return of_words(words(events))


def census_of(log: EventLog) -> DataFrame:
    """The same of a log with rollups."""
    return of_words(log.pieces(WORDS, words))


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
    first = F.least(F.min("first"), F.min("first_sampled"))
    by_word = pieces.groupBy(*PLACE, "word").agg(
        *(F.sum(name).alias(name) for name in ("events", "lost")),
        *(F.min(name).alias(name) for name in ("first", "first_sampled")),
        *(F.max(name).alias(name) for name in ("last", "schema_version")),
        F.bit_or("bits").alias("bits"),
    )
    return by_word.groupBy(*PLACE).agg(
        F.sum("events").alias("events"),
        F.coalesce(F.sum("lost"), F.lit(0)).alias("lost"),
        F.coalesce(F.sum(F.bit_count("bits")), F.lit(0)).alias("seen"),
        F.coalesce(F.greatest(F.max("last") - first + 1, F.lit(0)), F.lit(0)).alias("expected"),
        F.max("schema_version").alias("schema_version"),
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
