"""The record batches of a topic as the broker stores them, read from its segment files."""

from __future__ import annotations

import mmap
import statistics
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sharecoord.bench.engine.cell import TopicKey
from sharecoord.bench.errors import BenchError

_HEAD: Final = struct.Struct(">qi45xi")
"""Base offset, length of all that follows the length, and the number of records at the end."""
_LENGTH_END: Final = 12
"""A batch is so many bytes longer than its length says."""
_RECORD_BYTES: Final = 30
"""What a record takes besides its value at most: key, varints of small batches."""


@dataclass(frozen=True, slots=True)
class StoredBatches:
    """All record batches of a topic.

    Attributes:
        records: Records of each batch, by partition and in order.
        stored_bytes: Bytes of all batches together, with their heads.
    """

    records: tuple[tuple[int, ...], ...]
    stored_bytes: int

    @property
    def typical_records(self) -> float:
        """Median of the records of a batch; the last batch of a partition, a rest, is left out."""
        full = [count for batches in self.records for count in batches[:-1]]
        return statistics.median(full or [count for each in self.records for count in each])

    def figures(self, key: TopicKey) -> dict[str, float]:
        """Records and bytes of a batch, and how many bytes of values a stored byte is worth."""
        count = sum(map(len, self.records))
        total = sum(map(sum, self.records))
        return {
            "batch_records": self.typical_records,
            "batch_stored_bytes": self.stored_bytes / count,
            "value_bytes_per_stored": total * key.payload_bytes / self.stored_bytes,
        }

    def check(self, key: TopicKey, topic: str) -> None:
        """Raises BenchError when batches are smaller than the producer was told to make them."""
        fit = max(1, (key.batch_bytes - _HEAD.size) // (key.payload_bytes + _RECORD_BYTES))
        if any(len(each) > 1 for each in self.records) and self.typical_records < fit:
            raise BenchError(
                f"topic {topic}: its batches have {self.typical_records:g} records, and {fit} of "
                f"{key.payload_bytes} B go into {key.batch_bytes} B: the producer was too slow; "
                "run the benchmark on a machine with less other work"
            )


def stored_batches(log_dir: Path, topic: str, partitions: int) -> StoredBatches:
    """Reads the heads of all batches; `log_dir` is the broker's `log.dirs`.

    BenchError when a partition has no batch.
    """
    records, stored_bytes = [], 0
    for partition in range(partitions):
        counts = []
        for segment in sorted((log_dir / f"{topic}-{partition}").glob("*.log")):
            for length, count in _batches(segment):
                stored_bytes += length
                counts.append(count)
        records.append(tuple(counts))
    if not stored_bytes:
        raise BenchError(f"topic {topic}: {log_dir} has no batch of it")
    return StoredBatches(tuple(records), stored_bytes)


def _batches(segment: Path) -> Iterator[tuple[int, int]]:
    """Length in bytes and number of records of each batch of a segment."""
    size = segment.stat().st_size
    if size < _HEAD.size:
        return
    with segment.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as log:
        at = 0
        while at + _HEAD.size <= size:
            _, length, count = _HEAD.unpack_from(log, at)
            if length < _HEAD.size - _LENGTH_END or at + _LENGTH_END + length > size:
                return
            yield _LENGTH_END + length, count
            at += _LENGTH_END + length
