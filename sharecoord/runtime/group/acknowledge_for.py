"""Acknowledgements out of an outbox: for a member that may be gone.

A worker may write the acknowledgement of a record into a transaction of its own, with the lock
token. Whoever finds it there later says it for that worker. It is no sign of life of the member,
and settles what its locks still cover: a token that is no longer current is refused as ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharecoord.config.group import GroupConfig
from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import PartitionResult
from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import InvalidRequestError, NotOwnerError, SharecoordError
from sharecoord.runtime.group.group import Group
from sharecoord.runtime.group.not_served import why_not_served
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.collector import Collector

SAID_LATER = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
"""What can be said for another: a lock that nobody works under is not renewed, and only the member
itself knows what its handlers have not seen."""


def check_allowed(config: GroupConfig, member_id: str) -> None:
    """Refuses them where the group does not allow them.

    Raises:
        InvalidRequestError: It does not.
    """
    if not config.ack_outbox:
        raise InvalidRequestError(
            f"member_epoch is 0: this acknowledges for {member_id!r}, which may be gone. Set "
            "share.ack.outbox=true for the group to allow it, or give the epoch that its join got"
        )


def acknowledge_for(
    group: Group,
    member_id: str,
    acknowledgements: Sequence[tuple[str, str, int, Sequence[AcknowledgedRange]]],
    collector: Collector,
) -> None:
    """Settles what a member held; the collector answers after the commit.

    Share-partitions of other coordinators are answered with NOT_OWNER: ask them.

    Args:
        group: The member's.
        member_id: Who held the records.
        acknowledgements: (topic, topic id, partition, ranges).
        collector: Sealed by this call.

    Raises:
        InvalidRequestError: A type that only the member itself can say.
    """
    _check_types(acknowledgements)
    session = group.sessions.get(member_id) or _nobody(group.group_id, member_id)
    settled = 0
    for topic, topic_id, partition, ranges in acknowledgements:
        actor = group.partitions.get((topic, partition))
        if actor is None and (owner := group.elsewhere.get((topic, partition))):
            error: SharecoordError | None = NotOwnerError(
                f"{topic}[{partition}] is served by coordinator {owner!r}"
            )
        else:
            error = why_not_served(group, actor, topic, topic_id, partition)
        if error is not None or actor is None:
            collector.expect()
            key = PartitionKey(group.group_id, topic, topic_id, partition)
            collector.add(PartitionResult(key, error=error))
        else:
            settled += actor.acknowledge(session, ranges, collector, may_wait=False)
    # Not its pace: these records were done with long ago.
    session.totals.acknowledged += settled
    collector.seal()


def _check_types(
    acknowledgements: Sequence[tuple[str, str, int, Sequence[AcknowledgedRange]]],
) -> None:
    for topic, _, partition, ranges in acknowledgements:
        for each in ranges:
            if each.type not in SAID_LATER:
                raise InvalidRequestError(
                    f"{each.type.name} of {topic}[{partition}] {each.first}..{each.last}: for a "
                    "member that may be gone only ACCEPT, RELEASE and REJECT can be said"
                )


def _nobody(group_id: str, member_id: str) -> Session:
    """In the place of a member that is not known here any more."""
    return Session(
        group_id=group_id,
        member_id=member_id,
        member_epoch=0,
        client_id="",
        host="",
        topics=frozenset(),
    )
