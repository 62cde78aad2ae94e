"""One connection to a broker: requests go out in order, and their answers come back in order.

A large answer is read into memory of its own, made when the announced length has been checked: its
bytes are copied once, from the kernel to the place where they stay. Small answers are read together
and copied once more. Memory that was handed out is never used again.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from sharecoord.errors import KafkaUnavailableError, SharecoordError
from sharecoord.kafka.wire.faults import unavailable, why_not_connected

SIZE_BYTES: Final = 4
HEAD_BYTES: Final = 8
"""Size and correlation id: both are checked before memory for an answer is made."""

SCRATCH_BYTES: Final = 64 << 10
"""Answers up to this size are read together, as many as come at a time. Larger ones have memory
of their own; a copy of 64 KiB takes 5 us, as much as a system call."""

RECEIVE_AT_ONCE_BYTES: Final = 256 << 10
"""Bytes of a large answer that the kernel gathers before it wakes the loop. A wake-up costs as much
as copying 100 KiB. The kernel makes its buffer large enough, or takes less (`tcp_set_rcvlowat`)."""

GREETING_BYTES_MAX: Final = 1 << 20
"""Largest answer before the broker is known to be one: versions and SASL take a few kilobytes."""

UNSENT_BYTES_MAX: Final = 256 << 10
"""Bytes of requests that the kernel has not taken yet; beyond it `writable` is False."""

NEXT_ADDRESS_S: Final = 0.25
"""An address that has not answered by then gets a rival (RFC 8305)."""

REQUESTS_MAX: Final = 1000
"""Requests in flight on a connection: a broker works on one at a time, so more only grow old."""


class Endpoint(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How a connection is made and kept."""

    answer_bytes_max: int = 100_000_000
    """A longer answer ends the connection before memory for it is made."""
    setup_timeout_s: float = 30.0
    """Longest time for looking up the name, for TCP and for TLS."""
    idle_s: float = 540.0
    """A connection without a request for so long is closed; 0 = never."""
    family: socket.AddressFamily = socket.AF_UNSPEC
    keepalive: bool = False


class _Waiting(NamedTuple):
    """A request without an answer yet."""

    correlation_id: int
    answer: asyncio.Future[memoryview]
    deadline_s: float
    timeout_s: float


class Connection(asyncio.BufferedProtocol):
    """An open connection. Whatever is not as it must be ends it, and fails all that waits.

    A late answer ends the connection, too: a broker answers in order, so all later answers would be
    late with it, and a peer that is gone without a word is left in no other way. A caller that
    stops waiting (cancellation) does not end it: its answer is dropped when it comes.
    """

    def __init__(self, endpoint: Endpoint, options: ConnectionOptions) -> None:
        self.endpoint = endpoint
        self.answer_bytes_max = min(GREETING_BYTES_MAX, options.answer_bytes_max)
        """Raised to that of the options by `trust`."""
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ended: SharecoordError | None = None
        self._correlation_id = 0
        self._waiting: deque[_Waiting] = deque()
        self._used_at_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._room = asyncio.Event()
        self._scratch = bytearray(SCRATCH_BYTES)
        self._scratched = 0
        """Bytes in `_scratch`, fewer than an answer has."""
        self._body: memoryview | None = None
        """An answer that is larger than `_scratch`, and is being read."""
        self._filled = 0
        self._untaken_bytes = 0
        """Memory of the last large answer, until its reader has taken it in."""
        self._socket: socket.socket | None = None
        """Where the kernel may be told how much to gather; None: with TLS, and not on Linux."""
        self._gathered_bytes = 1
        """Bytes that the kernel gathers now before it wakes the loop."""
        self._answers = 0
        self.lost = False
        """Whether the broker has ended the connection."""

    @classmethod
    async def open(
        cls, endpoint: Endpoint, options: ConnectionOptions, *, tls: ssl.SSLContext | None
    ) -> Connection:
        """Connects.

        Raises:
            KafkaUnavailableError: Nobody listens, or it takes too long.
            UnauthenticatedError: One side does not trust the certificate of the other.
        """
        loop = asyncio.get_running_loop()
        timeout_s = options.setup_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: cls(endpoint, options),
                    endpoint.host,
                    endpoint.port,
                    ssl=tls,
                    # Sent as SNI even where the name is not checked; the context says which.
                    server_hostname=endpoint.host if tls else None,
                    family=options.family,
                    # A name may have an address that nothing reaches: the next is tried beside it.
                    happy_eyeballs_delay=NEXT_ADDRESS_S,
                )
        except TimeoutError:
            what = f"{endpoint} did not answer within {timeout_s:g} s"
            fix = "is it reachable from here (kafka.socket.connection.setup.timeout.ms)?"
            raise unavailable(f"{what}; {fix}") from None
        except (OSError, UnicodeError) as error:
            raise why_not_connected(str(endpoint), error) from error
        if options.keepalive:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._ended is None and self._transport is not None

    @property
    def ended(self) -> SharecoordError | None:
        """Why the connection has ended; None while it is open."""
        return self._ended

    @property
    def receiving_bytes(self) -> int:
        """Memory of a large answer that is not all there, or that nobody has taken in yet."""
        return self._untaken_bytes + (0 if self._body is None else len(self._body))

    def taken(self) -> None:
        """The reader counts by itself what it keeps of the last answer."""
        self._untaken_bytes = 0

    @property
    def writable(self) -> bool:
        """Whether the next request goes out soon: the peer reads, and owes few answers."""
        return not self._paused and len(self._waiting) < REQUESTS_MAX

    async def until_writable(self) -> None:
        """Waits for room, or for the end of the connection."""
        while self._ended is None and not self.writable:
            self._room.clear()
            await self._room.wait()

    def trust(self) -> None:
        """The greeting is over: answers may be as large as configured."""
        self.answer_bytes_max = self._options.answer_bytes_max

    def send(self, head: bytes, body: bytes, *, timeout_s: float) -> asyncio.Future[memoryview]:
        """Sends a request; the answer is all that comes behind the correlation id.

        Args:
            head: API key and version.
            body: Everything behind the correlation id.
            timeout_s: Longest wait for the answer.
        """
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        if self._transport is None or self._ended is not None:
            answer.set_exception(self._ended or unavailable(f"not connected to {self.endpoint}"))
            return answer
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        correlation = self._correlation_id.to_bytes(4, "big")
        size = (len(head) + len(correlation) + len(body)).to_bytes(SIZE_BYTES, "big")
        self._used_at_s = self._loop.time()
        deadline_s = self._used_at_s + timeout_s
        self._waiting.append(_Waiting(self._correlation_id, answer, deadline_s, timeout_s))
        self._look_again_at(deadline_s)
        self._transport.write(b"".join((size, head, correlation, body)))
        return answer

    # -- time ---------------------------------------------------------------------------------

    def _look_again_at(self, when_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._look_at_time)

    def _look_at_time(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        if self._waiting:
            first = min(self._waiting, key=lambda waiting: waiting.deadline_s)
            next_s = first.deadline_s
            if next_s <= now_s:
                what = f"{self.endpoint} did not answer a request within {first.timeout_s:g} s"
                self.end(unavailable(f"{what}; the connection is closed"))
                return
        elif self._options.idle_s:
            next_s = self._used_at_s + self._options.idle_s
            if next_s <= now_s:
                self.end(unavailable(f"the connection to {self.endpoint} was idle, and closed"))
                return
        else:
            return
        self._look_again_at(next_s)

    # -- asyncio.BufferedProtocol -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._transport = transport
        if sys.platform == "linux" and transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket")
        if self._options.idle_s:
            self._look_again_at(self._used_at_s + self._options.idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails what waits."""
        if self._ended is not None:
            return
        self.lost = True
        if isinstance(exc, ssl.SSLError):
            # TLS 1.3: the broker looks at our certificate when our side is through already.
            self.end(why_not_connected(str(self.endpoint), exc))
            return
        why = f": {exc}" if exc else ""
        over_tls = self._transport is not None and self._transport.get_extra_info("sslcontext")
        hint = "" if self._answers else _UNANSWERED_TLS if over_tls else _UNANSWERED
        self.end(unavailable(f"{self.endpoint} has closed the connection{why}{hint}"))

    def pause_writing(self) -> None:
        """The peer does not take what is sent."""
        self._paused = True

    def resume_writing(self) -> None:
        """The peer takes it again."""
        self._paused = False
        self._room.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._body is not None:
            return self._body[self._filled :]
        return memoryview(self._scratch)[self._scratched :]

    def buffer_updated(self, nbytes: int) -> None:
        """Takes in what came."""
        if self._body is None:
            self._scratched += nbytes
            self._take_from_scratch()
            return
        self._filled += nbytes
        self._gather(len(self._body) - self._filled)
        if self._filled == len(self._body):
            body, self._body = self._body, None
            self._untaken_bytes = len(body)
            self._answered(body)

    def _take_from_scratch(self) -> None:
        """Takes whole answers; of one that is larger, what is there of it."""
        at, end = 0, self._scratched
        while end - at >= HEAD_BYTES and self._ended is None:
            size = int.from_bytes(self._scratch[at : at + SIZE_BYTES], "big", signed=True)
            if not self._expected(size, bytes(self._scratch[at : at + HEAD_BYTES])):
                return
            if end - at < size + SIZE_BYTES <= SCRATCH_BYTES:
                break
            start = at + HEAD_BYTES
            length = size + SIZE_BYTES - HEAD_BYTES
            body = memoryview(bytearray(length))
            here = min(end - start, length)
            body[:here] = self._scratch[start : start + here]
            at = start + here
            if here == length:
                self._answered(body)
            else:
                self._body, self._filled = body, here
                self._gather(length - here)
        if at:
            self._scratch[: end - at] = self._scratch[at:end]
            self._scratched = end - at

    def _gather(self, missing_bytes: int) -> None:
        """Asks the kernel to wake us when so much is there of a large answer, or all of it."""
        wanted_bytes = min(max(missing_bytes, 1), RECEIVE_AT_ONCE_BYTES)
        if self._socket is not None and wanted_bytes != self._gathered_bytes:
            self._gathered_bytes = wanted_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted_bytes)

    def _expected(self, size: int, head: bytes) -> bool:
        """Whether an answer like this is due; ends the connection if not."""
        if not SIZE_BYTES <= size <= self.answer_bytes_max:
            self.end(unavailable(_not_kafka(self.endpoint, size, head, self.answer_bytes_max)))
            return False
        correlation_id = int.from_bytes(head[SIZE_BYTES:], "big", signed=True)
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            text = f"{self.endpoint} sent an answer to request {correlation_id}, which is not due"
            self.end(unavailable(text))
            return False
        return True

    def _answered(self, body: memoryview) -> None:
        waiting = self._waiting.popleft()
        self._answers += 1
        if not waiting.answer.done():
            waiting.answer.set_result(body.toreadonly())
        self._room.set()

    def end(self, why: SharecoordError) -> None:
        """Ends the connection; a second call does nothing."""
        if self._ended is not None:
            return
        self._ended = why
        self._body, self._scratched, self._untaken_bytes = None, 0, 0
        self._room.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if not each.answer.done():
                each.answer.set_exception(why)
                # An answer that nobody waits for any more is nobody's failure.
                each.answer.exception()

    def hand_over(self) -> asyncio.Transport:
        """Gives the open connection away, on which nothing is under way: others go on with it.

        Raises:
            KafkaUnavailableError: It has ended.
        """
        transport = self._transport
        if self._ended is not None or transport is None:
            raise self._ended or unavailable(f"not connected to {self.endpoint}")
        assert not self._waiting, "nothing is under way"
        self._ended = KafkaUnavailableError(f"the connection to {self.endpoint} was handed over")
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        return transport

    def close(self) -> None:
        """Ends the connection on our side."""
        self.end(KafkaUnavailableError(f"the connection to {self.endpoint} was closed by us"))


_UNANSWERED: Final = (
    " before it answered anything: if the port wants TLS, set kafka.security.protocol=ssl"
    " (sasl_ssl with a log-in)"
)
_UNANSWERED_TLS: Final = (
    " before it answered anything: if it wants a certificate of ours, look at"
    " kafka.ssl.certificate.location and kafka.ssl.key.location"
)
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""An alert, a handshake message: how a peer begins that speaks TLS."""


def _not_kafka(endpoint: Endpoint, size: int, head: bytes, bytes_max: int) -> str:
    if head.startswith(_TLS_RECORDS):
        return (
            f"{endpoint} speaks TLS: set kafka.security.protocol=ssl (sasl_ssl with a log-in),"
            " or use the port of the plaintext listener"
        )
    if head.startswith(b"HTTP"):
        return f"{endpoint} is a web server, not Kafka: correct kafka.bootstrap.servers"
    return (
        f"{endpoint} sent an answer of {size} bytes; {SIZE_BYTES} to {bytes_max} are taken"
        " (kafka.receive.message.max.bytes): is it Kafka?"
    )
