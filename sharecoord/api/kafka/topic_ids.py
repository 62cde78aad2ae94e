"""Topic ids on the wire: those of Kafka, or stable ones for clusters that have none."""

from __future__ import annotations

from hashlib import blake2b
from uuid import UUID


class TopicIds:
    """The ids that members were told: some clients ask by them, and old brokers know none."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._topics: dict[UUID, str] = {}
        self._ids: dict[str, UUID] = {}

    def known_id(self, topic: str) -> UUID | None:
        """The id under which a topic was told; None = it was not."""
        return self._ids.get(topic)

    def name_of(self, topic_id: UUID | None) -> str | None:
        """The topic that was told under this id."""
        return None if topic_id is None else self._topics.get(topic_id)

    def id_of(self, topic: str, topic_id: str) -> UUID:
        """The id of a topic on the wire, which is asked for by it later."""
        found = wire_id(self._cluster_id, topic, topic_id)
        former = self._ids.get(topic, found)
        if former != found:
            # The topic was deleted and made again: who asks for its former life hears so.
            self._topics.pop(former, None)
        self._topics[found], self._ids[topic] = topic, found
        return found


def wire_id(cluster_id: str, topic: str, topic_id: str) -> UUID:
    """The id under which members know a topic.

    Share consumers name topics by id alone. Clusters below 2.8 have no ids: the same name always
    gets the same one there, from every coordinator.
    """
    if topic_id:
        return UUID(hex=topic_id)
    seed = f"{cluster_id}\0{topic}".encode()
    return UUID(bytes=blake2b(seed, digest_size=16, person=b"sharecoord topic").digest())
