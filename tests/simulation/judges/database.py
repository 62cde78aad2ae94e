"""What the judge checks of the database: each change as it takes effect must have a cause."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping

from sharecoord.core.changes import (
    InFlightRow,
    PartitionCommit,
    PartitionHead,
    PartitionKey,
    PartitionRow,
)
from sharecoord.core.letters.dead_letters import ID_HEADER, KAFKA_PREFIX, PAYLOAD_HEADER
from sharecoord.core.letters.lanes import SelectionResult
from sharecoord.core.states import AcknowledgeType, RecordState
from sharecoord.ports import OutgoingMessage
from sharecoord.store.memory import delayed as memory_delayed
from tests.simulation.judges.delay import Clocks, DelayJudge
from tests.simulation.judges.kept import KeptJudge
from tests.simulation.judges.operator import OperatorJudge, offsets_of
from tests.simulation.judges.order import OrderJudge
from tests.simulation.judges.replay import ReplayJudge
from tests.simulation.judges.shadow import (
    Cut,
    RecordLife,
    RecordLog,
    Shadow,
    goes_on,
    name_of,
    text_of,
)

__all__ = ["DatabaseJudge"]

ACCEPT, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT
AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ARCHIVING, ARCHIVED = RecordState.ARCHIVING, RecordState.ARCHIVED
DEAD = (ARCHIVING, ARCHIVED)

SIDE_LIMIT = 50
"""The delivery limit of side groups: no fault may use it up."""

LIMIT_MEMORY_MS = 60_000
"""A change of the delivery limit is known to every coordinator, frozen ones too, after so long."""

JUMP_MEMORY_MS = 60_000
"""A coordinator measures the store's clock at least so often, however slow the store is."""

LOADING_MS = 2_000
"""From a claim until its locks are looked at."""

SESSION_MARGIN_MS = 2_000
"""Owners hear of members once a second, so a session may end this much early."""


class DatabaseJudge(OperatorJudge):
    """See the module; `Judge` adds what members live through.

    Args:
        log: What the logs hold.
        now_ms: The judge's clock.
        store_now_ms: The store's clock.
        delivery_limit: The limit in force at the beginning.
        session_timeout_ms: How long a silent member's locks are certain.
        window_max: Most records under locks or due in one window; 0 = not limited by hand.
    """

    def __init__(
        self,
        log: RecordLog,
        now_ms: Callable[[], int],
        store_now_ms: Callable[[], int],
        *,
        delivery_limit: int,
        session_timeout_ms: int,
        window_max: int = 0,
    ) -> None:
        super().__init__()
        self.log = log
        self.violations: list[str] = []
        self.by_key: dict[PartitionKey, Shadow] = {}
        self.by_id: dict[int, Shadow] = {}
        self.deliveries = self.confirmations = 0
        self.trace: Callable[[str], None] = lambda _: None
        """Gets a line for each change of the database."""
        self._now_ms = now_ms
        self._limits: list[tuple[int, int]] = [(now_ms(), delivery_limit)]
        self._jumps: list[tuple[int, int]] = []
        self._session_timeout_ms = session_timeout_ms
        self._window_max = window_max
        self._silent: dict[str, int] = {}
        """Members without a stream, since when."""
        self._stream_of: dict[str, tuple[object, str]] = {}
        """Members' streams that work, and where they end."""
        self._gateway_of: dict[str, str] = {}
        """Where members' last streams ended."""
        self._troubles = 0
        self._owed: dict[tuple[PartitionKey, int], None] = {}
        """Dead letters that were stored, by place of their records."""
        self._letters: set[tuple[str, int, int]] = set()
        """Dead letters that arrived: topic id, partition, offset."""
        self.letters_once = False
        """Whether none may come twice."""
        self._letter_ids: set[tuple[str, str]] = set()
        self._member_epochs: dict[str, int] = {}
        self.order = OrderJudge(log, now_ms, self.broken, self._is_valid)
        self.side_order = OrderJudge(log, now_ms, self.broken, self._is_valid)
        self.replays = ReplayJudge(log, self.broken)
        self.kept = KeptJudge(log, self.broken)
        clocks = Clocks(now_ms, store_now_ms, self._moved_ms)
        self.delays = DelayJudge(log, clocks, self._holds, self.broken)
        self.way: Callable[[str, str, str], int | None] = lambda member_id, gateway, owner: None
        """From an owner to a member at a gateway: the same as long as nothing on it is lost; None =
        it is, or the owner has not heard of the member there."""
        self.unheard_ms: Callable[[str, str], int | None] = lambda gateway, owner: None
        """Since when an owner hears nothing of a gateway, who vouches for its members."""

    def broken(self, message: str) -> None:
        """Notes a broken promise."""
        self.violations.append(f"{self._now_ms()} ms: {message}")

    # -- what happens in the world --------------------------------------------------------------

    def limit_changed(self, delivery_limit: int) -> None:
        """An operator changed the delivery limit."""
        self._limits.append((self._now_ms(), delivery_limit))

    def _limits_in_force(self, shadow: Shadow) -> list[int]:
        """Every limit that some coordinator may still go by."""
        if self.is_side(shadow):
            return [SIDE_LIMIT]
        oldest_ms = self._now_ms() - LIMIT_MEMORY_MS
        return [
            limit
            for (_, limit), (until_ms, _) in zip(
                self._limits, [*self._limits[1:], (oldest_ms, 0)], strict=True
            )
            if until_ms >= oldest_ms
        ]

    def clock_jumped(self, by_ms: int) -> None:
        """The store's clock was set: forward, locks that are loaded later seem that much older."""
        now_ms = self._now_ms()
        self._jumps.append((now_ms, by_ms))
        if by_ms > 0:
            self._troubles += 1
            for shadow in self.by_id.values():
                if now_ms - shadow.claimed_ms < LOADING_MS:
                    self._seem_older(shadow, by_ms)

    def heard(self, gateway: str, owner: str) -> None:
        """An owner hears a gateway again: what ended meanwhile stays ended."""
        for shadow in self.by_key.values():
            if shadow.owner == owner:
                holders = {m for m, at in self._gateway_of.items() if at == gateway}
                self._forget_ended(shadow, holders)

    def _forget_ended(self, shadow: Shadow, holders: Container[str] | None = None) -> None:
        """Locks that are not certain any more do not become so again."""
        for life in shadow.lives.values():
            if (holders is None or life.holder in holders) and not self._is_valid(shadow, life):
                life.ends()

    def letter_arrived(self, message: OutgoingMessage) -> None:
        """A dead letter is in its topic."""
        headers = {name: (value or b"").decode() for name, value in message.headers}
        _, topic_id, partition, offset, _ = headers[ID_HEADER].rsplit(":", 4)
        place = topic_id, int(partition)
        self._letters.add((*place, int(offset)))
        # With its topic: a life may take one letter into two lanes, which no redrive does.
        known_as = headers[KAFKA_PREFIX + "topic"], headers[ID_HEADER]
        if self.letters_once and known_as in self._letter_ids:
            self.broken(f"dead letter {headers[ID_HEADER]} came twice")
        self._letter_ids.add(known_as)
        known = self.log.written.get(place, {}).get(int(offset), ())
        if headers[PAYLOAD_HEADER] == "whole" and message.value not in known:
            self.broken(f"dead letter {headers[ID_HEADER]}: {message.value!r} is another's value")

    def missing_letters(self) -> Iterator[str]:
        """What is owed to the dead-letter topic, in words."""
        for key, offset in self._owed:
            if not self._has_letter(key, offset):
                yield f"dead letter of {key.name}[{key.partition}]@{offset}"

    def _has_letter(self, key: PartitionKey, offset: int) -> bool:
        return (key.topic_id, key.partition, offset) in self._letters

    # -- what the database does -----------------------------------------------------------------

    def member_written(self, member_id: str, epoch: int, *, repeats: bool) -> None:
        """A member joined.

        Args:
            member_id: Who.
            epoch: Of this join.
            repeats: Whether epochs begin anew when a member was removed.
        """
        if epoch <= self._member_epochs.get(member_id, 0) and not repeats:
            last = self._member_epochs[member_id]
            self.broken(f"{member_id}: joined with epoch {epoch} after {last}")
        self._member_epochs[member_id] = epoch

    def released(self, partition_id: int) -> None:
        """A coordinator gave a share-partition free: the next one takes over all that it said."""
        shadow = self.by_id.get(partition_id)
        if shadow is not None:
            self.trace(f"  db: {name_of(shadow)} is free")
            self._forget_ended(shadow)
            shadow.owner = None

    def opened(self, row: PartitionRow) -> None:
        """A share-partition has a row."""
        known = self.by_id.get(row.partition_id)
        if known is None:
            shadow = Shadow(row.key, row.owner_epoch, row.state_epoch)
            shadow.void |= self._void_of_deleted.get(row.key, set())
            self.by_id[row.partition_id] = self.by_key[row.key] = shadow

    def claimed(self, row: PartitionRow) -> None:
        """A coordinator owns a share-partition from now on."""
        shadow = self.by_id[row.partition_id]
        if row.owner_epoch <= shadow.owner_epoch:
            self.broken(f"{name_of(shadow)}: claimed by {row.owner} without a new owner epoch")
        self.trace(f"  db: {name_of(shadow)} is {row.owner}'s, epoch {row.owner_epoch}")
        self._forget_ended(shadow)
        shadow.claimed_ms = now_ms = self._now_ms()
        if self.jumped_ms(now_ms) or (shadow.owner is not None and row.owner != shadow.owner):
            shadow.calm.clear()
        shadow.owner, shadow.owner_epoch = row.owner, row.owner_epoch
        for life in shadow.lives.values():
            if life.deadline_ms > now_ms:
                life.told_ms -= self.jumped_ms(life.granted_ms)

    @staticmethod
    def _seem_older(shadow: Shadow, by_ms: int) -> None:
        """What is being loaded is looked at with the time that was set meanwhile."""
        for life in shadow.lives.values():
            if life.deadline_ms:
                life.told_ms -= by_ms

    def jumped_ms(self, granted_ms: int) -> int:
        """How much older a lock seems to who loads it: its owner did not know the time set yet."""
        since_ms = granted_ms - JUMP_MEMORY_MS
        return sum(by for at, by in self._jumps if at >= since_ms and by > 0)

    def was_set_back(self, now_ms: int) -> bool:
        """Whether what was under way meanwhile may seem to be younger than it is."""
        return any(by < 0 and at >= now_ms - JUMP_MEMORY_MS for at, by in self._jumps)

    def _moved_ms(self, stored_ms: int) -> int:
        """How far off a time may be that was stored then: the clock was set, either way."""
        return sum(abs(by) for at, by in self._jumps if at >= stored_ms - JUMP_MEMORY_MS)

    def initialised(self, partition_id: int, head: PartitionHead) -> None:
        """The start offset was resolved."""
        shadow = self.by_id[partition_id]
        if shadow.start is None:
            shadow.start, shadow.end = head.start_offset, head.end_offset

    def closed(self, partition_id: int) -> None:
        """The topic was deleted or made again."""
        self.by_id[partition_id].closed = True
        self.by_id[partition_id].kept.clear()

    def log_cut(self, cut_key: PartitionKey, offset: int, epoch: int) -> None:
        """A log lost what it had from an offset on; what comes there is of the leader `epoch`."""
        for key, shadow in self.by_key.items():
            if (key.log_id, key.partition) == (cut_key.log_id, cut_key.partition):
                must = not self.is_side(shadow) and shadow.knows_epoch and shadow.end > offset
                shadow.cuts.append(Cut(offset, epoch, must))

    def _check_epoch(self, shadow: Shadow, part: PartitionCommit, head: PartitionHead) -> None:
        """The leader epoch that is stored is of the last record before the end."""
        if part.truncated_at is not None:
            voided = part.truncated_at
            shadow.cuts = [cut for cut in shadow.cuts if cut.offset < voided]
        epoch = head.end_leader_epoch
        if head.end_offset > shadow.end:
            # Where only retention has moved it nobody has read the record before it.
            # The state of a topic that is no more may follow the log of the next one of its name.
            over = shadow.key.topic_id in self.log.ended
            shadow.knows_epoch = not over and head.end_offset > self.log.start(shadow.key)
            known = self.log.epochs_at(shadow.key, head.end_offset - 1)
            may = known or {epoch if epoch >= 0 else 0}
            if shadow.knows_epoch and not self.is_side(shadow) and epoch not in may:
                self.broken(
                    f"{name_of(shadow)}: ends at {head.end_offset} with leader epoch {epoch}, and "
                    f"the record before it has one of {sorted(may)}"
                )
        left: list[Cut] = []
        log_start = self.log.start(shadow.key)
        for cut in shadow.cuts:
            if cut.offset < head.end_offset <= log_start:
                # Retention has taken all that the state was about.
                continue
            if head.end_offset > cut.offset and not cut.must_void:
                if epoch >= cut.epoch:
                    continue
                cut.must_void = epoch >= 0 and not self.is_side(shadow)
            left.append(cut)
        shadow.cuts = left

    def reset(self, row: PartitionRow) -> None:
        """An operator set a start offset: everything begins anew."""
        self.opened(row)
        shadow = self.by_id[row.partition_id]
        shadow.cuts.clear()
        shadow.knows_epoch = False
        if row.state_epoch <= shadow.state_epoch and shadow.start is not None:
            self.broken(f"{name_of(shadow)}: reset without a new state epoch")
        assert row.head is not None, "a reset sets it"
        shadow.state_epoch = row.state_epoch
        shadow.start = shadow.end = row.head.start_offset
        shadow.closed = False
        shadow.passed_over = ()
        shadow.rows.clear()
        shadow.forget_from(0)

    def redriven(
        self,
        row: PartitionRow,
        rows: Mapping[int, InFlightRow],
        taken: SelectionResult,
        *,
        again: bool,
    ) -> None:
        """Letters were taken into a lane: they begin anew, all else stays as it was.

        Args:
            row: The lane's row from now on.
            rows: Its ranges, by first offset.
            taken: What was taken in.
            again: Whether letters that were taken in before were wanted as well.
        """
        self.opened(row)
        shadow = self.by_id[row.partition_id]
        offsets = {at for first, last in taken.taken for at in range(first, last + 1)}
        twice = sorted(offsets & shadow.redriven)
        if twice and not again:
            self.broken(f"{name_of(shadow)}@{twice}: redriven twice")
        self._check_kept(shadow, rows, offsets)
        shadow.redriven |= offsets
        # What went out before they came could not wait for them.
        first = min(offsets, default=0)
        shadow.in_order = {grant for grant in shadow.in_order if grant[0] < first}
        for offset in offsets:
            shadow.waits.pop(offset, None)
            if shadow.lives.pop(offset, None) is not None:
                shadow.void.update(grant for grant in shadow.granted if grant[0] == offset)
        for grant in shadow.void & shadow.granted.keys():
            del shadow.granted[grant]
        self._has_window(shadow, row, rows)

    def withdrawn(
        self, row: PartitionRow, rows: Mapping[int, InFlightRow], taken: SelectionResult
    ) -> None:
        """Letters that nobody had seen were taken out of a lane."""
        self.opened(row)
        shadow = self.by_id[row.partition_id]
        offsets = {at for first, last in taken.taken for at in range(first, last + 1)}
        seen = sorted(offset for offset in offsets if shadow.life(offset).arrived)
        if seen:
            self.broken(f"{name_of(shadow)}@{seen}: withdrawn after members had them")
        self._check_kept(shadow, rows, offsets)
        shadow.redriven -= offsets
        self._has_window(shadow, row, rows)

    def _check_kept(
        self, shadow: Shadow, rows: Mapping[int, InFlightRow], changed: set[int]
    ) -> None:
        """What is not finished is as it was, but for offsets that were meant."""
        now = {at: each for each in rows.values() for at in range(each[0], each[1] + 1)}
        for old in shadow.rows.values():
            for offset in range(old[0], old[1] + 1) if old.state != ARCHIVED else ():
                if offset in changed and old.state == AVAILABLE and not old.hand_outs:
                    continue
                found = now.get(offset)
                if found is None or found[2:] != old[2:] or offset in changed:
                    shown = "nothing" if found is None else text_of(found)
                    self.broken(f"{name_of(shadow)}@{offset}: {text_of(old)} became {shown}")

    def _has_window(
        self, shadow: Shadow, row: PartitionRow, rows: Mapping[int, InFlightRow]
    ) -> None:
        assert row.head is not None, "a lane has one"
        if row.state_epoch <= shadow.state_epoch and shadow.start is not None:
            self.broken(f"{name_of(shadow)}: changed without a new state epoch")
        shadow.state_epoch, shadow.version = row.state_epoch, shadow.version + 1
        shadow.start, shadow.end = row.head.start_offset, row.head.end_offset
        shadow.closed = False
        shadow.rows = dict(rows)

    def committed(self, part: PartitionCommit) -> None:
        """A commit of one share-partition took effect."""
        if part.head is None:
            if part.upserted or part.deleted:
                self.broken(f"an outbox changes ranges of partition {part.partition_id}")
            return
        shadow = self.by_id.get(part.partition_id)
        if shadow is None:
            self.broken(f"a commit of partition {part.partition_id}, whose offsets were deleted")
            return
        name = name_of(shadow)
        head = part.head
        rows = "; ".join(text_of(row) for row in sorted(part.upserted)[:4])
        self.trace(f"  db: {name} [{head.start_offset}, {head.end_offset}) {rows}")
        if (part.owner_epoch, part.state_epoch) != (shadow.owner_epoch, shadow.state_epoch):
            self.broken(
                f"{name}: a commit of epochs {part.owner_epoch}, {part.state_epoch} took effect at "
                f"{shadow.owner_epoch}, {shadow.state_epoch}"
            )
        if shadow.start is None:
            self.broken(f"{name}: a commit before its start offset was resolved")
            shadow.start = shadow.end = head.start_offset
        if part.raises_state_epoch or part.passed_over is not None:
            shadow.state_epoch += 1
        moved_back = head.start_offset < shadow.start or head.end_offset < shadow.end
        if moved_back and not part.raises_state_epoch:
            self.broken(
                f"{name}: window [{shadow.start}, {shadow.end}) moved back to "
                f"[{head.start_offset}, {head.end_offset})"
            )
        self._check_epoch(shadow, part, head)
        letters = {letter.offset for letter in part.dead_letters}
        self._owed.update(dict.fromkeys((shadow.key, offset) for offset in letters))
        before = self.changed_rows(shadow, part)
        after = {o: row for row in part.upserted for o in range(row[0], row[1] + 1)}
        if part.truncated_at is not None:
            before = {at: row for at, row in before.items() if at < part.truncated_at}
            self._cut(shadow, part.truncated_at)
        self.order_of(shadow).excuse_broken_chains(shadow, before, after)
        self.delays.committed(shadow, before, after)
        self._check_moves(shadow, before, after, head)
        self._check_archiving(name, before, after, letters)
        self._check_skipped(shadow, after, head)
        shadow.start, shadow.end = head.start_offset, head.end_offset
        for row in part.upserted:
            shadow.rows[row[0]] = row
        self.kept.committed(shadow, part, before, after)
        self.pass_over(shadow, part)
        self.order_of(shadow).check(shadow, before, after)
        self._check_window(shadow)

    def _cut(self, shadow: Shadow, offset: int) -> None:
        """The log was cut: a commit says so before all else, and may know new records already."""
        shadow.truncated_at = offset
        shadow.end = min(shadow.end, offset)
        shadow.forget_from(offset)
        self.replays.cut(shadow.key, offset)

    def transaction_over(self) -> None:
        """All share-partitions of a commit are known."""
        for order in (self.order, self.side_order):
            order.check_apart(self.by_key.values())

    def _check_archiving(
        self,
        name: str,
        before: dict[int, InFlightRow],
        after: dict[int, InFlightRow],
        letters: Container[int],
    ) -> None:
        for offset, row in after.items():
            if row.state != ARCHIVING or offset in letters:
                continue
            if offset not in before or before[offset].state != ARCHIVING:
                self.broken(f"{name}@{offset}: {text_of(row)} without a stored letter")

    def changed_rows(self, shadow: Shadow, part: PartitionCommit) -> dict[int, InFlightRow]:
        """Takes what a commit changes out of the shadow: the former row of each offset."""
        if part.truncated_at is not None:
            memory_delayed.truncate(shadow.rows, part.truncated_at)
        firsts = [*part.deleted, *(row[0] for row in part.upserted)]
        rows = [row for first in firsts if (row := shadow.rows.pop(first, None)) is not None]
        return {o: row for row in rows for o in range(row[0], row[1] + 1)}

    def _check_moves(
        self,
        shadow: Shadow,
        before: dict[int, InFlightRow],
        after: dict[int, InFlightRow],
        head: PartitionHead,
    ) -> None:
        for offset, old in before.items():
            new = after.get(offset)
            if new is None:
                passed = offset < head.start_offset
                self._check_finished(shadow, offset, old, passed=passed)
            elif new is not old:
                self._check_move(shadow, offset, old, new)
        for offset, new in after.items():
            if offset not in before:
                if offset < shadow.end:
                    self.broken(
                        f"{name_of(shadow)}@{offset}: was finished and is {text_of(new)} again"
                    )
                self._check_move(shadow, offset, None, new)
            if offset < head.start_offset and new.state in (AVAILABLE, ACQUIRED):
                self.broken(f"{name_of(shadow)}@{offset}: {text_of(new)} below the start offset")

    def _check_finished(
        self, shadow: Shadow, offset: int, old: InFlightRow, *, passed: bool
    ) -> None:
        """A record has no row any more.

        Args:
            shadow: Its share-partition.
            offset: Where it is.
            old: Its last row.
            passed: Whether the start offset went over it: archived rows are dropped then.
        """
        if old.state == ARCHIVED and passed:
            return
        if old.state == ARCHIVING and passed:
            self._check_letter(shadow, offset)
            return
        if not self.log.holds(shadow.key, offset) and self.kept.needs_log(shadow, offset):
            return
        life, token = shadow.life(offset), old.lock_token
        fits = (token, ACCEPT) in life.said
        if passed and not fits:
            fits = (token, REJECT) in life.said or self._worn_out(shadow, life, old)
        if not fits:
            self.broken(f"{name_of(shadow)}@{offset}: {text_of(old)} is finished without cause")

    def _worn_out(self, shadow: Shadow, life: RecordLife, row: InFlightRow) -> bool:
        """Whether a record has had all its deliveries, and the last one is over."""
        if row.delivery_count < min(self._limits_in_force(shadow)):
            return False
        return life.token != row.lock_token or not self._is_valid(shadow, life)

    def _is_valid(self, shadow: Shadow, life: RecordLife) -> bool:
        """Whether a member may still believe in its lock."""
        return self._holds(shadow, life.holder, life.deadline_ms)

    def _holds(self, shadow: Shadow, holder: str | None, deadline_ms: int) -> bool:
        """Whether a member may still believe in a lock until then."""
        if holder is None or deadline_ms <= self._now_ms():
            return False
        silent_ms = self._silent.get(holder)
        gateway = self._gateway_of.get(holder)
        if gateway is not None and shadow.owner not in (None, gateway):
            # An owner that hears nothing of the gateway does not know that the member came later.
            unheard_ms = self.unheard_ms(gateway, str(shadow.owner))
            silent_ms = min((ms for ms in (silent_ms, unheard_ms) if ms is not None), default=None)
        return silent_ms is None or not self._session_over(silent_ms)

    def _check_move(
        self, shadow: Shadow, offset: int, old: InFlightRow | None, new: InFlightRow
    ) -> None:
        name, life = f"{name_of(shadow)}@{offset}", shadow.life(offset)
        count = 0 if old is None else old.delivery_count
        if old is not None and new.delivery_count < count:
            unseen = old.state == ACQUIRED and (
                old.lock_token not in life.arrived or old.lock_token in life.excused
            )
            over = shadow.key.topic_id in self.log.ended
            if not over and (not unseen or new.delivery_count < count - 1):
                self.broken(f"{name}: count of {text_of(old)} went down to {new.delivery_count}")
        counted = new.delivery_count >= count + (new.state == ACQUIRED)
        if old is not None and old.state == ACQUIRED and counted:
            self._check_was_sent(shadow, offset, life, old)
        if new.state == ACQUIRED:
            self._check_grant(shadow, offset, old, new)
        elif new.state in DEAD and (old is None or old.state not in DEAD):
            self._check_archived(shadow, offset, life, old, new)
        elif old is not None and (old.state, new.state) == (ARCHIVING, ARCHIVED):
            self._check_letter(shadow, offset)

    def _check_letter(self, shadow: Shadow, offset: int) -> None:
        """Nothing is ARCHIVED before its dead letter has arrived, but what is gone from the log."""
        if self.log.holds(shadow.key, offset) and not self._has_letter(shadow.key, offset):
            self.broken(f"{name_of(shadow)}@{offset}: ARCHIVED before its dead letter arrived")

    def _check_was_sent(
        self, shadow: Shadow, offset: int, life: RecordLife, old: InFlightRow
    ) -> None:
        """A delivery that counts has reached its member, if nothing stood in its way."""
        token = old.lock_token
        granted = shadow.calm.get((offset, token))
        if token in life.arrived or granted is None:
            return
        troubles, owner, way, until_ms = granted
        calm = troubles == self._troubles and way == self._way_to(old.member_id, owner)
        if calm and self._now_ms() < until_ms:
            self.broken(f"{name_of(shadow)}@{offset}: {text_of(old)} counts, and it was never sent")

    def _check_grant(
        self, shadow: Shadow, offset: int, old: InFlightRow | None, new: InFlightRow
    ) -> None:
        token, name = new.lock_token, f"{name_of(shadow)}@{offset}"
        if old is not None and goes_on(old, new):
            if (old.member_id, old.delivery_count) != (new.member_id, new.delivery_count):
                self.broken(f"{name}: {text_of(old)} became {text_of(new)} under one token")
            return
        if (offset, token) in shadow.granted or (offset, token) in shadow.void:
            self.broken(f"{name}: token {token} was used before")
        if new.delivery_count > max(self._limits_in_force(shadow)):
            self.broken(f"{name}: handed out {new.delivery_count} times, beyond the limit")
        self.check_granted(shadow, offset, str(new.member_id))
        shadow.granted[offset, token] = (str(new.member_id), new.delivery_count)
        way = self._way_to(new.member_id, shadow.owner)
        if way is not None:
            # Who can not load for longer than a lock may last with its extension says nothing.
            until_ms = self._now_ms() + 2 * new.granted_ms
            shadow.calm[offset, token] = (self._troubles, shadow.owner, way, until_ms)

    def _check_archived(
        self,
        shadow: Shadow,
        offset: int,
        life: RecordLife,
        old: InFlightRow | None,
        new: InFlightRow,
    ) -> None:
        reason = (new.reason or "").partition(":")[0]
        if reason == "DELIVERY_LIMIT":
            fits = old is not None and self._worn_out(shadow, life, old)
        elif reason == "REJECTED":
            fits = any(kind is REJECT for _, kind in life.said)
        elif reason == "LOG_START":
            fits = offset < self.log.start(shadow.key)
        else:
            fits = False
        if not fits and self.log.holds(shadow.key, offset):
            self.broken(f"{name_of(shadow)}@{offset}: {text_of(new)} without cause")

    def _check_skipped(
        self, shadow: Shadow, after: dict[int, InFlightRow], head: PartitionHead
    ) -> None:
        """What the window moved over without a row must not be a record."""
        settled = offsets_of(shadow.passed_over)
        # Whoever does not know of a cut yet goes by the log before it.
        known_to = min((cut.offset for cut in shadow.cuts), default=head.end_offset)
        for offset in range(shadow.end, min(head.end_offset, known_to)):
            if offset in settled:
                continue
            if offset not in after and self.log.holds(shadow.key, offset):
                self.broken(f"{name_of(shadow)}@{offset}: skipped, but it is a record")

    def _check_window(self, shadow: Shadow) -> None:
        """New records enter only while there is room; what was delayed comes back beside them."""
        if self._window_max:
            rows = shadow.rows.values()
            new = sum(r[1] - r[0] + 1 for r in rows if r.state == ACQUIRED and r.hand_outs == 1)
            if new > self._window_max:
                self.broken(f"{name_of(shadow)}: {new} new records under locks")

    def _way_to(self, member_id: str | None, owner: str | None) -> object:
        """The stream on which an owner reaches a member, and the link to it; None = it may not."""
        stream, gateway = self._stream_of.get(str(member_id), (None, ""))
        if stream is None or owner is None:
            return None
        link = 0 if gateway == owner else self.way(str(member_id), gateway, owner)
        return None if link is None else (stream, link)

    def _session_over(self, silent_ms: int) -> bool:
        return self._now_ms() - silent_ms >= self._session_timeout_ms - SESSION_MARGIN_MS
