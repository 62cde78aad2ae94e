"""The store in a SQL database: `sharecoord.ports.Store` over SQLAlchemy Core (design 8)."""

# ruff: noqa: D102 - `sharecoord.ports.Store` documents the methods

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, delete, select, update

from sharecoord.core.changes import (
    CommitBatch,
    CommitResult,
    DeadLetter,
    DelayedPlace,
    FleetView,
    GroupRow,
    InFlight,
    InFlightRow,
    KeptPayload,
    LoadedPartition,
    MemberRow,
    PartitionChange,
    PartitionClaim,
    PartitionKey,
    PartitionRelease,
    PartitionRow,
    PartitionStart,
    PausesChanged,
)
from sharecoord.core.dispatch.pauses import Pause, PauseScope
from sharecoord.core.letters.lanes import Mark, Marking, Replayed, Selection, SelectionResult
from sharecoord.errors import (
    InternalError,
    InvalidConfigError,
    StoreClusterMismatchError,
    StoreInUseError,
)
from sharecoord.ports import FIRST_LEASE_MS
from sharecoord.store.dialects import ALONE, Dialect
from sharecoord.store.dialects.errors_servers import StoreConflictError, StoreRefusedError
from sharecoord.store.dialects.errors_sqlite import StoreBusyError
from sharecoord.store.groups import groups
from sharecoord.store.hot import commit, load, partitions
from sharecoord.store.hot.server_statements import make_statements
from sharecoord.store.hot.statements import Statements
from sharecoord.store.letters import lanes
from sharecoord.store.schema import SCRIPTS, prepare_schema
from sharecoord.store.tables import COORDINATOR, HEAD_REVISION, STORE_META
from sharecoord.store.transactions import Transactions

T = TypeVar("T")
P = ParamSpec("P")

CONFLICT_PAUSES_S = (0.002, 0.01, 0.02, 0.05, 0.1)
"""After a deadlock with another coordinator; together less than a lock is waited for."""


class SqlStore:
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
        may_need_downtime: bool = False,
        scripts: Path = SCRIPTS,
        head_revision: str = HEAD_REVISION,
    ) -> None:
        """Touches nothing; `open` does.

        Args:
            dialect: The database.
            name: How messages call the store; without password.
            fleet: Whether other coordinators may use it at the same time.
            may_need_downtime: Whether `open` runs migrations that need all others to be down.
            scripts: Folder of the migrations.
            head_revision: The revision that `scripts` leads to.
        """
        self._dialect = dialect
        self.name = name
        self._fleet = fleet
        self._may_need_downtime = may_need_downtime
        self._scripts = scripts
        self._head_revision = head_revision
        self._coordinator_id = ""
        self._transactions: Transactions | None = None
        self._statements: Statements | None = None

    # -- life -----------------------------------------------------------------------------------

    def open(self, *, coordinator_id: str, cluster_id: str, address: str, version: str) -> None:
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
                    scripts=self._scripts,
                    head=self._head_revision,
                    may_need_downtime=self._may_need_downtime,
                    ddl_commits=self._dialect.ddl_commits,
                )
                self._dialect.check_schema(connection)
                self._check_cluster(connection, cluster_id)
                self._set_meta(connection, "release", version)
                self._take_lease(connection, address=address, version=version)
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
        query = select(STORE_META.c.value).where(STORE_META.c.name == "cluster_id")
        stored = connection.execute(query).scalar_one_or_none()
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

    def _take_lease(self, connection: Connection, *, address: str, version: str) -> None:
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

    def announce(self, *, address: str, peer_address: str, draining: bool = False) -> None:
        self._change(
            lambda c: self._update_own(
                c, address=address, peer_address=peer_address, draining=draining
            )
        )

    def _update_own(self, connection: Connection, **values: str | int | bool) -> None:
        mine = COORDINATOR.c.id == self._coordinator_id
        if not connection.execute(update(COORDINATOR).where(mine).values(**values)).rowcount:
            raise StoreInUseError(
                f"the lease of coordinator {self._coordinator_id} in {self.name} is gone: "
                "another coordinator took the store. Run one of them, or both in fleet mode"
            )

    def read_fleet(self) -> FleetView:
        return self._look(groups.read_fleet, self._dialect)

    def now_ms(self) -> int:
        return self._look(self._dialect.now_ms)

    def _change(
        self, work: Callable[[Connection], T], *, apart: bool = False, together: bool = False
    ) -> T:
        """A writing transaction; it is repeated when the server rolls it back for another one."""
        transactions = self._opened()
        begin = (
            transactions.write_apart if apart else partial(transactions.write, together=together)
        )
        return self._change_in(begin, work)

    @staticmethod
    def _change_in(
        begin: Callable[[], contextlib.AbstractContextManager[Connection]],
        work: Callable[[Connection], T],
    ) -> T:
        for pause_s in CONFLICT_PAUSES_S:
            try:
                with begin() as connection:
                    return work(connection)
            except StoreConflictError:
                time.sleep(pause_s)
        with begin() as connection:
            return work(connection)

    def _with_dialect(
        self,
        work: Callable[Concatenate[Connection, Dialect, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """A change by a function that takes the dialect."""
        return self._change(lambda connection: work(connection, self._dialect, *args, **kwargs))

    def _look(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """A reading transaction."""
        with self._opened().read() as connection:
            return query(connection, *args, **kwargs)

    def _prepared(self) -> Statements:
        if self._statements is None:
            raise InternalError(f"{self.name} is not open")
        return self._statements

    def _opened(self) -> Transactions:
        if self._transactions is None:
            raise InternalError(f"{self.name} is not open")
        return self._transactions

    # -- the hot path ---------------------------------------------------------------------------

    def fits(self, payload: Sequence[bytes | None]) -> bool:
        return self._dialect.fits(payload)

    def commit(self, batch: CommitBatch) -> CommitResult:
        me, statements = self._coordinator_id, self._prepared()
        fenced = self._change(
            lambda c: commit.write_batch(c, self._dialect, statements, batch, me),
            # To remove members takes answers in between.
            together=not batch.members_removed,
        )
        return CommitResult(fenced=fenced)

    # -- partitions -----------------------------------------------------------------------------

    def open_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionRow]:
        return self._with_dialect(partitions.open_partitions, keys) if keys else []

    def claim_partitions(self, claims: Sequence[PartitionClaim]) -> list[LoadedPartition | None]:
        # A connection takes milliseconds to make; only a reload needs a new one (design 4).
        reload = any(claim.previous_incarnation is not None for claim in claims)
        return self._change(lambda connection: self._claim(connection, claims), apart=reload)

    def _claim(
        self, connection: Connection, claims: Sequence[PartitionClaim]
    ) -> list[LoadedPartition | None]:
        claimed, now_ms = partitions.claim(
            connection, self._dialect, coordinator_id=self._coordinator_id, claims=claims
        )
        granted = [claim for claim in claims if claim.partition_id in claimed]
        loaded = partitions.load_partitions(connection, claims=granted, now_ms=now_ms)
        return [loaded.get(claim.partition_id) for claim in claims]

    def read_delayed(self, partition_id: int, *, after: DelayedPlace, max_rows: int) -> InFlight:
        return self._look(load.read_delayed, partition_id, after, max_rows)

    def read_kept(self, partition_id: int, offsets: Sequence[int]) -> list[KeptPayload]:
        return self._look(partitions.read_kept, partition_id, offsets)

    def initialize_partitions(self, starts: Sequence[PartitionStart]) -> list[bool]:
        return self._change(lambda c: partitions.initialize_partitions(c, starts))

    def release_partitions(self, releases: Sequence[PartitionRelease]) -> None:
        if releases:
            self._change(lambda c: partitions.release_partitions(c, releases))

    def close_partition(self, partition_id: int, *, owner_epoch: int) -> None:
        self._change(lambda c: partitions.close_partition(c, partition_id, owner_epoch))

    def stop_partition(self, partition_id: int, *, owner_epoch: int, reason: str) -> None:
        self._change(
            lambda c: partitions.change_as_owner(
                c, partition_id, owner_epoch, stopped_reason=reason
            )
        )

    # -- groups and members ---------------------------------------------------------------------

    def load_groups(self) -> list[GroupRow]:
        return self._look(groups.load_groups)

    def save_group_config(
        self, group_id: str, *, set_values: Mapping[str, str], deleted: Sequence[str]
    ) -> GroupRow:
        return self._with_dialect(groups.save_group_config, group_id, set_values, deleted)

    def save_blocked_keys(
        self, group_id: str, *, blocked: Mapping[bytes, str], unblocked: Sequence[bytes]
    ) -> GroupRow:
        return self._with_dialect(groups.save_blocked_keys, group_id, blocked, unblocked)

    def change_pauses(
        self, group_id: str, *, pause: Sequence[Pause] = (), resume: Sequence[PauseScope] = ()
    ) -> PausesChanged | None:
        return self._change(lambda c: groups.change_pauses(c, group_id, pause, resume))

    def ensure_group(self, group_id: str) -> GroupRow:
        return self._with_dialect(groups.ensure_group, group_id)

    def join_members(self, members: Sequence[MemberRow]) -> list[int | None]:
        return self._change(lambda connection: self._join(connection, members))

    def _join(self, connection: Connection, members: Sequence[MemberRow]) -> list[int | None]:
        # In a fleet it must not repeat: see the port.
        first_epoch = 1
        if self._fleet:
            floor = partitions.read_floor(connection, partitions.MEMBER_EPOCH_FLOOR)
            first_epoch = max(self._dialect.now_ms(connection), floor + 1)
        return groups.join_members(connection, self._dialect, members, first_epoch=first_epoch)

    def load_members(self) -> list[MemberRow]:
        return self._look(groups.load_members)

    # -- operations under traffic ---------------------------------------------------------------

    def reset_partitions(
        self, heads: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, PartitionRow]:
        return self._with_dialect(groups.reset_partitions, heads)

    def change_partition(self, key: PartitionKey, change: PartitionChange) -> bool:
        return self._with_dialect(groups.change_partition, self._prepared(), key, change)

    def delete_topics(self, group_id: str, topics: Sequence[str]) -> int:
        return self._with_dialect(groups.delete_topics, group_id, topics)

    def delete_group(self, group_id: str) -> bool:
        return self._with_dialect(groups.delete_group, group_id)

    def take_in(self, selections: Sequence[Selection], marking: Marking) -> list[SelectionResult]:
        if not selections:
            return []
        return self._with_dialect(lanes.take_in, selections, marking)

    def withdraw(self, keys: Sequence[PartitionKey]) -> list[SelectionResult]:
        return self._with_dialect(lanes.withdraw, keys) if keys else []

    def make_replay(
        self, parts: Sequence[Replayed], *, config: Mapping[str, str] | None = None
    ) -> bool:
        return self._with_dialect(lanes.make_replay, parts, config)

    # -- reads for people -----------------------------------------------------------------------

    def list_outboxes(self) -> list[PartitionRow]:
        return self._look(partitions.list_outboxes)

    def list_lanes(self) -> list[PartitionRow]:
        return self._look(lanes.list_lanes)

    def read_marks(self, group_id: str, topic: str, topic_id: str, partition: int) -> list[Mark]:
        return self._look(lanes.read_marks, group_id, topic, topic_id, partition)

    def read_dead_letters(
        self, partition_id: int, *, from_offset: int, max_rows: int
    ) -> list[DeadLetter]:
        return self._look(partitions.read_dead_letters, partition_id, from_offset, max_rows)

    def list_partitions(self, group_id: str) -> list[PartitionRow]:
        return self._look(partitions.list_partitions, group_id)

    def read_in_flight(
        self, partition_id: int, *, from_offset: int, max_rows: int
    ) -> list[InFlightRow]:
        return self._look(partitions.read_in_flight, partition_id, from_offset, max_rows)

    def checkpoint_sizes(self, partition_id: int, first: int, last: int) -> dict[int, int]:
        return self._look(partitions.checkpoint_sizes, partition_id, first, last)

    def count_in_flight(self, partition_id: int) -> dict[int, int]:
        return self._look(partitions.count_in_flight, self._dialect, partition_id)
