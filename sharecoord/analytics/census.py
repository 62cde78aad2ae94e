"""How complete an event log is, by the numbers of the changes in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.eventlog.rollups import PLACES, RUNS, WINDOW_MS
from sharecoord.eventlog.schema import EventKind, GroupEvent

if TYPE_CHECKING:
    from sharecoord.analytics.rollups import EventLog

PLACE = ["group_id", "topic", "topic_id", "partition"]

FILE: Final = "_file"
"""Column of a log's rows and rollups: a number that stands for their file; not of a topic."""
LIFE: Final = "_life"
"""Column of a log's rows: how often what they are of had been deleted before; only where it was."""
_SAME: Final = (
    *PLACE,
    *("change_sequence", "event", "first_offset", "last_offset", "member_id", "time"),
)
"""Rows that have all of these in common are the same row."""


def deletions(events: DataFrame) -> list[tuple[str, str | None, int]]:
    """When groups, or what they knew of topics, were deleted: change sequences begin anew then.

    Returns:
        Group, topic (None: all of them), microseconds since the epoch.
    """
    found = events.where(
        (F.col("kind") == EventKind.GROUP.value) & (F.col("event") == GroupEvent.DELETED.value)
    ).select("group_id", "topic", F.unix_micros("time").alias("us"))
    return sorted({tuple(row) for row in found.collect()}, key=repr)


def with_lives(events: DataFrame, gone: Sequence[tuple[str, str | None, int]]) -> DataFrame:
    """Adds `LIFE` when something was deleted: each life is a share-partition of its own."""
    if not gone:
        return events
    by_group: dict[str, list[Column]] = {}
    for group_id, topic, us in gone:
        same = F.lit(True) if topic is None else F.col("topic") == topic  # noqa: FBT003
        later = (F.unix_micros("time") > us) & same
        by_group.setdefault(group_id, []).append(F.when(later, 1).otherwise(0))
    life = F.lit(0)
    for group_id, ones in by_group.items():
        life = F.when(F.col("group_id") == group_id, reduce(Column.__add__, ones)).otherwise(life)
    return events.withColumn(LIFE, life)


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
    # With a file of its own each, so that changes that are in two are seen.
    runs = log.pieces(RUNS, lambda rows: runs_of(made(rows)), window_ms=window_ms, beside=(FILE,))
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
    beside = [FILE] if FILE in events.columns else []
    if LIFE in events.columns:
        events = events.withColumn("topic_id", _of_life(events))
    return events.groupBy(*PLACE, *keys, F.shiftright(sequence, 6).alias("word"), *beside).agg(
        F.count(F.lit(1)).alias("events"),
        F.sum(F.when(F.col("kind") == EventKind.LOST.value, F.col("records"))).alias("lost"),
        F.bit_or(F.when(is_range, bit)).alias("bits"),
        F.min(F.when(is_range, sequence)).alias("first"),
        F.min(F.when(~is_range, sequence + 1)).alias("first_sampled"),
        F.max(sequence).alias("last"),
        F.max("schema_version").alias("schema_version"),
        *(value.alias(name) for name, value in sums.items()),
    )


def _of_life(events: DataFrame) -> Column:
    """A topic id that tells a share-partition from the one before it was deleted."""
    topic_id, life = F.col("topic_id"), F.col(LIFE)
    is_number = dict(events.dtypes)["topic_id"] != "string"
    other = F.xxhash64(topic_id, life) if is_number else F.concat(topic_id, F.lit("#"), life)
    return F.when(life == 0, topic_id).otherwise(other)


def of_words(pieces: DataFrame) -> DataFrame:
    """How complete the log is, per share-partition; rows of no share-partition have none.

    A partition's first change is its first event, or the one after the newest that its first sample
    knew; the last likewise. Between the two every change has its event, or it was lost. Distinct
    ones are counted exactly.

    Args:
        pieces: From `words`.

    Returns:
        group_id, topic, topic_id, partition, events, lost (rows that `lost` rows speak of), seen,
        expected (changes), twice (changes that are in a further file, too), schema_version (the
        highest).
    """
    by_word = _by_word(pieces)
    seen = by_word.groupBy(*PLACE).agg(
        F.sum(F.bit_count("bits")).alias("seen"), F.sum("twice").alias("twice")
    )
    return _counted(places_of(by_word), seen)


def of_runs(places: DataFrame, runs: DataFrame) -> DataFrame:
    """The same, by runs of changes without a gap, which may overlap.

    Args:
        places: From `places_of`, several rows perhaps of the same share-partition.
        runs: From `runs_of`.
    """
    files = [FILE] if FILE in runs.columns else []
    # A change that is in several runs of one file is there once, in runs of several files twice.
    of_file = _fresh(runs, [*PLACE, *files]).groupBy(*PLACE).agg(F.sum("fresh").alias("in_files"))
    of_all = _fresh(runs, PLACE).groupBy(*PLACE).agg(F.sum("fresh").alias("seen"))
    twice = (F.sum("in_files") - F.sum("seen")).alias("twice")
    both = of_all.unionByName(of_file, allowMissingColumns=True).groupBy(*PLACE)
    return _counted(places, both.agg(F.sum("seen").alias("seen"), twice))


def _fresh(runs: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Adds `fresh`: how many changes of a run are in none before it, by `keys`."""
    earlier = Window.partitionBy(*keys).orderBy("run_first")
    before = F.max("run_last").over(earlier.rowsBetween(Window.unboundedPreceding, -1))
    known = F.greatest(before, F.col("run_first") - 1)
    return runs.withColumn("fresh", F.greatest(F.col("run_last") - known, F.lit(0)))


def _by_word(pieces: DataFrame) -> DataFrame:
    files = [FILE] if FILE in pieces.columns else []
    sums = (
        *(F.sum(name).alias(name) for name in ("events", "lost")),
        *(F.min(name).alias(name) for name in ("first", "first_sampled")),
        *(F.max(name).alias(name) for name in ("last", "schema_version")),
        F.bit_or("bits").alias("bits"),
    )
    found = pieces.groupBy(*PLACE, "word", *files).agg(*sums)
    if not files:
        return found.withColumn("twice", F.lit(0).cast("long"))
    # Of each change how many files have it, beyond one.
    twice = F.sum(F.bit_count("bits")) - F.bit_count(F.bit_or("bits"))
    return found.groupBy(*PLACE, "word").agg(*sums, twice.alias("twice"))


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
    files = [FILE] if FILE in pieces.columns else []
    bits_of = pieces.groupBy(*PLACE, "word", *files).agg(F.bit_or("bits").alias("bits"))
    found = bits_of.select(*PLACE, *files, start.alias("start"), F.inline(parts))
    return found.select(
        *PLACE,
        *files,
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
            F.coalesce(F.sum("twice"), F.lit(0)).alias("twice"),
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
    """One row: `lost` rows that name no group, the highest schema version, changes twice there."""
    nameless = F.col("group_id").isNull() | (F.col("group_id") == "")
    return counted.agg(
        F.coalesce(F.sum(F.when(nameless, F.col("lost"))), F.lit(0)).alias("lost"),
        F.max("schema_version").alias("schema_version"),
        F.coalesce(F.sum("twice"), F.lit(0)).alias("twice"),
    )


def same_rows(events: DataFrame) -> tuple[str, str] | None:
    """Two files that have an event in common; None when there are none.

    A change whose rows were written to two files is in both, and none of its rows is.

    Args:
        events: With the path of their file as `FILE`.
    """
    overlap = F.sum(F.bit_count("bits")) - F.bit_count(F.bit_or("bits"))
    by_word = words(events).where(F.col("bits").isNotNull()).groupBy(*PLACE, "word")
    doubtful = by_word.agg(overlap.alias("overlap")).where(F.col("overlap") > 0)
    place = ["group_id", "topic", "partition", "word"]
    changes = events.where(F.col("kind") == EventKind.RANGE.value).withColumn(
        "word", F.shiftright("change_sequence", 6)
    )
    found = (
        changes.join(F.broadcast(doubtful.select(*place).distinct()), place, "semi")
        .groupBy(*_SAME)
        .agg(F.min(FILE).alias("one"), F.max(FILE).alias("other"))
        .where(F.col("one") != F.col("other"))
        .select("one", "other")
        .head()
    )
    return None if found is None else (found["one"], found["other"])


def beside(counted: DataFrame) -> dict[str, Any]:
    """`lost`, `schema_version` and `twice` of `unassigned`, for a job's result."""
    found: dict[str, Any] = unassigned(counted).collect()[0].asDict()
    return found
