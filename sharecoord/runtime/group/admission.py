"""Whether callers may be members: as they come, as they subscribe, and as long as they stay.

The rules and the credentials of a member are looked at again each second. A member that may not be
one any more leaves: its stream ends with the error, and its records go to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

import structlog

from sharecoord.errors import SharecoordError, UnauthenticatedError
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.member.session import Session, anothers_member
from sharecoord.security.actions import Action
from sharecoord.security.actions import group as group_resource
from sharecoord.security.guard import Guard
from sharecoord.security.principals import Caller
from sharecoord.security.rules import Rules

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S: Final = 1.0
"""How often members are looked at: as often as the files of rules."""


class Admission:
    """Lets members in, and sends away those that may not stay."""

    def __init__(self, guard: Guard, groups: Mapping[str, GroupActor]) -> None:
        self._guard = guard
        self._groups = groups
        self._seen: Rules | None = None
        """The rules by which all members were looked at last."""

    def check_join(
        self, caller: Caller, group_id: str, member_id: str, topics: Iterable[str]
    ) -> None:
        """Lets a caller join, as a new member or as one that comes back.

        Raises:
            UnauthorizedError: The rules do not let it, or the member is another principal's.
            QuotaExceededError: Its principal has as much as it may.
        """
        with self._guard.telling(caller, "Join", group_resource(group_id)):
            self._guard.check_member(caller, group_id, topics)
            group = self._groups.get(group_id)
            session = None if group is None else group.sessions.get(member_id)
            if session is None:
                self._guard.quotas.check_member(caller.principal)
            else:
                _check_same(session, caller)
            if group is None:
                self.check_group(caller)

    def check_group(self, caller: Caller) -> None:
        """Lets a caller make a group.

        Raises:
            QuotaExceededError: Its principal has made as many as it may.
        """
        name = caller.principal.name
        self._guard.quotas.check_group(
            caller.principal, lambda: sum(each.made_by == name for each in self._groups.values())
        )

    def check_subscription(self, session: Session, topics: Iterable[str]) -> None:
        """Lets a member subscribe to other topics.

        Raises:
            UnauthorizedError: The rules do not let it.
        """
        caller = session.caller or Caller()
        with self._guard.telling(caller, "Subscribe", group_resource(session.group_id)):
            self._guard.check_member(caller, session.group_id, topics)

    def check_call(self, caller: Caller, group_id: str, action: Action, call: str) -> None:
        """Lets a caller do something with a group that may be there.

        Raises:
            UnauthorizedError: The rules do not let it.
        """
        resource = group_resource(group_id)
        with self._guard.telling(caller, call, resource):
            self._guard.check(caller, [(action, resource)])

    def recognise(self, session: Session, caller: Caller, call: str) -> None:
        """Lets a caller speak for a member: it is the member's principal, with these credentials.

        A member of which nothing but its id is known is that of the first caller who may be one.

        Raises:
            UnauthorizedError: It is another principal, or the rules do not let it be a member.
        """
        if session.caller is not None and session.caller.identity == caller.identity:
            return
        with self._guard.telling(caller, call, group_resource(session.group_id)):
            _check_same(session, caller)
            self._guard.check_member(caller, session.group_id, session.topics)
        if session.caller is None:
            self._guard.quotas.member(caller.principal, 1)
        session.caller, session.principal = caller, caller.principal.name

    # -- who may not stay -----------------------------------------------------------------------

    async def run(self) -> None:
        """Looks at the members again and again."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Sends members away whose credentials have ended, or whom the rules do not let stay."""
        rules = self._guard.rules
        is_other, self._seen = rules is not self._seen, rules
        if not (is_other or rules.quotas or self._guard.holds):
            return
        # Thousands of members are of a few principals, who are asked about once.
        holds = cache(self._guard.holds or (lambda _: True))
        records_each = cache(self._guard.quotas.records_each)
        for group in list(self._groups.values()):
            for session in list(group.sessions.values()):
                caller = session.caller
                if caller is None:
                    continue
                if rules.quotas or is_other:
                    session.records_max = records_each(caller.principal)
                if is_other or not holds(caller.identity):
                    self._look_at(group, session, caller)

    def _look_at(self, group: GroupActor, session: Session, caller: Caller) -> None:
        try:
            with self._guard.telling(caller, "Consume", group_resource(group.group_id)):
                self._guard.check_still(caller, group.group_id, session.topics)
        except SharecoordError as error:
            has_ended = isinstance(error, UnauthenticatedError)
            why = "credentials" if has_ended else "authorization"
            log.info(
                "a member may not stay",
                group=group.group_id,
                member=session.member_id,
                principal=caller.principal.name,
                why=error.message,
            )
            channel = session.channel
            group.leave(session, why=why)
            if channel is not None:
                channel.end(error)


def _check_same(session: Session, caller: Caller) -> None:
    """Refuses a caller who is another principal than the member's.

    Raises:
        UnauthorizedError: It is.
    """
    if session.principal not in ("", caller.principal.name):
        raise anothers_member(session.group_id, session.member_id)
