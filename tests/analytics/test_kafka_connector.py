"""Spark's own Kafka connector on the class path: the same frame as that of our source.

It is no part of pyspark, and a session has one class path: this runs in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from sharecoord.devenv import maven
from sharecoord.devenv.topics import Record, Topics
from tests.analytics.support import busy
from tests.analytics.topics import HEADERS, message
from tests.support import KafkaUnderTest, unique_name

pytestmark = [pytest.mark.long, pytest.mark.kafka]

VERSION: Final = "4.2.0"
"""The newest that Maven has; it serves sessions of 4.3 too."""
POM: Final = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>sharecoord.tests</groupId><artifactId>connector</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
NEEDED: Final = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""The others are those of pyspark."""
READ_BOTH: Final = """
import json, sys
from sharecoord.analytics import frames
from sharecoord.analytics.kafka_source import connector
from sharecoord.analytics.places import TopicPlace
from sharecoord.analytics.session import make_session

jars, servers, topic = sys.argv[1:]
spark = make_session(
    "connector", master="local[2]", driver_memory="1g", settings={"spark.jars": jars}
)
place = TopicPlace(topic, {"bootstrap.servers": servers})
assert connector.is_there(spark)
theirs = frames.read_events(spark, place)
plan = theirs._jdf.queryExecution().toString()
connector.is_there = lambda _: False
ours = frames.read_events(spark, place)
print(json.dumps({
    "by_connector": "kafka" in plan.lower() and "MapInArrow" in plan,
    "rows": [theirs.count(), ours.count()],
    "different": theirs.exceptAll(ours).count() + ours.exceptAll(theirs).count(),
    "schemas": theirs.schema == ours.schema,
}))
"""


def connector_jars() -> str:
    libs = maven.resolved_jars(
        maven.cache_root() / "spark-connector" / VERSION, POM, main_jar="spark-sql-kafka*.jar"
    )
    return ",".join(str(jar) for jar in sorted(libs.glob("*.jar")) if jar.name.startswith(NEEDED))


def test_the_connector_gives_the_same_frame(kafka_broker: KafkaUnderTest, tmp_path: Path) -> None:
    topic, servers = unique_name("events"), kafka_broker.bootstrap_servers
    topics = Topics(servers)
    topics.create(topic, partitions=2)
    rows, headers = busy(0, 20), [(name, text.encode()) for name, text in HEADERS.items()]
    for number in range(0, len(rows), 10):
        record = Record(b"g", message(rows[number : number + 10]), headers)
        topics.produce(topic, [record], partition=number // 10 % 2)
    script = tmp_path / "read.py"
    script.write_text(READ_BOTH, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), connector_jars(), servers, topic],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "by_connector": True,
        "rows": [len(rows), len(rows)],
        "different": 0,
        "schemas": True,
    }
