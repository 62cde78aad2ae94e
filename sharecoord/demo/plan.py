"""Amounts and times of the demo: how many records of which kind, and how long things take."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from sharecoord.errors import InvalidConfigError

RECORDS_MAX: Final = 3_000
"""The mock cluster surely keeps so many, and they are worked off in half a minute."""

RECORDS_MIN: Final = 100
WORKERS_MAX: Final = 100
WORKERS_MIN: Final = 2
RECORDS_PER_WORKER_MIN: Final = 40
"""With fewer, some workers would hold nothing when one of them, or the coordinator, is killed."""

RECORDS_DEFAULT: Final = 3_000
WORKERS_DEFAULT: Final = 20

DELIVERY_LIMIT: Final = 5
LOCK_DURATION_MS: Final = 5_000
SESSION_TIMEOUT_MS: Final = 3_000
"""How soon the records of a killed worker are due again; a restart takes less."""

RETRY_DELAY_MS: Final = 200
POSTPONE_MS: Final = 6_000
WORK_MS_MIN: Final = 20
WORK_MS_MAX: Final = 60
POLL_RECORDS_MAX: Final = 8
FLAKY_PART, POISON_PART, BROKEN_PART = 0.06, 0.02, 0.02


class Kind(StrEnum):
    """How a record behaves in the hands of a worker."""

    GOOD = "good"
    FLAKY = "flaky"
    POISON = "poison"
    BROKEN = "broken"
    POSTPONED = "postponed"


class Order(NamedTuple):
    """The content of a record; a FLAKY one fails at its first `failures` deliveries."""

    number: int
    kind: Kind
    failures: int

    @property
    def work_ms(self) -> int:
        """Time that a worker takes for the record."""
        return WORK_MS_MIN + self.number * 7919 % (WORK_MS_MAX - WORK_MS_MIN + 1)

    def encode(self) -> bytes:
        """The value of the record."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @staticmethod
    def decode(value: bytes) -> Order:
        """Reads `encode`'s output."""
        fields = json.loads(value)
        return Order(fields["number"], Kind(fields["kind"]), fields["failures"])


@dataclass(frozen=True, slots=True)
class Plan:
    """Checked options: numbers of records and of workers (the last one is killed), and the seed.

    The seed decides which record behaves how.
    """

    records: int
    workers: int
    seed: int

    def __post_init__(self) -> None:
        """InvalidConfigError when a value is out of bounds; names the option and the bounds."""
        _check("--records", self.records, RECORDS_MIN, RECORDS_MAX)
        _check("--workers", self.workers, WORKERS_MIN, WORKERS_MAX)
        if self.records < RECORDS_PER_WORKER_MIN * self.workers:
            raise InvalidConfigError(
                f"--records: {self.records} are too few for {self.workers} workers; give at least "
                f"{RECORDS_PER_WORKER_MIN * self.workers}, or fewer --workers."
            )

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the workers."""
        digits = len(str(self.workers))
        return tuple(f"w{number:0{digits}d}" for number in range(1, self.workers + 1))

    @property
    def victim(self) -> str:
        """The worker that is killed."""
        return self.members[-1]

    @property
    def orders_per_s(self) -> float:
        """Speed of all workers together."""
        return self.workers * 2000 / (WORK_MS_MIN + WORK_MS_MAX)

    def orders(self) -> list[Order]:
        """The records, the same for the same seed; at least one of each kind."""
        chooser = random.Random(self.seed)
        others = [Kind.FLAKY, Kind.POISON, Kind.BROKEN]
        parts = [FLAKY_PART, POISON_PART, BROKEN_PART]
        kinds = [
            kind
            for kind, part in zip(others, parts, strict=True)
            for _ in range(max(1, round(part * self.records)))
        ]
        kinds += [Kind.GOOD] * (self.records - 1 - len(kinds))
        chooser.shuffle(kinds)
        return [
            Order(number, kind, chooser.choice((1, 1, 2)) if kind is Kind.FLAKY else 0)
            for number, kind in enumerate([Kind.POSTPONED, *kinds])
        ]


def _check(option: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidConfigError(f"{option}: {value} must be between {lowest} and {highest}.")
