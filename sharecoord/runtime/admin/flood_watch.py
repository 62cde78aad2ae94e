"""The flood breaker: pauses groups of which too many records become dead letters here."""

from __future__ import annotations

import asyncio

import structlog

from sharecoord.config.group import GroupConfig
from sharecoord.core.dispatch.pauses import FLOOD_BREAKER
from sharecoord.core.letters.flood import FloodGauge, FloodSettings
from sharecoord.errors import SharecoordError
from sharecoord.runtime.admin.pauses import PauseCommands
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.partition.dead_letters import DeadLetters

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 1.0


class _Seen:
    """The counters of one group at the last look."""

    def __init__(self) -> None:
        self.gauge = FloodGauge()
        self.totals: dict[DeadLetters, tuple[int, int, int]] = {}
        """State epoch, finished records and dead letters, by incarnation of a share-partition."""


class FloodWatch:
    """Looks at the groups of a coordinator once a second; pauses them as an operator would."""

    def __init__(self, coordinator: Coordinator, admin: PauseCommands) -> None:
        self._groups = coordinator.groups
        self._admin = admin
        self._known: set[GroupActor] = set()
        """All groups at the last look, with or without a breaker."""
        self._seen: dict[GroupActor, _Seen] = {}

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Counts, and pauses groups; a pause that failed is tried again at the next look."""
        groups = [g for g in self._groups.values() if g.config.dlq_flood_ratio]
        self._seen = {group: self._seen.get(group) or self._first_seen(group) for group in groups}
        self._known = set(self._groups.values())
        for group, seen in self._seen.items():
            settings = flood_settings(group.config)
            finished, letters = _counted(group, seen)
            if group.pauses.group is not None:
                # The gauge begins anew when the group goes on.
                seen.gauge.clear()
                continue
            seen.gauge.count(group.context.clock.now_ms(), finished, letters, settings)
            why = seen.gauge.why_stop(settings)
            if not why:
                continue
            log.warning("flood of dead letters: the group is paused", group=group.group_id, why=why)
            try:
                await self._admin.pause_group(group.group_id, reason=why, by=FLOOD_BREAKER)
            except SharecoordError as error:
                log.warning("not paused yet", group=group.group_id, why=error.message)

    def _first_seen(self, group: GroupActor) -> _Seen:
        seen = _Seen()
        if group in self._known:
            # The breaker has just been set: letters from before do not count.
            _counted(group, seen)
        return seen


def flood_settings(config: GroupConfig) -> FloodSettings:
    """The settings of a group's breaker."""
    return FloodSettings(
        config.dlq_flood_ratio, config.dlq_flood_window_ms, config.dlq_flood_min_records
    )


def _counted(group: GroupActor, seen: _Seen) -> tuple[int, int]:
    """Records that were finished, and that became dead letters, since the last look.

    A share-partition that was loaded since then counts from its load on.
    """
    finished = letters = 0
    totals: dict[DeadLetters, tuple[int, int, int]] = {}
    for actor in group.partitions.values():
        if actor.partition is None:
            continue
        outbox, epoch = actor.books.letters, actor.state_epoch
        now = totals[outbox] = (epoch, actor.partition.window.done, outbox.made)
        before = seen.totals.get(outbox, (epoch, outbox.done_at_load, 0))
        # A truncation moves the end of the window, which finishes nothing.
        if before[0] == epoch:
            finished += max(0, now[1] - before[1])
            letters += now[2] - before[2]
    seen.totals = totals
    return finished, letters
