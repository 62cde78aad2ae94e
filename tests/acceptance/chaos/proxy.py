"""A TCP proxy that cuts, stalls, delays and narrows, on a thread and loop of its own.

Kafka tells its clients where it is, so a plain proxy would be passed by after the first answer.
`kafka=True` puts the proxy's port in the place of the broker's in every answer: both are the same
length, so nothing else of the answer changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Awaitable
from typing import Self, TypeVar

from sharecoord.devenv.processes import LOOPBACK, free_ports

T = TypeVar("T")

CHUNK_BYTES = 64 << 10
LENGTH_BYTES = 4


class TcpProxy:
    """Forwards connections from a port of its own, which it keeps until `close`.

    Attributes:
        address: Where clients connect to.
        delay_s: How much later every chunk goes on, in each direction.
        bytes_per_s: Bandwidth of each direction of a connection; 0 = unlimited.
        accepted: Connections that were accepted so far.
        held_up: Chunks that wait for the end of a stall.
    """

    def __init__(self, target: str, *, kafka: bool = False) -> None:
        """Nothing listens yet.

        Args:
            target: `host:port` of the server.
            kafka: Whether to rewrite the broker's port in its answers.
        """
        host, _, port = target.rpartition(":")
        (own,) = free_ports(1)
        self._target = (host, int(port))
        self._port = own
        self._kafka = kafka
        self._cut = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.address = f"{LOOPBACK}:{own}"
        self.delay_s = 0.0
        self.bytes_per_s = 0
        self.accepted = 0
        self.held_up = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy")
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._serve, LOOPBACK, self._port))
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Breaks every connection; new ones are broken as soon as they come."""
        self._cut = True
        self._do(self._abort())

    def stall(self) -> None:
        """Connections stay, nothing goes through, and nobody is told."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def heal(self) -> None:
        """Everything goes through again, what was held up first."""
        self._cut = False
        self._loop.call_soon_threadsafe(self._flowing.set)
        self.delay_s, self.bytes_per_s = 0.0, 0

    # -- on the loop ----------------------------------------------------------------------------

    def _do(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._cut:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        back = self._frames if self._kafka else self._chunks
        try:
            await asyncio.gather(self._chunks(reader, up_writer), back(up_reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in (writer, up_writer):
                each.transport.abort()
                self._writers.discard(each)

    async def _chunks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._pass(data, writer)
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _frames(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Kafka's answers: a length of four bytes, then so many."""
        host, port = self._target
        old, new = (host.encode() + struct.pack(">i", number) for number in (port, self._port))
        while True:
            head = await reader.readexactly(LENGTH_BYTES)
            body = await reader.readexactly(struct.unpack(">i", head)[0])
            await self._pass(head + body.replace(old, new), writer)

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.bytes_per_s:
            await asyncio.sleep(len(data) / self.bytes_per_s)
        self.held_up += 1
        await self._flowing.wait()
        self.held_up -= 1
        writer.write(data)
        await writer.drain()

    async def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _close(self) -> None:
        assert self._server is not None, "entered"
        self._cut = True
        self._server.close()
        await self._abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
