"""Limits of scans, of either reader."""

from __future__ import annotations

from typing import Final

from sharecoord.errors import LimitExceededError

SCANS_MAX: Final = 4
"""Most scans at a time: each has a connection, and fetches `SCAN_FETCH` ahead."""

CHUNK_RECORDS_MAX: Final = 200
"""Records of a chunk: about a millisecond of work for a caller that looks at each of them."""

SILENCE_S: Final = 10.0
"""Silence after which Kafka counts as not available."""


def too_many_scans() -> LimitExceededError:
    """The error of a scan beyond `SCANS_MAX`."""
    return LimitExceededError(
        f"{SCANS_MAX} scans of topics run already; try again when one has ended",
        retry_after_ms=1_000,
    )
