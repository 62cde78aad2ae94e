"""The listener of the Kafka port, and which function answers which API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sharecoord.api.kafka import codec
from sharecoord.api.kafka.administration import Administration
from sharecoord.api.kafka.cluster import Cluster
from sharecoord.api.kafka.codec import Head
from sharecoord.api.kafka.configs import Configs
from sharecoord.api.kafka.connections.connection import Connection, Parts
from sharecoord.api.kafka.connections.listener import Listener
from sharecoord.api.kafka.connections.login import Access, Login
from sharecoord.api.kafka.connections.strangers import Strangers
from sharecoord.api.kafka.fetching import Fetching
from sharecoord.api.kafka.membership import Membership
from sharecoord.api.kafka.passthrough.joining import Joining
from sharecoord.api.kafka.passthrough.nodes import NodePorts
from sharecoord.api.kafka.passthrough.passing import OURS, Passing
from sharecoord.api.kafka.topic_ids import TopicIds
from sharecoord.api.kafka.topics import Topics
from sharecoord.api.kafka.unserved import Unserved, name_of
from sharecoord.config.endpoints import TcpAddress
from sharecoord.config.process_settings import KafkaPortConfig
from sharecoord.errors import InvalidConfigError
from sharecoord.ports import Brokers
from sharecoord.runtime.admin.operators import Operators
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.security.authenticator import Authenticator
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import KeyPair
from sharecoord.security.principals import Caller

SETTING: Final = "kafka.port.listen"
PORTS_SETTING: Final = "kafka.port.passthrough.ports"
DEFAULTS: Final = KafkaPortConfig()

_FOR_STRANGERS: Final = (codec.API_VERSIONS, codec.SASL_HANDSHAKE, codec.SASL_AUTHENTICATE)
"""APIs that answer who has not proven anything yet."""


class KafkaPort:
    """Serves share consumers that speak Kafka's protocol."""

    def __init__(
        self,
        coordinator: Coordinator,
        operators: Operators,
        cluster_id: str,
        *,
        request_bytes_max: int,
        authenticator: Authenticator | None = None,
        pair: WatchedFiles[KeyPair] | None = None,
        config: KafkaPortConfig = DEFAULTS,
        brokers: Brokers | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Does not listen yet.

        Args:
            coordinator: The coordinator behind it.
            operators: Give commands for callers.
            cluster_id: Of Kafka.
            request_bytes_max: Largest request of a client that is known.
            authenticator: Checks who connects; None = nobody is asked.
            pair: What the port shows to who connects, with a context; None = it speaks clear text.
            config: Limits of connections.
            brokers: To whom what is not served here is passed on; None = it is refused.
            now_s: A clock that never goes back.
        """
        self._coordinator = coordinator
        self._cluster_id = cluster_id
        self._request_bytes_max = request_bytes_max
        context = coordinator.context
        self._access = Access(
            authenticator or Authenticator(), context.guard, config.connections_max_reauth_ms
        )
        most = min(config.max_connections, context.files.limit // 2)
        self.strangers = Strangers(most, config.max_connections_per_ip, now_s)
        self.listener = Listener(config, self.strangers, pair)
        ids = TopicIds(cluster_id)
        self._membership = Membership(
            coordinator.groups, ids, context.guard.quotas, in_fleet=context.in_fleet
        )
        self._fetching = Fetching(context, self._membership, ids)
        self._topics = Topics(context.catalog, ids, context.guard)
        self._unserved = Unserved(self.strangers)
        self._calls = _calls(self._topics, Administration(operators, ids), Configs(operators))
        self._config = config
        self._passing: Passing | None = None
        if brokers is not None:
            self._passing = self._passing_to(brokers)
        context.tasks.keep("kafka-port", self.listener.run)
        context.tasks.spawn(asyncio.to_thread(codec.load_usual), "kafka-port-codec")

    def _passing_to(self, brokers: Brokers) -> Passing:
        context = self._coordinator.context

        async def has_group(group_id: str) -> bool:
            return await context.calls.group(group_id) is not None

        async def open_port(node: int, address: TcpAddress, advertised: TcpAddress) -> None:
            await self._open(address, advertised, node, PORTS_SETTING)

        return Passing(
            NodePorts(brokers, open_port),
            context.guard,
            self._topics,
            Joining(brokers, self._calls, has_group),
            self.strangers,
        )

    async def start(self, address: TcpAddress, advertised: TcpAddress | None = None) -> TcpAddress:
        """Listens at one more address; returns where.

        Args:
            address: Where; port 0 = any.
            advertised: Where members reach it; None = there.

        Raises:
            InvalidConfigError: The address can not be had.
        """
        bound = await self._open(address, advertised, None, SETTING)
        if self._passing is not None:
            first = self._config.passthrough_ports or bound.port + 1
            told = advertised or bound
            await self._passing.ports.start(address.host, told.host, first)
        return bound

    async def _open(
        self, address: TcpAddress, advertised: TcpAddress | None, node: int | None, setting: str
    ) -> TcpAddress:
        """Listens at an address, for a broker of Kafka or for none of them alone."""
        cluster = Cluster(self._cluster_id, self._coordinator.context.guard, node)
        try:
            port = await self.listener.start(address, partial(self._connect, cluster))
        except OSError as error:
            raise InvalidConfigError(
                f"{setting}: can not listen on {address}: {error.strerror or error}"
            ) from error
        bound = TcpAddress(address.host, port)
        cluster.address = advertised or bound
        return bound

    async def close(self) -> None:
        """Ends the listener and its connections."""
        self.listener.close()

    def _connect(self, cluster: Cluster, gone: Callable[[Connection], None]) -> Connection:
        def ended(connection: Connection) -> None:
            gone(connection)
            if self._passing is not None:
                self._passing.disconnected(connection)
            self._membership.disconnected(connection)

        return Connection(
            partial(self._answer, cluster),
            request_bytes_max=self._request_bytes_max,
            login=partial(Login, self._access),
            ended=ended,
            strangers=self.strangers,
            **({} if self._passing is None else {"is_silent": codec.is_silent}),
        )

    async def _answer(
        self, cluster: Cluster, connection: Connection, head: Head, frame: memoryview
    ) -> Parts | asyncio.Future[Parts]:
        if self._passing is not None and head.api_key not in OURS:
            caller = await connection.login.caller(name_of(head))
            return await self._passing.answer(cluster, connection, head, frame, caller)
        if not codec.is_served(head):
            if head.api_key == codec.API_VERSIONS:
                # In the oldest form, which every client reads (KIP-511).
                oldest = head._replace(version=0)
                refusal = cluster.api_versions(oldest, ErrorCode.unsupported_version)
                return [codec.answer_of(oldest, refusal)]
            raise self._unserved.refuse(head)
        if not codec.is_loaded(head):
            await asyncio.to_thread(codec.load, *head[:2])
        if head.api_key in _FOR_STRANGERS:
            body = await self._for_strangers(cluster, connection, head, frame)
            return [codec.answer_of(head, body)]
        # First: of those who may not call nothing more is read.
        caller = await connection.login.caller(codec.name_of(head))
        client_id, request = codec.read(head, frame)
        if head.api_key == codec.SHARE_FETCH:
            return await self._fetching.fetch(head, request, connection, caller, cluster.node)
        if head.api_key == codec.SHARE_ACKNOWLEDGE:
            return await self._fetching.acknowledge(head, request, caller, cluster.node)
        if head.api_key == codec.SHARE_GROUP_HEARTBEAT:
            software = connection.software
            body = await self._membership.heartbeat(head, request, client_id, caller, software)
            # Java's client keeps a connection to its coordinator as long as that does.
            connection.is_over = body.error_code is ErrorCode.not_coordinator
        else:
            body = await self._body(cluster, head, request, caller)
        return [codec.answer_of(head, body)]

    async def _for_strangers(
        self, cluster: Cluster, connection: Connection, head: Head, frame: memoryview
    ) -> Any:
        _, request = codec.read(head, frame)
        match head.api_key:
            case codec.API_VERSIONS:
                found = cluster.greeted(head, request, connection)
                if self._passing is None or found.error_code is not ErrorCode.none:
                    return found
                return await self._passing.greeted(cluster, head)
            case codec.SASL_HANDSHAKE:
                return connection.login.handshake(head, request)
            case _:
                return await connection.login.authenticate(head, request)

    async def _body(self, cluster: Cluster, head: Head, request: Any, caller: Caller) -> Any:
        match head.api_key:
            case codec.METADATA:
                topics = await self._topics.metadata(head, request, caller)
                return cluster.metadata(head, request, topics)
            case codec.FIND_COORDINATOR:
                return cluster.find_coordinator(head, request, caller)
            case codec.DESCRIBE_CLUSTER:
                return cluster.describe_cluster(head, request)
            case codec.PRODUCE:
                return self._unserved.produced(head, request, caller.address)
            case codec.FETCH:
                return await self._unserved.fetched(head, request, caller.address)
            case key:
                return await self._calls[key](head, request, caller)


def _calls(
    topics: Topics, administration: Administration, configs: Configs
) -> dict[int, Callable[..., Awaitable[Any]]]:
    """The functions that answer questions about topics, and operators, by API."""
    return {
        codec.LIST_OFFSETS: topics.list_offsets,
        codec.DESCRIBE_TOPIC_PARTITIONS: topics.partitions,
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
