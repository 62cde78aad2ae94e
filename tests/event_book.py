"""An event sink for tests: keeps everything, and checks that it tells the truth.

Whoever reads nothing but events must come to the state that the store has; and nothing may be told
that the store does not have (design 4: events leave when they are durable).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from sharecoord.core.changes import PartitionKey, key_of
from sharecoord.core.states import RecordState
from sharecoord.eventlog.ranges import STATE_NAMES
from sharecoord.eventlog.schema import COLUMN_NAMES, EventBlock, EventKind, GroupEvent, RangeEvent
from sharecoord.ports import EventFigures
from sharecoord.store.memory.database import MemoryDatabase

Changes = dict[int, list[dict[str, Any]]]
"""By change sequence, the rows of that change."""


class EventBook:
    """Keeps all events; an `EventSink`."""

    def __init__(self) -> None:
        self.blocks: list[EventBlock] = []

    def put(self, block: EventBlock) -> None:
        """Keeps it."""
        names = {*block.common, *block.columns}
        assert names <= set(COLUMN_NAMES), f"unknown columns: {names - set(COLUMN_NAMES)}"
        assert len(names) == len(block.common) + len(block.columns), "a column twice"
        assert all(len(row) == len(block.columns) for row in block.rows), "a row of wrong length"
        self.blocks.append(block)

    @property
    def figures(self) -> EventFigures:
        """Nothing is ever lost."""
        return EventFigures(sum(len(block.rows) for block in self.blocks), 0, 0)

    async def close(self) -> None:
        """Nothing waits."""

    def rows(self, kind: EventKind | None = None) -> Iterator[dict[str, Any]]:
        """The rows as they were told, without columns that are null."""
        for block in self.blocks:
            if kind is None or block.common["kind"] == kind:
                yield from _rows_of(block)

    # -- the truth ------------------------------------------------------------------------------

    def check(self, database: MemoryDatabase, deleted: Container[PartitionKey] = ()) -> None:
        """Compares what was told with what is stored.

        Args:
            database: What is stored.
            deleted: Share-partitions that were deleted at some time, whether that was told or not:
                who deletes one may die before it tells.

        Raises:
            AssertionError: Something was told twice, was told and is not stored, or, where no
                change is missing, leads to another state than the stored one.
        """
        for key, changes in self._told(deleted).items():
            number = database.ids.get(key)
            if number is None:
                continue
            partition = database.partitions[number]
            newest = max(changes)
            assert newest <= partition.change_sequence, f"{key}: {newest} told, never stored"
            if len(changes) == partition.change_sequence:
                found = replayed(changes)
                known = {
                    offset: (STATE_NAMES[RecordState(row.state)], row.delivery_count)
                    for row in partition.in_flight.values()
                    for offset in range(row.first_offset, row.last_offset + 1)
                }
                assert found == known, f"{key}: told {found}, stored {known}"

    def complete(self, database: MemoryDatabase) -> bool:
        """Whether no change of any share-partition is missing."""
        told = self._told()
        return all(
            len(told.get(key, ())) == database.partitions[number].change_sequence
            for key, number in database.ids.items()
        )

    def _told(self, deleted: Container[PartitionKey] = ()) -> dict[PartitionKey, Changes]:
        """Changes told of share-partitions that were never deleted: others begin anew at 1."""
        told_deleted = {
            (row["group_id"], row.get("topic"))
            for row in self.rows(EventKind.GROUP)
            if row["event"] == GroupEvent.DELETED
        }
        told: dict[PartitionKey, Changes] = {}
        for block in self.blocks:
            if block.common["kind"] != EventKind.RANGE:
                continue
            here: dict[PartitionKey, Changes] = {}
            for row in _rows_of(block):
                key = key_of(row["group_id"], row["topic"], row["topic_id"], row["partition"])
                here.setdefault(key, {}).setdefault(row["change_sequence"], []).append(row)
            for key, changes in here.items():
                names = {(key.group_id, None), (key.group_id, key.name)}
                if key not in deleted and told_deleted.isdisjoint(names):
                    known = told.setdefault(key, {})
                    twice = known.keys() & changes.keys()
                    assert not twice, f"{key}: {twice} told twice"
                    known.update(changes)
        return told


def _rows_of(block: EventBlock) -> Iterator[dict[str, Any]]:
    for row in block.rows:
        found = {**block.common, **dict(zip(block.columns, row, strict=True))}
        yield {name: value for name, value in found.items() if value is not None}


def replayed(changes: Changes) -> dict[int, tuple[str, int]]:
    """The state and the delivery count of each offset that is stored, from events alone."""
    found: dict[int, tuple[str, int]] = {}
    for number in sorted(changes):
        for row in changes[number]:
            first, last = row["first_offset"], row["last_offset"]
            if row["event"] == RangeEvent.RESET:
                found.clear()
            elif row["event"] == RangeEvent.TRUNCATED:
                found = {offset: value for offset, value in found.items() if offset < first}
            elif row["state"] == "acknowledged":
                for offset in range(first, last + 1):
                    found.pop(offset, None)
            else:
                value = row["state"], row["delivery_count"]
                found.update(dict.fromkeys(range(first, last + 1), value))
    # What is archived has a row only while something before it is unfinished.
    for offset in sorted(found):
        if found[offset][0] != "archived":
            break
        del found[offset]
    return found
