"""glibc's allocator: memory that is freed stays for the next batch, instead of going to the kernel.

Answers of brokers, opened batches and messages are blocks of 100 kB to 4 MiB that live for some
milliseconds. By default such a block comes from the kernel, is zeroed page by page at its first
use, and goes back when it is freed (docs/decisions/0052 has the figure). glibc keeps all of it that
lies below something in use, so near the memory limit it is given back (`FreedMemory`). Nothing
happens on other C libraries, and where an operator has chosen: by MALLOC_* or GLIBC_TUNABLES, or
another allocator.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping
from typing import Any, Final

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
    mallopt = _function("mallopt", environ)
    if mallopt is None:
        return False
    kept_bytes = min(KEPT_BYTES_MAX, memory_limit_bytes // KEPT_PART)
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, kept_bytes))


class FreedMemory:
    """Memory that the process has freed and that its allocator keeps."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Gives nothing back where `keep_freed_memory` does nothing."""
        self._trim = _function("malloc_trim", environ)
        self._at_rest_bytes = _resident_bytes()

    @property
    def above_rest_bytes(self) -> int:
        """By how much the process has grown since this was made, with what its allocator keeps.

        0 where nothing can be given back.
        """
        return 0 if self._trim is None else _resident_bytes() - self._at_rest_bytes

    def give_back(self) -> None:
        """Gives whole pages to the kernel, wherever they lie."""
        if self._trim is not None:
            self._trim(0)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - in 15 us
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _function(name: str, environ: Mapping[str, str]) -> Any:
    """A function of glibc; None on another C library, and where an operator has chosen."""
    if any(each.startswith(_CHOICES) for each in environ) or not _is_glibc():
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):
        return False
