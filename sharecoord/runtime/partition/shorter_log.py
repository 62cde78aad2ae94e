"""A log that ends before what a share-partition has read: was it cut, and from where on.

Every look at the log's end counts, and the lowest end that was seen is where it was cut: the log
may have grown again since. Whether it was cut at all, a read at its former end tells: Kafka refuses
one beyond the last record that the partition's leader has. A new leader that only does not show all
of its records yet refuses nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from sharecoord.core.records import RecordChunk

if TYPE_CHECKING:
    from sharecoord.core.changes import PartitionKey
    from sharecoord.ports import LogReader

REFUSAL_TIMEOUT_S: Final = 2.0
"""A read that is to be refused is refused by the leader's first answer."""


class ShorterLog(NamedTuple):
    """What looks have found until now."""

    state_epoch: int
    """The share-partition's: a truncation or reset that is durable makes this void."""
    lowest_end: int
    is_cut: bool
    """Whether a read at the former end was refused."""

    def and_now(self, log_end: int) -> ShorterLog:
        """With another look."""
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
