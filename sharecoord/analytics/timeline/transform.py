"""The events of one record, key or member out of a log of any size, as `files` finds them."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics.timeline.files import Wanted
from sharecoord.eventlog.schema import EventKind, RangeEvent


def story_events(events: DataFrame, wanted: Wanted) -> DataFrame:
    """The rows that tell a story, in no order.

    Args:
        events: The event log.
        wanted: Whose story.

    Returns:
        Columns as in `events`.
    """
    if wanted.member_id is not None:
        kinds = F.col("kind").isin(EventKind.RANGE.value, EventKind.GROUP.value)
        its_own = (F.col("group_id") == wanted.group_id) & (F.col("member_id") == wanted.member_id)
        return events.where(kinds & its_own)
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
    """Changes of ranges, of the group and what else is wanted."""
    found = events.where(
        (F.col("kind") == EventKind.RANGE.value) & (F.col("group_id") == wanted.group_id)
    )
    if wanted.topic is not None:
        found = found.where(F.col("topic") == wanted.topic)
    if wanted.partition is not None:
        found = found.where(F.col("partition") == wanted.partition)
    return found


def _about(offset: Column) -> Column:
    """Events of ranges with this offset, and those that concern all offsets from one on."""
    begins, event = F.col("first_offset") <= offset, F.col("event")
    return (
        (begins & (F.col("last_offset") >= offset))
        | (begins & (event == RangeEvent.TRUNCATED.value))
        | (event == RangeEvent.RESET.value)
    )
