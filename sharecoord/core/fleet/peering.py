"""The messages between coordinators of a fleet (design 9).

A gateway holds members' streams, an owner serves share-partitions. Each direction of a link is in
order. A handle names a member on one link; the same member with a later epoch has another handle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sharecoord.core.changes import PartitionKey, Place
from sharecoord.core.delivery import LostRange, PartitionResult
from sharecoord.core.partition.decisions import (
    AcknowledgedRange,
    AcquiredRange,
    HeldRange,
    TakenBack,
)
from sharecoord.core.states import AcquireMode
from sharecoord.errors import SharecoordError

# -- from the gateway ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberUp:
    """A member opened its stream at the gateway, or wants other topics or another mode."""

    handle: int
    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    host: str
    topics: tuple[str, ...]
    mode: AcquireMode
    max_poll_records: int
    paused: frozenset[Place]
    lock_book: Sequence[LostRange]
    """Locks of the member on share-partitions that the gateway does not own."""
    opens: frozenset[int] = frozenset()
    """Compressions of the record batches that the member opens itself."""
    principal: str = ""
    """Who the member is; "" = not known."""
    takes_batches: bool = False
    """Whether the member takes Kafka's record batches alone, and no columns."""
    is_atomic: bool = False
    """Whether what it acknowledges of a share-partition is settled together or not at all."""


class MemberDown(NamedTuple):
    """A member's stream is gone."""

    handle: int
    left: bool
    """The member left the group; else its session goes on until its timeout."""
    lock_book: Sequence[LostRange] | None = None
    """The records that the application of a member that left had; None = not known."""


class Lend(NamedTuple):
    """Totals that may have been delivered to a member on this link."""

    handle: int
    records_total: int
    bytes_total: int
    recalls: bool
    """The owner gives unused credit back at once (`Returned`)."""


class Settle(NamedTuple):
    """A member's acknowledgements for one share-partition."""

    handle: int
    relay_id: int
    """Echoed in `Settled`; grows."""
    key: PartitionKey
    ranges: Sequence[AcknowledgedRange]
    may_wait: bool


class LockBooks(NamedTuple):
    """Locks of the gateway's members on a share-partition: the answer to `AskLockBooks`."""

    key: PartitionKey
    owner_epoch: int
    held: Mapping[int, Sequence[HeldRange]]
    """By handle; members that are left out hold no record."""


class Alive(NamedTuple):
    """The gateway vouches for its members, each second."""


class Freed(NamedTuple):
    """A share-partition was released for this owner."""

    key: PartitionKey


class Look(NamedTuple):
    """The store has news for the whole fleet; coordinators look each second anyway."""


GatewayItem = MemberUp | MemberDown | Lend | Settle | LockBooks | Alive | Freed | Look

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
    """The message for the member's stream, or Kafka's record batches: bytes over gRPC."""
    has_batches: bool = False
    """Whether the frame is record batches."""


class Settled(NamedTuple):
    """The outcome of a `Settle`, durable."""

    handle: int
    relay_id: int
    result: PartitionResult
    records: int
    """Records that the member holds no longer."""


class Returned(NamedTuple):
    """The answer to a recall: totals that were used of all that was lent on this link."""

    handle: int
    records_total: int
    bytes_total: int


class TimedOut(NamedTuple):
    """A lock of the member ran out: the member gets nothing before its application gives a sign.

    The owner delivers nothing to it until the next `Lend`. The gateway recalls all that it lent for
    the member, and lends again after the member's next word. An acknowledgement counts as such a
    word when its answer comes behind this message.
    """

    handle: int


class MemberTakenBack(NamedTuple):
    """Locks of the member on a share-partition that ended without its word; durable."""

    handle: int
    key: PartitionKey
    ranges: Sequence[TakenBack]


class Hungry(NamedTuple):
    """The number of records that the owner has and may not deliver for want of credit."""

    group_id: str
    topic: str
    records: int


class AskLockBooks(NamedTuple):
    """The owner claimed a share-partition, and asks for the locks of the gateway's members."""

    key: PartitionKey
    owner_epoch: int


class Compared(NamedTuple):
    """The lock book of a `MemberUp` was compared with the owner's share-partitions."""

    handle: int
    lost: Sequence[LostRange]


class MemberEnd(NamedTuple):
    """The owner serves a member no longer: it joined elsewhere, or its group is deleted."""

    handle: int
    error: SharecoordError


OwnerItem = (
    Relayed
    | Settled
    | Returned
    | TimedOut
    | MemberTakenBack
    | Hungry
    | AskLockBooks
    | Compared
    | MemberEnd
)
