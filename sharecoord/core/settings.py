"""The settings of a group that the state machine reads, as plain values.

Read at use time, so a change acts on the next acquire, release or timer (KIP-932, 7.3).
"""

from __future__ import annotations

from typing import NamedTuple

from sharecoord.core.states import Ordering


class PartitionSettings(NamedTuple):
    """Effective values; durations in milliseconds."""

    lock_duration_ms: int = 30_000
    delivery_limit: int = 5
    record_locks_max: int = 2_000
    window_ranges_max: int = 100_000
    renew_enabled: bool = True
    dead_letters: bool = False
    ordering: Ordering = Ordering.UNORDERED
    retry_backoff_ms: int = 0
    retry_backoff_max_ms: int = 0
    retry_backoff_multiplier: float = 2.0

    def backoff_ms(self, failures: int) -> int:
        """Wait before the next delivery after so many failed ones (design 5.5)."""
        if not self.retry_backoff_ms:
            return 0
        factor = self.retry_backoff_multiplier ** min(max(failures - 1, 0), 64)
        ceiling = self.retry_backoff_max_ms or self.retry_backoff_ms
        return int(min(self.retry_backoff_ms * factor, max(ceiling, self.retry_backoff_ms)))
