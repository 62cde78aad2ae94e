"""The listener of the Kafka port, and which function answers which API."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sharecoord.api.kafka import codec
from sharecoord.api.kafka.administration import Administration
from sharecoord.api.kafka.cluster import Cluster
from sharecoord.api.kafka.codec import Head, ProtocolError
from sharecoord.api.kafka.connection import Connection, Parts
from sharecoord.api.kafka.fetching import Fetching
from sharecoord.api.kafka.membership import Membership
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
        self._administration: Administration

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
        self._cluster = Cluster(context.catalog, self._cluster_id, bound)
        self._membership = Membership(self._coordinator.groups, self._cluster)
        self._fetching = Fetching(context, self._membership, self._cluster)
        self._administration = Administration(self._operators, self._cluster)
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

    async def _answer(
        self, connection: Connection, head: Head, frame: memoryview
    ) -> Parts | asyncio.Future[Parts]:
        if not codec.is_served(head):
            if head.api_key == codec.API_VERSIONS:
                # In the oldest form, which every client reads (KIP-511).
                oldest = head._replace(version=0)
                refusal = self._cluster.api_versions(oldest, ErrorCode.unsupported_version)
                return [codec.answer_of(oldest, refusal)]
            raise ProtocolError(f"API {head.api_key} version {head.version} is not served here")
        client_id, request = codec.read(head, frame)
        if head.api_key == codec.SHARE_FETCH:
            return await self._fetching.fetch(head, request, connection)
        if head.api_key == codec.SHARE_ACKNOWLEDGE:
            return await self._fetching.acknowledge(head, request)
        body = await self._body(connection, head, client_id, request)
        return [codec.answer_of(head, body)]

    async def _body(self, connection: Connection, head: Head, client_id: str, request: Any) -> Any:
        caller = Caller(address=connection.address)
        match head.api_key:
            case codec.API_VERSIONS:
                return self._cluster.api_versions(head)
            case codec.METADATA:
                return await self._cluster.metadata(head, request)
            case codec.FIND_COORDINATOR:
                return self._cluster.find_coordinator(head, request)
            case codec.DESCRIBE_CLUSTER:
                return self._cluster.describe_cluster(head)
            case codec.LIST_GROUPS:
                return await self._administration.list_groups(head, request, caller)
            case codec.SHARE_GROUP_DESCRIBE:
                return await self._administration.describe_groups(head, request, caller)
            case codec.DESCRIBE_SHARE_GROUP_OFFSETS:
                return await self._administration.describe_offsets(head, request, caller)
            case codec.DELETE_GROUPS:
                return await self._administration.delete_groups(head, request, caller)
            case codec.SHARE_GROUP_HEARTBEAT:
                return await self._membership.heartbeat(head, request, client_id, caller)
            case _:
                raise AssertionError(f"API {head.api_key} is in the table of versions")
