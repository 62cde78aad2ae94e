"""Connections to brokers for requests that others have written, and which are passed on.

The log-in is ours; behind it bytes go through as they are. When a log-in has to be renewed
(KIP-368) the next request gets a new connection: what clients need of transactions, groups and
fetch sessions, brokers do not keep by connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final, TypeVar

from sharecoord.errors import KafkaUnavailableError, SharecoordError, UnauthenticatedError
from sharecoord.kafka.wire.broker import Broker
from sharecoord.kafka.wire.cluster import Cluster, Node
from sharecoord.kafka.wire.connection import Endpoint
from sharecoord.kafka.wire.faults import unavailable
from sharecoord.ports import BrokerAddress

T = TypeVar("T")

CHUNK_BYTES: Final = 256 << 10
"""A piece of an answer that is passed on; asyncio reads ahead twice as much and then waits."""

UNSENT_BYTES_MAX: Final = 256 << 10
"""Bytes of requests that a broker has not taken; the next request waits beyond it."""

ANSWER_BYTES_MAX: Final = 16 << 20
"""Largest answer that is taken as a whole: those to Produce, some bytes for each partition."""

FLUSH_S: Final = 10.0
"""A broker that has not taken by then what it owes no answer to does not get it."""

_SIZE_BYTES: Final = 4


class WireBrokers:
    """The brokers of a cluster; see `ports.Brokers`."""

    def __init__(self, cluster: Cluster) -> None:
        """Whoever made the cluster closes it."""
        self._cluster = cluster

    @property
    def nodes(self) -> Mapping[int, BrokerAddress]:
        """The brokers that are known, by their ids."""
        return {
            node_id: BrokerAddress(*node.endpoint, node.rack)
            for node_id, node in self._cluster.nodes.items()
        }

    def learn(self, nodes: Mapping[int, BrokerAddress]) -> None:
        """Takes in which brokers there are."""
        self._cluster.learn_nodes(
            {
                node_id: Node(Endpoint(each.host, each.port), each.rack)
                for node_id, each in nodes.items()
            }
        )

    async def refresh(self) -> None:
        """Asks which brokers there are."""
        await self._cluster.refresh()

    async def versions(self, node: int | None) -> Mapping[int, tuple[int, int]]:
        """The APIs of a broker, with first and last version."""

        async def of(broker: Broker) -> Mapping[int, tuple[int, int]]:
            await broker.connected()
            return broker.versions

        return await self._said(node, of)

    async def ask(self, node: int | None, frame: memoryview) -> memoryview:
        """The answer to a request, behind its correlation id."""

        async def of(broker: Broker) -> memoryview:
            return await broker.pass_on(frame)

        return await self._said(node, of)

    async def _said(self, node: int | None, of: Callable[[Broker], Awaitable[T]]) -> T:
        """The result of a call to a broker; without a node of the first one that can be reached."""
        if node is not None:
            return await self._at(node, lambda: of(self._cluster.shared(node)))
        why: SharecoordError = unavailable("no broker is known")
        for broker in self._cluster.candidates():
            try:
                return await of(broker)
            except (KafkaUnavailableError, UnauthenticatedError) as error:
                why = error
        raise why

    async def _at(self, node: int, call: Callable[[], Awaitable[T]]) -> T:
        """Calls a broker, a second time where it has moved meanwhile."""
        before = self._cluster.nodes.get(node)
        try:
            return await call()
        except KafkaUnavailableError:
            with contextlib.suppress(SharecoordError):
                await self._cluster.refresh()
            if self._cluster.nodes.get(node) in (before, None):
                raise
        return await call()

    async def open(self, node: int | None, lost: Callable[[], None]) -> WirePassage:
        """A connection of its own; `lost` hears when the broker has ended it."""
        if node is not None:
            return await self._at(node, lambda: self._opened(node, lost))
        nodes = list(self._cluster.nodes)
        random.shuffle(nodes)
        why: SharecoordError = unavailable("no broker is known")
        for each in nodes:
            try:
                return await self._opened(each, lost)
            except (KafkaUnavailableError, UnauthenticatedError) as error:
                why = error
        raise why

    async def _opened(self, node: int, lost: Callable[[], None]) -> WirePassage:
        broker = self._cluster.connect(node)
        try:
            return WirePassage(str(broker.endpoint), *await broker.hand_over(), lost)
        finally:
            broker.close()


class WirePassage:
    """A connection to one broker for one client; see `ports.Passage`."""

    def __init__(
        self,
        name: str,
        transport: asyncio.Transport,
        until_s: float,
        lost: Callable[[], None],
    ) -> None:
        """Takes a connection that is logged in; its log-in holds until a time of the loop's."""
        self._name = name
        self._until_s = until_s
        self._loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(CHUNK_BYTES, self._loop)
        self._stream = _Stream(self._reader, lost)
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        transport.set_protocol(self._stream)
        self._stream.connection_made(transport)
        self._writer = asyncio.StreamWriter(transport, self._stream, self._reader, self._loop)
        self._due = 0
        """Requests whose answers have not come as a whole."""
        self._turn = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent. A log-in that runs out does not stop answers that come."""
        is_over = self._due == 0 and self._loop.time() >= self._until_s
        return not (self._stream.is_lost or self._writer.is_closing() or is_over)

    async def send(self, frame: memoryview, *, has_answer: bool = True) -> None:
        """Sends a request without its length; waits while the broker reads slowly."""
        self._due += has_answer
        self._writer.writelines((len(frame).to_bytes(_SIZE_BYTES, "big"), frame))
        try:
            await self._writer.drain()
        except OSError as error:
            raise self._ended() from error

    async def answer(self) -> bytes:
        """The next answer with its length."""
        # Who asks first gets the lock first, so answers go to those whose requests they answer.
        async with self._turn:
            head = await self._exactly(_SIZE_BYTES)
            size = int.from_bytes(head, "big", signed=True)
            if not 0 <= size <= ANSWER_BYTES_MAX:
                self.close()
                raise unavailable(f"{self._name} sent an answer of {size} bytes")
            body = await self._exactly(size)
            self._due -= 1
            return head + body

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The next answer with its length, in pieces; no more is read than is taken."""
        async with self._turn:
            head = await self._exactly(_SIZE_BYTES)
            left = int.from_bytes(head, "big", signed=True)
            yield head
            while left > 0:
                chunk = await self._reader.read(min(left, CHUNK_BYTES))
                if not chunk:
                    raise self._ended()
                left -= len(chunk)
                yield chunk
            self._due -= 1

    async def _exactly(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._ended() from error

    def _ended(self) -> KafkaUnavailableError:
        return unavailable(f"{self._name} has closed the connection")

    def close(self, *, flushes: bool = False) -> None:
        """Ends it, when it `flushes` once the broker has taken what was sent."""
        self._stream.lost = lambda: None
        if flushes:
            self._writer.close()
            self._loop.call_later(FLUSH_S, self._writer.transport.abort)
        else:
            self._writer.transport.abort()


class _Stream(asyncio.StreamReaderProtocol):
    """Tells when the broker has ended the connection."""

    def __init__(self, reader: asyncio.StreamReader, lost: Callable[[], None]) -> None:
        super().__init__(reader)
        self.lost = lost
        self.is_lost = False

    def eof_received(self) -> bool:
        """Called by asyncio: a broker that says no more gets no more either."""
        super().eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        super().connection_lost(exc)
        self.is_lost = True
        self.lost()
