"""What all admin operations have in common: how they read, and how a change reaches live groups."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import structlog

from sharecoord.config.group import GroupConfig, resolve
from sharecoord.core.changes import GroupRow, MemberRow, PartitionKey, PartitionRow
from sharecoord.core.peering import Look
from sharecoord.errors import GroupNotFoundError, SharecoordError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.reload import see_row
from sharecoord.runtime.store_thread import StoreCaller

log = structlog.get_logger(__name__)

T = TypeVar("T")

REFRESH_RETRY_S = 1.0
"""After so long the store is asked again for what a live group has not seen yet."""


class AdminBase:
    """Of one coordinator; arguments as of `Admin`."""

    def __init__(self, coordinator: Coordinator, reads: StoreCaller | None) -> None:
        self._coordinator = coordinator
        self._context = coordinator.context
        self._reads = reads or coordinator.context.caller
        self._altering = asyncio.Lock()
        """Who holds it changes settings, or what must fit them."""

    async def _reload(self, group_id: str, keys: Iterable[PartitionKey]) -> None:
        """Makes the live actors of these share-partitions see what the store has now."""
        try:
            await self._refresh(group_id)
        finally:
            # Whatever became of the settings: the rows have changed.
            if (group := self._coordinator.groups.get(group_id)) is not None:
                for key in keys:
                    actor = group.partitions.get(key.place)
                    if actor is not None and actor.key == key:
                        see_row(self._context, group, actor)
        await self._context.committed()

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Does what changes the store, and lets the live groups see it.

        A caller that goes away meanwhile is not waited for, nor does its call end half-way: what
        is stored and never seen here would not be in force until the next start.
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
            # Perhaps before its first step: by a coordinator that stops.
            work.close()
            answer.cancel()

        self._context.spawn(run(), "operator").add_done_callback(ended)
        return await answer

    async def _load(self) -> tuple[dict[str, GroupRow], dict[str, list[MemberRow]]]:
        """Groups by name, and the members of each."""
        store, caller = self._context.store, self._context.caller
        groups = {row.group_id: row for row in await caller.call(store.load_groups)}
        members: dict[str, list[MemberRow]] = {}
        for member in await caller.call(store.load_members):
            members.setdefault(member.group_id, []).append(member)
        return groups, members

    async def _rows(self, group_id: str) -> list[PartitionRow]:
        """The share-partitions of a group, without those of former topics."""
        rows = await self._reads.call(self._context.store.list_partitions, group_id)
        return [row for row in rows if not row.closed]

    async def _shown_rows(self, group_id: str) -> list[PartitionRow]:
        """The same without lanes in which nothing is left."""
        return [r for r in await self._rows(group_id) if not r.key.lane or r.is_open]

    async def _log_rows(self, group_id: str) -> list[PartitionRow]:
        """The same without lanes."""
        return [row for row in await self._rows(group_id) if not row.key.lane]

    def _config(self, row: GroupRow | None) -> GroupConfig:
        return resolve({} if row is None else row.config, self._context.group_defaults)

    async def _refresh(self, group_id: str) -> None:
        """Gives the live group what the store has; an older answer never undoes a newer one.

        The other coordinators of a fleet look as well. When the store does not answer, the caller
        hears so, and the group gets it as soon as it does.
        """
        try:
            await self._apply_stored(group_id)
        except SharecoordError:
            self._context.spawn(self._refresh_later(group_id), "refresh")
            raise

    async def _refresh_later(self, group_id: str) -> None:
        while True:
            await asyncio.sleep(REFRESH_RETRY_S)
            try:
                await self._apply_stored(group_id)
            except SharecoordError as error:
                log.warning("a change is not in force yet", group=group_id, why=error.message)
            else:
                return

    async def _apply_stored(self, group_id: str) -> None:
        group = await self._coordinator.group(group_id)
        row = await self._context.caller.call(self._context.store.ensure_group, group_id)
        if row.group_epoch > group.group_epoch:
            group.apply_config(row)
        self._tell_fleet()

    def _tell_fleet(self) -> None:
        if self._context.fleet is not None:
            self._context.fleet.gateway.say_all(Look())


def counted(number: int, word: str) -> str:
    """`1 member`, `2 members`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def not_found(group_id: str) -> GroupNotFoundError:
    """The error about a group that is not there."""
    return GroupNotFoundError(
        f"share group {group_id!r} does not exist; the first join, reset or setting makes it"
    )
