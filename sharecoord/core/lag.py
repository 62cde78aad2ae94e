"""How far a group is behind the log end, as KIP-1226 counts it for share groups."""

from __future__ import annotations


def consumer_offset(start_offset: int, finished: int) -> int:
    """The committed offset of a consumer group that has the same lag: SPSO + final offsets."""
    return start_offset + finished


def lag(log_end_offset: int, start_offset: int, finished: int) -> int:
    """Records below the log end that are not finished."""
    return max(0, log_end_offset - consumer_offset(start_offset, finished))
