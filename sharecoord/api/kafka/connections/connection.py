"""Connections of the Kafka port: requests one after the other, answers in their order."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from sharecoord.api.kafka.codec import Head, ProtocolError, head_of
from sharecoord.api.kafka.connections.login import Login
from sharecoord.api.kafka.connections.strangers import STRANGER_BYTES_MAX, Strangers, looks_like

log = structlog.get_logger(__name__)

Parts = list[bytes | memoryview]
"""An answer in pieces, which are written one behind the other."""

Answer = Callable[["Connection", Head, memoryview], Awaitable[Parts | asyncio.Future[Parts]]]
"""Answers a request. A future stands for the answer to a request that is decided and waits for its
commit alone: the next request is decided meanwhile, so that both go into one commit."""

SCRATCH_BYTES: Final = 64 << 10
"""Bytes that are received at once; they are copied before the next connection receives any."""

DECIDED_MAX: Final = 8
"""Requests of a connection that wait for their commits at the same time; clients send one or two
acknowledgements before their next fetch."""

UNANSWERED: Final = "Kafka port: a request could not be answered"

_LENGTH: Final = struct.Struct(">i")
# A view, no bytearray: asyncio takes slices of it to receive more behind what came, over TLS.
_scratch: Final = memoryview(bytearray(SCRATCH_BYTES))


class Connection(asyncio.BufferedProtocol):
    """Reads requests, and hands each on once the one before is decided; answers keep order."""

    def __init__(
        self,
        answer: Answer,
        *,
        request_bytes_max: int,
        login: Callable[[bytes, str], Login],
        ended: Callable[[Connection], None],
        strangers: Strangers,
        is_silent: Callable[[Head, memoryview], bool] = lambda head, frame: False,
    ) -> None:
        """Takes no request yet.

        Args:
            answer: Answers one request; a ProtocolError ends the connection.
            request_bytes_max: A larger request ends the connection before memory is taken for it.
            login: Begins with what the client has shown so far: its certificate, and its address.
            ended: Hears once that the connection is over.
            strangers: Hears why connections are ended from here.
            is_silent: Whether a request wants no answer. What came whole of such is done also when
                the client is gone meanwhile, as at a broker; a ProtocolError ends the connection.
        """
        self._is_silent = is_silent
        self._silent = False
        """Whether the request that is worked on wants no answer."""
        self._lingers = False
        """Whether the client is gone, and requests of it are still done."""
        self._answer = answer
        self._request_bytes_max = request_bytes_max
        self._begin = login
        self._ended = ended
        self._strangers = strangers
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._working: asyncio.Task[None] | None = None
        self._decided: deque[asyncio.Future[Parts]] = deque()
        """Answers that are not written yet, in the order of their requests."""
        self._writable = asyncio.Event()
        self._writable.set()
        self.address = ""
        self.software = ""
        """Name and version of the client, as it gives them itself; "" = it did not."""
        self.is_over = False
        """Whether the connection ends behind the present answer."""
        self.login: Login
        self.since_s = 0.0
        """When it began, by the loop's clock."""
        self.active_s = 0.0
        """When bytes came last, or an answer went."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport), "a stream"
        self._transport = transport
        host, port = transport.get_extra_info("peername")[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.since_s = self.active_s = self._strangers.now_s()
        tls = transport.get_extra_info("ssl_object")
        shown = None if tls is None else tls.getpeercert(binary_form=True)
        pem = b"" if shown is None else ssl.DER_cert_to_PEM_cert(shown).encode()
        self.login = self._begin(pem, self.address)

    @property
    def is_working(self) -> bool:
        """Whether a request is being answered, or its answer is being written."""
        return self._working is not None

    @property
    def _most_bytes(self) -> int:
        return self._request_bytes_max if self.login.is_known else STRANGER_BYTES_MAX

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio."""
        return _scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio."""
        self.received(_scratch[:nbytes])

    def received(self, data: bytes | bytearray | memoryview) -> None:
        """Takes in what the client has sent."""
        self._received += data
        self.active_s = self._strangers.now_s()
        assert self._transport is not None, "connected"
        if len(self._received) > self._most_bytes + _LENGTH.size:
            # A client sends its next request before it has an answer: it waits in the socket.
            self._transport.pause_reading()
        self._go_on()

    def _go_on(self) -> None:
        if self._working is None and (frame := self._next()) is not None:
            assert self._transport is not None, "connected"
            self._transport.resume_reading()
            self._working = asyncio.create_task(self._work(frame))

    def _next(self) -> memoryview | None:
        """The next request, when it has come whole."""
        if len(self._received) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._received)
        if not 0 < size <= self._most_bytes:
            self.end(
                looks_like(self._received)
                or f"a request of {size} bytes: at most {self._most_bytes} are read"
            )
            return None
        end = _LENGTH.size + size
        if len(self._received) < end:
            return None
        frame = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return memoryview(frame)

    def _linger(self) -> None:
        """Goes on with what the client, which is gone, wants no answer to."""
        frame = self._next()
        try:
            if frame is not None and self._is_silent(head_of(frame), frame):
                self._working = asyncio.create_task(self._work(frame))
                return
        except ProtocolError:
            # Who sent it does not hear of it any more.
            pass
        self.close()

    async def _work(self, frame: memoryview) -> None:
        try:
            head = head_of(frame)
            self._silent = self._is_silent(head, frame)
            answer = await self._answer(self, head, frame)
            if isinstance(answer, asyncio.Future):
                self._decided.append(answer)
                answer.add_done_callback(self._write_decided)
            elif answer:
                await self.in_turn()
                self._write(answer)
            while len(self._decided) >= DECIDED_MAX:
                await asyncio.wait([self._decided[0]])
                self._write_decided()
        except ProtocolError as error:
            self.end(str(error))
            return
        except Exception:
            log.exception(UNANSWERED, address=self.address)
            self.close()
            return
        await self._writable.wait()
        self.active_s = self._strangers.now_s()
        if (self.login.has_failed or self.is_over) and self._transport is not None:
            # The answer says why; what follows it is not read.
            self._transport.close()
            return
        self._working, self._silent = None, False
        if self._transport is not None:
            self._go_on()
        elif self._lingers:
            self._linger()

    async def in_turn(self) -> None:
        """Waits until the answers to all requests before are written."""
        while self._decided:
            await asyncio.wait([self._decided[0]])
            self._write_decided()

    async def write(self, parts: Parts) -> None:
        """Writes a piece of the answer whose turn it is; waits while the client reads slowly."""
        self._write(parts)
        await self._writable.wait()
        self.active_s = self._strangers.now_s()

    def _write_decided(self, _: object = None) -> None:
        while self._decided and self._decided[0].done():
            answer = self._decided.popleft()
            if not answer.cancelled():
                try:
                    self._write(answer.result())
                except ProtocolError as error:
                    self.end(str(error))
                except Exception:
                    log.exception(UNANSWERED, address=self.address)
                    self.close()

    def _write(self, parts: Parts) -> None:
        if self._transport is not None:
            self._transport.writelines(parts)

    def end(self, why: str) -> None:
        """Ends the connection, and says why in the log."""
        self._strangers.tell("Kafka port: a connection is ended", address=self.address, why=why)
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
        for answer in self._decided:
            answer.cancel()
        self._lingers = self._working is not None and self._silent
        if not self._lingers:
            if self._working is not None:
                self._working.cancel()
            self._ended(self)

    def close(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.abort()
        elif self._lingers:
            self._lingers = False
            self._ended(self)
