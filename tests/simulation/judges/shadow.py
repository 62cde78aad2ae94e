"""What the judge keeps: logs, share-partitions as the database has them, lives of records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sharecoord.core.changes import InFlightRow, PartitionKey
from sharecoord.core.spans import Spans
from sharecoord.core.states import AcknowledgeType, RecordState

__all__ = [
    "Ask",
    "Cut",
    "RecordLife",
    "RecordLog",
    "Shadow",
    "Wait",
    "goes_on",
    "name_of",
    "text_of",
]


UNFINISHED = (RecordState.AVAILABLE, RecordState.ACQUIRED)


class RecordLog:
    """What the judge must know of Kafka's logs, by (topic id, partition)."""

    def __init__(self) -> None:
        self.alive: dict[tuple[str, int], dict[int, bytes]] = {}
        """Records that a reader finds now: offset to value."""
        self.written: dict[tuple[str, int], dict[int, set[bytes]]] = {}
        """All values that ever stood at an offset."""
        self.appends = 0
        self.written_by: dict[tuple[str, int], dict[int, int]] = {}
        """By offset the number of the append that wrote what stands there, or stood there last."""
        self.epochs: dict[tuple[str, int], dict[int, set[int]]] = {}
        """All leader epochs of what ever stood at an offset."""
        self.keys: dict[tuple[str, int], dict[int, bytes]] = {}
        """Keys of records, where the life has any."""
        self.scheduled: dict[tuple[str, int], dict[int, int]] = {}
        """When records are due that their producer wants later, by the store's clock."""
        self.starts: dict[tuple[str, int], int] = {}
        self.highest_ends: dict[tuple[str, int], int] = {}
        """How far logs ever went, with what readers do not find."""
        self.ended: set[str] = set()
        """Ids of topics that were deleted: nobody can see any more what becomes of their state."""

    def appended(self, place: tuple[str, int], first: int, count: int, value: bytes) -> None:
        """Records were written."""
        self.reached(place, first + count)
        alive = self.alive.setdefault(place, {})
        written = self.written.setdefault(place, {})
        self.appends += 1
        self.written_by.setdefault(place, {}).update(
            dict.fromkeys(range(first, first + count), self.appends)
        )
        for offset in range(first, first + count):
            alive[offset] = value
            written.setdefault(offset, set()).add(value)

    def written_under(self, place: tuple[str, int], offsets: range, epoch: int) -> None:
        """Records were written by a leader."""
        known = self.epochs.setdefault(place, {})
        for offset in offsets:
            known.setdefault(offset, set()).add(epoch)

    def epochs_at(self, key: PartitionKey, offset: int) -> set[int]:
        """Leader epochs of the records that ever stood at an offset."""
        return self.epochs.get((key.topic_id, key.partition), {}).get(offset, set())

    def reached(self, place: tuple[str, int], end: int) -> None:
        """A log has all offsets before this one."""
        self.highest_ends[place] = max(end, self.highest_ends.get(place, 0))

    def removed(self, place: tuple[str, int], gone: Callable[[int], bool]) -> None:
        """Records are no longer in the log."""
        alive = self.alive.get(place, {})
        for offset in [at for at in alive if gone(at)]:
            del alive[offset]

    def holds(self, key: PartitionKey, offset: int) -> bool:
        """Whether a reader finds a record there."""
        return offset in self.alive.get((key.topic_id, key.partition), ())

    def keys_of(self, key: PartitionKey) -> dict[int, bytes]:
        """Keys by offset; records without a key have none."""
        return self.keys.get((key.topic_id, key.partition), {})

    def start(self, key: PartitionKey) -> int:
        """Log start."""
        return self.starts.get((key.topic_id, key.partition), 0)


@dataclass(slots=True)
class Cut:
    """A log lost its end, and has grown since or will."""

    offset: int
    epoch: int
    """Of the leader since: what it writes stands from `offset` on."""
    must_void: bool
    """Whether state from there on is about what was lost."""


class Ask(NamedTuple):
    """A release, as its member said it."""

    token: int
    sent_ms: int
    delay_ms: int


class Wait(NamedTuple):
    """Until when a record must not be handed out."""

    due_ms: int
    """0 = it may at once."""
    since_ms: int
    """When that was stored."""


@dataclass(slots=True)
class RecordLife:
    """One record of one share-partition."""

    holder: str | None = None
    token: int = 0
    told_ms: int = 0
    """Until then `holder` might keep the lock under `token`; 0 = something may have ended it."""
    gave_up: bool = False
    """It said itself what becomes of the record."""
    granted_ms: int = 0
    arrived: set[int] = field(default_factory=set)
    """Tokens under which it reached a member."""
    excused: set[int] = field(default_factory=set)
    """Tokens whose holder said that it had not seen the record."""
    taken_back: set[int] = field(default_factory=set)
    """Tokens that went with a chain; their deliveries may still be under way."""
    told: set[int] = field(default_factory=set)
    """Tokens whose holder was told that they are no longer its own."""
    given: dict[int, int] = field(default_factory=dict)
    """Tokens under which it reached a program itself, and in which order."""
    done: set[int] = field(default_factory=set)
    """Tokens under which a program accepted or rejected it, be its SDK able to say so or not."""
    said: set[tuple[int, AcknowledgeType]] = field(default_factory=set)
    final: AcknowledgeType | None = None
    """Confirmed to a member."""
    checkpoints: list[bytes | None] = field(default_factory=lambda: [None])
    """What the next delivery may show: the last one that is sure, then those said since."""
    asked: list[Ask] = field(default_factory=list)
    """Its releases."""

    @property
    def deadline_ms(self) -> int:
        """Until then `holder` may believe in the lock; 0 = it gave it up, or it was ended."""
        return 0 if self.gave_up else self.told_ms

    def ends(self) -> None:
        """Its holder can not be sure of its lock any more, whatever it said before."""
        self.told_ms = 0


@dataclass
class Shadow:
    """One share-partition as the database has it, and the lives of its records."""

    key: PartitionKey
    owner_epoch: int
    state_epoch: int
    start: int | None = None
    end: int = 0
    closed: bool = False
    owner: str | None = None
    rows: dict[int, InFlightRow] = field(default_factory=dict)
    granted: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """(offset, token) to (member, delivery count): what was committed."""
    calm: dict[tuple[int, int], tuple[int, str | None, object, int]] = field(default_factory=dict)
    """What stood in the way of a grant's delivery when it was committed, and until when its lock
    may last; see the judge."""
    claimed_ms: int = -(1 << 40)
    """When it was claimed last."""
    in_order: set[tuple[int, int]] = field(default_factory=set)
    """Grants that were made while order was kept."""
    passed_over: Spans = ()
    """What an operator has settled before it was read."""
    passed_values: dict[int, bytes] = field(default_factory=dict)
    """What stood there then."""
    void: set[tuple[int, int]] = field(default_factory=set)
    """Grants that a reset, a truncation or an operator ended."""
    lives: dict[int, RecordLife] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    """Records whose payload the store has."""
    waits: dict[int, Wait] = field(default_factory=dict)
    """Of AVAILABLE records."""
    granted_at_ms: dict[int, int] = field(default_factory=dict)
    """When records were handed out last."""
    redriven: set[int] = field(default_factory=set)
    """Of a lane: letters that were taken in."""
    truncated_at: int | None = None
    """Where the log was taken for cut last."""
    cuts: list[Cut] = field(default_factory=list)
    """What happened to the log, until the state shows it."""
    knows_epoch: bool = False
    """Whether the leader epoch before its end must be known."""
    version: int = 0
    """Grows with resets and truncations: answers to what was said before mean nothing."""

    def life(self, offset: int) -> RecordLife:
        """What is known of a record."""
        return self.lives.setdefault(offset, RecordLife())

    def is_lost(self, offset: int) -> bool:
        """Whether what the database has of an offset is about a record that its log lost."""
        return any(cut.must_void and offset >= cut.offset for cut in self.cuts)

    def row_at(self, offset: int) -> InFlightRow | None:
        """The row that covers an offset."""
        row = self.rows.get(offset)
        if row is not None:
            return row
        return next((r for r in self.rows.values() if r[0] <= offset <= r[1]), None)

    def forget_from(self, from_offset: int) -> None:
        """What was known of records from an offset on is about other records."""
        self.version += 1
        self.kept = {offset for offset in self.kept if offset < from_offset}
        dead = [grant for grant in self.granted if grant[0] >= from_offset]
        self.void.update(dead)
        for grant in dead:
            del self.granted[grant]
        known: dict[int, Any]
        for known in (self.lives, self.waits, self.granted_at_ms):
            for offset in [at for at in known if at >= from_offset]:
                del known[offset]

    def unfinished(self) -> int:
        """Records that are due or under a lock."""
        return sum(r[1] - r[0] + 1 for r in self.rows.values() if r.state in UNFINISHED)


def goes_on(old: InFlightRow | None, new: InFlightRow | None) -> bool:
    """Whether a record stays under the lock that it was under."""
    if old is None or new is None or old.state != RecordState.ACQUIRED:
        return False
    return (new.state, new.lock_token) == (RecordState.ACQUIRED, old.lock_token)


def name_of(shadow: Shadow) -> str:
    """A share-partition in messages."""
    return f"{shadow.key.name}[{shadow.key.partition}]"


def text_of(row: InFlightRow) -> str:
    """A row in messages."""
    state = RecordState(row.state).name
    return f"[{row[0]}, {row[1]}] {state} {row.delivery_count}x {row.member_id} {row.lock_token:x}"
