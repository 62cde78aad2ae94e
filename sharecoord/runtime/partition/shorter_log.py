"""Detection of a cut log, one that ends before the position that a share-partition has read.

The lowest end of all looks is the place of the cut: the log may have grown again since. A read at
the former end tells whether the log was cut at all: Kafka refuses a read beyond the last record of
the partition's leader. A new leader that does not show all of its records yet refuses nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from sharecoord.core.records import RecordChunk

if TYPE_CHECKING:
    from sharecoord.core.changes import PartitionKey
    from sharecoord.ports import LogReader

REFUSAL_TIMEOUT_S: Final = 2.0
"""Wait for the leader's first answer, which refuses a read beyond its records."""


class ShorterLog(NamedTuple):
    """The findings of looks at a log that seems to be shorter."""

    state_epoch: int
    """State epoch of the share-partition: a durable truncation or reset voids the findings."""
    lowest_end: int
    is_cut: bool
    """Whether a read at the former end was refused."""

    def and_now(self, log_end: int) -> ShorterLog:
        """The findings with another look."""
        return self._replace(lowest_end=min(self.lowest_end, log_end))


async def is_refused(reader: LogReader, key: PartitionKey, offset: int, *, committed: bool) -> bool:
    """Whether Kafka refuses to read at an offset; False also when it does not say."""
    answer = _Answer()
    reading = reader.read(key.topic, key.partition, offset, committed=committed, sink=answer)
    try:
        async with asyncio.timeout(REFUSAL_TIMEOUT_S):
            return await answer.refused
    except TimeoutError:
        return False
    finally:
        reading.close()


class _Answer:
    """A `ports.LogSink` that waits for the first call."""

    def __init__(self) -> None:
        self.refused: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def on_chunk(self, _: RecordChunk) -> None:
        """There are records."""
        self._heard(refused=False)

    def on_end(self, _: int) -> None:
        """The log ends there, or later."""
        self._heard(refused=False)

    def on_out_of_range(self) -> None:
        """The log does not reach that far."""
        self._heard(refused=True)

    def on_gone(self) -> None:
        """There is no such partition: that tells nothing about its end."""
        self._heard(refused=False)

    def _heard(self, *, refused: bool) -> None:
        if not self.refused.done():
            self.refused.set_result(refused)
