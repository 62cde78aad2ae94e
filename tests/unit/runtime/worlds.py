"""What the tests of the runtime share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sharecoord.core.delivery import Delivery
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.testing.fake_log import FakeLog
from sharecoord.testing.harness import FakeMember
from tests.world import World, running

TOPICS = ("orders",)


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


async def joined(
    world: World, coordinator: Coordinator, member_id: str = "m", **wishes: Any
) -> FakeMember:
    """Adds a member of group `g` that reads `orders`; its wishes are those of `FakeMember.join`."""
    member = world.member(member_id)
    await member.join(coordinator, "g", TOPICS, **wishes)
    return member


@asynccontextmanager
async def one_member(
    world: World, member_id: str = "m", **wishes: Any
) -> AsyncIterator[tuple[Coordinator, FakeMember]]:
    """Runs a coordinator with one member, see `joined`, for the length of a block."""
    async with running(world) as coordinator:
        yield coordinator, await joined(world, coordinator, member_id, **wishes)


@asynccontextmanager
async def at_work(*members: FakeMember, seconds_per_record: float = 0.0) -> AsyncIterator[None]:
    """Lets members accept whatever comes, for the length of a block."""
    working = [asyncio.create_task(m.work(seconds_per_record=seconds_per_record)) for m in members]
    yield
    for task in working:
        task.cancel()


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
