"""A store without a coordinator: read beside one, or taken while there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, inspect, select

from sharecoord.errors import InvalidConfigError, StoreInUseError, StoreVersionError
from sharecoord.store.dialects import Dialect, SqliteDialect
from sharecoord.store.schema import Schema, prepare_schema, read_meta, stored_revision
from sharecoord.store.tables import COORDINATOR
from sharecoord.store.transactions import Transactions

TOOL_ID = "sharecoord-store"
"""Coordinator id of a tool, as other processes see it while the tool has the store."""


class StoreFacts(NamedTuple):
    """Facts that a store tells about itself."""

    revision: str
    """Revision of the schema."""
    release: str
    """The newest release that has opened the store; "" = not known."""
    cluster_id: str
    """The store's Kafka cluster; "" = not known."""


class Migration(NamedTuple):
    """Schema before and after `migrate`; both the same = there was nothing to do."""

    before: str
    """"" = the database was empty."""
    after: str


class StoreAccess:
    """Access of tools to one database: a snapshot, or exclusive writing."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        name: str,
        schema: Schema = Schema(),  # noqa: B008 - it can not change
    ) -> None:
        """Touches nothing.

        Args:
            dialect: The database.
            name: How messages call the store; without password.
            schema: The schema that the tools know.
        """
        self.dialect = dialect
        self.name = name
        self._schema = schema

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that belong to an embedded database."""
        if not isinstance(self.dialect, SqliteDialect):
            return ()
        path = self.dialect.path
        return tuple(path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", ".lock"))

    @contextlib.contextmanager
    def snapshot(self, *, any_revision: bool = False) -> Iterator[tuple[Connection, StoreFacts]]:
        """Reads one consistent, committed state within the block; coordinators go on.

        Args:
            any_revision: Whether a schema of another release is shown too.

        Raises:
            InvalidConfigError: There is no store.
            StoreVersionError: It is of another program or another release.
        """
        self._require_file()
        transactions = Transactions(self.dialect)
        try:
            with transactions.read() as connection:
                self.dialect.check_server(connection)
                yield connection, self._facts(connection, any_revision=any_revision)
        finally:
            transactions.close()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Connection]:
        """A writing transaction while no coordinator has the store; durable when the block ends.

        Raises:
            StoreInUseError: A coordinator has it, which is named.
        """
        try:
            self.dialect.take(coordinator_id=TOOL_ID, alone=True)
            transactions = Transactions(self.dialect)
            try:
                # As a coordinator opens it: none can come before this has ended.
                with self.dialect.opening(), transactions.write_apart() as connection:
                    self.dialect.check_server(connection)
                    self._refuse_coordinators(connection)
                    yield connection
            finally:
                transactions.close()
        finally:
            self.dialect.give_back()

    def migrate(self) -> Migration:
        """Brings the schema to that of this release, by migrations that need downtime too.

        Raises:
            InvalidConfigError: There is no such file.
            StoreInUseError: A coordinator has the store.
            StoreVersionError: It is of another program or of a newer release.
        """
        self._require_file()
        with self.exclusive() as connection:
            before = self.prepare(connection, may_need_downtime=True)
        return Migration(before, self._schema.head)

    def prepare(self, connection: Connection, *, may_need_downtime: bool = False) -> str:
        """Makes or upgrades the schema; see `schema.prepare_schema`."""
        before = prepare_schema(
            connection,
            where=self.name,
            schema=self._schema,
            may_need_downtime=may_need_downtime,
            ddl_commits=self.dialect.ddl_commits,
        )
        self.dialect.check_schema(connection)
        return before

    def _require_file(self) -> None:
        for path in self.files[:1]:
            if not path.is_file():
                raise InvalidConfigError(
                    f"store: there is no {path}. Give --store the URL that the coordinator has"
                )

    def _refuse_coordinators(self, connection: Connection) -> None:
        if not inspect(connection).has_table(COORDINATOR.name):
            return
        known = connection.execute(select(COORDINATOR.c.id, COORDINATOR.c.address))
        for id_, address in known.all():
            if self.dialect.lives(connection, id_):
                raise StoreInUseError(
                    f"{self.name} is in use by coordinator {id_} at {address}. Stop all "
                    "coordinators first"
                )

    def _facts(self, connection: Connection, *, any_revision: bool) -> StoreFacts:
        revision = stored_revision(
            connection, where=self.name, ddl_commits=self.dialect.ddl_commits
        )
        if not revision:
            raise InvalidConfigError(
                f"{self.name} is empty: no coordinator has used it yet. Give --store the URL that "
                "the coordinator has"
            )
        values = read_meta(connection)
        release = values.get("release", "")
        if revision != self._schema.head and not any_revision:
            raise StoreVersionError(
                f"{self.name} has schema {revision}, written by sharecoord "
                f"{release or '(unknown)'}; this version reads {self._schema.head}. Use the "
                "version that wrote it, or run: sharecoord store migrate"
            )
        return StoreFacts(revision, release, values.get("cluster_id", ""))
