"""What the poison job can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharecoord.analytics.errors import AnalyticsError

POISON_DELIVERIES: Final = 3
"""A record that failed so often is poison: twice may be bad luck."""
TOP_MAX: Final = 10_000
REASONS_MAX: Final = 100
"""Reasons of a group that are listed, the most frequent first: some put an id into each."""
REASON_LENGTH_MAX: Final = 200
NAMED_MAX: Final = 5
"""Poison keys that are named in the line of a group."""


@dataclass(frozen=True, slots=True)
class PoisonSettings:
    """Settings of the definitions in docs/poison.md.

    Attributes:
        top: How many records and how many keys are listed per group.
    """

    top: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.top <= TOP_MAX:
            raise AnalyticsError(f"--top {self.top}: it must be from 1 to {TOP_MAX}")
