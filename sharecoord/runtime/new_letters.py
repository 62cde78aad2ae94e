"""The dead letters of what a decision makes ARCHIVING, without their payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from sharecoord.core.changes import DeadLetter
from sharecoord.core.outcomes import archive_cause, archive_message
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import RecordState
from sharecoord.core.window import Edit, RangeState, Window
from sharecoord.runtime.clock import RuntimeClock


def letters_of(
    edits: Iterable[Edit],
    window: Window,
    clock: RuntimeClock,
    now_ms: int,
    *,
    settings: PartitionSettings,
    state_epoch: int,
    checkpoint_of: Callable[[int], bytes | None],
) -> Iterator[DeadLetter]:
    """What becomes ARCHIVING by edits that are about to be applied, without payloads."""
    for first, last, value in edits:
        if value is None or value.state is not RecordState.ARCHIVING:
            continue
        common = _in_common(value, clock, now_ms, settings, state_epoch)
        for start, end, old in window.ranges.overlapping(first, last):
            for offset in range(max(start, first), min(end, last) + 1):
                yield replace(
                    common,
                    offset=offset,
                    member_id=old.member_id,
                    checkpoint=checkpoint_of(offset),
                )


def _in_common(
    value: RangeState,
    clock: RuntimeClock,
    now_ms: int,
    settings: PartitionSettings,
    state_epoch: int,
) -> DeadLetter:
    """What the letters of a range that becomes ARCHIVING have in common."""
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
        failed_at_ms=clock.to_store(now_ms),
        state_epoch=state_epoch,
        topic=settings.dead_letter_topic,
        exactly_once=settings.dead_letter_exactly_once,
    )
