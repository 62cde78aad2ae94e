"""Pauses groups whose records become dead letters in a flood, by what is served here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog

from sharecoord.config.group import GroupConfig
from sharecoord.core.flood import FloodGauge, FloodSettings
from sharecoord.core.pauses import FLOOD_BREAKER, WHOLE_GROUP
from sharecoord.errors import SharecoordError
from sharecoord.runtime.group_actor import GroupActor
from sharecoord.runtime.interventions import Interventions
from sharecoord.runtime.partition_actor import PartitionActor

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 1.0


class WatchingCoordinator(Protocol):
    """What the watch needs of its coordinator."""

    @property
    def groups(self) -> Mapping[str, GroupActor]:
        """The groups, live."""


class _Seen:
    """The counters of one group at the last look."""

    def __init__(self) -> None:
        self.gauge = FloodGauge()
        self.totals: dict[PartitionActor, tuple[int, int, int]] = {}
        """By share-partition: state epoch, finished, dead letters."""


class FloodWatch:
    """Looks once a second.

    Args:
        coordinator: Whose groups.
        admin: Pauses them, as an operator would.
    """

    def __init__(self, coordinator: WatchingCoordinator, admin: Interventions) -> None:
        self._groups = coordinator.groups
        self._admin = admin
        self._seen: dict[GroupActor, _Seen] = {}

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Counts, and pauses what is to stop; what could not be paused is tried again."""
        groups = [g for g in self._groups.values() if g.config.dlq_flood_ratio]
        self._seen = {group: self._seen.get(group) or _Seen() for group in groups}
        for group, seen in self._seen.items():
            settings = flood_settings(group.config)
            finished, letters = _counted(group, seen)
            if group.pauses.group is not None:
                # When it goes on it begins anew.
                seen.gauge.clear()
                continue
            seen.gauge.count(group.context.clock.now_ms(), finished, letters, settings)
            why = seen.gauge.why_stop(settings)
            if not why:
                continue
            log.warning("flood of dead letters: the group is paused", group=group.group_id, why=why)
            try:
                await self._admin.pause_group(
                    group.group_id, [WHOLE_GROUP], reason=why, by=FLOOD_BREAKER
                )
            except SharecoordError as error:
                log.warning("not paused yet", group=group.group_id, why=error.message)


def flood_settings(config: GroupConfig) -> FloodSettings:
    """When a group is to stop."""
    return FloodSettings(
        config.dlq_flood_ratio, config.dlq_flood_window_ms, config.dlq_flood_min_records
    )


def _counted(group: GroupActor, seen: _Seen) -> tuple[int, int]:
    """How many records were finished since the last look, and became dead letters."""
    finished = letters = 0
    totals: dict[PartitionActor, tuple[int, int, int]] = {}
    for actor in group.partitions.values():
        if actor.partition is None:
            continue
        window = actor.partition.window
        done = window.start_offset + window.finished + window.archiving
        now = totals[actor] = (actor.state_epoch, done, actor.letters_made)
        before = seen.totals.get(actor)
        # A reset moves the start: that is nobody's work.
        if before is not None and before[0] == now[0]:
            finished += max(0, now[1] - before[1])
            letters += now[2] - before[2]
    seen.totals = totals
    return finished, letters
