"""Coordinators of one process that see and reach each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from sharecoord.runtime import moves
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.testing.harness import World
from sharecoord.testing.peers import PeerLink
from tests.unit.runtime.worlds import until


class Fleet:
    """Coordinators that see and reach each other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.all: dict[str, Coordinator] = {}
        self.links: dict[tuple[str, str], PeerLink] = {}
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """As each coordinator does by itself."""
        while True:
            await asyncio.sleep(1)
            await self.see()

    async def close(self) -> None:
        """All go down."""
        self._looking.cancel()
        for coordinator in self.all.values():
            await coordinator.close()

    async def add(self, *names: str) -> None:
        """They start, and share-partitions move to them."""
        for name in names:
            coordinator = self.all[name] = self.world.build(name, fleet=True)
            await coordinator.start()
            for other in [each for each in self.all if each != name]:
                for pair in ((name, other), (other, name)):
                    self.links[pair] = PeerLink(self.all[pair[0]], self.all[pair[1]])
        await self.see()

    async def see(self) -> None:
        """All learn who is there."""
        for coordinator in list(self.all.values()):
            fleet = coordinator.context.fleet
            assert fleet is not None
            fleet.sees(self.all)
        for coordinator in list(self.all.values()):
            fleet = coordinator.context.fleet
            assert fleet is not None
            for group in list(coordinator.groups.values()):
                await moves.follow(fleet, group)

    async def kill(self, name: str) -> None:
        """As kill -9, seen by the others; its lease has ended when this returns."""
        for pair in [pair for pair in self.links if name in pair]:
            self.links.pop(pair).cut()
        coordinator = self.all.pop(name)
        lease_ends_ms = self.world.database.leases[name]
        await self.world.kill(coordinator)
        self.world.database.leases[name] = lease_ends_ms
        await until(lambda: self.world.database.clock_ms() > lease_ends_ms, step_s=0.1)
        await self.see()

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


def everything_finished(world: World, records: int) -> bool:
    heads = [partition.row.head for partition in world.database.partitions.values()]
    return sum(head.start_offset for head in heads if head) == records
