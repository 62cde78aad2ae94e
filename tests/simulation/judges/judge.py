"""An independent judge of the promises of design 4: what the database holds, what members saw.

It knows no rule of the state machine. It is told three things: each change of the database, as it
takes effect; each message that a member sends or gets; and what happens to the log. From these it
keeps one life per record, and checks with a few lines each:

1. a record goes to a member only when nobody else may believe in a valid lock on it,
2. what was confirmed as accepted or rejected is finished, stays so, and is not delivered again,
3. whatever becomes final has a reason that a member, an operator or the log gave,
4. delivery counts go down only for what was handed back unseen, and stay within the limit,
5. start offsets only move forward, except by a reset or a truncation, which raise the state epoch,
6. windows, credits and batches stay within their limits,
7. a delivery of a record shows the checkpoint that was confirmed last, or one that was said since,
8. nothing is handed out before the time that a delay, a back-off or a header of it says.

Also the rule behind them: nothing leaves a coordinator before it is durable. Times are
milliseconds of the judge's clock (the loop's); each message carries what its sender promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Delivery, PartitionResult
from sharecoord.core.partition.decisions import AcknowledgedRange, HeldRange
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, RecordState
from sharecoord.testing.ledger import BookEntry
from tests.simulation.judges.database import (
    ACCEPT,
    ACQUIRED,
    AVAILABLE,
    REJECT,
    DatabaseJudge,
)
from tests.simulation.judges.program import ProgramJudge
from tests.simulation.judges.shadow import Ask, RecordLife, Shadow, name_of, text_of

__all__ = [
    "Judge",
    "Said",
]

RELEASE, RENEW = AcknowledgeType.RELEASE, AcknowledgeType.RENEW
RETURN = AcknowledgeType.RETURN

LOCK_MIN_MS = 1_000
"""No lock is granted for less: the lower bound of `share.record.lock.duration.ms`."""


@dataclass(slots=True)
class _Stream:
    credit: int
    max_records: int
    strict: bool
    records: int = 0


@dataclass(slots=True)
class Said:
    """A request of a member, kept until its answer: what it was about."""

    member_id: str
    ranges: Sequence[AcknowledgedRange]
    shadow: Shadow | None
    version: int
    sent_ms: int


class Judge(DatabaseJudge):
    """See the module; arguments as of `DatabaseJudge`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._streams: dict[object, _Stream] = {}
        self.programs: dict[str, bool] = {}
        """Members with a program behind their SDK, and whether its mode is explicit."""
        self._given = ProgramJudge(self.log, self.broken)

    # -- what members live through --------------------------------------------------------------

    def joining(
        self,
        member_id: str,
        stream: object,
        book: Sequence[BookEntry],
        *,
        credit: int,
        most: int,
        strict: bool,
    ) -> None:
        """A member sends a join: what is not in its book it has not seen.

        Args:
            member_id: Who.
            stream: Its new stream; the former one means nothing any more.
            book: The lock book.
            credit: How many records it may get.
            most: Most records of one batch; 0 = any.
            strict: Whether both bind; a member that takes whole batches may get more.
        """
        self._streams[stream] = _Stream(credit, most, strict)
        silent_ms = self._silent.get(member_id)
        if silent_ms is not None and self._session_over(silent_ms):
            self._gave_up(member_id)
        self._excuse_others(member_id, book)

    def _excuse_others(self, member_id: str, book: Sequence[BookEntry]) -> None:
        """What is not in a member's book it has not seen."""
        shown: dict[PartitionKey, list[HeldRange]] = {}
        for log_id, held in book:
            for key in self.by_key:
                if key.log_id == log_id:
                    shown.setdefault(key, []).append(held)
        for key, shadow in self.by_key.items():
            held_here = shown.get(key, ())
            for offset, life in shadow.lives.items():
                if life.holder != member_id:
                    continue
                if not any(
                    h.lock_token == life.token and h.first <= offset <= h.last for h in held_here
                ):
                    life.ends()
                    life.excused.add(life.token)
            for offset, token in [g for g, (m, _) in shadow.granted.items() if m == member_id]:
                life = shadow.life(offset)
                if token not in life.arrived:
                    life.excused.add(token)

    def joined(self, member_id: str, stream: object, coordinator_id: str) -> None:
        """A member is heard, by a coordinator."""
        silent_ms = self._silent.pop(member_id, None)
        if silent_ms is not None and self._session_over(silent_ms):
            self._gave_up(member_id)
        for shadow in self.by_key.values():
            self._forget_ended(shadow, (member_id,))
        self._stream_of[member_id] = (stream, coordinator_id)
        self._gateway_of[member_id] = coordinator_id

    def silent(self, member_id: str) -> None:
        """A member's stream broke, or whoever vouched for it does so no more."""
        self._silent.setdefault(member_id, self._now_ms())
        self._stream_of.pop(member_id, None)

    def session_ended(self, member_id: str) -> None:
        """A member was told that its session is over: it believes in no lock of it."""
        self._gave_up(member_id)

    def trouble(self) -> None:
        """A coordinator died, ended or stood still: what it was about to send may be lost."""
        self._troubles += 1

    def credit(self, stream: object, records: int) -> None:
        """A member may get so many records on a stream, in all."""
        self._streams[stream].credit = records

    def lost(self, member_id: str, key: PartitionKey, held: HeldRange) -> None:
        """A member was told that it lost an entry of its book."""
        shadow = self.by_key.get(key)
        for offset in range(held.first, held.last + 1) if shadow is not None else ():
            assert shadow is not None, "in this loop"
            life = shadow.lives.get(offset)
            if life and shadow.granted.get((offset, held.lock_token), ("",))[0] == member_id:
                life.told.add(held.lock_token)
            if life and (life.holder, life.token) == (member_id, held.lock_token):
                life.ends()

    def given(self, member_id: str, key: PartitionKey, offset: int, token: int) -> None:
        """A record reached the program itself."""
        shadow = self.by_key.get(key)
        if shadow is not None and (offset, token) not in shadow.void:
            explicit = self.programs[member_id]
            self._given.given(shadow, member_id, offset, token, explicit=explicit)

    def done(self, key: PartitionKey, offset: int, token: int) -> None:
        """A program has accepted or rejected a record; its SDK may say so later."""
        shadow = self.by_key.get(key)
        if shadow is not None:
            shadow.life(offset).done.add(token)

    def gone(self, member_id: str, book: Sequence[BookEntry] | None = None) -> None:
        """A member leaves: its locks mean nothing to it any more.

        Args:
            member_id: Who.
            book: What it says that it has; None = it does not say.
        """
        if book is not None:
            self._excuse_others(member_id, book)
        self._stream_of.pop(member_id, None)
        self._gave_up(member_id)

    def _gave_up(self, member_id: str) -> None:
        """A member can not be sure of any lock that it had until now."""
        for shadow in self.by_key.values():
            for life in shadow.lives.values():
                if life.holder == member_id:
                    life.ends()

    def arrived(
        self, member_id: str, stream: object, delivery: Delivery, deadlines_ms: Sequence[int]
    ) -> None:
        """Records reached a member, with locks until `deadlines_ms`, one for each range."""
        self.deliveries += 1
        shadow = self.by_key.get(delivery.key)
        self._check_payload(delivery)
        self._check_stream(member_id, stream, delivery)
        if shadow is None:
            return
        kept = dict(delivery.checkpoints)
        for acquired, deadline_ms in zip(delivery.ranges, deadlines_ms, strict=True):
            for offset in range(acquired.first, acquired.last + 1):
                grant = (offset, acquired.lock_token)
                if grant in shadow.void:
                    continue
                where = f"{name_of(shadow)}@{offset} to {member_id}"
                if shadow.granted.get(grant) != (member_id, acquired.delivery_count):
                    self.broken(f"{where}: {acquired} is not durable")
                if acquired.lock_token > max(shadow.life(offset).arrived, default=0):
                    self._shows(shadow.life(offset), kept.get(offset), where)
                self._arrives(shadow, offset, member_id, acquired.lock_token, deadline_ms, where)

    def _shows(self, life: RecordLife, shown: bytes | None, where: str) -> None:
        """A delivery has what was confirmed last, or what was said since and not answered."""
        if shown not in life.checkpoints:
            self.broken(f"{where}: checkpoint {shown!r}, not one of {life.checkpoints}")
        life.checkpoints = [shown]

    def _arrives(
        self,
        shadow: Shadow,
        offset: int,
        member_id: str,
        token: int,
        deadline_ms: int,
        where: str,
    ) -> None:
        life, now_ms = shadow.life(offset), self._now_ms()
        if token in life.taken_back:
            # It was on its way when its chain broke: the lock is gone, its holder hears so later.
            life.arrived.add(token)
            return
        if token >> 32 < shadow.owner_epoch:
            # It was loaded anew while this was under way.
            deadline_ms -= self.jumped_ms(now_ms)
            if deadline_ms <= now_ms and life.token > token and token not in life.arrived:
                life.arrived.add(token)
                return
        if self.was_set_back(now_ms) and life.token > token and token not in life.arrived:
            # Its gateway takes it for younger than it is (docs/guarantees.md, the clock).
            life.arrived.add(token)
            return
        if life.final is not None:
            self.broken(f"{where}: after a confirmed {life.final.name}")
        if self._is_valid(shadow, life):
            left_ms = life.deadline_ms - now_ms
            self.broken(f"{where}: while {life.holder} has a valid lock for {left_ms} ms")
        if token in life.arrived:
            self.broken(f"{where}: twice under token {token}")
        life.arrived.add(token)
        life.holder, life.token = member_id, token
        life.told_ms, life.gave_up, life.granted_ms = deadline_ms, False, now_ms

    def _check_payload(self, delivery: Delivery) -> None:
        written = self.log.written.get((delivery.key.topic_id, delivery.key.partition), {})
        shadow = self.by_key.get(delivery.key)
        offsets: list[int] = []
        for chunk, start, stop in delivery.slices:
            found = chunk.offsets or range(chunk.first, chunk.last + 1)
            offsets += found[start:stop]
            for offset, value in zip(found[start:stop], chunk.values[start:stop], strict=True):
                if value not in written.get(offset, ()):
                    self.broken(f"{delivery.key}@{offset}: {value!r} is another record's value")
                if shadow is not None and shadow.is_lost(offset):
                    self._check_lost(shadow, offset, value)
        if offsets != [o for r in delivery.ranges for o in range(r.first, r.last + 1)]:
            self.broken(f"{delivery.key}: {offsets} do not fill {delivery.ranges}")

    def _check_lost(self, shadow: Shadow, offset: int, value: bytes | None) -> None:
        """Until the state of a lost record is void nothing goes out that came in its place."""
        place = shadow.key.topic_id, shadow.key.partition
        if self.log.alive.get(place, {}).get(offset) == value:
            self.broken(
                f"{name_of(shadow)}@{offset}: {value!r} came when the log had been cut, and goes "
                "out under the state of the record before"
            )

    def _check_stream(self, member_id: str, stream: object, delivery: Delivery) -> None:
        known = self._streams[stream]
        known.records += delivery.records
        if not known.strict:
            return
        if known.records > known.credit:
            self.broken(f"{member_id}: {known.records} records for a credit of {known.credit}")
        if known.max_records and delivery.records > known.max_records:
            self.broken(f"{member_id}: {delivery.records} records, asked for {known.max_records}")

    def said(self, member_id: str, key: PartitionKey, ranges: Sequence[AcknowledgedRange]) -> Said:
        """A member is about to say something; the result belongs to its answer."""
        shadow = self.by_key.get(key)
        for item in ranges if shadow is not None else ():
            assert shadow is not None, "in this loop"
            for offset in range(item.first, item.last + 1):
                life = shadow.lives.get(offset)
                if life is None or item.lock_token not in life.arrived:
                    continue
                if shadow.granted.get((offset, item.lock_token), ("", 0))[0] != member_id:
                    continue
                life.said.add((item.lock_token, item.type))
                if member_id in self.programs and life.token == item.lock_token:
                    where = f"{name_of(shadow)}@{offset}"
                    self._given.said(member_id, where, life, item.type)
                if item.type is RETURN:
                    life.excused.add(item.lock_token)
                current = (life.token, life.holder) == (item.lock_token, member_id)
                if current and item.checkpoint is not None:
                    life.checkpoints.append(item.checkpoint)
                if item.type is RELEASE:
                    life.asked.append(Ask(item.lock_token, self._now_ms(), item.delay_ms))
                if current and item.type is not RENEW:
                    life.gave_up = True
                elif current and life.deadline_ms:
                    # Settings may have changed: the new lock can be shorter than the old one.
                    soon_ms = self._now_ms() + LOCK_MIN_MS
                    life.told_ms = min(life.told_ms, soon_ms)
        version = 0 if shadow is None else shadow.version
        return Said(member_id, ranges, shadow, version, self._now_ms())

    def answered(self, said: Said, result: PartitionResult) -> None:
        """A member got an answer to what it said of one share-partition."""
        shadow = said.shadow
        if result.error is not None or shadow is None or shadow.version != said.version:
            return
        outcomes = {o: e for e in result.exceptions for o in range(e.first, e.last + 1)}
        for item in said.ranges:
            for offset in range(item.first, item.last + 1):
                found = outcomes.get(offset)
                if found is not None:
                    self._refused(shadow, offset, said.member_id, item.lock_token)
                if found is None:
                    self._confirmed(shadow, offset, said, item, result.lock_remaining_ms)
                elif (
                    found.outcome is AcknowledgeOutcome.ALREADY_FINISHED
                    and found.final_state is RecordState.ACKNOWLEDGED
                    and (item.lock_token, ACCEPT) in shadow.life(offset).said
                ):
                    self._finished(shadow, offset, said.member_id, ACCEPT)

    @staticmethod
    def _refused(shadow: Shadow, offset: int, member_id: str, token: int) -> None:
        """A member was told that a lock is not its own: its book is without it from now on."""
        life = shadow.life(offset)
        if shadow.granted.get((offset, token), ("", 0))[0] == member_id:
            life.excused.add(token)
            if life.token == token:
                life.ends()

    def _confirmed(
        self,
        shadow: Shadow,
        offset: int,
        said: Said,
        item: AcknowledgedRange,
        lock_remaining_ms: int,
    ) -> None:
        self.confirmations += 1
        life, token = shadow.life(offset), item.lock_token
        where = f"{name_of(shadow)}@{offset}: {item.type.name} of {said.member_id} under {token}"
        if shadow.granted.get((offset, token), ("", 0))[0] != said.member_id:
            if item.type not in (RELEASE, RETURN):
                self.broken(f"{where} is OK, and the lock was never its own")
            return
        if item.type in (ACCEPT, REJECT):
            if life.token != token:
                self.broken(f"{where} is OK, and {life.holder} has had the record since")
            self._finished(shadow, offset, said.member_id, item.type)
            return
        row = shadow.row_at(offset)
        if said.member_id in self.programs and item.type in (RELEASE, RETURN):
            self._given.heard_back(shadow, said.member_id, offset, token)
        if item.type is RENEW:
            if item.checkpoint in life.checkpoints[1:]:
                last = life.checkpoints[::-1].index(item.checkpoint)
                life.checkpoints = life.checkpoints[len(life.checkpoints) - 1 - last :]
            if life.token == token and life.deadline_ms:
                life.told_ms = max(life.told_ms, said.sent_ms + lock_remaining_ms)
        elif row is not None and (row.state, row.lock_token) == (ACQUIRED, token):
            self.broken(f"{where} is OK, and the database has it under that lock")

    def _finished(self, shadow: Shadow, offset: int, member_id: str, kind: AcknowledgeType) -> None:
        """A member was told that a record is finished."""
        row = shadow.row_at(offset)
        if row is not None and row.state in (AVAILABLE, ACQUIRED):
            self.broken(
                f"{name_of(shadow)}@{offset}: {member_id} was told {kind.name}, "
                f"the database has {text_of(row)}"
            )
        shadow.life(offset).final = kind

    # -- the end --------------------------------------------------------------------------------

    def unfinished(self, log_ends: Iterable[tuple[PartitionKey, int]]) -> Iterator[str]:
        """What is still to be done, in words.

        Args:
            log_ends: The share-partitions that must be worked off, and where their logs end.
        """
        for key, log_end in log_ends:
            shadow = self.by_key.get(key)
            if shadow is None or shadow.start is None:
                yield f"{key.name}[{key.partition}] is not open"
            elif any(cut.must_void for cut in shadow.cuts):
                yield f"{name_of(shadow)}: the log was {shadow.cuts}, and its state goes on"
            elif shadow.unfinished() or shadow.end < log_end:
                rows = [text_of(row) for row in sorted(shadow.rows.values())[:3]]
                yield (
                    f"{name_of(shadow)}: [{shadow.start}, {shadow.end}) of {log_end}, "
                    f"{shadow.unfinished()} not finished: {rows}"
                )

    def check(self) -> None:
        """Fails with the first broken promises.

        Raises:
            AssertionError: There are some.
        """
        shown = "\n".join(self.violations[:8])
        assert not self.violations, f"{len(self.violations)} promises broken:\n{shown}"
