"""Looks each second who is there and what became of the groups elsewhere (design 9).

Whatever was missed on the way here, a look finds: links only make it quicker.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import structlog

from sharecoord.core.changes import FleetView
from sharecoord.core.peering import Look
from sharecoord.errors import (
    MemberFencedError,
    SharecoordError,
    StoreFatalError,
    StoreInUseError,
    UnknownMemberError,
)
from sharecoord.ports import PeerNetwork
from sharecoord.runtime import moves
from sharecoord.runtime.context import Context
from sharecoord.runtime.fleet import Fleet
from sharecoord.runtime.group_actor import GroupActor
from sharecoord.runtime.reload import see_changes
from sharecoord.runtime.sessions import Session

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 1.0
"""As often as leases are renewed."""


class WatchingCoordinator(Protocol):
    """What the watch needs of its coordinator."""

    context: Context
    groups: dict[str, GroupActor]

    def making(self, group_id: str) -> asyncio.Lock:
        """Who holds this makes or deletes the group."""

    def subscription_changed(self, group: GroupActor, session: Session) -> None:
        """Opens what a member wants and is not open."""


class FleetWatch:
    """See the module."""

    def __init__(
        self, coordinator: WatchingCoordinator, fleet: Fleet, network: PeerNetwork
    ) -> None:
        self._coordinator = coordinator
        self._context = coordinator.context
        self._fleet = fleet
        self._network = network
        self._looking = asyncio.Lock()
        self._is_behind = True
        """What has changed was not followed to the end: the store went away meanwhile."""
        self._renewed_ms: int | None = None
        """The store's time at the last renewal of the lease."""
        self._address = self._peer_address = ""

    async def announce(self, address: str, peer_address: str) -> None:
        """Tells the others where this coordinator is: share-partitions come from now on.

        Args:
            address: Where members connect.
            peer_address: Where the other coordinators do.
        """
        self._address, self._peer_address = address, peer_address
        await self._announce()
        self._fleet.look_now.set()

    async def _announce(self) -> None:
        await self._context.caller.call(
            self._context.store.announce,
            address=self._address,
            peer_address=self._peer_address,
            draining=self._fleet.draining,
        )

    def renewed(self, store_ms: int) -> None:
        """The lease was renewed; when it had ended meanwhile, the others went on without this one.

        Args:
            store_ms: The store's time.
        """
        before_ms, self._renewed_ms = self._renewed_ms, store_ms
        if before_ms is not None and store_ms - before_ms > self._context.lease_ms:
            self._is_behind = True
            self._fleet.look_now.set()

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        while True:
            self._fleet.look_now.clear()
            try:
                await self.look()
            except (StoreFatalError, StoreInUseError):
                raise
            except SharecoordError as error:
                log.warning("the fleet could not be looked at", why=error.message)
            except Exception:
                log.exception("the fleet could not be looked at")
            self._fleet.gateway.forget_ended()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._fleet.look_now.wait()

    async def look(self) -> None:
        """Reads the store and acts on what is new.

        Raises:
            SharecoordError: The store does not answer; what was believed stays.
        """
        async with self._looking:
            view = await self._context.caller.call(self._context.store.read_fleet)
            try:
                await self._follow(view)
            finally:
                # Whatever else fails: nothing is handed out for long without this.
                await see_changes(self._coordinator, view.group_epochs)
                self._looked()

    def _looked(self) -> None:
        was_blind = self._fleet.is_blind
        self._fleet.looked()
        for group in self._coordinator.groups.values() if was_blind else ():
            group.dispatcher.wake_all()

    async def _follow(self, view: FleetView) -> None:
        fleet = self._fleet
        changed = self._is_behind = fleet.sees(view.coordinators) or self._is_behind
        self._network.follow({row.coordinator_id: row.peer_address for row in fleet.others})
        if changed:
            log.info("fleet", present=sorted(fleet.present), draining=fleet.draining)
        if changed or not fleet.gateway_links.keys() <= fleet.present:
            await self._adopt()
        await moves.release(fleet, self._context)
        for group in list(self._coordinator.groups.values()):
            if changed:
                await moves.follow(fleet, group)
            elif not group.elsewhere.keys().isdisjoint(group.partitions):
                await moves.hand_over(fleet, group)
        self._is_behind = False

    async def _adopt(self) -> None:
        """Sees to it that members of a gateway that has died do not stay for ever.

        Nor do those here that another coordinator took out while this one, or their gateway, seemed
        to be dead: their locks would end with the next move of a share-partition, for nobody knows
        them.
        """
        here = [
            (group, session)
            for group in self._coordinator.groups.values()
            for session in group.sessions.values()
            if session.channel is not None
        ]
        members = await self._context.caller.call(self._context.store.load_members)
        rows = {(member.group_id, member.member_id): member.member_epoch for member in members}
        for its_group, session in here:
            epoch = rows.get((session.group_id, session.member_id))
            if epoch is None:
                ended = "the session ended while its coordinator stood still; join again"
                its_group.fenced(session, UnknownMemberError(ended))
            elif epoch > session.member_epoch:
                newer = MemberFencedError("a newer stream of this member id joined")
                its_group.fenced(session, newer)
        for member in members:
            group = self._coordinator.groups.get(member.group_id)
            if group is None or member.member_id in group.sessions:
                continue
            if self._fleet.keeps(member.group_id, member.member_id, member.gateway):
                group.remember(member)

    async def stand_down(self) -> None:
        """Gives all share-partitions away and takes none any more; members stay.

        Without effect where there is no other coordinator to take them.
        """
        self._fleet.draining = True
        with contextlib.suppress(SharecoordError):
            # When the store is away, the lease ends soon.
            await self._announce()
            self._fleet.gateway.say_all(Look())
            await self.look()
