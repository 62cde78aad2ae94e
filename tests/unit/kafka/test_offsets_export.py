"""Committed offsets while the coordinator of their group moves."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from sharecoord.errors import KafkaUnavailableError
from sharecoord.kafka.offsets_export import KafkaOffsetsExport

NOT_COORDINATOR = 16
UNSUPPORTED_VERSION = 35
METADATA, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, API_VERSIONS = 3, 9, 10, 15, 18
VERSIONS = {METADATA: 1, OFFSET_FETCH: 2, FIND_COORDINATOR: 0, DESCRIBE_GROUPS: 0, API_VERSIONS: 0}
"""The only version of each request that the broker here knows."""


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def listed(*values: bytes) -> bytes:
    return struct.pack(">i", len(values)) + b"".join(values)


class Broker(socketserver.ThreadingTCPServer):
    """A broker with one topic of one partition, and offsets of one consumer group.

    Attributes:
        moves: Requests for offsets that are still to be refused, for the coordinator has moved.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.moves = 0
        self.port: int = self.server_address[1]

    def answer(self, key: int) -> bytes:
        """What a request is answered with, without its head."""
        answers: dict[int, Callable[[], bytes]] = {
            METADATA: self._metadata,
            OFFSET_FETCH: self._offsets,
            FIND_COORDINATOR: lambda: struct.pack(">hi", 0, 1) + self._address(),
            DESCRIBE_GROUPS: lambda: listed(
                struct.pack(">h", 0) + text("g") + text("Empty") + text("") + text("") + listed()
            ),
        }
        return answers[key]()

    def _address(self) -> bytes:
        return text("127.0.0.1") + struct.pack(">i", self.port)

    def _metadata(self) -> bytes:
        node = struct.pack(">i", 1)
        partition = struct.pack(">hii", 0, 0, 1) + listed(node) + listed(node)
        topic = struct.pack(">h", 0) + text("t") + b"\0" + listed(partition)
        return listed(node + self._address() + text("")) + node + listed(topic)

    def _offsets(self) -> bytes:
        if self.moves:
            self.moves -= 1
            return listed() + struct.pack(">h", NOT_COORDINATOR)
        partition = struct.pack(">iq", 0, 7) + text("mine") + struct.pack(">h", 0)
        return listed(text("t") + listed(partition)) + struct.pack(">h", 0)


class Connection(socketserver.StreamRequestHandler):
    """Requests of one client, in order."""

    server: Broker

    def handle(self) -> None:
        while size := self.rfile.read(4):
            (length,) = struct.unpack(">i", size)
            key, version, correlation = struct.unpack(">hhi", self.rfile.read(length)[:8])
            if key == API_VERSIONS:
                error = 0 if version == VERSIONS[key] else UNSUPPORTED_VERSION
                known = [struct.pack(">hhh", key, v, v) for key, v in VERSIONS.items()]
                body = struct.pack(">h", error) + listed(*known)
            else:
                body = self.server.answer(key)
            answer = struct.pack(">i", correlation) + body
            self.wfile.write(struct.pack(">i", len(answer)) + answer)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_a_coordinator_that_has_just_moved_is_an_error_that_passes(broker: Broker) -> None:
    # Asked by its admin client, librdkafka ends the process here.
    export = KafkaOffsetsExport({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
    broker.moves = 1
    with pytest.raises(KafkaUnavailableError, match="NOT_COORDINATOR") as caught:
        await export.read("g")
    assert caught.value.retriable
    ((place, found),) = (await export.read("g")).items()
    assert (place, found.offset) == (("t", 0), 7)
    assert found.metadata.startswith("mine")
    await export.close()
