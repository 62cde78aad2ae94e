"""How a `Worker` ends, and what it does when the coordinator goes: from outside."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading

import grpc
import pytest
from sharecoord_sdk import (
    IllegalStateException,
    KafkaException,
    Message,
    Worker,
)
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from tests.sdk.fake_coordinator import TOPIC_ID, Ack, FakeCoordinator, Refusal, make_batch
from tests.sdk.worker_running import PATIENCE_S, Gate, Make, covered, gated, values, wait_covered

# -- the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_stop_lets_handlers_finish_and_hands_back_the_rest(kind: str, make: Make) -> None:
    running = make(concurrency=2)
    gate, stream = gated(running, kind, 5)
    gate.wait_inside(2)
    running.worker.stop()
    assert stream.wait_acks(1) == [Ack("t", 0, 2, 4, "RETURN", 1)]
    gate.let_all()
    running.join()
    assert stream.acks()[1:] == [Ack("t", 0, 0, 1, "ACCEPT", 1)] or covered(stream.acks()[1:]) == [
        0,
        1,
    ]
    assert stream.requests[-1].leave
    assert gate.most == 2
    assert running.error is None


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_what_does_not_finish_in_time_is_not_acknowledged(
    kind: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    running = make(drain_timeout_s=0)
    gate, stream = gated(running, kind, 2)
    gate.wait_inside(2)
    running.stop()
    assert stream.acks() == []
    assert stream.requests[-1].leave
    assert "drain_timeout_s = 0 s" in caplog.text
    if kind == "coroutine":
        assert gate.inside == [], "cancelled"
    else:
        gate.let_all()


def test_a_handler_that_ends_in_order_when_cancelled_is_accepted(make: Make) -> None:
    running = make(drain_timeout_s=0)
    inside = threading.Event()

    @running.worker.handler("t")
    async def handle(message: Message) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    stream = running.start()
    stream.send(make_batch([b"a"]))
    assert inside.wait(PATIENCE_S)
    running.stop()
    assert stream.acks() == [Ack("t", 0, 0, 0, "ACCEPT", 1)]


def test_the_leave_waits_until_results_are_confirmed(
    make: Make, coordinator: FakeCoordinator
) -> None:
    coordinator.script.answers_acknowledgements = False
    running = make()
    running.worker.handler("t")(Gate.pass_through)
    stream = running.start()
    stream.send(make_batch([b"a"]))
    stream.wait_acks(1)
    running.worker.stop()
    stream.wait_for(lambda s: any(r.HasField("subscription") for r in s.requests))
    assert not any(request.leave for request in stream.requests)
    coordinator.script.answers_acknowledgements = True
    for number in {request.acknowledge_id for request in stream.requests} - {0}:
        stream.answer(number)
    running.join()
    assert stream.requests[-1].leave


def test_stop_before_run_and_a_second_run(coordinator: FakeCoordinator) -> None:
    worker = Worker({"bootstrap.servers": coordinator.address, "group.id": "g"})
    worker.handler("t")(print)
    worker.stop()
    worker.run()
    assert coordinator.stream_now() is None
    worker.stop()
    with pytest.raises(IllegalStateException, match="make a new one"):
        worker.run()


async def test_run_async_drains_when_cancelled(coordinator: FakeCoordinator) -> None:
    worker = Worker({"bootstrap.servers": coordinator.address, "group.id": "g"})
    handled = asyncio.Event()

    @worker.handler("t")
    async def handle(message: Message) -> None:
        handled.set()

    with pytest.raises(IllegalStateException, match="run_async"):
        worker.run()
    task = asyncio.create_task(worker.run_async())
    stream = await asyncio.to_thread(coordinator.stream)
    stream.send(make_batch([b"a"]))
    await asyncio.wait_for(handled.wait(), PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.acks() == [Ack("t", 0, 0, 0, "ACCEPT", 1)]
    assert stream.requests[-1].leave


def test_a_refusal_ends_the_run(make: Make, coordinator: FakeCoordinator) -> None:
    refusal = Refusal(grpc.StatusCode.PERMISSION_DENIED, "not yours", "AUTHORIZATION_FAILED")
    coordinator.script.refusals.append(refusal)
    running = make()
    running.worker.handler("t")(print)
    running.start()
    running.join()
    assert isinstance(running.error, KafkaException)
    assert "not yours" in str(running.error)


def test_a_lost_lock_is_told_with_the_handlers_name(
    make: Make, coordinator: FakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = types_pb.RangeOutcome(
        first_offset=1, last_offset=1, outcome=types_pb.ACKNOWLEDGE_OUTCOME_LOCK_LOST
    )
    place = types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID)
    coordinator.script.outcomes = lambda acks: [
        types_pb.PartitionOutcome(partition=place, exceptions=[outcome])
    ]
    running = make()

    @running.worker.handler("t")
    async def handle_orders(message: Message) -> None:
        pass

    stream = running.start()
    stream.send(make_batch(values(3)))
    wait_covered(stream, 3)
    running.stop()
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "handle_orders of t [0] offsets 1 is dropped" in record.message


def test_a_broken_stream_is_joined_again_with_the_locks(make: Make) -> None:
    gate = Gate()
    running = make(concurrency=2)
    running.worker.handler("t")(gate.coroutine)
    stream = running.start()
    stream.send(make_batch(values(3), token=5))
    gate.wait_inside(2)
    stream.end(Refusal(grpc.StatusCode.UNAVAILABLE, "gone"))
    second = running.coordinator.stream()
    assert [(h.first_offset, h.last_offset) for h in second.join.lock_book] == [(0, 2)]
    gate.let_all()
    assert wait_covered(second, 3) == [0, 1, 2]


PROGRAM = """
import asyncio
from sharecoord_sdk import Worker

worker = Worker({"bootstrap.servers": %r, "group.id": "g"}, concurrency=2)

@worker.handler("t")
async def handle(message):
    print("started", flush=True)
    if message.value() != b"short":
        await asyncio.sleep(1000)
    %s

worker.run()
print("returned", flush=True)
"""


def start_program(coordinator: FakeCoordinator, line: str = "") -> subprocess.Popen[str]:
    """A program with a worker, in a process of its own."""
    code = PROGRAM % (coordinator.address, line)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(number: signal.Signals, coordinator: FakeCoordinator) -> None:
    process = start_program(coordinator)
    try:
        stream = coordinator.stream()
        stream.send(make_batch([b"short"]))
        stream.wait_acks(1)
        process.send_signal(number)
        out, errors = process.communicate(timeout=PATIENCE_S)
        assert (out, errors, process.returncode) == ("started\nreturned\n", "", 0)
        assert stream.requests[-1].leave
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)]
)
def test_a_second_signal_ends_at_once(
    number: signal.Signals, code: int, coordinator: FakeCoordinator
) -> None:
    process = start_program(coordinator)
    try:
        stream = coordinator.stream()
        stream.send(make_batch([b"long", b"long", b"waits"]))
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert stream.wait_acks(1)[0].kind == "RETURN"
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code
        assert not any(request.leave for request in stream.requests)
    finally:
        process.kill()
        process.communicate()
