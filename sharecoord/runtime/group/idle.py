"""Rest of share-partitions that no member wants: they read nothing and hold no payloads.

A group whose workers are gone for the night costs neither memory nor fetches; the first member
that joins sets its partitions reading again, from the window's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from sharecoord.runtime.group.group import Group
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState

log = structlog.get_logger(__name__)

REST_AFTER_S = 10.0
"""Wait before the rest: a worker that restarts finds the records that were read ahead."""

LOOK_INTERVAL_S = 1.0


class IdleWatch:
    """Sends the share-partitions of a coordinator's groups to rest."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = groups
        self._unwanted_since_s: dict[PartitionActor, float] = {}

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.look(loop.time())
            await asyncio.sleep(LOOK_INTERVAL_S)

    def look(self, now_s: float) -> None:
        """Sends share-partitions to rest that no member has wanted for a while."""
        unwanted: dict[PartitionActor, float] = {}
        for group in self._groups.values():
            topics = group.topics
            for actor in group.partitions.values():
                if (
                    actor.key.served in topics
                    or actor.log.resting
                    or actor.state is not ActorState.ACTIVE
                ):
                    continue
                since_s = self._unwanted_since_s.get(actor, now_s)
                if now_s - since_s >= REST_AFTER_S:
                    actor.log.rest()
                    log.info("share-partition rests: no member wants it", partition=actor.key)
                else:
                    unwanted[actor] = since_s
        self._unwanted_since_s = unwanted


def wake(group: Group) -> None:
    """Ends the rest of the share-partitions that members want now."""
    topics = group.topics
    for actor in group.partitions.values():
        if actor.log.resting and actor.key.served in topics:
            actor.log.resting = False
            if actor.state is ActorState.ACTIVE and not actor.log.held_back:
                actor.log.given_up = False
                actor.log.start(committed=actor.reads_committed)
