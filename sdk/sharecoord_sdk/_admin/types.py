"""Arguments and results of admin calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from .errors import AdminError


class GroupState(Enum):
    """The state of a group, by Kafka's names."""

    #: No members.
    EMPTY = "Empty"
    #: One member at least.
    STABLE = "Stable"
    #: Does not exist.
    DEAD = "Dead"


class ConfigSource(Enum):
    """The origin of a setting's value."""

    #: Set for this group.
    GROUP = "group"
    #: Set for all groups in the coordinator's configuration.
    COORDINATOR = "coordinator"
    #: Built in.
    DEFAULT = "default"


class RecordState(IntEnum):
    """The state of a record for one group; the numbers are Kafka's."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a group, of a topic, of a partition or of a member.

    Attributes:
        topic: "" = it is not about a topic.
        partition: None = all partitions of the topic.
        member_id: "" = it is not about a member.
        since_ms: Milliseconds since the epoch.
        paused_by: The principal, such as "User:alice"; "operator" where it is not known; or
            "flood breaker".
        reason: Why, in words.
    """

    topic: str = ""
    partition: int | None = None
    member_id: str = ""
    since_ms: int = 0
    paused_by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PauseResult:
    """The result of a pause or a resume for one group, topic, partition or member.

    Attributes:
        pause: What is paused; what was resumed as it was before.
        changed: False = it was so before.
        note: What else there is to know.
    """

    pause: Pause
    changed: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class PauseAnswer:
    """The answer to a pause or a resume.

    Attributes:
        results: One for each thing that was named.
        pauses: All that is paused of the group now.
    """

    results: tuple[PauseResult, ...]
    pauses: tuple[Pause, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as `list_groups` names it."""

    group_id: str
    state: GroupState


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group.

    Attributes:
        assignment: Topic to the partitions that it may receive from.
        acquired_records: Records that it holds under a lock.
        delivered_total: Records delivered to it since it joined its coordinator; None = that is
            another one than the one that was asked, and so for the next two.
        acknowledged_total: Records acknowledged by it since then.
        fair_share_ratio: Its share of the deliveries of the last second against its fair share;
            None = not measured.
        pause: Why it gets nothing new; None = it does.
        coordinator_id: The coordinator that has its stream; "" = not known.
        principal: Who it is, such as "User:alice"; "" = not known.
        software: Name and version of its client as that gives them itself, such as
            "apache-kafka-java 4.3.1"; "" = not known to the coordinator that was asked.
    """

    member_id: str
    member_epoch: int
    client_id: str
    host: str
    assignment: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    acquired_records: int = 0
    delivered_total: int | None = None
    acknowledged_total: int | None = None
    fair_share_ratio: float | None = None
    pause: Pause | None = None
    coordinator_id: str = ""
    principal: str = ""
    software: str = ""


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """A share-partition of a group. Offsets are None while it is not initialised.

    Attributes:
        topic_id: 32 hex digits, "" when the cluster has none.
        start_offset: The first offset that is not finished.
        end_offset: One past the last offset that was acquired.
        log_end_offset: End of the log; None also when Kafka does not answer.
        lag: Records behind: log end - start - finished in between.
        delayed_records: Available later, not now.
        leader_epoch: Of the record before `end_offset`.
        window_full_at: Nothing new is read until this offset is finished.
        stopped_reason: Why it is not served; "" = it is.
        pause: Why nothing of it is handed out: its own pause, its topic's or its group's.
        lane: Set where dead letters are delivered again: the topic whose members get them, with
            `/PARTITION` when all of them come from one; `topic` is their dead-letter topic then.
        stops_at: It has a part of its log, and nothing from this offset on; log end and lag are of
            that part. None = it follows its log.
        rate_limit: Records per second that are handed out at the most; 0 = no limit.
        payloads_not_kept: Records that came to wait and whose payload was not stored, though
            `share.retry.keep.payload` is on, since the coordinator that was asked started; 0 when
            another one serves the partition.
        dead_letters_waiting: Dead letters that are not in their topic yet.
        dead_letters_problem: Why they are not; "" = they are on their way, or another coordinator
            serves the partition.
        memory_short: What `memory.limit` has stopped here; "" = nothing, or another coordinator
            serves the partition.
    """

    topic: str
    partition: int
    topic_id: str = ""
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
    pause: Pause | None = None
    lane: str = ""
    stops_at: int | None = None
    rate_limit: int = 0
    payloads_not_kept: int = 0
    dead_letters_waiting: int = 0
    dead_letters_problem: str = ""
    memory_short: str = ""

    @property
    def name(self) -> str:
        """The topic; of a lane `DEAD-LETTER-TOPIC/LANE`, as `list_in_flight` takes it."""
        return f"{self.topic}/{self.lane}" if self.lane else self.topic


@dataclass(frozen=True, slots=True)
class ReplayOf:
    """The records that a replay delivers: made by `times`, `duration` or `offsets`."""

    from_ms: int | None = None
    to_ms: int | None = None
    duration_ms: int | None = None
    ranges: tuple[tuple[str, int, int, int], ...] = ()

    @classmethod
    def times(cls, from_ms: int | None = None, to_ms: int | None = None) -> ReplayOf:
        """Records of a time or later, and before another; milliseconds since the epoch.

        Args:
            from_ms: None = from the log's start on.
            to_ms: None = until the log's end as it is now.
        """
        return cls(from_ms=0 if from_ms is None else from_ms, to_ms=to_ms)

    @classmethod
    def duration(cls, duration_ms: int) -> ReplayOf:
        """Records of the last so many milliseconds."""
        return cls(duration_ms=duration_ms)

    @classmethod
    def offsets(cls, ranges: Iterable[tuple[str, int, int, int]]) -> ReplayOf:
        """Records by topic, partition, first and last offset."""
        return cls(ranges=tuple(ranges))


@dataclass(frozen=True, slots=True)
class ReplayedPartition:
    """A share-partition of a side group.

    Attributes:
        first_offset: Where it begins.
        stops_at: One past its last offset; the same as `first_offset` = it has nothing.
        records: Offsets that are delivered, as far as the log still has a record there.
        rate_limit: Records per second; 0 = no limit.
    """

    topic: str
    partition: int
    first_offset: int
    stops_at: int
    records: int
    rate_limit: int = 0


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The state of a group; with `error` nothing else is known of it.

    Attributes:
        fairness_jain_ratio: Jain's index of the last second; None = not measured.
        pauses: All that is paused of it.
        settings_problems: What of its stored settings is not in force, and why.
        refused_topics: Topics of it that Kafka refuses to the coordinator, and what to allow.
    """

    group_id: str
    state: GroupState = GroupState.DEAD
    group_epoch: int = 0
    coordinator_id: str = ""
    member_count: int = 0
    members: tuple[MemberDescription, ...] = ()
    offsets: tuple[PartitionOffsets, ...] = ()
    fairness_jain_ratio: float | None = None
    error: AdminError | None = None
    pauses: tuple[Pause, ...] = ()
    settings_problems: tuple[str, ...] = ()
    refused_topics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting of a group.

    Attributes:
        problem: Why a stored value of it is not in force, and the fix; "" = there is none such.
    """

    name: str
    value: str
    source: ConfigSource
    documentation: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ResetTo:
    """The target of a reset of start offsets; made by the class methods.

    Attributes:
        kind: Name of the field of the request.
        value: Milliseconds since the epoch or back from now, or an offset.
        by_partition: One offset for each (topic, partition).
    """

    kind: str
    value: int = 0
    by_partition: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def earliest(cls) -> ResetTo:
        """The start of the log."""
        return cls("to_earliest")

    @classmethod
    def latest(cls) -> ResetTo:
        """The end of the log."""
        return cls("to_latest")

    @classmethod
    def current(cls) -> ResetTo:
        """Where the group is: what is in flight is forgotten. Without an offset, the log end."""
        return cls("to_current")

    @classmethod
    def timestamp(cls, timestamp_ms: int) -> ResetTo:
        """The first record of this time or later; milliseconds since the epoch."""
        return cls("to_timestamp_ms", timestamp_ms)

    @classmethod
    def duration(cls, duration_ms: int) -> ResetTo:
        """The first record that is younger than this, in milliseconds, by the coordinator."""
        return cls("by_duration_ms", duration_ms)

    @classmethod
    def offset(cls, offset: int) -> ResetTo:
        """The same offset in every partition; the nearest one in the log is taken."""
        return cls("to_offset", offset)

    @classmethod
    def offsets(cls, by_partition: Mapping[tuple[str, int], int]) -> ResetTo:
        """An offset for each (topic, partition)."""
        return cls("to_offsets", 0, dict(by_partition))


@dataclass(frozen=True, slots=True)
class ResetResult:
    """The result of a reset, or of its dry run, for one share-partition.

    Attributes:
        partition: -1 when the topic does not exist.
        new_offset: Start offset afterwards; None with an error.
        old_offset: Start offset before; None = it had none.
        requested_offset: What was asked for, when it was outside of the log.
        error: Why nothing was done.
    """

    topic: str
    partition: int
    new_offset: int | None
    old_offset: int | None = None
    requested_offset: int | None = None
    error: AdminError | None = None

    def __post_init__(self) -> None:
        if self.error is not None:
            object.__setattr__(self, "new_offset", None)


class ForceAction(Enum):
    """The ways in which an operator settles records, whoever holds them."""

    #: Never delivered (again), no dead letter.
    SKIP = "skip"
    #: Taken for accepted.
    FINISH = "finish"
    #: Acquired and delayed records are due at once.
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class ForcedRange:
    """The result of a skip, finish or release, or of its dry run, for records in one state.

    Attributes:
        last_offset: Inclusive.
        before: available, delayed, acquired, archiving, archived, finished (or a gap), unread, or
            passed_over (skipped or finished before it was read).
        after: The same as before: nothing was done with it.
        member_id: Who held it; "" = nobody.
        delivery_count: How often it was delivered.
    """

    first_offset: int
    last_offset: int
    before: str
    after: str
    member_id: str = ""
    delivery_count: int = 0


@dataclass(frozen=True, slots=True)
class InFlightRange:
    """Records in flight that are in the same state.

    Attributes:
        last_offset: Inclusive.
        lock_remaining_ms: None unless acquired.
        available_at_ms: Not delivered before, milliseconds since the epoch; 0 = due.
        reason: Why archived, or what the worker said at its last release.
        checkpoints: How many of the records have a checkpoint.
        checkpoint_bytes: Of all these together.
    """

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int
    member_id: str = ""
    lock_token: int = 0
    lock_remaining_ms: int | None = None
    available_at_ms: int = 0
    reason: str = ""
    checkpoints: int = 0
    checkpoint_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CoordinatorDescription:
    """A running coordinator."""

    coordinator_id: str
    version: str
    kafka_cluster_id: str
    kafka_bootstrap_servers: str
    store: str
    uptime_ms: int


@dataclass(frozen=True, slots=True)
class AccessDescription:
    """What the rules of a coordinator say of one principal, action and resource.

    Attributes:
        line: The line of the file of rules that decides; 0 = none does, so it is denied, or there
            are no rules.
        why: The decision in words.
        rules_problem: Why the present file of rules is not in force; "" = it is.
    """

    allowed: bool
    line: int
    why: str
    rules_problem: str


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key of which a group hands out nothing.

    Attributes:
        since_ms: When it was blocked, milliseconds since the epoch.
        waiting_records: Records of it that wait, as far as the group has read its topics.
    """

    key: bytes
    since_ms: int
    reason: str = ""
    waiting_records: int = 0


@dataclass(frozen=True, slots=True)
class ImportedOffsets:
    """The result of an import of offsets, or of its dry run, for one share-partition.

    Attributes:
        reset: The start offset, before and after; look at its `error`.
        committed_offset: None = the consumer group has none: `share.auto.offset.reset` decided.
        lag: Records from the new start offset to the end of the log; None = not known.
    """

    reset: ResetResult
    committed_offset: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class ExportedOffsets:
    """The result of an export of offsets, or of its dry run, for one share-partition.

    Attributes:
        offset: The start offset, which is committed.
        finished_ahead_records: Records behind it that are finished here and come again there.
        error: Why it was not written.
    """

    topic: str
    partition: int
    offset: int
    finished_ahead_records: int = 0
    error: AdminError | None = None


Headers = tuple[tuple[str, bytes | None], ...]


class DeadLetterState(Enum):
    """The places of a dead letter's life."""

    #: In the outbox: it is not in its topic yet.
    WAITING = "waiting"
    IN_TOPIC = "in topic"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """A choice of dead letters: every field that is given must hold, one value of each list.

    Attributes:
        reasons: REJECTED, DELIVERY_LIMIT.
        topic: Where the records come from.
        partitions: Of that topic.
        first_offset: Of the one partition that is given.
        last_offset: Inclusive.
        key: The whole key.
        key_prefix: How the key begins; not empty.
        failed_from_ms: When the last delivery failed, milliseconds since the epoch, inclusive.
        failed_to_ms: Exclusive.
        headers: Of the record; each must be there, with the value unless that is None.
        ids: Of letters.
        text: Part of the error text, in upper or lower case.
    """

    reasons: Iterable[str] = ()
    topic: str = ""
    partitions: Iterable[int] = ()
    first_offset: int | None = None
    last_offset: int | None = None
    key: bytes | None = None
    key_prefix: bytes | None = None
    failed_from_ms: int | None = None
    failed_to_ms: int | None = None
    headers: Iterable[tuple[str, bytes | None]] = ()
    ids: Iterable[str] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that was rejected, or failed for the last time.

    Attributes:
        id: The same on each copy of it; "" = Kafka's own brokers wrote it.
        topic: Where the record comes from, as the next two.
        reason: REJECTED or DELIVERY_LIMIT; "" as `id`.
        failed_at_ms: Milliseconds since the epoch.
        message: What the worker said, else a sentence.
        key: Of the record; in lists its first 256 bytes.
        place: Dead-letter topic, partition and offset; None while it waits.
        payload: `whole`, or why the record is not in it: `off`, `gone`, `kept` (in the store).
        timestamp_ms: Of the record; -1 = not known.
        run_id: Of its last redrive or discard; "" = none.
        marked_at_ms: When that was.
    """

    id: str
    topic: str
    partition: int
    offset: int
    reason: str
    delivery_count: int
    failed_at_ms: int
    message: str
    key: bytes | None
    state: DeadLetterState
    place: tuple[str, int, int] | None = None
    payload: str = "whole"
    member_id: str = ""
    timestamp_ms: int = -1
    run_id: str = ""
    marked_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """A page of dead letters; `next` goes on after it, "" = it was the last one."""

    letters: tuple[DeadLetter, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetterDetails:
    """A dead letter with its value, headers and history.

    Attributes:
        value: Of the record.
        headers: Of the record, in order, duplicates and nulls included.
        steps: What happened to it: milliseconds since the epoch (0 = not known) and words.
    """

    letter: DeadLetter
    value: bytes | None
    headers: Headers
    steps: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class DeadLettersResult:
    """The result of a redrive or a discard, or of its dry run.

    Attributes:
        run_id: Names it in the letters' marks; "" = nothing was done.
        letters: How many were, or would be, redriven or discarded.
        parts: Letters that were found for it, by topic and partition they come from.
        first: The first few of them.
        redriven: Left out: redriven before.
        discarded: Left out: discarded before.
        under_way: Left out: an earlier redrive of them is not finished.
        copies: Left out: a second copy of a letter; it is marked with the first one.
        waiting: Left out: not in their topic yet.
        not_redrivable: Left out of a redrive, by payload: the record is not in the letter.
        more: Whether there may be more than one call takes: the same call goes on.
    """

    run_id: str
    letters: int
    parts: Mapping[tuple[str, int], int]
    first: tuple[DeadLetter, ...] = ()
    redriven: int = 0
    discarded: int = 0
    under_way: int = 0
    copies: int = 0
    waiting: int = 0
    not_redrivable: Mapping[str, int] = field(default_factory=dict)
    more: bool = False
