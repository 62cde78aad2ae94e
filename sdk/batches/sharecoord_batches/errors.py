"""What can be wrong with the bytes of a batch.

The texts name the batch's offset, and the record; the caller adds the topic and the partition.
"""

from __future__ import annotations

__all__ = [
    "BatchError",
    "BatchTooLargeError",
    "BrokenBatchError",
    "CodecMissingError",
    "UnknownFormatError",
]


class BatchError(ValueError):
    """A batch can not be opened."""


class BrokenBatchError(BatchError):
    """The bytes contradict themselves: they were damaged, or written by a faulty producer."""


class BatchTooLargeError(BatchError):
    """The records need more memory than the caller allows."""


class UnknownFormatError(BatchError):
    """A format (magic) or a compression that came after this version of the package."""


class CodecMissingError(BatchError):
    """The library that decompresses is not installed."""
