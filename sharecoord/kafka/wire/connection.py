"""One connection to a broker: requests go out in order, and their answers come back in it.

Answers are read into memory of their own, made when the length of the answer is known and checked:
a large answer is copied once, from the kernel to where it stays.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Final, NamedTuple

from sharecoord.errors import KafkaUnavailableError

HEAD_BYTES: Final = 4
SCRATCH_BYTES: Final = 64 << 10
"""Small answers are read together, as many as come at a time."""


class Endpoint(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Waiting(NamedTuple):
    """A request whose answer did not come yet."""

    correlation_id: int
    answer: asyncio.Future[memoryview]
    deadline_s: float


class Connection(asyncio.BufferedProtocol):
    """An open connection. It ends at the first thing that is not as it must be.

    A request that is late ends it, too: its answer would stand before all others.
    """

    def __init__(self, endpoint: Endpoint, *, answer_bytes_max: int) -> None:
        self.endpoint = endpoint
        self._answer_bytes_max = answer_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ended: KafkaUnavailableError | None = None
        self._correlation_id = 0
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._scratch = bytearray(SCRATCH_BYTES)
        self._scratched = 0
        """Bytes in `_scratch`, fewer than an answer has."""
        self._body: memoryview | None = None
        """An answer that is larger than `_scratch`, and is being read."""
        self._filled = 0

    @classmethod
    async def open(
        cls,
        endpoint: Endpoint,
        *,
        tls: ssl.SSLContext | None,
        server_name: str | None,
        timeout_s: float,
        answer_bytes_max: int,
    ) -> Connection:
        """Connects.

        Raises:
            KafkaUnavailableError: Nobody listens, the certificate is not good, or it takes too long.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: cls(endpoint, answer_bytes_max=answer_bytes_max),
                    endpoint.host,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=server_name if tls else None,
                )
        except TimeoutError:
            raise _unavailable(f"{endpoint} did not answer within {timeout_s:g} s") from None
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or str(error)
            raise _unavailable(f"no TLS with {endpoint}: {why}") from error
        except OSError as error:
            raise _unavailable(
                f"can not connect to {endpoint}: {error.strerror or error}"
            ) from error
        return connection

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._ended is None and self._transport is not None

    def send(self, head: bytes, body: bytes, *, timeout_s: float) -> asyncio.Future[memoryview]:
        """Sends a request; the answer is all that comes behind the correlation id.

        Args:
            head: API key and version.
            body: Everything behind the correlation id.
            timeout_s: Longest wait for the answer.
        """
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        if self._transport is None or self._ended is not None:
            answer.set_exception(self._ended or _unavailable(f"not connected to {self.endpoint}"))
            return answer
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        correlation = self._correlation_id.to_bytes(4, "big")
        size = (len(head) + len(correlation) + len(body)).to_bytes(4, "big")
        self._transport.write(b"".join((size, head, correlation, body)))
        deadline_s = self._loop.time() + timeout_s
        self._waiting.append(_Waiting(self._correlation_id, answer, deadline_s))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline_s, self._look_at_time)
        return answer

    def _look_at_time(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        next_s = min(waiting.deadline_s for waiting in self._waiting)
        if next_s <= self._loop.time():
            self.end(_unavailable(f"{self.endpoint} did not answer a request in time"))
        else:
            self._timer = self._loop.call_at(next_s, self._look_at_time)

    # -- asyncio.BufferedProtocol -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails what waits."""
        why = f": {exc}" if exc else ""
        self.end(_unavailable(f"the connection to {self.endpoint} has ended{why}"))

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
        if self._filled == len(self._body):
            body, self._body = self._body, None
            self._answered(body)

    def _take_from_scratch(self) -> None:
        """Takes whole answers; of one that is larger, what is there of it."""
        at, end = 0, self._scratched
        while end - at >= HEAD_BYTES and self._ended is None:
            size = int.from_bytes(self._scratch[at : at + HEAD_BYTES], "big")
            if not HEAD_BYTES <= size <= self._answer_bytes_max:
                text = (
                    f"{self.endpoint} sent an answer of {size} bytes, of which at most"
                    f" {self._answer_bytes_max} are taken; does Kafka listen there, without TLS?"
                )
                self.end(_unavailable(text))
                return
            start = at + HEAD_BYTES
            if end - start < size and size + HEAD_BYTES <= SCRATCH_BYTES:
                break
            body = memoryview(bytearray(size))
            here = min(end - start, size)
            body[:here] = self._scratch[start : start + here]
            at = start + here
            if here == size:
                self._answered(body)
            else:
                self._body, self._filled = body, here
        if at:
            self._scratch[: end - at] = self._scratch[at:end]
            self._scratched = end - at

    def _answered(self, body: memoryview) -> None:
        correlation_id = int.from_bytes(body[:HEAD_BYTES], "big")
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            text = f"{self.endpoint} sent an answer to request {correlation_id}, which nobody made"
            self.end(_unavailable(text))
            return
        waiting = self._waiting.popleft()
        if not waiting.answer.done():
            waiting.answer.set_result(body[HEAD_BYTES:])

    def end(self, why: KafkaUnavailableError) -> None:
        """Ends the connection; a second call does nothing."""
        if self._ended is not None:
            return
        self._ended = why
        self._body = None
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

    def close(self) -> None:
        """Ends the connection on our side."""
        self.end(_unavailable(f"the connection to {self.endpoint} was closed"))


def _unavailable(text: str) -> KafkaUnavailableError:
    return KafkaUnavailableError(text, retry_after_ms=500)
