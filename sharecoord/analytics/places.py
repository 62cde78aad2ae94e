"""The place that events are read from: a folder, or a topic of Kafka."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.config.kafka_properties import read_kafka_config

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

TOPIC_PREFIX: Final = "kafka:"
DEFAULT_KAFKA: Final = "localhost:9092"


@dataclass(frozen=True)
class TopicPlace:
    """A topic that a coordinator writes its events to (`events.sink: kafka:TOPIC`).

    Attributes:
        topic: Its name.
        settings: librdkafka's keys and values, `bootstrap.servers` among them.
        skip_corrupt: Leave out messages that are no events, and note them.
        noted: Accumulators with the messages that frames of this place have left out.
    """

    topic: str
    settings: Mapping[str, str] = field(repr=False)
    skip_corrupt: bool = False
    noted: list[Accumulator[frozenset[str]]] = field(
        default_factory=list, compare=False, repr=False
    )

    def skipped(self) -> list[str]:
        """Messages that were left out, as `topic-partition@offset`."""
        return sorted(frozenset().union(*(each.value for each in self.noted)))

    def __str__(self) -> str:
        return f"{TOPIC_PREFIX}{self.topic}"


Place = str | TopicPlace
"""A folder, as a path or a URI, or a topic."""


def place_of(
    events: str,
    *,
    kafka: str | None = None,
    kafka_config: Path | None = None,
    skip_corrupt: bool = False,
) -> Place:
    """The place that `--events`, `--kafka` and `--kafka-config` name together.

    Args:
        events: A folder, or `kafka:TOPIC`.
        kafka: `host:port[,host:port]`; wins over the file.
        kafka_config: A file of librdkafka's or Java's keys.
        skip_corrupt: See `TopicPlace`; a folder's files are skipped by `frames.reading`.

    Raises:
        AnalyticsError: The options do not fit together.
        InvalidConfigError: The file can not be read.
    """
    if not events.startswith(TOPIC_PREFIX):
        if kafka is not None or kafka_config is not None:
            raise AnalyticsError(
                f"--kafka and --kafka-config belong to --events kafka:TOPIC, and {events} is a "
                "folder: leave them out, or name the topic"
            )
        return events
    topic = events.removeprefix(TOPIC_PREFIX)
    if not topic:
        raise AnalyticsError("--events kafka: names no topic: write --events kafka:TOPIC")
    settings: dict[str, str] = {}
    if kafka_config:
        settings.update(read_kafka_config(kafka_config, os.environ).properties)
    if kafka is not None:
        settings["bootstrap.servers"] = kafka
    settings.setdefault("bootstrap.servers", DEFAULT_KAFKA)
    return TopicPlace(topic, settings, skip_corrupt)
