"""What a group's settings mean to its share-partitions."""

from __future__ import annotations

from collections.abc import Collection

from sharecoord.config.group import GroupConfig
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import Ordering
from sharecoord.runtime.sessions import Session

WINDOW_MS = 200
"""A window that is not set by hand holds what the members work off in so long (design 5.4)."""

WINDOW_PER_MEMBER = 4
"""... and at least so many records per member with demand."""

WINDOW_MAX = 100_000


def settings_of(config: GroupConfig) -> PartitionSettings:
    """The settings that the state machine reads."""
    return PartitionSettings(
        lock_duration_ms=config.lock_duration_ms,
        delivery_limit=config.delivery_count_limit,
        record_locks_max=config.max_record_locks,
        window_ranges_max=config.max_window_ranges,
        renew_enabled=config.renew_acknowledge_enable,
        ordering=Ordering(config.ordering),
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        retry_backoff_multiplier=config.retry_backoff_multiplier,
        retry_backoff_jitter=config.retry_backoff_jitter,
    )


def window_records(config: GroupConfig, sessions: Collection[Session]) -> int:
    """How many records a window may hold: what is set by hand, or what the members' pace needs."""
    if "share.partition.max.record.locks" in config.sources:
        return config.max_record_locks
    pace = sum(session.pace.records_per_ms for session in sessions)
    return max(
        config.max_record_locks,
        min(WINDOW_MAX, int(pace * WINDOW_MS)),
        min(WINDOW_MAX, WINDOW_PER_MEMBER * len(sessions)),
    )
