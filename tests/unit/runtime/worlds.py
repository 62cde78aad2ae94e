"""What the tests of the runtime share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from sharecoord.core.delivery import Delivery
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.member.session import Session
from sharecoord.testing.fake_log import FakeLog
from sharecoord.testing.harness import FakeMember
from tests.world import World


class At(RuntimeClock):
    """A clock that shows one time, the same as the store's."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self.store_offset_ms = 0

    def now_ms(self) -> int:
        return self.at_ms

    def to_store(self, ms: int) -> int:
        return ms

    def from_store(self, ms: int) -> int:
        return ms


def world_with(
    records: int, *, partitions: int = 1, memory_bytes: int = 64 << 20, **defaults: str
) -> World:
    """A world with topic `orders`; keyword `a_b` sets `share.a.b`."""
    log = FakeLog()
    log.create("orders", partitions)
    for partition in range(partitions):
        if records:
            log.append("orders", records, partition=partition)
    settings = {f"share.{name.replace('_', '.')}": value for name, value in defaults.items()}
    return World(log, defaults=settings, memory_bytes=memory_bytes)


async def accept(member: FakeMember, *deliveries: Delivery) -> None:
    """A member accepts deliveries, one after the other."""
    for delivery in deliveries:
        assert (await member.settle(delivery)).error is None


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Members that are asked from now on what they want, at each time anew."""
    found: list[str] = []
    wants = Session.wants

    def noted(session: Session, held: int) -> int:
        found.append(session.member_id)
        return wants(session, held)

    monkeypatch.setattr(Session, "wants", noted)
    return found


@asynccontextmanager
async def doing(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Something goes on beside a block, and ends with it."""
    tasks = [asyncio.create_task(each) for each in work]
    yield
    for task in tasks:
        task.cancel()


@asynccontextmanager
async def at_work(*members: FakeMember, seconds_per_record: float = 0.0) -> AsyncIterator[None]:
    """Lets members accept whatever comes, for the length of a block."""
    async with doing(*(m.work(seconds_per_record=seconds_per_record) for m in members)):
        yield


class Crash(NamedTuple):
    """A coordinator dies at a call to the store, which happens all the same or does not."""

    at: int
    after: bool

    @classmethod
    def at_calls(cls, calls: range) -> pytest.MarkDecorator:
        """Argument `crash` of a test: at each of these calls, once before and once after it."""
        every = [cls(call, after) for after in (False, True) for call in calls]
        return pytest.mark.parametrize("crash", every, ids=lambda each: "-".join(map(str, each)))

    async def hits(
        self, world: World, *works: Callable[[Coordinator], Coroutine[Any, Any, None]]
    ) -> bool:
        """Kills a coordinator that is at work, at the latest after 5 s; returns if at the call."""
        coordinator = world.build(crash_at=self.at, crash_after=self.after)
        caller = world.caller
        await coordinator.start()
        async with doing(*(work(coordinator) for work in works)):
            ended = asyncio.create_task(caller.crashed.wait())
            await asyncio.wait([ended], timeout=5)
        ended.cancel()
        await world.kill(coordinator)
        return caller.crashed.is_set()


def now_s() -> float:
    """Virtual time."""
    return asyncio.get_running_loop().time()


def offsets(*deliveries: Delivery) -> list[int]:
    """The offsets of deliveries, in order of arrival."""
    return [o for d in deliveries for r in d.ranges for o in range(r.first, r.last + 1)]


def counts(*deliveries: Delivery) -> set[int]:
    """The delivery counts that occur."""
    return {r.delivery_count for d in deliveries for r in d.ranges}


STEPS_MAX = 200_000
"""What does not hold after so many looks never will."""


async def until(holds: Callable[[], object], *, step_s: float = 0.0) -> None:
    """Lets virtual time (or with step 0 the turns of the loop) pass until something holds."""
    steps = 0
    while not holds():
        await asyncio.sleep(step_s)
        steps += 1
        assert steps < STEPS_MAX, "it never holds"
