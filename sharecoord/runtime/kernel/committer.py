"""Group commit: the changes of all partitions in one transaction, then what depends on them.

Commits are serial. While one runs, the next batch gathers. An effect (a delivery, a reply) is
released only after the commit that holds everything it could have seen (design 4). Effects of an
incarnation that is gone are aborted, never released. A failure that nobody foresaw ends the
process: a committer that went on, or stopped in silence, could not keep that promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

import structlog

from sharecoord.core.changes import CommitBatch, CommitResult, PartitionCommit
from sharecoord.errors import (
    InternalError,
    SharecoordError,
    StoreFatalError,
    StoreFencedError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.ports import Store
from sharecoord.runtime.kernel.store_thread import StoreCaller

log = structlog.get_logger(__name__)

RANGE_BYTES = 200
"""Memory of one changed range in a pending batch."""

RETRY_FOR_S = 1.0
"""A commit that changed nothing is repeated for this time before partitions are dropped."""

RETRY_DELAY_S = 0.05
"""Wait between two such attempts."""

WHOLE_BATCH = -1
"""Stands for a partition id when nothing of a batch was stored."""


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """How long changes may wait for their commit, and when acquiring waits for it (design 4)."""

    linger_ms: int = 5
    """`commit.linger.ms`"""
    oldest_ms: int = 500
    """`commit.oldest.uncommitted.ms`"""
    pending_max_bytes: int = 16 << 20
    """`commit.pending.max.bytes`"""


class Committable(Protocol):
    """A share-partition actor, as the committer sees it."""

    partition_id: int
    generation: int
    """Grows when an incarnation ends: its decisions are void from then on."""

    @property
    def pending_ranges(self) -> int:
        """Changed ranges that are not stored yet."""

    def take_commit(self) -> PartitionCommit | None:
        """The changes since the last call; None when there are none."""

    def drop(self, error: SharecoordError) -> None:
        """Ends the incarnation after a commit failed or was fenced; it is loaded anew."""


class Effect(Protocol):
    """A delivery, an answer or a notice that waits for a commit."""

    def release(self) -> None:
        """The commit is durable."""

    def abort(self, error: SharecoordError) -> None:
        """The commit did not happen, or may not have happened; or `release` failed half-way."""


class CallbackEffect:
    """Calls back after the commit; with an error when it failed."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[SharecoordError | None], None]) -> None:
        self._callback = callback

    def release(self) -> None:
        """Calls back without an error."""
        self._callback(None)

    def abort(self, error: SharecoordError) -> None:
        """Calls back with the error."""
        self._callback(error)


class Committer:
    """Gathers changes and effects, commits, releases."""

    def __init__(
        self,
        store: Store,
        caller: StoreCaller,
        *,
        now_ms: Callable[[], int],
        on_fatal: Callable[[SharecoordError], None],
        limits: CommitLimits,
    ) -> None:
        self._store = store
        self._caller = caller
        self._now_ms = now_ms
        self._on_fatal = on_fatal
        self._limits = limits
        self._dirty: dict[Committable, None] = {}
        self._effects: list[tuple[Committable | None, int, Effect]] = []
        self._members_removed: list[tuple[str, str, int]] = []
        self._wake = asyncio.Event()
        self._linger: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting_since_ms: int | None = None
        self._committing_since_ms: int | None = None
        self._stopped = False
        self._failed = False
        self._unblocked: dict[Callable[[], None], None] = {}
        self.commits = 0
        self.committing_bytes = 0
        """Changes in the transaction that runs now; those that gather are still in the windows."""
        self._task = asyncio.create_task(self._run(), name="sharecoord-committer")

    def add(
        self, actor: Committable, effect: Effect | None = None, *, may_wait: bool = False
    ) -> None:
        """Notes that an actor has changes, and the effect that waits for them.

        With `may_wait` the commit may take along changes within `CommitLimits.linger_ms`.
        """
        self._dirty[actor] = None
        if effect is not None:
            self._effects.append((actor, actor.generation, effect))
        self._kick(may_wait=may_wait)

    def add_effect(self, effect: Effect) -> None:
        """Adds an effect that waits for all decisions so far, of all partitions."""
        self._effects.append((None, 0, effect))
        self._kick()

    def remove_member(self, group_id: str, member_id: str, member_epoch: int) -> None:
        """Deletes a member's row with the next commit, unless it joined again meanwhile."""
        self._members_removed.append((group_id, member_id, member_epoch))
        self._kick()

    def _kick(self, *, may_wait: bool = False) -> None:
        if self._failed:
            return
        self._idle.clear()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = self._now_ms()
        if not may_wait:
            self._wake.set()
        elif self._linger is None and not self._wake.is_set():
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(self._limits.linger_ms / 1000, self._wake.set)

    @property
    def behind(self) -> bool:
        """Whether acquiring must wait because commits do not keep up."""
        oldest_ms = self._committing_since_ms
        if oldest_ms is None:
            oldest_ms = self._waiting_since_ms
        late = oldest_ms is not None and self._now_ms() - oldest_ms > self._limits.oldest_ms
        pending_bytes = RANGE_BYTES * sum(actor.pending_ranges for actor in self._dirty)
        return late or self._failed or pending_bytes > self._limits.pending_max_bytes

    def when_unblocked(self, callback: Callable[[], None]) -> None:
        """Calls back once after the next commit; the same callback only once."""
        self._unblocked[callback] = None

    def fail(self, error: SharecoordError) -> None:
        """The process must end: nothing is committed or released any more."""
        if not self._failed:
            self._failed = True
            self._wake.set()
            self._idle.set()
            self._on_fatal(error)

    async def flush(self) -> None:
        """Waits until everything added so far is committed (or failed)."""
        if not self._idle.is_set():
            self._wake.set()
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
        try:
            while not self._stopped:
                await self._wake.wait()
                # One turn of the loop, so that what is ready now goes into the same transaction.
                await asyncio.sleep(0)
                if self._failed:
                    return
                self._wake.clear()
                if self._linger is not None:
                    self._linger.cancel()
                    self._linger = None
                await self._commit_once()
                if self._waiting_since_ms is None:
                    self._idle.set()
                callbacks, self._unblocked = self._unblocked, {}
                for callback in callbacks:
                    callback()
        except StoreFatalError as error:
            self.fail(error)
        except Exception as error:
            log.exception("the committer failed")
            self.fail(InternalError(f"the committer failed: {error!r}"))

    async def _commit_once(self) -> None:
        actors, self._dirty = list(self._dirty), {}
        effects, self._effects = self._effects, []
        removed, self._members_removed = self._members_removed, []
        self._committing_since_ms, self._waiting_since_ms = self._waiting_since_ms, None
        taken: dict[Committable, int] = {}
        commits: list[PartitionCommit] = []
        for actor in actors:
            commit = actor.take_commit()
            if commit is not None:
                taken[actor] = actor.generation
                commits.append(commit)
        changes = sum(len(commit.upserted) + len(commit.deleted) for commit in commits)
        self.committing_bytes = RANGE_BYTES * changes
        commits.sort(key=attrgetter("partition_id"))
        why = await self._write(CommitBatch(partitions=commits, members_removed=removed))
        failed = {actor: error for actor in taken if (error := why.get(actor.partition_id))}
        for actor, error in failed.items():
            if actor.generation == taken[actor]:
                actor.drop(error)
        self._committing_since_ms = None
        self.committing_bytes = 0
        for_all = why.get(WHOLE_BATCH)
        # Each goes before the next one is released: what it held has become a message by then.
        effects.reverse()
        while effects:
            owner, generation, effect = effects.pop()
            if owner is None:
                _let_go(effect, for_all)
            elif taken.get(owner) != generation:
                _let_go(effect, _void())
            else:
                _let_go(effect, failed.get(owner))

    async def _write(self, batch: CommitBatch) -> dict[int, SharecoordError]:
        """Commits a batch; returns errors by partition id, under WHOLE_BATCH for all of it."""
        if not batch.partitions and not batch.members_removed:
            return {}
        try:
            result = await self._write_with_retries(batch)
        except StoreFatalError:
            raise
        except InternalError as error:
            log.exception("the store refused a commit", partitions=len(batch.partitions))
            if len(batch.partitions) + bool(batch.members_removed) == 1:
                return {c.partition_id: error for c in batch.partitions} or {WHOLE_BATCH: error}
            return await self._write_one_by_one(batch)
        except SharecoordError as error:
            # Departures are not tied to an incarnation: they go with the next commit.
            self._members_removed = batch.members_removed + self._members_removed
            return {c.partition_id: error for c in batch.partitions} | {WHOLE_BATCH: error}
        fenced = StoreFencedError("another claim or a reset came first", retry_after_ms=100)
        return dict.fromkeys(result.fenced, fenced)

    async def _write_one_by_one(self, batch: CommitBatch) -> dict[int, SharecoordError]:
        """Commits each partition alone after a refused row: only its own partition fails."""
        why: dict[int, SharecoordError] = {}
        for commit in batch.partitions:
            why |= await self._write(CommitBatch(partitions=[commit]))
        return why | await self._write(CommitBatch(members_removed=batch.members_removed))

    async def _write_with_retries(self, batch: CommitBatch) -> CommitResult:
        """Commits; repeats while the store says that it changed nothing."""
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
            else:
                self.commits += 1
                return result


def _void() -> SharecoordError:
    return StoreUnavailableError(
        "the share-partition was loaded anew before this was stored", retry_after_ms=100
    )


def _let_go(effect: Effect, error: SharecoordError | None) -> None:
    """Releases or aborts an effect; one that fails is aborted, so that nobody waits for ever."""
    try:
        if error is None:
            effect.release()
        else:
            effect.abort(error)
    except Exception as problem:
        log.exception("an effect failed after its commit")
        if error is None:
            _let_go(effect, InternalError(f"it is stored, but what follows failed: {problem!r}"))
