"""This project's share group with one member, through `sharecoord_sdk.ShareConsumer`."""

from __future__ import annotations

from sharecoord_sdk import ShareConsumer

from sharecoord.bench.drivers.command import run_driver
from sharecoord.bench.drivers.meter import Meter
from sharecoord.bench.drivers.options import DriverOptions
from sharecoord.bench.drivers.share_loop import take_all


def consume(options: DriverOptions, meter: Meter) -> None:
    """Takes the topic from the coordinator at `bootstrap_servers`."""
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
