"""What a protocol front is to the runtime; no protocol is known here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Assignment, Delivery, PartitionResult
from sharecoord.core.fleet.peering import Relayed
from sharecoord.core.partition.decisions import TakenBack
from sharecoord.errors import SharecoordError


class MemberChannel(Protocol):
    """The way to one member; its calls do not wait.

    What the member can not take in time shows in `unsent_bytes`, at which the dispatcher looks.
    """

    @property
    def unsent_bytes(self) -> int:
        """What waits to be sent."""

    @property
    def unsent_since_s(self) -> float:
        """Loop time since which the member has taken nothing of it; inf when it may have."""

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """Sends records whose acquisition is durable."""

    def relay(self, item: Relayed) -> None:
        """Sends records that another coordinator acquired, in the form that it made of them."""

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Sends the outcome of acknowledgements."""

    def taken_back(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        """Tells of locks that ended without the member's word; durable."""

    def assigned(self, assignment: Assignment) -> None:
        """Tells a change of what the member may receive."""

    def drain(self, addresses: Sequence[str], grace_ms: int) -> None:
        """Asks the member to go elsewhere: to one of these addresses, or to where it was."""

    def end(self, error: SharecoordError | None) -> None:
        """Ends the connection; with an error, says why."""

    def cut(self, error: SharecoordError) -> None:
        """Ends a connection that is not read: what waits is dropped, save what is on its way."""
