"""How the commands of operators read groups, and how their changes reach the live ones."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import structlog

from sharecoord.config.group import GroupConfig, UnusedSetting, resolve_stored
from sharecoord.core.changes import GroupRow, MemberRow, PartitionKey, PartitionRow
from sharecoord.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    KafkaUnavailableError,
    SharecoordError,
    UnknownTopicOrPartitionError,
)
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.fleet.store_changes import see_rows
from sharecoord.runtime.kernel.store_thread import StoreCaller

log = structlog.get_logger(__name__)

T = TypeVar("T")

PAGE_ROWS = 10_000
"""Rows of one read of what is in flight."""

REFRESH_RETRY_S = 1.0
"""First wait before the store is asked again for a change that failed to load; doubles."""

REFRESH_RETRY_MAX_S = 30.0


class GroupAccess:
    """The stored and the live groups of one coordinator.

    `reads` runs the store's reads for operators: a thread of its own keeps them out of the
    committer's way. By default they go through the coordinator's.
    """

    def __init__(self, coordinator: Coordinator, reads: StoreCaller | None = None) -> None:
        self._coordinator = coordinator
        self._context = coordinator.context
        self._reads = reads or coordinator.context.caller
        self._altering = asyncio.Lock()
        """Held while a command changes settings or blocked keys, which must fit each other."""
        self._refreshing: set[str] = set()
        """Groups whose stored row is asked for until the live group has it."""

    async def _reload(self, group_id: str, keys: Iterable[PartitionKey]) -> None:
        """Makes the live actors of these share-partitions see what the store has now."""
        try:
            await self._refresh(group_id)
        finally:
            # The rows have changed, even when the settings could not be read.
            see_rows(self._coordinator.groups.get(group_id), keys)
        await self._context.committed()

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Carries a change of the store through to the live groups.

        The work goes on when its caller goes away: a change that is stored, and that no live group
        has seen, would not be in force until the next start.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                result = await work
            except SharecoordError as error:
                if answer.done():
                    log.warning("failed after its caller had gone", why=error.message)
                else:
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)

        def ended(_: object) -> None:
            # A coordinator that stops may cancel the task before its first step.
            work.close()
            answer.cancel()

        self._context.tasks.spawn(run(), "operator").add_done_callback(ended)
        return await answer

    async def _load(self) -> tuple[dict[str, GroupRow], dict[str, list[MemberRow]]]:
        """Groups by name, and the members of each."""
        store, caller = self._context.store, self._context.caller
        groups = {row.group_id: row for row in await caller.call(store.load_groups)}
        members: dict[str, list[MemberRow]] = {}
        for member in await caller.call(store.load_members):
            members.setdefault(member.group_id, []).append(member)
        return groups, members

    async def _existing(self, group_id: str) -> tuple[GroupRow, list[MemberRow]]:
        """A group and its members.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        groups, members = await self._load()
        if group_id not in groups:
            raise not_found(group_id)
        return groups[group_id], members.get(group_id, [])

    async def _rows(self, group_id: str) -> list[PartitionRow]:
        """The share-partitions of a group, without those of former topics."""
        rows = await self._reads.call(self._context.store.list_partitions, group_id)
        return [row for row in rows if not row.closed]

    async def _log_rows(self, group_id: str) -> list[PartitionRow]:
        """The share-partitions of a group, without lanes."""
        return [row for row in await self._rows(group_id) if not row.key.lane]

    def _config(self, row: GroupRow | None) -> GroupConfig:
        return self._resolved(row)[0]

    def _resolved(self, row: GroupRow | None) -> tuple[GroupConfig, tuple[UnusedSetting, ...]]:
        """The settings in force, and the stored ones that are not."""
        return resolve_stored({} if row is None else row.config, self._context.group_defaults)

    async def _refresh(self, group_id: str) -> None:
        """Loads the stored row of a live group; an older answer never undoes a newer one.

        The other coordinators of a fleet look as well. When the store does not answer, the caller
        hears so, and the group gets it as soon as it does.
        """
        try:
            await self._apply_stored(group_id)
        except SharecoordError:
            if group_id not in self._refreshing:
                self._refreshing.add(group_id)
                self._context.tasks.spawn(self._refresh_later(group_id), "refresh")
            raise

    async def _refresh_later(self, group_id: str) -> None:
        """Tries until the live group has its stored row, or is gone."""
        delay_s = REFRESH_RETRY_S
        try:
            while (group := self._coordinator.groups.get(group_id)) is not None:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, REFRESH_RETRY_MAX_S)
                try:
                    # Not `ensure_group`: it would make anew what was deleted meanwhile.
                    rows = await self._context.caller.call(self._context.store.load_groups)
                except SharecoordError as error:
                    log.warning("a change is not in force yet", group=group_id, why=error.message)
                    continue
                for row in rows:
                    if row.group_id == group_id and row.group_epoch > group.group_epoch:
                        group.apply_config(row)
                self._tell_fleet()
                return
        finally:
            self._refreshing.discard(group_id)

    async def _apply_stored(self, group_id: str) -> None:
        group = await self._coordinator.groups.open(group_id)
        row = await self._context.caller.call(self._context.store.ensure_group, group_id)
        if row.group_epoch > group.group_epoch:
            group.apply_config(row)
        self._tell_fleet()

    def _tell_fleet(self) -> None:
        self._coordinator.groups.peers.tell_news()


def not_empty(group_id: str, members: int, fix: str) -> GroupNotEmptyError:
    """The error about a group that has members; `fix` ends the sentence."""
    return GroupNotEmptyError(
        f"group {group_id!r} has {members} member{'' if members == 1 else 's'}{fix}"
    )


def no_partition(topic: str, partition: int, count: int) -> UnknownTopicOrPartitionError:
    """The error about a partition beyond those of its topic."""
    return UnknownTopicOrPartitionError(
        f"topic {topic!r} has no partition {partition}; it has {count} (0 to {count - 1})"
    )


def no_share_partition(group_id: str, topic: str, partition: int) -> UnknownTopicOrPartitionError:
    """The error about a share-partition that a group does not have."""
    return UnknownTopicOrPartitionError(
        f"group {group_id!r} has no share-partition {topic}[{partition}]; "
        "`sharecoord groups --describe` lists what it has"
    )


def no_offsets(topic: str, partition: int) -> KafkaUnavailableError:
    """The error about a partition of which Kafka did not say the offsets."""
    return KafkaUnavailableError(
        f"Kafka gave no offsets for {topic}[{partition}]; is its leader up?", retry_after_ms=1000
    )


def not_found(group_id: str) -> GroupNotFoundError:
    """The error about a group that is not there."""
    return GroupNotFoundError(
        f"share group {group_id!r} does not exist; the first join, reset or setting makes it"
    )
