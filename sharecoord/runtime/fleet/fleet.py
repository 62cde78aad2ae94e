"""The other coordinators as this one sees them: which are there, which owns what, and the links.

All of it is belief, which `fleet.watch` keeps fresh; the claim in SQL decides
(docs/decisions/0011).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from sharecoord.core.changes import CoordinatorRow, PartitionKey, PartitionRelease, served_by
from sharecoord.core.fleet.lending import HERE
from sharecoord.core.fleet.peering import Hungry, Look
from sharecoord.core.fleet.placement import wanted_keeper, wanted_owner
from sharecoord.runtime.fleet.gateway import Gateway
from sharecoord.runtime.fleet.owner import GatewayLink, LentChannel
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.group.group import Group, Peers
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.actor import PartitionActor

INTRODUCED_WITHIN_S = 1.0
"""Time that a gateway with a new link may take to introduce its members."""

BLIND_AFTER_S = 5.0
"""A coordinator that has not read the store for this time (five looks in vain) hands out nothing.
Nothing is acquired without the store anyway, so this costs a second at most when it is back."""


class Fleet(Peers):
    """The other coordinators of a fleet, and the share-partitions that they should own."""

    def __init__(self, coordinator_id: str, clock: RuntimeClock) -> None:
        self.coordinator_id = coordinator_id
        self.gateway: Gateway = Gateway(clock)
        self.groups: Mapping[str, GroupActor] = {}
        """The groups of this coordinator."""
        self.gateway_links: dict[str, GatewayLink] = {}
        """Links of gateways with members here, by coordinator id."""
        self.look_now = asyncio.Event()
        """Set when the store has news."""
        self.draining = False
        self.others: tuple[CoordinatorRow, ...] = ()
        """The others that have a live lease and can be reached, by id."""
        self.present = frozenset({coordinator_id})
        """The ids of all coordinators with a live lease."""
        self.refused_links = 0
        """Links that were refused, since the start: whoever opened them proved nothing in time."""
        self._secrets: dict[str, bytes] = {}
        """By which coordinators with a live lease are known, by id."""
        self._looked_s: float | None = None
        """Loop time at which the store was read last; None = never."""
        self.unreleased: list[PartitionRelease] = []
        """Share-partitions that were given up and are not free in the store yet."""
        self._takers: tuple[str, ...] = (coordinator_id,)
        self._told: dict[str, set[str]] = {}
        """The topics for which gateways were told that credit is missing, by group."""

    @property
    def is_blind(self) -> bool:
        """Whether changes and pauses of the others may be unknown here since long."""
        return self._looked_s is not None and _now_s() - self._looked_s > BLIND_AFTER_S

    def looked(self) -> None:
        """The store was read, and its changes were followed."""
        self._looked_s = _now_s()

    def sees(self, coordinators: Sequence[CoordinatorRow]) -> bool:
        """Notes the live leases; returns whether a coordinator came, went, or began to drain."""
        before = self._takers, self.present
        self.present = frozenset({self.coordinator_id, *(r.coordinator_id for r in coordinators)})
        self.others = tuple(
            row
            for row in coordinators
            if row.peer_address and row.coordinator_id != self.coordinator_id
        )
        takers = {row.coordinator_id for row in self.others if not row.draining}
        if not self.draining:
            takers.add(self.coordinator_id)
        self._takers = tuple(sorted(takers))
        return before != (self._takers, self.present)

    def knows(self, coordinators: Sequence[CoordinatorRow]) -> None:
        """Notes by which secrets the coordinators with a live lease are known."""
        self._secrets = {row.coordinator_id: row.secret for row in coordinators}

    def secret_of(self, coordinator_id: str) -> bytes:
        """The secret in the lease row of a coordinator; b"" = no live lease, or none in it."""
        return self._secrets.get(coordinator_id, b"")

    @property
    def addresses(self) -> list[str]:
        """Addresses for members of this coordinator when it goes down."""
        return sorted({row.address for row in self.others if not row.draining})

    def owner_of(self, key: PartitionKey) -> str:
        """The coordinator that should own a share-partition: `HERE`, or another's id."""
        owner = wanted_owner(key, self._takers)
        return HERE if owner in (self.coordinator_id, None) else owner

    def found_topic(self, group: Group, topic: str) -> None:
        """Introduces members that want a topic to the owners of its share-partitions."""
        self.place_topic(group, topic)
        for session in group.sessions.values():
            wanted = served_by(topic) in session.topics
            if wanted and not session.comparison.pending and not session.is_lent:
                self.gateway.changed(group, session)
                group.offer(session)

    def place_topic(self, group: Group, topic: str) -> None:
        """Notes the owners of the share-partitions of a topic."""
        owners: set[str] = set()
        for key in group.keys_of(topic):
            owner = self.owner_of(key)
            owners.add(owner)
            if owner == HERE:
                group.elsewhere.pop((topic, key.partition), None)
            else:
                group.elsewhere[topic, key.partition] = owner
        group.owners_by_name[topic] = frozenset(owners)
        _unite_owners(group, served_by(topic))

    def forget_topic(self, group: Group, topic: str) -> None:
        """The cluster does not have the topic any more: nobody owns anything of it."""
        for place in [place for place in group.elsewhere if place[0] == topic]:
            del group.elsewhere[place]
        group.owners_by_name.pop(topic, None)
        _unite_owners(group, served_by(topic))

    def claimed(self, group: Group, actor: PartitionActor) -> None:
        """A share-partition is served here from now on: its members' gateways are asked."""
        if actor.partition is not None:
            self.gateway.compares(actor.key, actor.partition.owner_epoch)
            for link in self.gateway_links.values():
                link.ask_books(actor)

    def closed(self, group: Group) -> None:
        """The group was deleted."""
        self.unmet(group.group_id, {})
        self.gateway.forget_compared(self.gateway.compared_of(group.group_id))

    def keeps(self, group_id: str, member_id: str, gateway: str) -> bool:
        """Whether this coordinator takes a member out of its group when its session ends.

        Its gateway does, and for a gateway that has died one of the others.
        """
        if not gateway or gateway in self.present:
            return not gateway
        return wanted_keeper(group_id, member_id, self.present) == self.coordinator_id

    def look_at_store(self) -> None:
        """The store has news for everybody, this coordinator included."""
        self.look_now.set()
        self.tell_news()

    def tell_news(self) -> None:
        """Tells the others that the store has news."""
        self.gateway.say_all(Look())

    def gateway_came(self, link: GatewayLink) -> None:
        """A gateway has a new link here; its former link has ended, noticed or not."""
        former = self.gateway_links.get(link.gateway_id)
        self.gateway_links[link.gateway_id] = link
        if former is not None:
            former.close()
        link.greet()
        for group_id, topics in self._told.items():
            for topic in sorted(topics):
                link.way.say(Hungry(group_id, topic, 1))

    def gateway_went(self, link: GatewayLink) -> None:
        """A link is gone."""
        if self.gateway_links.get(link.gateway_id) is link:
            del self.gateway_links[link.gateway_id]
        link.close()

    def introduces_for_s(self, gateway: str) -> float:
        """Seconds in which a gateway with a new link may still introduce members."""
        link = self.gateway_links.get(gateway)
        if link is None:
            return 0.0
        return max(0.0, link.began_s + INTRODUCED_WITHIN_S - _now_s())

    def timed_out(self, session: Session) -> None:
        """A lock of a member ended by itself: no coordinator hands it anything more."""
        if isinstance(session.channel, LentChannel):
            session.channel.timed_out()
        else:
            self.gateway.recall(session)

    def unmet(self, group_id: str, records: Mapping[str, int]) -> None:
        """Tells gateways for how many records of a group no credit was lent, by topic."""
        before = self._told.get(group_id, set())
        now = {topic for topic, count in records.items() if count}
        if before == now:
            return
        if now:
            self._told[group_id] = now
        else:
            del self._told[group_id]
        for topic in sorted(before ^ now):
            for link in self.gateway_links.values():
                link.way.say(Hungry(group_id, topic, records.get(topic, 0)))
            if topic in now:
                self.gateway.hungry_here(group_id, topic)

    def forget(self, key: PartitionKey) -> None:
        """A share-partition is not served here any more: links forget what they asked of it."""
        for link in self.gateway_links.values():
            link.forget(key)


def _unite_owners(group: Group, served: str) -> None:
    """The owners of a topic are those of its share-partitions and of its lanes."""
    others = [o for name, o in group.owners_by_name.items() if served_by(name) == served]
    if others:
        group.owners[served] = frozenset().union(*others)
    else:
        group.owners.pop(served, None)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
