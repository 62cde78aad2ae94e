"""A coordinator on virtual time with its admin operations."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sharecoord.core.changes import PartitionKey
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.admin.descriptions import PartitionView
from sharecoord.runtime.admin.reset import ResetCommand, ResetTo
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.testing.fake_log import FakeLog
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import run_virtual
from tests.world import World

INFO = CoordinatorInfo("1.2.3", "fake-cluster", "kafka:9092", "memory:")


@dataclass
class Bench:
    """What a test needs: topic `orders` has two partitions, 100 records in the first."""

    log: FakeLog
    world: World
    coordinator: Coordinator
    admin: Admin

    async def member(self, name: str = "m1", group: str = "g", topic: str = "orders") -> FakeMember:
        member = self.world.member(name)
        await member.join(self.coordinator, group, (topic,), max_poll_records=500)
        return member

    async def leave(self, member: FakeMember) -> None:
        assert member.group is not None
        assert member.session is not None
        member.group.leave(member.session)
        await self.coordinator.context.committer.flush()

    async def partition(self, number: int = 0, group: str = "g") -> PartitionView:
        (found,) = await self.admin.describe_groups([group])
        return next(p for p in found.partitions if p.partition == number)

    async def reset(self, to: ResetTo, *, force: bool = False, **topics: tuple[int, ...]) -> Any:
        command = ResetCommand("g", to, topics, force=force)
        return await self.admin.reset_offsets(command)

    async def key(self, partition: int = 0, topic: str = "orders") -> PartitionKey:
        info = (await self.log.describe([topic]))[topic]
        return PartitionKey("g", topic, info.topic_id, partition)


@asynccontextmanager
async def bench(**defaults: str) -> AsyncIterator[Bench]:
    log = FakeLog()
    log.create("orders", 2)
    log.append("orders", 100)
    world = World(log, defaults=defaults or None)
    # Not `harness.running`: its ledger takes what a reset delivers again for a broken promise.
    coordinator = await world.start()
    made = Bench(log, world, coordinator, Admin(coordinator, INFO))
    try:
        yield made
    finally:
        # Some tests start another one.
        await made.coordinator.drain()
        await made.coordinator.close()
    assert world.fatal == []


def virtual(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test that takes a `Bench` on virtual time."""

    async def main() -> None:
        async with bench() as made:
            await test(made)

    # Not functools.wraps: pytest would look for a fixture of the parameter's name.
    def run() -> None:
        run_virtual(main())

    functools.update_wrapper(run, test, assigned=("__module__", "__name__", "__doc__"), updated=())
    del run.__wrapped__  # type: ignore[attr-defined]
    return run
