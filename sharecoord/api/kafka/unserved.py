"""Refuses what is not served: Produce and Fetch get an error, all else loses its connection.

Brokers end connections for requests that they do not know, too. Clients do not get that far: what
ApiVersions does not name they refuse to send by themselves, with an error of their own.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from sharecoord.api.kafka.cluster import NO_TIME
from sharecoord.api.kafka.codec import Head, ProtocolError, make
from sharecoord.api.kafka.connections.strangers import Strangers

FETCH_WAIT_S: Final = 0.5
"""Longest wait of a refused Fetch."""

WHY: Final = (
    "this is the Kafka port of sharecoord: it serves share groups, and passes nothing on to Kafka. "
    "Produce to Kafka itself, or set kafka.port.passthrough=true of the coordinator"
)

HINT: Final = " (with kafka.port.passthrough=true it would be passed on)"

_NONE: Final = -1
_ACKS_NONE: Final = 0


class Unserved:
    """Refuses requests, and tells the log."""

    def __init__(
        self,
        strangers: Strangers,
        error: ErrorCode = ErrorCode.unsupported_version,
        why: str = WHY,
    ) -> None:
        """Takes what producers and plain consumers are told."""
        self._strangers = strangers
        self._error = error
        self._why = why

    def refuse(self, head: Head) -> ProtocolError:
        """The end of a connection that sent what is not served."""
        why = f"{name_of(head)} version {head.version} is not served at the Kafka port"
        return ProtocolError(why + (f": {self._why}" if self._why is not WHY else HINT))

    def produced(self, head: Head, request: Any, address: str) -> Any:
        """The answer to Produce: no record is taken.

        Raises:
            ProtocolError: The producer wants no answer; brokers end its connection for an error.
        """
        if request.acks == _ACKS_NONE:
            raise self.refuse(head)
        self._tell(head, address)
        topics = tuple(
            make(
                head,
                "TopicProduceResponse",
                **_topic(topic, "name"),
                partition_responses=tuple(
                    make(
                        head,
                        "PartitionProduceResponse",
                        index=part.index,
                        error_code=self._error,
                        base_offset=_NONE,
                        record_errors=(),
                        error_message=self._why,
                    )
                    for part in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
        return make(head, "ProduceResponse", responses=topics, throttle_time=NO_TIME)

    async def fetched(self, head: Head, request: Any, address: str) -> Any:
        """The answer to Fetch: plain consumers get no records; at once they would ask again."""
        self._tell(head, address)
        await asyncio.sleep(min(FETCH_WAIT_S, max(0.0, request.max_wait.total_seconds())))
        topics = tuple(
            make(
                head,
                "FetchableTopicResponse",
                **_topic(topic, "topic"),
                partitions=tuple(
                    make(
                        head,
                        "PartitionData",
                        partition_index=part.partition,
                        error_code=self._error,
                        high_watermark=_NONE,
                        aborted_transactions=None,
                        # librdkafka takes a null for a broken answer.
                        records=b"",
                    )
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return make(
            head,
            "FetchResponse",
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            responses=topics,
        )

    def _tell(self, head: Head, address: str) -> None:
        """Tells the log of a request whose connection goes on."""
        why = str(self.refuse(head))
        self._strangers.tell("Kafka port: a request is refused", address=address, why=why)


def name_of(head: Head) -> str:
    """The name of a request's API, where it is known."""
    name = api_key_map.get(head.api_key)
    return f"API {head.api_key}" if name is None else f"API {head.api_key} ({name})"


def _topic(topic: Any, name: str) -> dict[str, Any]:
    """A topic by its name or, in later versions, by its id."""
    field = "topic_id" if hasattr(topic, "topic_id") else name
    return {field: getattr(topic, field)}
