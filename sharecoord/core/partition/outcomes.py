"""The next state of a range, from its present state and the settings in force.

These are the right-hand sides of the transition table (KIP-932, specification 1.3, with the
differences of design 5). `now_ms` is monotonic.
"""

from __future__ import annotations

from sharecoord.core import limits
from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcknowledgeType, ArchiveReason, RecordState
from sharecoord.core.window.history import History, after_failure
from sharecoord.core.window.window import RangeState


def settled(
    old: RangeState,
    settings: PartitionSettings,
    now_ms: int,
    said: AcknowledgedRange,
) -> RangeState | None:
    """An ACQUIRED range after an acknowledgement; None = ACKNOWLEDGED."""
    kind, reason = said.type, said.reason
    if kind is AcknowledgeType.ACCEPT:
        return None
    if kind is AcknowledgeType.RELEASE:
        return released(old, settings, now_ms, said.delay_ms, reason)
    if kind is AcknowledgeType.RETURN:
        return returned(old, settings, now_ms)
    if kind is AcknowledgeType.REJECT:
        return archived(failed(old, now_ms, reason), settings, ArchiveReason.REJECTED, reason)
    duration_ms = settings.lock_duration_ms
    return old._replace(deadline_ms=now_ms + duration_ms, granted_ms=duration_ms)


def released(
    old: RangeState,
    settings: PartitionSettings,
    now_ms: int,
    delay_ms: int = 0,
    reason: str | None = None,
) -> RangeState:
    """A failed attempt: due again (later), or worn out (T4, T5, T9, T10, T11)."""
    if old.delivery_count >= settings.delivery_limit:
        old = failed(old, now_ms, reason)
        return archived(old, settings, ArchiveReason.DELIVERY_LIMIT, reason)
    wait_ms = delay_ms or settings.backoff_ms(old.delivery_count, spread=old.lock_token)
    at_ms = now_ms + wait_ms if wait_ms > 0 else 0
    said = clip_reason(reason)
    history = after_failure(old.history, old.member_id, now_ms, said)
    return available(old, old.delivery_count, at_ms, said, history)


def returned(old: RangeState, settings: PartitionSettings, now_ms: int) -> RangeState:
    """Handed back unseen: the delivery is taken back, the hand-out counted (design 5.3)."""
    over = old.hand_outs - limits.HAND_OUTS_FREE_FACTOR * settings.delivery_limit
    wait_ms = 0
    if over > 0:
        shift = min(over - 1, 16)
        wait_ms = min(limits.HAND_OUT_DELAY_MS << shift, limits.HAND_OUT_DELAY_MAX_MS)
    at_ms = now_ms + wait_ms if wait_ms else 0
    return available(old, old.delivery_count - 1, at_ms, old.reason, old.history)


def failed(old: RangeState, now_ms: int, error: str | None) -> RangeState:
    """An ACQUIRED range with its failure in its history."""
    history = after_failure(old.history, old.member_id, now_ms, clip_reason(error))
    return old._replace(history=history)


def available(
    old: RangeState,
    delivery_count: int,
    available_at_ms: int,
    reason: str | None,
    history: History | None,
) -> RangeState:
    """Due again (at `available_at_ms`); keeps its last token, its batch and its keys."""
    return RangeState(
        RecordState.AVAILABLE,
        delivery_count,
        old.hand_outs,
        None,
        old.lock_token,
        0,
        0,
        available_at_ms,
        old.batch_base,
        old.batch_size,
        reason,
        old.keys,
        history,
    )


def due(old: RangeState) -> RangeState:
    """Due at once, whatever its back-off; the count stays."""
    return available(old, old.delivery_count, 0, old.reason, old.history)


def archived(
    old: RangeState, settings: PartitionSettings, cause: ArchiveReason, message: str | None
) -> RangeState:
    """Never delivered again; by way of the dead-letter outbox where that is on (T5, T6, T18)."""
    state = RecordState.ARCHIVING if settings.dead_letter_topic else RecordState.ARCHIVED
    reason = f"{cause}: {clip_reason(message)}" if message else str(cause)
    return RangeState(
        state,
        old.delivery_count,
        old.hand_outs,
        reason=reason,
        batch_base=old.batch_base,
        batch_size=old.batch_size,
        history=old.history,
    )


def forced(old: RangeState, cause: ArchiveReason) -> RangeState:
    """Archived whatever its count, without a dead letter (T12, admin)."""
    return RangeState(RecordState.ARCHIVED, old.delivery_count, old.hand_outs, reason=str(cause))


def archive_cause(value: RangeState) -> ArchiveReason:
    """The cause of an ARCHIVING or ARCHIVED range, without the worker's words."""
    return ArchiveReason((value.reason or "").partition(":")[0])


def archive_message(value: RangeState) -> str | None:
    """The worker's words about an ARCHIVING or ARCHIVED range."""
    return (value.reason or "").partition(": ")[2] or None


def clip_reason(reason: str | None) -> str | None:
    """A worker's words, cut to `REASON_BYTES_MAX` bytes of UTF-8."""
    if reason is None or len(reason) * 4 <= limits.REASON_BYTES_MAX:
        return reason
    return reason.encode(errors="replace")[: limits.REASON_BYTES_MAX].decode(errors="ignore")
