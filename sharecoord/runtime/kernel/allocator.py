"""glibc's allocator: memory that is freed stays for the next batch, instead of going to the kernel.

Answers of brokers, opened batches and messages are blocks of 100 kB to 4 MiB that live for some
milliseconds. By default such a block comes from the kernel, is zeroed page by page at its first
use, and goes back when it is freed (docs/decisions/0052 has the figure). Nothing happens on other C
libraries, and where an operator has chosen: by MALLOC_* or GLIBC_TUNABLES, or another allocator.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3

MMAP_BYTES: Final = 32 << 20
"""Blocks up to this size come from the heap: the most that glibc takes."""

KEPT_BYTES_MAX: Final = 64 << 20
"""Freed memory at the end of the heap that is kept."""

KEPT_PART: Final = 8
"""No more is kept than the memory limit divided by this."""

_CHOICES: Final = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory(memory_limit_bytes: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Sets the thresholds for this process; returns whether they are in force."""
    if any(name.startswith(_CHOICES) for name in environ) or not _is_glibc():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    kept_bytes = min(KEPT_BYTES_MAX, memory_limit_bytes // KEPT_PART)
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, kept_bytes))


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):
        return False
