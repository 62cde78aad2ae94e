"""What of a group is paused, as the parts of the group that serve it see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sharecoord.core.changes import PartitionKey
from sharecoord.core.pauses import Pauses
from sharecoord.runtime.sessions import Session


class PausedPart(Protocol):
    """A share-partition that is served here."""

    paused: bool

    @property
    def key(self) -> PartitionKey:
        """Its name."""


class PausedGroup(Protocol):
    """What is needed of a group."""

    pauses: Pauses

    @property
    def sessions(self) -> Mapping[str, Session]:
        """Its members."""

    @property
    def partitions(self) -> Mapping[tuple[str, int], PausedPart]:
        """What is served here."""


def is_paused(pauses: Pauses, key: PartitionKey) -> bool:
    """Whether a share-partition hands out nothing; a lane follows what its letters come from."""
    return pauses.of_place(*key.home) is not None


def follow(group: PausedGroup) -> None:
    """Other things are paused than before; the group's dispatcher looks at everything next."""
    for actor in group.partitions.values():
        actor.paused = is_paused(group.pauses, actor.key)
    for session in group.sessions.values():
        session.held_up = group.pauses.of_member(session.member_id) is not None
