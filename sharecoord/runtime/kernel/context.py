"""The ports, the clock and the limits that all parts of a coordinator share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sharecoord.core.fleet.held_book import REMEMBERED_MS
from sharecoord.errors import SharecoordError
from sharecoord.ports import (
    DeadLetterSink,
    EventSink,
    LogReader,
    OffsetsExport,
    Store,
    TopicCatalog,
)
from sharecoord.runtime.kernel.budget import MemoryBudget, MemoryLimits
from sharecoord.runtime.kernel.calls import GatheredCalls
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.kernel.committer import CallbackEffect, Committable, Committer
from sharecoord.runtime.kernel.gatherer import Gatherer
from sharecoord.runtime.kernel.lease import Lease
from sharecoord.runtime.kernel.open_files import OpenFiles
from sharecoord.runtime.kernel.store_thread import StoreCaller
from sharecoord.runtime.kernel.supervisor import Supervisor
from sharecoord.security.guard import Guard


class ParkingLimits(NamedTuple):
    """How many delayed ranges of a share-partition are in memory; the simulator has fewer."""

    kept: int = 1_000
    """Ranges that stay in memory when some are parked, and after a claim."""
    most: int = 2_000
    """With more ranges than this in memory some are parked."""
    page: int = 1_000
    """Parked ranges of one read: a few milliseconds of the store's thread."""
    low: int = 500
    """Parked ranges are read while fewer than this are in memory."""
    ahead_ms: int = 5_000
    """Parked ranges are read this long before they are due."""


class LaneLooks(Gatherer[None, None]):
    """Looks at the lanes in the store, one look for all who ask at a time."""

    all_known: bool = False
    """Whether there are no lanes but those that are open here: not before the store was asked, and
    never in a fleet, whose coordinators hear of lanes one after the other."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a coordinator, beside the settings of its groups."""

    memory: MemoryLimits = field(default_factory=MemoryLimits)
    parking: ParkingLimits = field(default_factory=ParkingLimits)
    groups_max: int = 10_000
    """`limits.groups.max`"""
    lock_grace_ms: int = 10_000
    """`recovery.lock.grace.ms`"""


@dataclass
class Context:
    """The ports, the clock and the limits of one coordinator."""

    coordinator_id: str
    store: Store
    caller: StoreCaller
    reader: LogReader
    catalog: TopicCatalog
    offsets_export: OffsetsExport
    dead_letters: DeadLetterSink
    clock: RuntimeClock
    committer: Committer
    lease: Lease
    budget: MemoryBudget
    files: OpenFiles
    new_incarnation: Callable[[], int]
    """A number that no other claim has; chance is an argument."""
    limits: Limits = field(default_factory=Limits)
    group_defaults: Mapping[str, str] = field(default_factory=dict)
    in_fleet: bool = False
    """Whether there are, or may be, other coordinators on the same store."""
    events: EventSink | None = None
    """None when there is no event log (`events.sink` is off)."""
    guard: Guard = field(default_factory=Guard)
    """Decides who may do what; by default everybody everything."""
    calls: GatheredCalls = field(init=False)
    lanes: LaneLooks = field(init=False)
    """Made by `letters.lanes.Lanes`."""
    tasks: Supervisor = field(init=False)
    """Runs all side work, and the loops that must never end."""

    def __post_init__(self) -> None:
        """Makes the parts that follow from the ports."""
        self.calls = GatheredCalls(self.store, self.caller, self.catalog)
        self.tasks = Supervisor(self.committer.fail)

    @property
    def books_forget_after_ms(self) -> int | None:
        """See `decide_lock_book`: the lock book of a gateway forgets, a member's own does not."""
        return REMEMBERED_MS // 2 if self.in_fleet else None

    async def committed(self, actor: Committable | None = None) -> SharecoordError | None:
        """Waits for the commit of everything decided so far; returns its error, or None.

        With an actor only the commit of this share-partition counts, which tells whether this
        coordinator still is the owner.
        """
        done: asyncio.Future[SharecoordError | None] = asyncio.get_running_loop().create_future()

        def let_go(error: SharecoordError | None) -> None:
            if not done.done():
                done.set_result(error)

        effect = CallbackEffect(let_go)
        if actor is None:
            self.committer.add_effect(effect)
        else:
            self.committer.add(actor, effect)
        return await done

    async def stop_tasks(self) -> None:
        """Cancels what still runs, and waits for it.

        Loops end before what they wait for: a loop whose call is cancelled begins again.
        """
        await self.tasks.stop()
        await self.calls.close()
        await self.lanes.close()
