"""The settings of a group that the state machine reads, as plain values.

Read at use time, so a change acts on the next acquire, release or timer (KIP-932, 7.3).
"""

from __future__ import annotations

from typing import NamedTuple

from sharecoord.core.limits import CHAIN_RECORDS_MAX
from sharecoord.core.states import Ordering

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class PartitionSettings(NamedTuple):
    """The values in force; durations in milliseconds."""

    lock_duration_ms: int = 30_000
    delivery_limit: int = 5
    record_locks_max: int = 2_000
    window_ranges_max: int = 100_000
    renew_enabled: bool = True
    dead_letter_topic: str = ""
    """"" = what is never delivered again has no dead letter."""
    dead_letter_copies: bool = True
    """Whether dead letters have key, value and headers of their records."""
    dead_letter_auto_create: bool = False
    """Whether their topic may be made."""
    dead_letter_exactly_once: bool = False
    """Whether they go in transactions."""
    outbox_max_bytes: int = 64 << 20
    """Size of the group's waiting dead letters at which it acquires nothing more."""
    checkpoint_max_bytes: int = 64 << 10
    """Largest checkpoint of one record; 0 = members store none."""
    checkpoints_max_bytes: int = 64 << 20
    """Size of all checkpoints of the group together."""
    ordering: Ordering = Ordering.UNORDERED
    chain_max: int = CHAIN_RECORDS_MAX
    """Records of one key that are out at a time, in `key` order."""
    blocked_keys: frozenset[int] = frozenset()
    """Hashes of keys whose records are not handed out, in `key` order."""
    retry_backoff_ms: int = 0
    retry_backoff_max_ms: int = 0
    retry_backoff_multiplier: float = 2.0
    retry_backoff_jitter: float = 0.0
    """Part of a wait that varies: 0.2 = up to 20 % shorter or longer."""
    scheduled_delivery: bool = True
    """Whether new records wait for the moment that their headers name."""
    retry_keep_payload: bool = False
    """Whether the payloads of records that wait are stored."""
    kept_max_bytes: int = 256 << 20
    """Size of all such payloads of the group together; payloads on top are not stored."""

    def backoff_ms(self, failures: int, *, spread: int = 0) -> int:
        """Wait before the next delivery after so many failed ones (design 5.5).

        `spread`, a number that differs from range to range (its lock token), picks the place within
        the jitter, so that the same decision always gives the same wait.
        """
        if not self.retry_backoff_ms:
            return 0
        factor = self.retry_backoff_multiplier ** min(max(failures - 1, 0), 64)
        ceiling = max(self.retry_backoff_max_ms, self.retry_backoff_ms)
        wait_ms = min(self.retry_backoff_ms * factor, ceiling)
        if self.retry_backoff_jitter:
            place = (spread * _GOLDEN & _MASK) / _MASK
            wait_ms = min(wait_ms * (1 + self.retry_backoff_jitter * (2 * place - 1)), ceiling)
        return max(int(wait_ms), 1)
