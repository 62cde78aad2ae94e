"""A Kafka broker of a test's own on a loopback port: it answers as the test says, and in order.

```
async with FakeBroker() as broker:
    broker.on(MetadataRequest, lambda request: MetadataResponse(...))
    ...
    await broker.seen(MetadataRequest)
```

Everything is an event: a test waits for a request (`seen`), holds an answer back by awaiting in its
handler, drops connections. Time is `forward`ed, never slept through.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from kio.index import load_request_schema
from kio.schema.api_versions.v0.response import ApiVersion as ApiVersion0
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsResponse0
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32Timedelta

from sharecoord.kafka.wire.connection import Endpoint

OFFERED = {0: (3, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 17: (0, 1), 18: (0, 4), 36: (0, 2)}
"""API key → versions, as a broker of Kafka 4 has them: Produce, Fetch, ListOffsets, Metadata, …"""

REQUEST_BYTES_MAX = 104_857_600
"""What says that it is larger ends the connection, as with Kafka's brokers."""

NO_TIME = i32Timedelta(timedelta(0))

CLOSE = object()
"""A handler's answer: the connection is closed instead."""

SILENCE = object()
"""A handler's answer: there is none."""

Handler = Callable[["Request"], Any]
"""Gives an answer of kio's, bytes (the whole behind the correlation id), CLOSE or SILENCE; may be
a coroutine function."""


class Request(NamedTuple):
    """A request that came in."""

    key: int
    version: int
    correlation_id: int
    client_id: str
    body: bytes
    link: Link

    def entity(self) -> Any:
        """The request as kio reads it."""
        found, _ = entity_reader(load_request_schema(self.key, self.version))(self.body, 0)
        return found


class Link:
    """A connection to the broker."""

    def __init__(self, number: int, writer: asyncio.StreamWriter) -> None:
        self.number = number
        """From 0, in the order in which they were made."""
        self._writer = writer

    def write(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self._writer.write(data)

    def drop(self) -> None:
        """Ends the connection without a word."""
        self._writer.transport.abort()

    def close(self) -> None:
        """Ends the connection in order."""
        self._writer.close()


class FakeBroker:
    """A server on a port of 127.0.0.1; knows ApiVersions, all else is for the test to add."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        offered: dict[int, tuple[int, int]] | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.links: list[Link] = []
        self.offered = dict(OFFERED if offered is None else offered)
        self._tls = tls
        self._handlers: dict[int, Handler] = {ApiVersionsRequest.__api_key__: self._versions}
        self._came: dict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(0))
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.endpoint = Endpoint("127.0.0.1", 0)

    async def __aenter__(self) -> FakeBroker:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens; after `stop` on the same port."""
        self._server = await asyncio.start_server(
            self._serve, self.endpoint.host, self.endpoint.port, ssl=self._tls
        )
        self.endpoint = Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Ends all connections, and listens no more."""
        assert self._server is not None
        self._server.close()
        self.drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on(self, request: Any, handler: Handler) -> None:
        """Answers requests of a class of kio's, or of an API key, of any version."""
        self._handlers[request if isinstance(request, int) else request.__api_key__] = handler

    async def seen(self, request: Any) -> Request:
        """Waits for the next request of the kind that was not waited for yet."""
        key = request if isinstance(request, int) else request.__api_key__
        await asyncio.wait_for(self._came[key].acquire(), 10)
        return next(each for each in reversed(self.requests) if each.key == key)

    def count(self, request: Any) -> int:
        """How many requests of the kind came."""
        key = request if isinstance(request, int) else request.__api_key__
        return sum(each.key == key for each in self.requests)

    def drop(self) -> None:
        """Ends all connections without a word."""
        for link in self.links:
            link.drop()

    def _versions(self, request: Request) -> Any:
        _, highest = self.offered[18]
        if request.version > highest:
            only = ApiVersion0(api_key=i16(18), min_version=i16(0), max_version=i16(highest))
            return ApiVersionsResponse0(error_code=ErrorCode.unsupported_version, api_keys=(only,))
        kinds = (ApiVersionsResponse0, ApiVersion0)
        later: dict[str, Any] = {}
        if request.version >= 3:
            kinds, later = (ApiVersionsResponse, ApiVersion), {"throttle_time": NO_TIME}
        keys = tuple(
            kinds[1](api_key=i16(key), min_version=i16(low), max_version=i16(high))
            for key, (low, high) in self.offered.items()
        )
        return kinds[0](error_code=ErrorCode.none, api_keys=keys, **later)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = Link(len(self.links), writer)
        self.links.append(link)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    if size > REQUEST_BYTES_MAX:
                        break
                    if not await self._take(_read(await reader.readexactly(size), link)):
                        break
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _take(self, request: Request) -> bool:
        self.requests.append(request)
        handler = self._handlers.get(request.key)
        self._came[request.key].release()
        answer = CLOSE if handler is None else handler(request)
        if inspect.isawaitable(answer):
            answer = await _waited(answer)
        if answer is CLOSE:
            return False
        if answer is not SILENCE:
            body = answer if isinstance(answer, bytes) else written(answer)
            request.link.write(framed(request.correlation_id, body))
        return True


async def _waited(answer: Awaitable[Any]) -> Any:
    return await answer


def framed(correlation_id: int, body: bytes) -> bytes:
    """An answer as it goes over the wire."""
    return (len(body) + 4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body


def written(answer: Any) -> bytes:
    """An answer of kio's behind its correlation id."""
    out = io.BytesIO()
    if answer.__header_schema__.__version__ == 1:
        out.write(b"\0")
    entity_writer(type(answer))(out, answer)
    return out.getvalue()


def _read(data: bytes, link: Link) -> Request:
    key, version = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")
    length = int.from_bytes(data[8:10], "big")
    at = 10 + length
    kind: Any = load_request_schema(key, version)
    if kind.__header_schema__.__version__ == 2:
        assert data[at] == 0, "nobody sends tags in a header"
        at += 1
    correlation_id = int.from_bytes(data[4:8], "big")
    return Request(key, version, correlation_id, data[10 : 10 + length].decode(), data[at:], link)


class Hours:
    """The time of the running loop, which a test moves on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._ahead_s = 0.0

    def time(self) -> float:
        """What the loop takes for the time."""
        return self._time() + self._ahead_s

    def forward(self, seconds: float) -> None:
        """Lets time pass at once: what was due in it comes in the next turn of the loop."""
        self._ahead_s += seconds
        self._loop.call_soon(lambda: None)


@contextlib.contextmanager
def hours() -> Iterator[Hours]:
    """Time that can be moved on, for the running loop."""
    found = Hours()
    loop: Any = asyncio.get_running_loop()
    loop.time = found.time
    try:
        yield found
    finally:
        del loop.time
