"""Payloads of due records that are not in memory any more: read again, by side work of a group."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from sharecoord.config.group import GroupConfig, IsolationLevel
from sharecoord.core.records import RecordChunk
from sharecoord.errors import OffsetOutOfRangeError, SharecoordError
from sharecoord.runtime.context import Context
from sharecoord.runtime.partition_actor import PartitionActor

log = structlog.get_logger(__name__)

REREAD_AGAIN_S = 0.5
"""Wait after a re-read that failed."""


class RereadingGroup(Protocol):
    """What a re-read needs of a group."""

    context: Context
    config: GroupConfig

    def dropped(self, actor: PartitionActor, error: SharecoordError) -> None:
        """The incarnation of a share-partition failed: claim and load it anew."""

    def schedule_pump(self) -> None:
        """Dispatches in this turn of the loop, once."""


async def reread(group: RereadingGroup, actor: PartitionActor, first: int, last: int) -> None:
    """Reads [first, last] again and gives it to the actor, unless its incarnation has ended."""
    committed = group.config.isolation_level is IsolationLevel.READ_COMMITTED
    generation = actor.generation
    chunks: list[RecordChunk] | None = None
    why: SharecoordError | None = None
    try:
        chunks = await group.context.reader.reread(
            actor.key.topic, actor.key.partition, first, last, committed=committed
        )
    except SharecoordError as error:
        log.warning("re-read failed", partition=actor.key, why=error.message)
        why = error
    except Exception:
        log.exception("re-read failed", partition=actor.key)
    if actor.generation != generation or actor.partition is None:
        return
    if chunks is not None:
        actor.payload_read(first, last, chunks)
    elif isinstance(why, OffsetOutOfRangeError):
        group.dropped(actor, why)
    else:
        actor.missing_wanted = False
        asyncio.get_running_loop().call_later(REREAD_AGAIN_S, group.schedule_pump)
