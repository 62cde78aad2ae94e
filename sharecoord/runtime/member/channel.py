"""The channel to a member, as protocol fronts provide it; no protocol is known here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Assignment, Delivery, PartitionResult
from sharecoord.core.fleet.peering import Relayed
from sharecoord.core.partition.decisions import TakenBack
from sharecoord.errors import SharecoordError


class MemberChannel(Protocol):
    """The channel to one member; its calls do not wait.

    The dispatcher looks at `unsent_bytes`, the messages that the member can not take in time.
    """

    @property
    def unsent_bytes(self) -> int:
        """Memory of messages that wait to be sent, or are being sent."""

    @property
    def unsent_since_s(self) -> float:
        """Loop time since which the member has taken nothing; inf when it may have."""

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """Sends records whose acquisition is durable."""

    def relay(self, item: Relayed) -> None:
        """Sends the frame of records that another coordinator acquired."""

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Sends the outcome of acknowledgements."""

    def taken_back(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        """Tells of locks that ended, durably, without the member's word."""

    def assigned(self, assignment: Assignment) -> None:
        """Tells the member its new assignment."""

    def drain(self, addresses: Sequence[str], grace_ms: int) -> None:
        """Asks the member to connect to one of these addresses; without any, to its own again."""

    def end(self, error: SharecoordError | None) -> None:
        """Ends the connection; with an error, says why."""

    def cut(self, error: SharecoordError) -> None:
        """Ends a connection that is not read; messages that are not on their way are dropped."""
