"""One table for dead letters, checkpoints and kept payloads; `member.last_fetch_id` goes.

Revision: 0003. A frozen copy: it does not import `sharecoord.store.tables`, which moves on.

MySQL commits each change of the schema by itself: the steps can be made again from the start.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
needs_downtime = True

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_LONG_BLOB = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")

_LETTER = (
    "record_key, record_value, headers, timestamp_ms, checkpoint, reason, delivery_count, message, "
    "payload_known, member_id, members, first_failed_at_ms, failed_at_ms, state_epoch, kept, "
    "sequence, topic, exactly_once"
)
_KEPT = "record_key, record_value, headers, timestamp_ms, timestamp_type, size_bytes"
_FORMER = (
    # Table, kind, columns of the new table, columns of the former one.
    ("dead_letter", "dead_letter", _LETTER, _LETTER),
    ("record_checkpoint", "checkpoint", "checkpoint, at_ms", "data, at_ms"),
    ("kept_payload", "kept_payload", _KEPT, _KEPT),
)


def upgrade() -> None:
    """Moves the rows of three tables into one."""
    tables = sa.inspect(op.get_bind()).get_table_names()
    if "book_entry" not in tables:
        _make_book_entry()
    for table, kind, names, former in _FORMER:
        if table in tables:
            op.execute(f"DELETE FROM book_entry WHERE kind = '{kind}'")
            op.execute(
                f"INSERT INTO book_entry (kind, partition_id, record_offset, {names}) "
                f"SELECT '{kind}', partition_id, record_offset, {former} FROM {table}"
            )
            op.drop_table(table)
    columns = [column["name"] for column in sa.inspect(op.get_bind()).get_columns("member")]
    if "last_fetch_id" in columns:
        _drop_last_fetch_id()


def _make_book_entry() -> None:
    op.create_table(
        "book_entry",
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("partition_id", _ROW_ID, nullable=False, autoincrement=False),
        sa.Column("record_offset", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("record_key", _LONG_BLOB),
        sa.Column("record_value", _LONG_BLOB),
        sa.Column("headers", _LONG_TEXT),
        sa.Column("timestamp_ms", sa.BigInteger),
        sa.Column("timestamp_type", sa.Integer),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("checkpoint", _LONG_BLOB),
        sa.Column("at_ms", sa.BigInteger),
        sa.Column("reason", _LONG_TEXT),
        sa.Column("delivery_count", sa.Integer),
        sa.Column("message", _LONG_TEXT),
        sa.Column("payload_known", sa.Boolean),
        sa.Column("member_id", sa.String(255)),
        sa.Column("first_failed_at_ms", sa.BigInteger),
        sa.Column("failed_at_ms", sa.BigInteger),
        sa.Column("state_epoch", sa.BigInteger),
        sa.Column("kept", sa.Boolean),
        sa.Column("sequence", sa.BigInteger),
        sa.Column("topic", sa.String(249)),
        sa.Column("exactly_once", sa.Boolean),
        sa.Column("members", _LONG_TEXT),
        sa.PrimaryKeyConstraint("kind", "partition_id", "record_offset", name="pk_book_entry"),
    )


def _drop_last_fetch_id() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.drop_column("member", "last_fetch_id")
        return
    # SQLite drops columns only from 3.35 on, and a renamed table would take the view along.
    names = "group_id, member_id, member_epoch, client_id, host, gateway, topics, join_number"
    op.execute(f"CREATE TABLE former_member AS SELECT {names} FROM member")
    op.drop_table("member")
    op.create_table(
        "member",
        sa.Column("group_id", sa.String(255), nullable=False),
        sa.Column("member_id", sa.String(255), nullable=False),
        sa.Column("member_epoch", sa.BigInteger, nullable=False),
        sa.Column("client_id", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("gateway", sa.String(255), nullable=False),
        sa.Column("topics", _LONG_TEXT, nullable=False),
        sa.Column("join_number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("group_id", "member_id", name="pk_member"),
    )
    op.execute(f"INSERT INTO member ({names}) SELECT {names} FROM former_member")
    op.drop_table("former_member")
