"""Events as messages of a topic, as a coordinator writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from sharecoord.analytics.places import TopicPlace
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.eventlog.schema import SCHEMA_VERSION
from tests.analytics.support import ARROW_SCHEMA
from tests.support import KafkaUnderTest, unique_name

HEADERS = {
    "sharecoord-schema-version": str(SCHEMA_VERSION),
    "content-type": "application/vnd.apache.arrow.stream",
}


def message(rows: Iterable[Mapping[str, Any]], schema: pa.Schema = ARROW_SCHEMA) -> bytes:
    """Rows as one Arrow stream with one record batch."""
    listed = list(rows)
    columns = {name: [row.get(name) for row in listed] for name in schema.names}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_pydict(columns, schema=schema))
    return bytes(sink.getvalue())


class EventTopic:
    """A topic: one of a real cluster, or a new one of the mock cluster, with four partitions."""

    def __init__(self, cluster: MockCluster | KafkaUnderTest, name: str = "") -> None:
        self.name = name or unique_name("events")
        self.settings = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "fetch.wait.max.ms": "5",
        }
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "log_level": 2}
        )
        # In the mock cluster a topic appears when a producer names it.
        self._producer.list_topics(self.name, timeout=10)

    def place(self, *, skip_corrupt: bool = False) -> TopicPlace:
        """As `--events kafka:TOPIC` means it."""
        return TopicPlace(self.name, dict(self.settings), skip_corrupt)

    def options(self, **more: str) -> dict[str, str]:
        """Options of the data source; `_` stands for `.`."""
        kafka = {f"kafka.{key}": text for key, text in self.settings.items()}
        named = {name.replace("_", "."): text for name, text in more.items()}
        return {"topic": self.name, **kafka, **named}

    def send(self, *values: bytes, partition: int = 0) -> None:
        """Messages, durable when it returns."""
        for value in values:
            self._producer.produce(
                self.name, value=value, key="g", headers=dict(HEADERS), partition=partition
            )
        assert self._producer.flush(10) == 0

    def send_rows(self, rows: Iterable[Mapping[str, Any]], *, each: int = 3) -> None:
        """Rows in order, so many in a message, in turn to two partitions."""
        listed = list(rows)
        for turn, first in enumerate(range(0, len(listed), each)):
            self.send(message(listed[first : first + each]), partition=turn % 2)
