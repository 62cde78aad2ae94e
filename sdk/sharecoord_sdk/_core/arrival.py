"""What a stream brings to its consumer."""

from __future__ import annotations

import math
from typing import NamedTuple

from sharecoord_sdk._proto import share_service_pb2 as service_pb

from .lock_book import LockBook
from .status import StreamFailure


class Arrival(NamedTuple):
    """What a stream brought: a message, or its end."""

    generation: int
    content: service_pb.ConsumeResponse | StreamFailure
    received_at: float

    @property
    def unseen_at(self) -> float:
        """When records in it have waited for half of their lock; inf without any."""
        if isinstance(self.content, StreamFailure) or not self.content.batches:
            return math.inf
        left_ms = min(
            bounds.lock_remaining_ms for batch in self.content.batches for bounds in batch.ranges
        )
        return self.received_at + left_ms / 1000 * LockBook.return_part
