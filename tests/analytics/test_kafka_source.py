"""The topic of events as a source of Spark, batch and stream, on librdkafka's mock cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from sharecoord.analytics import frames
from sharecoord.analytics.errors import EventsCorruptError, EventsNotFoundError, JobFailedError
from sharecoord.analytics.fairness import job as fairness
from sharecoord.analytics.frames import Findings, Range, read_events
from sharecoord.analytics.kafka_source import connector, source
from sharecoord.analytics.places import TopicPlace
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.errors import InvalidConfigError, UnknownTopicOrPartitionError
from sharecoord.eventlog.schema import COLUMN_NAMES
from tests.analytics.support import (
    ARROW_SCHEMA,
    Row,
    at,
    change,
    dicts,
    event,
    handed,
    sample,
    write,
)
from tests.analytics.topics import EventTopic, message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = {"topic": "t", "topic_id": "x", "partition": 0}


@pytest.fixture
def topic(mock_cluster: MockCluster) -> EventTopic:
    return EventTopic(mock_cluster)


def rows_of_all_kinds() -> list[Row]:
    """Rows in order of their time, each with another one."""
    rows = [handed(n, "a", n + 1, change_sequence=n, first_offset=n) for n in range(20)]
    rows += [
        change(30, "released", "a", 1, key=b"\x00k", held_ms=5, delay_ms=0, reason="why ü"),
        event("partition", 31, **PLACE, lag=7, oldest_time=at(1.5), window_max=9),
        sample(32, "a", 5, 3, pace_us=12),
        event("group", 33, event="joined", member_id="a", client_id="c"),
        event("lost", 34, records=3, group_id=""),
    ]
    return rows


def seconds(found: DataFrame) -> list[float]:
    """Times of the rows, in order."""
    rows = found.selectExpr("unix_millis(time) AS ms").orderBy("ms").collect()
    return [row["ms"] / 1_000 - at(0).timestamp() for row in rows]


def from_source(spark: SparkSession, topic: EventTopic, **options: str) -> DataFrame:
    source.register(spark)
    found: DataFrame = spark.read.format("sharecoord").options(**topic.options(**options)).load()
    return found


# -- batch ----------------------------------------------------------------------------------------


def test_the_same_frame_as_from_files(
    spark: SparkSession, topic: EventTopic, tmp_path: Path
) -> None:
    rows = rows_of_all_kinds()
    write(tmp_path, rows)
    topic.send_rows(rows)
    files, messages = read_events(spark, str(tmp_path)), read_events(spark, topic.place())
    assert messages.columns == list(COLUMN_NAMES)
    assert messages.dtypes == files.dtypes
    kept = [dicts(found.orderBy("time")) for found in (files, messages)]
    assert kept[0] == kept[1]
    assert len(kept[0]) == len(rows)


def test_the_fairness_job_reads_a_topic(spark: SparkSession, topic: EventTopic) -> None:
    rows = [sample(s, m, 9, g) for s in range(1, 9) for m, g in (("a", 9), ("b", 0))]
    rows += [handed(s, "a", 9, change_sequence=s, first_offset=s) for s in range(1, 9)]
    topic.send_rows(rows)
    (found,) = fairness.run(spark, topic.place(), None).rows
    assert (found["starved_members"], found["records"], found["complete"]) == (["b"], 72, 1)
    wanted = Range(at(2), at(4), groups=("g",))
    assert seconds(read_events(spark, topic.place(), Range(groups=("h",)))) == []
    # The mock cluster knows no times: see the test on a real broker.
    unbound = Range(None, wanted.until, wanted.groups)
    assert max(seconds(read_events(spark, topic.place(), unbound))) == 3


def test_tasks_of_a_bounded_size(spark: SparkSession, topic: EventTopic) -> None:
    for number in range(10):
        topic.send(message([handed(number, "a", 1)]), partition=0)
    for number in range(4):
        topic.send(message([handed(10 + number, "a", 1)]), partition=1)
    found = from_source(spark, topic, max_offsets_per_partition="3")
    assert found.rdd.getNumPartitions() == 4 + 2
    assert seconds(found) == list(range(14))


def test_offsets_as_sparks_connector_has_them(spark: SparkSession, topic: EventTopic) -> None:
    for number in range(6):
        topic.send(message([handed(number, "a", 1)]))
    some = {
        name: json.dumps({topic.name: {"0": offset, "1": -2, "2": -2, "3": -2}})
        for name, offset in (("startingOffsets", 2), ("endingOffsets", 5))
    }
    assert seconds(from_source(spark, topic, **some)) == [2, 3, 4]
    assert seconds(from_source(spark, topic, startingOffsets="earliest")) == list(range(6))
    assert seconds(from_source(spark, topic, endingOffsets="earliest")) == []


def test_a_frame_ends_where_the_topic_ended(spark: SparkSession, topic: EventTopic) -> None:
    topic.send(message([handed(1, "a", 1)]))
    found = read_events(spark, topic.place())
    topic.send(message([handed(2, "a", 1)]))
    assert seconds(found) == seconds(found) == [1]


def test_a_message_that_is_no_stream_of_events(spark: SparkSession, topic: EventTopic) -> None:
    whole = message([handed(1, "a", 1)])
    topic.send(whole, b"what?", whole, whole[: len(whole) // 2])

    def read(place: TopicPlace, findings: Findings) -> int:
        found = read_events(spark, place)
        return frames.reading(
            lambda _: len(found.collect()) + len(found.collect()),
            skip_corrupt=place.skip_corrupt,
            findings=findings,
            place=place,
        )

    with pytest.raises(JobFailedError, match=f"^{topic.name}-0@1: the message is no Arrow stream"):
        read(topic.place(), Findings())
    findings = Findings()
    assert read(topic.place(skip_corrupt=True), findings) == 4
    # Each once, though the frame was read twice.
    assert findings.skipped == [f"{topic.name}-0@1", f"{topic.name}-0@3"]
    assert f"left out, because it can not be read: {topic.name}-0@1" in findings.warnings(None)


def test_a_newer_schema(spark: SparkSession, topic: EventTopic) -> None:
    newer = ARROW_SCHEMA.insert(1, pa.field("colour", pa.string()))
    fewer = pa.schema([each for each in ARROW_SCHEMA if each.name != "held_ms"])
    row = handed(1, "a", 1, colour="red", held_ms=4)
    topic.send(message([row]), message([row], newer), message([row], fewer))
    found = dicts(read_events(spark, topic.place()))
    assert [list(each) for each in found] == [list(COLUMN_NAMES)] * 3
    assert sorted(str(each["held_ms"]) for each in found) == ["4", "4", "None"]


def test_what_is_wrong_is_named(spark: SparkSession, topic: EventTopic) -> None:
    with pytest.raises(EventsNotFoundError, match="the topic has no messages in the range"):
        read_events(spark, topic.place())
    other = TopicPlace("nowhere", topic.settings)
    with pytest.raises(UnknownTopicOrPartitionError, match='topic "nowhere"'):
        read_events(spark, other)
    wrong = TopicPlace(topic.name, {**topic.settings, "fetch.wait.max.mss": "5"})
    with pytest.raises(InvalidConfigError, match=r'Did you mean "fetch\.wait\.max\.ms"'):
        read_events(spark, wrong)
    with pytest.raises(Exception, match=r'unknown option "topik"\. Did you mean "topic"'):
        from_source(spark, topic, topik="x")


# -- Spark's own connector ------------------------------------------------------------------------


def test_messages_that_sparks_own_connector_read(spark: SparkSession) -> None:
    """A stand-in for its frame: the connector itself is not part of pyspark."""
    assert connector.is_there(spark) is False
    rows = rows_of_all_kinds()
    values = [message(rows[:9]), b"what?", message(rows[9:])]
    listed = [("t", 0, offset, value, None) for offset, value in enumerate(values)]
    schema = StructType.fromDDL(
        "topic string, partition int, offset bigint, value binary, timestamp timestamp"
    )
    messages = spark.createDataFrame(listed, schema).coalesce(1)
    noted = source.register(spark)
    found = connector.decoded(messages, skipped=noted)
    assert found.dtypes == spark.createDataFrame([], frames.schema()).dtypes
    assert len(seconds(found)) == len(rows)
    assert noted.value == {"t-0@1"}
    with pytest.raises(Exception, match=f"{EventsCorruptError.__name__}: t-0@1: the message is no"):
        connector.decoded(messages, skipped=None).collect()


# -- streams --------------------------------------------------------------------------------------


def drain(
    spark: SparkSession, topic: EventTopic, folder: Path, **options: str
) -> tuple[list[float], int]:
    """Reads what is there; times of all rows so far, and the number of micro-batches."""
    source.register(spark)
    reader = spark.readStream.format("sharecoord").options(**topic.options(**options))
    query = (
        reader.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    return seconds(spark.read.parquet(str(folder / "out"))), len(batches)


def test_a_stream_goes_on_where_it_was(
    spark: SparkSession, topic: EventTopic, tmp_path: Path
) -> None:
    given = {"startingOffsets": "earliest", "max_offsets_per_trigger": "4"}
    for number in range(8):
        topic.send(message([handed(number, "a", 1)]), partition=number % 2)
    found, batches = drain(spark, topic, tmp_path, **given)
    assert (found, batches) == (list(range(8)), 2)
    for number in range(8, 11):
        topic.send(message([handed(number, "a", 1)]), partition=3)
    found, batches = drain(spark, topic, tmp_path, **given)
    assert (found, batches) == (list(range(11)), 1)
    assert drain(spark, topic, tmp_path, **given) == (list(range(11)), 0)
    offsets = sorted(
        (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda f: int(f.name)
    )
    last: dict[str, Any] = json.loads(offsets[-1].read_text().splitlines()[-1])
    assert last == {"0": 4, "1": 4, "2": 0, "3": 3}


def test_messages_that_were_deleted_before_they_were_read(
    spark: SparkSession, topic: EventTopic, tmp_path: Path
) -> None:
    topic.send(message([handed(0, "a", 1)]))
    drain(spark, topic, tmp_path, startingOffsets="earliest")
    # The mock cluster keeps some 5 MiB of a partition.
    for number in range(1, 13):
        topic.send(message([handed(number, "a", 1, reason="x" * 700_000)]))
    with pytest.raises(Exception, match=f"{topic.name}-0 has .* and reading was to go on at 1"):
        drain(spark, topic, tmp_path)
    found, _ = drain(spark, topic, tmp_path, failOnDataLoss="false")
    assert found[0] == 0
    assert found[-1] == 12
    assert 2 < len(found) < 13


# -- a real broker --------------------------------------------------------------------------------


def test_a_time_is_looked_up(spark: SparkSession, kafka_broker: Any, topics: Any) -> None:
    """Messages of before the time are not even read."""
    from confluent_kafka import Producer

    from tests.support import unique_name

    name = unique_name("events")
    topics.create(name, partitions=2)
    settings = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    producer = Producer(settings)
    base_ms = int(at(0).timestamp() * 1_000)
    for minute in range(30):
        value = message([handed(60 * minute, "a", 1)]) if minute >= 15 else b"not to be read"
        producer.produce(name, value=value, partition=0, timestamp=base_ms + 60_000 * minute)
    assert producer.flush(10) == 0
    found = read_events(spark, TopicPlace(name, settings), Range(at(60 * 20), at(60 * 25)))
    assert seconds(found) == [60 * minute for minute in range(20, 25)]
    topics.delete(name)
