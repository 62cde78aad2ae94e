"""Kafka's `ShareConsumerPerformance` at a broker's share group and at the Kafka port, in turns.

`python -m tests.perf.java_share_consumer [BATCH_BYTES [RECORDS [TURNS]]]` prints the records/s of
both, from the start of the tool's own clock to its last record, and their ratio.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.maven import find_java, kafka_libs
from sharecoord.devenv.processes import free_ports
from sharecoord.devenv.topics import Topics

VALUE: Final = bytes(1_000)
TOPIC: Final = "orders"
TOOL: Final = "org.apache.kafka.tools.ShareConsumerPerformance"
ROW_BEGINS_WITH: Final = "20"
"""The tool prints a head and a row, which begins with the date."""
RATE_COLUMN: Final = 4
TIMEOUT_S: Final = 300


def produce(servers: str, batch_bytes: int, records: int) -> None:
    """Fills the topic with batches of about so many bytes."""
    producer = Producer(
        {"bootstrap.servers": servers, "batch.size": batch_bytes, "linger.ms": 50, "acks": 1}
    )
    for number in range(records):
        producer.produce(TOPIC, VALUE)
        if number % 10_000 == 0:
            producer.flush()
    producer.flush()


def records_per_s(address: str, group: str, records: int) -> float:
    """What the tool says of a new group."""
    command = [str(find_java()), "-cp", f"{kafka_libs()}/*", TOOL]
    arguments = ["--bootstrap-server", address, "--topic", TOPIC, "--group", group,
                 "--num-records", str(records), "--timeout", "60000"]  # fmt: skip
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    (row,) = [each for each in done.stdout.splitlines() if each.startswith(ROW_BEGINS_WITH)]
    return float(row.split(", ")[RATE_COLUMN])


def main(batch_bytes: int = 16_384, records: int = 500_000, turns: int = 3) -> None:
    """Prints a line for each turn, and the median ratio."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as folder:
        topics = Topics(broker.bootstrap_servers)
        topics.create(TOPIC)
        produce(broker.bootstrap_servers, batch_bytes, records)
        settings = {"kafka.port.listen": address}
        with CoordinatorProcess(broker.bootstrap_servers, Path(folder), settings=settings):
            ratios = []
            for turn in range(turns):
                group = f"turn-{turn}"
                topics.set_group_config(group, {"share.auto.offset.reset": "earliest"})
                native = records_per_s(broker.bootstrap_servers, group, records)
                ours = records_per_s(address, group, records)
                ratios.append(ours / native)
                print(f"{native:,.0f} {ours:,.0f} {ours / native:.2f}x", flush=True)
    print(f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
