"""Coordinators of one process that see and reach each other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.testing.harness import FakeMember, VirtualStoreCaller
from tests.unit.runtime.worlds import at_work, until
from tests.world import World

INFO = CoordinatorInfo("1.2.3", "fake-cluster", "kafka:9092", "memory:")


class Fleet:
    """Coordinators that see and reach each other."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.log.is_shared = True
        self.all: dict[str, Coordinator] = {}

    async def close(self) -> None:
        """All go down."""
        for coordinator in self.all.values():
            await coordinator.close()

    async def add(self, *names: str) -> None:
        """They start, and share-partitions move to them."""
        for name in names:
            coordinator = self.all[name] = self.world.build(name, fleet=True)
            await coordinator.start()
            assert coordinator.watch is not None, "of a fleet"
            await coordinator.watch.announce(f"{name}:7070", f"{name}:7072")
        await self.see()

    async def see(self) -> None:
        """All have looked who is there; each does so by itself, too."""
        for coordinator in list(self.all.values()):
            assert coordinator.watch is not None, "of a fleet"
            await coordinator.watch.look()

    async def kill(self, name: str) -> None:
        """As kill -9, seen by the others; its lease has ended when this returns."""
        coordinator = self.all.pop(name)
        self.world.peers.gone(name)
        lease_ends_ms = self.world.database.leases[name]
        await self.world.kill(coordinator)
        self.world.database.leases[name] = lease_ends_ms
        await until(lambda: self.world.database.clock_ms() > lease_ends_ms, step_s=0.1)
        await self.see()

    async def drain(self, name: str) -> None:
        """As SIGTERM: it goes in good order."""
        coordinator = self.all.pop(name)
        await coordinator.drain()
        self.world.peers.gone(name)
        await coordinator.close()

    def admin(self, name: str) -> Admin:
        """What an operator does at one of them."""
        return admin_of(self.all[name])

    def caller(self, name: str) -> VirtualStoreCaller:
        """The way of one of them to the store."""
        caller = self.all[name].context.caller
        assert isinstance(caller, VirtualStoreCaller), "of these tests"
        return caller

    def owned(self) -> dict[str, set[int]]:
        """Which partitions each one serves."""
        return {
            name: {p for _, p in coordinator.groups["g"].partitions}
            for name, coordinator in self.all.items()
            if "g" in coordinator.groups
        }


@contextlib.asynccontextmanager
async def fleet_of(world: World, *names: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(world)
    await fleet.add(*names)
    yield fleet
    await fleet.close()


@contextlib.asynccontextmanager
async def joined_fleet(
    world: World, *names: str, at: str = "a", **wishes: Any
) -> AsyncIterator[tuple[Fleet, FakeMember]]:
    """A fleet, and a member whose stream is `at` one of them; its wishes as `World.joined` has."""
    async with fleet_of(world, *names) as fleet:
        yield fleet, await world.joined(fleet.all[at], **wishes)


def admin_of(coordinator: Coordinator) -> Admin:
    """What an operator does at one of them."""
    return Admin(coordinator, INFO)


def everything_finished(world: World, records: int) -> bool:
    heads = [partition.row.head for partition in world.database.partitions.values()]
    return sum(head.start_offset for head in heads if head) == records


async def finish(world: World, member: FakeMember, records: int) -> None:
    """A member works until everything is finished, `records` in all."""
    async with at_work(member):
        await until(lambda: everything_finished(world, records), step_s=0.1)
