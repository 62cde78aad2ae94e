"""Calls to the store and to Kafka that many share-partitions and members make at the same time."""

from __future__ import annotations

from functools import partial
from operator import attrgetter

from sharecoord.core.changes import (
    GroupRow,
    JoinRefusal,
    LoadedPartition,
    MemberRow,
    PartitionClaim,
    PartitionStart,
)
from sharecoord.errors import KafkaUnavailableError
from sharecoord.ports import OffsetQuery, Store, TopicCatalog
from sharecoord.runtime.kernel.gatherer import Gatherer
from sharecoord.runtime.kernel.store_thread import StoreCaller

CLAIMS_MAX = 40
"""Share-partitions of one claim. Each may bring thousands of ranges (40 x 2,000 ranges: 0.2 s):
commits go on, and loaded share-partitions are served, while others wait for the next claim."""


class GatheredCalls:
    """Calls to the store and to Kafka that are gathered; each gatherer makes one call of many."""

    def __init__(self, store: Store, caller: StoreCaller, catalog: TopicCatalog) -> None:
        self._store = store
        self._caller = caller
        self._catalog = catalog
        call = caller.call
        self.joins: Gatherer[MemberRow, int | JoinRefusal] = Gatherer(
            lambda rows: call(store.join_members, rows),
            name="joins",
            key=attrgetter("group_id", "member_id"),
        )
        """From members to their epochs, or why they were not let in."""
        self.claims: Gatherer[PartitionClaim, LoadedPartition | None] = Gatherer(
            lambda claims: call(store.claim_partitions, claims),
            name="claims",
            key=attrgetter("partition_id"),
            calls_max=CLAIMS_MAX,
        )
        self.starts: Gatherer[PartitionStart, bool] = Gatherer(
            lambda starts: call(store.initialize_partitions, starts),
            name="starts",
            key=attrgetter("partition_id"),
        )
        self.members: Gatherer[None, list[MemberRow]] = Gatherer(self._members, name="members")
        """From nothing to all members of all groups."""
        self._offsets_by: dict[bool, Gatherer[OffsetQuery, int | None]] = {
            committed: Gatherer(partial(self._offsets, committed=committed), name="offsets")
            for committed in (False, True)
        }

    async def group(self, group_id: str) -> GroupRow | None:
        """The stored row of a group; None = the store has no such group."""
        rows = await self._caller.call(self._store.load_groups)
        return next((row for row in rows if row.group_id == group_id), None)

    async def offset(self, query: OffsetQuery, *, committed: bool = False) -> int:
        """The offset at a place; see `TopicCatalog.offsets`.

        Raises:
            KafkaUnavailableError: Kafka did not answer for this partition.
            UnauthorizedError: Kafka refuses the topic.
        """
        found = await self._offsets_by[committed].ask(query)
        if found is not None:
            return found
        refused = self._catalog.refusals.get(query.topic)
        if refused is not None:
            raise refused
        place = f"{query.topic}[{query.partition}]"
        raise KafkaUnavailableError(f"no offsets for {place} from Kafka")

    async def close(self) -> None:
        """Ends all calls that wait."""
        for gatherer in (self.joins, self.claims, self.starts, self.members):
            await gatherer.close()
        for offsets in self._offsets_by.values():
            await offsets.close()

    async def _members(self, asked: list[None]) -> list[list[MemberRow]]:
        return [await self._caller.call(self._store.load_members)] * len(asked)

    async def _offsets(self, queries: list[OffsetQuery], *, committed: bool) -> list[int | None]:
        found = await self._catalog.offsets(queries, committed=committed)
        return [found.get(query) for query in queries]
