"""Lists and deletes groups."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from sharecoord.core.changes import MemberRow
from sharecoord.errors import InvalidRequestError, SharecoordError
from sharecoord.runtime.admin.group_access import GroupAccess, not_empty
from sharecoord.runtime.group.events import told_when_done

log = structlog.get_logger(__name__)


class GroupState(enum.Enum):
    """The state of a group, by Kafka's names."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in the list of groups."""

    group_id: str
    state: GroupState
    has_settings: bool = False
    """Whether it has settings of its own."""


class GroupCommands(GroupAccess):
    """The commands that list and delete groups."""

    async def list_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """All groups by name; with `states` those in one of them."""
        groups, members = await self._load()
        wanted = set(states) or set(GroupState)
        listed = [
            GroupListing(name, state_of(members.get(name)), bool(groups[name].config))
            for name in sorted(groups)
        ]
        return [group for group in listed if group.state in wanted]

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, SharecoordError | None]:
        """Deletes groups with everything under them, settings included.

        Returns None by group, or the error.

        Raises:
            InvalidRequestError: No group is named.
        """
        if not group_ids:
            raise InvalidRequestError("group_ids is empty; name one group at least")
        results: dict[str, SharecoordError | None] = {}
        for group_id in dict.fromkeys(group_ids):
            try:
                await self._to_the_end(self._delete_group(group_id))
            except SharecoordError as error:
                results[group_id] = error
            else:
                results[group_id] = None
        return results

    async def _delete_group(self, group_id: str) -> None:
        """Deletes one group, between two of its lives.

        The live actor is closed in the same step in which the deletion is handed to the store:
        whatever the actor asked the store for comes before it, whatever a new one asks for after
        it. A deletion that fails leaves the group to its next use, which makes a new actor.
        """
        async with self._coordinator.groups.making(group_id):
            await self._context.committed()
            _, members = await self._existing(group_id)
            group = self._coordinator.groups.get(group_id)
            count = max(len(members), len(group.sessions) if group else 0)
            if count:
                raise not_empty(group_id, count, "; stop them first")
            if group is not None:
                self._coordinator.groups.remove(group)
            with told_when_done(self._context, group_id):
                await self._context.caller.call(self._context.store.delete_group, group_id)
        self._tell_fleet()
        log.info("group deleted", group=group_id)


def state_of(members: Sequence[MemberRow] | None) -> GroupState:
    """The state of a group with these members."""
    return GroupState.STABLE if members else GroupState.EMPTY
