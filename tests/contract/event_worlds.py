"""Both places of the event log, with the real writer, and what readers find there."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Message, TopicPartition

from sharecoord.events.frames import WriterSettings
from sharecoord.events.pipe_sink import PipeSink

READ_TIMEOUT_S = 20.0


class ParquetWorld:
    """A directory."""

    name = "parquet"

    def __init__(self, root: Path) -> None:
        self.root = root

    def settings(self, coordinator_id: str = "c", *, max_age_ms: int = 3_600_000) -> WriterSettings:
        return WriterSettings(
            kind="parquet",
            target=str(self.root),
            coordinator_id=coordinator_id,
            file_max_bytes=1 << 20,
            file_max_age_ms=max_age_ms,
            kafka={},
        )

    def rows(self) -> list[dict[str, Any]]:
        """What Spark would read."""
        found: list[dict[str, Any]] = []
        for path in sorted(self.root.glob("date=*/group=*/[!_.]*.parquet")):
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                found += file.read().to_pylist()
        return found


class KafkaWorld:
    """A topic of librdkafka's mock cluster."""

    name = "kafka"

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic

    def settings(self, coordinator_id: str = "c", *, max_age_ms: int = 0) -> WriterSettings:
        return WriterSettings(
            kind="kafka",
            target=self.topic,
            coordinator_id=coordinator_id,
            file_max_bytes=1 << 20,
            file_max_age_ms=max_age_ms,
            kafka={"bootstrap.servers": self.bootstrap_servers},
        )

    def messages(self) -> list[Message]:
        """Everything that is in the topic now."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "reader",
                "enable.auto.commit": False,
            }
        )
        found: list[Message] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        try:
            partitions = consumer.list_topics(self.topic, 10.0).topics[self.topic].partitions
            places = [TopicPartition(self.topic, n, 0) for n in partitions]
            ends = [consumer.get_watermark_offsets(each, 10.0)[1] for each in places]
            consumer.assign(places)
            while len(found) < sum(ends):
                assert time.monotonic() < deadline, f"{len(found)} of {sum(ends)} messages came"
                found += [each for each in consumer.consume(100, 0.1) if each.error() is None]
        finally:
            consumer.close()
        return found

    def rows(self) -> list[dict[str, Any]]:
        """All rows of all messages."""
        found: list[dict[str, Any]] = []
        for message in self.messages():
            value = message.value()
            assert value is not None
            with pa.ipc.open_stream(io.BytesIO(value)) as stream:
                found += stream.read_all().to_pylist()
        return found


World = ParquetWorld | KafkaWorld


def make_sink(settings: WriterSettings, pipe_max_bytes: int = 16 << 20) -> PipeSink:
    """The coordinator's end; not started."""
    return PipeSink(settings, pipe_max_bytes=pipe_max_bytes, now_us=lambda: time.time_ns() // 1_000)


def offsets(rows: Sequence[dict[str, Any]], group_id: str = "g") -> list[int]:
    """The first offsets of a group's ranges, sorted."""
    return sorted(
        row["first_offset"] for row in rows if (row["kind"], row["group_id"]) == ("range", group_id)
    )


def lost_said(rows: Sequence[dict[str, Any]]) -> int:
    """What the rows of kind `lost` say."""
    return sum(row["records"] for row in rows if row["kind"] == "lost")
