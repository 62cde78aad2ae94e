"""Share-partitions that no member wants rest: they read nothing and hold no payloads.

A group whose workers are gone for the night costs neither memory nor fetches; the first member
that joins sets its partitions reading again, from the window's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from sharecoord.runtime import loading
from sharecoord.runtime.actor_state import ActorState
from sharecoord.runtime.context import Context
from sharecoord.runtime.partition_actor import PartitionActor

if TYPE_CHECKING:
    from sharecoord.runtime.group_actor import GroupActor

log = structlog.get_logger(__name__)

REST_AFTER_S = 10.0
"""A worker that restarts finds what was read ahead for it."""

LOOK_INTERVAL_S = 1.0


class IdleWatch:
    """Sends share-partitions to rest.

    Args:
        groups: The groups of a coordinator, live.
    """

    def __init__(self, groups: Mapping[str, GroupActor]) -> None:
        self._groups = groups
        self._unwanted_since_s: dict[PartitionActor, float] = {}

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.look(loop.time())
            await asyncio.sleep(LOOK_INTERVAL_S)

    def look(self, now_s: float) -> None:
        """Sends to rest what nobody has wanted for a while."""
        unwanted: dict[PartitionActor, float] = {}
        for group in self._groups.values():
            topics = group.topics
            for actor in group.partitions.values():
                if (
                    actor.key.served in topics
                    or actor.resting
                    or actor.state is not ActorState.ACTIVE
                ):
                    continue
                since_s = self._unwanted_since_s.get(actor, now_s)
                if now_s - since_s >= REST_AFTER_S:
                    actor.rest()
                    log.info("share-partition rests: no member wants it", partition=actor.key)
                else:
                    unwanted[actor] = since_s
        self._unwanted_since_s = unwanted


def wake(context: Context, group: GroupActor) -> None:
    """Sets those partitions reading again that members want now."""
    for actor in group.partitions.values():
        if actor.resting and actor.key.served in group.dispatcher.topics:
            actor.resting = False
            if actor.state is ActorState.ACTIVE and not actor.held_back:
                actor.read_ahead_given_up = False
                loading.start_reading(context, group, actor)
