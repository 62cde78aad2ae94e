"""Passes requests that the port does not serve on to Kafka's brokers (`kafka.port.passthrough`).

Clients see Kafka's brokers by their ids, each at a port of this coordinator. Requests go to the
broker of the port as they are; where an answer names addresses, these are replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sharecoord import __version__
from sharecoord.api.kafka import codec
from sharecoord.api.kafka.cluster import NO_TIME, Cluster
from sharecoord.api.kafka.codec import VERSIONS, Head, ProtocolError, make
from sharecoord.api.kafka.connections.connection import Connection, Parts
from sharecoord.api.kafka.connections.strangers import Strangers
from sharecoord.api.kafka.passthrough.joining import Joining
from sharecoord.api.kafka.passthrough.nodes import NodePorts
from sharecoord.api.kafka.topics import Topics
from sharecoord.api.kafka.unserved import Unserved, name_of
from sharecoord.errors import SharecoordError
from sharecoord.ports import BrokerAddress, Passage
from sharecoord.security.actions import CLUSTER, Action
from sharecoord.security.guard import Guard, refusal
from sharecoord.security.principals import Caller

OURS: Final = frozenset(
    {
        codec.SASL_HANDSHAKE,
        codec.SASL_AUTHENTICATE,
        codec.API_VERSIONS,
        codec.SHARE_GROUP_HEARTBEAT,
        codec.SHARE_GROUP_DESCRIBE,
        codec.SHARE_FETCH,
        codec.SHARE_ACKNOWLEDGE,
        codec.DESCRIBE_SHARE_GROUP_OFFSETS,
        codec.ALTER_SHARE_GROUP_OFFSETS,
        codec.DELETE_SHARE_GROUP_OFFSETS,
    }
)
"""APIs that never reach Kafka."""

REWRITTEN: Final = {
    codec.PRODUCE: VERSIONS[codec.PRODUCE][1],
    # Later ones name addresses of leaders amid the records, and give plain consumers nothing else.
    codec.FETCH: 15,
    codec.METADATA: VERSIONS[codec.METADATA][1],
    codec.FIND_COORDINATOR: VERSIONS[codec.FIND_COORDINATOR][1],
    codec.LIST_GROUPS: VERSIONS[codec.LIST_GROUPS][1],
    codec.DESCRIBE_CONFIGS: VERSIONS[codec.DESCRIBE_CONFIGS][1],
    codec.DELETE_GROUPS: VERSIONS[codec.DELETE_GROUPS][1],
    codec.INCREMENTAL_ALTER_CONFIGS: VERSIONS[codec.INCREMENTAL_ALTER_CONFIGS][1],
    # Version 2 names addresses of controllers, to which no client may go from here.
    codec.DESCRIBE_QUORUM: 1,
    codec.DESCRIBE_CLUSTER: VERSIONS[codec.DESCRIBE_CLUSTER][1],
}
"""The last version of each API whose answers are changed, or may name addresses in a later one."""

CUT: Final = frozenset(
    {
        # Of brokers and controllers among each other: the coordinator's own identity may be let do
        # more there than a client is meant to.
        *(4, 5, 6, 7, 27, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 83, 84, 85, 86, 87),
        # Delegation tokens would be the coordinator's, and outlive the right to pass through.
        *(38, 39, 40, 41),
    }
)
"""APIs that are not passed on."""

ENDPOINTS_FROM: Final = 10
"""The version of Produce from which on answers name addresses of leaders."""

NAME: Final = "sharecoord"
"""The client id in requests to brokers that no client has written."""

GREETING_HELD_S: Final = 1.0
"""How long a broker's answer to ApiVersions holds."""

NOT_PASSED: Final = "it is none of the requests of clients that are passed on"

NEEDS: Final = "passing on to Kafka needs pass-through on the cluster (security.rules.file)"


@dataclass(eq=False)
class _Way:
    """A client's own connection to a broker."""

    passage: Passage | None = None
    has_silence: bool = False
    """Whether a request without an answer went over it: who sent it hears of a failure by the end
    of its connection alone."""


class Passing:
    """Passes requests on, as the rules let callers."""

    def __init__(
        self,
        ports: NodePorts,
        guard: Guard,
        topics: Topics,
        joining: Joining,
        strangers: Strangers,
    ) -> None:
        """Passes nothing on yet."""
        self.ports = ports
        self._brokers = ports.brokers
        self._guard = guard
        self._topics = topics
        self._joining = joining
        self._denied = Unserved(strangers, ErrorCode.topic_authorization_failed, NEEDS)
        self._unserved = Unserved(strangers, why=NOT_PASSED)
        self._ways: dict[Connection, _Way] = {}
        self._greetings: dict[tuple[int | None, int], tuple[float, Any]] = {}
        """Answers of brokers to ApiVersions by broker and version, and until when they hold."""

    def disconnected(self, connection: Connection) -> None:
        """A client is gone, and its connection to its broker goes with it."""
        way = self._ways.pop(connection, None)
        if way is not None and way.passage is not None:
            way.passage.close(flushes=way.has_silence)

    async def answer(
        self, door: Cluster, connection: Connection, head: Head, frame: memoryview, caller: Caller
    ) -> Parts | asyncio.Future[Parts]:
        """Answers a request that is none of `OURS`.

        Raises:
            ProtocolError: It is not passed on, or the broker can not be reached.
        """
        if head.api_key in CUT or head.version > REWRITTEN.get(head.api_key, head.version):
            raise self._unserved.refuse(head)
        decision = self._guard.decide(caller, Action.PASS_THROUGH, CLUSTER)
        try:
            match head.api_key:
                case codec.METADATA:
                    body = await self._metadata(
                        door, head, frame, caller, passes=decision.is_allowed
                    )
                case codec.DESCRIBE_CLUSTER:
                    body = await self._describe_cluster(door, head, frame)
                case key if self._joining.serves(key):
                    body = await self._joining.answer(
                        door, head, frame, caller, passes=decision.is_allowed
                    )
                case _ if not decision.is_allowed:
                    return [codec.answer_of(head, await self._without(door, head, frame, caller))]
                case codec.FIND_COORDINATOR:
                    body = await self._find_coordinator(door, head, frame)
                case codec.PRODUCE:
                    return await self._produce(door, connection, head, frame)
                case _:
                    return await self._stream(door, connection, frame)
        except SharecoordError as error:
            raise ProtocolError(f"{name_of(head)} is not passed on: {error.message}") from error
        return [codec.answer_of(head, body)]

    # -- callers that may not --------------------------------------------------------------------

    async def _without(self, door: Cluster, head: Head, frame: memoryview, caller: Caller) -> Any:
        """The answer to who may not pass anything on; a share consumer needs no such right."""
        error = refusal(caller, Action.PASS_THROUGH, CLUSTER,
                        self._guard.decide(caller, Action.PASS_THROUGH, CLUSTER))  # fmt: skip
        if head.api_key == codec.FIND_COORDINATOR:
            # The ports of all brokers serve share groups.
            _, request = codec.read(head, frame)
            node = min(self._brokers.nodes, default=None) if door.node is None else door.node
            found = None if node is None else self.ports.address(node)
            if node is None or found is None:
                raise ProtocolError("no broker of Kafka is known")
            here = Cluster(door.cluster_id, self._guard, node)
            here.address = found
            return here.find_coordinator(head, request, caller)
        self._guard.tell(caller, name_of(head), error)
        if head.api_key in (codec.PRODUCE, codec.FETCH) and codec.is_served(head):
            _, request = codec.read(head, frame)
            if head.api_key == codec.PRODUCE:
                return self._denied.produced(head, request, caller.address)
            return await self._denied.fetched(head, request, caller.address)
        raise ProtocolError(f"{name_of(head)}: {error.message}")

    # -- answers that name addresses -------------------------------------------------------------

    async def greeted(self, door: Cluster, head: Head) -> Any:
        """The broker's answer to ApiVersions, with what is served here."""
        found = await self._greeting(door.node, head.version)
        theirs = {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}
        names = ("finalized_features_epoch", "finalized_features", "zk_migration_ready",
                 "supported_features")  # fmt: skip
        return make(
            head,
            "ApiVersionsResponse",
            error_code=found.error_code,
            api_keys=tuple(
                make(head, "ApiVersion", api_key=key, min_version=first, max_version=last)
                for key, (first, last) in sorted(versions_of(theirs).items())
            ),
            throttle_time=NO_TIME,
            **{name: getattr(found, name) for name in names if hasattr(found, name)},
        )

    async def _greeting(self, node: int | None, version: int) -> Any:
        """A broker's answer to ApiVersions; it is not asked again at once, as strangers ask."""
        key, now_s = (node, version), asyncio.get_running_loop().time()
        until_s, found = self._greetings.get(key, (now_s, None))
        if found is not None and now_s < until_s:
            return found
        try:
            versions = await self._brokers.versions(node)
            last = versions.get(codec.API_VERSIONS, (0, 0))[1]
            asked = Head(codec.API_VERSIONS, min(version, last), 0)
            request = codec.make_request(
                asked, client_software_name=NAME, client_software_version=__version__
            )
            frame = codec.frame_of(asked, NAME, request)
            found = codec.read_answer(asked, await self._brokers.ask(node, frame))
        except SharecoordError as error:
            raise ProtocolError(f"the broker is not reached: {error.message}") from error
        self._greetings[key] = now_s + GREETING_HELD_S, found
        return found

    async def _metadata(
        self, door: Cluster, head: Head, frame: memoryview, caller: Caller, *, passes: bool
    ) -> Any:
        request: Any = None
        if not passes:
            client_id, request = codec.read(head, frame)
            if hasattr(request, "allow_auto_topic_creation"):
                request = replace(request, allow_auto_topic_creation=False)
            frame = codec.frame_of(head, client_id, request)
        found = codec.read_answer(head, await self._brokers.ask(door.node, frame))
        if found.brokers:
            await self.ports.learn(_nodes(found.brokers, "node_id"))
        if request is not None:
            shown = (self._topics.shown(head, each, caller, request) for each in found.topics)
            found = replace(found, topics=tuple(each for each in shown if each is not None))
        return replace(found, brokers=self._here(found.brokers, "node_id"))

    async def _describe_cluster(self, door: Cluster, head: Head, frame: memoryview) -> Any:
        found = codec.read_answer(head, await self._brokers.ask(door.node, frame))
        await self.ports.learn_more(_nodes(found.brokers, "broker_id"))
        return replace(found, brokers=self._here(found.brokers, "broker_id"))

    async def _find_coordinator(self, door: Cluster, head: Head, frame: memoryview) -> Any:
        found = codec.read_answer(head, await self._brokers.ask(door.node, frame))
        several = [found] if head.version < 4 else found.coordinators
        some = [each for each in several if each.node_id >= 0]
        await self.ports.learn_more(_nodes(some, "node_id"))
        told = [self._coordinator(each) for each in several]
        return told[0] if head.version < 4 else replace(found, coordinators=tuple(told))

    def _coordinator(self, found: Any) -> Any:
        """A coordinator with its address here; one without says that it is not there."""
        here = self._here([found], "node_id")
        if here or found.node_id < 0:
            return here[0] if here else found
        away = ErrorCode.coordinator_not_available
        return replace(found, error_code=away, node_id=-1, host="", port=-1)

    def _here(self, brokers: Iterable[Any], name: str) -> tuple[Any, ...]:
        """The brokers among these that have a port here, with its address."""
        return tuple(
            replace(each, host=address.host, port=address.port)
            for each in brokers
            if (address := self.ports.address(getattr(each, name))) is not None
        )

    # -- passing on ------------------------------------------------------------------------------

    async def _passage(self, door: Cluster, connection: Connection) -> tuple[_Way, Passage]:
        """The client's own connection to its broker; a new one where the former has ended."""
        way = self._ways.setdefault(connection, _Way())
        if way.passage is None or not way.passage.is_open:
            await connection.in_turn()
            if way.passage is not None:
                way.passage.close()

            def lost() -> None:
                if way.has_silence:
                    connection.close()

            way.passage, way.has_silence = await self._brokers.open(door.node, lost), False
            if connection not in self._ways:
                way.passage.close()
                raise ProtocolError("the client is gone")
        return way, way.passage

    async def _produce(
        self, door: Cluster, connection: Connection, head: Head, frame: memoryview
    ) -> Parts | asyncio.Future[Parts]:
        """Records of a producer. Its next request goes on before this one is answered."""
        has_answer = not codec.is_silent(head, frame)
        way, passage = await self._passage(door, connection)
        way.has_silence |= not has_answer
        await passage.send(frame, has_answer=has_answer)
        if not has_answer:
            return []
        return asyncio.ensure_future(self._produced(head, passage))

    async def _produced(self, head: Head, passage: Passage) -> Parts:
        try:
            answer = await passage.answer()
        except SharecoordError as error:
            raise ProtocolError(f"Produce is not answered: {error.message}") from error
        if head.version >= ENDPOINTS_FROM:
            found = codec.read_answer(head, memoryview(answer)[8:])
            if found.node_endpoints:
                here = self._here(found.node_endpoints, "node_id")
                return [codec.answer_of(head, replace(found, node_endpoints=here))]
        return [answer]

    async def _stream(self, door: Cluster, connection: Connection, frame: memoryview) -> Parts:
        """Any request whose answer goes through in pieces, as the client takes them."""
        _, passage = await self._passage(door, connection)
        await passage.send(frame)
        await connection.in_turn()
        async with aclosing(passage.chunks()) as chunks:
            async for chunk in chunks:
                await connection.write([chunk])
        return []


def versions_of(theirs: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """The APIs that a client is told of: what is passed on of its broker's, and what is served."""
    found = {key: each for key, each in theirs.items() if key not in CUT}
    for key, last in REWRITTEN.items():
        if key in found:
            first, their_last = found[key]
            found[key] = max(first, VERSIONS.get(key, (0, 0))[0]), min(last, their_last)
    served = {key: VERSIONS[key] for key in (*OURS, codec.LIST_CONFIG_RESOURCES)}
    return {key: each for key, each in (found | served).items() if each[0] <= each[1]}


def _nodes(brokers: Iterable[Any], name: str) -> dict[int, BrokerAddress]:
    return {
        int(getattr(each, name)): BrokerAddress(
            each.host, int(each.port), getattr(each, "rack", None)
        )
        for each in brokers
    }
