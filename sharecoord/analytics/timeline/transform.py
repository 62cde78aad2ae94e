"""The events of one record, key or member from a log of any size, the same as those of `files`."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics.timeline.files import Wanted
from sharecoord.eventlog.schema import EventKind, RangeEvent


def story_events(events: DataFrame, wanted: Wanted) -> DataFrame:
    """The events of the story of a record, key or member, in no order."""
    if wanted.member_id is not None:
        kinds = F.col("kind").isin(EventKind.RANGE.value, EventKind.GROUP.value)
        of_member = F.col("member_id") == wanted.member_id
        return events.where(kinds & (F.col("group_id") == wanted.group_id) & of_member)
    changes = _changes(events, wanted)
    if wanted.key is None:
        return changes.where(_about(F.lit(wanted.offset)))
    offsets = (
        changes.where(F.col("key") == F.lit(wanted.key))
        .select(
            F.col("topic").alias("_topic"),
            F.col("partition").alias("_partition"),
            F.col("first_offset").alias("_offset"),
        )
        .distinct()
    )
    same = (F.col("topic") == F.col("_topic")) & (F.col("partition") == F.col("_partition"))
    return changes.join(F.broadcast(offsets), same & _about(F.col("_offset")), "left_semi")


def _changes(events: DataFrame, wanted: Wanted) -> DataFrame:
    """The changes of the group, topic and partition, as far as they are given."""
    is_change = F.col("kind") == EventKind.RANGE.value
    changes = events.where(is_change & (F.col("group_id") == wanted.group_id))
    if wanted.topic is not None:
        changes = changes.where(F.col("topic") == wanted.topic)
    if wanted.partition is not None:
        changes = changes.where(F.col("partition") == wanted.partition)
    return changes


def _about(offset: Column) -> Column:
    """Ranges with this offset, and events that concern all offsets from one on."""
    event = F.col("event")
    reaches = (F.col("last_offset") >= offset) | (event == RangeEvent.TRUNCATED.value)
    return ((F.col("first_offset") <= offset) & reaches) | (event == RangeEvent.RESET.value)
