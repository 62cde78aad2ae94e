"""Ends streams that their members do not read, so that unsent messages do not stay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog

from sharecoord.errors import LimitExceededError
from sharecoord.runtime.member.channel import MemberChannel
from sharecoord.runtime.memory.use import GroupUse

if TYPE_CHECKING:
    from sharecoord.runtime.group.actor import GroupActor
    from sharecoord.runtime.member.session import Session

log = structlog.get_logger(__name__)

STALLED_AFTER_S = 30.0
"""A live member reads its stream long before this time is over: its reader does nothing else, and
its locks (30 s by default) would have ended meanwhile."""


class StalledStreams:
    """Ends streams of which their member took nothing for a while.

    A message that gRPC was given stays with it until the member takes it or the connection ends:
    it is counted for the group until then.
    """

    def __init__(self) -> None:
        self._ended: dict[MemberChannel, GroupActor] = {}

    def look(self, use: GroupUse) -> None:
        """Ends the stalled streams of a group."""
        now_s = asyncio.get_running_loop().time()
        for session in use.unread:
            channel = session.channel
            if channel is not None and now_s - channel.unsent_since_s > STALLED_AFTER_S:
                self._ended[channel] = use.group
                _end(use.group, session, channel)

    def left_over(self) -> Iterator[tuple[GroupActor, int]]:
        """(group, bytes) that gRPC still holds of ended streams."""
        for channel, group in list(self._ended.items()):
            if unsent_bytes := channel.unsent_bytes:
                yield group, unsent_bytes
            else:
                del self._ended[channel]


def _end(group: GroupActor, session: Session, channel: MemberChannel) -> None:
    """Ends a stream as if it broke: the session goes on for its timeout, locks until they end."""
    log.warning(
        "a member does not read its stream: ended",
        group=group.group_id,
        member=session.member_id,
        unsent_bytes=channel.unsent_bytes,
    )
    error = LimitExceededError(
        f"member {session.member_id!r} of group {group.group_id!r} took nothing of its stream for "
        f"{STALLED_AFTER_S:.0f} s while {channel.unsent_bytes} bytes waited; read the stream all "
        "the time and ask for less credit, then join again"
    )
    group.disconnected(session)
    channel.cut(error)
