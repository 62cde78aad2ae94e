"""What a running coordinator tells its watchers: read from other threads, written by the loop.

A snapshot is replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sharecoord.core.dispatch.pauses import FLOOD_BREAKER
from sharecoord.core.lag import lag as lag_of
from sharecoord.core.states import Ordering
from sharecoord.ports import EventFigures
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.offsets_export import ExportFigures
from sharecoord.runtime.kernel.supervisor import Supervisor
from sharecoord.runtime.member.session import Hindrance
from sharecoord.runtime.memory.use import MemoryFigures, partition_bytes
from sharecoord.runtime.partition.claimed import ActorState

STALL_AFTER_S = 10.0
"""A loop that has not ticked for so long counts as dead."""


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """One share-partition at the last tick."""

    group: str
    topic: str
    partition: int
    acquired: int
    due: int
    delayed: int
    lag: int | None
    window_ranges: int
    active: bool
    delivered: int = 0
    """Records sent to members since the process started; `settled` by them likewise."""
    settled: int = 0
    memory_bytes: int = 0
    """Payloads, ranges and keys."""
    held_back: bool = False
    """Nothing new is read because of `memory.limit`."""
    blocked: int = 0
    """Records that wait because their key is blocked."""
    dead_letters: int = 0
    """Records that went to the dead-letter topic since the process started."""
    payloads_not_kept: int = 0
    """Records that came to wait without, though `share.retry.keep.payload` is on."""
    dead_letters_waiting: int = 0
    dead_letters_failing: bool = False
    """The topic does not take them at the moment."""
    refused: bool = False
    """The store refuses its changes: it waits, and is tried again."""
    paused: bool = False
    """Nothing of it is handed out: it is paused, its topic or its group."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The coordinator at the last tick."""

    ticked_at_s: float
    serving: bool
    store_ok: bool
    kafka_ok: bool
    commits: int
    members: dict[str, int]
    partitions: tuple[PartitionFigures, ...]
    cache_bytes: int
    memory: MemoryFigures | None = None
    fairness: dict[str, float] = field(default_factory=dict)
    """Jain's index of the last second, of the groups in which something was handed out."""
    outboxes: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Bytes of dead letters that wait, by group, and whether they stop it."""
    kept_bytes: dict[str, int] = field(default_factory=dict)
    """Stored payloads of records that wait, by group; only groups that have, or want them."""
    groups_paused: dict[str, bool] = field(default_factory=dict)
    floods: dict[str, bool] = field(default_factory=dict)
    """Groups that their flood breaker has paused."""
    unused_settings: tuple[tuple[str, str], ...] = ()
    """(group, setting): stored values that are not in force."""
    members_paused: dict[str, int] = field(default_factory=dict)
    """By group, of those that are here."""
    blocked_keys: dict[str, int] = field(default_factory=dict)
    """Number of blocked keys, by group; only groups that keep order by key."""
    loops_down: dict[str, bool] = field(default_factory=dict)
    """By name: whether a loop that must never end has failed, and has not proven itself since."""
    loop_restarts: dict[str, int] = field(default_factory=dict)
    exports: tuple[ExportFigures, ...] = ()
    events: EventFigures | None = None
    """None where there is no event log."""


class StatusBoard:
    """The latest snapshot."""

    def __init__(self) -> None:
        self.latest: Snapshot | None = None
        self.dropped_lines: Callable[[], int] = lambda: 0
        """Lines of the log that could not be written."""
        self._loops: Supervisor | None = None
        self.short_of_files: Callable[[], str] = lambda: ""
        """Why members can not be served for want of files that may be open; "" = they can."""

    @property
    def alive(self) -> bool:
        """Whether the loop ticks."""
        latest = self.latest
        return latest is not None and time.monotonic() - latest.ticked_at_s < STALL_AFTER_S

    @property
    def ready(self) -> bool:
        """Whether members can be served."""
        return not self.not_ready

    @property
    def not_ready(self) -> str:
        """Why members can not be served, in words; "" = they can."""
        latest = self.latest
        if latest is None:
            return "starting"
        if not self.alive:
            return "the event loop does not answer"
        if not latest.serving:
            return "draining"
        if not latest.store_ok:
            return "the store does not answer, or the lease on it was not renewed in time"
        # Not those of the snapshot: the loop that makes it may be down itself.
        if self._loops is not None and (down := self._loops.down):
            return f"down after an error that the log tells of: {', '.join(down)}"
        return self.short_of_files()

    def update(self, coordinator: Coordinator) -> None:
        """Called by the loop, once a second."""
        loops = self._loops = coordinator.context.loops
        groups = coordinator.groups.values()
        sink = coordinator.context.events
        self.latest = Snapshot(
            ticked_at_s=time.monotonic(),
            serving=not coordinator.draining,
            store_ok=coordinator.store_ok,
            kafka_ok=coordinator.kafka_ok,
            commits=coordinator.context.committer.commits,
            members={g.group_id: len(g.sessions) for g in groups},
            partitions=tuple(_figures(coordinator)),
            cache_bytes=coordinator.context.budget.used_bytes,
            memory=coordinator.memory.figures,
            fairness={
                g.group_id: g.dispatcher.fairness
                for g in groups
                if g.dispatcher.fairness is not None
            },
            outboxes={
                g.group_id: (
                    g.budget.outbox_bytes,
                    g.budget.outbox_bytes >= g.settings.outbox_max_bytes,
                )
                for g in groups
                if g.settings.dead_letter_topic or g.budget.outbox_bytes
            },
            kept_bytes={
                g.group_id: g.budget.kept_bytes
                for g in groups
                if g.settings.retry_keep_payload or g.budget.kept_bytes
            },
            groups_paused={g.group_id: g.pauses.group is not None for g in groups},
            floods={
                g.group_id: g.pauses.group is not None and g.pauses.group.by == FLOOD_BREAKER
                for g in groups
                if g.config.dlq_flood_ratio
            },
            unused_settings=tuple(
                (g.group_id, name) for g in groups for name in {u.name for u in g.unused_settings}
            ),
            members_paused={
                g.group_id: sum(
                    Hindrance.PAUSED in session.hindrances for session in g.sessions.values()
                )
                for g in groups
            },
            blocked_keys={
                g.group_id: len(g.settings.blocked_keys)
                for g in groups
                if g.settings.ordering is Ordering.KEY
            },
            loops_down={name: name in loops.down for name in loops.restarts},
            loop_restarts=dict(loops.restarts),
            exports=coordinator.offsets_exporter.figures(),
            events=None if sink is None else sink.figures,
        )


def _figures(coordinator: Coordinator) -> list[PartitionFigures]:
    found: list[PartitionFigures] = []
    for group in coordinator.groups.values():
        for actor in group.partitions.values():
            partition = actor.partition
            window, order = (partition.window, partition.order) if partition else (None, None)
            lag = None
            if window is not None and actor.log.end_offset is not None:
                lag = lag_of(actor.log.end_offset, window.start_offset, window.finished)
            found.append(
                PartitionFigures(
                    group=group.group_id,
                    topic=actor.key.name,
                    partition=actor.key.partition,
                    acquired=window.acquired if window else 0,
                    due=window.due if window else 0,
                    delayed=window.delayed if window else 0,
                    lag=lag,
                    window_ranges=len(window.ranges) if window else 0,
                    active=actor.state is ActorState.ACTIVE,
                    delivered=actor.totals.delivered,
                    settled=actor.totals.acknowledged,
                    memory_bytes=partition_bytes(actor),
                    held_back=actor.log.held_back,
                    blocked=order.blocked_records if order else 0,
                    dead_letters=actor.dead_letters,
                    payloads_not_kept=actor.books.kept.not_kept,
                    dead_letters_waiting=actor.books.letters.waiting,
                    dead_letters_failing=bool(actor.books.letters.problem),
                    refused=actor.state is ActorState.LOADING and bool(actor.stopped_reason),
                    paused=actor.paused or group.pauses.group is not None,
                )
            )
    return found
