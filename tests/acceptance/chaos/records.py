"""What the fault tests' workers write down beside the demo's ledger: when their locks end.

Ledgers and judges know one log. A record of another partition than 0 has a number in them that
tells both, its *place* (`place_of`).

A line is `<time> <member> <offset> <delivery count> <deadline>`; a line with offset -1 says that
the worker begins to leave, which ends its locks. Times are seconds of the machine's monotonic
clock, which all processes share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LEAVING = -1
PARTITION_SPAN = 10**9
"""More records than a test makes in one partition."""


def place_of(partition: int, offset: int) -> int:
    """The number of a record in ledgers; in partition 0 its offset."""
    return partition * PARTITION_SPAN + offset


def partition_of(place: int) -> int:
    """The partition of a record in ledgers."""
    return place // PARTITION_SPAN


class LockEntry(NamedTuple):
    """One delivery as its worker saw it.

    Attributes:
        time_s: When the worker took it in hand.
        member: The worker.
        offset: The record's place, or LEAVING.
        delivery_count: As delivered.
        deadline_s: When the lock ends by the worker's own clock, counted from receipt.
    """

    time_s: float
    member: str
    offset: int
    delivery_count: int
    deadline_s: float

    @staticmethod
    def parse(line: str) -> LockEntry:
        """Reads a line; ValueError when it is none."""
        time_s, member, offset, count, deadline_s = line.split(" ")
        return LockEntry(float(time_s), member, int(offset), int(count), float(deadline_s))


class LockWriter:
    """Appends to a worker's own file; a poll is one unbuffered write and survives kill -9.

    A worker that is stopped has written all of a poll, or nothing of it.
    """

    def __init__(self, path: Path, member: str) -> None:
        self._member = member
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, deliveries: Iterable[tuple[int, int, float]]) -> None:
        """The deliveries of a poll: offset, count, deadline."""
        head = f"{time.monotonic():.6f} {self._member}"
        lines = [f"{head} {offset} {count} {end_s:.6f}\n" for offset, count, end_s in deliveries]
        os.write(self._file, "".join(lines).encode())

    def leaving(self) -> None:
        """The locks of this worker mean nothing from here on."""
        self.write([(LEAVING, 0, 0.0)])


def read_locks(path: Path) -> list[LockEntry]:
    """The whole lines of one file; none when it is not there yet."""
    if not path.is_file():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    return [LockEntry.parse(line) for line in whole.decode().splitlines()]
