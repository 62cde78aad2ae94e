"""A coordinator that does what a test says: real gRPC over loopback, no rules of its own.

By default it answers a join with `joined`, acknowledgements with OK and a leave with `left`. Tests
push records, read what the SDK sent, and break streams.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from queue import Queue, SimpleQueue
from typing import Any

import grpc
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from sharecoord.wire import share_service_pb2_grpc as service_grpc

PATIENCE_S = 10.0
TOPIC_ID = b"t" * 16


@dataclass(frozen=True)
class Ack:
    """One acknowledged range as it came over the wire."""

    topic: str
    partition: int
    first: int
    last: int
    kind: str
    token: int
    delay_ms: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Refusal:
    """A status that ends a stream."""

    code: grpc.StatusCode
    details: str = "refused"
    reason: str = ""
    retry_after_ms: int | None = None
    resource: str = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The trailing metadata of the coordinator's errors."""
        found = [("sharecoord-reason", self.reason)] if self.reason else []
        if self.retry_after_ms is not None:
            found.append(("sharecoord-retry-after-ms", str(self.retry_after_ms)))
        if self.resource:
            found.append(("sharecoord-resource", self.resource))
        return tuple(found)


def make_batch(
    values: Sequence[bytes | None],
    *,
    topic: str = "t",
    partition: int = 0,
    base: int = 0,
    token: int = 1,
    delivery_count: int = 1,
    remaining_ms: int = 30_000,
    ranges: Sequence[types_pb.AcquiredRange] | None = None,
    deltas: Sequence[int] = (),
    keys: Sequence[bytes | None] = (),
) -> types_pb.RecordBatch:
    """A batch under one lock, unless `ranges` are given."""
    last = base + (deltas[-1] if deltas else len(values) - 1)
    if ranges is None:
        ranges = [
            types_pb.AcquiredRange(
                first_offset=base,
                last_offset=last,
                delivery_count=delivery_count,
                lock_token=token,
                lock_remaining_ms=remaining_ms,
            )
        ]
    nulls = bytearray((len(values) + 7) // 8)
    for row, value in enumerate(values):
        if value is None:
            nulls[row >> 3] |= 1 << (row & 7)
    no_keys = bytearray((len(keys) + 7) // 8)
    for row, key in enumerate(keys):
        if key is None:
            no_keys[row >> 3] |= 1 << (row & 7)
    return types_pb.RecordBatch(
        keys=[key or b"" for key in keys],
        null_keys=bytes(no_keys) if any(no_keys) else b"",
        partition=types_pb.TopicPartition(topic=topic, partition=partition, topic_id=TOPIC_ID),
        base_offset=base,
        record_count=len(values),
        offset_deltas=deltas,
        timestamps_ms=[1_000 + row for row in range(len(values))],
        timestamp_type=1,
        values=[value or b"" for value in values],
        null_values=bytes(nulls) if any(nulls) else b"",
        ranges=ranges,
        credit_bytes=sum(len(value or b"") for value in values) + 100 * len(values),
    )


def acks_of(request: service_pb.ConsumeRequest) -> list[Ack]:
    """The ranges of one message, in the order in which they came."""
    return [
        Ack(
            part.partition.topic,
            part.partition.partition,
            item.first_offset,
            item.last_offset,
            types_pb.AcknowledgeType.Name(item.type).removeprefix("ACKNOWLEDGE_TYPE_"),
            item.lock_token,
            item.delay_ms,
            item.reason,
        )
        for part in request.acknowledgements
        for item in part.ranges
    ]


class FakeStream:
    """The coordinator's end of one stream."""

    def __init__(self, join: service_pb.Join, context: Any) -> None:
        self.join = join
        self.metadata: dict[str, str] = dict(context.invocation_metadata())
        self.peer: str = context.peer()
        names = context.auth_context().get("x509_common_name", [b""])
        #: The name of the client's certificate, "" without one.
        self.certificate_name: str = names[0].decode()
        self.requests: list[service_pb.ConsumeRequest] = []
        self.is_over = False
        self._changed = threading.Condition()
        self._out: SimpleQueue[service_pb.ConsumeResponse | Refusal | None] = SimpleQueue()

    def note(self, request: service_pb.ConsumeRequest) -> None:
        """A message came in."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()

    def over(self) -> None:
        """The other side is gone."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def wait_for(self, what: Callable[[FakeStream], Any]) -> Any:
        """Waits until `what` gives something truthy, and returns it."""
        with self._changed:
            found = self._changed.wait_for(lambda: what(self), PATIENCE_S)
        assert found, f"did not come; got {self.requests}"
        return found

    def wait_over(self) -> None:
        """Waits until the other side ended the stream."""
        self.wait_for(lambda stream: stream.is_over)

    def acks(self) -> list[Ack]:
        """Every acknowledged range so far."""
        return [ack for request in self.requests for ack in acks_of(request)]

    def wait_acks(self, count: int) -> list[Ack]:
        """Waits for so many acknowledged ranges."""
        self.wait_for(lambda stream: len(stream.acks()) >= count)
        return self.acks()

    def send(self, *batches: types_pb.RecordBatch, **fields: Any) -> None:
        """Sends a message."""
        self._out.put(service_pb.ConsumeResponse(batches=batches, **fields))

    def wait_shown(self) -> str:
        """Waits for a new credential on the stream, and returns it."""
        shown: str = self.wait_for(lambda stream: stream.shown())
        return shown

    def shown(self) -> str:
        """The credential that was shown last on the stream itself, "" without one."""
        found = [request.authorization for request in self.requests if request.authorization]
        return found[-1] if found else ""

    def answer(self, acknowledge_id: int, *outcomes: types_pb.PartitionOutcome) -> None:
        """Answers acknowledgements."""
        result = service_pb.AcknowledgeResult(acknowledge_id=acknowledge_id, outcomes=outcomes)
        self.send(results=[result])

    def end(self, refusal: Refusal | None = None) -> None:
        """Ends the stream, in order or with a status."""
        self._out.put(refusal)

    def outgoing(self) -> Iterator[service_pb.ConsumeResponse | Refusal]:
        """What is to be sent, until the end."""
        while (item := self._out.get()) is not None:
            yield item


Answers = Callable[[list[Ack]], Iterable[types_pb.PartitionOutcome]]


@dataclass
class Script:
    """What the coordinator does by itself."""

    joined: service_pb.Joined = field(
        default_factory=lambda: service_pb.Joined(
            member_epoch=1, lock_duration_ms=30_000, protocol_version=1, coordinator_id="fake"
        )
    )
    answers_joins: bool = True
    #: One is taken per join, before `joined`.
    refusals: list[Refusal] = field(default_factory=list)
    answers_acknowledgements: bool = True
    #: The exceptions to report.
    outcomes: Answers = lambda _: ()
    answers_leaves: bool = True


class FakeCoordinator(service_grpc.ShareServiceServicer):
    """A gRPC server with one method.

    Args:
        address: Where to listen; port 0 picks a free one.
        credentials: For TLS.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:0",
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.script = Script()
        self._streams: Queue[FakeStream] = Queue()
        #: Every stream so far, taken or not.
        self.streams_seen: list[FakeStream] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
        service_grpc.add_ShareServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        if credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, credentials)
        host, _, wanted = address.rpartition(":")
        self.address = f"{host}:{port}" if wanted == "0" else address
        self._server.start()

    def stream(self) -> FakeStream:
        """The next stream that joined."""
        return self._streams.get(timeout=PATIENCE_S)

    def stream_now(self) -> FakeStream | None:
        """The next stream if it has joined already."""
        return None if self._streams.empty() else self._streams.get()

    def stop(self) -> None:
        """Stops at once and frees the port."""
        self._server.stop(None).wait(PATIENCE_S)

    def Consume(  # noqa: N802 - gRPC's name
        self, request_iterator: Iterator[service_pb.ConsumeRequest], context: Any
    ) -> Iterator[service_pb.ConsumeResponse]:
        """One stream."""
        first = next(request_iterator)
        stream = FakeStream(first.join, context)
        context.add_callback(stream.over)
        stream.note(first)
        refusal = self.script.refusals.pop(0) if self.script.refusals else None
        if refusal is not None:
            stream.end(refusal)
        elif self.script.answers_joins:
            stream.send(joined=self.script.joined)
        reader = threading.Thread(target=self._read, args=(request_iterator, stream), daemon=True)
        reader.start()
        self.streams_seen.append(stream)
        self._streams.put(stream)
        for item in stream.outgoing():
            if isinstance(item, Refusal):
                context.set_trailing_metadata(item.metadata())
                context.abort(item.code, item.details)
            else:
                yield item

    def _read(self, requests: Iterator[service_pb.ConsumeRequest], stream: FakeStream) -> None:
        try:
            for request in requests:
                if request.acknowledge_id and self.script.answers_acknowledgements:
                    outcomes = tuple(self.script.outcomes(acks_of(request)))
                    stream.answer(request.acknowledge_id, *outcomes)
                stream.note(request)
                if request.leave and self.script.answers_leaves:
                    stream.send(left=True)
                    stream.end()
        except grpc.RpcError:
            # The other side cancelled the call.
            pass
        stream.over()
        stream.end()
