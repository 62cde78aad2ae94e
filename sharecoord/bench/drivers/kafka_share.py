"""Kafka's own share group with one member, through `confluent_kafka.ShareConsumer`."""

from __future__ import annotations

from confluent_kafka import ShareConsumer

from sharecoord.bench.drivers.command import run_driver
from sharecoord.bench.drivers.meter import Meter
from sharecoord.bench.drivers.options import DriverOptions
from sharecoord.bench.drivers.share_loop import take_all


def consume(options: DriverOptions, meter: Meter) -> None:
    """Takes the topic; the group's settings were made before."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": options.bootstrap_servers,
            "group.id": options.group,
            "share.acknowledgement.mode": "explicit" if options.explicit else "implicit",
        }
    )
    consumer.subscribe([options.topic])
    try:
        take_all(consumer, meter, explicit=options.explicit)
    finally:
        consumer.close()


if __name__ == "__main__":
    run_driver(consume)
