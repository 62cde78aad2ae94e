"""A limit of records per second: a bucket of tokens that fills with time."""

from __future__ import annotations

BURST_MS = 100
"""The records of this time may go out at once, so that turns are few."""


class RateLimit:
    """The bucket of one share-partition. Times are milliseconds of a clock that never goes back."""

    def __init__(self, rate_per_s: int, now_ms: int) -> None:
        self.rate_per_s = rate_per_s
        self._tokens_max = max(1.0, rate_per_s * BURST_MS / 1000)
        self._tokens = self._tokens_max
        self._at_ms = now_ms

    def available(self, now_ms: int) -> int:
        """How many records may go out now."""
        filled = self._tokens + (now_ms - self._at_ms) * self.rate_per_s / 1000
        self._tokens, self._at_ms = min(filled, self._tokens_max), now_ms
        return max(0, int(self._tokens))

    def take(self, records: int) -> None:
        """Takes outgoing records out of the bucket; more than were available are owed."""
        self._tokens -= records

    def next_ms(self) -> int:
        """When the bucket has a token again, or half a burst where that is more."""
        missing = min(self._tokens_max, max(1.0, self.rate_per_s * BURST_MS / 2000)) - self._tokens
        return self._at_ms + max(0, -int(-missing * 1000 // self.rate_per_s))
