"""What operators of a simulated life do with keys and order, and how they insist on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from sharecoord.core.changes import GroupRow
from sharecoord.runtime.admin import Admin
from tests.simulation.fleet import GROUP, Node, finished
from tests.simulation.world import KEYS, World


class Operators:
    """A part of a script."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance

    def some_node(self) -> Node | None:
        nodes = [n for n in self.world.fleet.alive() if not n.process.frozen]
        return self.chance.choice(nodes) if nodes else None

    async def keys_are_blocked(self) -> None:
        """Some keys are parked, others come back."""
        node = self.some_node()
        if node is None or not node.serving or node.admin is None:
            return
        keys = self.chance.sample([key for key in KEYS if key is not None], 2)
        if self.chance.random() < 0.6:
            await finished(node.process, node.admin.block_keys(GROUP, keys), 5)
        else:
            await finished(node.process, node.admin.unblock_keys(GROUP, keys), 5)

    async def order_is_switched(self) -> None:
        """Order by key, on and off."""
        node = self.some_node()
        if node is None or not node.serving or node.admin is None:
            return
        change = {"share.ordering": self.chance.choice(("key", "unordered"))}
        await finished(node.process, node.admin.alter_configs(GROUP, change, []), 5)

    async def operator(
        self,
        work: Callable[[Admin], Coroutine[None, None, object]],
        holds: Callable[[GroupRow], bool],
    ) -> None:
        """Has an operator do something, again until it is stored."""
        while True:
            node = self.some_node()
            if node is None:
                self.world.fleet.add()
            elif node.serving and node.admin is not None:
                await finished(node.process, work(node.admin), 5)
            row = self.world.database.groups.get(GROUP)
            if row is not None and holds(row):
                return
            await asyncio.sleep(0.5)
