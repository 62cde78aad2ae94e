"""Connections of the Kafka port: requests one after the other, answers in their order."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from sharecoord.api.kafka.codec import Head, ProtocolError, head_of

log = structlog.get_logger(__name__)

Answer = Callable[["Connection", Head, memoryview], Awaitable[list[bytes | memoryview]]]
"""Answers a request with pieces that are written one behind the other."""

_LENGTH: Final = struct.Struct(">i")


class Connection(asyncio.Protocol):
    """Reads requests, and hands each on once the one before is answered and written."""

    def __init__(
        self,
        answer: Answer,
        *,
        request_bytes_max: int,
        ended: Callable[[Connection], None],
    ) -> None:
        """Takes no request yet.

        Args:
            answer: Answers one request; a ProtocolError ends the connection.
            request_bytes_max: A larger request ends the connection before memory is taken for it.
            ended: Hears once that the connection is over.
        """
        self._answer = answer
        self._request_bytes_max = request_bytes_max
        self._ended = ended
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._working: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.address = ""
        self.software = ""
        """Name and version of the client, as it gives them itself; "" = it did not."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport), "a stream"
        self._transport = transport
        host, port = transport.get_extra_info("peername")[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._received += data
        assert self._transport is not None, "connected"
        if len(self._received) > self._request_bytes_max + _LENGTH.size:
            # A client sends its next request before it has an answer: it waits in the socket.
            self._transport.pause_reading()
        self._go_on()

    def _go_on(self) -> None:
        if self._working is None and len(self._received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            if not 0 < size <= self._request_bytes_max:
                self._break(
                    f"a request of {size} bytes: at most {self._request_bytes_max} are read"
                )
            elif len(self._received) >= _LENGTH.size + size:
                end = _LENGTH.size + size
                frame = bytes(self._received[_LENGTH.size : end])
                del self._received[:end]
                assert self._transport is not None, "connected"
                self._transport.resume_reading()
                self._working = asyncio.create_task(self._work(memoryview(frame)))

    async def _work(self, frame: memoryview) -> None:
        try:
            parts = await self._answer(self, head_of(frame), frame)
        except ProtocolError as error:
            self._break(str(error))
            return
        except Exception:
            log.exception("Kafka port: a request could not be answered", address=self.address)
            self.close()
            return
        if self._transport is not None and parts:
            self._transport.writelines(parts)
            await self._writable.wait()
        self._working = None
        if self._transport is not None:
            self._go_on()

    def _break(self, why: str) -> None:
        log.info("Kafka port: a connection is ended", address=self.address, why=why)
        self.close()

    def pause_writing(self) -> None:
        """Called by asyncio: the client reads slowly, so its next request waits."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        self._writable.set()
        if self._working is not None:
            self._working.cancel()
        self._ended(self)

    def close(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.abort()
