"""Samples of share-partitions and members for the event log, once per interval."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sharecoord.core.lag import lag as lag_of
from sharecoord.eventlog.schema import EventBlock, EventKind, EventRow, EventValue
from sharecoord.ports import EventSink
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.event_tap import store_us

if TYPE_CHECKING:
    from sharecoord.runtime.group.actor import GroupActor
    from sharecoord.runtime.group.dispatch import Wanted

PARTITION_COLUMNS = (
    "topic",
    "topic_id",
    "partition",
    "change_sequence",
    "log_end_offset",
    "start_offset",
    "end_offset",
    "lag",
    "due",
    "acquired",
    "delayed",
    "archiving",
    "window_max",
    "oldest_time",
    "members",
    "members_waiting",
)
MEMBER_COLUMNS = ("member_id", "client_id", "demand", "got", "held", "pace_us")


class EventSampler:
    """Samples the groups of a coordinator that has an event log."""

    def __init__(
        self, context: Context, groups: Mapping[str, GroupActor], *, interval_ms: int
    ) -> None:
        assert context.events is not None, "somebody wants to know"
        self._sink: EventSink = context.events
        self._context = context
        self._groups = groups
        self._interval_ms = interval_ms

    async def run(self) -> None:
        """Samples share-partitions again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            self.sample_partitions()

    def sample_partitions(self) -> None:
        """Writes one row for each share-partition that is served here."""
        common: dict[str, EventValue] = {
            "kind": EventKind.PARTITION.value,
            "time": store_us(self._context),
            "interval_ms": self._interval_ms,
        }
        for group in self._groups.values():
            rows = [
                row
                for actor in group.partitions.values()
                if (row := _partition_row(group, actor)) is not None
            ]
            if rows:
                self._sink.put(
                    EventBlock({**common, "group_id": group.group_id}, PARTITION_COLUMNS, rows)
                )

    def sample_members(self, group: GroupActor, wanted: list[Wanted], interval_ms: int) -> None:
        """Writes rows of the records that members wanted and got in the interval that ended."""
        rows: list[EventRow] = []
        for session, demand, got in wanted:
            pace = session.pace.records_per_ms
            rows.append(
                (
                    session.member_id,
                    session.client_id,
                    demand,
                    got,
                    group.held(session),
                    round(1000 / pace) if pace else None,
                )
            )
        if rows:
            common: dict[str, EventValue] = {
                "kind": EventKind.MEMBER.value,
                "time": store_us(self._context),
                "interval_ms": interval_ms,
                "group_id": group.group_id,
            }
            self._sink.put(EventBlock(common, MEMBER_COLUMNS, rows))


def _partition_row(group: GroupActor, actor: PartitionActor) -> EventRow | None:
    partition = actor.partition
    if partition is None:
        return None
    window, key = partition.window, actor.key
    end = actor.log.end_offset
    return (
        key.name,
        key.topic_id,
        key.partition,
        partition.change_sequence,
        end,
        window.start_offset,
        window.end_offset,
        None if end is None else lag_of(end, window.start_offset, window.finished),
        window.due,
        window.acquired,
        window.delayed,
        window.archiving,
        partition.settings.record_locks_max,
        _oldest_us(actor),
        group.dispatcher.topics[key.served],
        group.dispatcher.waiting(key.served),
    )


def _oldest_us(actor: PartitionActor) -> int | None:
    """Kafka's timestamp of the first record at or beyond the start offset, if it is at hand."""
    assert actor.partition is not None, "served"
    start = actor.partition.window.start_offset
    for chunk in actor.cache.after(start)[:1]:
        at = chunk.span(start, chunk.last)[0]
        if chunk.covers_from <= start and chunk.timestamp_type and at < chunk.count:
            return chunk.timestamp(at) * 1000
    return None
