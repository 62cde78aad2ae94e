"""Rows of a share-partition for the event log; they leave when their changes are durable.

The hot path has a row per changed range, never per record, and nothing at all without a sink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import TypeVar

from sharecoord.core.changes import PartitionKey
from sharecoord.core.partition.decisions import Acknowledgements, Decision
from sharecoord.core.states import RecordState
from sharecoord.core.window.window import RangeState
from sharecoord.errors import SharecoordError
from sharecoord.eventlog.ranges import STATE_NAMES, RangeChange, changes_of
from sharecoord.eventlog.schema import (
    KEY_BYTES_MAX,
    EventBlock,
    EventKind,
    EventRow,
    EventValue,
    RangeEvent,
)
from sharecoord.ports import EventSink
from sharecoord.runtime.kernel.committer import CallbackEffect
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.claimed import ClaimedPartition

T = TypeVar("T")

RANGE_COLUMNS = (
    "time",
    "change_sequence",
    "event",
    "state",
    "first_offset",
    "last_offset",
    "records",
    "delivery_count",
    "member_id",
    "client_id",
    "available_ms",
    "age_ms",
    "held_ms",
    "work_us",
    "lock_ms",
    "lock_left_ms",
    "delay_ms",
    "reason",
    "key",
)

TOKENS_MAX = 10_000
"""Locks of which a share-partition remembers the begin, and as many of which it remembers the end;
rows of older locks do not say how long. Five times the default window."""

ARRIVALS_MAX = 10_000
"""Chunks of records that were read ahead of which the time of arrival is remembered."""

_ENDS = frozenset(
    {
        RangeEvent.ACCEPTED,
        RangeEvent.RELEASED,
        RangeEvent.REJECTED,
        RangeEvent.RETURNED,
        RangeEvent.EXPIRED,
        RangeEvent.DEPARTED,
    }
)
_FAILURES = frozenset(
    {RangeEvent.RELEASED, RangeEvent.REJECTED, RangeEvent.EXPIRED, RangeEvent.DEPARTED}
)
_BY_ITSELF = frozenset({RangeEvent.EXPIRED, RangeEvent.DEPARTED})


class EventTap:
    """The event rows of one share-partition."""

    def __init__(
        self, part: ClaimedPartition, sink: EventSink, sessions: Mapping[str, Session]
    ) -> None:
        self._part = part
        self._sink = sink
        self._clock = part.clock
        self._sessions = sessions
        self._common = range_values(part.key)
        self._pending: list[EventRow] | None = None
        """Rows that leave with the next commit."""
        self._began: dict[int, tuple[int, str]] = {}
        """Time of the begin and client id of the holder, by lock token."""
        self._ended_ms: dict[int, int] = {}
        """Time at which a range of the lock was last given free, by lock token."""
        self._arrived: deque[tuple[int, int]] = deque(maxlen=ARRIVALS_MAX)
        """(last offset, time) of chunks that were read ahead."""

    def arrived(self, last_offset: int) -> None:
        """Records up to `last_offset` could be handed out from now on."""
        self._arrived.append((last_offset, self._clock.now_ms()))

    def begin(self) -> None:
        """Forgets everything: changes that were not durable did not happen."""
        self._pending = None
        self._arrived.clear()
        self._began.clear()
        self._ended_ms.clear()

    def taken(self) -> None:
        """Later rows wait for the next commit: one begins now."""
        self._pending = None

    def note(self, decision: Decision, ended_by: RangeEvent, work_us: float) -> None:
        """Makes rows of a decision that is about to be carried out.

        `ended_by` is as in `changes_of`, `work_us` the application's time per record (0 = unknown).
        """
        partition = self._part.partition
        assert partition is not None, "it decided"
        changes = changes_of(partition.window, decision, ended_by)
        if not changes:
            return
        rows = self._pending
        if rows is None:
            rows = self._pending = []
            effect = CallbackEffect(partial(self._committed, rows))
            # The caller, which carries the decision out, says how soon it must be stored.
            self._part.context.committer.add(self._part, effect, may_wait=True)
        now_ms = self._clock.now_ms()
        time_us = self._clock.to_store(now_ms) * 1000
        sequence = partition.change_sequence + 1
        for change in changes:
            rows.append((time_us, sequence, *self._row(change, now_ms, work_us)))

    def _committed(self, rows: list[EventRow], error: SharecoordError | None) -> None:
        # After a commit that failed, or may have, the change sequence shows that rows are missing.
        if error is None:
            self._sink.put(EventBlock(self._common, RANGE_COLUMNS, rows))

    # -- one row --------------------------------------------------------------------------------

    def _row(self, change: RangeChange, now_ms: int, work_us: float) -> EventRow:
        event, old, new = change.event, change.old, change.new
        if event is RangeEvent.ACQUIRED:
            assert new is not None, "an acquired range has a state"
            return self._acquired(change, new, now_ms)
        if event is RangeEvent.RENEWED:
            assert old is not None, "what is renewed was acquired"
            assert new is not None, "what is renewed stays acquired"
            return _columns(
                change,
                self._client(old),
                held_ms=self._held_ms(old, now_ms),
                lock_ms=new.granted_ms,
                lock_left_ms=old.deadline_ms - now_ms,
            )
        if event in _ENDS:
            assert old is not None, "only a lock can end"
            return self._ended(change, old, now_ms, work_us)
        return _columns(change, self._client(old) if old else None)

    def _acquired(self, change: RangeChange, new: RangeState, now_ms: int) -> EventRow:
        client_id = self._client_of(new.member_id)
        _remember(self._began, new.lock_token, (now_ms, client_id))
        chunk = self._part.cache.find(change.first)
        age_ms = None
        if chunk is not None and chunk.timestamp_type:
            at = chunk.span(change.first, change.first)[0]
            age_ms = max(0, self._clock.to_store(now_ms) - chunk.timestamp(at))
        return _columns(
            change,
            client_id,
            available_ms=self._available_ms(change.first, change.old, now_ms),
            age_ms=age_ms,
            lock_ms=new.granted_ms,
        )

    def _ended(self, change: RangeChange, old: RangeState, now_ms: int, work_us: float) -> EventRow:
        first, last, event, _, new = change
        records = last - first + 1
        if new is not None and new.state is RecordState.AVAILABLE:
            _remember(self._ended_ms, old.lock_token, now_ms)
        delay_ms = None
        if event is RangeEvent.RELEASED and new is not None:
            delay_ms = max(0, new.available_at_ms - now_ms) if new.available_at_ms else 0
        worked = work_us and event not in _BY_ITSELF and event is not RangeEvent.RETURNED
        return _columns(
            change,
            self._client(old),
            held_ms=self._held_ms(old, now_ms),
            work_us=round(work_us * records) if worked else None,
            lock_left_ms=None if event in _BY_ITSELF else old.deadline_ms - now_ms,
            delay_ms=delay_ms,
            key=self._key(first) if records == 1 and event in _FAILURES else None,
        )

    def _client(self, value: RangeState) -> str | None:
        if value.member_id is None:
            return None
        began = self._began.get(value.lock_token)
        return began[1] if began else self._client_of(value.member_id)

    def _client_of(self, member_id: str | None) -> str:
        """The client id of a member; "" of one that is gone."""
        session = self._sessions.get(member_id or "")
        return session.client_id if session else ""

    def _held_ms(self, old: RangeState, now_ms: int) -> int:
        """Time since the lock was granted; where that is forgotten, since its last renewal."""
        began = self._began.get(old.lock_token)
        since_ms = began[0] if began else old.deadline_ms - old.granted_ms
        return max(0, now_ms - since_ms)

    def _available_ms(self, first: int, old: RangeState | None, now_ms: int) -> int | None:
        if old is not None:
            since_ms = self._ended_ms.get(old.lock_token, 0)
            since_ms = max(since_ms, old.available_at_ms)
            return max(0, now_ms - since_ms) if since_ms else None
        arrived = self._arrived
        while arrived and arrived[0][0] < first:
            arrived.popleft()
        return now_ms - arrived[0][1] if arrived else None

    def _key(self, offset: int) -> bytes | None:
        chunk = self._part.cache.find(offset)
        if chunk is None:
            return None
        start, stop = chunk.span(offset, offset)
        key = chunk.key(start) if start < stop else None
        return None if key is None else key[:KEY_BYTES_MAX]


def _remember(known: dict[int, T], token: int, value: T) -> None:
    """Notes the newest value of a lock; the oldest of too many is forgotten."""
    known.pop(token, None)
    if len(known) >= TOKENS_MAX:
        del known[next(iter(known))]
    known[token] = value


def _columns(
    change: RangeChange,
    client_id: str | None,
    *,
    available_ms: int | None = None,
    age_ms: int | None = None,
    held_ms: int | None = None,
    work_us: int | None = None,
    lock_ms: int | None = None,
    lock_left_ms: int | None = None,
    delay_ms: int | None = None,
    key: bytes | None = None,
) -> EventRow:
    """The columns of `RANGE_COLUMNS` after the first two."""
    first, last, event, old, new = change
    known, holder = new or old, new if event is RangeEvent.ACQUIRED else old
    state = RecordState.ACKNOWLEDGED if new is None else new.state
    return (
        event.value,
        None if event is RangeEvent.TRUNCATED else STATE_NAMES[state],
        first,
        last,
        0 if event is RangeEvent.GAP else last - first + 1,
        known.delivery_count if known else 0,
        holder.member_id if holder else None,
        client_id,
        available_ms,
        age_ms,
        held_ms,
        work_us,
        lock_ms,
        lock_left_ms,
        delay_ms,
        new.reason if new else None,
        key,
    )


def range_values(key: PartitionKey) -> dict[str, EventValue]:
    """The values that all range rows of one share-partition have in common."""
    return {
        "kind": EventKind.RANGE.value,
        "group_id": key.group_id,
        "topic": key.name,
        "topic_id": key.topic_id,
        "partition": key.partition,
    }


def store_us(context: Context) -> int:
    """Now, by the store's clock, in microseconds."""
    return context.clock.store_now_ms() * 1000


def work_us_each(
    context: Context,
    busy_us: int,
    acknowledgements: Acknowledgements,
) -> float:
    """The application's time per record of one request; 0 = unknown, or no event log."""
    if context.events is None or not busy_us:
        return 0.0
    records = sum(r.last - r.first + 1 for *_, ranges in acknowledgements for r in ranges)
    return busy_us / max(records, 1)
