"""Share consumers without a client: any request of Kafka's protocol, to a broker or to the port."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from kio.index import load_request_schema

from tests.support import eventually_async, unique_name
from tests.unit.api.kafka.client import ACKNOWLEDGE, FETCH, HEARTBEAT, Client, fetched, module_of

Ack = tuple[int, int, Sequence[int]]
"""First and last offset, and the types: one for all offsets, or one for each."""

FIND_COORDINATOR = 10


class Answer(NamedTuple):
    """What a request brought, in what clients look at."""

    error: int
    of: dict[tuple[str, int], tuple[int, int]] = {}
    """By topic and partition the codes of fetch and acknowledgements; without a partition that has
    nothing to tell."""
    acquired: list[tuple[int, int, int]] = []
    """First and last offset, and delivery count, of partition 0."""


class Hand:
    """A member of a new group on one connection."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client, self.topic = client, topic
        self.group, self.member = unique_name("g"), str(uuid.uuid4())
        self.epoch = 0
        """Of the share session's next request."""

    async def heartbeat(self, epoch: int, **given: Any) -> Any:
        """Sends a heartbeat; the topics are told with the first one."""
        usual = {
            "group_id": self.group,
            "member_id": self.member,
            "member_epoch": epoch,
            "subscribed_topic_names": (self.topic,) if epoch == 0 else None,
        }
        return await self.client.ask(HEARTBEAT, 1, **{**usual, **given})

    async def join(self) -> None:
        """Joins, and waits for its assignment."""
        # Kafka makes the topic of its groups when a coordinator is asked for.
        await self.client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(self.group,))
        epoch = 0

        async def assigned() -> bool:
            nonlocal epoch
            answer = await self.heartbeat(epoch)
            # Not yet a coordinator: that topic is being made.
            assert answer.error_code.value == 0, answer
            epoch = answer.member_epoch
            found = answer.assignment.topic_partitions if answer.assignment else ()
            if found:
                self.client.topic_id = found[0].topic_id
            return bool(found)

        await eventually_async(assigned, 30, "an assignment")

    @property
    def topic_id(self) -> uuid.UUID:
        assert self.client.topic_id is not None
        return self.client.topic_id

    def topics(
        self, api_key: int, said: Sequence[Ack], partition: int = 0, topic_id: Any = None
    ) -> tuple[Any, ...]:
        """The topics of a request with acknowledgements of one partition."""
        module = module_of(api_key)
        topic, part = (
            (module.FetchTopic, module.FetchPartition)
            if api_key == FETCH
            else (module.AcknowledgeTopic, module.AcknowledgePartition)
        )
        batches = tuple(
            module.AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=tuple(types)
            )
            for first, last, types in said
        )
        parts = (part(partition_index=partition, acknowledgement_batches=batches),)
        return (topic(topic_id=topic_id or self.topic_id, partitions=parts),)

    async def fetch(self, *said: Ack, partition: int = 0, **given: Any) -> Answer:
        """A ShareFetch; `given` are its fields where they are not the usual ones."""
        usual = {
            "group_id": self.group,
            "member_id": self.member,
            "share_session_epoch": self.epoch,
            "max_wait": timedelta(seconds=1),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 5,
            "batch_size": 5,
            "share_acquire_mode": 1,
            "topics": self.topics(FETCH, said, partition),
            "forgotten_topics_data": (),
        }
        answer = await self._turn(FETCH, usual | given)
        of = {
            (self._name(topic.topic_id), part.partition_index): (
                int(part.error_code),
                int(part.acknowledge_error_code),
            )
            for topic in answer.responses
            for part in topic.partitions
        }
        found = fetched(answer)
        acquired = found[0].acquired if 0 in found else []
        told = {place: codes for place, codes in of.items() if place[1] or any(codes)}
        return Answer(int(answer.error_code), told, acquired)

    async def acknowledge(self, *said: Ack, partition: int = 0, **given: Any) -> Answer:
        """A ShareAcknowledge; `given` as of `fetch`."""
        usual = {
            "group_id": self.group,
            "member_id": self.member,
            "share_session_epoch": self.epoch,
            "topics": self.topics(ACKNOWLEDGE, said, partition),
        }
        answer = await self._turn(ACKNOWLEDGE, usual | given)
        of = {
            (self._name(topic.topic_id), part.partition_index): (0, int(part.error_code))
            for topic in answer.responses
            for part in topic.partitions
        }
        return Answer(int(answer.error_code), of)

    async def _turn(self, api_key: int, values: dict[str, Any]) -> Any:
        version = values.pop("version", 2)
        schema: Any = load_request_schema(api_key, version)
        names = set(schema.__dataclass_fields__)
        answer = await self.client.ask(
            api_key, version, **{name: value for name, value in values.items() if name in names}
        )
        if answer.error_code.value == 0 and values["share_session_epoch"] == self.epoch:
            self.epoch += 1
        return answer

    def _name(self, topic_id: Any) -> str:
        return "topic" if topic_id == self.client.topic_id else "other"


async def connected(address: str, topic: str) -> Hand:
    """A member on a new connection that has not joined."""
    host, port = address.rsplit(":", 1)
    return Hand(Client(*await asyncio.open_connection(host, int(port))), topic)
