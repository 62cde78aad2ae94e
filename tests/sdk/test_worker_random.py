"""Handlers that do anything, in any order: nothing is lost, nothing is said twice."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sharecoord_sdk import Message, Reject, Retry
from sharecoord_sdk._core.link import Phase
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk._worker.batches import HeldBackError, read_batch
from sharecoord_sdk._worker.leases import Part
from sharecoord_sdk._worker.options import Behaviour
from sharecoord_sdk._worker.shell import _messages

from tests.sdk.fake_coordinator import TOPIC_ID, Ack, acks_of, make_batch
from tests.sdk.worker_world import WorkerWorld

CONCURRENCY = 4
LOCK_MS = 3_600_000
"""No lock ends by itself: what was given out is held until a word or a loss."""
ERRORS = (None, None, ValueError("no"), Retry(1), Reject("bad"))
KINDS = {type(None): "ACCEPT", ValueError: "RELEASE", Retry: "RELEASE", Reject: "REJECT"}


class WorkerMachine(RuleBasedStateMachine):
    """A worker, a coordinator that remembers what it gave and was told, and chance."""

    batch: int | None = None
    behaviour = Behaviour()

    def __init__(self) -> None:
        super().__init__()
        self.world = WorkerWorld(
            concurrency=CONCURRENCY,
            batch=self.batch,
            behaviour=self.behaviour,
            reconnect_backoff_ms=1,
        )
        self.world.join()
        self.read = 1 if self.world.sent else 0
        self.next_offset = 0
        self.token = 0
        # What each offset was given out as, while its lock is held.
        self.locked: dict[int, int] = {}
        self.jobs: list[list[Part]] = []
        # What must not run: it followed one that failed.
        self.doomed: set[int] = set()
        # What handlers decided, while their locks were held.
        self.decided: dict[int, str] = {}
        self.words: Counter[tuple[int, str]] = Counter()
        self.resendable: set[int] = set()
        self.unanswered: list[service_pb.ConsumeRequest] = []
        self.take_in()

    # -- the coordinator ----------------------------------------------------------------------

    def take_in(self) -> None:
        """Reads what was sent."""
        for request in self.world.sent[self.read :]:
            if request.acknowledge_id:
                self.unanswered.append(request)
            for ack in acks_of(request):
                self.take_ack(ack)
        self.read = len(self.world.sent)

    def take_ack(self, ack: Ack) -> None:
        for offset in range(ack.first, ack.last + 1):
            if ack.kind == "RENEW":
                continue
            again = offset in self.resendable
            assert self.locked.get(offset) == ack.token or again, f"{offset} is not held"
            if not again:
                self.words[offset, ack.kind] += 1
                assert sum(n for (at, _), n in self.words.items() if at == offset) == 1
            assert ack.kind in self.decided.get(offset, "RETURN").split("|")
            self.locked.pop(offset, None)

    @rule(count=st.integers(1, 12), split=st.integers(0, 12))
    def deliver(self, count: int, split: int) -> None:
        """Records come, under one lock or two."""
        if self.world.core.link.phase is not Phase.JOINED:
            return
        base = self.next_offset
        for size in filter(None, (min(split, count), count - min(split, count))):
            self.token += 1
            batch = make_batch(
                [b"v"] * size,
                keys=[key_of(offset) for offset in range(base, base + size)],
                base=base,
                token=self.token,
                remaining_ms=LOCK_MS,
            )
            self.world.receive(batch)
            self.locked.update(dict.fromkeys(range(base, base + size), self.token))
            base += size
        self.next_offset = base
        self.settle()

    @rule()
    def answer(self) -> None:
        """The oldest acknowledgements are answered."""
        if self.unanswered and self.world.core.link.phase is Phase.JOINED:
            request = self.unanswered.pop(0)
            result = service_pb.AcknowledgeResult(acknowledge_id=request.acknowledge_id)
            self.world.receive(results=[result])
            for ack in acks_of(request):
                self.resendable -= set(range(ack.first, ack.last + 1))
            self.settle()

    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        """The stream breaks; the next coordinator finds some locks gone."""
        if self.world.core.link.phase is not Phase.JOINED or self.world.core.is_stopping:
            return
        for request in self.unanswered:
            for ack in acks_of(request):
                self.resendable |= set(range(ack.first, ack.last + 1))
        self.unanswered.clear()
        self.world.fail()
        self.world.pass_time(2)
        book = next(r.join for r in reversed(self.world.sent) if r.HasField("join")).lock_book
        shown = {
            offset for held in book for offset in range(held.first_offset, held.last_offset + 1)
        }
        assert set(self.locked) <= shown, "every lock that is held is shown"
        self.take_in()
        held = sorted(self.locked)
        gone = data.draw(st.sets(st.sampled_from(held), max_size=3)) if held else set()
        gone -= {at for at in gone if at in self.decided}
        lost = [
            types_pb.HeldRange(
                partition=types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID),
                first_offset=offset,
                last_offset=offset,
                lock_token=self.locked.pop(offset),
            )
            for offset in sorted(gone)
        ]
        self.world.receive(joined=service_pb.Joined(lock_duration_ms=LOCK_MS, lost=lost))
        self.settle()

    # -- the handlers -------------------------------------------------------------------------

    @rule(most=st.integers(1, 6))
    def start(self, most: int) -> None:
        """Slots take what they can."""
        for _ in range(most):
            lease = self.world.core.head(self.world.now)
            if lease is None:
                break
            if self.batch:
                parts = self.world.core.start_batch(lease, self.world.now)
            else:
                row = self.world.core.locks.start(lease)
                parts = [Part(lease, row, row + 1)]
            self.jobs.append(parts)
            self.check_start(parts)
        self.settle()

    def check_start(self, parts: list[Part]) -> None:
        """What order asks of a start."""

    def note_released(self, offsets: list[int]) -> None:
        """A handler released records whose locks we have."""

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 100), error=st.sampled_from(ERRORS))
    def finish(self, which: int, error: Exception | None) -> None:
        """A handler returns or raises."""
        parts = self.jobs.pop(which % len(self.jobs))
        kinds = {at: self.kind_of(at, error) for at in rows_of(parts) if at in self.locked}
        self.decided |= kinds
        self.note_released([at for at, kind in kinds.items() if kind == "RELEASE"])
        if error is None and not self.batch:
            self.world.accept(*parts)
        else:
            self.world.core.settle(parts, error)

    def kind_of(self, offset: int, error: Exception | None) -> str:
        """What becomes of a record when its handler returns or raises this."""
        return KINDS[type(error)]

    @rule(seconds=st.sampled_from([0.0, 0.001, 1.0, 5.0]))
    def publish(self, seconds: float) -> None:
        """Time goes by, and what is due is sent."""
        self.world.pass_time(seconds)
        self.world.publish()
        self.settle()

    @rule()
    def stop(self) -> None:
        """The drain begins."""
        self.world.core.begin_stop(self.world.now)
        self.settle()

    def settle(self) -> None:
        """What a shell does after each event."""
        self.world.drive()
        self.take_in()

    @invariant()
    def slots_are_bounded(self) -> None:
        locks: Any = self.world.locks
        assert locks.jobs == len(self.jobs) <= CONCURRENCY
        assert locks.running == sum(p.stop - p.start for parts in self.jobs for p in parts)

    def teardown(self) -> None:
        """Everything ends: every lock has its word, and each word is what a handler decided."""
        core = self.world.core
        self.world.publish()
        self.take_in()
        while self.jobs:
            self.finish(0, None)
        core.begin_stop(self.world.now)
        self.settle()
        core.begin_close(self.world.now)
        self.settle()
        for _ in range(100):
            if not self.unanswered:
                break
            self.answer()
        assert self.locked == {}, "nothing is lost"
        assert (self.world.locks.jobs, self.world.locks.running) == (0, 0)
        assert self.world.locks.waiting == 0
        assert self.world.locks.leases == {}
        assert self.world.sent[-1].leave or not self.next_offset


class BatchMachine(WorkerMachine):
    """The same with handlers of batches."""

    batch = 3


class OrderMachine(WorkerMachine):
    """The same with order by key."""

    behaviour = Behaviour(ordering="key")

    def check_start(self, parts: list[Part]) -> None:
        """Of a key that is no None, this call alone has records, and none before them waits."""
        mine = rows_of(parts)
        assert not self.doomed & set(mine), "it follows one that failed"
        others = [offset for job in self.jobs if job is not parts for offset in rows_of(job)]
        for offset in filter(key_of, mine):
            assert key_of(offset) not in map(key_of, others), "one at a time"
            earlier = [
                at
                for at in self.locked
                if at < offset and key_of(at) == key_of(offset) and at not in self.decided
            ]
            assert set(earlier) <= set(mine), "in order"
        assert mine == sorted(mine) or self.batch

    def note_released(self, offsets: list[int]) -> None:
        """Later records of the same keys that wait now run never more."""
        running = {at for job in self.jobs for at in rows_of(job)}
        for offset in filter(key_of, offsets):
            self.doomed |= {
                at
                for at in self.locked
                if at > offset and key_of(at) == key_of(offset) and at not in self.decided
            } - running

    @invariant()
    def all_that_waits_stands_in_lanes(self) -> None:
        assert self.world.locks.waiting == self.world.locks.lines["t"].waiting


class OrderedBatchMachine(OrderMachine):
    """Order and batches."""

    batch = 3


class ValueMachine(BatchMachine):
    """Batches of which some records can not be read."""

    def __init__(self) -> None:
        # What became of those that a handler did not get.
        self.unread: dict[int, Exception] = {}
        super().__init__()

    def check_start(self, parts: list[Part]) -> None:
        """Reads the values, as the call of a handler does."""
        super().check_start(parts)
        found = read_batch(_messages(parts), _read, self.behaviour.ordering)
        mine = rows_of(parts)
        self.unread |= {mine[at]: error for at, error in found.errors.items()}
        seen = [at for at in mine if at not in self.unread]
        assert [each.offset() for each in found.messages] == found.values == seen
        if self.behaviour.ordering is None:
            assert not any(unreadable(at) is None for at in mine if at in self.unread)
            return
        for offset in seen:
            before = [at for at in mine if at < offset and key_of(at) == key_of(offset)]
            failed = [at for at in before if key_of(at) and at in self.unread]
            assert all(isinstance(self.unread[at], Reject) for at in failed), "held back"

    def kind_of(self, offset: int, error: Exception | None) -> str:
        """What can not be read has its own outcome, whatever the handler does."""
        own = self.unread.get(offset)
        # RELEASE when the lock of what it follows is lost.
        return "RETURN|RELEASE" if isinstance(own, HeldBackError) else KINDS[type(own or error)]


class OrderedValueMachine(ValueMachine, OrderMachine):
    """Order, batches, and values that can not be read."""


def unreadable(offset: int) -> Exception | None:
    """What reading a value raises: nothing, mostly."""
    return (None, None, None, ValueError("away"), None, Reject("bad"), None, Retry(1))[
        offset * 5 % 8
    ]


def _read(message: Message) -> int | None:
    offset = message.offset() or 0
    if error := unreadable(offset):
        raise error
    return offset


def key_of(offset: int) -> bytes | None:
    """Two keys and none, in a pattern with runs."""
    return (None, b"a", b"a", b"b", b"a", b"b", b"b")[offset * offset % 7]


def rows_of(parts: list[Part]) -> list[int]:
    """The offsets of a call."""
    return [p.lease.columns.offset_at(row) for p in parts for row in range(p.start, p.stop)]


def case_of(machine: type[RuleBasedStateMachine], examples: int) -> type[TestCase]:
    """A machine as a test that pytest finds."""
    case: type[TestCase] = machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=40, deadline=None)
    return case


TestWorker = case_of(WorkerMachine, 60)
TestBatches = case_of(BatchMachine, 40)
TestOrder = case_of(OrderMachine, 60)
TestOrderedBatches = case_of(OrderedBatchMachine, 40)
TestValues = case_of(ValueMachine, 40)
TestOrderedValues = case_of(OrderedValueMachine, 60)
