"""A ledger of what members saw, record by record, checked against the coordinator's promises.

The ledger knows only what left the coordinator: deliveries and answers. From that it checks that a
record has one valid lock at a time, that a confirmed acknowledgement is never undone, that delivery
counts only grow (except for records handed back unseen) and stay within the limit, and in the end
that every record is finished for a reason or still due.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sharecoord.core.changes import LogId, PartitionKey
from sharecoord.core.delivery import Delivery, PartitionResult
from sharecoord.core.fleet.held_book import log_ids_of
from sharecoord.core.partition.decisions import AcknowledgedRange, HeldRange
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, RecordState
from sharecoord.store.memory.database import MemoryDatabase
from sharecoord.testing.fake_log import FakeLog

__all__ = [
    "BookEntry",
    "Ledger",
    "Life",
]

FINAL_TYPES = frozenset({AcknowledgeType.ACCEPT, AcknowledgeType.REJECT})

BookEntry = tuple[LogId, HeldRange]
"""An entry of the lock book that a join carries."""


@dataclass(slots=True)
class Life:
    """A record of a group, as its members saw it."""

    count: int = 0
    """Delivery count of the last delivery that arrived; 0 = none."""
    arrivals: int = 0
    holder: str | None = None
    """Member that may believe in a lock, until `deadline_ms`."""
    token: int = 0
    deadline_ms: int = 0
    unseen: bool = False
    """The last delivery was (perhaps) taken back, so the next may have the same count."""
    final: AcknowledgeType | None = None
    """The confirmed acknowledgement that ended the record; None: it has not ended."""
    said: set[AcknowledgeType] = field(default_factory=set)
    """Acknowledgements that members sent while they held it, confirmed or not."""


class Ledger:
    """Keeps deliveries and answers; times are milliseconds of the loop's clock."""

    def __init__(self, *, delivery_limit: int = 5, values_are_offsets: bool = True) -> None:
        self.delivery_limit = delivery_limit
        self.violations: list[str] = []
        self.arrived: dict[str, int] = {}
        """Number of records by member."""
        self._values_are_offsets = values_are_offsets
        self._lives: dict[PartitionKey, dict[int, Life]] = {}
        self._books: dict[str, dict[PartitionKey, dict[int, int]]] = {}

    # -- reading --------------------------------------------------------------------------------

    def life(self, key: PartitionKey, offset: int) -> Life:
        """The life of a record; a new one when nothing is known of it."""
        return self._lives.setdefault(key, {}).setdefault(offset, Life())

    def confirmed(self, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> int:
        """Number of records whose settlement was confirmed."""
        lives = (life for found in self._lives.values() for life in found.values())
        return sum(life.final is kind for life in lives)

    def book(self, member_id: str) -> list[BookEntry]:
        """The lock book of a join: all that a member believes to hold."""
        entries: list[BookEntry] = []
        for key, held in self._books.get(member_id, {}).items():
            for first, last, token in _runs(held):
                entries.append((key.log_id, HeldRange(first, last, token)))
        return entries

    def check(self) -> None:
        """AssertionError with the first promises that were broken."""
        shown = "\n".join(self.violations[:10])
        assert not self.violations, f"{len(self.violations)} promises broken:\n{shown}"

    # -- what members live through --------------------------------------------------------------

    def delivered(self, member_id: str, delivery: Delivery, now_ms: int) -> None:
        """Notes that records arrived."""
        book = self._books.setdefault(member_id, {}).setdefault(delivery.key, {})
        self._check_payload(delivery)
        for acquired in delivery.ranges:
            for offset in range(acquired.first, acquired.last + 1):
                life = self.life(delivery.key, offset)
                where = f"{delivery.key.name}[{delivery.key.partition}]@{offset} at {now_ms} ms"
                self._check_arrival(life, where, member_id, acquired.delivery_count, now_ms)
                life.arrivals += 1
                life.count, life.unseen = acquired.delivery_count, False
                life.holder, life.token = member_id, acquired.lock_token
                life.deadline_ms = acquired.deadline_ms
                book[offset] = acquired.lock_token
        self.arrived[member_id] = self.arrived.get(member_id, 0) + delivery.records

    def _check_arrival(
        self, life: Life, where: str, member_id: str, count: int, now_ms: int
    ) -> None:
        if life.final is not None:
            self._broken(f"{where}: to {member_id} after a confirmed {life.final.name}")
        if life.holder is not None and life.deadline_ms > now_ms:
            self._broken(f"{where}: to {member_id} while {life.holder} has a valid lock")
        if count < life.count + (not life.unseen):
            self._broken(f"{where}: delivery count {count} after {life.count}")
        if count > self.delivery_limit:
            self._broken(f"{where}: delivery count {count} beyond the limit")

    def _check_payload(self, delivery: Delivery) -> None:
        promised = sum(r.last - r.first + 1 for r in delivery.ranges)
        offsets: list[int] = []
        for chunk, start, stop in delivery.slices:
            found = chunk.offsets or range(chunk.first, chunk.last + 1)
            offsets += found[start:stop]
            if self._values_are_offsets:
                texts = [str(offset).encode() for offset in found[start:stop]]
                if chunk.columns(start, stop).values != texts:
                    self._broken(f"{delivery.key}: values of {found[start:stop]} are others'")
        if promised != delivery.records or offsets != list(_offsets(delivery)):
            self._broken(f"{delivery.key}: {offsets} do not fill {delivery.ranges}")

    def sent(self, member_id: str, key: PartitionKey, ranges: Sequence[AcknowledgedRange]) -> None:
        """Notes that a member is about to send an acknowledgement."""
        for item in ranges:
            for offset in range(item.first, item.last + 1):
                life = self.life(key, offset)
                if (life.holder, life.token) != (member_id, item.lock_token):
                    continue
                life.said.add(item.type)
                if item.type is not AcknowledgeType.RENEW:
                    life.deadline_ms = 0
                    life.unseen |= item.type is AcknowledgeType.RETURN

    def answered(
        self,
        member_id: str,
        ranges: Sequence[AcknowledgedRange],
        result: PartitionResult,
        sent_at_ms: int,
    ) -> None:
        """Notes the answer to an acknowledgement."""
        if result.error is not None:
            return
        book = self._books.setdefault(member_id, {}).setdefault(result.key, {})
        outcomes = {
            offset: (e.outcome, e.final_state)
            for e in result.exceptions
            for offset in range(e.first, e.last + 1)
        }
        for item in ranges:
            for offset in range(item.first, item.last + 1):
                outcome, state = outcomes.get(offset, (AcknowledgeOutcome.OK, None))
                if outcome is AcknowledgeOutcome.OK:
                    self._confirmed(member_id, result, item, offset, sent_at_ms)
                elif outcome is AcknowledgeOutcome.ALREADY_FINISHED:
                    self._finished(result.key, offset, state)
                renewed = item.type is AcknowledgeType.RENEW and outcome is AcknowledgeOutcome.OK
                if book.get(offset) == item.lock_token and not renewed:
                    del book[offset]

    def _confirmed(
        self,
        member_id: str,
        result: PartitionResult,
        item: AcknowledgedRange,
        offset: int,
        sent_at_ms: int,
    ) -> None:
        life = self.life(result.key, offset)
        current = life.holder == member_id and life.token == item.lock_token
        if item.type in FINAL_TYPES:
            if not current:
                self._broken(f"{result.key}@{offset}: {item.type.name} of {member_id} was late, OK")
            life.final = item.type
        elif item.type is AcknowledgeType.RENEW and current:
            life.deadline_ms = max(life.deadline_ms, sent_at_ms + result.lock_remaining_ms)

    def _finished(self, key: PartitionKey, offset: int, state: RecordState | None) -> None:
        life = self.life(key, offset)
        if state is RecordState.ACKNOWLEDGED and AcknowledgeType.ACCEPT in life.said:
            life.final = AcknowledgeType.ACCEPT

    def joined(self, member_id: str, book: Iterable[BookEntry]) -> None:
        """Notes that a member is about to join: locks that are not in its book go back unseen."""
        shown = {
            (log_id, offset, held.lock_token)
            for log_id, held in book
            for offset in range(held.first, held.last + 1)
        }

        def in_book(key: PartitionKey, offset: int, token: int) -> bool:
            return any((log_id, offset, token) in shown for log_id in log_ids_of(key))

        for key, kept in self._books.get(member_id, {}).items():
            for offset in [o for o, token in kept.items() if not in_book(key, o, token)]:
                del kept[offset]
        for key, lives in self._lives.items():
            for offset, life in lives.items():
                if life.holder == member_id and not in_book(key, offset, life.token):
                    life.deadline_ms, life.unseen = 0, True

    def lost(
        self, member_id: str, key: PartitionKey, held: HeldRange, *, uncounted: bool = False
    ) -> None:
        """Notes that a member was told of lost locks; `uncounted`: as if it had never had them."""
        book = self._books.get(member_id, {}).get(key, {})
        for offset in range(held.first, held.last + 1):
            book.pop(offset, None)
            life = self.life(key, offset)
            if (life.holder, life.token) == (member_id, held.lock_token):
                life.deadline_ms = 0
                life.unseen |= uncounted

    def gone(self, member_id: str) -> None:
        """Notes that a member left or its session ended: its locks mean nothing any more."""
        self._books.pop(member_id, None)
        for lives in self._lives.values():
            for life in lives.values():
                if life.holder == member_id:
                    life.deadline_ms = 0

    def reset(self, key: PartitionKey) -> None:
        """Notes that an operator set a new start offset: everything begins anew."""
        self._lives.pop(key, None)
        for books in self._books.values():
            books.pop(key, None)

    def truncated(self, key: PartitionKey, offset: int) -> None:
        """Notes that the log lost its end: offsets from there on will be other records."""
        lives = self._lives.get(key, {})
        for at in [at for at in lives if at >= offset]:
            del lives[at]

    def forgot(self, member_id: str) -> None:
        """Notes that a member's process died: its locks are valid, but it does not know them."""
        self._books.pop(member_id, None)

    # -- the end --------------------------------------------------------------------------------

    def check_nothing_lost(self, database: MemoryDatabase, log: FakeLog, group_id: str) -> int:
        """Checks that what the store calls finished is finished for a reason.

        Args:
            database: The committed state.
            log: The log; records that are no longer in it need no other reason.
            group_id: The group.

        Returns:
            How many records are not finished yet.
        """
        due = 0
        for partition in database.partitions.values():
            key, head = partition.row.key, partition.row.head
            found = log.find(key.topic, key.partition)
            if key.group_id != group_id or found is None or head is None:
                continue
            rows = partition.in_flight.values()
            unfinished = {
                offset
                for row in rows
                if row.state in (RecordState.AVAILABLE, RecordState.ACQUIRED)
                for offset in range(row.first_offset, row.last_offset + 1)
            }
            for record in found.records:
                if record.offset in unfinished or record.offset >= head.end_offset:
                    due += 1
                    if self.life(key, record.offset).final is not None:
                        self._broken(f"{key}@{record.offset}: confirmed, yet not finished")
                else:
                    self._check_reason(key, record.offset)
        self.check()
        return due

    def _check_reason(self, key: PartitionKey, offset: int) -> None:
        life = self.life(key, offset)
        worn_out = life.count >= self.delivery_limit
        if not (life.said & FINAL_TYPES or worn_out):
            self._broken(f"{key}@{offset}: finished without a reason ({life})")

    def _broken(self, message: str) -> None:
        self.violations.append(message)


def _offsets(delivery: Delivery) -> Iterator[int]:
    for acquired in delivery.ranges:
        yield from range(acquired.first, acquired.last + 1)


def _runs(held: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    """Consecutive offsets under one token: (first, last, token)."""
    first = last = token = -1
    for offset in sorted(held):
        if offset == last + 1 and held[offset] == token:
            last = offset
            continue
        if token >= 0:
            yield first, last, token
        first = last = offset
        token = held[offset]
    if token >= 0:
        yield first, last, token
