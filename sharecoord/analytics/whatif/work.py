"""Service times of handlers and arrivals of records, from seeded tables that repeat.

A table holds running sums, so that the time of any number of records, and the number of records
that are done by a time, cost one look and not one step per record.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from sharecoord.errors import InvalidConfigError

TABLE_LENGTH: Final = 8_192
SIGMA_DEFAULT: Final = 1.0
SIGMA_MAX: Final = 3.0

PRODUCER_LINGER_MS: Final = 5.0
"""`linger.ms` of librdkafka and, since 4.0, of Kafka's own producer: how long a producer batch is
filled."""

Histogram = Sequence[tuple[float, float]]
"""Measured service times: (milliseconds, number of records)."""


class ServiceTimes:
    """Service times of a handler, record by record; after the last time comes the first again."""

    def __init__(self, times_ms: Sequence[float]) -> None:
        self._sums = [0.0, *itertools.accumulate(times_ms)]
        self._length = len(times_ms)
        self._round_ms = self._sums[-1]

    def until(self, record: int) -> float:
        """When the record with this number begins, in milliseconds after the first one."""
        rounds, place = divmod(record, self._length)
        return rounds * self._round_ms + self._sums[place]

    def done_by(self, time_ms: float) -> int:
        """Number of records that have ended at a time since the first one began."""
        rounds = int(time_ms // self._round_ms)
        place = bisect_right(self._sums, time_ms - rounds * self._round_ms) - 1
        return rounds * self._length + place


class Stretch(NamedTuple):
    """A member's work on some records, one after the other."""

    times: ServiceTimes
    first: int
    """Place of the first record in the times."""
    records: int
    begins_ms: float
    factor: float
    """How much longer a record takes than its handler."""

    def begin_of(self, record: int) -> float:
        """When the handler of a record begins; for `records`, when the last handler ends."""
        work_ms = self.times.until(self.first + record) - self.times.until(self.first)
        return self.begins_ms + work_ms * self.factor

    @property
    def ends_ms(self) -> float:
        """When the last record is done."""
        return self.begin_of(self.records)

    def done_by(self, now_ms: float) -> int:
        """Number of records that are done at a time."""
        if now_ms <= self.begins_ms:
            return 0
        work_ms = (now_ms - self.begins_ms) / self.factor
        done = self.times.done_by(self.times.until(self.first) + work_ms) - self.first
        return min(max(done, 0), self.records)


def service_times(distribution: str, mean_ms: float, seed: int) -> ServiceTimes:
    """A table of times drawn from a distribution; the same seed gives the same table.

    Raises:
        InvalidConfigError: Not `constant`, `uniform` (0 to twice the mean), `lognormal[:SIGMA]`, or
            a sigma that is not above 0 and at most 3.
    """
    kind, sigma = parse_distribution(distribution)
    if kind == "constant":
        return ServiceTimes([mean_ms])
    generator = random.Random(f"work {seed} {distribution} {mean_ms}")
    if kind == "uniform":
        times = [generator.uniform(0, 2 * mean_ms) for _ in range(TABLE_LENGTH)]
    else:
        # exp(mu + sigma^2 / 2) is the mean of a log-normal distribution.
        mu = math.log(mean_ms) - sigma**2 / 2
        times = [generator.lognormvariate(mu, sigma) for _ in range(TABLE_LENGTH)]
    return ServiceTimes(times)


def measured_times(histogram: Histogram, seed: str) -> ServiceTimes:
    """A table drawn from a histogram with at least one time above 0."""
    generator = random.Random(f"measured {seed}")
    times = [time for time, _ in histogram]
    weights = [weight for _, weight in histogram]
    return ServiceTimes(generator.choices(times, weights=weights, k=TABLE_LENGTH))


def parse_distribution(text: str) -> tuple[str, float]:
    """Kind and sigma of a distribution.

    Raises:
        InvalidConfigError: See `service_times`.
    """
    kind, colon, number = text.partition(":")
    if kind in ("constant", "uniform") and not colon:
        return kind, 0.0
    try:
        sigma = float(number) if colon else SIGMA_DEFAULT
    except ValueError:
        sigma = math.nan
    if kind != "lognormal" or not 0 < sigma <= SIGMA_MAX:
        raise InvalidConfigError(
            f"--work-distribution {text} is none of constant, uniform, lognormal, "
            f"lognormal:SIGMA (above 0, at most {SIGMA_MAX:g})"
        )
    return kind, sigma


Arrivals = Iterator[tuple[float, int]]
"""(milliseconds, records), ascending: appends to one partition."""


def steady_arrivals(rate: float, batch_records: int) -> Arrivals:
    """Producer batches of a partition at a steady rate in records/s.

    A producer does not wait longer than its linger for a batch to fill, so batches are smaller at
    low rates.
    """
    records = min(batch_records, max(1, round(rate * PRODUCER_LINGER_MS / 1000)))
    for number in itertools.count(1):
        yield number * records / rate * 1000, records


def measured_arrivals(per_second: Mapping[int, int], batch_records: int) -> Arrivals:
    """Producer batches with the measured records, evenly within each second.

    Seconds count from the begin; second -1 has the lag at the begin.
    """
    for second in sorted(per_second):
        records = per_second[second]
        if second < 0:
            yield 0.0, records
            continue
        batches = math.ceil(records / batch_records)
        for number in range(batches):
            size = min(batch_records, records - number * batch_records)
            yield (second + (number + 0.5) / batches) * 1000, size
