"""What operators of a simulated life do at work, and how they insist on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from sharecoord.core.changes import GroupRow
from sharecoord.core.dispatch.pauses import WHOLE_GROUP, PauseScope
from sharecoord.core.states import ForceAction
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.admin.in_flight import PartitionName
from tests.simulation.environment import GROUP
from tests.simulation.fleet import Node, finished
from tests.simulation.world import KEYS, TOPICS, World
from tests.support import named

OPERATOR_S = 5
"""An operator does not wait longer."""

PAUSE_SEEN_MS = 10_000
"""A coordinator looks each second, over a store that may be slow."""


class Operators:
    """A part of a script."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance

    def some_node(self) -> Node | None:
        nodes = [n for n in self.world.fleet.alive() if not n.process.frozen]
        return self.chance.choice(nodes) if nodes else None

    def place(self) -> tuple[str, int]:
        return self.chance.choice(TOPICS), self.chance.randrange(self.world.partitions)

    async def group_is_paused(self) -> None:
        """Or a topic, a partition, a member; it is resumed some time later."""
        topic, partition = self.place()
        scopes = [WHOLE_GROUP, PauseScope(topic), PauseScope(topic, partition)]
        scopes += [PauseScope(member_id=m.name) for m in self.world.present()[:1]]
        scope, node = self.chance.choice(scopes), self.some_node()
        if node is not None and node.serving and node.admin is not None:
            await finished(node.process, self._pause(node.admin, scope), OPERATOR_S)
        await asyncio.sleep(self.chance.choice((0.05, 1, 3, 20)))
        self.world.fleet.resume_all()

    async def _pause(self, admin: Admin, scope: PauseScope) -> None:
        await admin.pause_group(GROUP, *named(scope))
        # A fleet's others may be slow to look, and one that stood still does not know yet.
        fleet = not self.world.fleet.lone
        group = self.world.fleet.database.groups.get(GROUP)
        if group is None or scope not in {pause.scope for pause in group.pauses}:
            # Somebody else has resumed it meanwhile.
            return
        within_ms = PAUSE_SEEN_MS if fleet else 0
        self.world.judge.paused(scope, within_ms=within_ms, troubles_excuse=fleet)

    async def records_are_forced(self) -> None:
        """Skipped, finished or released, whether they were read or not."""
        topic, partition = self.place()
        node = self.some_node()
        if node is None or not node.serving or node.admin is None:
            return
        end = self.world.log.log(topic, partition).log_end if self.world.log.exists(topic) else 0
        first = self.chance.randint(max(0, end - 120), max(0, end - 1))
        span = first, min(max(first, end - 1), first + self.chance.choice((0, 0, 3, 40)))
        action = self.chance.choice([*ForceAction])
        work = node.admin.force_records(GROUP, PartitionName(topic, partition), *span, action)
        await finished(node.process, work, OPERATOR_S)

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
        await finished(node.process, node.admin.alter_group_configs(GROUP, change, []), 5)

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
