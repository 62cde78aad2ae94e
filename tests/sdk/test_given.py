"""What counts as given to the program: what a call has returned, and nothing else."""

from __future__ import annotations

import asyncio
import dis
import functools
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import CodeType, FrameType
from typing import Any

import pytest
import sharecoord_sdk
from sharecoord_sdk import (
    AsyncShareConsumer,
    DeserializingShareConsumer,
    IllegalStateException,
    Message,
    Messages,
    ShareConsumer,
)
from sharecoord_sdk._core.base import Arrival
from sharecoord_sdk._core.core import Connection
from sharecoord_sdk._core.frames import frame_of
from sharecoord_sdk._core.records import origin_of
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from tests.sdk.driver import Drivers, inner, joined
from tests.sdk.fake_coordinator import Ack, FakeCoordinator, FakeStream, make_batch

VALUES = [b"%d" % number for number in range(40)]


def accepted(stream: FakeStream) -> list[tuple[int, int]]:
    """What was accepted, as offsets from first to last."""
    return [(ack.first, ack.last) for ack in stream.acks() if ack.kind == "ACCEPT"]


# -- async for --------------------------------------------------------------------------------


async def _break_off(consumer: AsyncShareConsumer) -> None:
    async for message in consumer:
        if message.value() == b"1":
            break


async def _raise(consumer: AsyncShareConsumer) -> None:
    async def read() -> None:
        async for message in consumer:
            if message.value() == b"1":
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()


async def _cancel(consumer: AsyncShareConsumer) -> None:
    got_two = asyncio.Event()

    async def read() -> None:
        async for message in consumer:
            if message.value() == b"1":
                got_two.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(read())
    await got_two.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _keep_iterator(consumer: AsyncShareConsumer) -> None:
    iterator = aiter(consumer)
    consumer.kept = iterator  # type: ignore[attr-defined]
    for _ in range(2):
        await anext(iterator)


@pytest.mark.parametrize("end", [_break_off, _raise, _cancel, _keep_iterator])
@pytest.mark.parametrize("goes_on_by", ["poll", "async for"])
def test_what_an_iteration_did_not_yield_is_not_accepted(
    coordinator: FakeCoordinator,
    end: Callable[[AsyncShareConsumer], Awaitable[None]],
    goes_on_by: str,
) -> None:
    async def run() -> tuple[list[Any], list[tuple[int, int]]]:
        async with AsyncShareConsumer(
            {"bootstrap.servers": coordinator.address, "group.id": "g"}
        ) as consumer:
            await consumer.subscribe(["t"])
            stream = await asyncio.to_thread(coordinator.stream)
            stream.send(make_batch(VALUES))
            await end(consumer)
            if goes_on_by == "poll":
                rest = [message.value() for message in await consumer.poll(5)]
            else:
                rest = []
                async for message in consumer:
                    rest.append(message.value())
                    if message.value() == VALUES[-1]:
                        break
            await asyncio.to_thread(stream.wait_for, accepted)
            return rest, accepted(stream)

    rest, told = asyncio.run(run())
    assert rest == VALUES[2:]
    assert told == [(0, 1)], "the others are still in the program's hands"


def test_an_iteration_accepts_a_poll_at_a_time(coordinator: FakeCoordinator) -> None:
    async def run() -> tuple[list[tuple[int, int]], list[Ack]]:
        config = {"bootstrap.servers": coordinator.address, "group.id": "g"}
        async with AsyncShareConsumer({**config, "max.poll.records": 16}) as consumer:
            await consumer.subscribe(["t"])
            stream = await asyncio.to_thread(coordinator.stream)
            stream.send(make_batch(VALUES))
            async for message in consumer:
                if message.value() == VALUES[-1]:
                    break
            await asyncio.to_thread(stream.wait_for, lambda s: len(accepted(s)) == 2)
            before = accepted(stream)
            consumer.commit_async()
            await asyncio.to_thread(stream.wait_for, lambda s: len(accepted(s)) == 3)
            return before, stream.acks()

    before, acks = asyncio.run(run())
    assert before == [(0, 15), (16, 31)]
    assert [(ack.first, ack.last) for ack in acks] == [(0, 15), (16, 31), (32, 39)]


def test_an_iteration_that_was_cancelled_while_it_waited_goes_on(
    coordinator: FakeCoordinator,
) -> None:
    async def run() -> list[Any]:
        async with AsyncShareConsumer(
            {"bootstrap.servers": coordinator.address, "group.id": "g"}
        ) as consumer:
            await consumer.subscribe(["t"])
            stream = await asyncio.to_thread(coordinator.stream)
            iterator = aiter(consumer)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(iterator), 0.01)
            stream.send(make_batch([b"a"]))
            return [(await anext(iterator)).value()]

    assert asyncio.run(run()) == [b"a"]


def test_what_a_slow_loop_does_not_come_to_goes_back_in_time(coordinator: FakeCoordinator) -> None:
    async def run() -> tuple[list[Ack], list[Any]]:
        async with AsyncShareConsumer(
            {"bootstrap.servers": coordinator.address, "group.id": "g"}
        ) as consumer:
            await consumer.subscribe(["t"])
            stream = await asyncio.to_thread(coordinator.stream)
            stream.send(make_batch(VALUES[:4], remaining_ms=400))
            got = []
            async for message in consumer:
                got.append(message.value())
                if message.value() == b"0":
                    # Its handler is at work for longer than half of the lock.
                    await asyncio.to_thread(stream.wait_acks, 1)
                    stream.send(make_batch([b"next"], base=9, token=2))
                if message.value() == b"next":
                    break
            return stream.acks(), got

    acks, got = asyncio.run(run())
    assert acks[0] == Ack("t", 0, 1, 3, "RETURN", 1)
    assert got == [b"0", b"next"]


# -- exceptions between taking and returning ---------------------------------------------------


def test_records_of_a_poll_that_can_not_send_are_not_given(
    drivers: Drivers, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With so little room, the poll that takes records asks for more at once.
    consumer, stream = joined(drivers, coordinator, sharecoord_buffer_records=3)
    real = inner(consumer)
    send = real._send

    def fail(requests: Iterable[service_pb.ConsumeRequest]) -> None:
        raise MemoryError

    assert consumer.poll(0).is_empty()
    monkeypatch.setattr(real, "_send", fail)
    stream.send(make_batch(VALUES[:3]))
    with pytest.raises(MemoryError):
        consumer.poll(5)
    monkeypatch.setattr(real, "_send", send)
    assert [message.value() for message in consumer.poll(5)] == VALUES[:3]
    again = coordinator.stream()
    assert [(held.first_offset, held.last_offset) for held in again.join.lock_book] == [(0, 2)]
    assert accepted(stream) == accepted(again) == []


def test_a_thread_that_can_not_be_started_is_tried_again(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("sharecoord-reader-2") and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    config = {"bootstrap.servers": coordinator.address, "group.id": "g", "reconnect.backoff.ms": 1}
    with ShareConsumer(config) as consumer:
        consumer.subscribe(["t"])
        first = coordinator.stream()
        first.send(make_batch(VALUES[:3]))
        assert len(consumer.poll(5)) == 3
        monkeypatch.setattr(threading.Thread, "start", refuse)
        first.end()
        while not refused:
            assert consumer.poll(0.05).is_empty()
        consumer.poll(0.2)
        third = coordinator.stream()
        if third.join.join_number == 2:
            third.wait_over()  # the attempt that has no reader
            third = coordinator.stream()
        third.send(make_batch([b"next"], base=3, token=2))
        assert [message.value() for message in consumer.poll(5)] == [b"next"]


def test_what_a_deserializer_interrupts_is_not_given(coordinator: FakeCoordinator) -> None:
    interrupts = [KeyboardInterrupt]

    def read(data: Any, context: Any) -> Any:
        if data == b"1" and interrupts:
            raise interrupts.pop()
        return int(data)

    config = {"bootstrap.servers": coordinator.address, "group.id": "g", "value.deserializer": read}
    with DeserializingShareConsumer(config) as consumer:
        consumer.subscribe(["t"])
        stream = coordinator.stream()
        stream.send(make_batch(VALUES[:3]))
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(5)
        assert [message.value() for message in consumer.poll(5)] == [0, 1, 2]
        assert accepted(stream) == []


class Interrupted(BaseException):
    """What a signal's handler raises."""


class Shelf:
    """The coordinator's side of one partition, in the same thread: who has which record."""

    def __init__(self, count: int) -> None:
        self.tokens: list[int | None] = [0] * count
        """0 = available, None = done, otherwise the lock's token."""
        self.accepted: list[tuple[int, int]] = []
        """Offset and token."""
        self.last_token = 0

    def joined(self, join: service_pb.Join) -> None:
        """What the lock book does not show comes back unseen."""
        held = {
            (offset, each.lock_token)
            for each in join.lock_book
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        for offset, token in enumerate(self.tokens):
            if token is not None and (offset, token) not in held:
                self.tokens[offset] = 0

    def acknowledged(self, item: types_pb.AcknowledgedRange) -> None:
        """Takes one range."""
        for offset in range(item.first_offset, item.last_offset + 1):
            if self.tokens[offset] != item.lock_token:
                continue
            if item.type == types_pb.ACKNOWLEDGE_TYPE_ACCEPT:
                self.accepted.append((offset, item.lock_token))
            is_return = item.type == types_pb.ACKNOWLEDGE_TYPE_RETURN
            self.tokens[offset] = 0 if is_return else None

    def batches(self) -> list[types_pb.RecordBatch]:
        """Everything that is available, each record under a lock of its own."""
        found = []
        for offset, token in enumerate(self.tokens):
            if token == 0:
                self.last_token += 1
                self.tokens[offset] = self.last_token
                found.append(make_batch([b"x"], base=offset, token=self.last_token))
        return found


class InMemory(ShareConsumer):
    """A consumer on a shelf: no thread, no connection."""

    def __init__(self, shelf: Shelf, mode: str) -> None:
        config = {"group.id": "g", "max.poll.records": 3, "reconnect.backoff.ms": 0}
        super().__init__({**config, "share.acknowledgement.mode": mode})
        self.shelf = shelf
        self.generation = 0

    def _open_stream(self, connection: Connection) -> None:
        self.generation = connection.generation
        self._send(connection.requests)

    def _send(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        for request in requests:
            response = service_pb.ConsumeResponse()
            if request.HasField("join"):
                self.shelf.joined(request.join)
                response.joined.lock_duration_ms = 30_000
            for part in request.acknowledgements:
                for item in part.ranges:
                    self.shelf.acknowledged(item)
            if request.acknowledge_id:
                response.results.add(acknowledge_id=request.acknowledge_id)
            response.left = request.leave
            if not request.leave:
                response.batches.extend(self.shelf.batches())
            if response.ListFields():
                self._inbox.put(Arrival(self.generation, frame_of(response), self._now()))

    def _wait(self, wait_s: float) -> None:
        """Nothing comes from elsewhere."""


SDK = sharecoord_sdk.__path__[0]
STRIDE = 8
"""Every eighth of the places, from a random one on: all of them take half a minute."""
# Where CPython looks for signals: when a frame begins or goes on, at a jump back, and after a call.
CHECKED = ("RESUME", "JUMP_BACKWARD")


@functools.cache
def names_of(code: CodeType) -> dict[int, str]:
    """The instruction at each place of a code object."""
    return {each.offset: each.opname for each in dis.get_instructions(code)}


class Tracer:
    """Raises at one of the places where a signal's handler can, counted over all of the SDK."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0
        self._after_call: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        """A trace function."""
        if not frame.f_code.co_filename.startswith(SDK):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            name = names_of(frame.f_code).get(frame.f_lasti, "")
            is_checked = name.startswith(CHECKED) or frame in self._after_call
            self._after_call.discard(frame)
            if name.startswith("CALL"):
                self._after_call.add(frame)
            self.seen += is_checked
            if is_checked and self.seen == self.at:
                raise Interrupted
        return self


def story(consumer: InMemory, polls: list[Messages], *, explicit: bool) -> None:
    """Polls twice and commits; notes what it is given."""
    for by_one in (True, False):
        polls.append(consumer.poll(0))
        if explicit and by_one:
            for message in polls[-1]:
                consumer.acknowledge(message)
        elif explicit:
            consumer.acknowledge(polls[-1])
    consumer.commit_sync(0)


def finish(consumer: InMemory, polls: list[Messages], *, explicit: bool) -> None:
    """Goes on as a program does that has caught the exception and knows what it was given."""
    for _ in range(5):
        for message in (message for messages in polls for message in messages if explicit):
            try:
                consumer.acknowledge(message)
            except IllegalStateException:
                pass  # it is done with
        polls.append(consumer.poll(0))
    consumer.commit_sync(0)
    consumer.close()


def place(message: Message) -> tuple[int, int]:
    """Offset and token of a delivery."""
    origin = origin_of(message)
    assert origin is not None
    columns, row = origin
    lock = columns.lock_at(row)
    assert lock is not None
    return columns.offset_at(row), lock.token


@pytest.mark.parametrize("explicit", [False, True])
def test_an_exception_anywhere_loses_nothing_and_accepts_nothing_unseen(*, explicit: bool) -> None:
    """At places where a signal may be seen during two polls and a commit, one after the other.

    In a thread: what a trace function raises stays "being handled" in its thread for ever.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(interrupt_everywhere, explicit=explicit).result()


def interrupt_everywhere(*, explicit: bool) -> None:
    at, interrupted = random.randint(1, STRIDE), True
    while interrupted:
        at += STRIDE
        shelf, tracer = Shelf(5), Tracer(at)
        polls: list[Messages] = []
        consumer = InMemory(shelf, "explicit" if explicit else "implicit")
        consumer.subscribe(["t"])
        interrupted = False
        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            story(consumer, polls, explicit=explicit)
        except Interrupted:
            interrupted = True
        finally:
            sys.settrace(before)
        finish(consumer, polls, explicit=explicit)
        got = [place(message) for messages in polls for message in messages]
        where = f"interrupted at {at}: given {got}, accepted {shelf.accepted}"
        assert set(shelf.accepted) <= set(got), where
        assert len(got) == len(set(got)), where
        assert shelf.tokens == [None] * 5, where
    assert at > 300, "the story has as many places"
