"""The other coordinators as this one sees them: who is there, who owns what, and the links.

What is said here is belief; the claim in SQL decides (docs/decisions/0011).
"""

from __future__ import annotations

from collections.abc import Iterable

from sharecoord.core.changes import PartitionKey
from sharecoord.core.lending import HERE
from sharecoord.core.peering import Hungry
from sharecoord.core.placement import wanted_owner
from sharecoord.runtime.clock import RuntimeClock
from sharecoord.runtime.gateway import Gateway
from sharecoord.runtime.owner import GatewayLink


class Fleet:
    """See the module."""

    def __init__(self, coordinator_id: str, clock: RuntimeClock) -> None:
        self.coordinator_id = coordinator_id
        self.gateway = Gateway(clock)
        self.gateway_links: dict[str, GatewayLink] = {}
        """By gateway: who has members here."""
        self._live: tuple[str, ...] = (coordinator_id,)
        self._told: dict[tuple[str, str], bool] = {}

    def sees(self, coordinator_ids: Iterable[str]) -> bool:
        """Notes who takes share-partitions; whether that is news."""
        live = tuple(sorted(coordinator_ids))
        changed = live != self._live
        self._live = live
        return changed

    def owner_of(self, key: PartitionKey) -> str:
        """Who should own a share-partition: `HERE`, or another's id."""
        owner = wanted_owner(key, self._live)
        return HERE if owner in (self.coordinator_id, None) else owner

    def gateway_came(self, link: GatewayLink) -> None:
        """A gateway has a link here; a former one of it has ended, noticed or not."""
        former = self.gateway_links.get(link.gateway_id)
        self.gateway_links[link.gateway_id] = link
        if former is not None:
            former.close()
        for (group_id, topic), hungry in self._told.items():
            if hungry:
                link.way.say(Hungry(group_id, topic, 1))

    def gateway_went(self, link: GatewayLink) -> None:
        """A link is gone."""
        if self.gateway_links.get(link.gateway_id) is link:
            del self.gateway_links[link.gateway_id]
        link.close()

    def unmet(self, group_id: str, topic: str, records: int) -> None:
        """Records of a topic that no credit was lent for; 0 = none any more."""
        if self._told.get((group_id, topic), False) != bool(records):
            self._told[group_id, topic] = bool(records)
            for link in self.gateway_links.values():
                link.way.say(Hungry(group_id, topic, records))
