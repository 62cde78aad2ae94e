"""The command that tells what somebody may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sharecoord.errors import InvalidConfigError, InvalidRequestError
from sharecoord.runtime.admin.group_access import GroupAccess
from sharecoord.security.principals import Principal
from sharecoord.security.rules import action_of, principal_of, resource_of


@dataclass(frozen=True, slots=True)
class AccessView:
    """An answer of the rules; admin_service.proto explains it at `DescribeAccessResponse`."""

    allowed: bool
    line: int
    why: str
    rules_problem: str = ""


class AccessCommands(GroupAccess):
    """The command that asks the rules."""

    async def describe_access(
        self, principal: str, principal_groups: Sequence[str], action: str, resource: str
    ) -> AccessView:
        """Tells whether a principal may do something, and by which line of the rules.

        Raises:
            InvalidRequestError: A word that the rules do not know; names the nearest one.
        """
        guard = self._context.guard
        try:
            who = Principal(principal_of(principal), frozenset(principal_groups))
            decision = guard.rules.decide(who, action_of(action), resource_of(resource))
        except InvalidConfigError as error:
            raise InvalidRequestError(error.message) from error
        return AccessView(decision.is_allowed, decision.line, decision.why, guard.rules_problem)
