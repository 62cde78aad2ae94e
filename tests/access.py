"""Access of servers in tests: who is let in."""

from __future__ import annotations

from typing import Any

from sharecoord.api.grpc.access import Access
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.security.authenticator import Authenticator


def access_of(coordinator: Coordinator, **checks: Any) -> Access:
    """Access to a coordinator by what an `Authenticator` checks; by default everybody gets in."""
    guard = coordinator.context.guard
    return Access(Authenticator(**checks), guard, certificates="certificates" in checks)
