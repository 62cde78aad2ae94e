"""Counts of the consumers of a process: samples, and numbers on the board of the trial."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.job import NO_NUMBER, LoadJob
from sharecoord.bench.engine.samples import NO_LATENCY, Samples
from sharecoord.bench.errors import BenchError

_BUCKET_NS: Final = 5_000_000


class Handled(NamedTuple):
    """Times and number of one handled record."""

    began_ns: int
    busy_ns: int
    latency_ns: int
    number: int


class Tally:
    """Samples of one consumer, and its numbers on the board. Not for two threads at a time."""

    def __init__(self, job: LoadJob, board: Board, consumer: int, samples: Samples) -> None:
        self.consumer = consumer
        self._board = board
        self._samples = samples
        self._latency = job.latency
        self._payload_bytes = job.cell.payload_bytes
        self._count = 0

    def latency_ns(self, began_ns: int, intended_ns: int, number: int) -> int:
        """Time since the record was to be sent; -1 when it is not measured."""
        return began_ns - intended_ns if self._latency and number != NO_NUMBER else NO_LATENCY

    def record(self, handled: Handled) -> None:
        """Counts one record."""
        began_ns, busy_ns, latency_ns, number = handled
        self._samples.add(self.consumer, 1, began_ns, busy_ns, latency_ns)
        if number != NO_NUMBER:
            self._board.seen[number] = 1
        self._more(1)

    def batch(self, records: int, value_bytes: int, end: int = 0) -> None:
        """Counts a batch that was only looked at.

        `value_bytes` are those of all its values; `end` is the offset after its last record, or 0
        where the consumer has several partitions.
        """
        if value_bytes != records * self._payload_bytes:
            raise BenchError(f"{records} records had {value_bytes} bytes: not those of the topic")
        self._samples.add(self.consumer, records, time.monotonic_ns(), 0, NO_LATENCY)
        self._board.set_end(self.consumer, end)
        self._more(records)

    def _more(self, records: int) -> None:
        self._count += records
        self._board.set_count(self.consumer, self._count)


class Bucket:
    """Gathers records that are only looked at, one by one, into a sample every few milliseconds.

    A sample for each record would be what is measured.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._records = self._value_bytes = 0
        self._due_ns = 0

    def add(self, value_bytes: int) -> None:
        """Adds a record; BenchError when records were not as long as they should be."""
        self._records += 1
        self._value_bytes += value_bytes
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _BUCKET_NS
            self.flush()

    def flush(self) -> None:
        """Makes a sample of the records that are left."""
        if self._records:
            records, value_bytes = self._records, self._value_bytes
            self._records = self._value_bytes = 0
            self._tally.batch(records, value_bytes)


def checked(message: Any) -> Any:
    """The message; BenchError when it carries an error instead of a record."""
    if message.error() is not None:
        raise BenchError(f"a consumer was given an error: {message.error()}")
    return message
