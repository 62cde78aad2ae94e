"""The first schema.

Revision: 0001. A frozen copy: it does not import `sharecoord.store.tables`, which moves on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision: str | None = None
needs_downtime = False

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_LONG_BLOB = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_LANE_IN_KEY = sa.String(260).with_variant(
    mysql.VARCHAR(260, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
)


def upgrade() -> None:
    """Makes every table."""
    _make_small_tables()
    _make_share_partition()
    _make_in_flight()
    _make_dead_letter()
    _make_letter_mark()
    _make_record_checkpoint()
    _make_kept_payload()


def _make_small_tables() -> None:
    op.create_table(
        "store_meta",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", _LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_store_meta"),
    )
    op.create_table(
        "share_group",
        sa.Column("group_id", sa.String(255), nullable=False),
        sa.Column("config", _LONG_TEXT, nullable=False),
        sa.Column("group_epoch", sa.BigInteger, nullable=False),
        sa.Column("paused", _LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("group_id", name="pk_share_group"),
    )
    op.create_table(
        "blocked_key",
        sa.Column("group_id", sa.String(255), nullable=False),
        sa.Column("key_digest", sa.String(64), nullable=False),
        sa.Column("record_key", _LONG_BLOB, nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("reason", _LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("group_id", "key_digest", name="pk_blocked_key"),
    )
    op.create_table(
        "coordinator",
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("address", sa.String(255), nullable=False),
        sa.Column("peer_address", sa.String(255), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
        sa.Column("draining", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_coordinator"),
    )
    op.create_table(
        "member",
        sa.Column("group_id", sa.String(255), nullable=False),
        sa.Column("member_id", sa.String(255), nullable=False),
        sa.Column("member_epoch", sa.BigInteger, nullable=False),
        sa.Column("client_id", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("gateway", sa.String(255), nullable=False),
        sa.Column("topics", _LONG_TEXT, nullable=False),
        sa.Column("last_fetch_id", sa.BigInteger, nullable=False),
        sa.Column("join_number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("group_id", "member_id", name="pk_member"),
    )


def _make_share_partition() -> None:
    op.create_table(
        "share_partition",
        sa.Column("id", _ROW_ID, nullable=False),
        sa.Column("group_id", sa.String(255), nullable=False),
        sa.Column("topic", sa.String(249), nullable=False),
        sa.Column("topic_id", sa.String(32), nullable=False),
        sa.Column("partition_index", sa.Integer, nullable=False),
        sa.Column("start_offset", sa.BigInteger),
        sa.Column("end_offset", sa.BigInteger),
        sa.Column("end_leader_epoch", sa.Integer),
        sa.Column("finished_count", sa.BigInteger),
        sa.Column("change_sequence", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(255)),
        sa.Column("owner_epoch", sa.BigInteger, nullable=False),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("state_epoch", sa.BigInteger, nullable=False),
        sa.Column("replay_epoch", sa.BigInteger, nullable=False),
        sa.Column("closed", sa.Boolean, nullable=False),
        sa.Column("stopped_reason", sa.String(255), nullable=False),
        sa.Column("starts_at_zero", sa.Boolean, nullable=False),
        sa.Column("lane", _LANE_IN_KEY, nullable=False),
        sa.Column("stops_at", sa.BigInteger),
        sa.Column("rate_limit", sa.Integer, nullable=False),
        sa.Column("passed_over", _LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_share_partition"),
        sa.UniqueConstraint(
            "group_id",
            "topic",
            "topic_id",
            "partition_index",
            "lane",
            name="uq_share_partition",
        ),
        sqlite_autoincrement=True,
    )


def _make_in_flight() -> None:
    op.create_table(
        "in_flight",
        sa.Column("partition_id", _ROW_ID, nullable=False, autoincrement=False),
        sa.Column("first_offset", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("last_offset", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("delivery_count", sa.Integer, nullable=False),
        sa.Column("hand_outs", sa.Integer, nullable=False),
        sa.Column("member_id", sa.String(255)),
        sa.Column("lock_token", sa.BigInteger, nullable=False),
        sa.Column("deadline_ms", sa.BigInteger, nullable=False),
        sa.Column("granted_ms", sa.BigInteger, nullable=False),
        sa.Column("available_at_ms", sa.BigInteger, nullable=False),
        sa.Column("batch_base", sa.BigInteger, nullable=False),
        sa.Column("batch_size", sa.Integer, nullable=False),
        sa.Column("reason", _LONG_TEXT),
        sa.Column("key_hashes", _LONG_BLOB),
        sa.Column("history", _LONG_TEXT),
        sa.PrimaryKeyConstraint("partition_id", "first_offset", name="pk_in_flight"),
        *_of_share_partition("fk_in_flight_partition_id"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_in_flight_delayed",
        "in_flight",
        ["partition_id", "available_at_ms"],
        sqlite_where=sa.text("available_at_ms > 0"),
        postgresql_where=sa.text("available_at_ms > 0"),
    )


def _make_dead_letter() -> None:
    op.create_table(
        "dead_letter",
        sa.Column("partition_id", _ROW_ID, nullable=False, autoincrement=False),
        sa.Column("record_offset", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("reason", _LONG_TEXT, nullable=False),
        sa.Column("delivery_count", sa.Integer, nullable=False),
        sa.Column("message", _LONG_TEXT),
        sa.Column("record_key", _LONG_BLOB),
        sa.Column("record_value", _LONG_BLOB),
        sa.Column("headers", _LONG_TEXT, nullable=False),
        sa.Column("timestamp_ms", sa.BigInteger, nullable=False),
        sa.Column("payload_known", sa.Boolean, nullable=False),
        sa.Column("member_id", sa.String(255)),
        sa.Column("failed_at_ms", sa.BigInteger, nullable=False),
        sa.Column("state_epoch", sa.BigInteger, nullable=False),
        sa.Column("kept", sa.Boolean, nullable=False),
        sa.Column("checkpoint", _LONG_BLOB),
        sa.Column("members", _LONG_TEXT, nullable=False),
        sa.Column("first_failed_at_ms", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("topic", sa.String(249), nullable=False),
        sa.Column("exactly_once", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "record_offset", name="pk_dead_letter"),
        *_of_share_partition("fk_dead_letter_partition_id"),
    )


def _make_letter_mark() -> None:
    op.create_table(
        "letter_mark",
        sa.Column("partition_id", _ROW_ID, nullable=False, autoincrement=False),
        sa.Column("first_offset", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("last_offset", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "first_offset", "run_id", name="pk_letter_mark"),
        *_of_share_partition("fk_letter_mark_partition_id"),
    )


def _make_record_checkpoint() -> None:
    op.create_table(
        "record_checkpoint",
        sa.Column("partition_id", _ROW_ID, nullable=False, autoincrement=False),
        sa.Column("record_offset", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("data", _LONG_BLOB, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "record_offset", name="pk_record_checkpoint"),
        *_of_share_partition("fk_record_checkpoint_partition_id"),
    )


def _make_kept_payload() -> None:
    op.create_table(
        "kept_payload",
        sa.Column("partition_id", _ROW_ID, nullable=False, autoincrement=False),
        sa.Column("record_offset", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("record_key", _LONG_BLOB),
        sa.Column("record_value", _LONG_BLOB),
        sa.Column("headers", _LONG_TEXT, nullable=False),
        sa.Column("timestamp_ms", sa.BigInteger, nullable=False),
        sa.Column("timestamp_type", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("partition_id", "record_offset", name="pk_kept_payload"),
        *_of_share_partition("fk_kept_payload_partition_id"),
    )


def _of_share_partition(name: str) -> list[sa.Constraint]:
    if op.get_bind().dialect.name != "sqlite":
        return []
    columns, others = ["partition_id"], ["share_partition.id"]
    return [sa.ForeignKeyConstraint(columns, others, name=name, ondelete="CASCADE")]
