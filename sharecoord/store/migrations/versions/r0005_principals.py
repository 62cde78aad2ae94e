"""Who made a group, and who a member is.

Revision: 0005. A frozen copy: it does not import `sharecoord.store.tables`, which moves on.

A coordinator of an older release goes on: it names the columns that it writes. What it writes has
no principal, and a member that joins again through it keeps the one that is stored.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
needs_downtime = False

_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Adds the columns, empty: principals are noted from now on."""
    _add("share_group", "made_by", _group_columns)
    _add("member", "principal", _member_columns)


def _add(table: str, name: str, former: Callable[[], list[sa.schema.SchemaItem]]) -> None:
    """Adds a column for a principal at the end of a table; `former` makes its columns and key."""
    bind = op.get_bind()
    columns = [str(column["name"]) for column in sa.inspect(bind).get_columns(table)]
    # MySQL commits each change of the schema by itself: the column may be there already.
    if name in columns:
        return
    added = sa.Column(name, sa.String(2_053), nullable=False, server_default="")
    if bind.dialect.name != "sqlite":
        op.add_column(table, added)
        return
    # A fresh table has its columns before its primary key, which ALTER TABLE can not do.
    names = ", ".join(columns)
    op.execute(f"CREATE TABLE former_{table} AS SELECT {names} FROM {table}")
    op.drop_table(table)
    *before, key = former()
    op.create_table(table, *before, added, key)
    op.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM former_{table}")
    op.drop_table(f"former_{table}")


def _group_columns() -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("group_id", sa.String(255), nullable=False),
        sa.Column("config", _LONG_TEXT, nullable=False),
        sa.Column("group_epoch", sa.BigInteger, nullable=False),
        sa.Column("paused", _LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("group_id", name="pk_share_group"),
    ]


def _member_columns() -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("group_id", sa.String(255), nullable=False),
        sa.Column("member_id", sa.String(255), nullable=False),
        sa.Column("member_epoch", sa.BigInteger, nullable=False),
        sa.Column("client_id", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("gateway", sa.String(255), nullable=False),
        sa.Column("topics", _LONG_TEXT, nullable=False),
        sa.Column("join_number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("group_id", "member_id", name="pk_member"),
    ]
