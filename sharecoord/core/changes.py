"""The rows that are stored and loaded again: the values between core, runtime and store.

Between a share-partition's start offset (SPSO) and its end offset, an offset that no row covers is
ACKNOWLEDGED. So a batch that is acquired and accepted costs one row written and one row deleted,
and finished records cost nothing. Times in rows are milliseconds of the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Protocol, overload

from sharecoord.core.dispatch.pauses import Pause, Pauses
from sharecoord.core.limits import KEPT_OVERHEAD_BYTES
from sharecoord.core.offset_set import OffsetSet
from sharecoord.core.spans import Spans


class InFlightRow(NamedTuple):
    """A range of records in one state; the row of table `in_flight` without its partition id.

    Ranges of a share-partition never overlap. Plain integers and strings, in the column order of
    the table, so that a row goes to the driver as it is.
    """

    first_offset: int
    last_offset: int
    """Inclusive."""
    state: int
    """AVAILABLE 0, ACQUIRED 1, ARCHIVING 3 or ARCHIVED 4; ACKNOWLEDGED ranges have no row."""
    delivery_count: int = 0
    hand_outs: int = 0
    """Times that the records were handed out, also when they came back unseen (design 5.3)."""
    member_id: str | None = None
    """The holder; ACQUIRED only."""
    lock_token: int = 0
    """Current token, or the last one of an AVAILABLE range; 0 = never acquired."""
    deadline_ms: int = 0
    """End of the lock, store's clock; 0 unless ACQUIRED."""
    granted_ms: int = 0
    """How long recoveries may still extend the lock: its duration, less what they have added
    already. 0 unless ACQUIRED."""
    available_at_ms: int = 0
    """Not delivered before, store's clock; 0 = due."""
    batch_base: int = 0
    """First offset of the batch in which this range was first acquired (poison throttling)."""
    batch_size: int = 0
    """Number of records of that batch."""
    reason: str | None = None
    """Why ARCHIVING or ARCHIVED, or what the worker said at its last release."""
    key_hashes: bytes | None = None
    """8 bytes per offset, big-endian, 0 = no key; None in groups without order."""
    history: str | None = None
    """The failed deliveries, as `core.window.history` writes them; None until the first one."""


class InFlight(Sequence[InFlightRow]):
    """The stored ranges of a share-partition in order of offset: a sequence of rows, in columns.

    A full store has millions of ranges, cut from few batches: the fields that ranges have in common
    are one object, so that they are decoded once.
    """

    __slots__ = ("firsts", "lasts", "states")

    def __init__(
        self, firsts: Sequence[int], lasts: Sequence[int], states: Sequence[tuple[Any, ...]]
    ) -> None:
        """Takes the columns as they are; `states` has all other fields of `InFlightRow`."""
        self.firsts = firsts
        self.lasts = lasts
        self.states = states

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]]) -> InFlight:
        """Rows in the order of `InFlightRow`'s fields; equal states become one object."""
        listed = list(rows)
        known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        states = [known.setdefault(state, state) for row in listed for state in (tuple(row[2:]),)]
        return cls([row[0] for row in listed], [row[1] for row in listed], states)

    @property
    def members(self) -> set[str]:
        """The holders of ranges."""
        at = InFlightRow._fields.index("member_id") - 2
        return {state[at] for state in self.states if state[at]}

    def __len__(self) -> int:
        return len(self.firsts)

    @overload
    def __getitem__(self, at: int) -> InFlightRow: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[InFlightRow, ...]: ...
    def __getitem__(self, at: int | slice) -> InFlightRow | tuple[InFlightRow, ...]:
        if isinstance(at, slice):
            return tuple(map(self.__getitem__, range(len(self))[at]))
        return InFlightRow(self.firsts[at], self.lasts[at], *self.states[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    def __hash__(self) -> int:
        return hash(tuple(self.firsts))

    def __repr__(self) -> str:
        return f"InFlight({[*self]})"


@dataclass(frozen=True, slots=True)
class PartitionHead:
    """The part of a share-partition's row that every commit writes."""

    start_offset: int
    """SPSO: every offset below is finished for good."""
    end_offset: int
    """The offset behind the last one that was ever acquired or skipped (SPEO + 1)."""
    end_leader_epoch: int
    """Leader epoch of the record before `end_offset`; -1 = not known."""
    finished_count: int
    """Final offsets inside [start_offset, end_offset): lag = log end - start - finished."""
    change_sequence: int
    """Number of the last change; events carry it, so that a lost event shows."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record in the outbox of dead letters (design 10)."""

    offset: int
    reason: str
    delivery_count: int
    message: str | None
    """The worker's words."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    payload_known: bool = True
    """False when the payload could not be read any more (PAYLOAD_GONE)."""
    member_id: str | None = None
    """The last holder; None = not known any more."""
    members: tuple[str, ...] = ()
    """All members that failed with the record, as in `core.window.history.History`."""
    first_failed_at_ms: int = 0
    """Time of the first failed delivery, to the second, by the store's clock; 0 = not known."""
    failed_at_ms: int = 0
    """Time of the last failed delivery, by the store's clock; 0 = not known any more."""
    state_epoch: int = 0
    """State epoch of the share-partition: after a reset an offset may become another letter."""
    kept: bool = False
    """Whether the payload stays in the store: the dead-letter topic does not take the record
    whole, and gets a message with headers alone."""
    checkpoint: bytes | None = None
    """The checkpoint of the record, when it is small."""
    sequence: int = 0
    """The order in which letters of a share-partition go: owner epoch in the high half, a number in
    the low half. 0 = the payload is still being read, or a `kept` letter was sent."""
    topic: str = ""
    """The dead-letter topic that the letter was meant for."""
    exactly_once: bool = False
    """Whether the letter goes in a transaction."""

    @property
    def is_bare(self) -> bool:
        """Whether nothing of the record was copied: the group wanted headers alone."""
        whole = self.key is None and self.value is None and not self.headers
        return whole and self.payload_known and self.timestamp_ms < 0

    @property
    def is_done(self) -> bool:
        """Whether the letter was sent, and only its payload is kept."""
        return self.kept and not self.sequence


class Checkpoint(NamedTuple):
    """State that a member stored with an unfinished record: an entry of table `book_entry`."""

    offset: int
    data: bytes
    at_ms: int
    """The store's clock when the member stored it."""


class KeptPayload(NamedTuple):
    """The payload of a record that waits (docs/decisions/0027): an entry of table `book_entry`."""

    offset: int
    size_bytes: int
    """Bytes of the row that count towards the group's limit."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    timestamp_type: int
    """Kafka's, as in `core.records.RecordChunk`."""

    @classmethod
    def of(
        cls,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        timestamp: tuple[int, int],
    ) -> KeptPayload:
        """The row of a record; `timestamp` has its time and its type."""
        texts = chain((key, value), *headers)
        size = sum(len(each) for each in texts if each is not None)
        return cls(offset, size + KEPT_OVERHEAD_BYTES, key, value, headers, *timestamp)


@dataclass(slots=True)
class PartitionCommit:
    """All changes of one share-partition in one group commit; the store takes all or none.

    First `deleted` rows go (they may not exist), then `upserted` are written (same first offset =
    replaced). No first offset stands in both.
    """

    partition_id: int
    owner_epoch: int
    state_epoch: int
    """Both must equal the row's, else the partition is left out of the commit (fenced)."""
    head: PartitionHead | None
    """None = the head stays: the share-partition is closed, and only its letters change."""
    deleted: list[int] = field(default_factory=list)
    """First offsets of rows to delete."""
    upserted: list[InFlightRow] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    """Outbox rows to add."""
    dead_letters_done: list[int] = field(default_factory=list)
    """Offsets whose outbox rows go."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """Rows to write; an offset has one at most."""
    checkpoints_done: list[int] = field(default_factory=list)
    """Offsets whose checkpoints go, before those above are written."""
    kept: list[KeptPayload] = field(default_factory=list)
    """Rows to write; an offset has one at most."""
    kept_done: list[int] = field(default_factory=list)
    """Offsets whose payloads go, before those above are written."""
    raises_state_epoch: bool = False
    """Whether the row's state epoch becomes `state_epoch` + 1 (a truncated log, design 5.12)."""
    truncated_at: int | None = None
    """The offset at which the log was cut: first every row loses its offsets from here on, also a
    row that is not in memory. The rows of this commit are of records that were written since."""
    passed_over: Spans | None = None
    """`PartitionRow.passed_over` from now on, under a state epoch that is one higher; None = it
    stays. Without `raises_state_epoch` no offset is used again for another record."""


def payload_parts(stored: DeadLetter | KeptPayload) -> list[bytes | None]:
    """The parts of a row that may be large."""
    named = (
        part
        for name, value in stored.headers
        for part in (name.encode(errors="surrogateescape"), value)
    )
    return [stored.key, stored.value, *named]


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member of a group (table `member`)."""

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    host: str
    gateway: str
    """Coordinator that holds the member's stream or answers its calls."""
    topics: tuple[str, ...]
    join_number: int = 0
    """The member's own count of its streams; 0 = the member does not count."""
    principal: str = ""
    """Who it is; "" = nobody whom credentials have named: anybody may join as this member."""

    def may_join_as(self, stored: MemberRow) -> bool:
        """Whether this member is the stored one: it is the same principal, or that is nobody."""
        return stored.principal in ("", self.principal)


class JoinRefusal(Enum):
    """Why a join was not stored."""

    OVERTAKEN = auto()
    """The stored number is higher: the member has joined elsewhere while this was held up."""
    ANOTHERS = auto()
    """The member is another principal's."""


@dataclass(slots=True)
class CommitBatch:
    """The changes of one group commit, written in one transaction."""

    partitions: list[PartitionCommit] = field(default_factory=list)
    members_removed: list[tuple[str, str, int]] = field(default_factory=list)
    """(group id, member id, member epoch) of rows to delete. A row stays with a newer epoch, or if
    its gateway is another coordinator with a live lease."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of a commit that reached the store."""

    fenced: frozenset[int]
    """Partition ids that were left out because an epoch differed; all others are durable."""


class BlockedKey(NamedTuple):
    """A key whose records a group does not hand out (table `blocked_key`)."""

    key: bytes
    since_ms: int
    """The store's clock."""
    reason: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A share group (table `share_group`)."""

    group_id: str
    config: dict[str, str]
    """Overrides of settings, by Kafka's names."""
    group_epoch: int
    """Grows with each change of configuration, pause, reset and blocked key."""
    made_by: str = ""
    """The principal whose call made it; "" = not known."""
    pauses: tuple[Pause, ...] = ()
    """Sorted by member, topic and partition."""
    blocked_keys: tuple[BlockedKey, ...] = ()
    """Sorted by key."""

    @property
    def paused(self) -> bool:
        """Whether the whole group is paused."""
        return Pauses(self.pauses).group is not None


class PausesChanged(NamedTuple):
    """The result of `ports.Store.change_pauses`."""

    before: tuple[Pause, ...]
    row: GroupRow
    """The group after the change."""


LANE_MARK = "/"
"""The separator of the topics in the name of a lane."""

Place = tuple[str, int]
"""(name, partition): a topic, or a lane, and a partition."""

LogId = tuple[str, str, int]
"""(name, topic id, partition): a topic that was made again is another log."""


@dataclass(frozen=True)
class PartitionKey:
    """A share-partition by name."""

    group_id: str
    topic: str
    topic_id: str
    """Kafka's topic id as 32 hex digits; "" when the cluster has none."""
    partition: int
    lane: str = ""
    """"" = the log itself. Else a lane (docs/decisions/0019): records of the dead-letter topic
    `topic` for the members that want the topic named here. `TOPIC/PARTITION` says that all records
    come from this partition."""

    def __str__(self) -> str:
        return f"{self.group_id}: {self.name}[{self.partition}]"

    @cached_property
    def name(self) -> str:
        """The topic's name; of a lane the names of both topics, with `LANE_MARK` between."""
        return f"{self.topic}{LANE_MARK}{self.lane}" if self.lane else self.topic

    @property
    def place(self) -> Place:
        """Name and partition: unique in the group, but for former lives of the topic."""
        return self.name, self.partition

    @property
    def log_id(self) -> LogId:
        """Unique in the group: the topic id tells former lives of the topic apart."""
        return self.name, self.topic_id, self.partition

    @cached_property
    def served(self) -> str:
        """The topic that members subscribe to for these records."""
        return self.home[0]

    @cached_property
    def home(self) -> Place:
        """Topic and partition that the records were first written to; -1 = several partitions."""
        if not self.lane:
            return self.topic, self.partition
        topic, _, partition = self.lane.partition(LANE_MARK)
        # Lock books of members may have any name.
        return topic, int(partition) if partition.isdecimal() else -1

    @cached_property
    def topic_id_bytes(self) -> bytes:
        """The topic id as on the wire."""
        return bytes.fromhex(self.topic_id)


def served_by(name: str) -> str:
    """`PartitionKey.served` of a `PartitionKey.name`."""
    topic, _, lane = name.partition(LANE_MARK)
    return lane.partition(LANE_MARK)[0] or topic


def lane_of(topic: str, partition: int | None) -> str:
    """The lane for letters of a topic, or of one partition of the topic."""
    return topic if partition is None else f"{topic}{LANE_MARK}{partition}"


def key_of(group_id: str, name: str, topic_id: str, partition: int) -> PartitionKey:
    """The share-partition of a name."""
    topic, _, lane = name.partition(LANE_MARK)
    return PartitionKey(group_id, topic, topic_id, partition, lane)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A share-partition's row (table `share_partition`)."""

    partition_id: int
    key: PartitionKey
    head: PartitionHead | None
    """None = not initialised yet: the start offset is not resolved."""
    owner: str | None
    owner_epoch: int
    incarnation: int
    state_epoch: int
    closed: bool = False
    """The topic was deleted or re-created; kept for its history only."""
    stopped_reason: str = ""
    """Not served until an operator decides (LOG_REGRESSED)."""
    starts_at_zero: bool = False
    """The group used the topic before this row was made (design 5.7): the log is read from its
    start, whatever `share.auto.offset.reset` says."""
    stops_at: int | None = None
    """Nothing from here on is read or handed out; None = the share-partition follows its log."""
    rate_limit: int = 0
    """Most records per second that are handed out; 0 = no limit."""
    replay_epoch: int = 0
    """The state epoch of the last reset, truncation or deletion: under a lower epoch an offset may
    have been delivered as another record. A restored backup keeps the epoch that it has."""
    passed_over: Spans = ()
    """Offsets beyond the window that are never delivered (`core.partition.passed_over`). The window
    may have come to some of them since they were stored."""

    @property
    def is_open(self) -> bool:
        """Whether the share-partition has, or may get, records to hand out."""
        head, end = self.head, self.stops_at
        return not self.closed and (head is None or end is None or head.start_offset < end)


class PartitionClaim(NamedTuple):
    """A request to own a share-partition; see `ports.Store.claim_partitions`."""

    partition_id: int
    incarnation: int
    previous_incarnation: int | None = None
    delayed_max: int | None = None
    """Most delayed ranges that are read, the first due ones; None = all."""


class DelayedPlace(NamedTuple):
    """A place in the order in which delayed ranges are due."""

    available_at_ms: int
    """The store's clock."""
    first_offset: int


class PartitionRelease(NamedTuple):
    """The release of a share-partition by its owner; see `ports.Store.release_partitions`."""

    partition_id: int
    owner_epoch: int


class PartitionStart(NamedTuple):
    """The first head of a share-partition; see `ports.Store.initialize_partitions`."""

    partition_id: int
    owner_epoch: int
    head: PartitionHead


class Parked(NamedTuple):
    """Delayed ranges of a share-partition that were not read."""

    offsets: OffsetSet
    after: DelayedPlace = DelayedPlace(0, -1)
    """The ranges come behind this place."""


@dataclass(frozen=True, slots=True)
class LoadedPartition:
    """The result of a claim: the row after it, and the ranges in order of offset."""

    row: PartitionRow
    in_flight: InFlight
    dead_letters: tuple[DeadLetter, ...]
    store_now_ms: int
    """The store's clock inside the claim's transaction."""
    parked: Parked = field(default_factory=lambda: Parked(OffsetSet()))
    """The delayed ranges that `delayed_max` left in the store."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Sorted by offset."""
    kept: Mapping[int, int] = field(default_factory=dict)
    """`KeptPayload.size_bytes` by offset, ascending; the payloads are read when they are due."""


@dataclass(frozen=True, slots=True)
class CoordinatorRow:
    """A coordinator (table `coordinator`)."""

    coordinator_id: str
    address: str
    """Where members reach it, HOST:PORT or unix:PATH."""
    peer_address: str
    """Where the other coordinators of a fleet reach it, HOST:PORT; "" = not announced yet."""
    draining: bool
    """The coordinator gives its share-partitions away and takes none."""
    secret: bytes = field(default=b"", repr=False)
    """By which the others know it (core/fleet/belonging.py); b"" = it has none. Never shown."""


class FleetView(NamedTuple):
    """The coordinators and groups of a fleet at one moment."""

    coordinators: tuple[CoordinatorRow, ...]
    """All that have a live lease by the store's clock, sorted by id."""
    group_epochs: dict[str, int]
    """By group, of all groups: a coordinator that knows a lower epoch loads the row anew."""


class PartitionChange(Protocol):
    """A change that is decided on stored rows; see `ports.Store.change_partition`."""

    @property
    def first(self) -> int:
        """First offset that the change is about."""

    @property
    def last(self) -> int:
        """Last offset that the change is about."""

    @property
    def delayed_max(self) -> int | None:
        """As in `PartitionClaim`; ranges in [first, last] are read besides."""

    def decide(
        self, loaded: LoadedPartition, named: Sequence[InFlightRow]
    ) -> PartitionCommit | None:
        """The commit to write; None = no change. Called inside the transaction, on any thread.

        `named` has the stored ranges that touch [first, last], in order.
        """
