"""Topic ids on the wire: those of Kafka, or stable ones for clusters that have none."""

from __future__ import annotations

from hashlib import blake2b
from uuid import UUID


def wire_id(cluster_id: str, topic: str, topic_id: str) -> UUID:
    """The id under which members know a topic.

    Share consumers name topics by id alone. Clusters below 2.8 have no ids: the same name always
    gets the same one there, from every coordinator.
    """
    if topic_id:
        return UUID(hex=topic_id)
    seed = f"{cluster_id}\0{topic}".encode()
    return UUID(bytes=blake2b(seed, digest_size=16, person=b"sharecoord topic").digest())
