"""Links between coordinators of one process: in order, with a delay, and they can be cut."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from sharecoord.core.delivery import Delivery
from sharecoord.core.fleet.peering import GatewayItem, OwnerItem
from sharecoord.ports import PeerNetwork
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.fleet.owner import GatewayLink
from sharecoord.wire.record_batches import joined_batches

T = TypeVar("T")

LINK_S = 0.001
"""Virtual time that an item is under way."""


class _Pipe(Generic[T]):
    """A direction of a link."""

    def __init__(self, hear: Callable[[T], None], delay_s: float) -> None:
        self._hear = hear
        self.delay_s = delay_s
        self._items: deque[T] = deque()
        self.cut = False

    def say(self, item: T) -> None:
        self._items.append(item)
        asyncio.get_running_loop().call_later(self.delay_s, self._arrive)

    def _arrive(self) -> None:
        if not self.cut:
            self._hear(self._items.popleft())


class _WayToOwner:
    def __init__(self, pipe: _Pipe[GatewayItem]) -> None:
        self._pipe = pipe

    def say(self, item: GatewayItem) -> None:
        self._pipe.say(item)


class _WayToGateway:
    """Deliveries go as they are, with the time at which they went."""

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.pipe: _Pipe[OwnerItem] | None = None

    def say(self, item: OwnerItem) -> None:
        if self.pipe is not None:
            self.pipe.say(item)

    def frame(self, delivery: Delivery, now_ms: int) -> object:
        return delivery, now_ms

    def batches(self, delivery: Delivery) -> object:
        return joined_batches(delivery)


class PeerLink:
    """From a gateway to an owner."""

    def __init__(self, gateway: Coordinator, owner: Coordinator, delay_s: float = LINK_S) -> None:
        """Connects them.

        Args:
            gateway: Who has members.
            owner: Who serves share-partitions to them.
            delay_s: Of each item.
        """
        fleet, peers = gateway.fleet, owner.fleet
        assert fleet is not None, "built as one of a fleet"
        assert peers is not None, "built as one of a fleet"
        self._gateway, self._fleet, self._peers = gateway, fleet, peers
        self._owner_id = peers.coordinator_id
        back = _WayToGateway()
        self._end = GatewayLink(
            owner.context, owner.groups, peers.look_now, fleet.coordinator_id, back
        )
        self._there = _Pipe(self._end.hear, delay_s)
        way = _WayToOwner(self._there)
        hear = fleet.gateway.linked(self._owner_id, way)
        self._back = back.pipe = _Pipe(hear, delay_s)
        peers.gateway_came(self._end)

    def slow_down(self, delay_s: float) -> None:
        """Delays all that the owner says from now on."""
        self._back.delay_s = delay_s

    def cut(self) -> None:
        """Nothing arrives any more, in either direction; both sides notice."""
        self._there.cut = self._back.cut = True
        self._fleet.gateway.unlinked(self._owner_id)
        self._peers.gateway_went(self._end)


class PeerHub:
    """All coordinators of one process that can reach each other, by id."""

    def __init__(self) -> None:
        self.coordinators: dict[str, Coordinator] = {}
        self.links: dict[tuple[str, str], PeerLink] = {}
        """By gateway and owner."""
        self.cut_off: set[str] = set()
        """Whom no link leads to, nor from."""

    def network(self, coordinator_id: str) -> PeerNetwork:
        """The links of one of them."""
        return _Network(self, coordinator_id)

    def cut(self, gateway: str, owner: str) -> None:
        """A link breaks; it is made anew when the gateway looks next."""
        link = self.links.pop((gateway, owner), None)
        if link is not None:
            link.cut()

    def gone(self, coordinator_id: str) -> None:
        """Nobody reaches it any more."""
        self.coordinators.pop(coordinator_id, None)
        for gateway, owner in [pair for pair in self.links if coordinator_id in pair]:
            self.cut(gateway, owner)


class _Network:
    """`PeerNetwork`."""

    def __init__(self, hub: PeerHub, gateway: str) -> None:
        self._hub = hub
        self._gateway = gateway

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Makes and cuts links at once."""
        hub, me = self._hub, self._gateway
        for gateway, owner in list(hub.links):
            if gateway == me and owner not in addresses:
                hub.cut(gateway, owner)
        if me not in hub.coordinators:
            return
        for owner in addresses.keys() & hub.coordinators.keys() - hub.cut_off:
            if (me, owner) not in hub.links and me not in hub.cut_off:
                link = PeerLink(hub.coordinators[me], hub.coordinators[owner])
                hub.links[me, owner] = link

    async def close(self) -> None:
        """Cuts all of them."""
        self.follow({})
