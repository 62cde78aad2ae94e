"""Judges replays: a side group gets the records that were asked for, all of them and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sharecoord.core.changes import PartitionKey, PartitionRow
from tests.simulation.judges.shadow import RecordLog, Shadow, name_of

__all__ = ["ReplayJudge"]

Wanted = Mapping[PartitionKey, Sequence[range]]
"""Offsets by share-partition of the side group; where a log ends a range ends, too."""


class _Asked(NamedTuple):
    wanted: Wanted
    there: dict[PartitionKey, dict[int, int]]
    """Records that were there when they were asked for: by offset who wrote them."""


class ReplayJudge:
    """Of all side groups. What is asked for is a matter of offsets, whatever stands there later.

    Args:
        log: What the logs hold.
        broken: Hears of each promise that was not kept.
    """

    def __init__(self, log: RecordLog, broken: Callable[[str], None]) -> None:
        self._log = log
        self._broken = broken
        self._pending: dict[str, _Asked] = {}
        self._there: dict[str, dict[PartitionKey, dict[int, int]]] = {}
        self._bounds: dict[PartitionKey, list[range]] = {}
        self.stops: dict[PartitionKey, int] = {}
        """Where the replays in force stop, by share-partition."""

    # -- an operator ----------------------------------------------------------------------------

    def asked(self, group_id: str, wanted: Wanted) -> None:
        """An operator is about to replay; whether and when that takes effect shows the database."""
        there = {
            key: {at: who for at, who in self._alive(key).items() if _within(at, ranges)}
            for key, ranges in wanted.items()
        }
        self._pending[group_id] = _Asked(wanted, there)

    def refused(self, group_id: str) -> None:
        """It will never take effect."""
        self._pending.pop(group_id, None)

    def is_pending(self, group_id: str) -> bool:
        """Whether something was asked for, and nobody knows what became of it."""
        return group_id in self._pending

    @property
    def groups(self) -> list[str]:
        """The side groups with a replay, finished ones too."""
        return list(self._there)

    def has(self, group_id: str) -> bool:
        """Whether it is a side group."""
        return group_id in self._there

    # -- the database ---------------------------------------------------------------------------

    def begins(
        self, group_id: str, rows: Sequence[PartitionRow], by_key: Mapping[PartitionKey, Shadow]
    ) -> None:
        """A replay takes effect.

        Args:
            group_id: The side group.
            rows: Its share-partitions from now on.
            by_key: As they were until now.
        """
        for left in self.missing(group_id, by_key):
            self._broken(f"{left}, and another replay begins")
        asked = self._pending.pop(group_id, None)
        if asked is None:
            self._broken(f"{group_id}: a replay that nobody asked for")
            asked = _Asked({}, {})
        # What was lost meanwhile, and written anew, is another record.
        self._there[group_id] = {
            key: dict(records.items() & self._alive(key).items())
            for key, records in asked.there.items()
        }
        for known in (self._bounds, self.stops):
            for key in [key for key in known if key.group_id == group_id]:
                del known[key]
        by_place = {key.place: ranges for key, ranges in asked.wanted.items()}
        for row in rows:
            # What was written until now may be part of it, nothing that comes later.
            end = self._log.highest_ends.get((row.key.topic_id, row.key.partition), 0)
            ranges = by_place.get(row.key.place, ())
            self._bounds[row.key] = [range(each.start, min(each.stop, end)) for each in ranges]
            if row.stops_at is None:
                self._broken(f"{row.key}: a replay without an end")
            self.stops[row.key] = row.stops_at or 0

    def cut(self, key: PartitionKey, offset: int) -> None:
        """A log was truncated: what is written there anew is not part of a replay."""
        if key not in self.stops:
            return
        self.stops[key] = min(self.stops[key], offset)
        bounds = self._bounds[key]
        self._bounds[key] = [range(each.start, min(each.stop, offset)) for each in bounds]
        there = self._there[key.group_id].get(key, {})
        for at in [at for at in there if at >= offset]:
            del there[at]

    def granted(self, shadow: Shadow, offset: int) -> None:
        """A record of a side group is handed out."""
        if not _within(offset, self._bounds.get(shadow.key, ())):
            self._broken(f"{name_of(shadow)}@{offset}: handed out, and not asked for")

    def missing(self, group_id: str, by_key: Mapping[PartitionKey, Shadow]) -> Iterator[str]:
        """Share-partitions with records that are still there and never arrived, in words."""
        for key, records in self._there.get(group_id, {}).items():
            shadow, alive = by_key.get(key), self._alive(key)
            lacking = [
                offset
                for offset, who in records.items()
                if alive.get(offset) == who and (shadow is None or not shadow.life(offset).arrived)
            ]
            if lacking:
                yield f"{group_id}, {key.name}[{key.partition}]: {lacking[:10]} were never replayed"

    def missing_of_all(self, by_key: Mapping[PartitionKey, Shadow]) -> Iterator[str]:
        """The same of all side groups."""
        for group_id in self._there:
            yield from self.missing(group_id, by_key)

    def _alive(self, key: PartitionKey) -> dict[int, int]:
        """What is in the log by now: by offset who wrote it."""
        place = key.topic_id, key.partition
        written_by = self._log.written_by.get(place, {})
        return {offset: written_by[offset] for offset in self._log.alive.get(place, {})}


def _within(offset: int, ranges: Sequence[range]) -> bool:
    return any(offset in each for each in ranges)
