"""A client of the Kafka port by hand, over a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.records.readers import read_batch
from kio.serial import entity_reader

from sharecoord.api.kafka.server import KafkaPort
from sharecoord.config.endpoints import TcpAddress
from sharecoord.runtime.admin.operators import Operators
from sharecoord.runtime.coordinator import Coordinator
from tests.unit.api.kafka.messages import frame_of
from tests.unit.runtime.fleets import admin_of
from tests.world import World, running

HEARTBEAT, FETCH, ACKNOWLEDGE = 76, 78, 79
HANDSHAKE, AUTHENTICATE = 17, 36
REQUEST_BYTES_MAX = 1 << 20
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4

Said = Mapping[int, Sequence[tuple[int, int, int | tuple[int, ...]]]]
"""Acknowledgements by partition: first and last offset, and the type, or a type for each offset."""


class Fetched(NamedTuple):
    """What came of one partition."""

    acquired: list[tuple[int, int, int]]
    """First and last offset, delivery count."""
    offsets: list[int]
    """Of the records that came, acquired or not."""
    acknowledge_error: int


class Client:
    """One connection; answers come in the order of the requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.topic_id: UUID | None = None
        self._turn = asyncio.Lock()
        self._group, self._member = "g", "m"

    async def raw(self, frame: bytes) -> bytes:
        """Sends a request and returns its answer, both without their lengths."""
        self.writer.write(struct.pack(">i", len(frame)) + frame)
        async with self._turn:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def ask(self, api_key: int, version: int, **values: Any) -> Any:
        """Sends a request; returns its answer as kio reads it."""
        request: Any = load_request_schema(api_key, version)
        found = await self.raw(frame_of(request(**values)))
        answer: Any = load_response_schema(api_key, version)
        header, at = entity_reader(answer.__header_schema__)(found, 0)
        assert header.correlation_id == 7
        body, size = entity_reader(answer)(found, at)
        assert at + size == len(found)
        return body

    async def heartbeat(self, epoch: int, *topics: str, member: str = "m") -> Any:
        """Joins with epoch 0, leaves with -1."""
        self._member = member
        answer = await self.ask(
            HEARTBEAT,
            1,
            group_id=self._group,
            member_id=member,
            member_epoch=epoch,
            subscribed_topic_names=topics or None,
        )
        if answer.assignment is not None and answer.assignment.topic_partitions:
            self.topic_id = answer.assignment.topic_partitions[0].topic_id
        return answer

    async def fetch(
        self,
        epoch: int,
        *,
        said: Said | None = None,
        partitions: Sequence[int] = (0,),
        records: int = 500,
        wait_ms: int = 500,
        is_exact: bool = False,
        forgotten: Sequence[int] = (),
        **given: Any,
    ) -> Any:
        """A ShareFetch of version 2; `given` are more of its fields."""
        usual = {
            "group_id": self._group,
            "member_id": self._member,
            "share_session_epoch": epoch,
            "max_wait": timedelta(milliseconds=wait_ms),
            "min_bytes": 1,
            "max_bytes": 50 << 20,
            "max_records": records,
            "batch_size": records,
            "share_acquire_mode": int(is_exact),
            "topics": self._topics(FETCH, {**dict.fromkeys(partitions, ()), **(said or {})}),
            "forgotten_topics_data": self._forgotten(forgotten),
        }
        return await self.ask(FETCH, 2, **(usual | given))

    async def acknowledge(self, epoch: int, said: Said, **given: Any) -> Any:
        """A ShareAcknowledge of version 2; `given` are more of its fields."""
        usual = {
            "group_id": self._group,
            "member_id": self._member,
            "share_session_epoch": epoch,
            "topics": self._topics(ACKNOWLEDGE, said),
        }
        return await self.ask(ACKNOWLEDGE, 2, **(usual | given))

    def _topics(self, api_key: int, said: Said) -> tuple[Any, ...]:
        module = module_of(api_key)
        topic, partition = (
            (module.FetchTopic, module.FetchPartition)
            if api_key == FETCH
            else (module.AcknowledgeTopic, module.AcknowledgePartition)
        )
        parts = tuple(
            partition(
                partition_index=number,
                acknowledgement_batches=tuple(
                    module.AcknowledgementBatch(
                        first_offset=first,
                        last_offset=last,
                        acknowledge_types=(kind,) if isinstance(kind, int) else kind,
                    )
                    for first, last, kind in ranges
                ),
            )
            for number, ranges in said.items()
        )
        return (topic(topic_id=self.topic_id, partitions=parts),) if parts else ()

    def _forgotten(self, partitions: Sequence[int]) -> tuple[Any, ...]:
        of = module_of(FETCH).ForgottenTopic
        found = of(topic_id=self.topic_id, partitions=tuple(partitions))
        return (found,) if partitions else ()

    async def sasl(self, mechanism: str, message: bytes) -> Any:
        """Begins an exchange of SASL; the answer to its first message."""
        answer = await self.ask(HANDSHAKE, 1, mechanism=mechanism)
        assert answer.error_code.value == 0, answer
        return await self.authenticate(message)

    async def authenticate(self, message: bytes) -> Any:
        """A message of an exchange of SASL."""
        return await self.ask(AUTHENTICATE, 2, auth_bytes=message)

    async def ended(self) -> bool:
        """Waits until the coordinator has ended the connection."""
        try:
            return await self._reader.read(1) == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        """Ends the connection."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def module_of(api_key: int) -> Any:
    """Where kio has the parts of a request."""
    import sys

    return sys.modules[load_request_schema(api_key, 2).__module__]


def fetched(answer: Any) -> dict[int, Fetched]:
    """What a ShareFetch brought, by partition."""
    found = {}
    for topic in answer.responses:
        for part in topic.partitions:
            acquired = [(r.first_offset, r.last_offset, r.delivery_count)
                        for r in part.acquired_records]  # fmt: skip
            offsets: list[int] = []
            data, at = bytes(part.records or b""), 0
            while at < len(data):
                batch, size = read_batch(data, at)
                offsets += (record.offset for record in batch.records)
                at += size
            found[part.partition_index] = Fetched(acquired, offsets, part.acknowledge_error_code)
    return found


class Port:
    """A coordinator with a Kafka port, and its clients."""

    def __init__(
        self,
        world: World,
        coordinator: Coordinator,
        operators: Operators,
        kafka: KafkaPort,
        address: TcpAddress,
    ) -> None:
        self.world, self.coordinator, self.address = world, coordinator, address
        self.kafka = kafka
        self.operators = operators
        self._clients: list[Client] = []

    async def connect(self, tls: ssl.SSLContext | None = None, port: int = 0) -> Client:
        """One more connection; 0 = to the port that was opened first."""
        host, port = self.address.host, port or self.address.port
        self._clients.append(Client(*await asyncio.open_connection(host, port, ssl=tls)))
        return self._clients[-1]

    async def joined(self, member: str = "m", client: Client | None = None) -> Client:
        """A connection of a member of `orders`, which knows its assignment."""
        client = client or await self.connect()
        answer = await client.heartbeat(0, "orders", member=member)
        assert (answer.error_code.value, answer.member_epoch) == (0, 1), answer.error_message
        assert client.topic_id is not None
        return client

    async def close(self) -> None:
        """Ends the connections."""
        for client in self._clients:
            await client.close()


@contextlib.asynccontextmanager
async def port_at(world: World, coordinator: Coordinator, **options: Any) -> AsyncIterator[Port]:
    """The Kafka port of a coordinator that runs; it gets these options."""
    operators = Operators(admin_of(coordinator), coordinator)
    port = KafkaPort(
        coordinator,
        operators,
        world.log.cluster,
        request_bytes_max=REQUEST_BYTES_MAX,
        **options,
    )
    made = Port(world, coordinator, operators, port, await port.start(TcpAddress("127.0.0.1", 0)))
    try:
        yield made
    finally:
        await made.close()
        await port.close()


@contextlib.asynccontextmanager
async def port_of(world: World, **options: Any) -> AsyncIterator[Port]:
    """A coordinator of this world with a Kafka port, which gets these options."""
    async with (
        running(world) as coordinator,
        asyncio.timeout(30),
        port_at(world, coordinator, **options) as port,
    ):
        yield port
