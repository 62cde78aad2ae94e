"""A coordinator starts on a store that is full of ranges in flight."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sharecoord.bench.coordinator import MeasuredCoordinator
from sharecoord.bench.procfs import cpu_s
from sharecoord.bench.standard.plans import StoreTrial
from sharecoord.bench.standard.taker import Taker
from sharecoord.devenv.stores import fill_in_flight
from sharecoord.devenv.topics import Topics

GROUP: Final = "recovery"
DEADLINE_S: Final = 180.0
VALUE_BYTES: Final = 10  # a record's number; nobody looks at more of it
SETTINGS: Final = {
    "memory.limit": "2GiB",
    "group.share.partition.max.record.locks": 4000,
}


def measure_recovery(
    url: str, trial: StoreTrial, *, bootstrap_servers: str, topic: str, directory: Path
) -> dict[str, float]:
    """Fills a store, starts a coordinator on it, and takes one new record of each partition.

    Args:
        url: An empty store.
        trial: How much.
        bootstrap_servers: Address of the Kafka cluster.
        topic: Has `trial.partitions` partitions with `trial.ranges` + 1 records each.
        directory: For the coordinator's files.

    Raises:
        SharecoordError: It does not start, or not every share-partition was served in time.
    """
    fill_in_flight(
        url,
        group=GROUP,
        topic=topic,
        topic_id=Topics(bootstrap_servers).topic_id(topic),
        partitions=trial.partitions,
        ranges=trial.ranges,
    )
    settings = {**SETTINGS, "store.url": url}
    coordinator = MeasuredCoordinator(bootstrap_servers, directory, settings=settings)
    began_s = time.monotonic()
    with coordinator:
        ready_s, used_s = time.monotonic(), cpu_s(coordinator.pid)
        taker = Taker(coordinator.address, GROUP, topic)
        with taker.running():
            taker.wait_for(trial.partitions, DEADLINE_S)
        return {
            "port_open_s": ready_s - began_s,
            **recovery_figures(ready_s, taker.first_s.values()),
            "coordinator_cpu_s": cpu_s(coordinator.pid) - used_s,
            "peak_mb": coordinator.peak_rss_mb,
        }


def recovery_figures(began_s: float, served_s: Iterable[float]) -> dict[str, float]:
    """Seconds until the first share-partition was served, until half were, until all were.

    Args:
        began_s: When the coordinator served.
        served_s: When each share-partition delivered its first record; at least one.
    """
    after_s = sorted(each - began_s for each in served_s)
    return {
        "first_delivery_s": after_s[0],
        "half_served_s": statistics.median(after_s),
        "all_served_s": after_s[-1],
    }
