"""A dict that counts by name, without entries for 0."""

from __future__ import annotations


def add_to(counts: dict[str, int], member_id: str, records: int) -> int:
    """Adds to the count of a member and returns the sum."""
    left = counts.get(member_id, 0) + records
    if left:
        counts[member_id] = left
    else:
        del counts[member_id]
    return left
