"""Counts by member."""

from __future__ import annotations


def add_to(counts: dict[str, int], member_id: str, records: int) -> int:
    """Adds to a count and returns it; there is no entry for 0."""
    left = counts.get(member_id, 0) + records
    if left:
        counts[member_id] = left
    else:
        del counts[member_id]
    return left
