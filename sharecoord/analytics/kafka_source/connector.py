"""Spark's own Kafka connector, where it is on the class path: it reads, and `decoded` decodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from sharecoord.analytics.event_columns import SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from sharecoord.analytics.kafka_source.source import Skipped

PROVIDER: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

_SAME: Final = frozenset({"bootstrap.servers", "security.protocol", "client.id"})
"""Keys that mean the same to librdkafka and to Kafka's Java client."""
_LOGIN: Final = "org.apache.kafka.common.security"
_MODULES: Final = {
    "PLAIN": f"{_LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_LOGIN}.scram.ScramLoginModule",
}


def is_there(spark: SparkSession) -> bool:
    """Whether `spark-sql-kafka-0-10` is on the class path."""
    jvm: Any = spark.sparkContext._jvm
    return bool(jvm.org.apache.spark.util.Utils.classIsLoadable(PROVIDER))


def java_settings(kafka: Mapping[str, str]) -> dict[str, str] | None:
    """Settings of librdkafka as Java's client has them; None when one has no counterpart there."""
    left = dict(kafka)
    java = {key: left.pop(key) for key in _SAME & left.keys()}
    if "ssl.ca.location" in left:
        java["ssl.truststore.type"] = "PEM"
        java["ssl.truststore.location"] = left.pop("ssl.ca.location")
    mechanism = left.pop("sasl.mechanism", left.pop("sasl.mechanisms", None))
    if mechanism is not None:
        names = ("sasl.username", "sasl.password")
        if mechanism not in _MODULES or not all(name in left for name in names):
            return None
        user, password = (_quoted(left.pop(name)) for name in names)
        java["sasl.mechanism"] = mechanism
        java["sasl.jaas.config"] = (
            f"{_MODULES[mechanism]} required username={user} password={password};"
        )
    return None if left else java


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def decoded(messages: DataFrame, *, skipped: Skipped | None) -> DataFrame:
    """The events in messages that the connector has read.

    Messages that are no events are an error, or their names are added to `skipped`.
    """
    columns = ("topic", "partition", "offset", "value")

    def rows(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from sharecoord.analytics.kafka_source.decode import batches
        from sharecoord.analytics.kafka_source.source import noting

        places_and_values = (
            ((topic, partition, offset), value)
            for batch in given
            for topic, partition, offset, value in zip(
                *(batch.column(name).to_pylist() for name in columns), strict=True
            )
        )
        return batches(places_and_values, None if skipped is None else noting(skipped))

    return messages.select(*columns).mapInArrow(rows, SCHEMA)
