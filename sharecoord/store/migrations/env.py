"""Alembic's entry: runs the migrations on the connection that the store gives.

Without one (`alembic` on the command line) it stops: a store is upgraded by its own release.
"""

from __future__ import annotations

from alembic import context

from sharecoord.store.tables import METADATA

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run: sharecoord store migrate")
context.configure(
    connection=connection,
    target_metadata=METADATA,
    # SQLite alters a table by making it anew.
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
