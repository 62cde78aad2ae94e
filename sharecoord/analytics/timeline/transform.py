"""The events of one record, key or member from a log of any size, the same as those of `files`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics.timeline.files import Wanted, about, changes_of, of_member


def story_events(events: DataFrame, wanted: Wanted) -> DataFrame:
    """The events of the story of a record, key or member, in no order."""
    if wanted.member_id is not None:
        return events.where(of_member(F.col, wanted))
    changes = events.where(changes_of(F.col, wanted))
    if wanted.key is None:
        return changes.where(about(F.col, wanted.offset))
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
    return changes.join(F.broadcast(offsets), same & about(F.col, F.col("_offset")), "left_semi")
