"""Compressed batches that are open: their records decompressed, the latest used ones kept.

A batch is opened once for the deliveries that take its records a few at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Final

import cramjam

OPEN_BYTES_MAX: Final = 32 << 20
"""Decompressed records that are kept: of some dozens of partitions that are worked off at a time.
The last opened batch is kept whatever its size."""

BATCH_BYTES_MAX: Final = 256 << 20
"""Largest size of one batch's records: a producer's `max.request.size` at 100 times, far beyond
any real batch. A batch that claims more would take the coordinator's memory."""

_DECOMPRESS: Final[dict[int, Callable[[bytes | memoryview], object]]] = {
    1: cramjam.gzip.decompress,
    2: cramjam.snappy.decompress,
    3: cramjam.lz4.decompress,
    4: cramjam.zstd.decompress,
}

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
            ValueError: They can not be decompressed.
        """
        found = self._open.get(key)
        if found is not None:
            self._open.move_to_end(key)
            return found
        found = self._open[key] = decompressed(codec, content)
        self.size_bytes += len(found)
        while self.size_bytes > self._bytes_max and len(self._open) > 1:
            self.size_bytes -= len(self._open.popitem(last=False)[1])
        return found


def decompressed(codec: int, content: memoryview) -> bytes:
    """What was compressed with this codec, by its number in a batch's attributes.

    Raises:
        ValueError: It can not be decompressed.
    """
    decompress = _DECOMPRESS.get(codec)
    if decompress is None:
        raise ValueError(f"the compression {codec} is not known")
    try:
        return bytes(decompress(content))  # type: ignore[call-overload, no-any-return]
    except cramjam.DecompressionError as error:
        raise ValueError(f"the records can not be decompressed: {error}") from error
