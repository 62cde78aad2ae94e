"""A coordinator is killed under load and started again."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Final

from sharecoord.bench.coordinator import MeasuredCoordinator
from sharecoord.bench.errors import BenchError
from sharecoord.bench.standard.taker import POLL_S, Pace, Taker
from sharecoord.devenv.processes import port_open

FULL_SPEED_S: Final = 1.0
HALF_SPEED_S: Final = 1.5
DEADLINE_S: Final = 60.0
VALUE_BYTES: Final = 1000
_LOOK_S: Final = 0.002
_FIRST_RECORDS: Final = 50_000
"""Records that are taken before the speed is measured: a member is slow at first."""


def measure_restart(
    url: str, *, bootstrap_servers: str, topic: str, records: int, directory: Path
) -> dict[str, float]:
    """Ends a coordinator under load by kill -9 and starts it again.

    Raises:
        SharecoordError: It does not start, nothing came again, or the records were too few.
    """
    settings = {"store.url": url}
    group = f"restart-{uuid.uuid4().hex[:8]}"
    with MeasuredCoordinator(bootstrap_servers, directory, settings=settings) as coordinator:
        taker = Taker(coordinator.address, group, topic)
        with taker.running():
            half_per_s = _bring_to_half(taker)
            coordinator.kill()
            _until_silent(taker)
            if taker.records >= records:
                raise BenchError(f"{records:,} records were worked off before the restart")
            before, polls = taker.records, len(taker.arrivals_s)
            launched_s = time.monotonic()
            coordinator.launch()
            opened_s = _until_open(int(coordinator.address.rpartition(":")[2]))
            taker.wait_for(before + 1, DEADLINE_S)
    return {
        "load_per_s": half_per_s,
        "port_open_s": opened_s - launched_s,
        # The port may have opened a moment before it was seen.
        "first_delivery_s": max(0.0, taker.arrivals_s[polls] - opened_s),
    }


def _bring_to_half(taker: Taker) -> float:
    """Lets the member take as fast as it can, then half as fast; returns the half rate."""
    taker.wait_for(_FIRST_RECORDS, DEADLINE_S)
    before, began_s = taker.records, time.monotonic()
    time.sleep(FULL_SPEED_S)
    now_s = time.monotonic()
    half_per_s = (taker.records - before) / (now_s - began_s) / 2
    taker.check()
    if not half_per_s:
        raise BenchError("the member was given nothing for a second")
    taker.pace = Pace(half_per_s, now_s)
    time.sleep(HALF_SPEED_S)
    return half_per_s


def _until_silent(taker: Taker) -> None:
    """Waits until the member has used up its buffer."""
    while time.monotonic() - taker.arrivals_s[-1] < 4 * POLL_S:
        taker.check()
        time.sleep(_LOOK_S)


def _until_open(port: int) -> float:
    """Waits until a port accepts connections; returns that moment on the monotonic clock."""
    end_s = time.monotonic() + DEADLINE_S
    while not port_open(port):
        if time.monotonic() > end_s:
            raise BenchError(f"port {port} did not open within {DEADLINE_S:g} s")
        time.sleep(_LOOK_S)
    return time.monotonic()
