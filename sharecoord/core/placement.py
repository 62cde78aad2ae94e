"""Which coordinator of a fleet should own a share-partition: rendezvous hashing (design 9).

Each coordinator can work it out by itself from the live leases, and a coordinator that comes or
goes moves nothing but its own part. Only the claim in SQL decides who does own it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from sharecoord.core.changes import PartitionKey


def wanted_owner(key: PartitionKey, coordinator_ids: Iterable[str]) -> str | None:
    """The coordinator with the highest weight for a share-partition.

    Args:
        key: The share-partition.
        coordinator_ids: Those with a live lease that take new partitions, in any order.

    Returns:
        One of them; None when there is none.
    """
    place = f"{key.group_id}\0{key.topic_id or key.topic}\0{key.partition}".encode()
    return max(coordinator_ids, key=lambda each: (_weight(each, place), each), default=None)


def _weight(coordinator_id: str, place: bytes) -> bytes:
    return blake2b(coordinator_id.encode() + b"\0" + place, digest_size=8).digest()
