"""What becomes of records of a batch whose value can not be read, and of the others."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sharecoord_sdk import (
    BatchOutcome,
    Breaker,
    Message,
    Reject,
    Retry,
)
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk._worker.binding import bind
from sharecoord_sdk._worker.options import Behaviour
from sharecoord_sdk._worker.shell import _messages
from sharecoord_sdk.contrib.avro import AvroReader
from sharecoord_sdk.testing import make_messages, run_handler
from sharecoord_sdk.values import BadValueError

from tests.sdk.fake_coordinator import TOPIC_ID, Ack, make_batch
from tests.sdk.worker_running import PATIENCE_S, Make, wait_covered
from tests.sdk.worker_world import WorkerWorld

CallNext = Callable[[Any], Awaitable[Any]]


@dataclass
class Order:
    id: int


def orders(*ids: object) -> list[bytes | None]:
    """Values of orders; what is no number can not be read."""
    return [json.dumps({"id": each}).encode() for each in ids]


def plain_or_async(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or a coroutine function that calls it, with the same hints."""

    @functools.wraps(function)
    async def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call if kind == "async" else function


# -- what can not be read -----------------------------------------------------------------------


def fails_for_some(message: Message, error: BadValueError) -> Any:
    """Another outcome for each kind of value."""
    match message.value():
        case None:
            return Reject("a tombstone")
        case b"later":
            return Retry(after_s=60, reason="not yet")
        case b"nonsense":
            return None
        case b"bug":
            raise KeyError("bug")
    return Reject


MIXED = [*orders(0, "one", 2), None, b"later", b"nonsense", b"bug", b"{", *orders(8)]


def acks_of(running: Any, values: Sequence[bytes | None]) -> list[Ack]:
    stream = running.start()
    stream.send(make_batch(values))
    assert wait_covered(stream, len(values)) == list(range(len(values)))
    running.stop()
    by_offset = [
        Ack(a.topic, a.partition, at, at, a.kind, a.token, a.delay_ms, a.reason)
        for a in stream.acks()
        for at in range(a.first, a.last + 1)
    ]
    return sorted(by_offset, key=lambda ack: ack.first)


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_each_is_settled_as_it_would_be_alone_and_the_others_reach_the_handler(
    kind: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "sharecoord_sdk")
    seen: list[tuple[list[int | None], list[Order]]] = []

    def alone(order: Order) -> None: ...

    def together(messages: list[Message], given: list[Order]) -> None:
        seen.append(([each.offset() for each in messages], given))

    acks, texts = [], []
    for settings, function in (({}, alone), ({"batch": 100}, together)):
        running = make()
        handler = plain_or_async(kind, function)
        handler.__qualname__ = "handle"
        running.worker.handler("t", on_bad_value=fails_for_some, **settings)(handler)
        acks.append(acks_of(running, MIXED))
        texts.append(sorted(record.message for record in caplog.records))
        caplog.clear()
    assert acks[1] == acks[0]
    assert texts[1] == texts[0], "the log says the same, too"
    assert len(texts[0]) == 2
    assert [(ack.kind, ack.reason) for ack in acks[1][1:5]] == [
        ("REJECT", "bad value: id: must be an integer, not str 'one'"),
        ("ACCEPT", ""),
        ("REJECT", "a tombstone"),
        ("RELEASE", "not yet"),
    ]
    assert seen == [([0, 2, 8], [Order(0), Order(2), Order(8)])]


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_batch_of_which_nothing_can_be_read_does_not_call_the_handler(
    kind: str, make: Make
) -> None:
    running, calls = make(), list[Any]()

    def handle(given: list[Order]) -> None:
        calls.append(given)

    running.worker.handler("t", batch=100)(plain_or_async(kind, handle))
    acks = acks_of(running, orders("a", "b"))
    assert calls == []
    assert [(ack.kind, ack.reason) for ack in acks] == [
        ("REJECT", "bad value: id: must be an integer, not str 'a'"),
        ("REJECT", "bad value: id: must be an integer, not str 'b'"),
    ]


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (BatchOutcome({1: Retry(5)}), "ACCEPT, REJECT, RELEASE"),
        ([None, Retry(5)], "ACCEPT, REJECT, RELEASE"),
        ([Reject("of the handler"), None], "REJECT, REJECT, ACCEPT"),
        ([None] * 3, "RELEASE, REJECT, RELEASE"),
        (BatchOutcome({2: Retry}), "RELEASE, REJECT, RELEASE"),
        (7, "RELEASE, REJECT, RELEASE"),
        (RuntimeError("raised"), "RELEASE, REJECT, RELEASE"),
    ],
)
def test_places_are_those_of_what_the_handler_saw(
    kind: str, result: Any, expected: str, make: Make
) -> None:
    running = make()

    def handle(given: list[Order]) -> Any:
        assert given == [Order(0), Order(2)]
        if isinstance(result, RuntimeError):
            raise result
        return result

    running.worker.handler("t", batch=100)(plain_or_async(kind, handle))
    acks = acks_of(running, orders(0, "one", 2))
    assert ", ".join(ack.kind for ack in acks) == expected
    assert acks[1].reason == "bad value: id: must be an integer, not str 'one'"
    nonsense = {3: "returned 3 outcomes for 2 messages", 2: "place 2 of 2 messages"}
    if isinstance(result, list) and len(result) == 3:
        assert nonsense[3] in acks[0].reason
    if isinstance(result, BatchOutcome) and 2 in result.failed:
        assert nonsense[2] in acks[2].reason


def test_a_result_that_has_not_run_releases_what_the_handler_saw(make: Make) -> None:
    running = make()

    async def inner() -> None:
        raise AssertionError("never awaited")

    @running.worker.handler("t", batch=100)
    def handle(given: list[Order]) -> Any:
        return inner()

    acks = acks_of(running, orders(0, "one"))
    assert [ack.kind for ack in acks] == ["RELEASE", "REJECT"]
    assert "that nobody runs" in acks[0].reason


def test_a_registry_that_is_away_releases_those_that_need_it(make: Make) -> None:
    running, seen = make(), list[Any]()

    def resolver(schema_id: int) -> Any:
        if schema_id == 2:
            raise ConnectionError("registry is away")
        return '"int"'

    def handle(messages: list[Message], given: list[int]) -> None:
        seen.append(given)

    reader = AvroReader(resolver=resolver)
    running.worker.handler("t", batch=100, value=reader, on_error={ConnectionError: Retry(9)})(
        handle
    )
    framed = [b"\0\0\0\0" + bytes((schema, 2 * at)) for at, schema in enumerate((1, 2, 1))]
    acks = acks_of(running, framed)
    assert [(ack.kind, ack.delay_ms) for ack in acks] == [
        ("ACCEPT", 0),
        ("RELEASE", 9000),
        ("ACCEPT", 0),
    ]
    assert seen == [[0, 2]]


def test_one_outcome_for_all_keeps_nothing_of_what_raised_it() -> None:
    unusable = Reject("unusable")

    def frames() -> int:
        found, count = unusable.__traceback__, 0
        while found is not None:
            found, count = found.tb_next, count + 1
        return count

    def handle(given: list[Order]) -> None: ...

    run_handler(handle, make_messages(orders("a")), on_bad_value=unusable)
    first = frames()
    run_handler(handle, make_messages(orders("a", "b", "c")), on_bad_value=unusable)
    assert frames() == first > 0


# -- what is around it --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_middleware_gets_all_messages_and_all_outcomes(kind: str, make: Make) -> None:
    running, seen = make(), list[Any]()

    @running.worker.middleware
    async def opened(messages: list[Message], call_next: CallNext) -> Any:
        for message in messages:
            message.set_value(message.value().removeprefix(b"sealed "))
        found = await call_next(list(messages))
        seen.append((len(messages), [str(each) for each in found]))
        return found

    def handle(given: list[Order]) -> Any:
        return [None, Retry(3)]

    running.worker.handler("t", batch=100)(plain_or_async(kind, handle))
    acks = acks_of(running, [b"sealed %s" % (each or b"") for each in orders(0, "one", 2)])
    assert [(ack.kind, ack.delay_ms) for ack in acks] == [
        ("ACCEPT", 0),
        ("REJECT", 0),
        ("RELEASE", 3000),
    ]
    bad = "bad value: id: must be an integer, not str 'one'"
    assert seen == [(3, ["None", bad, "retry after 3 s"])]


def test_middleware_that_tries_again_has_the_last_word_about_what_can_be_read(make: Make) -> None:
    running, seen = make(), list[Any]()
    is_away = True

    def late(data: bytes) -> Any:
        if is_away and data == b"2":
            raise ValueError("not yet")
        return int(data)

    @running.worker.middleware
    async def again(messages: list[Message], call_next: CallNext) -> Any:
        nonlocal is_away
        await call_next(messages)
        is_away = False
        return await call_next(messages)

    running.worker.handler("t", batch=100, value=late)(lambda given: seen.append(given))
    acks = acks_of(running, [b"1", b"2"])
    assert [ack.kind for ack in acks] == ["ACCEPT", "ACCEPT"]
    assert seen == [[1], [1, 2]]


def test_a_time_limit_is_that_of_what_the_handler_saw(make: Make) -> None:
    running = make()

    @running.worker.handler("t", batch=100, timeout=0.02)
    async def handle(given: list[Order]) -> None:
        await asyncio.sleep(PATIENCE_S)

    acks = acks_of(running, orders(0, "one", 2))
    assert [(ack.kind, ack.reason.partition(":")[0]) for ack in acks] == [
        ("RELEASE", "TimeoutError"),
        ("REJECT", "bad value"),
        ("RELEASE", "TimeoutError"),
    ]


# -- locks, order, breakers ---------------------------------------------------------------------


class Called:
    """A call of a handler of batches of numbers, in a world without a loop.

    Args:
        world: With a handler of batches.
        outcome: What becomes of a value that is no number.
        away: A value that raises `ConnectionError` instead.
    """

    def __init__(self, world: WorkerWorld, outcome: Any = Retry, away: bytes = b"") -> None:
        def number(data: bytes) -> int:
            if data == away:
                raise ConnectionError("away")
            try:
                return int(data)
            except ValueError as error:
                raise BadValueError(str(error)) from error

        number.tells_bad_values = True  # type: ignore[attr-defined]
        self.world = world
        self.seen: list[int] = []
        self.parts = world.start_batch()
        ordering = self.parts[0].lease.handler.behaviour.ordering
        binding = bind(
            self._handle, name="handle", is_batch=True, value=number, on_bad_value=outcome
        )
        call = binding.applied(self._handle, is_async=False, ordering=ordering)
        self.result = call(_messages(self.parts))

    def _handle(self, given: list[int]) -> None:
        self.seen = given

    def end(self) -> None:
        """The call returns, and what it did is sent."""
        self.world.core.finish(self.parts, self.result, self.world.now)
        self.world.publish()


def world_of(
    values: list[bytes | None],
    keys: list[bytes | None] | None = None,
    *,
    batch: int = 100,
    **behaviour: Any,
) -> WorkerWorld:
    world = WorkerWorld(behaviour=Behaviour(**behaviour), batch=batch)
    world.join()
    world.receive(make_batch(values, keys=keys or [b"a"] * len(values)))
    return world


def kinds(world: WorkerWorld) -> dict[int, str]:
    return {
        at: ack.kind
        for ack in world.acks()
        if ack.kind != "RENEW"
        for at in range(ack.first, ack.last + 1)
    }


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_what_follows_one_that_is_to_come_again_goes_back_unseen(ordering: str) -> None:
    keys: list[bytes | None] = [b"a", b"a", b"b", b"a", None, b"a"]
    values: list[bytes | None] = [b"0", b"x", b"2", b"3", b"4", b"5"]
    world = world_of(values, keys, ordering=ordering)
    call = Called(world)
    assert sorted(call.seen) == ([0, 2, 4] if ordering == "key" else [0])
    world.receive(make_batch([b"6"], keys=[b"a"], base=6, token=2))
    call.end()
    back = (3, 5, 6) if ordering == "key" else (2, 3, 4, 5, 6)
    accepted = dict.fromkeys(call.seen, "ACCEPT")
    assert kinds(world) == {**accepted, 1: "RELEASE", **dict.fromkeys(back, "RETURN")}
    assert (world.locks.jobs, world.locks.running, world.locks.waiting) == (0, 0, 0)
    world.receive(make_batch([b"7"], keys=[b"a"], base=7, token=3))
    assert world.core.head(world.now) is None, "nothing of the key runs before it is known"
    world.answer()
    world.receive(make_batch([b"1", b"3", b"5"], keys=[b"a"] * 3, base=20, token=4))
    assert Called(world).seen == [1, 3, 5]


def test_one_that_is_rejected_lets_those_after_it_reach_the_handler() -> None:
    world = world_of([b"0", b"x", b"2"], ordering="key")
    call = Called(world, Reject)
    assert call.seen == [0, 2]
    call.end()
    assert kinds(world) == {0: "ACCEPT", 1: "REJECT", 2: "ACCEPT"}


@pytest.mark.parametrize(("ordering", "key"), [(None, b"a"), ("key", None)])
def test_without_order_only_the_record_itself_comes_again(
    ordering: str | None, key: bytes | None
) -> None:
    # With a key elsewhere: columns without any have no list of them.
    keys = [key, key, key, b"other"]
    world = world_of([b"0", b"x", b"2", b"3"], keys, ordering=ordering)
    call = Called(world)
    assert sorted(call.seen) == [0, 2, 3]
    call.end()
    assert kinds(world) == {0: "ACCEPT", 1: "RELEASE", 2: "ACCEPT", 3: "ACCEPT"}


def test_what_was_held_back_for_one_that_is_rejected_after_all_keeps_its_order() -> None:
    world = world_of(
        [b"0", b"1", b"2", b"3"], ordering="key", batch=3, on_error={ConnectionError: Reject}
    )
    call = Called(world, away=b"0")
    assert call.seen == []
    call.end()
    assert kinds(world) == {0: "REJECT", 1: "RELEASE", 2: "RETURN", 3: "RETURN"}
    assert world.core.head(world.now) is None
    world.answer()
    world.receive(make_batch([b"1"], keys=[b"a"], base=1, token=2))
    assert Called(world).seen == [1]


def test_what_ends_a_call_from_outside_is_the_outcome_of_what_the_handler_saw() -> None:
    world = world_of([b"0", b"x", b"2"])
    call = Called(world, Reject)
    # As when a plain handler is not waited for any more.
    world.core.settle(call.parts, TimeoutError("too long"), world.now)
    world.publish()
    assert kinds(world) == {0: "RELEASE", 1: "REJECT", 2: "RELEASE"}
    assert (world.locks.jobs, world.locks.running, world.locks.leases) == (0, 0, {})


def test_locks_are_renewed_while_the_handler_runs_and_those_that_are_lost_have_no_outcome() -> None:
    world = world_of([b"0", b"x", b"2", b"y"])
    call = Called(world, Reject)
    world.pass_time(15)
    assert [(a.first, a.last, a.kind) for a in world.acks()] == [(0, 3, "RENEW")]
    lost = types_pb.RangeOutcome(
        first_offset=3, last_offset=3, outcome=types_pb.ACKNOWLEDGE_OUTCOME_LOCK_LOST
    )
    place = types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID)
    world.answer(types_pb.PartitionOutcome(partition=place, exceptions=[lost]))
    call.end()
    assert kinds(world) == {0: "ACCEPT", 1: "REJECT", 2: "ACCEPT"}
    assert (world.locks.jobs, world.locks.running, world.locks.leases) == (0, 0, {})


def test_a_breaker_counts_each_record_that_failed_for_what_it_depends_on() -> None:
    policy = Breaker(failures=2, errors=(ConnectionError,))
    for away, state in ((1, "closed"), (2, "open")):
        values: list[bytes | None] = [b"x", *[b"1"] * away, b"3"]
        world = world_of(values, breaker=policy)
        Called(world, Reject, away=b"1").end()
        assert world.core.states() == {"t": state}
