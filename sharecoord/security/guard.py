"""The one place that decides whether a caller may do something, and writes down that it may not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from sharecoord.errors import (
    QuotaExceededError,
    SharecoordError,
    UnauthenticatedError,
    UnauthorizedError,
)
from sharecoord.security.actions import Action, Resource, group, topic
from sharecoord.security.audit import AuditEntry, AuditLog, Outcome, Values
from sharecoord.security.files import WatchedFiles
from sharecoord.security.principals import Caller, Identity, Principal, UnixClock, unix_ms
from sharecoord.security.quotas import Quotas
from sharecoord.security.rules import OPEN, Decision, Quota, Rules

Need = tuple[Action, Resource]
"""An action that must be allowed on a resource."""

REFUSALS = (UnauthenticatedError, UnauthorizedError, QuotaExceededError)
"""Errors that mean: the caller may not."""


class Guard:
    """Rules, quotas and the audit trail of one coordinator."""

    def __init__(
        self,
        rules: WatchedFiles[Rules] | None = None,
        audit: AuditLog | None = None,
        *,
        coordinator_id: str = "",
        now_ms: UnixClock = unix_ms,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the file of rules and the trail; None = everybody may do everything, unwritten.

        Args:
            rules: The file of `security.rules.file`.
            audit: The trail of `security.audit.sink`.
            coordinator_id: Stands in each line of the trail.
            now_ms: The clock of the trail, and of the end of credentials.
            now_s: A clock that never goes back, in seconds, for quotas.
        """
        self._rules = rules
        self._audit = audit
        self._coordinator_id = coordinator_id
        self.now_ms = now_ms
        self.holds: Callable[[Identity], bool] | None = None
        """Whether an identity that was proven may go on; None = nothing ends here."""
        self.quotas = Quotas(self._quota_of, now_s)

    @property
    def rules(self) -> Rules:
        """The rules in force; another object after each change of their file."""
        return OPEN if self._rules is None else self._rules.value

    @property
    def rules_problem(self) -> str:
        """Why the file on disk is not in force; "" = it is, or there is none."""
        return "" if self._rules is None else self._rules.problem

    def _quota_of(self, principal: Principal) -> Quota:
        return self.rules.quota_of(principal)

    def decide(self, caller: Caller, action: Action, resource: Resource) -> Decision:
        """Whether the caller may do something with a resource, and by which line."""
        return self.rules.decide(caller.principal, action, resource)

    def check(self, caller: Caller, needs: Iterable[Need]) -> None:
        """Lets a caller pass that may do all of this.

        Raises:
            UnauthorizedError: It may not do the first thing that the error names.
        """
        for action, resource in needs:
            decision = self.decide(caller, action, resource)
            if not decision.is_allowed:
                raise refusal(caller, action, resource, decision)

    def check_member(self, caller: Caller, group_id: str, topics: Iterable[str]) -> None:
        """Lets a caller be a member of a group that wants these topics.

        Raises:
            UnauthorizedError: The rules do not let it.
        """
        consume = Action.CONSUME
        self.check(caller, [(consume, group(group_id)), *((consume, topic(t)) for t in topics)])

    def check_still(self, caller: Caller, group_id: str, topics: Iterable[str]) -> None:
        """Looks again at a member that was let in.

        Raises:
            UnauthenticatedError: Its credentials have ended, or were revoked.
            UnauthorizedError: The rules do not let it any more.
        """
        if self.holds is not None and not self.holds(caller.identity):
            raise UnauthenticatedError(
                f"the credentials of {caller.principal} have ended or were revoked: connect again "
                "with new ones"
            )
        self.check_member(caller, group_id, topics)

    def tell(
        self,
        caller: Caller,
        call: str,
        error: SharecoordError | None = None,
        *,
        resources: Sequence[str] = (),
        asked: Values | None = None,
        before: Values | None = None,
        after: Values | None = None,
    ) -> None:
        """Writes a line of the audit trail; does not wait.

        Args:
            caller: Who called.
            call: Name of the call.
            error: What it ended with; None = it was done.
            resources: What it was about.
            asked: What was asked for.
            before: What it changed, as it was.
            after: What it changed, as it is now.
        """
        if self._audit is None:
            return
        self._audit.write(
            AuditEntry(
                time_ms=self.now_ms(),
                principal=caller.principal.name,
                mechanism=caller.identity.mechanism,
                address=caller.address,
                call=call,
                outcome=outcome_of(error),
                coordinator_id=self._coordinator_id,
                resources=resources,
                asked=asked or {},
                before=before or {},
                after=after or {},
                reason="" if error is None else error.reason,
                why="" if error is None else error.message,
            )
        )

    @contextmanager
    def telling(self, caller: Caller, call: str, *resources: Resource) -> Iterator[None]:
        """Writes a line if an error is raised inside that means that the caller may not."""
        try:
            yield
        except REFUSALS as error:
            self.tell(caller, call, error, resources=list(map(str, resources)))
            raise


def refusal(
    caller: Caller, action: Action, resource: Resource, decision: Decision
) -> UnauthorizedError:
    """The error for what the rules do not allow; `resource` in its metadata tells which thing."""
    return UnauthorizedError(
        f"{caller.principal} may not {action} {resource}: {decision.why} (security.rules.file). "
        "Ask the operator of the coordinator for it",
        metadata={"action": action.value, "resource": str(resource)},
    )


def outcome_of(error: SharecoordError | None) -> Outcome:
    """What became of a call that ended with this error, or without one."""
    if error is None:
        return Outcome.OK
    return Outcome.REFUSED if isinstance(error, REFUSALS) else Outcome.FAILED
