"""What operators ask for and what they get, in no protocol's words."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from sharecoord.core.changes import InFlightRow
from sharecoord.core.pauses import Pause, PauseScope
from sharecoord.errors import SharecoordError

Place = tuple[str, int]
"""Topic and partition."""


class GroupState(enum.Enum):
    """The state of a group, by Kafka's names."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class CoordinatorInfo:
    """What a coordinator was started with.

    Attributes:
        version: Version of the package.
        kafka_cluster_id: "" when the cluster has none.
        kafka_bootstrap_servers: As configured.
        store: The store's URL without its password.
    """

    version: str
    kafka_cluster_id: str
    kafka_bootstrap_servers: str
    store: str


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """A running coordinator."""

    coordinator_id: str
    info: CoordinatorInfo
    uptime_ms: int


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One line of the list of groups."""

    group_id: str
    state: GroupState


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of a group.

    Attributes:
        assignment: Topic to the partitions that it may receive from.
        acquired_records: Records that it holds under a lock.
        delivered_total: Records delivered since it joined its coordinator; None = that is another
            one than this.
        acknowledged_total: Records acknowledged since then, likewise.
        fair_share_ratio: What it got in the last second against its fair part; None = it wanted
            nothing, or nothing was handed out, or it is at another coordinator.
        pause: Why it gets nothing new; None = it does.
        coordinator_id: Who has its stream.
    """

    member_id: str
    member_epoch: int
    client_id: str
    host: str
    assignment: Mapping[str, tuple[int, ...]]
    acquired_records: int
    delivered_total: int | None
    acknowledged_total: int | None
    fair_share_ratio: float | None = None
    pause: Pause | None = None
    coordinator_id: str = ""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A share-partition.

    Attributes:
        topic_id: 32 hex digits, "" when the cluster has none.
        start_offset: None = not initialised yet, as are the three after it.
        end_offset: One past the last offset that was acquired.
        log_end_offset: None also when Kafka does not answer.
        lag: Log end - start - finished inside the window.
        leader_epoch: Of the record before `end_offset`; None = not known.
        window_full_at: Nothing new is read until this offset is finished; None = not full.
        stopped_reason: Why it is not served; "" = it is.
        memory_short: What `memory.limit` has stopped here, "" = nothing.
        pause: Why nothing of it is handed out: its own pause, its topic's or its group's.
        lane: The topic whose members get these dead letters; "" = it is no lane.
        stops_at: Nothing from here on belongs to it; None = it follows its log.
        rate_limit: Records per second that are handed out at the most; 0 = no limit.
        payloads_not_kept: Records that came to wait and whose payload is not stored, though
            `share.retry.keep.payload` asks for it, since the process began.
    """

    topic: str
    partition: int
    topic_id: str
    start_offset: int | None = None
    end_offset: int | None = None
    log_end_offset: int | None = None
    lag: int | None = None
    acquired_records: int = 0
    available_records: int = 0
    delayed_records: int = 0
    archived_records: int = 0
    leader_epoch: int | None = None
    window_full_at: int | None = None
    stopped_reason: str = ""
    memory_short: str = ""
    pause: Pause | None = None
    lane: str = ""
    stops_at: int | None = None
    rate_limit: int = 0
    payloads_not_kept: int = 0


@dataclass(frozen=True, slots=True)
class GroupView:
    """A described group; with `error` nothing else is known of it."""

    group_id: str
    state: GroupState = GroupState.DEAD
    group_epoch: int = 0
    coordinator_id: str = ""
    member_count: int = 0
    members: tuple[MemberView, ...] = ()
    partitions: tuple[PartitionView, ...] = ()
    fairness_jain_ratio: float | None = None
    """Jain's index of the last second; None as in `MemberView`."""
    pauses: tuple[Pause, ...] = ()
    """All that is paused of it."""
    error: SharecoordError | None = None


@dataclass(frozen=True, slots=True)
class PauseResult:
    """What a pause or a resume did with one thing.

    Attributes:
        changed: False = it was so before.
        pause: The pause in force; of what was resumed the one that ended; None = there was none.
        note: What else there is to know, in words.
    """

    scope: PauseScope
    changed: bool
    pause: Pause | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PauseAnswer:
    """What became of a pause or a resume, and all that is paused of the group now."""

    results: tuple[PauseResult, ...]
    pauses: tuple[Pause, ...]


@dataclass(frozen=True, slots=True)
class ForcedRange:
    """What an operator's skip, finish or release did, or would do, with some records.

    Attributes:
        last: Inclusive.
        before: What they were: available, delayed, acquired, archiving, archived, finished (or a
            gap), unread, or passed_over (settled before they were read).
        after: What they are; the same as before = nothing was done with them.
        member_id: Who held them, "" = nobody; its lock is dead if they changed.
        delivery_count: How often they were delivered.
    """

    first: int
    last: int
    before: str
    after: str
    member_id: str = ""
    delivery_count: int = 0

    @property
    def changed(self) -> bool:
        """Whether something was done with them."""
        return self.before != self.after


class ResetKind(enum.Enum):
    """Where start offsets are moved to."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    DURATION = "duration"
    OFFSET = "offset"
    CURRENT = "current"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True)
class ResetTo:
    """The target of a reset.

    Attributes:
        value: Milliseconds since the epoch for TIMESTAMP, before now for DURATION, the offset for
            OFFSET, else 0.
        offsets: One offset for each place, for OFFSETS.
    """

    kind: ResetKind
    value: int = 0
    offsets: Mapping[Place, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResetCommand:
    """A reset of start offsets.

    Attributes:
        topics: Topic to its partitions, no partition = all of them. Empty = every topic for which
            the group has offsets (for OFFSETS: every place that has one).
        dry_run: Only say what would happen.
        force: Also with members, whose locks on these partitions are void then.
    """

    group_id: str
    to: ResetTo
    topics: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dry_run: bool = False
    force: bool = False


NO_PARTITION = -1
"""Partition number of a result that is about a whole topic."""


@dataclass(frozen=True, slots=True)
class ResetResult:
    """What a reset did, or would do, with one share-partition.

    Attributes:
        partition: NO_PARTITION when the topic does not exist.
        new_offset: The start offset in force afterwards; 0 with an error.
        old_offset: None = it had none.
        requested_offset: What was asked for, when it was outside of the log.
        error: Why nothing was done.
    """

    topic: str
    partition: int
    topic_id: str = ""
    new_offset: int = 0
    old_offset: int | None = None
    requested_offset: int | None = None
    error: SharecoordError | None = None


@dataclass(frozen=True, slots=True)
class ImportCommand:
    """Start offsets are set to what a consumer group of Kafka has committed.

    Attributes:
        topics: Empty = all for which the consumer group has committed something.
        dry_run: Only say what would happen.
        force: Also with members in one of both groups.
    """

    group_id: str
    consumer_group: str
    topics: tuple[str, ...] = ()
    dry_run: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """What an import did, or would do, with one share-partition.

    Attributes:
        committed_offset: None = the consumer group has none: the reset policy decided.
        lag: Records from the new start offset to the end of the log; None = not known.
    """

    reset: ResetResult
    committed_offset: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class ExportCommand:
    """Start offsets are committed for a consumer group of Kafka.

    Attributes:
        topics: Empty = all for which the group has offsets.
        dry_run: Only say what would happen.
        force: Also with members in the share group.
    """

    group_id: str
    consumer_group: str
    topics: tuple[str, ...] = ()
    dry_run: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """What an export did, or would do, with one share-partition.

    Attributes:
        offset: The start offset.
        finished_ahead: Records behind it that are finished here and come again there.
        error: Why it was not written.
    """

    topic: str
    partition: int
    offset: int
    finished_ahead: int
    error: SharecoordError | None = None


@dataclass(frozen=True, slots=True)
class BlockedKeyView:
    """A blocked key.

    Attributes:
        since_ms: When it was blocked, by the store's clock.
        waiting_records: How many records of it wait in the windows of all share-partitions; what
            was not read yet is not among them, records of another key with the same hash are.
    """

    key: bytes
    since_ms: int
    reason: str
    waiting_records: int


@dataclass(frozen=True, slots=True)
class InFlightView:
    """Ranges in flight, and the store's clock when they were read, in milliseconds."""

    ranges: tuple[InFlightRow, ...]
    store_now_ms: int
    checkpoints: tuple[tuple[int, int], ...]
    """Of each range: how many of its records have a checkpoint, and the bytes of these."""
