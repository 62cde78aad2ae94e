"""Whether a share-partition is served."""

from __future__ import annotations

import enum


class ActorState(enum.Enum):
    """Whether a share-partition is served."""

    LOADING = "loading"
    ACTIVE = "active"
    LEAVING = "leaving"
    """On its way to another coordinator: it still has its state, and hands out nothing."""
    STOPPED = "stopped"
    CLOSED = "closed"
