"""Dead letters without a group: it was deleted, or their topic was made again.

They were promised to their topic, and go there without members, without a group, and without a log
to read. Every coordinator looks for them; the one that claims their row sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from sharecoord.core.changes import (
    LoadedPartition,
    PartitionClaim,
    PartitionCommit,
    PartitionKey,
    PartitionRelease,
    PartitionRow,
)
from sharecoord.core.settings import PartitionSettings
from sharecoord.errors import KafkaUnavailableError, SharecoordError, UnauthorizedError
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.kernel.budget import GroupBudget
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.partition.dead_letters import DeadLetters
from sharecoord.runtime.partition.record_cache import RecordCache

log = structlog.get_logger(__name__)

INTERVAL_S: Final = 10.0
"""Interval of looks for dead letters that wait while nobody serves them."""

LOOKS_UNTIL_GONE: Final = 4
"""Looks without a topic after which its letters wait no longer: more than
`coordinator.GONE_AFTER_S`."""

SERVED_MAX: Final = 100
"""Most outboxes that are sent at the same time; each loads its letters."""

LOOK_AGAIN_S: Final = 1.0
"""Wait after Kafka did not say whether a topic is still the same."""


class OrphanedLetters:
    """The letters that are left of a share-partition. Stands in for its actor."""

    pending_ranges = 0
    """For the committer: there are no ranges."""

    def __init__(
        self, context: Context, loaded: LoadedPartition, settings: PartitionSettings
    ) -> None:
        self.context = context
        self.key = loaded.row.key
        self.partition_id = loaded.row.partition_id
        self.state_epoch = loaded.row.state_epoch
        self.partition: PartitionRow | None = loaded.row
        """None once the letters are sent, or another coordinator has them."""
        self.generation = self.dead_letters = 0
        self.budget = GroupBudget(context.budget)
        self.cache = RecordCache(self.budget)
        self.letters = DeadLetters(self)
        self.letters.begin(loaded, settings)

    def take_commit(self) -> PartitionCommit | None:
        """The changes since the last call, of letters alone."""
        if self.partition is None:
            return None
        row = self.partition
        commit = PartitionCommit(row.partition_id, row.owner_epoch, row.state_epoch, head=None)
        self.letters.into(commit)
        return commit

    def drop(self, error: SharecoordError) -> None:
        """Gives up: a group of the name was made again, or another coordinator has the row."""
        if self.partition is not None:
            log.info("outbox given up", partition=self.key, why=str(error))
            self.end()

    def letters_arrived(self, first: int, last: int) -> None:
        """Does nothing: nobody goes by the state of these records any more."""

    def end(self) -> None:
        """Stops sending; letters that wait stay in the store."""
        self.partition = None
        self.generation += 1
        self.letters.end()

    async def confirmed(self) -> None:
        """Waits until a look has shown that the topic is the one of the letters."""
        while True:
            try:
                if await self.is_readable():
                    return
                # This cancels the task that waits here.
                self.letters.give_up_reading()
            except (KafkaUnavailableError, UnauthorizedError):
                pass
            await asyncio.sleep(LOOK_AGAIN_S)

    async def is_readable(self) -> bool:
        """Whether missing payloads can still be read.

        Raises:
            KafkaUnavailableError: No answer in time.
            UnauthorizedError: Kafka refuses the topic.
        """
        info = await self.context.catalog.look(self.key.topic)
        return info is not None and info.topic_id == self.key.topic_id


def _settings_of(loaded: LoadedPartition, present: PartitionSettings | None) -> PartitionSettings:
    """Settings of the letters: their group's, else those when the last one was made."""
    if present is not None and present.dead_letter_topic:
        return present._replace(dead_letter_copies=True)
    last = max(loaded.dead_letters, key=lambda each: (each.failed_at_ms, each.sequence))
    return PartitionSettings(
        dead_letter_topic=last.topic, dead_letter_exactly_once=last.exactly_once
    )


class OrphanWatch:
    """Looks for letters that wait without a group, and sends them."""

    def __init__(
        self,
        context: Context,
        groups: Mapping[str, GroupActor],
        *,
        making: Callable[[str], asyncio.Lock],
        on_owed: Callable[[], None],
    ) -> None:
        """Starts nothing.

        `making` has the lock under which a group is made or deleted; `on_owed` is called when
        groups owe letters of topics that they may not serve yet.
        """
        self._context = context
        self._groups = groups
        self._making = making
        self._on_owed = on_owed
        self._served: dict[int, OrphanedLetters] = {}
        """By id of the share-partition."""
        self._unknown: dict[PartitionKey, int] = {}
        """Looks that have not found the topic of a live group."""

    def close(self) -> None:
        """Sends nothing any more."""
        for outbox in self._served.values():
            outbox.end()

    async def look(self) -> None:
        """Reads the outboxes of the store, and sends those without a group."""
        store, call = self._context.store, self._context.caller.call
        rows = await call(store.list_outboxes)
        for group in self._groups.values():
            keys = [row.key for row in rows if not row.closed and not row.key.lane]
            group.owed_topics = frozenset(k.topic for k in keys if k.group_id == group.group_id)
        if rows:
            self._on_owed()
        await self._finish({row.partition_id for row in rows})
        left = [row for row in rows if self._is_left(row)]
        self._unknown = {k: n for k, n in self._unknown.items() if k in {row.key for row in rows}}
        strangers = {row.key.group_id for row in left} - self._groups.keys()
        if strangers and self._context.in_fleet:
            # Groups that only other coordinators have met are no orphans.
            known = {group.group_id for group in await call(store.load_groups)}
            left = [row for row in left if row.key.group_id not in known & strangers]
        for row in left:
            if row.partition_id not in self._served and len(self._served) < SERVED_MAX:
                await self._serve(row)

    def _is_left(self, row: PartitionRow) -> bool:
        """Whether no group will ever serve the share-partition again."""
        key = row.key
        group = self._groups.get(key.group_id)
        if group is None:
            return True
        if group.actor_of(key) is not None:
            return False
        if row.closed or key.name in group.topic_ids:
            return group.topic_ids.get(key.name) != key.topic_id
        looks = self._unknown[key] = self._unknown.get(key, 0) + 1
        return looks >= LOOKS_UNTIL_GONE

    async def _finish(self, waiting: set[int]) -> None:
        """Releases empty outboxes; gives up payloads that can not be read."""
        for id_, outbox in list(self._served.items()):
            row = outbox.partition
            if row is None:
                del self._served[id_]
            elif id_ not in waiting:
                del self._served[id_]
                outbox.end()
                release = PartitionRelease(id_, row.owner_epoch)
                await self._context.caller.call(self._context.store.release_partitions, [release])
                log.info("outbox is empty", partition=outbox.key)
            elif outbox.letters.lacking and not await outbox.is_readable():
                outbox.letters.give_up_reading()

    async def _serve(self, row: PartitionRow) -> None:
        claim = PartitionClaim(row.partition_id, self._context.new_incarnation(), delayed_max=1)
        # A group that is made again meanwhile claims after this, and takes the outbox over.
        async with self._making(row.key.group_id):
            if not self._is_left(row):
                return
            loaded = await self._context.calls.claims.ask(claim)
        if loaded is None or not loaded.dead_letters:
            # Another coordinator's, or sent since.
            return
        group = self._groups.get(row.key.group_id)
        settings = _settings_of(loaded, None if group is None else group.settings)
        self._served[row.partition_id] = OrphanedLetters(self._context, loaded, settings)
        log.info(
            "letters of what is gone are sent", partition=row.key, to=settings.dead_letter_topic
        )
