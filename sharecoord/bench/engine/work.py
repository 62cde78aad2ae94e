"""Work times of handlers and keys of records, drawn from a seed so that a run can be repeated."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

TABLE_LENGTH: Final = 8_192
"""Draws of one table; it is gone through again and again, because drawing takes time."""
MAX_SIGMA: Final = 3.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of work times; `sigma` is that of the logarithm, 0 where there is none."""

    kind: str
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Distribution:
        """Reads `constant`, `uniform` or `lognormal:SIGMA`.

        Raises:
            ValueError: Something else, or a sigma that is not above 0 and at most 3.
        """
        kind, colon, number = text.partition(":")
        if kind in ("constant", "uniform") and not colon:
            return cls(kind)
        if kind != "lognormal" or not 0 < float(number) <= MAX_SIGMA:
            raise ValueError(text)
        return cls(kind, float(number))

    def __str__(self) -> str:
        return f"lognormal:{self.sigma:g}" if self.kind == "lognormal" else self.kind

    def draw(self, mean: float, generator: random.Random) -> float:
        """Draws one value."""
        if self.kind == "constant":
            return mean
        if self.kind == "uniform":
            return generator.uniform(0, 2 * mean)
        # exp(mu + sigma^2 / 2) is the mean of a log-normal distribution.
        return generator.lognormvariate(math.log(mean) - self.sigma**2 / 2, self.sigma)


def work_times_s(
    distribution: Distribution, mean_ms: float, seed: int, consumer: int
) -> Iterator[float]:
    """Endless work times in seconds, the same for the same seed; each consumer has its own.

    The consumers of a process share one table and start at their own place in it: a table for
    each of 10,000 took 16 s to draw and 2.6 GB. A mean of 0 gives zeros.
    """
    if mean_ms <= 0 or distribution.kind == "constant":
        return itertools.repeat(max(mean_ms, 0.0) / 1000)
    table = _table_s(distribution, mean_ms, seed)
    begin = random.Random(f"place {seed} {consumer}").randrange(TABLE_LENGTH)
    return (table[place % TABLE_LENGTH] for place in itertools.count(begin))


@functools.lru_cache(maxsize=1)
def _table_s(distribution: Distribution, mean_ms: float, seed: int) -> tuple[float, ...]:
    generator = random.Random(f"work {seed}")
    return tuple(distribution.draw(mean_ms / 1000, generator) for _ in range(TABLE_LENGTH))


def zipf_keys(exponent: float, keys: int, seed: int) -> Iterator[int]:
    """Endless numbers of keys from 0 on; key k is drawn with a weight of 1 / (k + 1)^exponent."""
    generator = random.Random(f"keys {seed}")
    weights = [(rank + 1) ** -exponent for rank in range(keys)]
    return itertools.cycle(generator.choices(range(keys), weights=weights, k=8 * TABLE_LENGTH))
