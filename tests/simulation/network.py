"""The network between coordinators: links that are slow, break, or lead nowhere for a while.

A link is kept as by `sharecoord/peers/links.py` and `api/grpc/peer_service.py`: the gateway
connects again and again to whom it follows and vouches each second; the owner gives up who is
silent. A gateway notices no silence: its link ends when the owner says so, or with the lease.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sharecoord.api.grpc.peer_service import SILENCE_S
from sharecoord.core.delivery import Delivery
from sharecoord.core.fleet.peering import Alive, GatewayItem, MemberDown, MemberUp, OwnerItem
from sharecoord.peers.links import ALIVE_S, RETRY_MAX_S, RETRY_S, WELCOME_S
from sharecoord.runtime.fleet.owner import GatewayLink
from tests.simulation.judges.judge import Judge

if TYPE_CHECKING:
    from tests.simulation.fleet import Node


class Pipe:
    """One direction of a connection: in order, late, and standing still while its way is blocked.

    Args:
        context: Of the process at its end.
        delay_s: Of each message.
    """

    def __init__(self, context: contextvars.Context, delay_s: float) -> None:
        self.lost = False
        """Nothing arrives any more."""
        self.blocked = False
        self._context = context
        self._delay_s = delay_s
        self._items: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._blocked = 0
        self._last_s = 0.0

    def send(self, call: Callable[..., object], *args: object) -> None:
        """Has the process at the end make a call."""
        self._items.append((call, args))
        if self.blocked:
            self._blocked += 1
        else:
            self._goes()

    def _goes(self) -> None:
        loop = asyncio.get_running_loop()
        self._last_s = max(self._last_s, loop.time() + self._delay_s)
        loop.call_at(self._last_s, self._arrives, context=self._context)

    def _arrives(self) -> None:
        call, args = self._items.popleft()
        if not self.lost:
            call(*args)

    def unblock(self) -> None:
        """What was held up goes on its way."""
        self.blocked = False
        waiting, self._blocked = self._blocked, 0
        for _ in range(waiting):
            self._goes()


class Wire:
    """One connection from a gateway to an owner, and what both ends make of it.

    For the gateway it is the `OwnerWay`.
    """

    def __init__(self, network: Network, gateway: Node, owner: Node) -> None:
        self.gateway, self.owner = gateway, owner
        self.link: GatewayLink | None = None
        """The owner's end."""
        self._network = network
        delay_s = network.chance.choice((0.0005, 0.0005, 0.002, 0.02, 0.2))
        self.up = Pipe(owner.process.context, delay_s)
        self.down = Pipe(gateway.process.context, delay_s)
        self._hear: Callable[[OwnerItem], None] | None = None
        self._answered = asyncio.Event()
        self._over = asyncio.Event()
        self.hung_up = False
        """The gateway has given it up; its owner may not have noticed yet."""
        self.heard_s = 0.0
        self.members: dict[int, str] = {}
        """Of which the owner has heard, by their handles."""

    @property
    def is_over(self) -> bool:
        """Whether neither end knows of it any more."""
        return self.hung_up and self.link is None and not self.up.blocked

    # -- the gateway's end ----------------------------------------------------------------------

    async def serve(self) -> bool:
        """From its begin to its end; whether the other side had answered."""
        self.up.send(self._greeted)
        try:
            async with asyncio.timeout(WELCOME_S):
                await self._answered.wait()
        except TimeoutError:
            return False
        await self._over.wait()
        return self._hear is not None

    def say(self, item: GatewayItem) -> None:
        """Tells the owner something."""
        if not self.hung_up:
            self.up.send(self._heard, item)

    def _welcomed(self) -> None:
        if self.hung_up:
            return
        fleet = self.gateway.peers
        assert fleet is not None, "of a fleet"
        self._answered.set()
        self._hear = fleet.gateway.linked(self.owner.name, self)
        self._vouch()

    def _vouch(self) -> None:
        if self.hung_up:
            return
        self.say(Alive())
        if self.owner.process.dead and self._network.nodes.get(self.owner.name) is not self.owner:
            # Whoever has its address now knows nothing of this connection, and says so.
            self.down.send(self.owner_left)
        asyncio.get_running_loop().call_later(ALIVE_S, self._vouch)

    def _comes(self, item: OwnerItem) -> None:
        if self._hear is not None and not self.hung_up:
            self._hear(item)

    def owner_left(self) -> None:
        """The owner's end is gone, and the gateway notices."""
        self._answered.set()
        self._over.set()

    def hang_up(self) -> None:
        """The gateway gives it up."""
        self.hung_up = True
        if not self._over.is_set():
            self._network.loses(self)
        self.up.send(self.gateway_left)
        if self._hear is not None:
            fleet = self.gateway.peers
            assert fleet is not None, "of a fleet"
            fleet.gateway.unlinked(self.owner.name)

    # -- the owner's end ------------------------------------------------------------------------

    def _greeted(self) -> None:
        coordinator = self.owner.coordinator
        if coordinator is None or self.owner.closed_to_peers:
            self.down.send(self.owner_left)
            return
        fleet = self.owner.peers
        assert fleet is not None, "of a fleet"
        self.down.send(self._welcomed)
        # First what had ended until now.
        self._network.came(self)
        self.link = GatewayLink(
            coordinator.context,
            coordinator.groups,
            fleet.look_now,
            self.gateway.name,
            _WayBack(self),
        )
        fleet.gateway_came(self.link)
        self.heard_s = asyncio.get_running_loop().time()
        self._listen()

    def _heard(self, item: GatewayItem) -> None:
        if self.link is not None:
            self.heard_s = asyncio.get_running_loop().time()
            if isinstance(item, MemberUp):
                self.members[item.handle] = item.member_id
            elif isinstance(item, MemberDown):
                self.members.pop(item.handle, None)
            self.link.hear(item)
            if self.link is not None and self.link.closed:
                self._network.loses(self)
                self.gateway_left()

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        if self.link is None:
            return
        left_s = self.heard_s + SILENCE_S - loop.time()
        if left_s <= 0:
            self._network.loses(self)
            self.gateway_left()
        else:
            loop.call_later(left_s + 0.001, self._listen)

    def gateway_left(self) -> None:
        """The owner notices that the gateway's end is gone, or ends its own."""
        if self.link is None:
            return
        link, self.link = self.link, None
        fleet = self.owner.peers
        assert fleet is not None, "of a fleet"
        fleet.gateway_went(link)
        self._network.went(self)
        self.down.send(self.owner_left)

    def tell(self, item: OwnerItem) -> None:
        """Tells the gateway something."""
        if self.link is not None:
            self.down.send(self._comes, item)


class _WayBack:
    """A `GatewayWay`: deliveries go as they are, with the ends of their locks."""

    unsent_bytes = 0

    def __init__(self, wire: Wire) -> None:
        self.say = wire.tell

    def frame(self, delivery: Delivery, now_ms: int) -> object:
        """A delivery; on the wire go the milliseconds that its locks have left."""
        here_ms = int(asyncio.get_running_loop().time() * 1000)
        return delivery, [here_ms + each.deadline_ms - now_ms for each in delivery.ranges]


class Network:
    """All connections between coordinators, and who can reach whom."""

    def __init__(self, judge: Judge, chance: random.Random, outside: contextvars.Context) -> None:
        self.chance = chance
        self.nodes: dict[str, Node] = {}
        """The newest process of each name."""
        self.blocked: set[frozenset[str]] = set()
        """Pairs between which nothing passes."""
        self.wires: list[Wire] = []
        self._judge = judge
        self._outside = outside
        self._losses: dict[tuple[str, str], int] = {}
        self._unheard_since_ms: dict[tuple[str, str], int] = {}
        judge.way = self.way
        judge.unheard_ms = self.unheard_ms

    def connect(self, gateway: Node, owner_id: str) -> Wire | None:
        """A new connection; None when there is nobody at that address."""
        owner = self.nodes[owner_id]
        if owner.process.dead:
            return None
        wire = Wire(self, gateway, owner)
        wire.up.blocked = wire.down.blocked = self._is_blocked(wire)
        self.wires = [each for each in self.wires if not each.is_over]
        self.wires.append(wire)
        return wire

    def _is_blocked(self, wire: Wire) -> bool:
        return frozenset((wire.gateway.name, wire.owner.name)) in self.blocked

    # -- faults ---------------------------------------------------------------------------------

    def open_wires(self) -> list[Wire]:
        """Those that lead from a gateway to an owner."""
        return [wire for wire in self.wires if wire.link is not None and not wire.up.lost]

    def break_off(self, wire: Wire) -> None:
        """A connection breaks with what is under way; each end notices in its time, or not."""
        wire.up.lost = wire.down.lost = True
        self.loses(wire)
        loop, choice = asyncio.get_running_loop(), self.chance.choice
        loop.call_later(
            choice((0.0, 0.05, 1.0, 3.0)), wire.owner_left, context=wire.gateway.process.context
        )
        told_s = choice((0.0, 0.05, 1.0, SILENCE_S))
        if told_s < SILENCE_S:
            loop.call_later(told_s, wire.gateway_left, context=wire.owner.process.context)

    def block(self, pairs: Iterable[frozenset[str]]) -> None:
        """Nothing passes between these any more; connections wait."""
        self.blocked.update(pairs)
        for wire in self.wires:
            if self._is_blocked(wire) and not wire.up.blocked:
                wire.up.blocked = wire.down.blocked = True
                self.loses(wire)

    def unblock(self, pairs: Iterable[frozenset[str]]) -> None:
        """Everything passes again, what was held up first."""
        self.blocked.difference_update(pairs)
        for wire in self.wires:
            if wire.up.blocked and not self._is_blocked(wire):
                wire.up.unblock()
                wire.down.unblock()
                self.loses(wire)

    def died(self, node: Node) -> None:
        """A process is gone: its kernel tells the others, unless its machine is gone too."""
        told_s = self.chance.choice((0.0, 0.05, 1.0, None))
        for pair in [pair for pair in self._unheard_since_ms if pair[1] == node.name]:
            del self._unheard_since_ms[pair]
        loop = asyncio.get_running_loop()
        for wire in self.wires:
            if node in (wire.gateway, wire.owner) and told_s is not None:
                is_owner = wire.owner is node
                pipe = wire.down if is_owner else wire.up
                end = wire.owner_left if is_owner else wire.gateway_left
                loop.call_later(told_s, pipe.send, end, context=self._outside)
            if wire.owner is node:
                wire.link = None

    # -- what the judge may know ----------------------------------------------------------------

    def loses(self, wire: Wire) -> None:
        """What is under way on a connection may be lost, or come late."""
        pair = wire.gateway.name, wire.owner.name
        self._losses[pair] = self._losses.get(pair, 0) + 1

    def came(self, wire: Wire) -> None:
        """An owner hears a gateway."""
        pair = wire.gateway.name, wire.owner.name
        self._judge.heard(*pair)
        self._unheard_since_ms.pop(pair, None)

    def went(self, wire: Wire) -> None:
        """An owner hears a gateway no longer, and did not for a while."""
        if not self._links(wire.gateway.name, wire.owner.name):
            self._unheard_since_ms[wire.gateway.name, wire.owner.name] = int(wire.heard_s * 1000)

    def _links(self, gateway: str, owner: str) -> list[Wire]:
        return [
            wire
            for wire in self.wires
            if wire.link is not None and (wire.gateway.name, wire.owner.name) == (gateway, owner)
        ]

    def way(self, member_id: str, gateway: str, owner: str) -> int | None:
        """A number that stays the same while nothing is lost between two; None = something is.

        Without a link, or before the gateway has told it of the member, an owner may still know an
        older stream of the member, that of its own. A gateway that has not seen the topics in Kafka
        tells nobody.
        """
        links = self._links(gateway, owner)
        if not any(member_id in wire.members.values() for wire in links):
            return None
        if any(wire.up.lost or wire.up.blocked or wire.hung_up for wire in links):
            return None
        return self._losses.get((gateway, owner), 0)

    def unheard_ms(self, gateway: str, owner: str) -> int | None:
        """Since when an owner that runs hears nothing of a gateway; None = it does."""
        node = self.nodes.get(owner)
        if node is None or node.process.dead or self._links(gateway, owner):
            return None
        return self._unheard_since_ms.get((gateway, owner), node.began_ms)


class Links:
    """The links of one process: `sharecoord.ports.PeerNetwork`."""

    def __init__(self, network: Network, node: Node) -> None:
        self._network = network
        self._node = node
        self._keepers: dict[str, asyncio.Task[None]] = {}

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Keeps a link to each of these, and to nobody else."""
        for owner_id in [each for each in self._keepers if each not in addresses]:
            self._keepers.pop(owner_id).cancel()
        for owner_id in addresses:
            if owner_id not in self._keepers:
                self._keepers[owner_id] = asyncio.create_task(self._keep(owner_id), name="keeper")

    async def _keep(self, owner_id: str) -> None:
        delay_s = RETRY_S
        while True:
            wire = self._network.connect(self._node, owner_id)
            if wire is not None:
                try:
                    if await wire.serve():
                        delay_s = RETRY_S
                finally:
                    wire.hang_up()
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def close(self) -> None:
        """Ends every link."""
        keepers = list(self._keepers.values())
        self.follow({})
        await asyncio.gather(*keepers, return_exceptions=True)
