"""What the judge checks where operators pause parts of a group, force records, or replay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sharecoord.core.changes import InFlightRow, PartitionCommit, PartitionKey, PartitionRow
from sharecoord.core.dispatch.pauses import PauseScope
from sharecoord.core.spans import Spans
from sharecoord.core.states import AcknowledgeType, RecordState
from tests.simulation.judges.kept import KeptJudge
from tests.simulation.judges.order import OrderJudge
from tests.simulation.judges.replay import ReplayJudge
from tests.simulation.judges.shadow import RecordLog, Shadow, name_of, text_of

__all__ = ["OperatorJudge"]

ACCEPT, AVAILABLE = AcknowledgeType.ACCEPT, RecordState.AVAILABLE
DEAD = (RecordState.ARCHIVING, RecordState.ARCHIVED)


class OperatorJudge:
    """A part of `DatabaseJudge`, which has all that is only named here."""

    by_id: dict[int, Shadow]
    by_key: dict[PartitionKey, Shadow]
    log: RecordLog
    kept: KeptJudge
    order: OrderJudge
    replays: ReplayJudge
    side_order: OrderJudge
    """Of the groups that replays go to."""
    trace: Callable[[str], None]
    _now_ms: Callable[[], int]
    _troubles: int
    _owed: dict[tuple[PartitionKey, int], None]

    def __init__(self) -> None:
        self._paused: dict[PauseScope, tuple[int, int | None]] = {}
        """Since when nothing may be handed out, and the troubles until then if they excuse it."""
        self._void_of_deleted: dict[PartitionKey, set[tuple[int, int]]] = {}
        """What was on its way when the offsets were deleted."""

    def broken(self, message: str) -> None:
        """Notes a broken promise."""
        raise NotImplementedError

    def changed_rows(self, shadow: Shadow, part: PartitionCommit) -> dict[int, InFlightRow]:
        """Takes what a commit changes out of the shadow: the former row of each offset."""
        raise NotImplementedError

    def reset(self, row: PartitionRow) -> None:
        """An operator set a start offset: everything begins anew."""
        raise NotImplementedError

    def is_side(self, shadow: Shadow) -> bool:
        """Whether a share-partition is of a side group, which no operator touches but to replay."""
        return self.replays.has(shadow.key.group_id)

    @property
    def deleted_keys(self) -> Collection[PartitionKey]:
        """Share-partitions that were deleted at some time."""
        return self._void_of_deleted.keys()

    def order_of(self, shadow: Shadow) -> OrderJudge:
        """Who judges the order of a share-partition."""
        return self.side_order if self.is_side(shadow) else self.order

    def replayed(self, made: Sequence[tuple[PartitionRow, Mapping[int, InFlightRow]]]) -> None:
        """A side group begins: the rows of its share-partitions, and their ranges."""
        rows = [row for row, _ in made]
        self.replays.begins(rows[0].key.group_id, rows, self.by_key)
        for row, ranges in made:
            self.reset(row)
            assert row.head is not None, "a replay sets it"
            shadow = self.by_id[row.partition_id]
            shadow.end, shadow.rows = row.head.end_offset, dict(ranges)

    def deleted(self, keys: Iterable[PartitionKey]) -> None:
        """An operator deleted offsets."""
        for key in keys:
            shadow = self.by_key.pop(key, None)
            if shadow is not None:
                self.by_id = {n: s for n, s in self.by_id.items() if s is not shadow}
                shadow.forget_from(0)
                self._void_of_deleted[key] = shadow.void

    def emptied(self, row: PartitionRow) -> None:
        """An operator deleted offsets; dead letters that wait keep the row."""
        shadow = self.by_id.get(row.partition_id)
        if shadow is None or row.state_epoch == shadow.state_epoch:
            return
        shadow.state_epoch = row.state_epoch
        shadow.start, shadow.end = None, 0
        shadow.rows.clear()
        shadow.forget_from(0)

    def paused(self, scope: PauseScope, *, within_ms: int, troubles_excuse: bool) -> None:
        """A pause was confirmed to an operator.

        Args:
            scope: Of what.
            within_ms: So long other coordinators may still hand something out.
            troubles_excuse: Whether one that stood still, or did not see the store, may so later.
        """
        troubles = self._troubles if troubles_excuse else None
        self._paused[scope] = (self._now_ms() + within_ms, troubles)

    def resuming(self) -> None:
        """An operator is about to end all pauses."""
        self._paused.clear()

    def check_granted(self, shadow: Shadow, offset: int, member_id: str) -> None:
        """A record is handed out: nothing that pauses it was confirmed before, a replay has it."""
        if self.is_side(shadow):
            self.replays.granted(shadow, offset)
            return
        for scope, (from_ms, troubles) in self._paused.items():
            if self._now_ms() < from_ms or troubles not in (None, self._troubles):
                continue
            key = shadow.key
            topic, partition = key.home
            of_topic = not scope.topic or scope.topic == topic
            # A lane has partitions of its own.
            of_place = scope.partition in (None, partition)
            if of_topic and of_place and scope.member_id in ("", member_id):
                self.broken(f"{name_of(shadow)}@{offset} to {member_id}: {scope} is paused")

    def forced(self, part: PartitionCommit, first: int, last: int) -> None:
        """An operator released or settled [first, last]; other locks must live on."""
        shadow = self.by_id[part.partition_id]
        name = name_of(shadow)
        if (part.owner_epoch, part.state_epoch) != (shadow.owner_epoch, shadow.state_epoch):
            self.broken(f"{name}: forced at other epochs than the database has")
        self.trace(f"  db: {name} forced [{first}, {last}]")
        letters = (letter.offset for letter in part.dead_letters)
        self._owed.update(dict.fromkeys((shadow.key, offset) for offset in letters))
        before = self.changed_rows(shadow, part)
        after = {o: row for row in part.upserted for o in range(row[0], row[1] + 1)}
        shadow.state_epoch += 1
        shadow.version += 1
        for offset, old in before.items():
            new = after.get(offset)
            if first <= offset <= last:
                shadow.waits.pop(offset, None)
            if old.state in DEAD or (new is not None and new[2:7] == old[2:7]):
                # The same in all but its time.
                continue
            back = (
                new is not None
                and new.state == AVAILABLE
                and new.delivery_count == old.delivery_count - 1
            )
            if not back and not first <= offset <= last:
                # Only the rest of a chain goes back with it.
                self.broken(f"{name}@{offset}: {text_of(old)} was not to be forced")
            life = shadow.life(offset)
            life.ends()
            dead = {grant for grant in shadow.granted if grant[0] == offset}
            shadow.void |= dead
            for grant in dead:
                del shadow.granted[grant]
            if new is None or new.state in DEAD:
                life.final = ACCEPT
        assert part.head is not None, "it is written with each change"
        shadow.start, shadow.end = part.head.start_offset, part.head.end_offset
        for row in part.upserted:
            shadow.rows[row[0]] = row
        self.kept.committed(shadow, part, before, after)
        more = offsets_of(part.passed_over or ()) - offsets_of(shadow.passed_over)
        if not more <= {*range(first, last + 1)}:
            self.broken(f"{name}: {sorted(more)} are passed over, asked was [{first}, {last}]")
        alive = self.log.alive.get((shadow.key.topic_id, shadow.key.partition), {})
        shadow.passed_values.update({offset: alive[offset] for offset in more & alive.keys()})
        self.pass_over(shadow, part)

    def pass_over(self, shadow: Shadow, part: PartitionCommit) -> None:
        """What an operator has settled ahead of the window must never come; the log may lose it."""
        if part.passed_over is not None:
            self._forget_lost(shadow, offsets_of(part.passed_over))
            shadow.passed_over = part.passed_over
        for first, last in shadow.passed_over:
            for offset in range(max(first, shadow.end), last + 1):
                shadow.life(offset).final = ACCEPT

    def _forget_lost(self, shadow: Shadow, kept: set[int]) -> None:
        """What was to be passed over and is not any more: other records will come there."""
        alive = self.log.alive.get((shadow.key.topic_id, shadow.key.partition), {})
        for offset in offsets_of(shadow.passed_over) - kept:
            if offset < shadow.end:
                continue
            if shadow.passed_values.get(offset) == alive.get(offset, b""):
                self.broken(f"{name_of(shadow)}@{offset}: passed over no more, but still there")
            shadow.lives.pop(offset, None)


def offsets_of(ranges: Spans) -> set[int]:
    """All offsets of some ranges."""
    return {offset for first, last in ranges for offset in range(first, last + 1)}
