"""Numbers behind the advice of the locks job; docs/locks.md has the rules."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

MARGIN: Final = 1.5
"""A lock is to last this many times as long as nearly all records need."""
MIN_LOCK_MS: Final = 1_000
MAX_LOCK_MS: Final = 12 * 3_600_000
"""Bounds of an advised lock: below, networks and pauses of processes decide; above, nobody waits
for a dead worker's records."""
TROUBLE: Final = 0.001
"""From this part of the records on expiries and near misses are trouble: p99.9 is outside of the
lock."""
TOO_LONG: Final = 4
"""A lock this many times as long as the advised one is called too long."""
OUTLIERS: Final = 10
"""When p99.9 is this many times the median, few records need long: renewing fits better."""
GONE: Final = 0.5
"""When nearly all acknowledgements come within this part of the lock, expired ones are not late:
their holders were gone."""
RECORDS_MIN: Final = 1_000
"""With fewer records there is no p99.9."""
STEPS_MS: Final = (
    (10_000, 1_000),
    (60_000, 5_000),
    (600_000, 30_000),
    (3_600_000, 300_000),
    (MAX_LOCK_MS, 1_800_000),
)
"""(up to, step): advised durations are rounded up to numbers that people set."""


class Advice(StrEnum):
    """Advice on a group's lock duration."""

    TOO_FEW = "too_few"
    """Not enough records to say."""
    FITS = "fits"
    SHORTER = "shorter"
    """A dead worker's records wait for longer than they need."""
    GONE = "gone"
    """Locks expire because holders are gone; a longer lock would only make it later."""
    FEWER_RECORDS = "fewer_records"
    """A record is quick, but too many are taken at a time: a smaller max.poll.records."""
    RENEW = "renew"
    """Few records take long: renew their locks while they are worked on."""
    LONGER = "longer"
