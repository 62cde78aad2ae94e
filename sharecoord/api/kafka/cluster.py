"""The cluster as members see it: one broker, which leads every partition and every group."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from sharecoord.api.kafka.codec import TOLD, Head, make
from sharecoord.api.kafka.topic_ids import wire_id
from sharecoord.config.endpoints import TcpAddress
from sharecoord.ports import TopicCatalog, TopicInfo

NODE_ID: Final = 1
"""The broker that this coordinator passes for."""

NO_TIME: Final = timedelta(0)
_NONE: Final = UUID(int=0)


class Cluster:
    """Answers questions about brokers, topics and groups' places."""

    def __init__(self, catalog: TopicCatalog, cluster_id: str, address: TcpAddress) -> None:
        """Members connect to `address`."""
        self._catalog = catalog
        self.cluster_id = cluster_id
        self._broker = {
            "node_id": NODE_ID,
            "broker_id": NODE_ID,
            "host": address.host,
            "port": address.port,
        }
        """The one broker, by the names that the fields of answers have."""
        self._topics: dict[UUID, str] = {}
        """Names of topics that were told, by id: some clients ask by id, old brokers know none."""
        self._ids: dict[str, UUID] = {}

    def api_versions(self, head: Head, error: ErrorCode = ErrorCode.none) -> Any:
        """The APIs of this port, with their versions."""
        keys = [
            make(head, "ApiVersion", api_key=key, min_version=first, max_version=last)
            for key, (first, last) in sorted(TOLD.items())
        ]
        return make(
            head,
            "ApiVersionsResponse",
            error_code=error,
            api_keys=tuple(keys),
            throttle_time=NO_TIME,
        )

    def find_coordinator(self, head: Head, request: Any) -> Any:
        """This broker, for every group."""
        found = {"error_code": ErrorCode.none, "error_message": None, **self._broker}
        if head.version < 4:
            return make(head, "FindCoordinatorResponse", throttle_time=NO_TIME, **found)
        coordinators = tuple(
            make(head, "Coordinator", key=key, **found) for key in request.coordinator_keys
        )
        return make(
            head, "FindCoordinatorResponse", throttle_time=NO_TIME, coordinators=coordinators
        )

    async def metadata(self, head: Head, request: Any) -> Any:
        """Topics by name or id; all brokers are this one."""
        broker = make(head, "MetadataResponseBroker", **self._broker, rack=None)
        topics = () if request.topics is None else request.topics
        named = [self._name_of(each) for each in topics]
        found = await self._catalog.describe([name for _, name in named if name])
        return make(
            head,
            "MetadataResponse",
            throttle_time=NO_TIME,
            brokers=(broker,),
            cluster_id=self.cluster_id or None,
            controller_id=NODE_ID,
            topics=tuple(self._topic(head, *each, found.get(each[1])) for each in named),
            error_code=ErrorCode.none,
        )

    def _name_of(self, topic: Any) -> tuple[UUID | None, str]:
        asked: UUID | None = getattr(topic, "topic_id", None)
        return asked, topic.name or self.name_of(asked) or ""

    def _topic(self, head: Head, asked: UUID | None, name: str, info: TopicInfo | None) -> Any:
        if info is None:
            error = ErrorCode.unknown_topic_id if asked else ErrorCode.unknown_topic_or_partition
            refused = name in self._catalog.refusals
            return make(
                head,
                "MetadataResponseTopic",
                error_code=ErrorCode.topic_authorization_failed if refused else error,
                name=name or ("" if head.version < 12 else None),
                topic_id=asked or _NONE,
                partitions=(),
            )
        return make(
            head,
            "MetadataResponseTopic",
            error_code=ErrorCode.none,
            name=name,
            topic_id=self.id_of(name, info.topic_id),
            partitions=tuple(self._partitions(head, info.partitions)),
        )

    @staticmethod
    def _partitions(head: Head, numbers: Iterable[int]) -> Iterable[Any]:
        for number in numbers:
            yield make(
                head,
                "MetadataResponsePartition",
                error_code=ErrorCode.none,
                partition_index=number,
                leader_id=NODE_ID,
                leader_epoch=0,
                replica_nodes=(NODE_ID,),
                isr_nodes=(NODE_ID,),
            )

    def describe_cluster(self, head: Head) -> Any:
        """The cluster with its one broker."""
        broker = make(head, "DescribeClusterBroker", **self._broker, rack=None, is_fenced=False)
        return make(
            head,
            "DescribeClusterResponse",
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            cluster_id=self.cluster_id,
            controller_id=NODE_ID,
            brokers=(broker,),
        )

    def known_id(self, topic: str) -> UUID | None:
        """The id under which a topic was told; None = it was not."""
        return self._ids.get(topic)

    def name_of(self, topic_id: UUID | None) -> str | None:
        """The topic that was told under this id."""
        return None if topic_id is None else self._topics.get(topic_id)

    def id_of(self, topic: str, topic_id: str) -> UUID:
        """The id of a topic on the wire, which is asked for by it later."""
        found = wire_id(self.cluster_id, topic, topic_id)
        former = self._ids.get(topic, found)
        if former != found:
            # The topic was deleted and made again: who asks for its former life hears so.
            self._topics.pop(former, None)
        self._topics[found], self._ids[topic] = topic, found
        return found
