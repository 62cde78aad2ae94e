"""The listener of the Kafka port, and which function answers which API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sharecoord.api.kafka import codec
from sharecoord.api.kafka.administration import Administration
from sharecoord.api.kafka.cluster import Cluster
from sharecoord.api.kafka.codec import Head
from sharecoord.api.kafka.configs import Configs
from sharecoord.api.kafka.connection import Connection
from sharecoord.api.kafka.fetching import Fetching, Parts
from sharecoord.api.kafka.membership import Membership
from sharecoord.api.kafka.topics import Topics
from sharecoord.api.kafka.unserved import Unserved
from sharecoord.config.endpoints import TcpAddress
from sharecoord.errors import InvalidConfigError
from sharecoord.runtime.admin.operators import Operators
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.security.principals import Caller

SETTING: Final = "kafka.port.listen"


class KafkaPort:
    """Serves share consumers that speak Kafka's protocol."""

    def __init__(
        self,
        coordinator: Coordinator,
        operators: Operators,
        cluster_id: str,
        *,
        request_bytes_max: int,
    ) -> None:
        """Does not listen yet."""
        self._coordinator = coordinator
        self._operators = operators
        self._cluster_id = cluster_id
        self._request_bytes_max = request_bytes_max
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._cluster: Cluster
        self._membership: Membership
        self._fetching: Fetching
        self._unserved = Unserved()
        self._topic_calls: Mapping[int, Callable[..., Awaitable[Any]]]
        self._operator_calls: Mapping[int, Callable[..., Awaitable[Any]]]

    async def start(self, address: TcpAddress) -> TcpAddress:
        """Listens; returns where.

        Raises:
            InvalidConfigError: The address can not be had.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connect, address.host, address.port)
        except OSError as error:
            raise InvalidConfigError(
                f"{SETTING}: can not listen on {address}: {error.strerror or error}"
            ) from error
        port = self._server.sockets[0].getsockname()[1]
        context, bound = self._coordinator.context, TcpAddress(address.host, port)
        self._cluster = Cluster(self._cluster_id, bound)
        self._membership = Membership(self._coordinator.groups, self._cluster)
        self._fetching = Fetching(context, self._membership, self._cluster)
        self._topic_calls = _topic_calls(Topics(context.catalog, self._cluster))
        self._operator_calls = _operator_calls(
            Administration(self._operators, self._cluster), Configs(self._operators)
        )
        return bound

    async def close(self) -> None:
        """Ends the listener and its connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()

    def _connect(self) -> Connection:
        connection = Connection(
            self._answer, request_bytes_max=self._request_bytes_max, ended=self._disconnected
        )
        self._connections.add(connection)
        return connection

    def _disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._membership.disconnected(connection)

    async def _answer(self, connection: Connection, head: Head, frame: memoryview) -> Parts:
        if not codec.is_served(head):
            if head.api_key == codec.API_VERSIONS:
                # In the oldest form, which every client reads (KIP-511).
                oldest = head._replace(version=0)
                refusal = self._cluster.api_versions(oldest, ErrorCode.unsupported_version)
                return [codec.answer_of(oldest, refusal)]
            raise self._unserved.refuse(head, connection.address)
        client_id, request = codec.read(head, frame)
        if head.api_key == codec.SHARE_FETCH:
            return await self._fetching.fetch(head, request, connection)
        body = await self._body(connection, head, client_id, request)
        return [codec.answer_of(head, body)]

    async def _body(self, connection: Connection, head: Head, client_id: str, request: Any) -> Any:
        caller = Caller(address=connection.address)
        match head.api_key:
            case codec.SHARE_GROUP_HEARTBEAT:
                return await self._membership.heartbeat(
                    head, request, client_id, caller, connection.software
                )
            case codec.SHARE_ACKNOWLEDGE:
                return await self._fetching.acknowledge(head, request)
            case codec.API_VERSIONS:
                return self._cluster.greeted(head, request, connection)
            case codec.FIND_COORDINATOR:
                return self._cluster.find_coordinator(head, request)
            case codec.DESCRIBE_CLUSTER:
                return self._cluster.describe_cluster(head, request)
            case codec.PRODUCE:
                return self._unserved.produced(head, request, connection.address)
            case codec.FETCH:
                return await self._unserved.fetched(head, request, connection.address)
            case key if key in self._topic_calls:
                return await self._topic_calls[key](head, request)
            case key:
                return await self._operator_calls[key](head, request, caller)


def _topic_calls(topics: Topics) -> dict[int, Callable[..., Awaitable[Any]]]:
    """What answers questions about topics, by API."""
    return {
        codec.METADATA: topics.metadata,
        codec.LIST_OFFSETS: topics.list_offsets,
        codec.DESCRIBE_TOPIC_PARTITIONS: topics.partitions,
    }


def _operator_calls(
    administration: Administration, configs: Configs
) -> dict[int, Callable[..., Awaitable[Any]]]:
    """What answers operators, by API."""
    return {
        codec.LIST_GROUPS: administration.list_groups,
        codec.DESCRIBE_GROUPS: administration.describe_classic,
        codec.SHARE_GROUP_DESCRIBE: administration.describe_groups,
        codec.DESCRIBE_SHARE_GROUP_OFFSETS: administration.describe_offsets,
        codec.ALTER_SHARE_GROUP_OFFSETS: administration.alter_offsets,
        codec.DELETE_SHARE_GROUP_OFFSETS: administration.delete_offsets,
        codec.DELETE_GROUPS: administration.delete_groups,
        codec.DESCRIBE_CONFIGS: configs.describe,
        codec.INCREMENTAL_ALTER_CONFIGS: configs.alter,
        codec.LIST_CONFIG_RESOURCES: configs.list_resources,
    }
