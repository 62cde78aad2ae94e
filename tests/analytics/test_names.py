"""Numbers in the place of names: every name comes back; all events are read only when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from sharecoord.analytics.census import census
from sharecoord.analytics.names import NAMES, named, naming, numbered, texts
from sharecoord.analytics.rollups import EventLog
from tests.analytics.support import Row, change, dicts, event, frame, sample

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACED = {"topic": "t", "topic_id": "id", "partition": 0}
SAMPLES = [event("partition", 1, **PLACED), sample(1, "a", 1, 1, client_id="client-a")]
KNOWN = [*SAMPLES, change(1, "accepted", "a", 3, topic_id="id")]


def test_names_come_back_in_their_columns(spark: SparkSession) -> None:
    rows = [
        *KNOWN,
        # In no sample: a member, its client, a topic without an id, a group without a name.
        change(2, "accepted", "z", 1, topic="ü/topic", topic_id=None),
        event("lost", 3, group_id="", records=4),
        event("lost", 3, group_id=None, records=5),
    ]
    events = frame(spark, rows)
    counts = numbered(events).groupBy(*NAMES).agg(F.sum("records").alias("records"))
    assert {kind for name, kind in counts.dtypes if name in NAMES} == {"bigint"}
    with naming(EventLog(events), counts) as back:
        found = back(counts)
        assert found.columns == counts.columns
        wanted = dicts(events.groupBy(*NAMES).agg(F.sum("records").alias("records")))
        assert sorted(dicts(found), key=repr) == sorted(wanted, key=repr)


def test_a_census_of_numbers_is_that_of_names(spark: SparkSession) -> None:
    rows = [change(1, "accepted", "a", 1, change_sequence=n) for n in (1, 2, 2, 70)]
    rows += [change(1, "accepted", "a", 1, change_sequence=9, group_id=g) for g in ("", "h")]
    events = frame(spark, rows)
    counted = census(numbered(events))
    found = named(counted, texts(EventLog(events), counted))
    assert sorted(dicts(found), key=repr) == sorted(dicts(census(events)), key=repr)


def reads_all(spark: SparkSession, rows: list[Row]) -> bool:
    """Whether all events are read for the names of a census, once that is kept."""
    events = frame(spark, rows)
    counted = census(numbered(events)).persist()
    try:
        found = texts(EventLog(events), counted)
        assert {row["text"] for row in found.collect()} >= {"g", "t"}
        plan = found._jdf.queryExecution().executedPlan().toString()
    finally:
        counted.unpersist()
    final, _, before = plan.partition("\n+- == Initial Plan ==")
    assert "LeftSemi" in before, "planned"
    return "LeftSemi" in final


def test_events_are_read_again_only_for_names_that_no_sample_has(adaptive: SparkSession) -> None:
    assert not reads_all(adaptive, KNOWN)
    assert reads_all(adaptive, [*KNOWN, change(2, "accepted", "a", 1, topic="unseen")])
