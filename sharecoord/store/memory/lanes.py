"""Lanes and replays in the store in memory; see `ports.Store` and `store.letters.lanes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sharecoord.core.changes import PartitionKey
from sharecoord.core.letters import lanes
from sharecoord.core.letters.lanes import (
    LaneChange,
    LaneState,
    Mark,
    Marking,
    Replayed,
    Selection,
    SelectionResult,
)
from sharecoord.core.spans import Span, covers
from sharecoord.store.book_entries import KEPT_PAYLOAD
from sharecoord.store.memory.database import (
    MemoryDatabase,
    MemoryPartition,
    by_offset,
    change_group,
    ensure,
    open_all,
    raise_group_epochs,
)


def read_marks(database: MemoryDatabase, place: tuple[str, str, str, int]) -> list[Mark]:
    """The marks of a dead-letter topic's partition: group, topic, topic id, partition."""
    return sorted(
        mark
        for part in database.partitions.values()
        for mark in part.marks
        if _place_of(part.row.key) == place and part.row.key.lane
    )


def _place_of(key: PartitionKey) -> tuple[str, str, str, int]:
    return key.group_id, key.topic, key.topic_id, key.partition


def take_in(
    database: MemoryDatabase, selections: Sequence[Selection], marking: Marking
) -> list[SelectionResult]:
    """Marks selected letters, and for a redrive adds them to their lanes."""
    found: list[SelectionResult] = []
    parts = open_all(database, [selection.key for selection in selections])
    for selection, part in zip(selections, parts, strict=True):
        change = lanes.take_in(_state(part), selection, marking, part.change_sequence)
        _write(part, change, rate_limit=selection.rate_limit if change.upserted else None)
        now_ms, kind = database.clock_ms(), str(marking.kind)
        part.marks += [Mark(*span, kind, marking.run_id, now_ms) for span in change.taken]
        if change.upserted:
            kept = selection.kept_of(change.taken)
            part.entries[KEPT_PAYLOAD] |= {each.offset: each for each in kept}
        found.append(SelectionResult(selection.key, change.taken, change.marked, change.under_way))
    raise_group_epochs(database, (selection.key for selection in selections))
    return found


def withdraw(database: MemoryDatabase, keys: Sequence[PartitionKey]) -> list[SelectionResult]:
    """Takes letters that were never handed out back, with their marks."""
    found: list[SelectionResult] = []
    for key, part in zip(keys, open_all(database, keys), strict=True):
        back: tuple[Span, ...] = ()
        if part.row.head is not None:
            change = lanes.withdraw(_state(part), part.change_sequence)
            _write(part, change)
            back = change.taken
            kept = part.entries[KEPT_PAYLOAD]
            for offset in [offset for offset in kept if covers(back, offset)]:
                del kept[offset]
            part.marks = lanes.unmarked(part.marks, back)
        found.append(SelectionResult(key, back, 0, 0))
    raise_group_epochs(database, keys)
    return found


def make_replay(
    database: MemoryDatabase, parts: Sequence[Replayed], config: Mapping[str, str] | None
) -> bool:
    """Makes the share-partitions of a replay; False = the group has others."""
    (group_id,) = {part.key.group_id for part in parts}
    rows = [part.row for part in database.partitions.values()]
    if any(lanes.hinders_replay(row) for row in rows if row.key.group_id == group_id):
        return False
    for part, found in zip(parts, open_all(database, [p.key for p in parts]), strict=True):
        found.in_flight.clear()
        _write(found, lanes.replay(part, found.change_sequence), rate_limit=part.rate_limit)
    group = ensure(database, group_id)
    if config is not None:
        group = replace(group, config=dict(config))
    change_group(database, group)
    return True


def _state(part: MemoryPartition) -> LaneState:
    return LaneState(part.row.head, by_offset(part.in_flight), part.marks)


def _write(part: MemoryPartition, change: LaneChange, *, rate_limit: int | None = None) -> None:
    for first in change.deleted:
        part.in_flight.pop(first, None)
    part.in_flight.update((row.first_offset, row) for row in change.upserted)
    part.set_head(change.head)
    epoch = part.row.state_epoch + 1
    part.row = replace(
        part.row,
        state_epoch=epoch,
        replay_epoch=epoch if change.anew else part.row.replay_epoch,
        closed=False,
        stopped_reason="",
        stops_at=change.stops_at,
        rate_limit=part.row.rate_limit if rate_limit is None else rate_limit,
    )
