"""The figures of a running coordinator for health and metrics.

The loop writes them once a second, other threads read them. A snapshot is replaced as a whole, so a
reader never sees half of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sharecoord.core.dispatch.pauses import FLOOD_BREAKER
from sharecoord.core.lag import lag as lag_of
from sharecoord.core.states import Ordering
from sharecoord.ports import EventFigures, ProducerFigures
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.group.offsets_export import ExportFigures
from sharecoord.runtime.kernel.supervisor import Supervisor
from sharecoord.runtime.member.session import Hindrance
from sharecoord.runtime.memory.use import MemoryFigures, partition_bytes
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.security.audit import AuditFigures
from sharecoord.security.quotas import Use

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
    delivered: int = 0
    """Records sent to members since the process started."""
    delivered_whole: int = 0
    """Of these: the ones in whole record batches."""
    settled: int = 0
    """Records that members settled since the process started."""
    memory_bytes: int = 0
    """Payloads, ranges and keys."""
    held_back: bool = False
    """Whether nothing new is read because of `memory.limit`."""
    blocked: int = 0
    """Records that wait because their key is blocked."""
    dead_letters: int = 0
    """Records that went to the dead-letter topic since the process started."""
    payloads_not_kept: int = 0
    """Records that wait without a stored payload, though `share.retry.keep.payload` is on."""
    dead_letters_waiting: int = 0
    dead_letters_failing: bool = False
    """Whether the dead-letter topic takes no letters at the moment."""
    refused: bool = False
    """Whether the store refuses the changes: the share-partition waits, and is tried again."""
    paused: bool = False
    """Whether the partition, its topic or its group is paused: nothing is handed out."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One share group at the last tick."""

    group: str
    members: int = 0
    members_paused: int = 0
    fairness: float | None = None
    """Jain's index of the last second; None when nothing was handed out."""
    outbox_bytes: int | None = None
    """Dead letters that wait; None in a group without dead letters."""
    outbox_full: bool | None = None
    """Whether so many dead letters wait that the group acquires nothing; None as above."""
    kept_bytes: int | None = None
    """Stored payloads of records that wait; None in a group without them."""
    paused: bool = False
    flood: bool | None = None
    """Whether the flood breaker has paused the group; None in a group without a breaker."""
    blocked_keys: int | None = None
    """Number of blocked keys; None in a group that does not keep order by key."""
    unused_settings: tuple[str, ...] = ()
    """Names of stored settings that are not in force."""


class ConnectionFigures(NamedTuple):
    """Connections of a listener."""

    open: int
    refused: int
    """Since the start of the process, because there were as many as there may be."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The coordinator at the last tick."""

    ticked_at_s: float
    serving: bool
    store_ok: bool
    kafka_ok: bool
    commits: int
    groups: tuple[GroupFigures, ...]
    partitions: tuple[PartitionFigures, ...]
    cache_bytes: int
    memory: MemoryFigures | None = None
    loops_down: dict[str, bool] = field(default_factory=dict)
    """By name: whether a loop that must never end has failed, and has not proven itself since."""
    loop_restarts: dict[str, int] = field(default_factory=dict)
    exports: tuple[ExportFigures, ...] = ()
    events: EventFigures | None = None
    """None when there is no event log."""
    producers: ProducerFigures | None = None
    audit: AuditFigures | None = None
    """None when there is no audit trail."""
    files_refused: Mapping[str, bool] = field(default_factory=dict)
    """By settings: whether their files have changed and can not be used as they are now."""
    certificate_days: Mapping[str, float] = field(default_factory=dict)
    """By setting: how many days its certificate is good for; negative = it has ended."""
    peer_links_refused: int | None = None
    """None without a fleet."""
    kafka_port: ConnectionFigures | None = None
    """None without a Kafka port."""
    principals: Mapping[str, Use] = field(default_factory=dict)
    """Of those that have a quota, or were refused something."""


class StatusBoard:
    """The latest snapshot, and what health probes conclude from it."""

    def __init__(self) -> None:
        self.latest: Snapshot | None = None
        self.dropped_lines: Callable[[], int] = lambda: 0
        """Counts lines of the log that could not be written."""
        self.producers: Callable[[], ProducerFigures | None] = lambda: None
        """The process of producers. It makes nobody unready: members are served without it."""
        self.kafka_port: Callable[[], ConnectionFigures | None] = lambda: None
        """The connections of the Kafka port."""
        self.audit: Callable[[], AuditFigures | None] = lambda: None
        """The audit trail. It makes nobody unready: no call waits for it."""
        self.file_problems: Callable[[], Iterable[tuple[str, str]]] = lambda: ()
        """Settings, and why their files on disk are not in force; "" = they are."""
        self.certificate_days: Callable[[], Mapping[str, float]] = dict
        """By setting: how many days its certificate is good for."""
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
        """Takes a new snapshot; called by the loop once a second."""
        context, loops = coordinator.context, coordinator.context.tasks
        self._loops = loops
        self.latest = Snapshot(
            ticked_at_s=time.monotonic(),
            serving=not coordinator.draining,
            store_ok=coordinator.store_ok,
            kafka_ok=coordinator.kafka_ok,
            commits=context.committer.commits,
            groups=tuple(map(_group_figures, coordinator.groups.values())),
            partitions=tuple(_figures(coordinator)),
            cache_bytes=context.budget.used_bytes,
            memory=coordinator.memory.figures,
            loops_down={name: name in loops.down for name in loops.restarts},
            loop_restarts=dict(loops.restarts),
            exports=coordinator.offsets_exporter.figures(),
            events=None if context.events is None else context.events.figures,
            producers=self.producers(),
            audit=self.audit(),
            files_refused={settings: bool(why) for settings, why in self.file_problems()},
            certificate_days=dict(self.certificate_days()),
            peer_links_refused=None
            if coordinator.fleet is None
            else coordinator.fleet.refused_links,
            kafka_port=self.kafka_port(),
            principals=context.guard.quotas.uses(),
        )


def _group_figures(group: GroupActor) -> GroupFigures:
    settings, budget, pause = group.settings, group.budget, group.pauses.group
    has_letters = bool(settings.dead_letter_topic or budget.outbox_bytes)
    has_kept = settings.retry_keep_payload or budget.kept_bytes
    by_flood = pause is not None and pause.by == FLOOD_BREAKER
    return GroupFigures(
        group.group_id,
        members=len(group.sessions),
        members_paused=sum(Hindrance.PAUSED in s.hindrances for s in group.sessions.values()),
        fairness=group.dispatcher.fairness,
        outbox_bytes=budget.outbox_bytes if has_letters else None,
        outbox_full=budget.outbox_bytes >= settings.outbox_max_bytes if has_letters else None,
        kept_bytes=budget.kept_bytes if has_kept else None,
        paused=pause is not None,
        flood=by_flood if group.config.dlq_flood_ratio else None,
        blocked_keys=len(settings.blocked_keys) if settings.ordering is Ordering.KEY else None,
        unused_settings=tuple({unused.name for unused in group.unused_settings}),
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
                    delivered=actor.totals.delivered,
                    delivered_whole=actor.totals.delivered_whole,
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
