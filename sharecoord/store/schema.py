"""Makes, checks and upgrades the schema. Alembic is imported only when there is work for it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, select

from sharecoord.errors import StoreVersionError
from sharecoord.store.tables import ALEMBIC_VERSION, HEAD_REVISION, METADATA, STORE_META

SCRIPTS = Path(__file__).parent / "migrations"


def prepare_schema(
    connection: Connection,
    *,
    where: str,
    scripts: Path = SCRIPTS,
    head: str = HEAD_REVISION,
    may_need_downtime: bool = False,
) -> None:
    """Brings the schema to `head` inside the connection's transaction.

    Args:
        connection: In a writing transaction.
        where: The store's name for messages.
        scripts: Folder of the migrations.
        head: The revision that this release works with.
        may_need_downtime: Whether to run migrations that are not safe beside an older release.

    Raises:
        StoreVersionError: The schema is of a newer release, of another program, or needs an
            operator.
    """
    tables = set(inspect(connection).get_table_names())
    if not tables:
        METADATA.create_all(connection, checkfirst=False)
        ALEMBIC_VERSION.create(connection, checkfirst=False)
        connection.execute(ALEMBIC_VERSION.insert().values(version_num=head))
        return
    if not {ALEMBIC_VERSION.name, STORE_META.name} <= tables:
        raise StoreVersionError(
            f"{where} is a database of another program (it has the table {min(tables)}). Give "
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


def _written_by(connection: Connection) -> str:
    """The newest release that has opened the store, for messages; "" when it never said."""
    value = connection.execute(
        select(STORE_META.c.value).where(STORE_META.c.name == "release")
    ).scalar_one_or_none()
    return str(value or "")
