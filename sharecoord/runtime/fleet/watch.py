"""Reads each second which coordinators are there and what changed in the store (design 9).

A look finds everything that messages of links did not tell: links only make it quicker.
"""

from __future__ import annotations

import asyncio
import contextlib
import math

import structlog

from sharecoord.core.changes import FleetView
from sharecoord.core.fleet.peering import Look
from sharecoord.errors import (
    SharecoordError,
    StoreFatalError,
    StoreInUseError,
    UnknownMemberError,
)
from sharecoord.ports import PeerNetwork
from sharecoord.runtime.fleet import hand_over
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.runtime.fleet.store_changes import see_changes
from sharecoord.runtime.group.groups import Groups
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.member.session import newer_stream

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 1.0
"""The interval at which leases are renewed, too."""

HASTENED_INTERVAL_S = 1.0
"""Shortest interval between looks that links hasten: whoever knocks makes no load on the store."""


class FleetWatch:
    """Follows the fleet by looks at the store."""

    def __init__(
        self, context: Context, groups: Groups, fleet: Fleet, network: PeerNetwork
    ) -> None:
        self._context = context
        self._groups = groups
        self._fleet = fleet
        self._network = network
        self._looking = asyncio.Lock()
        self._is_behind = True
        """Whether a change was not followed to the end, because the store went away."""
        self._renewed_ms: int | None = None
        """The store's time at the last renewal of the lease."""
        self._address = self._peer_address = ""
        self._waiting: list[asyncio.Future[bool]] = []
        """Those who wait for the next look that begins, and whether the store answers it."""
        self._hastened_s = -math.inf
        """Loop time at which a link has hastened a look."""

    async def announce(self, address: str, peer_address: str) -> None:
        """Tells the others the addresses for members and for peers: share-partitions come."""
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
        """The lease was renewed at this time of the store; if it had ended, all is looked at."""
        before_ms, self._renewed_ms = self._renewed_ms, store_ms
        if before_ms is not None and store_ms - before_ms > self._context.lease.duration_ms:
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
        """Reads the store and follows its changes.

        Raises:
            SharecoordError: The store does not answer; the former view stays.
        """
        async with self._looking:
            view = await self._view()
            try:
                await self._follow(view)
            finally:
                # Even if that fails: without this nothing is handed out for long.
                await see_changes(self._context, self._groups, self._fleet, view.group_epochs)
                was_blind = self._fleet.is_blind
                self._fleet.looked()
                for group in self._groups.values() if was_blind else ():
                    group.dispatcher.wake_all()

    async def _view(self) -> FleetView:
        """Reads the store, and tells those who wait for that."""
        waiting, self._waiting = self._waiting, []
        answered = False
        try:
            view = await self._context.caller.call(self._context.store.read_fleet)
            self._fleet.knows(view.coordinators)
            answered = True
        finally:
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(answered)
        return view

    async def looked_anew(self) -> bool:
        """Waits for a look that begins after this call; returns whether the store answered it.

        The look is hastened, unless that was done within the last `HASTENED_INTERVAL_S`.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(waiter)
        if loop.time() >= self._hastened_s + HASTENED_INTERVAL_S:
            self._hastened_s = loop.time()
            self._fleet.look_now.set()
        return await waiter

    async def _follow(self, view: FleetView) -> None:
        fleet, before = self._fleet, self._fleet.present
        changed = self._is_behind = fleet.sees(view.coordinators) or self._is_behind
        if gone := before - fleet.present:
            self._begin_sessions_anew(gone)
        self._network.follow({row.coordinator_id: row.peer_address for row in fleet.others})
        if changed:
            log.info("fleet", present=sorted(fleet.present), draining=fleet.draining)
        if changed or not fleet.gateway_links.keys() <= fleet.present:
            await self._adopt()
        await hand_over.release(fleet, self._context)
        for group in list(self._groups.values()):
            if changed:
                await hand_over.follow(fleet, group)
            elif not group.elsewhere.keys().isdisjoint(group.partitions):
                await hand_over.hand_over(fleet, group)
        self._is_behind = False

    def _begin_sessions_anew(self, gone: frozenset[str]) -> None:
        """Gives members of coordinators that have just gone their whole session timeout.

        The time before does not count: their streams stood while only the link was broken.
        """
        for group in self._groups.values():
            for session in group.sessions.values():
                if session.gateway in gone and session.channel is None:
                    group.expire_later(session)

    async def _adopt(self) -> None:
        """Takes over members of a dead gateway, so that they do not stay for ever.

        Members with streams here go if another coordinator took them out while this one seemed to
        be dead: their locks would end with the next move of a share-partition.
        """
        here = [
            (group, session)
            for group in self._groups.values()
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
                its_group.fenced(session, newer_stream())
        for member in members:
            group = self._groups.get(member.group_id)
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
            # Where the store is away, the lease ends soon.
            await self._announce()
            self._fleet.gateway.say_all(Look())
            await self.look()
