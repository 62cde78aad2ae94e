"""From a group's settings to those of its share-partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from sharecoord.config.group import (
    GUARANTEES,
    GroupConfig,
    IsolationLevel,
    UnusedSetting,
    resolve_stored,
)
from sharecoord.core.changes import BlockedKey, GroupRow
from sharecoord.core.dispatch.pace import grown_window
from sharecoord.core.order.blocked_keys import hash_of
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import Ordering
from sharecoord.errors import InvalidRequestError

log = structlog.get_logger(__name__)


def settings_of(config: GroupConfig, blocked_keys: Iterable[BlockedKey] = ()) -> PartitionSettings:
    """The settings that the state machine reads; only order by key knows keys to block."""
    ordering = Ordering(config.ordering)
    hashes = (hash_of(blocked.key) for blocked in blocked_keys if ordering is Ordering.KEY)
    return PartitionSettings(
        lock_duration_ms=config.lock_duration_ms,
        delivery_limit=config.delivery_count_limit,
        record_locks_max=config.max_record_locks,
        window_ranges_max=config.max_window_ranges,
        renew_enabled=config.renew_acknowledge_enable,
        dead_letter_topic=config.dlq_topic_name,
        dead_letter_copies=config.dlq_copy_record_enable,
        dead_letter_auto_create=config.dlq_auto_create,
        dead_letter_exactly_once=config.dlq_exactly_once,
        outbox_max_bytes=config.dlq_outbox_max_bytes,
        checkpoint_max_bytes=config.checkpoint_max_bytes,
        checkpoints_max_bytes=config.checkpoints_max_bytes,
        ordering=ordering,
        blocked_keys=frozenset(hashes),
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        retry_backoff_multiplier=config.retry_backoff_multiplier,
        retry_backoff_jitter=config.retry_backoff_jitter,
        scheduled_delivery=config.scheduled_delivery,
        retry_keep_payload=config.retry_keep_payload,
        kept_max_bytes=config.retry_kept_max_bytes,
    )


def config_of(
    row: GroupRow, defaults: Mapping[str, str], unused_before: Iterable[UnusedSetting]
) -> tuple[GroupConfig, tuple[UnusedSetting, ...]]:
    """The settings in force of a stored group, and the unused ones, which are logged once."""
    config, unused = resolve_stored(row.config, defaults)
    known = set(unused_before)
    for each in unused:
        if each not in known:
            log.warning(
                "a group's setting is not in force",
                group=row.group_id,
                setting=each.name,
                value=each.value,
                source=each.source.value,
                why=each.why,
                served=each.name not in GUARANTEES,
            )
    return config, unused


def reads_committed(config: GroupConfig) -> bool:
    """Whether a group reads committed records only: its logs end at their last stable offset."""
    return config.isolation_level is IsolationLevel.READ_COMMITTED


def why_unserved(unused: Iterable[UnusedSetting]) -> str:
    """Why a group is handed out nothing until its settings are mended; "" = it is served."""
    return next((each.why for each in unused if each.name in GUARANTEES), "")


def check_subscription(config: GroupConfig, topics: Iterable[str]) -> None:
    """Raises InvalidRequestError for the group's own dead letters, which would come back."""
    if config.dlq_topic_name and config.dlq_topic_name in topics:
        raise InvalidRequestError(
            f"topic {config.dlq_topic_name!r} takes this group's own dead letters "
            "(errors.deadletterqueue.topic.name); read it with another group"
        )


def window_records(config: GroupConfig, holds_total: int, members: int) -> int:
    """How many records a window may hold: as set by hand, or as the members' pace needs.

    `holds_total` is the number of records that the members together may hold.
    """
    if "share.partition.max.record.locks" in config.sources:
        return config.max_record_locks
    return grown_window(config.max_record_locks, holds_total, members)
