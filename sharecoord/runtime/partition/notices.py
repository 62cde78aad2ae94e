"""Notices to members about locks of a share-partition that ended without their word (design 7).

The commit that ends a lock releases its notice, ahead of all that follows from it. Notices of a
commit of unknown outcome, and locks of the time before a reload, are compared with the loaded
state: members are told of the locks that are not theirs any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from sharecoord.core.partition.decisions import HeldRange, TakenBack
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.states import TakenBackReason
from sharecoord.errors import SharecoordError
from sharecoord.runtime.kernel.committer import CallbackEffect
from sharecoord.runtime.member.channel import MemberChannel
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.claimed import ClaimedPartition


class Notices:
    """The notices of one share-partition."""

    def __init__(self, part: ClaimedPartition, sessions: Mapping[str, Session]) -> None:
        self._part = part
        self._sessions = sessions
        self._believed: list[TakenBack] = []
        """Locks in which members may believe while the share-partition is not served."""

    def tell(self, ranges: Sequence[TakenBack]) -> None:
        """Tells members once the decisions so far are durable."""
        for member_id, taken in _by_member(ranges).items():
            session = self._sessions.get(member_id)
            if session is not None and session.channel is not None:
                tell = partial(self._committed, session, session.channel, taken)
                self._part.context.committer.add(self._part, CallbackEffect(tell))

    def _committed(
        self,
        session: Session,
        channel: MemberChannel,
        taken: Sequence[TakenBack],
        error: SharecoordError | None,
    ) -> None:
        if error is not None:
            # Whether these locks ended is known when the state is loaded again.
            self._believed += taken
        elif channel is session.channel:
            # A newer stream has heard it in the answer to its lock book.
            session.hears(self._part.key, taken)

    def tell_lost(self, member_id: str, lost: Sequence[HeldRange]) -> None:
        """Tells a member which entries of its lock book are not its own."""
        why = TakenBackReason.STATE_CHANGED
        self.tell([TakenBack(member_id, *held, why) for held in lost])

    def ends(self, partition: SharePartition, *, for_ever: bool) -> None:
        """The share-partition is not served any more, `for_ever` or until it is loaded again."""
        self._believed = [] if for_ever else [*self._believed, *_held_in(partition)]

    def begins(self, partition: SharePartition) -> None:
        """The share-partition was loaded: tells members of locks that are not theirs any more."""
        believed, self._believed = self._believed, []
        self.tell(partition.lost_of(believed))

    def deleted(self) -> None:
        """The share-partition is gone for good, and all locks with it."""
        held = [] if self._part.partition is None else _held_in(self._part.partition)
        for member_id, taken in _by_member([*self._believed, *held]).items():
            session = self._sessions.get(member_id)
            if session is not None:
                why = TakenBackReason.DELETED
                session.hears(self._part.key, [each._replace(reason=why) for each in taken])


def _by_member(ranges: Sequence[TakenBack]) -> dict[str, list[TakenBack]]:
    found: dict[str, list[TakenBack]] = defaultdict(list)
    for taken in ranges:
        found[taken.member_id].append(taken)
    return found


def _held_in(partition: SharePartition) -> list[TakenBack]:
    """All locks of a share-partition, as possibly taken back."""
    why = TakenBackReason.STATE_CHANGED
    return [
        TakenBack(member_id, first, last, value.lock_token, why)
        for member_id in partition.window.held
        for first, last, value in partition.window.held_by(member_id)
    ]
