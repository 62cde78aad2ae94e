"""A million records that are to be delivered later, each at a time of its own: a script, no test.

    python -m tests.perf.delays [--records 1000000] [--spread-s 60] [--stride 1] [--kill] [--keep]

Prints how long it takes until all of them wait, what the coordinator's memory is then and at most,
and how late they come. With `--kill` the coordinator is killed with -9 while they wait; with
`--keep` their payloads are stored.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from sharecoord_sdk import AdminClient, ShareConsumer

from sharecoord.bench.procfs import peak_rss_mb
from sharecoord.core.dispatch.schedule import DELIVER_AT_HEADER
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics

TOPIC = "delays"


def rss_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def produce(servers: str, records: int, first_ms: int, spread_ms: int, stride: int) -> None:
    Topics(servers).create(TOPIC, partitions=1)
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 200_000})
    for n in range(records):
        due_ms = first_ms + n * stride % records * spread_ms // records
        headers: list[tuple[str, str | bytes | None]] = [(DELIVER_AT_HEADER, str(due_ms))]
        while True:
            try:
                producer.produce(TOPIC, str(due_ms), headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def delayed(store: Path) -> int:
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as reading:
        query = "SELECT count(*) FROM in_flight WHERE available_at_ms > 0"
        return int(reading.execute(query).fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.delays")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--spread-s", type=int, default=60)
    parser.add_argument("--ahead-s", type=int, default=90)
    parser.add_argument("--stride", type=int, default=1, help="7919: in no order")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--keep", action="store_true", help="share.retry.keep.payload=true")
    options = parser.parse_args()
    records = options.records
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(measured=True) as broker:
        first_ms = int(time.time() * 1000) + options.ahead_s * 1000
        produce(
            broker.bootstrap_servers, records, first_ms, options.spread_s * 1000, options.stride
        )
        with CoordinatorProcess(broker.bootstrap_servers, Path(folder)) as coordinator:
            with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
                keep = str(options.keep).lower()
                admin.alter_group_configs("g", {"share.retry.keep.payload": keep})
            measure(coordinator, records, kill=options.kill)


def measure(coordinator: CoordinatorProcess, records: int, *, kill: bool) -> None:
    print(f"coordinator at its start: {rss_mb(coordinator.pid):.0f} MB")
    begun = time.monotonic()
    late_ms: list[int] = []
    with ShareConsumer(
        {"bootstrap.servers": coordinator.address, "group.id": "g", "max.poll.records": 500}
    ) as consumer:
        consumer.subscribe([TOPIC])

        while delayed(coordinator.store_path) + len(late_ms) < records:
            messages = consumer.poll(0.1)
            now_ms = time.time_ns() // 1_000_000
            late_ms.extend(now_ms - int(m.value() or 0) for m in messages)
        print(f"all wait after {time.monotonic() - begun:.1f} s, {len(late_ms)} came already")
        print(f"coordinator: {rss_mb(coordinator.pid):.0f} MB")
        if kill:
            coordinator.kill()
            coordinator.restart()
            print("killed and started again")
        while len(late_ms) < records:
            messages = consumer.poll(1.0)
            now_ms = time.time_ns() // 1_000_000
            late_ms.extend(now_ms - int(m.value() or 0) for m in messages)
    late_ms.sort()
    shown = {part: late_ms[int(part * (records - 1))] for part in (0, 0.5, 0.99, 0.999, 1)}
    print("late by, in ms: " + ", ".join(f"p{100 * part:g} {ms}" for part, ms in shown.items()))
    print(f"coordinator at most: {peak_rss_mb(coordinator.pid):.0f} MB")


if __name__ == "__main__":
    main()
