"""Events of whole groups: members that come and go, settings, resets, deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from sharecoord.core.changes import PartitionKey, PartitionRow
from sharecoord.core.states import RecordState
from sharecoord.errors import StoreOutcomeUnknownError
from sharecoord.eventlog.ranges import STATE_NAMES, RangeChange
from sharecoord.eventlog.schema import (
    EventBlock,
    EventKind,
    EventRow,
    EventValue,
    GroupEvent,
    RangeEvent,
)
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.event_tap import range_values, store_us

GROUP_COLUMNS = ("time", "event", "topic", "partition", "member_id", "client_id", "reason")
FORCED_COLUMNS = (
    "event",
    "state",
    "first_offset",
    "last_offset",
    "records",
    "delivery_count",
    "member_id",
    "reason",
)
BY_ADMIN = frozenset(
    {RangeEvent.RELEASED_BY_ADMIN, RangeEvent.ARCHIVED_BY_ADMIN, RangeEvent.FINISHED_BY_ADMIN}
)
RESET_COLUMNS = (
    "topic",
    "topic_id",
    "partition",
    "change_sequence",
    "first_offset",
    "last_offset",
)


def tell(
    context: Context,
    group_id: str,
    event: GroupEvent,
    *,
    session: Session | None = None,
    member_id: str | None = None,
    place: tuple[str | None, int | None] = (None, None),
    reason: str | None = None,
) -> None:
    """Writes one row of kind `group`.

    Args:
        context: The coordinator's.
        group_id: The group.
        event: What happened.
        session: The member's. A member whose stream is elsewhere is told of there.
        member_id: The member, where there may be no session.
        place: Topic and partition.
        reason: The cause, or the new values.
    """
    if context.events is None or (session is not None and session.is_lent):
        return
    member = (session.member_id, session.client_id) if session else (member_id, None)
    row = (store_us(context), event.value, *place, *member, reason)
    common = {"kind": EventKind.GROUP.value, "group_id": group_id}
    context.events.put(EventBlock(common, GROUP_COLUMNS, [row]))


def tell_reset(context: Context, group_id: str, rows: Mapping[PartitionKey, PartitionRow]) -> None:
    """Writes that start offsets were set, by the rows that the store has now."""
    if context.events is None:
        return
    found = [
        (*key.log_id, head.change_sequence, head.start_offset, head.start_offset)
        for key, row in rows.items()
        if (head := row.head) is not None
    ]
    common: dict[str, EventValue] = {
        "kind": EventKind.RANGE.value,
        "event": RangeEvent.RESET.value,
        "group_id": group_id,
        "time": store_us(context),
        "records": 0,
        "delivery_count": 0,
    }
    context.events.put(EventBlock(common, RESET_COLUMNS, found))


def tell_forced(
    context: Context,
    key: PartitionKey,
    changes: Sequence[RangeChange],
    change_sequence: int,
    by: str,
) -> None:
    """Writes what `by` did to records, under the change sequence that the store has now."""
    if context.events is None:
        return
    rows: list[EventRow] = []
    for change in changes:
        new, old = change.new, change.old
        # What is settled before it is read has no row: it is finished, whatever the event says.
        state = RecordState.ACKNOWLEDGED if new is None else new.state
        rows.append(
            (
                change.event.value,
                STATE_NAMES[state],
                change.first,
                change.last,
                change.last - change.first + 1,
                0 if (known := new or old) is None else known.delivery_count,
                None if old is None else old.member_id,
                by if change.event in BY_ADMIN else None,
            )
        )
    common = range_values(key)
    common |= {"change_sequence": change_sequence, "time": store_us(context)}
    context.events.put(EventBlock(common, FORCED_COLUMNS, rows))


@contextmanager
def told_when_done(
    context: Context, group_id: str, topics: Sequence[str] = ()
) -> Generator[None, None, None]:
    """Writes that a group, or what it knew of topics, was deleted in the block (or may have been).

    Change sequences begin anew when it comes back.
    """

    def say(reason: str | None) -> None:
        for topic in topics or (None,):
            tell(context, group_id, GroupEvent.DELETED, place=(topic, None), reason=reason)

    try:
        yield
    except (StoreOutcomeUnknownError, asyncio.CancelledError):
        # Who is cancelled, because its caller went away, has asked the store already.
        say("outcome unknown")
        raise
    say(None)
