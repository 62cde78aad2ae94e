"""Makes, checks and upgrades the schema. Alembic is imported only for an upgrade."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from sqlalchemy import Connection, inspect, select

from sharecoord.errors import StoreVersionError
from sharecoord.store.tables import ALEMBIC_VERSION, HEAD_REVISION, METADATA, STORE_META

SCRIPTS = Path(__file__).parent / "migrations"

OUR_TABLES = frozenset({*METADATA.tables, ALEMBIC_VERSION.name})


def prepare_schema(
    connection: Connection,
    *,
    where: str,
    scripts: Path = SCRIPTS,
    head: str = HEAD_REVISION,
    may_need_downtime: bool = False,
    ddl_commits: bool = False,
) -> None:
    """Brings the schema to `head` inside the connection's transaction.

    Args:
        connection: In a writing transaction.
        where: The store's name for messages.
        scripts: Folder of the migrations.
        head: The revision that this release works with.
        may_need_downtime: Whether to run migrations that are not safe beside an older release.
        ddl_commits: Whether a crash can leave a part of the tables behind.

    Raises:
        StoreVersionError: The schema is of a newer release, of another program, or needs an
            operator.
    """
    tables = set(inspect(connection).get_table_names())
    if not tables:
        _make(connection, head)
        return
    if ddl_commits and tables <= OUR_TABLES and not _has_stamp(connection, tables):
        # A process died while it made the schema: no stamp, so nobody has ever used it.
        METADATA.drop_all(connection)
        ALEMBIC_VERSION.drop(connection, checkfirst=True)
        _make(connection, head)
        return
    if not {ALEMBIC_VERSION.name, STORE_META.name} <= tables:
        other = min(tables - OUR_TABLES, default=min(tables))
        raise StoreVersionError(
            f"{where} is a database of another program (it has the table {other}). Give "
            "--store the name of a new or empty database"
        )
    revision = connection.execute(select(ALEMBIC_VERSION.c.version_num)).scalar_one_or_none()
    if revision == head:
        return
    from sharecoord.store.migrations.upgrade import (
        upgrade_schema,
    )

    upgrade_schema(
        connection,
        where=where,
        scripts=scripts,
        head=head,
        revision=revision,
        release=_written_by(connection),
        may_need_downtime=may_need_downtime,
    )


def _make(connection: Connection, head: str) -> None:
    METADATA.create_all(connection, checkfirst=False)
    ALEMBIC_VERSION.create(connection, checkfirst=False)
    connection.execute(ALEMBIC_VERSION.insert().values(version_num=head))


def _has_stamp(connection: Connection, tables: Collection[str]) -> bool:
    """Whether the schema was ever finished; a used store has rows in `store_meta`."""
    return any(
        connection.execute(select(table)).first() is not None
        for table in (ALEMBIC_VERSION, STORE_META)
        if table.name in tables
    )


def _written_by(connection: Connection) -> str:
    """The newest release that has opened the store, for messages; "" when it never said."""
    value = connection.execute(
        select(STORE_META.c.value).where(STORE_META.c.name == "release")
    ).scalar_one_or_none()
    return str(value or "")
