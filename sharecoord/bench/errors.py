"""The one error of this package."""

from __future__ import annotations

from sharecoord.errors import SharecoordError


class BenchError(SharecoordError):
    """A load process or the coordinator under measurement failed; the message quotes its log."""

    reason = "BENCH"
