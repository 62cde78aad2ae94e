"""The event log's schema: what happened to records, and how a group did (design 11).

One flat table. A row is of one kind; columns that do not belong to its kind are null. Additive
only: a column is never renamed, retyped or given another meaning; a reader ignores columns that it
does not know, and takes those that a file does not have for null. `SCHEMA_VERSION` grows with
every column or value that is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

SCHEMA_VERSION = 1


class EventKind(StrEnum):
    """Kinds of rows."""

    RANGE = "range"
    """A change of the records [first_offset, last_offset] of a share-partition."""
    PARTITION = "partition"
    """A share-partition's figures, once per interval."""
    MEMBER = "member"
    """A member's demand and what it got in an interval; only of members that wanted something."""
    GROUP = "group"
    """Something that concerns a whole group: who joined or left, a pause, other settings."""
    LOST = "lost"
    """`records` rows before this one could not be written."""


class RangeEvent(StrEnum):
    """Events of a range; column `state` has its state afterwards."""

    ENTERED = "entered"
    """New records that order holds back entered the window."""
    ACQUIRED = "acquired"
    RENEWED = "renewed"
    ACCEPTED = "accepted"
    RELEASED = "released"
    REJECTED = "rejected"
    RETURNED = "returned"
    """Handed back unseen: the delivery does not count."""
    EXPIRED = "expired"
    """The lock ended by itself."""
    DEPARTED = "departed"
    """The holder left, or its session ended."""
    WORN_OUT = "worn_out"
    """Archived instead of delivered: the delivery limit was lowered below its count."""
    GAP = "gap"
    """There is no record (compaction, control records, aborted data)."""
    LOG_START = "log_start"
    """The log's start passed it before it was finished."""
    TRUNCATED = "truncated"
    """The log lost it."""
    RELEASED_BY_ADMIN = "released_by_admin"
    """`reason` says by whom."""
    ARCHIVED_BY_ADMIN = "archived_by_admin"
    """`reason` says by whom."""
    FINISHED_BY_ADMIN = "finished_by_admin"
    """Taken for accepted by an operator, whom `reason` names; members never see it (again)."""
    RESET = "reset"
    """The start offset was set to `first_offset`; what was in flight is void."""
    DEAD_LETTERED = "dead_lettered"
    """Its dead letter is safe."""


class GroupEvent(StrEnum):
    """Events of a group."""

    JOINED = "joined"
    LEFT = "left"
    SESSION_ENDED = "session_ended"
    PAUSED = "paused"
    """The group, or the topic, partition or member that the row names; `reason` says by whom."""
    RESUMED = "resumed"
    """`reason` says by whom."""
    CONFIGURED = "configured"
    """`reason` names the settings, as key=value."""
    KEYS_BLOCKED = "keys_blocked"
    """`reason` names the keys, by whom, and why."""
    KEYS_UNBLOCKED = "keys_unblocked"
    """`reason` names the keys, and by whom."""
    DELETED = "deleted"
    OWNED = "owned"
    """A coordinator took a share-partition over."""


class ColumnType(StrEnum):
    """Types, as Arrow, Parquet and Spark have them alike."""

    INT32 = "int32"
    INT64 = "int64"
    STRING = "string"
    BINARY = "binary"
    DOUBLE = "double"
    TIMESTAMP = "timestamp"
    """Microseconds since the epoch, UTC."""

    def in_arrow(self, arrow: Any) -> Any:
        """The type in `arrow`, which is pyarrow: the event log itself does not load it."""
        if self is ColumnType.TIMESTAMP:
            return arrow.timestamp("us", tz="UTC")
        return arrow.type_for_alias(self.value)


class Column(NamedTuple):
    """A column of the event log."""

    name: str
    type: ColumnType
    kinds: tuple[EventKind, ...]
    """The kinds of rows that have the column."""
    meaning: str


_ALL = tuple(EventKind)
_RANGE, _PARTITION, _MEMBER = (EventKind.RANGE,), (EventKind.PARTITION,), (EventKind.MEMBER,)
_GROUP = (EventKind.GROUP,)
_I32, _I64, _TEXT = ColumnType.INT32, ColumnType.INT64, ColumnType.STRING
_TIME = ColumnType.TIMESTAMP

COLUMNS: tuple[Column, ...] = (
    Column("schema_version", _I32, _ALL, "Version of this table that the row was written with."),
    Column("kind", _TEXT, _ALL, "range, partition, member, group or lost."),
    Column("time", _TIME, _ALL, "When, by the store's clock, which all coordinators share."),
    Column("coordinator_id", _TEXT, _ALL, "Who wrote it."),
    Column("group_id", _TEXT, _ALL, 'Share group; "" in rows that concern no group.'),
    Column("topic", _TEXT, _RANGE + _PARTITION + _GROUP, "Topic."),
    Column("topic_id", _TEXT, _RANGE + _PARTITION, 'Kafka\'s topic id, 32 hex digits, or "".'),
    Column("partition", _I32, _RANGE + _PARTITION + _GROUP, "Partition."),
    Column(
        "change_sequence",
        _I64,
        _RANGE + _PARTITION,
        "Number of the change in its share-partition (group, topic, topic id, partition): without "
        "gaps, so a missing one is an event that was lost; several rows may share one; it begins "
        "anew when the group's offsets were deleted. In samples the newest.",
    ),
    Column("event", _TEXT, _RANGE + _GROUP, "What happened."),
    Column(
        "state",
        _TEXT,
        _RANGE,
        "What the range became: available, acquired, acknowledged, archiving, archived; null where "
        "it is no longer known (truncated, reset).",
    ),
    Column("first_offset", _I64, _RANGE, "First offset of the range."),
    Column("last_offset", _I64, _RANGE, "Last offset, inclusive."),
    Column(
        "records",
        _I64,
        (*_RANGE, EventKind.LOST),
        "Records in the range (0 for a gap); in `lost` rows how many rows are missing.",
    ),
    Column("delivery_count", _I32, _RANGE, "Delivery count after the event."),
    Column("member_id", _TEXT, _RANGE + _MEMBER + _GROUP, "The holder, or the former one."),
    Column("client_id", _TEXT, _RANGE + _MEMBER + _GROUP, "Its client id."),
    Column(
        "available_ms",
        _I64,
        _RANGE,
        "acquired: how long it could have been handed out before: since it was read from Kafka, "
        "released, or its delay was over. Null when not known (after a change of owner).",
    ),
    Column(
        "age_ms",
        _I64,
        _RANGE,
        "acquired: age of its oldest record by Kafka's timestamp. Null when it is not at hand.",
    ),
    Column(
        "held_ms",
        _I64,
        _RANGE,
        "accepted, renewed, released, rejected, returned, expired, departed: how long the member "
        "had held the lock, renewals included.",
    ),
    Column(
        "work_us",
        _I64,
        _RANGE,
        "accepted, released, rejected: the time that the application had for these records, as the "
        "member says; null when it does not.",
    ),
    Column("lock_ms", _I64, _RANGE, "acquired, renewed: duration of the lock."),
    Column(
        "lock_left_ms",
        _I64,
        _RANGE,
        "accepted, renewed, released, rejected, returned: how long the lock would have lasted.",
    ),
    Column("delay_ms", _I64, _RANGE, "released: not delivered again for so long; 0 = at once."),
    Column(
        "reason",
        _TEXT,
        _RANGE + _GROUP,
        "What the worker said, why it was archived, why a member went, or who did it.",
    ),
    Column(
        "key",
        ColumnType.BINARY,
        _RANGE,
        "released, rejected, expired, departed, of one record: its key, at most 256 bytes; null "
        "when it has none or is not at hand.",
    ),
    Column("log_end_offset", _I64, _PARTITION, "End of the log as the coordinator knows it."),
    Column("start_offset", _I64, _PARTITION, "SPSO: everything below is finished."),
    Column("end_offset", _I64, _PARTITION, "One past the last offset that ever was in the window."),
    Column("lag", _I64, _PARTITION, "Records that are not finished, up to the end of the log."),
    Column("due", _I64, _PARTITION, "Records in the window that wait to be delivered again."),
    Column("acquired", _I64, _PARTITION, "Records under a lock."),
    Column("delayed", _I64, _PARTITION, "Records that wait for their time."),
    Column("archiving", _I64, _PARTITION, "Records on their way to the dead-letter topic."),
    Column("window_max", _I64, _PARTITION, "How many records may be acquired or due again."),
    Column(
        "oldest_time",
        _TIME,
        _PARTITION,
        "Kafka's timestamp of the oldest unfinished record; null when there is none, or it is not "
        "at hand.",
    ),
    Column("members", _I64, _PARTITION, "Members that want this topic."),
    Column("members_waiting", _I64, _PARTITION, "Those of them that could take more at once."),
    Column("demand", _I64, _MEMBER, "Records that it could have taken in the interval."),
    Column("got", _I64, _MEMBER, "Records that it was handed in the interval."),
    Column("held", _I64, _MEMBER, "Records that it holds at the end of the interval."),
    Column("pace_us", _I64, _MEMBER, "Time per record, learnt; null until it has settled one."),
    Column(
        "interval_ms", _I64, _PARTITION + _MEMBER, "Length of the interval that ended at `time`."
    ),
)
"""All columns, in the order of the files."""

COLUMN_NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)

KEY_BYTES_MAX = 256
"""Longest `key`; longer ones are cut."""


EventValue = str | int | bytes | None

EventRow = tuple[EventValue, ...]


class EventBlock(NamedTuple):
    """Rows that have some columns in common: what travels from a share-partition to a sink.

    Columns that stand neither in `common` nor in `columns` are null; `schema_version` and
    `coordinator_id` are the sink's to fill. Times are microseconds since the epoch.
    """

    common: Mapping[str, EventValue]
    columns: tuple[str, ...]
    rows: Sequence[EventRow]
    """Values in the order of `columns`."""
