"""Order by key inside one window: which records may go out now, and to whom (design 5.6).

A record is ready for a member when every earlier unfinished record of its key is held by that
member: the records of a key go out as a chain to one member. Records without a key have no order.
In `partition` order all records share one key. A record whose key is not known (it entered before
the group kept order) goes out alone: after everything earlier is finished, before anything later.
A chain has at most `PartitionSettings.chain_max` records, so that a frequent key leaves its
member's credit, and the locks of the window, to all others; in `partition` order there are none.
A key may be blocked by an operator: its records wait until it is unblocked, all others go on.

`KeyOrder` follows a window through `note` (called by `Window.apply` alone) and costs O(records)
per change, so groups without order have none.
"""

from __future__ import annotations

import heapq
import struct
import sys
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from sharecoord.core.counts import add_to
from sharecoord.core.key_lane import Lane, enter, leave
from sharecoord.core.states import RecordState

if TYPE_CHECKING:
    from sharecoord.core.shared_keys import SharedKeys
    from sharecoord.core.window import Edit, Keys, RangeState, Window

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED

NO_KEY = 0
WHOLE_PARTITION = 1
"""The one key of all records in `partition` order."""


class KeyOrder:
    """The keys of a window's unfinished records."""

    def __init__(
        self,
        window: Window,
        *,
        whole_partition: bool,
        chain_max: int,
        shared: SharedKeys | None = None,
        blocked: frozenset[int] = frozenset(),
    ) -> None:
        self._window = window
        self.shared = shared
        """What other share-partitions have out; None = no other one has these keys."""
        self._whole = whole_partition
        self.chain_max = sys.maxsize if whole_partition else chain_max
        """Records of one key that are out at a time."""
        self.blocked = blocked
        """Hashes of the keys of which nothing is handed out."""
        self.parked = 0
        """Records that wait because their key is blocked."""
        self.lanes: dict[int, Lane] = {}
        self.unknown: list[int] = []
        """Unfinished offsets whose key is not known, ascending."""
        self._ready = 0
        self._touched: set[int] = set()
        self._free: list[int] = []
        self._keyless: list[int] = []
        self._extendable: dict[str, dict[int, Lane]] = {}
        for first, last, value in window.ranges:
            self._move(first, last, None, value)
        self.settle()

    def count(self, sign: int) -> None:
        """Adds what members hold to `Window.chained`; -1 = takes it out again."""
        for lane in self.lanes.values() if not self._whole else ():
            for member_id, held in lane.holders.items():
                if held > 1:
                    add_to(self._window.chained, member_id, sign * (held - 1))

    # -- blocked keys ---------------------------------------------------------------------------

    def block(self, blocked: frozenset[int]) -> None:
        """Blocks these keys and no others; what is under a lock runs on."""
        self._touched |= self.blocked ^ blocked
        self.blocked = blocked
        self.settle()

    def waiting_of(self, key: int) -> int:
        """How many records of a key wait."""
        lane = self.lanes.get(key)
        return 0 if lane is None else len(lane.waiting)

    def is_free(self, key: int) -> bool:
        """Whether the next record of a key could go out: it waits, is due, and nobody holds one."""
        lane = self.lanes.get(key)
        return lane is not None and lane.counted > 0

    def first_parked(self) -> int | None:
        """The lowest offset that waits because its key is blocked."""
        lanes = [lane for key in self.blocked if (lane := self.lanes.get(key))]
        return min((lane.waiting[0] for lane in lanes if lane.waiting), default=None)

    # -- following the window -------------------------------------------------------------------

    def note(self, edits: Sequence[Edit]) -> None:
        """Takes in edits that the window is about to carry out; `settle` must follow."""
        get = self._window.ranges.get
        back: list[tuple[int, int, RangeState, RangeState]] = []
        for first, last, value in edits:
            found = get(first)
            old = found[2] if found else None
            if old is not None and value is not None and value.state is AVAILABLE:
                back.append((first, last, old, value))
            else:
                self._move(first, last, old, value)
        # Highest first: what goes back goes to the front of its lane.
        for first, last, old, value in reversed(back):
            self._move(first, last, old, value)

    def drop(self, first: int, last: int, old: RangeState) -> None:
        """Takes in that [first, last] leaves the window; `settle` must follow."""
        self._move(first, last, old, None)

    def became_due(self, first: int, last: int, value: RangeState) -> None:
        """Takes in that the wait of a range is over."""
        for offset, key in self._keyed(first, last, value):
            if key == NO_KEY:
                self._ready += 1
                heapq.heappush(self._keyless, offset)
            elif key is not None:
                self._touched.add(key)

    def settle(self) -> None:
        """Brings the indexes up to date after the window has changed."""
        for key in self._touched:
            lane = self.lanes.get(key)
            if lane is not None:
                self._refresh(key, lane)
        self._touched.clear()
        if len(self._free) + len(self._keyless) > 1_024 + 4 * self._window.due:
            self._rebuild()

    def _keyed(self, first: int, last: int, value: RangeState) -> Iterable[tuple[int, int | None]]:
        """The offsets of a range with their keys; None = not known."""
        return zip(range(first, last + 1), self.keys_of(first, last, value.keys), strict=True)

    def keys_of(self, first: int, last: int, keys: Keys | None) -> Sequence[int | None]:
        """The keys of [first, last], 0 = none, None = not known."""
        count = last - first + 1
        if self._whole:
            return (WHOLE_PARTITION,) * count
        if keys is None:
            return (None,) * count
        return struct.unpack_from(f">{count}Q", keys.hashes, (first - keys.base_offset) * 8)

    def _move(self, first: int, last: int, old: RangeState | None, new: RangeState | None) -> None:
        was = old.state if old is not None and old.state in (AVAILABLE, ACQUIRED) else None
        now = new.state if new is not None and new.state in (AVAILABLE, ACQUIRED) else None
        source = old if old is not None and was is not None else new
        if source is None or was is now is not AVAILABLE:
            return
        was_due = was is AVAILABLE and old is not None and not self._window.is_delayed(old)
        now_due = now is AVAILABLE and new is not None and not self._window.is_delayed(new)
        old_member = old.member_id if old is not None and was is ACQUIRED else None
        new_member = new.member_id if new is not None and now is ACQUIRED else None
        chained = None if self._whole else self._window.chained
        pairs = self._keyed(first, last, source)
        if was is ACQUIRED and now is AVAILABLE:
            pairs = reversed(list(pairs))
        for offset, key in pairs:
            if key == NO_KEY:
                self._ready += now_due - was_due
                if now_due:
                    heapq.heappush(self._keyless, offset)
            elif key is None:
                self._move_unknown(offset, was, now)
            else:
                self._touched.add(key)
                lane = self.lanes.get(key)
                if lane is None:
                    lane = self.lanes[key] = Lane()
                leave(lane, offset, was, old_member, chained)
                enter(lane, offset, now, new_member, chained)

    def _move_unknown(self, offset: int, was: RecordState | None, now: RecordState | None) -> None:
        if was is None and now is not None:
            insort(self.unknown, offset)
        elif now is None and was is not None:
            del self.unknown[bisect_left(self.unknown, offset)]

    def _refresh(self, key: int, lane: Lane) -> None:
        """Files a lane under what may happen to it next."""
        counted, is_blocked = 0, key in self.blocked
        parked = len(lane.waiting) if is_blocked else 0
        self.parked += parked - lane.parked
        lane.parked = parked
        if lane.waiting and not lane.holders and not is_blocked:
            head = lane.waiting[0]
            if self._is_due(head):
                counted = min(len(lane.waiting), self.chain_max)
                if lane.listed != head:
                    lane.listed = head
                    heapq.heappush(self._free, head)
        self._ready += counted - lane.counted
        lane.counted = counted
        if self.shared is not None:
            self.shared.note(key, self, is_out=bool(lane.holders))
        alone = len(lane.holders) == 1 and bool(lane.waiting) and not is_blocked
        alone = alone and len(lane.held) < self.chain_max
        extender = next(iter(lane.holders)) if alone else None
        if extender != lane.extender:
            if lane.extender is not None:
                lanes = self._extendable[lane.extender]
                del lanes[key]
                if not lanes:
                    del self._extendable[lane.extender]
            if extender is not None:
                self._extendable.setdefault(extender, {})[key] = lane
            lane.extender = extender
        if not lane.waiting and not lane.held:
            del self.lanes[key]

    def _is_due(self, offset: int) -> bool:
        found = self._window.ranges.get(offset)
        assert found is not None, f"the order knows {offset}, the window does not"
        return not self._window.is_delayed(found[2])

    def _rebuild(self) -> None:
        """Rids the heaps of what is out of date."""
        for lane in self.lanes.values():
            lane.listed = lane.waiting[0] if lane.counted else -1
        self._free = sorted(lane.listed for lane in self.lanes.values() if lane.counted)
        self._keyless = sorted({at for at in self._keyless if self._is_ready_without_key(at)})

    # -- what may go out ------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """Due records that a member without locks could have; a bound, it may be too high."""
        barrier = self.barrier
        return self._ready + (barrier is not None and self._is_waiting_and_due(barrier))

    @property
    def barrier(self) -> int | None:
        """The lowest unfinished offset with an unknown key: nothing with a key passes it."""
        return self.unknown[0] if self.unknown else None

    def barrier_is_free(self) -> bool:
        """Whether nothing with a key is unfinished before the barrier."""
        barrier = self.unknown[0]
        return not any(
            (lane.waiting and lane.waiting[0] < barrier) or (lane.held and lane.held[0] < barrier)
            for lane in self.lanes.values()
        )

    def ready_ranges(
        self, records_max: int, member_id: str | None
    ) -> list[tuple[int, int, RangeState]]:
        """What a member may have of what is due, lowest offset first, at most `records_max`.

        Without a member: what a member without locks could have.
        """
        found: list[tuple[int, int, RangeState]] = []
        end = -1
        for offset in self._ready_offsets(records_max, member_id):
            if offset <= end and found[-1][1] + 1 == offset:
                found[-1] = (found[-1][0], offset, found[-1][2])
                continue
            present = self._window.ranges.get(offset)
            assert present is not None, f"the order knows {offset}, the window does not"
            end = present[1]
            found.append((offset, offset, present[2]))
        return found

    def _ready_offsets(self, records_max: int, member_id: str | None) -> list[int]:
        """Ready offsets, ascending: a merge of the keyless, the free lanes, the member's lanes."""
        merge: list[tuple[int, Iterator[int] | None]] = []
        for lane in self._extendable.get(member_id or "", {}).values():
            _push_next(merge, islice(lane.waiting, self.chain_max - len(lane.held)))
        end, barrier = self._window.end_offset, self.barrier
        if barrier is not None:
            end = barrier
            if self._is_waiting_and_due(barrier) and self.barrier_is_free():
                heapq.heappush(merge, (barrier, None))
        offsets: list[int] = []
        valid_free: list[int] = []
        valid_keyless: list[int] = []
        while len(offsets) < records_max:
            self._pull_free(merge, end, valid_free)
            self._pull_keyless(merge, valid_keyless)
            if not merge:
                break
            offset, following = heapq.heappop(merge)
            if following is None:
                offsets.append(offset)
            elif offset < end and self._is_due(offset):
                offsets.append(offset)
                _push_next(merge, following)
        for head in valid_free:
            heapq.heappush(self._free, head)
        for offset in valid_keyless:
            heapq.heappush(self._keyless, offset)
        return offsets

    def _pull_free(
        self, merge: list[tuple[int, Iterator[int] | None]], end: int, valid: list[int]
    ) -> None:
        """Adds to a merge the lanes that nobody holds and that come before its lowest offset."""
        heap = self._free
        while heap and heap[0] < end and (not merge or heap[0] < merge[0][0]):
            head = heapq.heappop(heap)
            lane = self._free_lane(head)
            if lane is not None and (not valid or valid[-1] != head):
                valid.append(head)
                if not self._is_barred(head):
                    _push_next(merge, islice(lane.waiting, self.chain_max))

    def _is_barred(self, head: int) -> bool:
        """Whether another share-partition has the key of a free lane out."""
        if self.shared is None:
            return False
        found = self._window.ranges.get(head)
        assert found is not None, f"the order knows {head}, the window does not"
        (key,) = self.keys_of(head, head, found[2].keys)
        return bool(key) and self.shared.bars(key or NO_KEY, self)

    def _pull_keyless(
        self, merge: list[tuple[int, Iterator[int] | None]], valid: list[int]
    ) -> None:
        """Adds to a merge the records without a key that come before its lowest offset."""
        heap = self._keyless
        while heap and (not merge or heap[0] < merge[0][0]):
            offset = heapq.heappop(heap)
            if self._is_ready_without_key(offset) and (not valid or valid[-1] != offset):
                valid.append(offset)
                heapq.heappush(merge, (offset, None))

    def _is_waiting_and_due(self, offset: int) -> bool:
        found = self._window.ranges.get(offset)
        return (
            found is not None
            and found[2].state is AVAILABLE
            and not self._window.is_delayed(found[2])
        )

    def _is_ready_without_key(self, offset: int) -> bool:
        """Whether an entry of the heap is current (a truncation lets offsets be used again)."""
        found = self._window.ranges.get(offset)
        return (
            found is not None
            and found[2].state is AVAILABLE
            and not self._window.is_delayed(found[2])
            and self.keys_of(offset, offset, found[2].keys) == (NO_KEY,)
        )

    def _free_lane(self, head: int) -> Lane | None:
        """The lane that this entry of the heap stands for, if nobody holds it and it is due."""
        found = self._window.ranges.get(head)
        if found is None:
            return None
        (key,) = self.keys_of(head, head, found[2].keys)
        lane = self.lanes.get(key) if key else None
        if lane is None:
            return None
        if lane.counted and lane.waiting[0] == head:
            return lane
        if lane.listed == head:
            lane.listed = -1
        return None

    # -- chains that break ----------------------------------------------------------------------

    def rest_of_chains(self, broken: Iterable[tuple[int, int, RangeState]]) -> list[int]:
        """Later records, under locks of the same member, of the keys in these ACQUIRED pieces."""
        lowest: dict[tuple[int, str | None], int] = {}
        for first, last, value in broken:
            for offset, key in self._keyed(first, last, value):
                if key and offset < lowest.get((key, value.member_id), offset + 1):
                    lowest[key, value.member_id] = offset
        rest: list[int] = []
        for (key, member_id), offset in lowest.items():
            lane = self.lanes[key]
            if lane.held[-1] <= offset:
                continue
            alone = len(lane.holders) == 1
            rest += [
                later
                for later in lane.held
                if later > offset and (alone or self._holder(later) == member_id)
            ]
        rest.sort()
        return rest

    def _holder(self, offset: int) -> str | None:
        found = self._window.ranges.get(offset)
        return found[2].member_id if found else None


class Admission:
    """What order lets one member have, record by record in ascending order, in one plan."""

    def __init__(self, order: KeyOrder, member_id: str) -> None:
        self._order = order
        self._member_id = member_id
        self._stopped: set[int] = set(order.blocked)
        self._next: dict[int, tuple[int, Iterator[int]]] = {}
        self._room: dict[int, int] = {}
        """How many more of a key may go out."""
        self._barrier = order.barrier
        self._took_keyed = False

    def split(
        self,
        first: int,
        last: int,
        keys: Keys | None,
        *,
        new: bool = False,
        most: int | None = None,
    ) -> Iterator[tuple[int, int, bool]]:
        """Cuts [first, last] into pieces that the member may have and that it may not.

        Looks no further than it is asked.

        Args:
            first: First offset; beyond all that was asked about before.
            last: Last offset.
            keys: Their keys.
            new: Whether these are records from beyond the window.
            most: Ends after so many that the member may have; None = at `last`.
        """
        start, before = first, False
        left = last - first + 1 if most is None else most
        admits = self._admits_new if new else self._admits_waiting
        for at, key in enumerate(self._order.keys_of(first, last, keys), first):
            admitted = key == NO_KEY or admits(at, key)
            if at == first:
                before = admitted
            elif admitted is not before:
                yield start, at - 1, before
                start, before = at, admitted
            left -= admitted
            if not left:
                yield start, at, before
                return
        yield start, last, before

    def pass_over(self, first: int, last: int, keys: Keys | None) -> None:
        """Takes in that [first, last] is finished by the same plan: later ones may follow."""
        for at, key in enumerate(self._order.keys_of(first, last, keys), first):
            if key:
                self._take_next(at, key)

    def stop(self, first: int, last: int, keys: Keys | None) -> None:
        """Takes in that new records [first, last] wait: nothing of their keys follows."""
        for at, key in enumerate(self._order.keys_of(first, last, keys), first):
            if key is not None:
                self._stopped.add(key)
            elif self._barrier is None:
                self._barrier = at

    def _admits_waiting(self, offset: int, key: int | None) -> bool:
        """A record of the window."""
        barrier = self._barrier
        if key is None:
            return offset == barrier and not self._took_keyed and self._order.barrier_is_free()
        if (barrier is not None and offset > barrier) or not self._is_open(key):
            return False
        if not self._take_next(offset, key) or not self._has_room(key):
            return False
        self._took_keyed = True
        return True

    def _admits_new(self, offset: int, key: int | None) -> bool:
        """A record from beyond the window."""
        if key is None:
            free = self._barrier is None and not self._took_keyed and not self._order.lanes
            if self._barrier is None:
                self._barrier = offset
            return free
        if self._barrier is not None or not self._is_open(key):
            self._stopped.add(key)
            return False
        lane = self._order.lanes.get(key)
        if lane is not None and lane.waiting and not self._took_all(key):
            self._stopped.add(key)
            return False
        if not self._has_room(key):
            return False
        self._took_keyed = True
        return True

    def _has_room(self, key: int) -> bool:
        """Whether the chain may get longer; it does."""
        room = self._room.get(key)
        if room is None:
            lane = self._order.lanes.get(key)
            room = self._order.chain_max - (len(lane.held) if lane is not None else 0)
        if room <= 0:
            self._stopped.add(key)
            return False
        self._room[key] = room - 1
        return True

    def _is_open(self, key: int) -> bool:
        """Whether nobody else holds the key, and nothing of it was left out of this plan."""
        if key in self._stopped:
            return False
        lane, shared = self._order.lanes.get(key), self._order.shared
        held = lane is not None and bool(lane.holders)
        if shared is not None and (
            shared.ends_chain(key, self._order) if held else shared.bars(key, self._order)
        ):
            self._stopped.add(key)
            return False
        return lane is None or not lane.holders or [*lane.holders] == [self._member_id]

    def _take_next(self, offset: int, key: int) -> bool:
        """Whether this is the next waiting record of its key, and no earlier one is left out."""
        known = self._next.get(key)
        if known is None:
            following = iter(self._order.lanes[key].waiting)
            expected = next(following, -1)
        else:
            expected, following = known
        if expected != offset:
            self._stopped.add(key)
            return False
        self._next[key] = (next(following, -1), following)
        return True

    def _took_all(self, key: int) -> bool:
        return key in self._next and self._next[key][0] == -1


def _push_next(merge: list[tuple[int, Iterator[int] | None]], following: Iterator[int]) -> None:
    """Adds a lane's next waiting record to a merge."""
    offset = next(following, None)
    if offset is not None:
        heapq.heappush(merge, (offset, following))
