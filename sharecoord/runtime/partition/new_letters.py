"""Dead letters of the records that a decision makes ARCHIVING, without their payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import structlog

from sharecoord.core.changes import DeadLetter, PartitionKey, payload_parts
from sharecoord.core.partition.outcomes import archive_cause, archive_message
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import RecordState
from sharecoord.core.window.window import Edit, RangeState, Window
from sharecoord.ports import Store
from sharecoord.runtime.kernel.clock import RuntimeClock

log = structlog.get_logger(__name__)


def letters_of(
    edits: Iterable[Edit],
    window: Window,
    clock: RuntimeClock,
    *,
    settings: PartitionSettings,
    state_epoch: int,
    checkpoint_of: Callable[[int], bytes | None],
) -> Iterator[DeadLetter]:
    """The letters of edits that are about to be applied, without payloads."""
    for first, last, value in edits:
        if value is None or value.state is not RecordState.ARCHIVING:
            continue
        common = _in_common(value, clock, settings, state_epoch)
        for start, end, old in window.ranges.within(first, last):
            for offset in range(start, end + 1):
                yield replace(
                    common,
                    offset=offset,
                    member_id=old.member_id,
                    checkpoint=checkpoint_of(offset),
                )


def _in_common(
    value: RangeState,
    clock: RuntimeClock,
    settings: PartitionSettings,
    state_epoch: int,
) -> DeadLetter:
    """The values that the letters of one range have in common."""
    history = value.history
    return DeadLetter(
        offset=-1,
        reason=str(archive_cause(value)),
        delivery_count=value.delivery_count,
        message=archive_message(value) or (history.error if history else None),
        key=None,
        value=None,
        headers=(),
        timestamp_ms=-1,
        members=history.members if history else (),
        first_failed_at_ms=history.first_failed_ms + clock.store_offset_ms if history else 0,
        failed_at_ms=clock.store_now_ms(),
        state_epoch=state_epoch,
        topic=settings.dead_letter_topic,
        exactly_once=settings.dead_letter_exactly_once,
    )


def storable(store: Store, key: PartitionKey, letter: DeadLetter) -> DeadLetter:
    """A letter as the store takes it: without a payload that is too large, as if that were gone."""
    if store.fits(payload_parts(letter)):
        return letter
    log.warning(
        "the store takes no row of this size: until its topic has it, the payload of a dead letter "
        "is in memory alone; raise max_allowed_packet at the server, then restart the coordinator",
        partition=key,
        offset=letter.offset,
    )
    return replace(letter, key=None, value=None, headers=(), payload_known=False)
