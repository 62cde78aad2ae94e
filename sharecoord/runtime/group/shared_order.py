"""Order by key between a topic and the lanes of its letters (docs/decisions/0019).

Share-partitions that are served here have a table of keys in common. One whose counterpart is not
served here hands out nothing: the counterpart may have keys out elsewhere, and only its owner knows
them. As both are placed together, that lasts as long as one takes to follow the other. The owners
of both are read after each claim of one: a counterpart that was claimed since is not served here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import structlog

from sharecoord.core.changes import LANE_MARK, PartitionKey, Place, served_by
from sharecoord.core.order.shared_keys import SharedKeys
from sharecoord.core.states import Ordering
from sharecoord.runtime.group.group import Group
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState

log = structlog.get_logger(__name__)

LANE_WAIT_MS: Final = 60_000
"""A lane that is not served after this time (nobody can read its topic) holds up its partition no
longer: one that stands still is worse than a few letters out of order. Letters wait for their
partition as long as it takes."""


class SharedOrder:
    """The shared order of one group; it costs nothing where there are no lanes."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.keys: dict[str, SharedKeys] = {}
        """By topic; topics without lanes have none."""
        self._lanes: dict[Place, list[Place]] = {}
        """Lanes with unfinished letters, by the one partition that the letters come from."""
        self._apart_since_ms: dict[Place, int] = {}
        self._epochs: Mapping[Place, int] = {}
        """Owner epochs of partitions and lanes, as the store had them at the last look."""

    def joined(self, key: PartitionKey) -> None:
        """A share-partition is served from now on: it keeps order with its topic's lanes."""
        group, topic = self._group, key.served
        shared, joining = self.keys.get(topic), [group.partitions[key.place]]
        if shared is None and any(
            LANE_MARK in name and served_by(name) == topic for name in group.topic_ids
        ):
            shared = self.keys[topic] = SharedKeys(lambda: self._wake(topic))
            joining = self._serving(topic)
        for actor in joining:
            if actor.partition is not None:
                actor.partition.share_keys(shared)
        self.look_at(key.home)

    def lanes_are(
        self,
        opened: Iterable[PartitionKey],
        unfinished: Iterable[PartitionKey],
        epochs: Mapping[Place, int],
    ) -> None:
        """Follows lanes that came or went; a topic without lanes keeps its order alone again.

        Args:
            opened: Lanes of the group that are served, or have letters that wait.
            unfinished: Lanes with unfinished letters, of topics that a coordinator may serve.
            epochs: Owner epochs of these lanes and of their partitions: a former owner that does
                not know it yet knows nothing of the keys that are out.
        """
        before, self._lanes = self._lanes, {}
        self._epochs = epochs
        for place, epoch in epochs.items():
            actor = self._group.partitions.get(place)
            if actor is not None and actor.partition and actor.partition.owner_epoch < epoch:
                # Its next commit would say so; it may have none to make.
                self._group.context.committer.add(actor)
        for key in unfinished:
            if key.home[1] >= 0:
                self._lanes.setdefault(key.home, []).append(key.place)
        for topic in self.keys.keys() - {key.served for key in opened}:
            del self.keys[topic]
            for actor in self._serving(topic):
                if actor.partition is not None:
                    actor.partition.share_keys(None)
        for home in {**before, **self._lanes}:
            self._look_at_places(before.get(home, ()))
            self.look_at(home)

    def settings_changed(self) -> None:
        """Looks again: the group may keep another order than before."""
        for home in self._lanes:
            self.look_at(home)

    def look_at(self, home: Place) -> None:
        """Looks at a partition and its lanes after one of them came, left, or goes on."""
        self._look_at_places((home, *self._lanes.get(home, ())))

    def _look_at_places(self, places: Iterable[Place]) -> None:
        group = self._group
        for place in places:
            actor = group.partitions.get(place)
            if actor is None:
                continue
            was, actor.apart = actor.apart, self._is_apart(actor)
            if was and not actor.apart:
                group.wake(actor)

    def _is_apart(self, actor: PartitionActor) -> bool:
        """Whether another coordinator may have keys of the share-partition out."""
        group, home = self._group, actor.key.home
        lanes = self._lanes.get(home, ())
        if not lanes or group.settings.ordering is not Ordering.KEY:
            self._apart_since_ms.pop(home, None)
            return False
        if actor.key.lane and not self._is_here(home):
            return True
        # Letters of one key may lie in two partitions of their topic, when it was given more.
        missing = [place for place in lanes if not self._is_here(place)]
        if not missing:
            self._apart_since_ms.pop(home, None)
            return False
        now_ms = actor.clock.now_ms()
        since_ms = self._apart_since_ms.setdefault(home, now_ms)
        if now_ms - since_ms < LANE_WAIT_MS:
            return True
        if actor.apart and not actor.key.lane:
            log.warning("lanes can not be served: not waited for", partition=home, lanes=missing)
        return False

    def _is_here(self, place: Place) -> bool:
        actor = self._group.partitions.get(place)
        if actor is None or actor.partition is None:
            # Nobody hands out of a stopped share-partition.
            return actor is not None and actor.state is ActorState.STOPPED
        is_owner = actor.partition.owner_epoch >= self._epochs.get(place, 0)
        return is_owner and actor.state is ActorState.ACTIVE

    def _serving(self, topic: str) -> list[PartitionActor]:
        return [each for each in self._group.partitions.values() if each.key.served == topic]

    def _wake(self, topic: str) -> None:
        for actor in self._serving(topic):
            self._group.wake(actor)
