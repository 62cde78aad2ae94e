"""The one error of this package: something that a measurement needs did not work."""

from __future__ import annotations

from sharecoord.errors import SharecoordError


class BenchError(SharecoordError):
    """A driver or the coordinator under measurement failed; the message has its last words."""

    reason = "BENCH"
