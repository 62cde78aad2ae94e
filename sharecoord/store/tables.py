"""The tables of the store (design 8), readable by a person with SELECT.

Between `start_offset` and `end_offset` of a share-partition, an offset that no row of `in_flight`
covers is ACKNOWLEDGED. Times are milliseconds of the store's clock. A change here needs a revision
in `migrations/versions`; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
)
from sqlalchemy.dialects import mysql

from sharecoord.store.book_entries import CHECKPOINT, DEAD_LETTER, KEPT_PAYLOAD

HEAD_REVISION = "0005"
"""The revision of the schema below; `store/migrations` ends there."""

METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

# SQLite numbers rows by itself only in a column that is called INTEGER; its integers have 64 bits.
ROW_ID = BigInteger().with_variant(Integer(), "sqlite")

# MySQL's TEXT and BLOB end at 64 KiB.
LONG_TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
LONG_BLOB = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")

# A topic, perhaps with a partition. A key of MySQL has 3,072 bytes, and names of topics are ASCII.
LANE_IN_KEY = String(260).with_variant(
    mysql.VARCHAR(260, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
)

# `User:` and the longest name of `security.principals`. No TEXT, which has no default in MySQL.
PRINCIPAL_CHARS_MAX = 2_053


def _principal(name: str) -> Column[str]:
    """A column with the name of a principal, "" = not known; the last one of its table.

    An older coordinator beside this one does not name the column when it writes a row. Backups of
    schemas before `since` do not have the column: their rows get the value `before`.
    """
    info = {"since": "0005", "before": ""}
    text = String(PRINCIPAL_CHARS_MAX)
    return Column(name, text, nullable=False, server_default="", info=info)


def _of_share_partition() -> ForeignKeyConstraint:
    """Foreign key on SQLite alone: a server would take a third of a commit for looking it up.

    Whoever writes such rows has locked the share-partition; whoever deletes it deletes them.
    """
    constraint = ForeignKeyConstraint(["partition_id"], ["share_partition.id"], ondelete="CASCADE")
    return constraint.ddl_if(dialect="sqlite")


STORE_META = Table(
    "store_meta",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("value", LONG_TEXT, nullable=False),
)

SHARE_GROUP = Table(
    "share_group",
    METADATA,
    Column("group_id", String(255), primary_key=True),
    Column("config", LONG_TEXT, nullable=False),  # JSON object of overrides
    Column("group_epoch", BigInteger, nullable=False),
    Column("paused", LONG_TEXT, nullable=False),  # JSON array of what is paused, see row_codec
    _principal("made_by"),
)

BLOCKED_KEY = Table(
    "blocked_key",
    METADATA,
    Column("group_id", String(255), primary_key=True),
    # MySQL has no index over a blob: SHA-256 of the key, in hex.
    Column("key_digest", String(64), primary_key=True),
    Column("record_key", LONG_BLOB, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("reason", LONG_TEXT, nullable=False),
)

COORDINATOR = Table(
    "coordinator",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("address", String(255), nullable=False),
    Column("peer_address", String(255), nullable=False),  # "" = not announced yet
    Column("version", String(64), nullable=False),
    Column("lease_until_ms", BigInteger, nullable=False),
    Column("draining", Boolean, nullable=False),
    # In hex; NULL = the coordinator is alone, or of a release without secrets. Not for people.
    Column("secret", String(64)),
)

SHARE_PARTITION = Table(
    "share_partition",
    METADATA,
    Column("id", ROW_ID, primary_key=True),
    Column("group_id", String(255), nullable=False),
    Column("topic", String(249), nullable=False),
    Column("topic_id", String(32), nullable=False),  # "" = the cluster has no topic ids
    Column("partition_index", Integer, nullable=False),
    Column("start_offset", BigInteger),  # NULL = not initialised
    Column("end_offset", BigInteger),
    Column("end_leader_epoch", Integer),
    Column("finished_count", BigInteger),
    Column("change_sequence", BigInteger, nullable=False),
    Column("owner", String(255)),  # NULL = nobody
    Column("owner_epoch", BigInteger, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("state_epoch", BigInteger, nullable=False),
    Column("replay_epoch", BigInteger, nullable=False),  # state epoch of the last reset
    Column("closed", Boolean, nullable=False),
    Column("stopped_reason", String(255), nullable=False),
    Column("starts_at_zero", Boolean, nullable=False),  # written when the row is made
    Column("lane", LANE_IN_KEY, nullable=False),  # "" = the log itself
    Column("stops_at", BigInteger),  # NULL = it follows its log
    Column("rate_limit", Integer, nullable=False),  # records per second; 0 = none
    Column("passed_over", LONG_TEXT, nullable=False),  # JSON array of [first, last] offsets
    UniqueConstraint("group_id", "topic", "topic_id", "partition_index", "lane"),
    # An id must never come back: a late commit of a former owner would find a stranger under it.
    sqlite_autoincrement=True,
)

IN_FLIGHT = Table(
    "in_flight",
    METADATA,
    Column("partition_id", ROW_ID, primary_key=True, autoincrement=False),
    # From here on the columns and their order are those of `InFlightRow`.
    Column("first_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("last_offset", BigInteger, nullable=False),
    Column("state", Integer, nullable=False),
    Column("delivery_count", Integer, nullable=False),
    Column("hand_outs", Integer, nullable=False),
    Column("member_id", String(255)),
    Column("lock_token", BigInteger, nullable=False),
    Column("deadline_ms", BigInteger, nullable=False),
    Column("granted_ms", BigInteger, nullable=False),
    Column("available_at_ms", BigInteger, nullable=False),
    Column("batch_base", BigInteger, nullable=False),
    Column("batch_size", Integer, nullable=False),
    Column("reason", LONG_TEXT),
    Column("key_hashes", LONG_BLOB),
    Column("history", LONG_TEXT),  # JSON, see core.history
    _of_share_partition(),
    # One B-tree instead of two: a commit writes half the pages.
    sqlite_with_rowid=False,
)

Index(
    "ix_in_flight_delayed",
    IN_FLIGHT.c.partition_id,
    IN_FLIGHT.c.available_at_ms,
    # Only delayed ranges pay for it.
    sqlite_where=IN_FLIGHT.c.available_at_ms > 0,
    postgresql_where=IN_FLIGHT.c.available_at_ms > 0,
)

MEMBER = Table(
    "member",
    METADATA,
    Column("group_id", String(255), primary_key=True),
    Column("member_id", String(255), primary_key=True),
    Column("member_epoch", BigInteger, nullable=False),
    Column("client_id", String(255), nullable=False),
    Column("host", String(255), nullable=False),
    Column("gateway", String(255), nullable=False),
    Column("topics", LONG_TEXT, nullable=False),  # JSON array of names
    Column("join_number", BigInteger, nullable=False),
    _principal("principal"),
)


def _of(*kinds: str) -> dict[str, object]:
    """The note at a column of `book_entry` that entries of these kinds must have."""
    return {"kinds": kinds}


BOOK_ENTRY = Table(
    "book_entry",
    METADATA,
    # The kind comes first: dead letters are looked for in all share-partitions.
    Column("kind", String(16), primary_key=True),  # see store.book_entries
    Column("partition_id", ROW_ID, primary_key=True, autoincrement=False),
    Column("record_offset", BigInteger, primary_key=True, autoincrement=False),
    # The columns that the kind of an entry does not have are NULL.
    Column("record_key", LONG_BLOB),
    Column("record_value", LONG_BLOB),
    Column("headers", LONG_TEXT, info=_of(DEAD_LETTER, KEPT_PAYLOAD)),  # JSON, see row_codec
    Column("timestamp_ms", BigInteger, info=_of(DEAD_LETTER, KEPT_PAYLOAD)),
    Column("timestamp_type", Integer, info=_of(KEPT_PAYLOAD)),
    Column("size_bytes", BigInteger, info=_of(KEPT_PAYLOAD)),
    Column("checkpoint", LONG_BLOB, info=_of(CHECKPOINT)),  # a dead letter has a small one
    Column("at_ms", BigInteger, info=_of(CHECKPOINT)),
    # From here on the columns are those of dead letters alone.
    Column("reason", LONG_TEXT, info=_of(DEAD_LETTER)),
    Column("delivery_count", Integer, info=_of(DEAD_LETTER)),
    Column("message", LONG_TEXT),
    Column("payload_known", Boolean, info=_of(DEAD_LETTER)),
    Column("member_id", String(255)),
    Column("first_failed_at_ms", BigInteger, info=_of(DEAD_LETTER)),
    Column("failed_at_ms", BigInteger, info=_of(DEAD_LETTER)),
    Column("state_epoch", BigInteger, info=_of(DEAD_LETTER)),
    Column("kept", Boolean, info=_of(DEAD_LETTER)),
    Column("sequence", BigInteger, info=_of(DEAD_LETTER)),
    Column("topic", String(249), info=_of(DEAD_LETTER)),
    Column("exactly_once", Boolean, info=_of(DEAD_LETTER)),
    Column("members", LONG_TEXT, info=_of(DEAD_LETTER)),  # JSON array of ids
)

LETTER_MARK = Table(
    "letter_mark",
    METADATA,
    Column("partition_id", ROW_ID, primary_key=True, autoincrement=False),  # the lane's
    # From here on the columns and their order are those of `core.letters.lanes.Mark`.
    Column("first_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("last_offset", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),  # redriven or discarded
    Column("run_id", String(64), primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    _of_share_partition(),
)

_UTC_OF_MS = {
    "sqlite": "datetime({0} / 1000, 'unixepoch')",
    "postgresql": "to_timestamp({0} / 1000) AT TIME ZONE 'UTC'",
    "mysql": "TIMESTAMPADD(SECOND, {0} DIV 1000, '1970-01-01')",
}
"""A time of the store as a person reads it, to the second."""

_RECORDS_IN_FLIGHT = """
CREATE VIEW records_in_flight AS
SELECT p.group_id, p.topic, p.partition_index, p.lane, f.first_offset, f.last_offset,
       CASE f.state WHEN 0 THEN 'available' WHEN 1 THEN 'acquired' WHEN 3 THEN 'archiving'
                    ELSE 'archived' END AS state,
       f.delivery_count, f.member_id, m.client_id, m.host,
       CASE WHEN f.state = 1 THEN {locked_until} END AS locked_until_utc,
       CASE WHEN f.available_at_ms > 0 THEN {available_at} END AS available_at_utc,
       f.reason
FROM in_flight f
JOIN share_partition p ON p.id = f.partition_id
LEFT JOIN member m ON m.group_id = p.group_id AND m.member_id = f.member_id
WHERE NOT p.closed
"""
"""View of ranges that are not finished, with names and times, for people; no code reads it."""


def _make_view(_: MetaData, connection: Connection, **__: object) -> None:
    utc = _UTC_OF_MS.get(connection.dialect.name, _UTC_OF_MS["mysql"])
    view = _RECORDS_IN_FLIGHT.format(
        locked_until=utc.format("f.deadline_ms"), available_at=utc.format("f.available_at_ms")
    )
    connection.exec_driver_sql(view)


def _drop_view(_: MetaData, connection: Connection, **__: object) -> None:
    connection.exec_driver_sql("DROP VIEW IF EXISTS records_in_flight")


event.listen(METADATA, "after_create", _make_view)
event.listen(METADATA, "before_drop", _drop_view)

# Alembic's own table, made here so that a fresh store needs no Alembic.
ALEMBIC_VERSION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
