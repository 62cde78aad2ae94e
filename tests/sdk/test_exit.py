"""A process that used a consumer ends at once, whatever it did and whatever the coordinator does.

Each program prints "end" when its last statement is done, and is then given END_S to be gone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sdk.fake_coordinator import FakeCoordinator, make_batch

#: From the last statement to the end of the process, on a busy machine.
END_S = 2.0
TIMEOUT_S = 60.0
ROUNDS = 2
ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import asyncio, gc, os, signal, sys, threading, time
from sharecoord_sdk import AsyncShareConsumer, ShareConsumer
CONFIG = {
    "bootstrap.servers": sys.argv[1],
    "group.id": "g",
    "share.acknowledgement.mode": "explicit",
    "socket.timeout.ms": 500,
}
def consume(consumer, wanted=2000):
    consumer.subscribe(["t"])
    taken = 0
    while taken < wanted:
        for message in consumer.poll(1):
            consumer.acknowledge(message)
            taken += 1
    return consumer
async def consume_async(consumer, wanted=2000):
    await consumer.subscribe(["t"])
    taken = 0
    while taken < wanted:
        for message in await consumer.poll(1):
            consumer.acknowledge(message)
            taken += 1
    return consumer
def said(text):
    print(text, flush=True)
def interrupt_soon():
    # Ctrl-C, when the records have run out and poll waits.
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
"""
CLOSED = """
consumer = consume(ShareConsumer(CONFIG))
consumer.commit_sync(10)
consumer.close()
said(sorted(thread.name for thread in threading.enumerate()))
said("end")
"""
IN_A_BLOCK = """
with ShareConsumer(CONFIG) as consumer:
    consume(consumer)
said("end")
"""
LEFT_OPEN = """
consumer = consume(ShareConsumer(CONFIG))
said("end")
"""
IN_A_CYCLE = """
class Holder:
    pass
holder = Holder()
holder.me = holder
holder.consumer = consume(ShareConsumer(CONFIG))
del holder
said("end")
"""
DROPPED = """
consumer = consume(ShareConsumer(CONFIG))
del consumer
gc.collect()
said("end")
"""
SYS_EXIT = """
consumer = consume(ShareConsumer(CONFIG))
said("end")
sys.exit(0)
"""
IN_A_THREAD = """
def work():
    with ShareConsumer(CONFIG) as consumer:
        consume(consumer)
thread = threading.Thread(target=work)
thread.start()
thread.join()
said("end")
"""
MANY = """
consumers = [consume(ShareConsumer(CONFIG), 1) for _ in range(5)]
for consumer in consumers[:2]:
    consumer.close()
said("end")
"""
ASYNC_CLOSED = """
async def main():
    async with AsyncShareConsumer(CONFIG) as consumer:
        await consume_async(consumer)
asyncio.run(main())
said("end")
"""
ASYNC_LEFT_OPEN = """
async def main():
    global consumer
    consumer = await consume_async(AsyncShareConsumer(CONFIG))
asyncio.run(main())
said("end")
"""
PROGRAMS = {
    "closed": CLOSED,
    "in a block": IN_A_BLOCK,
    "left open": LEFT_OPEN,
    "in a cycle": IN_A_CYCLE,
    "dropped": DROPPED,
    "sys.exit": SYS_EXIT,
    "in a thread": IN_A_THREAD,
    "many": MANY,
    "async closed": ASYNC_CLOSED,
    "async left open": ASYNC_LEFT_OPEN,
}
POLLING = """
with ShareConsumer(CONFIG) as consumer:
    consume(consumer, 1)
    consumer.commit_sync(10)
    interrupt_soon()
    try:
        while True:
            for message in consumer.poll():
                consumer.acknowledge(message)
    except KeyboardInterrupt:
        said("interrupted")
said("end")
"""
POLLING_UNGUARDED = """
consumer = consume(ShareConsumer(CONFIG), 1)
interrupt_soon()
try:
    while True:
        for message in consumer.poll():
            consumer.acknowledge(message)
finally:
    said("end")
"""
ASYNC_POLLING = """
async def main():
    async with AsyncShareConsumer(CONFIG) as consumer:
        await consume_async(consumer, 1)
        interrupt_soon()
        while True:
            for message in await consumer.poll():
                consumer.acknowledge(message)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    said("interrupted")
said("end")
"""
# The coordinator is gone, or stops answering, after the program said "ready".
LEFT_ALONE = """
consumer = consume(ShareConsumer(CONFIG), 1)
said("ready")
sys.stdin.readline()
consumer.poll(0.2)
"""
CLOSED = """
began = time.monotonic()
consumer.close()
said(f"closed {time.monotonic() - began}")
"""
END = 'said("end")\n'
ASYNC_ORPHANED = """
async def main():
    consumer = await consume_async(AsyncShareConsumer(CONFIG), 1)
    said("ready")
    sys.stdin.readline()
    await consumer.poll(0.2)
    began = time.monotonic()
    await consumer.close()
    said(f"closed {time.monotonic() - began}")
asyncio.run(main())
said("end")
"""
ORPHANS = {
    "closed": LEFT_ALONE + CLOSED + END,
    "left open": LEFT_ALONE + END,
    "async": ASYNC_ORPHANED,
}
JOINING = """
consumer = ShareConsumer(CONFIG)
consumer.subscribe(["t"])
consumer.poll(0.3)
"""
NEVER_JOINED = JOINING + CLOSED + END

COORDINATOR = """
import sys, threading
from tests.sdk.fake_coordinator import FakeCoordinator, make_batch
fake = FakeCoordinator()
print(fake.address, flush=True)
fake.stream().send(make_batch([b"x"]))
sys.stdin.readline()
"""


class Program:
    """A program in a fresh interpreter whose end is timed."""

    def __init__(self, code: str, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HEAD + textwrap.dedent(code), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._watchdog = threading.Timer(TIMEOUT_S, self._process.kill)
        self._watchdog.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._watchdog.cancel()
        self._process.kill()
        self._process.communicate()

    def wait_for(self, line: str) -> None:
        """Reads what it prints up to this line."""
        assert self._process.stdout is not None
        while not self.lines or self.lines[-1] != line:
            read = self._process.stdout.readline()
            assert read, f"ended early: {self.lines}, {self._errors()}"
            self.lines.append(read.strip())

    def say(self) -> None:
        """Lets it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def ends(self) -> int:
        """Waits for "end"; the process must be gone soon after. Returns its exit code."""
        self.wait_for("end")
        began = time.monotonic()
        self._process.wait(TIMEOUT_S)
        took_s = time.monotonic() - began
        assert took_s < END_S, f"{took_s:.1f} s from the last statement to the end"
        return self._process.returncode

    def _errors(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read()


@dataclass
class OtherCoordinator:
    """A coordinator in a process of its own, to be killed or frozen."""

    process: subprocess.Popen[str]
    address: str


@contextmanager
def other_coordinator() -> Iterator[OtherCoordinator]:
    process = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        yield OtherCoordinator(process, process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def busy(coordinator: FakeCoordinator) -> FakeCoordinator:
    """A coordinator that sends more records than any program here takes."""

    def serve() -> None:
        while True:
            stream = coordinator.stream()
            for number in range(5):
                stream.send(make_batch([b"x" * 100] * 1000, base=number * 1000, token=number + 1))

    threading.Thread(target=_until_idle(serve), daemon=True).start()
    return coordinator


def _until_idle(serve: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            serve()
        except Exception as error:  # noqa: BLE001 - no stream for long: the test is over
            assert type(error).__name__ == "Empty"  # noqa: PT017

    return run


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_process_ends_at_once(busy: FakeCoordinator, name: str) -> None:
    for _ in range(ROUNDS):
        with Program(PROGRAMS[name], busy.address) as program:
            assert program.ends() == 0
            if name == "closed":
                assert program.lines[0] == "['MainThread']", "no thread of ours or of grpc's call"


@pytest.mark.parametrize(
    ("code", "exit_code"), [(POLLING, 0), (POLLING_UNGUARDED, -2), (ASYNC_POLLING, 0)]
)
def test_ctrl_c_ends_a_poll_and_the_process(
    busy: FakeCoordinator, code: str, exit_code: int
) -> None:
    for _ in range(ROUNDS):
        with Program(code, busy.address) as program:
            assert program.ends() == exit_code
            assert ("interrupted" in program.lines) == (exit_code == 0)


@pytest.mark.parametrize("name", ORPHANS)
@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "frozen"])
def test_a_coordinator_that_is_dead_or_frozen_keeps_no_process(
    what: signal.Signals, name: str
) -> None:
    with other_coordinator() as other, Program(ORPHANS[name], other.address) as program:
        program.wait_for("ready")
        other.process.send_signal(what)
        program.say()
        assert program.ends() == 0
        closed = [line for line in program.lines if line.startswith("closed ")]
        # socket.timeout.ms is 500.
        assert all(float(line.split()[1]) < 0.5 + END_S for line in closed)
        assert len(closed) == (name != "left open")


def test_a_coordinator_that_never_answered_keeps_no_process() -> None:
    with other_coordinator() as other:
        other.process.send_signal(signal.SIGSTOP)
        with Program(NEVER_JOINED, other.address) as program:
            assert program.ends() == 0
            assert float(program.lines[0].split()[1]) < 0.5 + END_S
