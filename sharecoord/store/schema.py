"""Makes, checks and upgrades the schema. Alembic is imported only for an upgrade."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, inspect, select

from sharecoord.errors import StoreVersionError
from sharecoord.store.tables import ALEMBIC_VERSION, HEAD_REVISION, METADATA, STORE_META


class Schema(NamedTuple):
    """The schema of a release."""

    scripts: Path = Path(__file__).parent / "migrations"
    """Folder of the migrations."""
    head: str = HEAD_REVISION
    """The revision that the migrations lead to, with which the release works."""


OUR_TABLES = frozenset({*METADATA.tables, ALEMBIC_VERSION.name})


def prepare_schema(
    connection: Connection,
    *,
    where: str,
    schema: Schema = Schema(),  # noqa: B008 - it can not change
    may_need_downtime: bool = False,
    ddl_commits: bool = False,
) -> str:
    """Brings the schema to that of a release inside the connection's transaction.

    Args:
        connection: In a writing transaction.
        where: The store's name for messages.
        schema: The schema that is wanted.
        may_need_downtime: Whether to run migrations that are not safe beside an older release.
        ddl_commits: Whether a crash can leave a part of the tables behind.

    Returns:
        The revision that was there; "" = none.

    Raises:
        StoreVersionError: The schema is of a newer release, of another program, or needs an
            operator.
    """
    revision = stored_revision(connection, where=where, ddl_commits=ddl_commits)
    if not revision:
        if ddl_commits:
            METADATA.drop_all(connection)
            ALEMBIC_VERSION.drop(connection, checkfirst=True)
        _make(connection, schema.head)
    elif revision != schema.head:
        from sharecoord.store.migrations.upgrade import upgrade_schema

        upgrade_schema(
            connection,
            where=where,
            scripts=schema.scripts,
            head=schema.head,
            revision=revision,
            release=read_meta(connection).get("release", ""),
            may_need_downtime=may_need_downtime,
        )
    return revision


def stored_revision(connection: Connection, *, where: str, ddl_commits: bool) -> str:
    """The revision that the database has; "" when there is none.

    Raises:
        StoreVersionError: The database is of another program.
    """
    tables = set(inspect(connection).get_table_names())
    # Without a stamp a process died while it made the schema: nobody has ever used it.
    died = ddl_commits and tables <= OUR_TABLES and not _has_stamp(connection, tables)
    if not tables or died:
        return ""
    if not {ALEMBIC_VERSION.name, STORE_META.name} <= tables:
        other = min(tables - OUR_TABLES, default=min(tables))
        raise StoreVersionError(
            f"{where} is a database of another program (it has the table {other}). Give "
            "--store the URL that the coordinator has, or that of a new or empty database"
        )
    stored = select(ALEMBIC_VERSION.c.version_num)
    return str(connection.execute(stored).scalar_one_or_none() or "(none)")


def read_meta(connection: Connection) -> dict[str, str]:
    """The values of `store_meta`, by name."""
    rows = connection.execute(select(STORE_META.c.name, STORE_META.c.value))
    return {str(name): str(value) for name, value in rows}


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
