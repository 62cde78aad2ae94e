"""Which coordinator of a fleet should own a share-partition: rendezvous hashing (design 9).

Each coordinator can work it out by itself from the live leases, and a coordinator that comes or
goes moves nothing but its own part. Only the claim in SQL decides who does own it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from sharecoord.core.changes import PartitionKey


def wanted_owner(key: PartitionKey, coordinator_ids: Iterable[str]) -> str | None:
    """The coordinator that should own a share-partition; None without coordinators.

    Letters of one partition go where the partition is, so that one coordinator keeps the order of
    their keys. `coordinator_ids` have a live lease and take new partitions.
    """
    topic, partition = key.home if key.home[1] >= 0 else key.place
    return _heaviest(coordinator_ids, f"{key.group_id}\0{topic}\0{partition}")


def wanted_keeper(group_id: str, member_id: str, coordinator_ids: Iterable[str]) -> str | None:
    """The coordinator that removes a member whose gateway died, unless the member comes back.

    `coordinator_ids` have a live lease; None without any.
    """
    return _heaviest(coordinator_ids, f"{group_id}\0{member_id}")


def _heaviest(coordinator_ids: Iterable[str], place: str) -> str | None:
    def weight(coordinator_id: str) -> tuple[bytes, str]:
        text = f"{coordinator_id}\0{place}"
        return blake2b(text.encode(), digest_size=8).digest(), coordinator_id

    return max(coordinator_ids, key=weight, default=None)
