"""The census of an event log: how complete it is, by the numbers of the changes in it.

events ── change_bits ─┬───────────────────────── census_of_bits
                       └─ place_rows, run_rows ── census_of_runs    (the same, with rollups)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.analytics.measures import greatest, sum_or_zero, sums
from sharecoord.eventlog.rollups import PLACES, RUNS, WINDOW_MS
from sharecoord.eventlog.schema import EventKind, GroupEvent

if TYPE_CHECKING:
    from sharecoord.analytics.rollups import EventLog

PLACE = ["group_id", "topic", "topic_id", "partition"]

FILE: Final = "_file"
"""Column of a log's rows and rollups: a number that stands for their file; not of a topic."""
LIFE: Final = "_life"
"""Column of a log's rows: how often their share-partition had been deleted before; only in logs in
which one was."""
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
    deleted = (F.col("kind") == EventKind.GROUP.value) & (
        F.col("event") == GroupEvent.DELETED.value
    )
    rows = events.where(deleted).select("group_id", "topic", F.unix_micros("time").alias("us"))
    return sorted({tuple(row) for row in rows.collect()}, key=repr)


def with_lives(events: DataFrame, deleted: Sequence[tuple[str, str | None, int]]) -> DataFrame:
    """Adds `LIFE` when something was deleted: each life is a share-partition of its own."""
    if not deleted:
        return events
    by_group: dict[str, list[Column]] = {}
    for group_id, topic, us in deleted:
        same = F.lit(True) if topic is None else F.col("topic") == topic  # noqa: FBT003
        later = (F.unix_micros("time") > us) & same
        by_group.setdefault(group_id, []).append(F.when(later, 1).otherwise(0))
    life = F.lit(0)
    for group_id, ones in by_group.items():
        life = F.when(F.col("group_id") == group_id, reduce(Column.__add__, ones)).otherwise(life)
    return events.withColumn(LIFE, life)


def census(events: DataFrame) -> DataFrame:
    """How complete events are, per share-partition; see `census_of_bits`."""
    return census_of_bits(change_bits(events))


def census_of_log(
    log: EventLog, bits_of: Callable[[DataFrame], DataFrame], *, window_ms: int = WINDOW_MS
) -> DataFrame:
    """How complete a log with rollups is, per share-partition; see `census_of_bits`.

    `bits_of` is `change_bits`, or a function with its columns whose result a caller keeps, and that
    tells rows apart by time windows of `window_ms`.
    """
    if log.rolled_for(window_ms) is None:
        return census_of_bits(bits_of(log.rows))
    places = log.partial_rows(
        PLACES, lambda events: place_rows(bits_of(events)), window_ms=window_ms
    )
    # With the file of each, so that changes that are in two files are seen.
    runs = log.partial_rows(
        RUNS, lambda events: run_rows(bits_of(events)), window_ms=window_ms, further=(FILE,)
    )
    return census_of_runs(places, runs)


def change_bits(events: DataFrame, *keys: Column, **aggregates: Column) -> DataFrame:
    """The changes of each share-partition as words of 64 bits, one bit for each change.

    Further keys and aggregates save a caller a pass of its own over the events.

    Columns: `PLACE`, the keys, word (number of the word), `FILE` where events have it; events,
    lost, bits, first, first_sampled, last, schema_version, and the aggregates.
    """
    is_range = F.col("kind") == EventKind.RANGE.value
    sequence = F.col("change_sequence")
    bit = F.expr("shiftleft(1L, cast(change_sequence & 63L as int))")
    if LIFE in events.columns:
        events = events.withColumn("topic_id", _topic_id_of_life(events))
    word = F.shiftright(sequence, 6).alias("word")
    return events.groupBy(*PLACE, *keys, word, *_file_column(events)).agg(
        F.count(F.lit(1)).alias("events"),
        F.sum(F.when(F.col("kind") == EventKind.LOST.value, F.col("records"))).alias("lost"),
        F.bit_or(F.when(is_range, bit)).alias("bits"),
        F.min(F.when(is_range, sequence)).alias("first"),
        F.min(F.when(~is_range, sequence + 1)).alias("first_sampled"),
        F.max(sequence).alias("last"),
        *greatest("schema_version"),
        *(value.alias(name) for name, value in aggregates.items()),
    )


def _topic_id_of_life(events: DataFrame) -> Column:
    """A topic id that tells a share-partition from the one before it was deleted."""
    topic_id, life = F.col("topic_id"), F.col(LIFE)
    is_number = dict(events.dtypes)["topic_id"] != "string"
    other = F.xxhash64(topic_id, life) if is_number else F.concat(topic_id, F.lit("#"), life)
    return F.when(life == 0, topic_id).otherwise(other)


def _file_column(frame: DataFrame) -> list[str]:
    return [FILE] if FILE in frame.columns else []


def census_of_bits(bits: DataFrame) -> DataFrame:
    """How complete the log is, per share-partition, from `change_bits`.

    A partition's first change is its first event, or the one after the newest that its first sample
    knew; the last likewise. Between the two every change has its event, or it was lost. Distinct
    changes are counted exactly. Rows of no share-partition have no changes.

    Columns: `PLACE`, events, lost (rows that `lost` rows report), seen, expected (changes), twice
    (changes that are in a further file, too), schema_version (the highest).
    """
    by_word = _by_word(bits)
    seen = by_word.groupBy(*PLACE).agg(F.sum(F.bit_count("bits")).alias("seen"), *sums("twice"))
    return _counted(place_rows(by_word), seen)


def census_of_runs(places: DataFrame, runs: DataFrame) -> DataFrame:
    """The same as `census_of_bits`, from `place_rows` and `run_rows`.

    Several places may be of the same share-partition, and runs may overlap.
    """
    # A change in several runs of one file counts once there, in runs of several files twice.
    files = _file_column(runs)
    of_file = _fresh(runs, [*PLACE, *files]).groupBy(*PLACE).agg(F.sum("fresh").alias("in_files"))
    of_all = _fresh(runs, PLACE).groupBy(*PLACE).agg(F.sum("fresh").alias("seen"))
    both = of_all.unionByName(of_file, allowMissingColumns=True).groupBy(*PLACE)
    twice = (F.sum("in_files") - F.sum("seen")).alias("twice")
    return _counted(places, both.agg(*sums("seen"), twice))


def _fresh(runs: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Adds `fresh`: how many changes of a run are in none before it, by `keys`."""
    earlier = Window.partitionBy(*keys).orderBy("run_first")
    before = F.max("run_last").over(earlier.rowsBetween(Window.unboundedPreceding, -1))
    known = F.greatest(before, F.col("run_first") - 1)
    return runs.withColumn("fresh", F.greatest(F.col("run_last") - known, F.lit(0)))


def _by_word(bits: DataFrame) -> DataFrame:
    """The bits of all files by word, with `twice`: changes that are in a further file, too."""
    files = _file_column(bits)
    totals = (
        *sums("events", "lost"),
        *measures.least("first", "first_sampled"),
        *greatest("last", "schema_version"),
        F.bit_or("bits").alias("bits"),
    )
    of_file = bits.groupBy(*PLACE, "word", *files).agg(*totals)
    if not files:
        return of_file.withColumn("twice", F.lit(0).cast("long"))
    return of_file.groupBy(*PLACE, "word").agg(*totals, _overlap().alias("twice"))


def _overlap() -> Column:
    """Aggregate over the bits of files: in how many files each change is beyond one, in all."""
    return F.sum(F.bit_count("bits")) - F.bit_count(F.bit_or("bits"))


def place_rows(bits: DataFrame) -> DataFrame:
    """The rollup table `PLACES`, from `change_bits`: rows, first and last change."""
    return bits.groupBy(*PLACE).agg(
        *sums(*PLACES.sums),
        F.least(F.min("first"), F.min("first_sampled")).alias("first"),
        *greatest(*PLACES.most),
    )


def run_rows(bits: DataFrame) -> DataFrame:
    """The rollup table `RUNS`, from `change_bits`: changes without a gap between them."""
    files = _file_column(bits)
    numbers = F.sequence(F.lit(0), F.lit(63))
    set_bits = F.filter(numbers, lambda bit: F.getbit(F.col("bits"), bit) == 1)
    single = F.transform(set_bits, lambda bit: F.struct(bit.alias("from"), bit.alias("to")))
    whole = F.array(F.struct(F.lit(0).alias("from"), F.lit(63).alias("to")))
    parts = F.when(F.col("bits") == -1, whole).otherwise(single)
    start = F.shiftleft("word", 6).alias("start")
    by_word = bits.groupBy(*PLACE, "word", *files).agg(F.bit_or("bits").alias("bits"))
    return by_word.select(*PLACE, *files, start, F.inline(parts)).select(
        *PLACE,
        *files,
        (F.col("start") + F.col("from")).alias("run_first"),
        (F.col("start") + F.col("to")).alias("run_last"),
    )


def _counted(places: DataFrame, seen: DataFrame) -> DataFrame:
    """The census, from `place_rows` and the changes that were seen; few rows per share-partition.

    The two are put below each other, not joined: a place may be null.
    """
    expected = F.max("last") - F.min("first") + 1
    return (
        places.unionByName(seen, allowMissingColumns=True)
        .groupBy(*PLACE)
        .agg(
            *sums("events"),
            sum_or_zero("lost").alias("lost"),
            sum_or_zero("seen").alias("seen"),
            F.coalesce(F.greatest(expected, F.lit(0)), F.lit(0)).alias("expected"),
            sum_or_zero("twice").alias("twice"),
            *greatest("schema_version"),
        )
    )


def completeness(census_rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """How complete the log is, by group or share-partition; rows that name no group are left out.

    Columns: the keys, events, partitions, incomplete_partitions, changes_seen, changes_expected,
    complete (0 to 1), lost, schema_version.
    """
    missing = (F.col("seen") < F.col("expected")).cast("int")
    return (
        census_rows.where(F.col("group_id") != "")
        .groupBy(*keys)
        .agg(
            *sums("events"),
            F.sum(F.col("topic_id").isNotNull().cast("int")).alias("partitions"),
            F.sum(missing).alias("incomplete_partitions"),
            F.sum("seen").alias("changes_seen"),
            F.sum("expected").alias("changes_expected"),
            measures.ratio(F.sum("seen"), F.sum("expected"), 1.0).alias("complete"),
            *sums("lost"),
            *greatest("schema_version"),
        )
    )


def result_fields(census_rows: DataFrame) -> dict[str, Any]:
    """The fields of `jobs.JobResult` that the census knows.

    `lost` (rows that name no group), `schema_version` (the highest) and `twice`.
    """
    nameless = F.col("group_id").isNull() | (F.col("group_id") == "")
    totals = census_rows.agg(
        sum_or_zero(F.when(nameless, F.col("lost"))).alias("lost"),
        *greatest("schema_version"),
        sum_or_zero("twice").alias("twice"),
    )
    fields: dict[str, Any] = totals.collect()[0].asDict()
    return fields


def same_rows(events: DataFrame) -> tuple[str, str] | None:
    """Two files that have an event in common, from events with the path of their file as `FILE`.

    A change whose rows were written to two files is in both, and none of its rows is.
    """
    by_word = change_bits(events).where(F.col("bits").isNotNull()).groupBy(*PLACE, "word")
    doubtful = by_word.agg(_overlap().alias("overlap")).where(F.col("overlap") > 0)
    place = ["group_id", "topic", "partition", "word"]
    changes = events.where(F.col("kind") == EventKind.RANGE.value).withColumn(
        "word", F.shiftright("change_sequence", 6)
    )
    files = (
        changes.join(F.broadcast(doubtful.select(*place).distinct()), place, "semi")
        .groupBy(*_SAME)
        .agg(F.min(FILE).alias("one"), F.max(FILE).alias("other"))
        .where(F.col("one") != F.col("other"))
        .select("one", "other")
        .head()
    )
    return None if files is None else (files["one"], files["other"])
