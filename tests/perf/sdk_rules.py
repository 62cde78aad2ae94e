"""What the SDK's rules cost a consumer per record, without a network: a script, not a test.

    python tests/perf/sdk_rules.py [--only sync|async] [--value-bytes 100,1000] [--seconds 0.5]

A consumer whose stream is a list: each poll finds as many prepared messages of the wire as its
credit allows, parses them, and every acknowledgement is confirmed at once. Prints CPU microseconds
per record: `decode` is protobuf's part (parsing, and the values as bytes), `all` is everything.

To compare two commits, run the script on both with the other `sdk` in PYTHONPATH, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from sharecoord_sdk import AsyncShareConsumer, ShareConsumer
from sharecoord_sdk._core import frames
from sharecoord_sdk._core.core import Arrival, Connection
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

_DISTINCT_BATCHES = 16
_BUFFER_BYTES = 64 * 1024 * 1024
_EXPLICIT = ("each", "all", "whole")


@dataclass(frozen=True)
class Case:
    """What is measured.

    `way`: `implicit` and `columns` (`values()`) are implicit mode; `each`, `all` (by
    `acknowledge(messages)`) and `whole` (`values()`, and all at once) explicit mode.
    """

    shell: str
    value_bytes: int
    batch: int
    locks: int
    poll: int
    way: str

    def __str__(self) -> str:
        place = f"{self.value_bytes:5} B, batch {self.batch:4}, {self.locks:3} locks"
        return f"{self.shell:5} {place}, poll {self.poll:4}, {self.way:8}"


def prepared(case: Case) -> list[bytes]:
    """Serialized answers with one batch each; offsets and tokens differ from one to the next."""
    return [
        service_pb.ConsumeResponse(batches=[_batch(case, number)]).SerializeToString()
        for number in range(_DISTINCT_BATCHES)
    ]


def _batch(case: Case, number: int) -> types_pb.RecordBatch:
    base, step = number * case.batch, case.batch // case.locks
    ranges = [
        types_pb.AcquiredRange(
            first_offset=base + lock * step,
            last_offset=base + (lock + 1) * step - 1
            if lock < case.locks - 1
            else base + case.batch - 1,
            delivery_count=1,
            lock_token=number * case.locks + lock + 1,
            lock_remaining_ms=3_600_000,
        )
        for lock in range(case.locks)
    ]
    return types_pb.RecordBatch(
        partition=types_pb.TopicPartition(topic="perf", partition=0, topic_id=b"0" * 16),
        base_offset=base,
        record_count=case.batch,
        timestamps_ms=[1_700_000_000_000 + row for row in range(case.batch)],
        timestamp_type=1,
        values=[bytes((row % 256,)) * case.value_bytes for row in range(case.batch)],
        ranges=ranges,
        credit_bytes=case.batch * (case.value_bytes + 100),
    )


class Feed:
    """The coordinator of a consumer: batches as credit allows, and a yes to all that it says."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._messages = prepared(case)
        self._next = self._granted = self._sent = self._generation = 0
        self._answers: deque[service_pb.ConsumeResponse] = deque()

    def open(self, connection: Connection) -> None:
        self._generation = connection.generation
        joined = service_pb.Joined(lock_duration_ms=30_000, protocol_version=1)
        self._answers.append(service_pb.ConsumeResponse(joined=joined))
        self.said(connection.requests)

    def said(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        for request in requests:
            request.SerializeToString()
            credit = request.join.credit if request.HasField("join") else request.credit
            self._granted = max(self._granted, credit.records_total)
            if request.acknowledge_id:
                result = service_pb.AcknowledgeResult(acknowledge_id=request.acknowledge_id)
                self._answers.append(service_pb.ConsumeResponse(results=[result]))
            if request.leave:
                self._answers.append(service_pb.ConsumeResponse(left=True))

    def arrivals(self) -> Iterator[Arrival]:
        now = time.monotonic()
        while self._answers:
            yield Arrival(self._generation, frames.frame_of(self._answers.popleft()), now)
        while self._sent + self._case.batch <= self._granted:
            self._sent += self._case.batch
            self._next = (self._next + 1) % _DISTINCT_BATCHES
            found = frames.read(self._messages[self._next])
            yield Arrival(self._generation, found, now)


class _Fed:
    """A shell without a stream."""

    feed: Feed

    def _open_stream(self, connection: Connection) -> None:
        self.feed.open(connection)

    def _send(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        self.feed.said(requests)

    def _arrivals(self) -> Iterator[Arrival]:
        return self.feed.arrivals()

    def _schedule_hand_back(self, at: float) -> None:
        pass


class FedConsumer(_Fed, ShareConsumer):
    def _wait(self, wait_s: float) -> None:
        pass


class FedAsyncConsumer(_Fed, AsyncShareConsumer):
    async def _run(self, steps: Any) -> Any:
        try:
            while True:
                next(steps)
        except StopIteration as stop:
            return stop.value


def conf(case: Case) -> dict[str, Any]:
    return {
        "group.id": "perf",
        "max.poll.records": case.poll,
        "sharecoord.buffer.bytes": _BUFFER_BYTES,
        "share.acknowledgement.mode": "explicit" if case.way in _EXPLICIT else "implicit",
    }


def handle(consumer: Any, messages: Any, way: str) -> None:
    """A program that looks at every value."""
    if way in ("columns", "whole"):
        for value in messages.values():
            value  # noqa: B018 - as a program would read it
    elif way == "each":
        for message in messages:
            message.value()
            consumer.acknowledge(message)
    else:
        for message in messages:
            message.value()
    if way in ("all", "whole"):
        consumer.acknowledge(messages)


class Watch:
    """CPU per record after a first tenth of the time; asks for it twice only, which is slow."""

    def __init__(self, seconds: float) -> None:
        self._begin = time.monotonic() + seconds / 10
        self._end = self._begin + seconds
        self._since: float | None = None
        self._records = 0

    def goes_on(self, records: int) -> bool:
        now = time.monotonic()
        if now < self._begin:
            return True
        if self._since is None:
            self._since = time.process_time()
            return True
        self._records += records
        return now < self._end

    def us(self) -> float:
        assert self._since is not None, "it went on for long enough"
        return (time.process_time() - self._since) / self._records * 1e6


def run_sync(case: Case, seconds: float) -> float:
    consumer = FedConsumer(conf(case))
    consumer.feed = Feed(case)
    consumer.subscribe(["perf"])
    watch, count = Watch(seconds), 0
    while watch.goes_on(count):
        messages = consumer.poll(1)
        handle(consumer, messages, case.way)
        count = len(messages)
    found = watch.us()
    consumer.close()
    return found


async def run_async(case: Case, seconds: float) -> float:
    consumer = FedAsyncConsumer(conf(case))
    consumer.feed = Feed(case)
    await consumer.subscribe(["perf"])
    watch, count = Watch(seconds), 0
    while watch.goes_on(count):
        messages = await consumer.poll(1)
        handle(consumer, messages, case.way)
        count = len(messages)
    found = watch.us()
    await consumer.close()
    return found


def decode_us(case: Case, seconds: float) -> float:
    """Protobuf's part alone: a message is parsed and its values become bytes."""
    messages = prepared(case)
    watch = Watch(seconds)
    while watch.goes_on(case.batch * len(messages)):
        for each in messages:
            for batch in service_pb.ConsumeResponse.FromString(each).batches:
                list(batch.values)
    return watch.us()


def main() -> None:
    """Runs every combination and prints a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("sync", "async"))
    parser.add_argument("--value-bytes", default="100,1000")
    parser.add_argument("--ways", default="implicit,each,all,columns,whole")
    parser.add_argument("--batches", default="500,4000")
    parser.add_argument("--locks", default="1,250")
    parser.add_argument("--polls", default="500,5000")
    parser.add_argument("--seconds", type=float, default=0.5)
    args = parser.parse_args()
    shells = [args.only] if args.only else ["sync", "async"]
    numbers = (map(int, each.split(",")) for each in (args.value_bytes, args.batches, args.locks))
    polls = map(int, args.polls.split(","))
    for cells in product(shells, *numbers, polls, args.ways.split(",")):
        case = Case(*cells)
        decode = decode_us(case, args.seconds / 2)
        if case.shell == "sync":
            found = run_sync(case, args.seconds)
        else:
            found = asyncio.run(run_async(case, args.seconds))
        print(f"{case}: all {found:.3f} us, decode {decode:.3f} us", flush=True)


if __name__ == "__main__":
    main()
