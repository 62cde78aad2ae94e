"""The rows of a generated event log, made by Spark alone: expressions over `range`.

Times are microseconds since the start of the log until they become `time`. Inside a block the slots
of a share-partition are `1 / slots_per_s` apart; a slot's outcome follows `in_flight` slots after
it, right behind the acquisition of that slot. So the order of a share-partition's changes is known,
and their sequence numbers have no gaps.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics.frames import complete
from sharecoord.analytics.generate.plan import (
    LOCK_MS,
    ONCE_SLOTS,
    PATTERN_SLOTS,
    POISON_SLOTS,
    RETRY_SLOTS,
    START,
    Plan,
    Slot,
)
from sharecoord.eventlog.schema import SCHEMA_VERSION, EventKind, GroupEvent, RangeEvent

JITTER = 0.8
"""Largest delay of a slot, as part of the distance between slots."""
BEHIND = 0.1
"""Time from an acquisition to an older slot's outcome, as part of the distance between slots."""
SLOTS_PER_TASK = 500_000
"""Most slots of a task, which writes one file per group and date: about 30 MB."""
ORDINARY_KEYS = 10_000
WINDOW_MAX = 2_000
START_US = int(START.timestamp()) * 1_000_000
COORDINATORS = 3
LOST_EVERY_S = 60


def rows(spark: SparkSession, plan: Plan) -> DataFrame:
    """All rows, with the columns of the event log."""
    slot_rows = slots(spark, plan)
    changes = range_rows(slot_rows, plan)
    frames = [
        changes.where(~_is_dropped(plan)) if plan.settings.drop else changes,
        member_rows(spark, slot_rows, plan),
        partition_rows(spark, plan),
        joined_rows(spark, plan),
    ]
    if plan.settings.drop:
        frames.append(lost_rows(changes, plan))
    return reduce(DataFrame.unionByName, [complete(_with_names(frame)) for frame in frames])


def uniform(plan: Plan, salt: str, *of: str | Column) -> Column:
    """A number from 0 to below 1 that depends on the seed, `salt` and the given columns only."""
    bits = F.xxhash64(F.lit(plan.settings.seed), F.lit(salt), *of).bitwiseAND((1 << 53) - 1)
    return bits / float(1 << 53)


# -- slots ----------------------------------------------------------------------------------------


def slots(spark: SparkSession, plan: Plan) -> DataFrame:
    """The slots of all share-partitions.

    Columns: g (number of the group), p (of the partition), k (of the slot), block, at (place in the
    block, in slots), those of the pattern, first_offset, begin and end (microseconds since the
    start), second (the active second in which it begins), m (number of the member).
    """
    placed = (
        _grid(spark, plan, plan.slots_in_all, "k", plan.settings.partitions, "p")
        .withColumn("block", F.floor(F.col("k") / plan.slots))
        .withColumn("at", F.col("k") % plan.slots)
        .withColumn("slot", (F.col("k") % PATTERN_SLOTS).cast("int"))
        .join(F.broadcast(_pattern(spark, plan)), "slot")
    )
    base = F.floor(F.col("k") / PATTERN_SLOTS) * plan.pattern_records
    end_at = F.col("at") + plan.in_flight + _late(plan, F.col("k") + plan.in_flight) + BEHIND
    return (
        placed.withColumn("first_offset", base + F.col("first"))
        .withColumn("begin", _time_us(plan, F.col("at") + _late(plan, F.col("k"))))
        .withColumn("end", _time_us(plan, end_at))
        .withColumn("second", _active_s(plan, "begin"))
        .withColumn("m", _member(plan))
        .drop("first", "next", "slot")
    )


def _pattern(spark: SparkSession, plan: Plan) -> DataFrame:
    types = "slot int, first bigint, size bigint, next bigint, delivery_count int, outcome string, "
    frame: DataFrame = spark.createDataFrame(
        [tuple(each) for each in plan.pattern],
        f"{types} state_after string, keyed string, why string",
    )
    assert len(Slot._fields) == len(frame.columns)
    return frame


def _late(plan: Plan, k: Column) -> Column:
    """The delay of slot k, in slots."""
    return uniform(plan, "late", "g", "p", k) * JITTER


def _time_us(plan: Plan, at: Column) -> Column:
    """Microseconds from the start of the log to a place in the block."""
    in_block = F.floor(at / plan.slots_per_s * 1_000_000)
    return F.col("block") * (plan.period_s * 1_000_000) + in_block


def _active_s(plan: Plan, time_us: str) -> Column:
    """The active second in which a time of this block lies."""
    second = F.floor((F.col(time_us) / 1_000_000) - F.col("block") * plan.period_s)
    return F.col("block") * plan.block_s + F.least(second, F.lit(plan.block_s - 1))


def _member(plan: Plan) -> Column:
    """The member that gets a slot: in turn, or by Zipf's law; the last ones starve later on."""
    wanted = plan.settings
    served = F.lit(wanted.members)
    if wanted.starved:
        starved = F.floor((wanted.starved + wanted.groups - 1 - F.col("g")) / wanted.groups)
        later = F.floor(F.col("g") * plan.active_s / 6)
        since = plan.active_s // 3 + F.floor(later / wanted.groups)
        served = served - F.when(F.col("second") >= since, starved).otherwise(0)
    if not wanted.skew:
        return ((F.col("k") * wanted.partitions + F.col("p")) % served).cast("int")
    # The continuous power law between 1 and n + 1, cut to whole ranks.
    u, reach = uniform(plan, "member", "g", "p", "k"), (served + 1).cast("double")
    if wanted.skew == 1:
        rank = F.pow(reach, u)
    else:
        power = 1 - wanted.skew
        rank = F.pow(u * (F.pow(reach, F.lit(power)) - 1) + 1, F.lit(1 / power))
    return (F.least(F.floor(rank), served) - 1).cast("int")


# -- changes of ranges ----------------------------------------------------------------------------


def range_rows(slot_rows: DataFrame, plan: Plan) -> DataFrame:
    """Two rows per slot, of its acquisition and its outcome, with g, p and second."""
    flight = plan.in_flight
    both = slot_rows.withColumn("phase", F.explode(F.array(F.lit(0), F.lit(1))))
    begins = F.col("phase") == 0
    first_in_block = F.col("block") * (2 * plan.slots) + 1
    acquired_at = F.greatest(F.col("at"), 2 * F.col("at") - flight)
    settled_at = F.least(2 * F.col("at") + flight + 1, F.col("at") + plan.slots)
    held_ms = F.floor((F.col("end") - F.col("begin")) / 1_000)
    accepted = F.col("outcome") == RangeEvent.ACCEPTED.value
    return both.select(
        *("g", "p", "m", "second"),
        F.lit(EventKind.RANGE.value).alias("kind"),
        F.when(begins, F.col("begin")).otherwise(F.col("end")).alias("time_us"),
        F.col("p").alias("partition"),
        (first_in_block + F.when(begins, acquired_at).otherwise(settled_at)).alias(
            "change_sequence"
        ),
        F.when(begins, F.lit(RangeEvent.ACQUIRED.value)).otherwise(F.col("outcome")).alias("event"),
        F.when(begins, F.lit("acquired")).otherwise(F.col("state_after")).alias("state"),
        "first_offset",
        (F.col("first_offset") + F.col("size") - 1).alias("last_offset"),
        F.col("size").alias("records"),
        "delivery_count",
        F.when(begins, _available_ms(plan)).alias("available_ms"),
        F.when(begins, _available_ms(plan) + 2).alias("age_ms"),
        F.when(~begins, held_ms).alias("held_ms"),
        F.when(~begins, held_ms * 800).alias("work_us"),
        F.when(begins, F.lit(LOCK_MS)).alias("lock_ms"),
        F.when(~begins, F.greatest(LOCK_MS - held_ms, F.lit(0))).alias("lock_left_ms"),
        F.when(~begins & ~accepted, F.lit(0)).alias("delay_ms"),
        F.when(~begins, F.col("why")).alias("reason"),
        F.when(~begins & ~accepted, _key(plan)).cast("binary").alias("key"),
    )


def _available_ms(plan: Plan) -> Column:
    """Waiting time of a range: exponential when it is new, else the time since its release."""
    k = F.col("k") - RETRY_SLOTS
    block = F.floor(k / plan.slots)
    at = k - block * plan.slots + plan.in_flight + _late(plan, k + plan.in_flight) + BEHIND
    released = block * (plan.period_s * 1_000_000) + F.floor(at / plan.slots_per_s * 1_000_000)
    since = F.floor((F.col("begin") - released) / 1_000)
    fresh = F.floor(-40 * F.log(1 - uniform(plan, "wait", "g", "p", "k"))) + 2
    return F.when(F.col("delivery_count") > 1, since).otherwise(fresh)


def _key(plan: Plan) -> Column:
    """The key of a record that failed; null for ranges."""
    wanted = plan.settings
    turn = F.floor(F.col("k") / POISON_SLOTS) * wanted.groups + F.col("g")
    poison = (turn * wanted.partitions + F.col("p")) % max(1, wanted.poison_keys)
    once = uniform(plan, "key", "g", "p", F.floor(F.col("k") / ONCE_SLOTS)) * ORDINARY_KEYS
    return F.when(
        F.col("keyed") == "poison", F.concat(F.lit("poison-"), poison.cast("string"))
    ).when(F.col("keyed") == "once", F.concat(F.lit("key-"), F.floor(once).cast("string")))


def _is_dropped(plan: Plan) -> Column:
    """Whether a change is missing; never the first or last of a share-partition, without a gap."""
    sequence = F.col("change_sequence")
    inside = (sequence > 1) & (sequence < 2 * plan.slots_in_all)
    return inside & (uniform(plan, "drop", "g", "p", sequence) < plan.settings.drop)


def lost_rows(changes: DataFrame, plan: Plan) -> DataFrame:
    """The rows of writers that report missing changes: one per group and minute."""
    return (
        changes.where(_is_dropped(plan))
        .groupBy("g", F.floor(F.col("time_us") / (LOST_EVERY_S * 1_000_000)).alias("_minute"))
        .agg(F.count(F.lit(1)).alias("records"), F.max("time_us").alias("time_us"))
        .withColumn("kind", F.lit(EventKind.LOST.value))
        .drop("_minute")
    )


# -- samples --------------------------------------------------------------------------------------


def member_rows(spark: SparkSession, slot_rows: DataFrame, plan: Plan) -> DataFrame:
    """Samples: records that a member wanted, got and holds, per member and active second."""
    spans = (
        slot_rows.withColumn("last", _active_s(plan, "end"))
        .select("g", "m", "size", "second", "last")
        .withColumn("at", F.explode(F.sequence("second", "last")))
    )
    figures = spans.groupBy("g", "m", "at").agg(
        F.sum(F.when(F.col("at") == F.col("second"), F.col("size")).otherwise(0)).alias("got"),
        F.sum(F.when(F.col("at") < F.col("last"), F.col("size")).otherwise(0)).alias("held"),
    )
    grid = _grid(spark, plan, plan.active_s, "at", plan.settings.members, "m")
    every = grid.join(figures, ["g", "m", "at"], "left")
    got = F.coalesce(F.col("got"), F.lit(0))
    return every.select(
        "g",
        "m",
        F.lit(EventKind.MEMBER.value).alias("kind"),
        _end_us(plan).alias("time_us"),
        F.greatest(got + 5, F.lit(plan.demand)).alias("demand"),
        got.alias("got"),
        F.coalesce(F.col("held"), F.lit(0)).alias("held"),
        F.lit(5_000).alias("pace_us"),
        F.lit(1_000).alias("interval_ms"),
    )


def partition_rows(spark: SparkSession, plan: Plan) -> DataFrame:
    """Samples of share-partitions per active second; `lag_spikes` show only here."""
    wanted, flight = plan.settings, plan.in_flight
    grid = _grid(spark, plan, plan.active_s, "at", wanted.partitions, "p").withColumn(
        "block", F.floor(F.col("at") / plan.block_s)
    )
    place = (F.col("at") % plan.block_s + 1) * plan.slots_per_s
    here = F.floor(place)
    late = uniform(plan, "late", "g", "p", F.col("block") * plan.slots + here) * JITTER
    acquired = here + F.when(place - here >= late, 1).otherwise(0)
    settled = here - flight + F.when(place - here >= late + BEHIND, 1).otherwise(0)
    counted = (
        grid.withColumn("began", F.least(acquired, F.lit(plan.slots)))
        .withColumn("ended", F.least(F.greatest(settled, F.lit(0)), F.lit(plan.slots)))
        .withColumn(
            "change_sequence", F.col("block") * 2 * plan.slots + F.col("began") + F.col("ended")
        )
    )
    size = plan.pattern_records / PATTERN_SLOTS
    # The ends of the newest slot, and of the slot before the oldest failure that may be open.
    placed = _with_offset(spark, plan, counted, "end_offset", F.col("began"))
    placed = _with_offset(spark, plan, placed, "start_offset", F.col("ended") - ONCE_SLOTS)
    backlog = F.floor(uniform(plan, "backlog", "g", "p", "at") * 200) + 50
    spiked = _with_spike(spark, plan, placed)
    # A log never gets shorter: after a spike nothing comes until it has been worked off.
    so_far = Window.partitionBy("g", "p").orderBy("at")
    log_end = F.max(F.col("end_offset") + backlog + F.col("spike")).over(so_far)
    spiked = spiked.withColumn("log_end_offset", log_end)
    lag = F.col("log_end_offset") - F.col("start_offset")
    waited_us = F.floor(lag / (size * plan.slots_per_s) * 1_000_000)
    return spiked.select(
        "g",
        "p",
        F.lit(EventKind.PARTITION.value).alias("kind"),
        _end_us(plan).alias("time_us"),
        F.col("p").alias("partition"),
        *("change_sequence", "log_end_offset", "start_offset", "end_offset"),
        lag.alias("lag"),
        F.lit(0).alias("due"),
        F.floor((F.col("began") - F.col("ended")) * size).alias("acquired"),
        F.lit(0).alias("delayed"),
        F.lit(0).alias("archiving"),
        F.lit(WINDOW_MAX).alias("window_max"),
        F.timestamp_micros(START_US + _end_us(plan) - waited_us).alias("oldest_time"),
        F.lit(wanted.members).alias("members"),
        F.lit((wanted.members + 1) // 2).alias("members_waiting"),
        F.lit(1_000).alias("interval_ms"),
    )


def _with_offset(
    spark: SparkSession, plan: Plan, frame: DataFrame, name: str, slots_done: Column
) -> DataFrame:
    """Adds the offset after `slots_done` slots of this block; negative: of slots before it."""
    k = F.greatest(F.col("block") * plan.slots + slots_done, F.lit(0)) - 1
    ends = _pattern(spark, plan).select(F.col("slot").alias("_slot"), F.col("next").alias("_next"))
    base = F.floor(F.col("_k") / PATTERN_SLOTS) * plan.pattern_records
    return (
        frame.withColumn("_k", k)
        .withColumn("_slot", F.pmod(F.col("_k"), F.lit(PATTERN_SLOTS)).cast("int"))
        .join(F.broadcast(ends), "_slot")
        .withColumn(name, base + F.col("_next"))
        .drop("_slot", "_next", "_k")
    )


def _with_spike(spark: SparkSession, plan: Plan, frame: DataFrame) -> DataFrame:
    """Adds `spike`: records that come all at once, in this second."""
    types = "g int, p int, at bigint, _seconds bigint, spike bigint"
    spikes = spark.createDataFrame([tuple(spike) for spike in plan.spikes()], types)
    joined = frame.join(F.broadcast(spikes.drop("_seconds")), ["g", "p", "at"], "left")
    return joined.withColumn("spike", F.coalesce("spike", F.lit(0)))


def _grid(
    spark: SparkSession, plan: Plan, outer_size: int, outer: str, inner_size: int, inner: str
) -> DataFrame:
    """Every combination of the group g and two numbers that begin with 0."""
    of_group = outer_size * inner_size
    in_all = of_group * plan.settings.groups
    tasks = max(spark.sparkContext.defaultParallelism, in_all // SLOTS_PER_TASK + 1)
    return spark.range(0, in_all, 1, tasks).select(
        F.floor(F.col("id") / of_group).cast("int").alias("g"),
        F.floor((F.col("id") % of_group) / inner_size).alias(outer),
        (F.col("id") % inner_size).cast("int").alias(inner),
    )


def _end_us(plan: Plan) -> Column:
    """The end of the active second `at`, in microseconds since the start."""
    block = F.floor(F.col("at") / plan.block_s)
    second = block * plan.period_s + F.col("at") % plan.block_s + 1
    return second * 1_000_000


# -- groups ---------------------------------------------------------------------------------------


def joined_rows(spark: SparkSession, plan: Plan) -> DataFrame:
    """Rows of the members that joined when the log began."""
    wanted = plan.settings
    return spark.range(wanted.groups * wanted.members).select(
        F.floor(F.col("id") / wanted.members).cast("int").alias("g"),
        (F.col("id") % wanted.members).cast("int").alias("m"),
        F.lit(EventKind.GROUP.value).alias("kind"),
        F.lit(0).alias("time_us"),
        F.lit(GroupEvent.JOINED.value).alias("event"),
    )


def _with_names(frame: DataFrame) -> DataFrame:
    """Replaces numbers by ids, and adds the columns that every row has."""
    has = set(frame.columns)
    named = (
        frame.withColumn("schema_version", F.lit(SCHEMA_VERSION))
        .withColumn("time", F.timestamp_micros(F.col("time_us") + START_US))
        .withColumn("group_id", F.concat(F.lit("group-"), F.col("g").cast("string")))
        .withColumn("coordinator_id", F.concat(F.lit("coordinator-"), F.col("g") % COORDINATORS))
    )
    if "m" in has:
        number = F.concat(
            F.lpad(F.col("g").cast("string"), 4, "0"), F.lpad(F.col("m").cast("string"), 8, "0")
        )
        named = named.withColumn("member_id", F.concat(F.lit("00000000-0000-4000-8000-"), number))
        if "interval_ms" not in has:
            named = named.withColumn("client_id", F.concat(F.lit("worker-"), F.col("m")))
    if "partition" in has:
        named = named.withColumn("topic", F.concat(F.lit("topic-"), F.col("g"))).withColumn(
            "topic_id", F.lpad(F.lower(F.hex(F.col("g") + 1)), 32, "0")
        )
    return named
