"""A member's new stream takes the place of its former one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharecoord.core.events import GroupEvent
from sharecoord.errors import MemberFencedError
from sharecoord.runtime import idle, poll_timer
from sharecoord.runtime.channel import MemberChannel
from sharecoord.runtime.group_events import tell
from sharecoord.runtime.sessions import Away, JoinCommand, Session

if TYPE_CHECKING:
    from sharecoord.runtime.group_actor import GroupActor


def session_of(
    group: GroupActor, command: JoinCommand, channel: MemberChannel | None, epoch: int, gateway: str
) -> Session:
    """The member's session, with this stream as its only one; see `GroupActor.admit`."""
    context = group.context
    former = group.sessions.get(command.member_id)
    session = Session(
        group_id=group.group_id,
        member_id=command.member_id,
        member_epoch=epoch,
        client_id=command.client_id,
        host=command.host,
        topics=frozenset(command.topics),
        mode=command.mode,
        max_poll_records=command.max_poll_records,
        max_poll_interval_ms=command.max_poll_interval_ms,
        channel=channel,
        unsent_max_bytes=context.memory.stream_unsent_max_bytes,
        credit_records=command.credit_records,
        credit_bytes=command.credit_bytes,
        last_poll_ms=context.clock.now_ms(),
        gateway=gateway,
        book_epochs=command.book_epochs,
        away=_away(former) if context.fleet is not None and not gateway else None,
    )
    if former is None:
        tell(context, group.group_id, GroupEvent.JOINED, session=session)
    else:
        former.cancel_timers()
        session.pace = former.pace
        session.delivered_total = former.delivered_total
        session.acknowledged_total = former.acknowledged_total
        if former.channel is not None and former.channel is not channel:
            stale, former.channel = former.channel, None
            stale.end(MemberFencedError("a newer stream of this member id joined"))
            if context.fleet is not None and not former.is_lent:
                context.fleet.gateway.gone(former)
    session.comparing = 1
    group.dispatcher.joined(session)
    if not gateway:
        poll_timer.arm(group, session)
    idle.wake(context, group)
    return session


def _away(former: Session | None) -> Away:
    """What the gateway knows of a stream that begins."""
    known = former.away if former is not None else None
    return Away(told=set(known.told)) if known is not None else Away()
