"""This project's dispatcher: rounds of equal parts, learnt prefetch, a window that grows.

The rounds follow `sharecoord.runtime.group.dispatch`; pace, prefetch and window are the code of the
coordinator (`sharecoord.core.dispatch.pace`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sharecoord.analytics.whatif.world import (
    KEY_BLOCK,
    NETWORK_MS,
    Acknowledgements,
    HandedRange,
    Member,
    Share,
    World,
)
from sharecoord.core.dispatch.pace import (
    FIRST_RECORDS_MAX,
    Pace,
    grown_window,
    prefetch_max,
    window_follows,
)
from sharecoord.core.limits import ACQUIRE_RECORDS_MAX, DELIVERY_BYTES_MAX
from sharecoord.core.partition.acquire import Run
from sharecoord.core.states import AcquireMode, Ordering

COMMIT_MS: Final = 2.0
"""Time until a group commit is durable; deliveries leave only then."""


@dataclass(eq=False, slots=True)
class Seat:
    """A member as the coordinator sees it, and the records in the member's buffer."""

    member: Member
    pace: Pace = field(default_factory=Pace)
    joined: bool = False
    stalled: bool = False
    working: bool = False
    counted: int = 0
    """The member's part of `FairWorld._holds_total`."""
    buffer: deque[HandedRange] = field(default_factory=deque)


class FairWorld(World):
    """A group whose records this project's dispatcher hands out.

    Args:
        poll_records: Most records that a poll returns.
        max_poll_records: Records that a member wants to hold at least; 0 = it does not say.
        record_locks: The window; it grows from there unless `is_fixed`.
        is_fixed: Whether the window is set by hand.
        record_bytes: Mean size of a record.
        common: Arguments of `World`.
    """

    def __init__(
        self,
        *,
        poll_records: int,
        max_poll_records: int,
        record_locks: int,
        is_fixed: bool,
        record_bytes: int,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._poll_records = poll_records
        self._max_poll_records = max_poll_records
        self._record_locks = record_locks
        self._is_fixed = is_fixed
        self._record_bytes = record_bytes
        self._prefetch_max = prefetch_max(record_bytes)
        in_bytes = max(1, DELIVERY_BYTES_MAX // max(1, record_bytes))
        self._message_records = min(ACQUIRE_RECORDS_MAX, in_bytes)
        self._seats = {member.member_id: Seat(member) for member in self.members}
        self._waiting: OrderedDict[Seat, None] = OrderedDict()
        self._ready: dict[Share, None] = {}
        self._holds_total = self._joined = 0
        self._by_key = self.shares[0].partition.settings.ordering is Ordering.KEY

    def begin(self, member: Member) -> None:
        """A member joins."""
        seat = self._seats[member.member_id]
        seat.joined = True
        self._joined += 1
        self._count(seat)
        self._offer(seat)
        self._turn()

    def has_more(self, share: Share) -> None:
        """A partition may have records to hand out, or members hold fewer of it than before."""
        self._ready[share] = None
        for member_id in share.window.take_freed():
            self._offer(self._seats[member_id])
        self._turn()

    def timed_out(self, member: Member) -> None:
        """A member gets no records until it acknowledges, and its pace is learnt again."""
        seat = self._seats[member.member_id]
        seat.stalled, seat.pace = True, Pace(forgotten=True)
        self._waiting.pop(seat, None)

    # -- handing out ----------------------------------------------------------------------------

    def _wants(self, seat: Seat) -> int:
        """How many records a member may get now."""
        if seat.stalled or not seat.joined:
            return 0
        ceiling = max(min(seat.pace.prefetch, self._prefetch_max), self._max_poll_records)
        if seat.pace.is_new and self._joined == 1 and not self._max_poll_records:
            ceiling = FIRST_RECORDS_MAX
        room = ceiling - self.held.get(seat.member.member_id, 0)
        return room if room >= seat.pace.refill(ceiling, self._record_bytes) else 0

    def _offer(self, seat: Seat) -> None:
        if self._wants(seat) > 0:
            self._waiting.setdefault(seat, None)
        else:
            self._waiting.pop(seat, None)

    def _available(self, share: Share) -> int:
        return share.partition.ready + min(share.fresh, share.partition.room)

    def _turn(self) -> None:
        """Hands out the records of the partitions, one partition after the other."""
        for share in list(self._ready):
            if not self._waiting:
                return
            del self._ready[share]
            self._hand_out(share)
            if self._available(share) > 0:
                self._ready[share] = None

    def _hand_out(self, share: Share) -> None:
        """Hands out rounds of equal parts, until no records are left or no member wants any."""
        while self._waiting and (available := self._available(share)) > 0:
            fair = max(1, available // len(self._waiting))
            sent, later = 0, []
            for _ in range(len(self._waiting)):
                seat, _ = self._waiting.popitem(last=False)
                sent += self._serve(share, seat, min(fair, self._wants(seat)))
                if self._wants(seat) > 0:
                    later.append(seat)
                if sent >= available:
                    break
            self._waiting.update(dict.fromkeys(later))
            if not sent:
                return

    def _serve(self, share: Share, seat: Seat, wanted: int) -> int:
        """Hands one member up to `wanted` records, in deliveries; returns their number."""
        got = 0
        while got < wanted:
            handed = self._acquire(share, seat, min(wanted - got, self._message_records))
            if not handed:
                break
            got += sum(part.records for part in handed)
            way_ms = COMMIT_MS + self.delay(NETWORK_MS)
            self.clock.after(way_ms, self._receives, seat, handed)
        return got

    def _acquire(self, share: Share, seat: Seat, wanted: int) -> list[HandedRange]:
        member_id = seat.member.member_id
        fresh: list[Run] = []
        first, left = share.window.end_offset, min(wanted, share.fresh)
        while left > 0:
            last = first + left - 1
            if self._by_key:
                last = min(last, first - first % KEY_BLOCK + KEY_BLOCK - 1)
            fresh.append(Run(first, last, share.log.keys_of(first, last)))
            left -= last - first + 1
            first = last + 1
        due = share.partition.due_ranges(wanted, member_id)
        return self.acquire(share, member_id, wanted, AcquireMode.FAIR, due, fresh)

    # -- the member -----------------------------------------------------------------------------

    def _receives(self, seat: Seat, handed: Sequence[HandedRange]) -> None:
        seat.buffer.extend(handed)
        if not seat.working:
            self._poll(seat)

    def _poll(self, seat: Seat) -> None:
        """Takes records from the buffer whose locks still hold, and works on them."""
        taken: list[HandedRange] = []
        left = self._poll_records
        while seat.buffer and left > 0:
            part = seat.buffer.popleft()
            if not part.is_held:
                continue
            if part.records > left:
                part, rest = part.split(left)
                seat.buffer.appendleft(rest)
            left -= part.records
            taken.append(part)
        seat.working = bool(taken)
        if taken:
            took_ms = self.work(seat.member, taken)
            self.clock.after(took_ms, self._finished, seat, taken, took_ms)

    def _finished(self, seat: Seat, handed: Sequence[HandedRange], took_ms: float) -> None:
        """The next poll acknowledges the records of the last one, and takes new ones."""
        acknowledgements = self.failures.acknowledge(handed)
        way_ms = self.delay(NETWORK_MS)
        self.clock.after(way_ms, self._acknowledged, seat, acknowledgements, took_ms)
        self._poll(seat)

    def _acknowledged(
        self,
        seat: Seat,
        acknowledgements: Acknowledgements,
        took_ms: float,
    ) -> None:
        seat.stalled = False
        records = 0
        for share, ranges in acknowledgements.items():
            self.settle(seat.member, share, ranges)
            records += sum(each.last - each.first + 1 for each in ranges)
        held = self.held.get(seat.member.member_id, 0)
        seat.pace.worked(
            records,
            took_ms,
            holds=max(seat.counted, held + records),
            drained=not held,
            lock_ms=self.shares[0].partition.settings.lock_duration_ms,
        )
        self._count(seat)
        self._window_follows()
        self._offer(seat)
        for share in acknowledgements:
            self.has_more(share)

    def _count(self, seat: Seat) -> None:
        """Updates the sum of the records that members may hold."""
        holds = max(seat.pace.prefetch, self._max_poll_records)
        self._holds_total += holds - seat.counted
        seat.counted = holds

    def _window_follows(self) -> None:
        """A window that is not set by hand follows the members' pace."""
        if self._is_fixed:
            return
        wanted = grown_window(self._record_locks, self._holds_total, self._joined)
        settings = self.shares[0].partition.settings
        if window_follows(settings.record_locks_max, wanted):
            for share in self.shares:
                share.partition.settings = settings._replace(record_locks_max=wanted)
                self._ready[share] = None
