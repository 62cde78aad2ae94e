"""`max.poll.interval.ms`: who does not poll for so long is taken out of its group."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from sharecoord.errors import UnknownMemberError
from sharecoord.runtime.context import Context
from sharecoord.runtime.sessions import Session

log = structlog.get_logger(__name__)

LOOK_S_MIN = 0.01


class PolledGroup(Protocol):
    """What the timer needs of a group."""

    group_id: str
    context: Context
    sessions: dict[str, Session]

    def leave(self, session: Session, *, why: str = "") -> None:
        """Removes a member; what it holds is released and counts."""


def arm(group: PolledGroup, session: Session) -> None:
    """Looks again when the interval since the last poll is over."""
    idle_ms = group.context.clock.now_ms() - session.last_poll_ms
    delay_s = max((session.max_poll_interval_ms - idle_ms) / 1000, LOOK_S_MIN)
    loop = asyncio.get_running_loop()
    session.poll_timer = loop.call_later(delay_s, _look, group, session)


def _look(group: PolledGroup, session: Session) -> None:
    if group.sessions.get(session.member_id) is not session:
        return
    idle_ms = group.context.clock.now_ms() - session.last_poll_ms
    if idle_ms < session.max_poll_interval_ms:
        arm(group, session)
        return
    log.warning("max.poll.interval.ms exceeded", group=group.group_id, member=session.member_id)
    channel = session.channel
    group.leave(session, why="max.poll.interval.ms")
    if channel is not None:
        channel.end(
            UnknownMemberError(
                f"no poll for {idle_ms} ms (max.poll.interval.ms="
                f"{session.max_poll_interval_ms}): the member was removed and its records "
                "released; poll more often or raise max.poll.interval.ms"
            )
        )
