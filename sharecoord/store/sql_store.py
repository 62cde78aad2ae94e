"""The store in a SQL database: `sharecoord.ports.Store` over SQLAlchemy Core (design 8)."""

# ruff: noqa: D102 - `sharecoord.ports.Store` documents the methods

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection, delete, select, update

from sharecoord.core.changes import CommitBatch, CommitResult
from sharecoord.errors import (
    InternalError,
    InvalidConfigError,
    StoreClusterMismatchError,
    StoreInUseError,
)
from sharecoord.ports import FIRST_LEASE_MS
from sharecoord.store.dialects import ALONE, Dialect
from sharecoord.store.dialects.errors import StoreBusyError, StoreRefusedError
from sharecoord.store.groups.groups import GroupCalls
from sharecoord.store.groups.operations import OperatorCalls
from sharecoord.store.hot import commit
from sharecoord.store.hot.calls import reading, writing
from sharecoord.store.hot.partitions import PartitionCalls
from sharecoord.store.hot.server_statements import make_statements
from sharecoord.store.letters.lanes import LaneCalls
from sharecoord.store.reads.reads import ReadCalls
from sharecoord.store.row_codec import encode_secret
from sharecoord.store.schema import Schema, prepare_schema, read_meta
from sharecoord.store.tables import COORDINATOR, STORE_META
from sharecoord.store.transactions import Transactions


class SqlStore(PartitionCalls, GroupCalls, OperatorCalls, LaneCalls, ReadCalls):
    """Implements `sharecoord.ports.Store`; see there for what each method promises.

    Beyond the port's errors, a method raises InternalError for a row that the database refuses
    (a number of more than 64 bits, text that is no Unicode): nothing was changed, and the same
    call will fail again, so the caller has to split its batch.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        name: str,
        fleet: bool = False,
        schema: Schema = Schema(),  # noqa: B008 - it can not change
    ) -> None:
        """Touches nothing; `open` does.

        Args:
            dialect: The database.
            name: How messages call the store; without password.
            fleet: Whether other coordinators may use it at the same time.
            schema: The schema that it has from `open` on.
        """
        super().__init__(dialect, name=name, fleet=fleet)
        self._schema = schema

    # -- life -----------------------------------------------------------------------------------

    def open(
        self,
        *,
        coordinator_id: str,
        cluster_id: str,
        address: str,
        version: str,
        secret: bytes = b"",
    ) -> None:
        if self._transactions is not None:
            raise InternalError(f"{self.name} is open already")
        try:
            self._dialect.take(coordinator_id=coordinator_id, alone=not self._fleet)
            self._transactions = Transactions(self._dialect)
            self._coordinator_id = coordinator_id
            # On a connection of its own, which may wait long.
            with self._dialect.opening(), self._transactions.write_apart() as connection:
                self._dialect.check_server(connection)
                prepare_schema(
                    connection,
                    where=self.name,
                    schema=self._schema,
                    ddl_commits=self._dialect.ddl_commits,
                )
                self._dialect.check_schema(connection)
                self._check_cluster(connection, cluster_id)
                self._set_meta(connection, "release", version)
                self._take_lease(connection, address=address, version=version, secret=secret)
                self._statements = make_statements(self._dialect, connection.dialect)
        except StoreRefusedError as error:
            self._shut()
            # At this moment it is a mistake in the settings, and no retry helps.
            raise InvalidConfigError(error.message) from error
        except BaseException:
            self._shut()
            raise

    def _check_cluster(self, connection: Connection, cluster_id: str) -> None:
        if not cluster_id:
            return
        stored = read_meta(connection).get("cluster_id")
        if stored is None:
            self._set_meta(connection, "cluster_id", cluster_id)
        elif stored != cluster_id:
            raise StoreClusterMismatchError(
                f"{self.name} holds the share groups of Kafka cluster {stored}, but the brokers "
                f"are cluster {cluster_id}. Connect to the first cluster, or give this one "
                "another --store"
            )

    def _set_meta(self, connection: Connection, name: str, value: str) -> None:
        upsert = self._dialect.upsert(STORE_META, keys=["name"])
        connection.execute(upsert, {"name": name, "value": value})

    def _take_lease(
        self, connection: Connection, *, address: str, version: str, secret: bytes
    ) -> None:
        now_ms = self._dialect.now_ms(connection)
        self._refuse_others(connection)
        connection.execute(
            self._dialect.upsert(COORDINATOR, keys=["id"]),
            {
                "id": self._coordinator_id,
                "address": address,
                "peer_address": "",
                "version": version,
                "lease_until_ms": now_ms + FIRST_LEASE_MS,
                "draining": False,
                "secret": encode_secret(secret),
            },
        )

    def _refuse_others(self, connection: Connection) -> None:
        lives = self._dialect.lives
        if self._fleet:
            if lives(connection, ALONE):
                raise StoreInUseError(
                    f"{self.name} is in use by a coordinator in standalone mode. Stop it, or run "
                    "all coordinators in fleet mode"
                )
            return
        others = COORDINATOR.c.id != self._coordinator_id
        rows = connection.execute(select(COORDINATOR.c.id, COORDINATOR.c.address).where(others))
        for id_, address in rows.all():
            if lives(connection, id_):
                raise StoreInUseError(
                    f"{self.name} is in use by coordinator {id_} at {address}. Stop it, or run "
                    "all coordinators in fleet mode"
                )
        # Nobody else lives: their leases are void, and what they owned is free at once.
        connection.execute(delete(COORDINATOR).where(others))

    def close(self) -> None:
        if self._statements is not None:
            mine = COORDINATOR.c.id == self._coordinator_id
            with contextlib.suppress(Exception), self._opened().write() as connection:
                connection.execute(delete(COORDINATOR).where(mine))
        self._shut()

    def _shut(self) -> None:
        if self._transactions is not None:
            self._transactions.close()
        self._transactions = None
        self._statements = None
        self._dialect.give_back()

    def renew_lease(self, *, duration_ms: int) -> int:
        transactions = self._opened()
        self._dialect.keep()
        try:
            return self._change_in(
                transactions.write_beside, lambda connection: self._renew(connection, duration_ms)
            )
        except StoreBusyError:
            if self._fleet or not transactions.is_writing:
                raise
            # A commit of our own takes long, and a file has one writer. Its lock is what keeps
            # others out, and nobody reads the row.
            return self.now_ms()

    def _renew(self, connection: Connection, duration_ms: int) -> int:
        now_ms = self._dialect.now_ms(connection)
        self._update_own(connection, lease_until_ms=now_ms + duration_ms)
        return now_ms

    @writing
    def announce(
        self, connection: Connection, *, address: str, peer_address: str, draining: bool = False
    ) -> None:
        self._update_own(connection, address=address, peer_address=peer_address, draining=draining)

    def _update_own(self, connection: Connection, **values: str | int | bool) -> None:
        mine = COORDINATOR.c.id == self._coordinator_id
        if not connection.execute(update(COORDINATOR).where(mine).values(**values)).rowcount:
            raise StoreInUseError(
                f"the lease of coordinator {self._coordinator_id} in {self.name} is gone: "
                "another coordinator took the store. Run one of them, or both in fleet mode"
            )

    @reading
    def now_ms(self, connection: Connection) -> int:
        return self._dialect.now_ms(connection)

    # -- the hot path ---------------------------------------------------------------------------

    def fits(self, payload: Sequence[bytes | None]) -> bool:
        return self._dialect.fits(payload)

    def commit(self, batch: CommitBatch) -> CommitResult:
        me, statements = self._coordinator_id, self._prepared()
        # To remove members takes answers in between.
        begin = partial(self._opened().write, together=not batch.members_removed)
        fenced = self._change_in(
            begin, lambda c: commit.write_batch(c, self._dialect, statements, batch, me)
        )
        return CommitResult(fenced=fenced)
