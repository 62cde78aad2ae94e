"""Compares what a batch says of its bytes (CRC) with what they are.

A broker checks what producers send, TCP and TLS check the way here; what is left are a broker's
disks. That costs 0.04 µs a record of 1 kB, and the library (extra `checksums`).
"""

from __future__ import annotations

import zlib
from typing import Final

from sharecoord_batches.errors import CodecMissingError
from sharecoord_batches.headers import V2, BatchHeader

try:
    import crc32c
except ImportError:
    HAS_CRC32C = False
else:
    HAS_CRC32C = True

__all__ = ["is_intact"]

BATCH_COVERED_FROM: Final = 21
"""Of a batch, the CRC covers what stands behind it: from the attributes on."""
MESSAGE_COVERED_FROM: Final = 16
"""Of a message (v0, v1), too: from the magic byte on."""


def is_intact(data: memoryview, header: BatchHeader) -> bool:
    """Whether the bytes of a batch, or of a message, have the CRC that its header says.

    Raises:
        CodecMissingError: crc32c is not installed; messages need only the standard library.
    """
    if header.magic < V2:
        found = zlib.crc32(data[header.start + MESSAGE_COVERED_FROM : header.end])
    elif not HAS_CRC32C:
        text = "install the extra, sharecoord-batches[checksums] (it brings crc32c)"
        raise CodecMissingError(f"the CRC of a batch can not be compared: {text}")
    else:
        found = crc32c.crc32c(data[header.start + BATCH_COVERED_FROM : header.end])
    return found == header.crc
