"""Acknowledgements out of an application's outbox, for a member that may be gone.

A worker may write the acknowledgement of a record into a transaction of its own, with the lock
token. A process that finds it there later sends it for that worker. It is no sign of life of the
member, and settles records under its locks only: a token that is not current is refused as ever.
"""

from __future__ import annotations

from sharecoord.config.group import GroupConfig
from sharecoord.core.changes import key_of
from sharecoord.core.partition.decisions import Acknowledgements
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import InvalidRequestError, NotOwnerError, SharecoordError
from sharecoord.runtime.group.group import Group
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.collector import Collector

SAID_LATER = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
"""Types that another process may send: a lock that nobody works under is not renewed, and only the
member itself knows which records its handlers have not seen."""


def check_allowed(config: GroupConfig, member_id: str) -> None:
    """Raises InvalidRequestError when the group does not allow such acknowledgements."""
    if not config.ack_outbox:
        raise InvalidRequestError(
            f"member_epoch is 0: this acknowledges for {member_id!r}, which may be gone. Set "
            "share.ack.outbox=true for the group to allow it, or give the epoch that its join got"
        )


def acknowledge_for(
    group: Group,
    member_id: str,
    acknowledgements: Acknowledgements,
    collector: Collector,
) -> None:
    """Settles records that a member held; the collector is sealed, and answers after the commit.

    Share-partitions of other coordinators are answered with NOT_OWNER: ask them.
    `acknowledgements` has (topic, topic id, partition, ranges).

    Raises:
        InvalidRequestError: Only the member itself may send such a type.
    """
    _check_types(acknowledgements)
    session = group.sessions.get(member_id) or _unknown_member(group.group_id, member_id)
    settled = 0
    for topic, topic_id, partition, ranges in acknowledgements:
        actor = group.partitions.get((topic, partition))
        if actor is None and (owner := group.elsewhere.get((topic, partition))):
            error: SharecoordError | None = NotOwnerError(
                f"{topic}[{partition}] is served by coordinator {owner!r}"
            )
        else:
            error = group.why_not_served(actor, topic, topic_id, partition)
        if error is not None or actor is None:
            collector.refuse(key_of(group.group_id, topic, topic_id, partition), error)
        else:
            settled += actor.acknowledge(session, ranges, collector, may_wait=False)
    # Not its pace: these records were done with long ago.
    session.totals.acknowledged += settled
    collector.seal()


def _check_types(
    acknowledgements: Acknowledgements,
) -> None:
    for topic, _, partition, ranges in acknowledgements:
        for each in ranges:
            if each.type not in SAID_LATER:
                raise InvalidRequestError(
                    f"{each.type.name} of {topic}[{partition}] {each.first}..{each.last}: for a "
                    "member that may be gone only ACCEPT, RELEASE and REJECT can be said"
                )


def _unknown_member(group_id: str, member_id: str) -> Session:
    """A session in the place of a member that is not known here any more."""
    return Session(
        group_id=group_id,
        member_id=member_id,
        member_epoch=0,
        client_id="",
        host="",
        topics=frozenset(),
    )
