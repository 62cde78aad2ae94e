"""A secret in each coordinator's lease row, by which the others of its fleet know it.

Revision: 0004. A frozen copy: it does not import `sharecoord.store.tables`, which moves on.

A coordinator of an older release goes on: it names the columns that it writes, and has no secret.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
needs_downtime = False


def upgrade() -> None:
    """Adds the column; coordinators write their secrets when they start."""
    bind = op.get_bind()
    columns = [column["name"] for column in sa.inspect(bind).get_columns("coordinator")]
    # MySQL commits each change of the schema by itself: the column may be there already.
    if "secret" in columns:
        return
    if bind.dialect.name != "sqlite":
        op.add_column("coordinator", sa.Column("secret", sa.String(64)))
        return
    # A fresh table has its columns before its primary key, which ALTER TABLE can not do.
    names = "id, address, peer_address, version, lease_until_ms, draining"
    op.execute(f"CREATE TABLE former_coordinator AS SELECT {names} FROM coordinator")
    op.drop_table("coordinator")
    op.create_table(
        "coordinator",
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("address", sa.String(255), nullable=False),
        sa.Column("peer_address", sa.String(255), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
        sa.Column("draining", sa.Boolean, nullable=False),
        sa.Column("secret", sa.String(64)),
        sa.PrimaryKeyConstraint("id", name="pk_coordinator"),
    )
    op.execute(f"INSERT INTO coordinator ({names}) SELECT {names} FROM former_coordinator")
    op.drop_table("former_coordinator")
