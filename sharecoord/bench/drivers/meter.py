"""The stopwatch of a driver: when the clock runs, and what is read when it starts and ends.

The clock runs from the first tenth of the topic to the last: a share group's first record takes
seconds, every consumer speeds up over its first batches, and one that has fetched ahead would
finish a topic faster than it can go on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from sharecoord.bench.drivers.options import DriverOptions
from sharecoord.bench.errors import BenchError
from sharecoord.bench.procfs import cpu_s

CLIENT: Final = "client"
_START_SHARE: Final = 0.1
_END_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Measured:
    """What a driver prints.

    Attributes:
        first_record_s: From before the consumer was made to its first record.
        records: Records handed out while the clock ran.
        value_bytes: Bytes of their values.
        seconds: How long the clock ran.
        cpu_s: CPU seconds meanwhile by process; `client` is the driver itself.
        repeated: Records that were handed out more than once in the whole run.
    """

    first_record_s: float
    records: int
    value_bytes: int
    seconds: float
    cpu_s: Mapping[str, float]
    repeated: int

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Measured:
        """Reads `to_json`; ValueError or TypeError when it is something else."""
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class _Reading:
    at_s: float
    records: int
    value_bytes: int
    cpu_s: Mapping[str, float]


class Meter:
    """Counts the records of one run and reads clock and CPU time at the right moments."""

    def __init__(
        self,
        options: DriverOptions,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu: Callable[[int], float] = cpu_s,
    ) -> None:
        """Begins the run: make the consumer after this."""
        self._clock = clock
        self._cpu = cpu
        self._pids = {**options.watched, CLIENT: os.getpid()}
        self._total = options.records
        self._deadline_s = options.deadline_s
        self._start_at = round(options.records * _START_SHARE)
        self._end_at = round(options.records * _END_SHARE)
        self._records = self._value_bytes = 0
        self._last_offset = -1
        self._first_record_s = 0.0
        self._start: _Reading | None = None
        self._end: _Reading | None = None
        self._began_s = clock()

    def add(self, records: int, value_bytes: int, last_offset: int) -> None:
        """Counts one batch.

        Args:
            records: How many records, at least one.
            value_bytes: Bytes of their values together.
            last_offset: Offset of the last one.
        """
        if self._records == 0:
            self._first_record_s = self._clock() - self._began_s
        self._records += records
        self._value_bytes += value_bytes
        self._last_offset = max(self._last_offset, last_offset)
        if self._start is None and self._records >= self._start_at:
            self._start = self._read()
        elif self._end is None and self._records >= self._end_at:
            self._end = self._read()

    @property
    def running(self) -> bool:
        """Whether there is more to take.

        Raises:
            BenchError: The run's time is over.
        """
        if self._end is not None:
            return False
        if self._clock() - self._began_s > self._deadline_s:
            raise BenchError(
                f"{self._records} of {self._total} records arrived within {self._deadline_s:.0f} s"
            )
        return True

    def measured(self) -> Measured:
        """The figures of a run that is over."""
        assert self._start is not None, "the clock was started"
        assert self._end is not None, "the clock was stopped"
        start, end = self._start, self._end
        return Measured(
            first_record_s=self._first_record_s,
            records=end.records - start.records,
            value_bytes=end.value_bytes - start.value_bytes,
            seconds=end.at_s - start.at_s,
            cpu_s={name: end.cpu_s[name] - start.cpu_s[name] for name in self._pids},
            # A single consumer is given a partition in order: more records than offsets means
            # that some came again.
            repeated=max(0, self._records - (self._last_offset + 1)),
        )

    def _read(self) -> _Reading:
        at_s = self._clock()
        cpu = {name: self._cpu(pid) for name, pid in self._pids.items()}
        return _Reading(at_s, self._records, self._value_bytes, cpu)
