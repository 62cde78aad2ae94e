"""Whether a share-partition is served."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sharecoord.runtime.partition_actor import PartitionActor


class ActorState(enum.Enum):
    """Whether a share-partition is served."""

    LOADING = "loading"
    ACTIVE = "active"
    LEAVING = "leaving"
    """On its way to another coordinator: it still has its state, and hands out nothing."""
    STOPPED = "stopped"
    CLOSED = "closed"


class Pump(Protocol):
    """Has a share-partition looked at."""

    def __call__(self, actor: PartitionActor, refunded: str | None = None) -> None:
        """See `Dispatcher.wake`."""
