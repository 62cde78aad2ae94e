"""How long this disk takes until written data would survive a loss of power."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from sharecoord.bench.capacity.figures import DiskFigures
from sharecoord.bench.engine.stats import percentile

_PAGE: Final = b"\xa5" * 4096
_LEAST: Final = 20


def measure_disk(directory: Path, seconds: float) -> DiskFigures:
    """Appends at least 20 pages to a file, each with an fdatasync, as SQLite does to its log."""
    path = directory / "fsync"
    taken_ms: list[float] = []
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        end_s = time.monotonic() + seconds
        while len(taken_ms) < _LEAST or time.monotonic() < end_s:
            began_ns = time.monotonic_ns()
            os.write(file, _PAGE)
            os.fdatasync(file)
            taken_ms.append((time.monotonic_ns() - began_ns) / 1e6)
    finally:
        os.close(file)
        path.unlink()
    ordered = sorted(taken_ms)
    return DiskFigures(
        median_ms=percentile(ordered, 50),
        p99_ms=percentile(ordered, 99),
        per_s=1000 * len(ordered) / sum(ordered),
    )
