"""Group commit: the changes of all partitions in one transaction, then what depends on them.

Commits are serial. While one runs, the next batch gathers. An effect (a delivery, a reply) is let
go only after the commit that holds everything it could have seen (design 4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from sharecoord.core.changes import CommitBatch, CommitResult, PartitionCommit
from sharecoord.errors import (
    SharecoordError,
    StoreFatalError,
    StoreFencedError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.ports import Store
from sharecoord.runtime.store_thread import StoreCaller

log = structlog.get_logger(__name__)

PENDING_AGE_MAX_MS = 500
"""Acquiring stops while the oldest uncommitted change is older (design 4)."""

RETRY_FOR_S = 1.0
"""A store that changed nothing is asked again for so long before partitions are dropped."""

RETRY_DELAY_S = 0.05
"""Wait between two such attempts."""


class Committable(Protocol):
    """A share-partition actor, as the committer sees it."""

    partition_id: int

    def take_commit(self) -> PartitionCommit | None:
        """What must be stored since the last call."""

    def drop(self, error: SharecoordError) -> None:
        """The commit failed or was fenced: forget this incarnation and load anew."""


class Effect(Protocol):
    """Something that must wait for a commit."""

    def release(self) -> None:
        """The commit is durable."""

    def abort(self, error: SharecoordError) -> None:
        """The commit did not happen, or nobody knows."""


class Committer:
    """Gathers changes and effects, commits, releases."""

    def __init__(
        self,
        store: Store,
        caller: StoreCaller,
        *,
        now_ms: Callable[[], int],
        on_fatal: Callable[[SharecoordError], None],
    ) -> None:
        self._store = store
        self._caller = caller
        self._now_ms = now_ms
        self._on_fatal = on_fatal
        self._dirty: dict[Committable, None] = {}
        self._effects: list[tuple[Committable | None, Effect]] = []
        self._members_removed: list[tuple[str, str, int]] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._oldest_ms: int | None = None
        self._stopped = False
        self._unblocked: list[Callable[[], None]] = []
        self.commits = 0
        self._task = asyncio.create_task(self._run(), name="sharecoord-committer")

    def add(self, actor: Committable, effect: Effect | None = None) -> None:
        """Notes that an actor has changes, and what waits for them."""
        self._dirty[actor] = None
        if effect is not None:
            self._effects.append((actor, effect))
        self._kick()

    def add_effect(self, effect: Effect) -> None:
        """Something that waits for everything decided so far, whatever the partition."""
        self._effects.append((None, effect))
        self._kick()

    def remove_member(self, group_id: str, member_id: str, member_epoch: int) -> None:
        """Deletes a member's row with the next commit, unless it joined again meanwhile."""
        self._members_removed.append((group_id, member_id, member_epoch))
        self._kick()

    def _kick(self) -> None:
        if not self._wake.is_set():
            self._wake.set()
            self._idle.clear()
        if self._oldest_ms is None:
            self._oldest_ms = self._now_ms()

    @property
    def behind(self) -> bool:
        """Whether acquiring must wait because commits do not keep up."""
        return self._oldest_ms is not None and self._now_ms() - self._oldest_ms > PENDING_AGE_MAX_MS

    def when_unblocked(self, callback: Callable[[], None]) -> None:
        """Calls back once after the next commit."""
        self._unblocked.append(callback)

    async def flush(self) -> None:
        """Waits until everything added so far is committed (or failed)."""
        await self._idle.wait()

    async def close(self) -> None:
        """Commits what is pending, then stops."""
        await self.flush()
        self._stopped = True
        self._wake.set()
        await asyncio.wait([self._task])

    def abandon(self) -> None:
        """Stops at once: what is not committed is lost, as after a crash."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if self._stopped:
                return
            # One turn of the loop, so that what is ready now goes into the same transaction.
            await asyncio.sleep(0)
            self._wake.clear()
            await self._commit_once()
            if not self._wake.is_set():
                self._oldest_ms = None
                self._idle.set()
            else:
                self._oldest_ms = self._now_ms()
            callbacks, self._unblocked = self._unblocked, []
            for callback in callbacks:
                callback()

    async def _commit_once(self) -> None:
        actors, self._dirty = list(self._dirty), {}
        effects, self._effects = self._effects, []
        removed, self._members_removed = self._members_removed, []
        by_id = {actor.partition_id: actor for actor in actors}
        commits = [c for actor in actors if (c := actor.take_commit()) is not None]
        commits.sort(key=lambda c: c.partition_id)
        failed: dict[Committable, SharecoordError] = {}
        if commits or removed:
            batch = CommitBatch(partitions=commits, members_removed=removed)
            try:
                result = await self._store_commit(batch)
            except SharecoordError as error:
                failed = {by_id[c.partition_id]: error for c in commits}
            else:
                fenced = StoreFencedError("another claim or a reset came first")
                failed = {by_id[i]: fenced for i in result.fenced}
        for actor, why in failed.items():
            actor.drop(why)
        self._let_go(effects, failed)

    @staticmethod
    def _let_go(
        effects: list[tuple[Committable | None, Effect]],
        failed: dict[Committable, SharecoordError],
    ) -> None:
        for actor, effect in effects:
            error = failed.get(actor) if actor is not None else None
            try:
                if error is None:
                    effect.release()
                else:
                    effect.abort(error)
            except Exception:
                log.exception("an effect failed after its commit")

    async def _store_commit(self, batch: CommitBatch) -> CommitResult:
        """Commits; asks again while the store says that it changed nothing."""
        waited_s = 0.0
        while True:
            try:
                result = await self._caller.call(self._store.commit, batch)
            except StoreOutcomeUnknownError:
                raise
            except StoreUnavailableError as error:
                if waited_s >= RETRY_FOR_S:
                    log.warning("commit given up", error=str(error), waited_s=waited_s)
                    raise
                await asyncio.sleep(RETRY_DELAY_S)
                waited_s += RETRY_DELAY_S
            except StoreFatalError as error:
                self._on_fatal(error)
                raise
            else:
                self.commits += 1
                return result
