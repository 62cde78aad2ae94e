"""Where clients connect: a place for each within limits, TLS, and an end for those that are silent.

A connection is counted before TLS is spoken, so that who never ends the handshake counts as well.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from sharecoord.api.kafka.connections.connection import Connection
from sharecoord.api.kafka.connections.strangers import Strangers
from sharecoord.config.endpoints import TcpAddress
from sharecoord.config.process_settings import KafkaPortConfig
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import KeyPair

Make = Callable[[Callable[[Connection], None]], Connection]
"""Makes a connection, which says when it is over."""

LOOK_INTERVAL_S: Final = 1.0
"""How often connections are looked at."""

WORKING_IDLE_S_MIN: Final = 60.0
"""A request is answered within half of it: who is silent for longer does not read its answer."""

BACKLOG: Final = 1_024
"""Connections that wait to be taken: thousands of members come back at a time after a restart."""

GOODBYE_S: Final = 5.0
"""Longest wait for the client's end of TLS."""

_REASONS: Final = {
    "HTTP_REQUEST": "the client speaks HTTP without TLS",
    "WRONG_VERSION_NUMBER": "the client speaks no TLS, or a version that is not spoken any more "
    "(security.protocol of it must be SSL or SASL_SSL)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate, and "
    "tls.client.ca.file wants one",
}


class Listener:
    """Takes connections in, and ends those that say nothing."""

    def __init__(
        self,
        limits: KafkaPortConfig,
        strangers: Strangers,
        pair: WatchedFiles[KeyPair] | None,
    ) -> None:
        """Does not listen yet.

        Args:
            limits: How long connections may be silent.
            strangers: How many there may be.
            pair: What the listener shows; None = it speaks clear text.
        """
        self._timeout_s = limits.authentication_timeout_ms / 1000
        self._idle_s = limits.connections_max_idle_ms / 1000
        self._strangers = strangers
        self._pair = pair
        self._servers: list[asyncio.Server] = []
        self._open: dict[Connection, str] = {}
        """Connections, and the host of each."""
        self._securing: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> Collection[Connection]:
        """The connections that are served: TLS, where it is spoken, is agreed on."""
        return self._open.keys()

    async def start(self, address: TcpAddress, make: Make) -> int:
        """Listens at one more address; returns the port.

        Args:
            address: Where.
            make: Makes a connection of a client that comes there.

        Raises:
            OSError: The address can not be had.
        """
        loop = asyncio.get_running_loop()
        come = partial(self._come, make)
        server = await loop.create_server(
            lambda: _Arrival(come), address.host, address.port, backlog=BACKLOG
        )
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def run(self) -> None:
        """Looks at the connections again and again."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Ends connections of which nobody knows whose they are, and those that are idle."""
        now_s = self._strangers.now_s()
        for each in list(self._open):
            if not each.login.is_known and now_s - each.since_s >= self._timeout_s:
                each.end("nobody has proven there who it is in time "
                         "(kafka.port.authentication.timeout.ms)")  # fmt: skip
            elif now_s - each.active_s >= self._idle_limit_s(each):
                each.end("it is idle (kafka.port.connections.max.idle.ms)")

    def _idle_limit_s(self, connection: Connection) -> float:
        return max(self._idle_s, WORKING_IDLE_S_MIN) if connection.is_working else self._idle_s

    def close(self) -> None:
        """Ends the listener and all connections."""
        for server in self._servers:
            server.close()
        for task in list(self._securing):
            task.cancel()
        for connection in list(self._open):
            connection.close()

    # -- one connection --------------------------------------------------------------------------

    def _come(self, make: Make, arrival: _Arrival, transport: asyncio.Transport) -> None:
        host = str(transport.get_extra_info("peername")[0])
        if not self._strangers.come(host):
            transport.abort()
        elif self._pair is None:
            self._serve(make, arrival, transport, host)
        else:
            transport.pause_reading()
            pair = self._pair.value
            task = asyncio.create_task(self._secure(make, arrival, transport, host, pair))
            self._securing.add(task)
            task.add_done_callback(self._securing.discard)

    async def _secure(
        self,
        make: Make,
        arrival: _Arrival,
        transport: asyncio.Transport,
        host: str,
        pair: KeyPair,
    ) -> None:
        """Agrees on TLS. The pair is that of now: each new connection gets the newest."""
        assert pair.context is not None, "asked for with the pair"
        loop, secured = asyncio.get_running_loop(), None
        try:
            secured = await loop.start_tls(
                transport,
                arrival,
                pair.context,
                server_side=True,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=GOODBYE_S,
            )
        except (OSError, ssl.SSLError) as error:
            self._strangers.tell("Kafka port: no TLS with a client", address=host, why=_why(error))
        finally:
            if secured is None or arrival.is_lost:
                transport.abort()
                self._strangers.go(host)
            else:
                self._serve(make, arrival, secured, host)

    def _serve(
        self, make: Make, arrival: _Arrival, transport: asyncio.Transport, host: str
    ) -> None:
        connection = make(self._gone)
        self._open[connection] = host
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if arrival.received:
            connection.received(arrival.received)

    def _gone(self, connection: Connection) -> None:
        self._strangers.go(self._open.pop(connection))


class _Arrival(asyncio.Protocol):
    """The first moments of a connection, until it is known who serves it."""

    def __init__(self, come: Callable[[_Arrival, asyncio.Transport], None]) -> None:
        self._come = come
        self.received = bytearray()
        """The bytes that came right behind the handshake: no more than one read."""
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport), "a stream"
        self._come(self, transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.is_lost = True


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", "") or ""
    return _REASONS.get(reason) or reason or str(error) or type(error).__name__
