"""Settings of the poison job; docs/poison.md has the definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharecoord.analytics.errors import AnalyticsError

POISON_DELIVERIES: Final = 3
"""A record that failed this many times is poison: twice may be bad luck."""
TOP_MAX: Final = 10_000
REASONS_MAX: Final = 100
"""Most reasons that are listed per group, the most frequent first: some applications put an id into
each."""
REASON_LENGTH_MAX: Final = 200
NAMED_MAX: Final = 5
"""Most poison keys that are named per group."""


@dataclass(frozen=True, slots=True)
class PoisonSettings:
    """Length of the lists of the poison job."""

    top: int = 20
    """Most records, and most keys, that are listed per group."""

    def __post_init__(self) -> None:
        if not 1 <= self.top <= TOP_MAX:
            raise AnalyticsError(f"--top {self.top}: it must be from 1 to {TOP_MAX}")
