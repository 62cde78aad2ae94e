"""Compressed batches that are open: their records decompressed, the latest used ones kept.

A batch is opened once for the deliveries that take its records a few at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import Final

from sharecoord_batches.codecs import decompress

OPEN_BYTES_MAX: Final = 32 << 20
"""Decompressed records that are kept: of some dozens of partitions that are worked off at a time.
The last opened batch is kept whatever its size."""

BatchKey = tuple[int, int]
"""The number of the fetched bytes that have a batch, and its base offset."""

_numbers = count()


def next_number() -> int:
    """A number for the bytes of one partition in one answer; no two have the same."""
    return next(_numbers)


class OpenBatches:
    """The open batches of one reader, the latest used one last."""

    def __init__(self, bytes_max: int = OPEN_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._open: OrderedDict[BatchKey, bytes] = OrderedDict()
        self.size_bytes = 0

    def records(self, key: BatchKey, codec: int, content: memoryview) -> bytes:
        """The decompressed records of a batch.

        Raises:
            BatchError: They can not be decompressed, or there are too many of them.
        """
        found = self._open.get(key)
        if found is not None:
            self._open.move_to_end(key)
            return found
        found = self._open[key] = decompress(codec, content)
        self.size_bytes += len(found)
        while self.size_bytes > self._bytes_max and len(self._open) > 1:
            self.size_bytes -= len(self._open.popitem(last=False)[1])
        return found
