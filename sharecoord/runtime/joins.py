"""Joins that come together are written together: a transaction each would take a fleet minutes."""

from __future__ import annotations

import asyncio

from sharecoord.core.changes import MemberRow
from sharecoord.errors import InternalError
from sharecoord.ports import Store
from sharecoord.runtime.store_thread import StoreCaller

JOINS_MAX = 200
"""Members of one transaction: commits of records wait for it, 20 ms at most."""

Waiting = dict[tuple[str, str], tuple[MemberRow, asyncio.Future[int]]]


class JoinQueue:
    """Gathers joins while the store is busy. Who waits is bounded by the groups' sizes."""

    def __init__(self, store: Store, caller: StoreCaller) -> None:
        self._store = store
        self._caller = caller
        self._waiting: list[tuple[MemberRow, asyncio.Future[int]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def join(self, member: MemberRow) -> int:
        """Writes a member; returns its epoch.

        Raises:
            SharecoordError: It could not be written; the store's error.
        """
        epoch: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((member, epoch))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name="sharecoord-joins")
        return await epoch

    async def close(self) -> None:
        """Ends what still waits."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        batch: Waiting = {}
        try:
            while batch := self._take():
                await self._write(batch)
        finally:
            self._writing = None
            for _, epoch in [*batch.values(), *self._waiting]:
                epoch.cancel()
            self._waiting.clear()

    def _take(self) -> Waiting:
        """Who is written next, in order of arrival; a member once."""
        batch: Waiting = {}
        later: list[tuple[MemberRow, asyncio.Future[int]]] = []
        for member, epoch in self._waiting:
            key = (member.group_id, member.member_id)
            if epoch.cancelled():
                continue
            if len(batch) < JOINS_MAX and key not in batch:
                batch[key] = (member, epoch)
            else:
                later.append((member, epoch))
        self._waiting = later
        return batch

    async def _write(self, batch: Waiting) -> None:
        try:
            members = [member for member, _ in batch.values()]
            epochs = await self._caller.call(self._store.join_members, members)
        except InternalError as error:
            # A row that the store refuses: only its own member pays for it.
            if len(batch) == 1:
                _fail(batch, error)
            else:
                for key, one in batch.items():
                    await self._write({key: one})
        except Exception as error:  # noqa: BLE001 - each joiner raises it
            _fail(batch, error)
        else:
            for (_, future), epoch in zip(batch.values(), epochs, strict=True):
                if not future.done():
                    future.set_result(epoch)


def _fail(batch: Waiting, error: Exception) -> None:
    for _, future in batch.values():
        if not future.done():
            future.set_exception(error)
