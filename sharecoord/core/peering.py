"""What the coordinators of a fleet say to each other (design 9).

A gateway holds members' streams, an owner serves share-partitions. Each direction of a link is in
order. A handle names a member on one link; the same member with a later epoch has another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sharecoord.core.changes import PartitionKey
from sharecoord.core.decisions import AcknowledgedRange, AcquiredRange, HeldRange
from sharecoord.core.delivery import LostRange, PartitionResult
from sharecoord.core.states import AcquireMode
from sharecoord.errors import SharecoordError

# -- from the gateway ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberUp:
    """A member has its stream at the gateway, or wants other topics than before."""

    handle: int
    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    host: str
    topics: tuple[str, ...]
    mode: AcquireMode
    max_poll_records: int
    paused: frozenset[tuple[str, int]]
    lock_book: Sequence[LostRange]
    """What it holds of share-partitions that the gateway does not own."""


class MemberDown(NamedTuple):
    """A member's stream is gone."""

    handle: int
    left: bool
    """It left the group; else its session goes on until its timeout."""
    lock_book: Sequence[LostRange] | None = None
    """When it left: what its application had; None = nobody knows."""


class Lend(NamedTuple):
    """How much may have been delivered to a member in all, on this link."""

    handle: int
    records_total: int
    bytes_total: int
    recalls: bool
    """What was not used is given back at once (`Returned`)."""


class Settle(NamedTuple):
    """A member's acknowledgements for one share-partition."""

    handle: int
    relay_id: int
    """Echoed in `Settled`; grows."""
    key: PartitionKey
    ranges: Sequence[AcknowledgedRange]
    may_wait: bool


class Books(NamedTuple):
    """What the gateway's members hold of a share-partition: the answer to `AskBooks`."""

    key: PartitionKey
    owner_epoch: int
    held: Mapping[int, Sequence[HeldRange]]
    """By handle; members that are left out hold nothing."""


class Alive(NamedTuple):
    """The gateway vouches for its members; said each second."""


class Freed(NamedTuple):
    """A share-partition was released for this owner."""

    key: PartitionKey


class Look(NamedTuple):
    """The store has news for all of the fleet; who does not hear of it looks each second."""


GatewayItem = MemberUp | MemberDown | Lend | Settle | Books | Alive | Freed | Look

# -- from the owner ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relayed:
    """Records for a member, ready for its stream; the gateway does not look at the payload."""

    handle: int
    key: PartitionKey
    ranges: Sequence[AcquiredRange]
    records: int
    size_bytes: int
    send_by_ms: int
    """By the store's clock: later too little of the locks is left, and all goes back unseen."""
    frame: object
    """What the member's stream takes as it is: bytes over gRPC."""


class Settled(NamedTuple):
    """The outcome of a `Settle`, durable."""

    handle: int
    relay_id: int
    result: PartitionResult
    records: int
    """Records that the member holds no longer."""


class Returned(NamedTuple):
    """The answer to a recall: what was used of all that was lent on this link."""

    handle: int
    records_total: int
    bytes_total: int


class TimedOut(NamedTuple):
    """A lock of the member ended by itself: it gets nothing before its application gives a sign.

    The owner delivers nothing to it until the next `Lend`. The gateway recalls what it lent to
    anybody, and lends again after the member's next word; also when that word was an
    acknowledgement which it passed on before this came, and whose answer comes behind this.
    """

    handle: int


class Hungry(NamedTuple):
    """The owner has so many records that it may not deliver; 0 = none any more."""

    group_id: str
    topic: str
    records: int


class AskBooks(NamedTuple):
    """The owner claimed a share-partition: what do the gateway's members hold of it?"""

    key: PartitionKey
    owner_epoch: int


class Compared(NamedTuple):
    """The lock book of a `MemberUp` was compared with what the owner serves."""

    handle: int
    lost: Sequence[LostRange]


class MemberEnd(NamedTuple):
    """The owner serves a member no longer: it joined elsewhere, or the group is being deleted."""

    handle: int
    error: SharecoordError


OwnerItem = Relayed | Settled | Returned | TimedOut | Hungry | AskBooks | Compared | MemberEnd
