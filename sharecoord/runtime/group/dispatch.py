"""Fair dispatch: which members get the next records of a group (design 5).

When fewer records are available than wanted, no member gets more than its share of them, and none
waits while another holds more than its share of the window.

Idle members and partitions cost nothing: members wait in a queue per topic from the moment at which
they can take records until they are served, and partitions are looked at only while they have
records. So a turn costs what it hands out, with ten members as with ten thousand.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

from sharecoord.core.dispatch.fair_share import fair_parts, jain_index
from sharecoord.runtime.group.group import Group
from sharecoord.runtime.group.settings import why_unserved, window_records
from sharecoord.runtime.member.session import Hindrance, Session
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState

ALONE_LOOK_MAX = 100
"""In a group with more members, gone ones included, none counts as alone: the check is cheap."""

Waiting = OrderedDict[Session, None]


class Wanted(NamedTuple):
    """Records that a member could have taken in an interval, and that it was handed."""

    session: Session
    demand: int
    got: int


class Dispatcher:
    """The queues of one group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._waiting: dict[str, Waiting] = {}
        """Members that can take records, by topic; the longest wait comes first."""
        self._ready: dict[PartitionActor, None] = {}
        """Partitions that may have records to hand out."""
        self._woken: dict[PartitionActor, None] = {}
        """Partitions of which members may hold fewer records than in the last turn."""
        self._freed: dict[str, None] = {}
        """Ids of members that got credit back since the last turn."""
        self._scheduled = False
        self._all = False
        self._stopped = False
        self.fairness: float | None = None
        """Jain's index of the last interval; None = nothing was wanted, or nothing handed out."""
        self.topics: Counter[str] = Counter()
        """How many members want each topic; topics that nobody wants are left out."""
        self._holds: dict[Session, int] = {}
        self.holds_total = 0
        """Records that all members together may hold."""

    # -- what happened --------------------------------------------------------------------------

    def joined(self, session: Session) -> None:
        """A member joined, perhaps again with another stream."""
        former = self._group.sessions.get(session.member_id)
        if former is not None:
            self._waits_no_more(former)
            self.topics -= Counter(former.topics)
            self.holds_total -= self._holds.pop(former)
        self._group.sessions[session.member_id] = session
        is_paused = self._group.pauses.of_member(session.member_id) is not None
        session.hinder(Hindrance.PAUSED, holds=is_paused)
        self.topics.update(session.topics)
        self._count(session)

    def left(self, session: Session) -> None:
        """A member went."""
        del self._group.sessions[session.member_id]
        self._waits_no_more(session)
        self.topics -= Counter(session.topics)
        self._forget_unwanted()
        self.holds_total -= self._holds.pop(session)

    def subscribed(self, session: Session, topics: Iterable[str]) -> None:
        """A member wants other topics from now on."""
        self._waits_no_more(session)
        self.topics -= Counter(session.topics)
        session.topics = frozenset(topics)
        self.topics.update(session.topics)
        self._forget_unwanted()

    def _forget_unwanted(self) -> None:
        """Drops the queues of topics that no member wants."""
        self._waiting = {t: queue for t, queue in self._waiting.items() if t in self.topics}

    def settled(
        self, session: Session, here: int, now_ms: int, busy_us: int, *, on_way: int
    ) -> None:
        """Learns the pace of a member that worked off records, and lets the window follow.

        Args:
            session: The member's.
            here: Records of own share-partitions, which the member holds no longer.
            now_ms: Monotonic time.
            busy_us: How long the application had the records; 0 = unknown.
            on_way: Records of other owners, which our lock book still has.
        """
        records, held = here + on_way, self._held(session)
        drained = held <= on_way
        if busy_us:
            session.pace.worked(
                records,
                busy_us / 1000,
                holds=max(session.holds_max, held + here),
                drained=drained,
                lock_ms=self._group.config.lock_duration_ms,
            )
        else:
            session.pace.finished(records, now_ms, drained=drained)
        self._count(session)
        self._group.window_grows(
            window_records(self._group.config, self.holds_total, len(self._group.sessions))
        )

    def offer(self, session: Session) -> None:
        """A member may be able to take more, or less, than before."""
        session.is_alone = self._is_alone(session)
        if session.away is not None:
            has_backlog = any(_has_something(actor) for actor in self._ready)
            self._group.peers.gateway.balance(self._group, session, has_backlog=has_backlog)
        wanted = session.wants(self._held(session))
        session.share.wants(wanted)
        if wanted <= 0:
            self._waits_no_more(session)
            if session.is_lent or self._all:
                # Its gateway may not know yet that there are records to lend for; nor does this
                # coordinator before it has looked at those that came while nobody was there.
                self._schedule()
            return
        for topic in session.topics:
            self._waiting.setdefault(topic, OrderedDict()).setdefault(session, None)
        self._schedule()

    def timed_out(self, member_ids: Iterable[str]) -> None:
        """Locks of members ended by themselves: these get nothing until `took_part`."""
        for member_id in member_ids:
            session = self._group.sessions.get(member_id)
            if session is not None:
                session.timed_out()
                self._group.peers.timed_out(session)

    def stopped_polling(self, session: Session) -> None:
        """A member's SDK handed back what its application did not take: it gets nothing more."""
        was_new = session.pace.is_new
        self.timed_out([session.member_id])
        # No lock ended: a program that takes long to start is as new as before.
        session.pace.forgotten = not was_new
        session.hindrances.add(Hindrance.NOT_POLLING)

    def took_part(self, session: Session, *, polls: bool) -> None:
        """A member's application gave a sign; with `polls` it asks for records."""
        over = {Hindrance.TIMED_OUT, Hindrance.NOT_POLLING} if polls else {Hindrance.TIMED_OUT}
        if session.hindrances & over:
            session.hindrances -= over
            self.offer(session)

    def wake(self, actor: PartitionActor, refunded: str | None = None) -> None:
        """A partition may have records, or its members hold fewer; one may have credit back."""
        self._ready[actor] = self._woken[actor] = None
        if refunded is not None:
            self._freed[refunded] = None
        self._schedule()

    def forget(self, actor: PartitionActor) -> None:
        """Drops a partition that left the group."""
        self._ready.pop(actor, None)
        self._woken.pop(actor, None)

    def wake_all(self) -> None:
        """Looks at all members and partitions, once in this turn of the loop; for rare causes."""
        self._all = True
        self._schedule()

    def waiting(self, topic: str) -> int:
        """How many members could take records of a topic at once."""
        return len(self._waiting.get(topic, ()))

    def stop(self) -> None:
        """Nothing is acquired any more."""
        self._stopped = True

    def _held(self, session: Session) -> int:
        return self._group.held(session)

    def _is_alone(self, session: Session) -> bool:
        """Whether a member of unknown pace is the only connected one of its topics."""
        sessions = self._group.sessions
        if not session.pace.is_new or len(sessions) > ALONE_LOOK_MAX:
            return False
        return all(
            other is session or other.channel is None or other.topics.isdisjoint(session.topics)
            for other in sessions.values()
        )

    def _count(self, session: Session) -> None:
        """Updates `holds_total` by one member."""
        holds = session.holds_max
        if session.is_lent:
            # Its gateway knows its pace: here the way there and back is in it.
            holds = max(holds, self._held(session) + session.credit.left_records)
        self.holds_total += holds - self._holds.get(session, 0)
        self._holds[session] = holds

    def _waits_no_more(self, session: Session) -> None:
        """Takes a member out of all queues; gateways may have to hear that nobody waits."""
        if self._withdraw(session):
            self._schedule()

    def _withdraw(self, session: Session) -> bool:
        found = [waiting for waiting in self._waiting.values() if session in waiting]
        for waiting in found:
            del waiting[session]
        return bool(found)

    # -- handing out ----------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Dispatches in this turn of the loop, once."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _may_hand_out(self) -> bool:
        group, context = self._group, self._group.context
        if group.pauses.group or self._stopped or not group.sessions:
            return False
        if group.unused_settings and why_unserved(group.unused_settings):
            # A guarantee depends on a setting that this release can not read.
            return False
        if group.peers.is_blind:
            # The next look wakes: until then a pause might be overlooked.
            return False
        if context.lease.has_lapsed:
            # The next renewal wakes: another coordinator may serve the group by now.
            return False
        if context.committer.behind:
            context.committer.when_unblocked(self._schedule)
            return False
        return True

    def _turn(self) -> None:
        self._scheduled = False
        group = self._group
        if not group.sessions:
            group.peers.unmet(group.group_id, {})
        if not self._may_hand_out():
            return
        if self._all:
            self._all = False
            for session in group.sessions.values():
                self.offer(session)
            self._ready.update(dict.fromkeys(group.partitions.values()))
        self._offer_freed()
        if any(self._waiting.values()):
            for actor in list(self._ready):
                if waiting := self._waiting.get(actor.key.served):
                    self._hand_out_of(actor, waiting)
        if group.context.in_fleet:
            self._tell_unmet()

    def _tell_unmet(self) -> None:
        """Tells gateways how many records of each topic lack credit."""
        unmet = dict.fromkeys(self.topics, 0)
        for actor in self._ready:
            topic = actor.key.served
            if topic in unmet and not self._waiting.get(topic) and _has_something(actor):
                unmet[topic] += actor.available()
        self._group.peers.unmet(self._group.group_id, unmet)

    def _hand_out_of(self, actor: PartitionActor, waiting: Waiting) -> None:
        """Hands out of one partition; one with more records goes behind the others."""
        self._ready.pop(actor, None)
        if _has_something(actor):
            self._hand_out(actor, waiting)
            if _has_something(actor):
                self._ready[actor] = None

    def _offer_freed(self) -> None:
        """Offers records to members that hold fewer than in the last turn."""
        freed, self._freed = self._freed, {}
        woken, self._woken = self._woken, {}
        for actor in woken:
            if actor.partition is not None:
                freed.update(dict.fromkeys(actor.partition.window.take_freed()))
        for member_id in freed:
            session = self._group.sessions.get(member_id)
            if session is not None:
                self.offer(session)

    def _hand_out(self, actor: PartitionActor, waiting: Waiting) -> None:
        """Hands out rounds of equal parts, until no record is left or no member wants one."""
        place, topic, sessions = actor.key.place, actor.key.served, self._group.sessions
        while waiting and (available := actor.available()) > 0:
            fair = max(1, available // len(waiting))
            sent = 0
            later: list[Session] = []
            for _ in range(len(waiting)):
                session, _ = waiting.popitem(last=False)
                if sessions.get(session.member_id) is not session or topic not in session.topics:
                    continue
                session.is_alone = session.is_alone and self._is_alone(session)
                holding, got = self._held(session), 0
                if place in session.comparison.done and not session.pauses(actor.key):
                    got = _serve(actor, session, fair, holding)
                    sent += got
                if session.wants(holding + got) > 0:
                    later.append(session)
                else:
                    self._withdraw(session)
                if sent >= available:
                    break
            waiting.update(dict.fromkeys(later))
            if not sent:
                break

    # -- how fair it was ------------------------------------------------------------------------

    def measure(self) -> list[Wanted]:
        """Ends an interval (design 5, "Measured"): `fairness`, and each member's `share.ratio`.

        Returns the members that wanted records.
        """
        sessions = self._group.sessions.values()
        for session in sessions:
            session.share.ratio = None
        wanted = [Wanted(s, s.share.demand, s.share.got) for s in sessions if s.share.demand > 0]
        parts = fair_parts([each.demand for each in wanted], [each.got for each in wanted])
        self.fairness = jain_index(parts) if parts else None
        for each, part in zip(wanted, parts or repeat(None, len(wanted)), strict=True):
            each.session.share.ratio = part
            each.session.share.next_interval()
        return wanted


def _has_something(actor: PartitionActor) -> bool:
    return actor.state is ActorState.ACTIVE and actor.available() > 0


def _serve(actor: PartitionActor, session: Session, fair: int, holding: int) -> int:
    """Hands up to `fair` records to one member, in batches; returns how many."""
    got_total = 0
    wanted = min(session.wants(holding), fair)
    while got_total < wanted:
        room = session.takes(holding + got_total)
        most = min(room, wanted - got_total, session.batch_records_max)
        if most <= 0:
            break
        # Its pace bounds the member, not what it offers: it has work enough.
        may_wait = most == room < session.credit.left_records
        got = actor.acquire(session, most, may_wait=may_wait)
        if not got:
            break
        got_total += got
    session.share.gets(got_total)
    return got_total
