"""Operators that replay parts of topics into side groups."""

from __future__ import annotations

from dataclasses import replace

from sharecoord.core.changes import PartitionKey
from sharecoord.errors import SharecoordError, StoreOutcomeUnknownError
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.admin.replay import OffsetRange, ReplayCommand
from tests.simulation.environment import GROUP
from tests.simulation.fleet import finished
from tests.simulation.judges.database import SIDE_LIMIT
from tests.simulation.operators import OPERATOR_S, Operators
from tests.simulation.world import TOPICS

FIRST_MS = 1_000
"""Time of the record at offset 0; each later one has a millisecond more."""

NO_END = 1 << 60


class Replays(Operators):
    """A part of a script."""

    async def records_are_replayed(self) -> None:
        """Into a new side group, or one that has had a replay; a member works it off."""
        node, judge = self.some_node(), self.world.judge.replays
        into = self._side_group()
        if node is None or not node.serving or node.admin is None or judge.is_pending(into):
            return
        found = self._times(into) if self.chance.random() < 0.5 else self._offsets(into)
        if found is None:
            return
        command, wanted = found
        judge.asked(into, wanted)
        await finished(node.process, self._replay(node.admin, command), OPERATOR_S)
        self.world.serve_sides()

    async def _replay(self, admin: Admin, command: ReplayCommand) -> None:
        limit = {"share.delivery.count.limit": str(SIDE_LIMIT)}
        try:
            await admin.alter_group_configs(command.into_group_id, limit, [])
            await admin.replay(command)
        except StoreOutcomeUnknownError:
            raise
        except SharecoordError:
            self.world.judge.replays.refused(command.into_group_id)
            raise

    def _side_group(self) -> str:
        """Mostly a new one; one whose replay is not finished must be refused."""
        known = self.world.judge.replays.groups
        if known and self.chance.random() < 0.4:
            return self.chance.choice(known)
        self.world.replays += 1
        return f"side-{self.world.replays}"

    def _places(self) -> dict[str, tuple[int, ...]]:
        """Some topics, all or one of their partitions."""
        chance = self.chance
        topics = [
            t for t in chance.sample(TOPICS, chance.randint(1, 2)) if self.world.log.exists(t)
        ]
        return {
            topic: (chance.randrange(self.world.partitions),) if chance.random() < 0.3 else ()
            for topic in topics
            if self.world.log.exists(topic)
        }

    def _keys(self, into: str, topics: dict[str, tuple[int, ...]]) -> list[PartitionKey]:
        return [
            replace(self.world.key(topic, partition), group_id=into)
            for topic, some in topics.items()
            for partition in some or range(self.world.partitions)
        ]

    def _times(self, into: str) -> tuple[ReplayCommand, dict[PartitionKey, list[range]]] | None:
        chance, topics = self.chance, self._places()
        keys = self._keys(into, topics)
        if not keys:
            return None
        end = max(self.world.log.log(*key.place).log_end for key in keys)
        low = chance.choice((None, chance.randint(0, end)))
        first = low or 0
        high = chance.randint(first + 1, end + 20)
        if low is not None and chance.random() < 0.4:
            high = NO_END
        command = ReplayCommand(
            GROUP,
            into,
            topics,
            from_ms=None if low is None else FIRST_MS + low,
            to_ms=None if high == NO_END else FIRST_MS + high,
            rate_per_s=self._rate(),
        )
        return command, {key: [range(first, high)] for key in keys}

    def _offsets(self, into: str) -> tuple[ReplayCommand, dict[PartitionKey, list[range]]] | None:
        runs: list[OffsetRange] = []
        wanted: dict[PartitionKey, list[range]] = {}
        for key in self._keys(into, self._places()):
            log = self.world.log.log(*key.place)
            for _ in range(self.chance.randint(1, 4) if log.log_start < log.log_end else 0):
                first = self.chance.randrange(log.log_start, log.log_end)
                last = min(log.log_end - 1, first + self.chance.choice((0, 0, 5, 60)))
                runs.append(OffsetRange(*key.place, first, last))
                wanted.setdefault(key, []).append(range(first, last + 1))
        if not runs:
            return None
        return ReplayCommand(GROUP, into, offsets=tuple(runs), rate_per_s=self._rate()), wanted

    def _rate(self) -> int:
        """Of all partitions together."""
        return self.chance.choice((0, 0, 20, 200))
