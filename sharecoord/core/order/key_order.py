"""Order by key inside one window: the records that may go out now, by member (design 5.6).

A record is ready for a member when every earlier unfinished record of its key is held by that
member: the records of a key go out as a chain to one member. Records without a key have no order.
In `partition` order all records share one key. A record whose key is not known (it entered before
the group kept order) goes out alone: after everything earlier is finished, before anything later.
A chain has at most `PartitionSettings.chain_max` records, so that a frequent key leaves its
member's credit, and the locks of the window, to all others; in `partition` order there are none.
A key may be blocked by an operator: its records wait until it is unblocked, all others go on.

`KeyOrder` follows a window and costs O(records) per change, so groups without order have none.
"""

from __future__ import annotations

import heapq
import struct
import sys
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from sharecoord.core.counts import add_to
from sharecoord.core.order.key_queue import KeyQueue
from sharecoord.core.order.shared_keys import KeyUser, SharedKeys
from sharecoord.core.states import RecordState
from sharecoord.core.window.range_state import Edit, Keys, Range, RangeState, WindowFollower
from sharecoord.core.window.window import Window

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED

NO_KEY = 0
WHOLE_PARTITION = 1
"""The one key of all records in `partition` order."""


class KeyOrder(WindowFollower, KeyUser):
    """The keys of a window's unfinished records."""

    def __init__(
        self,
        window: Window,
        *,
        whole_partition: bool,
        chain_max: int,
        chained: dict[str, int],
        shared: SharedKeys | None = None,
        blocked_keys: frozenset[int] = frozenset(),
    ) -> None:
        self._window = window
        self.shared = shared
        """The keys in common with other share-partitions; None = no other one has these keys."""
        self._whole = whole_partition
        self._chained = None if whole_partition else chained
        """Records that members hold behind earlier ones of their keys, over all share-partitions of
        the group."""
        self.chain_max = sys.maxsize if whole_partition else chain_max
        """Records of one key that are out at a time."""
        self.blocked_keys = blocked_keys
        """Hashes of the keys whose records are not handed out."""
        self.blocked_records = 0
        """Records that wait because their key is blocked."""
        self.queues: dict[int, KeyQueue] = {}
        self.unknown: list[int] = []
        """Unfinished offsets whose key is not known, ascending."""
        self._ready = 0
        self._touched: set[int] = set()
        self._free: list[int] = []
        self._keyless: list[int] = []
        self._extendable: dict[str, dict[int, KeyQueue]] = {}
        for first, last, value in window.ranges:
            self._move(first, last, None, value)
        self.settle()

    def leave(self) -> None:
        """Ends the order: takes its counts out, and frees its keys for other share-partitions."""
        self._count(-1)
        if self.shared is not None:
            self.shared.leave(self)

    def count_into(self, chained: dict[str, int]) -> None:
        """Counts records behind earlier ones of their keys into this dict from now on."""
        if self._chained is not None:
            self._count(-1)
            self._chained = chained
            self._count(1)

    def _count(self, sign: int) -> None:
        if self._chained is None:
            return
        for queue in self.queues.values():
            for member_id, held in queue.holders.items():
                if held > 1:
                    add_to(self._chained, member_id, sign * (held - 1))

    # -- blocked keys ---------------------------------------------------------------------------

    def block(self, keys: frozenset[int]) -> None:
        """Blocks these keys and no others; records under a lock run on."""
        self._touched |= self.blocked_keys ^ keys
        self.blocked_keys = keys
        self.settle()

    def waiting_of(self, key: int) -> int:
        """How many records of a key wait."""
        queue = self.queues.get(key)
        return 0 if queue is None else len(queue.waiting)

    def is_free(self, key: int) -> bool:
        """Whether the next record of a key could go out: it waits, is due, and nobody holds one."""
        queue = self.queues.get(key)
        return queue is not None and queue.ready > 0

    def first_blocked(self) -> int | None:
        """The lowest offset that waits because its key is blocked."""
        queues = [queue for key in self.blocked_keys if (queue := self.queues.get(key))]
        return min((queue.waiting[0] for queue in queues if queue.waiting), default=None)

    # -- following the window -------------------------------------------------------------------

    def note(self, edits: Sequence[Edit]) -> None:
        """See `WindowFollower`."""
        get = self._window.ranges.get
        back: list[tuple[int, int, RangeState, RangeState]] = []
        for first, last, value in edits:
            found = get(first)
            old = found[2] if found else None
            if old is not None and value is not None and value.state is AVAILABLE:
                back.append((first, last, old, value))
            else:
                self._move(first, last, old, value)
        # Highest offset first: each record that goes back goes to the front of its queue.
        for first, last, old, value in reversed(back):
            self._move(first, last, old, value)

    def drop(self, first: int, last: int, old: RangeState) -> None:
        """See `WindowFollower`."""
        self._move(first, last, old, None)

    def became_due(self, first: int, last: int, value: RangeState) -> None:
        """See `WindowFollower`."""
        for offset, key in self._keyed(first, last, value):
            if key == NO_KEY:
                self._ready += 1
                heapq.heappush(self._keyless, offset)
            elif key is not None:
                self._touched.add(key)

    def settle(self) -> None:
        """See `WindowFollower`: refreshes the queues of the keys that the change touched."""
        for key in self._touched:
            queue = self.queues.get(key)
            if queue is not None:
                self._refresh(key, queue)
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
        chained = self._chained
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
                queue = self.queues.get(key)
                if queue is None:
                    queue = self.queues[key] = KeyQueue()
                queue.leave(offset, was, old_member, chained)
                queue.enter(offset, now, new_member, chained)

    def _move_unknown(self, offset: int, was: RecordState | None, now: RecordState | None) -> None:
        if was is None and now is not None:
            insort(self.unknown, offset)
        elif now is None and was is not None:
            del self.unknown[bisect_left(self.unknown, offset)]

    def _refresh(self, key: int, queue: KeyQueue) -> None:
        """Files a queue as free, as extendable by its holder, as blocked, or as none of these."""
        ready, is_blocked = 0, key in self.blocked_keys
        blocked = len(queue.waiting) if is_blocked else 0
        self.blocked_records += blocked - queue.blocked
        queue.blocked = blocked
        if queue.waiting and not queue.holders and not is_blocked:
            head = queue.waiting[0]
            if self._is_due(head):
                ready = min(len(queue.waiting), self.chain_max)
                if queue.listed != head:
                    queue.listed = head
                    heapq.heappush(self._free, head)
        self._ready += ready - queue.ready
        queue.ready = ready
        if self.shared is not None:
            self.shared.note(key, self, is_out=bool(queue.holders))
        alone = len(queue.holders) == 1 and bool(queue.waiting) and not is_blocked
        alone = alone and len(queue.held) < self.chain_max
        extender = next(iter(queue.holders)) if alone else None
        if extender != queue.extender:
            if queue.extender is not None:
                of_member = self._extendable[queue.extender]
                del of_member[key]
                if not of_member:
                    del self._extendable[queue.extender]
            if extender is not None:
                self._extendable.setdefault(extender, {})[key] = queue
            queue.extender = extender
        if not queue.waiting and not queue.held:
            del self.queues[key]

    def _is_due(self, offset: int) -> bool:
        found = self._window.ranges.get(offset)
        assert found is not None, f"the order knows {offset}, the window does not"
        return not self._window.is_delayed(found[2])

    def _rebuild(self) -> None:
        """Drops heap entries that are out of date."""
        for queue in self.queues.values():
            queue.listed = queue.waiting[0] if queue.ready else -1
        self._free = sorted(queue.listed for queue in self.queues.values() if queue.ready)
        self._keyless = sorted({at for at in self._keyless if self._is_ready_without_key(at)})

    # -- what may go out ------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """Due records that a member without locks could have; a bound, it may be too high."""
        barrier = self.barrier
        return self._ready + (barrier is not None and self._due_at(barrier) is not None)

    @property
    def barrier(self) -> int | None:
        """The lowest unfinished offset whose key is unknown: no record with a key passes it."""
        return self.unknown[0] if self.unknown else None

    def barrier_is_free(self) -> bool:
        """Whether every record with a key before the barrier is finished."""
        barrier = self.unknown[0]
        return not any(
            (queue.waiting and queue.waiting[0] < barrier)
            or (queue.held and queue.held[0] < barrier)
            for queue in self.queues.values()
        )

    def ready_ranges(self, records_max: int, member_id: str | None) -> list[Range]:
        """The due records that a member may have, lowest offset first, at most `records_max`.

        Without a member: those that a member without locks could have.
        """
        return self._window.ranges.pieces_of(self._ready_offsets(records_max, member_id))

    def _ready_offsets(self, records_max: int, member_id: str | None) -> list[int]:
        """Ready offsets, ascending: of records without a key, of free queues, of the member's."""
        merge: list[tuple[int, Iterator[int] | None]] = []
        for queue in self._extendable.get(member_id or "", {}).values():
            _push_next(merge, islice(queue.waiting, self.chain_max - len(queue.held)))
        end, barrier = self._window.end_offset, self.barrier
        if barrier is not None:
            end = barrier
            if self._due_at(barrier) is not None and self.barrier_is_free():
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
        """Adds to a merge the queues that nobody holds and that come before its lowest offset."""
        heap = self._free
        while heap and heap[0] < end and (not merge or heap[0] < merge[0][0]):
            head = heapq.heappop(heap)
            key, queue = self._free_queue(head)
            if queue is not None and (not valid or valid[-1] != head):
                valid.append(head)
                if self.shared is None or not self.shared.bars(key, self):
                    _push_next(merge, islice(queue.waiting, self.chain_max))

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

    def _due_at(self, offset: int) -> RangeState | None:
        """The state of a record that is AVAILABLE and due."""
        found = self._window.ranges.get(offset)
        if found is None or found[2].state is not AVAILABLE or self._window.is_delayed(found[2]):
            return None
        return found[2]

    def _is_ready_without_key(self, offset: int) -> bool:
        """Whether a heap entry is up to date (a truncation lets offsets be used again)."""
        value = self._due_at(offset)
        return value is not None and self.keys_of(offset, offset, value.keys) == (NO_KEY,)

    def _free_queue(self, head: int) -> tuple[int, KeyQueue | None]:
        """Key and queue of a heap entry, if its first record is due and nobody holds the key."""
        found = self._window.ranges.get(head)
        key = self.keys_of(head, head, found[2].keys)[0] if found else None
        queue = self.queues.get(key) if key else None
        if queue is not None:
            if queue.ready and queue.waiting[0] == head:
                return key or NO_KEY, queue
            if queue.listed == head:
                queue.listed = -1
        return NO_KEY, None

    # -- chains that break ----------------------------------------------------------------------

    def rest_of_chains(self, broken: Iterable[Range]) -> list[int]:
        """Later records, under locks of the same member, of the keys in these ACQUIRED pieces."""
        lowest: dict[tuple[int, str | None], int] = {}
        for first, last, value in broken:
            for offset, key in self._keyed(first, last, value):
                if key and offset < lowest.get((key, value.member_id), offset + 1):
                    lowest[key, value.member_id] = offset
        rest: list[int] = []
        for (key, member_id), offset in lowest.items():
            queue = self.queues[key]
            if queue.held[-1] <= offset:
                continue
            alone = len(queue.holders) == 1
            rest += [
                later
                for later in queue.held
                if later > offset and (alone or self._holder(later) == member_id)
            ]
        rest.sort()
        return rest

    def _holder(self, offset: int) -> str | None:
        found = self._window.ranges.get(offset)
        return found[2].member_id if found else None


def _push_next(merge: list[tuple[int, Iterator[int] | None]], following: Iterator[int]) -> None:
    """Adds a queue's next waiting record to a merge."""
    offset = next(following, None)
    if offset is not None:
        heapq.heappush(merge, (offset, following))
