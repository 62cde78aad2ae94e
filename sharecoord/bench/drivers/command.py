"""What every driver's `main` has around its consumer."""

from __future__ import annotations

import sys
from collections.abc import Callable

from sharecoord.bench.drivers.meter import Meter
from sharecoord.bench.drivers.options import DriverOptions, parse_options
from sharecoord.bench.errors import BenchError


def run_driver(consume: Callable[[DriverOptions, Meter], None]) -> None:
    """Runs a driver: options in, one JSON line out; exit code 1 with one line of complaint.

    Args:
        consume: Makes the consumer, feeds the meter until it has enough, and closes the consumer.
    """
    options = parse_options()
    meter = Meter(options)
    try:
        consume(options, meter)
    except BenchError as error:
        sys.exit(error.message)
    print(meter.measured().to_json(), flush=True)
