"""A worker's rules: slots, outcomes, renewals, what is asked for, how it ends. Sans-IO.

No threads, no loop, no clock: `now` is passed in (monotonic seconds).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sharecoord_sdk._core.acks import RENEW, RETURN, AckRange
from sharecoord_sdk._core.columns import Columns, Span
from sharecoord_sdk._core.config import ConsumerConfig
from sharecoord_sdk._core.core import Connection, ConsumerCore, Notice
from sharecoord_sdk._core.outcomes import Reject, Retry
from sharecoord_sdk._core.records import message_class
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .batches import HeldBackError, take_unread
from .breakers import Breakers
from .demand import Demand
from .failures import LINES_MAX, TRACES_MAX, WINDOW_S, FailureLog
from .handlers import Handler, order_problem
from .leases import Part, WorkerLeases, extend
from .line import Lease, Settlement
from .options import read_result
from .verdicts import Judge, text_of, word_of

# Renewals that fall due so soon after one another go out together.
_RENEW_TOGETHER_PART: Final = 0.05
# A worker says so often that it lives while a lock may end that it does not renew any more.
_SIGN_S: Final = 1.0
# What no handler saw goes back, uncounted.
_UNSEEN: Final = Settlement(RETURN, 0, "")
# Any growth of the credit is worth a place in a message that goes out anyway.
_FINEST: Final = 1 << 40


class WorkerCore(ConsumerCore):
    """The state of one worker.

    Args:
        config: As of a consumer.
        member_id: Made once, kept across reconnects.
        chance: Returns a number in [0, 1), for jitter.
        handlers: By topic.
        concurrency: Most handlers at a time.
        renew_max_s: Locks of one record are renewed for so long.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        member_id: str,
        chance: Callable[[], float],
        *,
        handlers: Mapping[str, Handler],
        concurrency: int,
        renew_max_s: float,
    ) -> None:
        super().__init__(config, member_id, chance)
        self._concurrency = concurrency
        self._handlers = handlers
        self._renew_max_s = renew_max_s
        batch_max = max((handler.records_max for handler in handlers.values()), default=1)
        self.hands = WorkerLeases(self._credit, handlers)
        self.locks = self.hands
        self.demand = Demand(concurrency, batch_max, config.buffer_records)
        self._failures = FailureLog()
        self._judge = Judge(chance, self._note_failure)
        self._breakers = Breakers(self.hands)
        # As of the last call that told it.
        self._now = 0.0
        self.reports_outcomes = True
        self._stopping = False
        self._renewals_off = False
        # No lease is due before; a later one may be first by now.
        self._renew_at = math.inf
        self._connecting_at = 0.0
        # Until then a lock may end that is not renewed any more.
        self._signs_until = 0.0
        self._resize()

    # -- slots --------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Handlers that may be started now."""
        return 0 if self._stopping else self._concurrency - self.hands.jobs

    def head(self, now: float) -> Lease | None:
        """Where the next handler's records are, or None: no free slot, or nothing waits."""
        hands = self.hands
        if self._stopping or hands.jobs >= self._concurrency:
            return None
        self._now = now
        lease = hands.head(now)
        if lease is not None:
            if lease.due < self._renew_at:
                self._renew_at = lease.due
            if self._busy_since is None:
                self._busy_since = now
        return lease

    def start(self, lease: Lease) -> int:
        """Takes the head's next record into a slot; returns its row."""
        return self.hands.start(lease)

    def start_batch(self, lease: Lease, now: float) -> list[Part]:
        """Takes the next records of the head's topic into a slot."""
        parts = self.hands.start_batch(lease, now)
        for part in parts:
            self._renew_at = min(self._renew_at, part.lease.due)
        return parts

    def accept(self, lease: Lease, row: int) -> None:
        """A handler returned."""
        self.hands.accept(lease, row)
        if lease.probe == row:
            self._told_breaker([Part(lease, row, row + 1)], None, self._now)

    def finish(self, parts: Sequence[Part], result: object, now: float | None = None) -> None:
        """A handler returned something: of batches, what became of each of the records."""
        count = sum(stop - start for _, start, stop in parts)
        errors = read_result(result, count if parts[0].lease.handler.batch else None)
        if errors is None or isinstance(errors, BaseException):
            self.settle(parts, errors, now)
            return
        rows = [Part(p.lease, row, row + 1) for p in parts for row in range(p.start, p.stop)]
        unread = take_unread(parts)
        pairs = [pair for pair in zip(rows, errors, strict=True) if pair[0] not in unread]
        parts = self._settle_alone(parts, unread, now)
        if not parts:
            return
        self.hands.settle_each(
            parts, [self._word(part.lease, part.start, error) for part, error in pairs]
        )
        for part, error in pairs:
            if error is not None:
                self._explain([part], error)
        counted = next((error for _, error in pairs if error is not None), None)
        self._told_breaker(parts, counted, self._now if now is None else now)

    def settle(
        self, parts: Sequence[Part], error: BaseException | None, now: float | None = None
    ) -> None:
        """A handler returned (None) or raised: one outcome for all records that it got."""
        parts = self._settle_alone(parts, take_unread(parts), now)
        if not parts:
            return
        if error is None or not self._judge.tells_apart(parts[0].lease.handler, error):
            self.hands.settle(parts, self._word(parts[0].lease, parts[0].start, error))
        else:
            rows = [(p.lease, row) for p in parts for row in range(p.start, p.stop)]
            self.hands.settle_each(parts, [self._word(*row, error) for row in rows])
        if error is not None:
            self._explain(parts, error)
        self._told_breaker(parts, error, self._now if now is None else now)

    def _word(self, lease: Lease, row: int, error: BaseException | None) -> Settlement | None:
        """What is said of a record; None = accepted."""
        if error is None:
            return None
        message = message_class(lease.columns)(lease.columns, row)
        return self._judge.word(lease.handler, message, error)

    def _settle_alone(
        self, parts: Sequence[Part], unread: Mapping[Part, BaseException], now: float | None
    ) -> Sequence[Part]:
        """Settles what a handler of batches did not see, each record as in a call of its own.

        Returns:
            The others; the call is over when there are none.
        """
        if not unread:
            return parts
        seen: list[Part] = []
        for part in (Part(p.lease, row, row + 1) for p in parts for row in range(p.start, p.stop)):
            error = unread.get(part)
            if error is None:
                extend(seen, part.lease, part.start)
                continue
            self.hands.jobs += 1
            if isinstance(error, HeldBackError):
                # Unless what it follows was rejected after all, or its lock is lost.
                is_broken = part.lease.queues[part.start].broken
                self.hands.settle([part], _UNSEEN if is_broken else word_of(error))
            else:
                self.settle([part], error, now)
        if not seen:
            self.hands.settle((), None)
        return seen

    def got_stuck(self, handler: Handler, where: str) -> None:
        """A plain handler is not waited for any more: its slot is taken until it returns."""
        hands = self.hands
        hands.jobs += 1
        hands.stuck += 1
        self._note(
            logging.ERROR,
            f"handler {handler.name} of {where} does not return: its thread and its slot are lost"
            f" until it does; {hands.stuck} of {self._concurrency} slots are lost so",
        )

    def came_back(self) -> None:
        """A plain handler that was given up has returned."""
        self.hands.stuck -= 1
        self.hands.jobs -= 1

    def look(self, now: float) -> None:
        """Finds out what may start now of what waits for a time."""
        self._now = now
        self.hands.look(now)

    def _told_breaker(self, parts: Sequence[Part], error: BaseException | None, now: float) -> None:
        line = parts[0].lease.line
        if line is None or line.breaker is None:
            return
        text = self._breakers.finished(line, parts, error, now)
        if text:
            self._note(logging.WARNING, text)
            self._pause(now)

    def _pause(self, now: float) -> None:
        self.set_paused(self._breakers.paused(self.assigned), now)

    def states(self) -> dict[str, str]:
        """The state of each breaker, by topic."""
        return self._breakers.states()

    def _explain(self, parts: Sequence[Part], error: BaseException) -> None:
        handler = parts[0].lease.handler
        where = ", ".join(map(_place_of, parts))
        what = f"{type(error).__name__}: {text_of(error)}"
        if isinstance(error, Retry | Reject):
            text = f"handler {handler.name} of {where} raised {what}"
            self.notices.append(Notice(logging.DEBUG, text, raised=error))
        else:
            becomes = self._judge.becomes(handler, error)
            text = f"handler {handler.name} of {where} failed, the record is {becomes}: {what}"
            self._note_failure(handler, text, error)

    def _note_left_out(self, now: float) -> None:
        for text in self._failures.over(now):
            self._note(logging.WARNING, text)

    def _note_failure(self, handler: Handler, text: str, error: BaseException) -> None:
        count = self._failures.count(handler.name, self._now)
        if count == LINES_MAX:
            text += f" (what follows within {WINDOW_S:g} s is counted, not logged)"
        if count <= LINES_MAX:
            raised = error if count <= TRACES_MAX else None
            self.notices.append(Notice(logging.ERROR, text, raised=raised))

    # -- what is sent -------------------------------------------------------------------------

    def publish(self, now: float) -> None:
        """Sends results, what goes back, and what this worker has room for."""
        hands = self.hands
        self._now = now
        pace = self.demand.pace
        if hands.finished:
            idle = not hands.running and not hands.waiting
            pace.finished(hands.finished, now, drained=idle)
        if hands.running or hands.waiting:
            pace.started(now)
        expired = hands.take_expired()
        if expired:
            self._acks.add(expired, None, now)
        self._collect(None, now, accept_rest=False)
        self.flush(now, polling=True)

    def _sign_every_s(self, now: float) -> float:
        every_s = super()._sign_every_s(now)
        return min(every_s, _SIGN_S) if now < self._signs_until else every_s

    def _refill(self) -> types_pb.Credit | None:
        if self._stopping:
            return None
        self._resize()
        return self._credit.refill(_FINEST)

    def _resize(self) -> None:
        hands = self.hands
        startable = hands.startable
        room = self.demand.room(
            running=hands.running,
            jobs=hands.jobs,
            waiting=startable,
            held=hands.waiting - startable,
        )
        self._credit.set_room(room)

    def _join_request(self) -> service_pb.ConsumeRequest:
        # Everything that is done, and what goes back, goes into the book of what is under way.
        self._acks.add(self.hands.take_expired(), None, self._connecting_at)
        self._collect(None, self._connecting_at, accept_rest=False)
        self._resize()
        return super()._join_request()

    def connect(self, now: float) -> Connection | None:
        """See `ConsumerCore.connect`."""
        self._connecting_at = now
        return super().connect(now)

    def _joined(self, joined: service_pb.Joined, now: float) -> None:
        if joined.lock_duration_ms:
            self.hands.duration_s = joined.lock_duration_ms / 1000
        super()._joined(joined, now)

    def _keep_order(self, ordering: str) -> None:
        """Says where handlers keep another order than their group."""
        if ordering in ("", self.ordering):
            return
        super()._keep_order(ordering)
        for handler in self._handlers.values():
            text = order_problem(
                handler, self.config.group_id, ordering, concurrency=self._concurrency
            )
            if text:
                self._note(logging.WARNING, text)

    def _batches(self, batches: Sequence[types_pb.RecordBatch], received_at: float) -> None:
        super()._batches(batches, received_at)
        self.demand.pace.started(received_at)

    def _take_assignment(self, assignment: service_pb.Assignment, now: float) -> None:
        super()._take_assignment(assignment, now)
        if self._breakers.any_holds:
            self._pause(now)

    # -- locks --------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """See `ConsumerCore.tick`; renews locks that are due."""
        super().tick(now)
        self._note_left_out(now)
        if now >= self._renew_at:
            self._renew(now)
        if now >= self._outwaits_at:
            self._return_outwaited(now)
        if now >= self._breakers.probe_at and not self._stopping:
            for text in self._breakers.probe(now):
                self._note(logging.INFO, text)
            self._pause(now)

    def wake_at(self, now: float) -> float | None:
        """See `ConsumerCore.wake_at`."""
        wake_at = super().wake_at(now)
        times = [self._renew_at, self._outwaits_at]
        if now < self._signs_until:
            times.append(now + _SIGN_S)
        if self.free:
            opening = (line.opens_at() for line in self.hands.lines.values())
            times.extend(at for at in (*opening, self._breakers.probe_at) if at > now)
        if wake_at is not None:
            times.append(wake_at)
        at = min(times)
        return at if at < math.inf else None

    @property
    def _outwaits_at(self) -> float:
        """When records that wait have to go back: beside busy slots, or for something else."""
        lines_at = self.hands.lines_outwait_at
        return min(self.hands.outwaits_at, lines_at) if self._is_full else lines_at

    @property
    def _is_full(self) -> bool:
        return self.hands.jobs >= self._concurrency

    def _return_outwaited(self, now: float) -> None:
        """What handlers are too busy for goes back while its lock still lasts, uncounted.

        A coordinator keeps records from a program that takes no part; a worker whose handlers all
        run for long renews their locks, so it seems to take part.
        """
        if self._is_full:
            self._acks.add(self.hands.return_outwaited(now), None, now)
            self.demand.outwaited()
        self.hands.return_from_lines(now)
        self._acks.add(self.hands.take_expired(), None, now)
        self.flush(now)

    def _renew(self, now: float) -> None:
        half_s = self.hands.duration_s / 2
        soon = now + half_s * _RENEW_TOGETHER_PART
        due = [lease for lease in self.hands.leases if lease.due <= soon]
        ranges: list[AckRange] = []
        for lease in due:
            spans = lease.running_spans()
            if not spans or not self._may_renew(lease, spans, now):
                lease.due = math.inf
                continue
            ranges.extend(AckRange(span, RENEW) for span in spans)
            lease.due = now + half_s
        if due:
            # Rows that wait have their first lock still: they go into leases of their own.
            self.hands.close_head()
        if ranges:
            self._acks.add(ranges, None, now)
            self.flush(now)
        self._renew_at = min((lease.due for lease in self.hands.leases), default=math.inf)

    def _may_renew(self, lease: Lease, spans: list[Span], now: float) -> bool:
        if lease.since is None:
            lease.since = now
        if self._renewals_off:
            why = "the group allows no renewals (share.renew.acknowledge.enable)"
        elif now - lease.since >= self._renew_max_s:
            why = f"it was renewed for renew_max_s = {self._renew_max_s:g} s"
        else:
            return True
        # A lock that ends keeps records away until the next sign (`ConsumeRequest.polled`).
        self._signs_until = now + 2 * self.hands.duration_s
        where = ", ".join(map(_place_of_span, spans))
        self._note(
            logging.WARNING,
            f"handler {lease.handler.name} of {where} still runs; its lock ends, because {why}",
        )
        return False

    def came_on(self, columns: Columns, row: int, now: float) -> None:
        """A handler stored a checkpoint: its lock is renewed for another `renew_max_s`."""
        self._renew_at = min(self._renew_at, self.hands.came_on(columns, row, now))

    def _answered(self, result: service_pb.AcknowledgeResult, now: float) -> None:
        settlement = self._acks.answered(result, now)
        if settlement.renewals_off:
            self._renewals_off = True
            # Says so of what runs, once per lease.
            self._stop_renewing(settlement.not_renewed, now)
        else:
            for span in settlement.not_renewed:
                self.hands.mark_lost(span)
        renewals = {id(span) for span in (*settlement.renewed, *settlement.not_renewed)}
        for outcome in settlement.outcomes:
            for span in outcome.spans:
                if id(span) not in renewals:
                    self.hands.confirmed(span, is_lost=outcome.error is not None)
            if outcome.error is not None:
                outcome.spans = [span for span in outcome.spans if id(span) not in renewals]
                if outcome.spans:
                    self._report([outcome])

    def _stop_renewing(self, refused: list[Span], now: float) -> None:
        columns = {id(span.columns) for span in refused}
        for lease in self.hands.leases:
            if id(lease.columns) in columns:
                spans = lease.running_spans()
                if spans:
                    self._may_renew(lease, spans, now)
                lease.due = math.inf

    # -- the end ------------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        """Whether nothing is started any more."""
        return self._stopping

    def begin_stop(self, now: float) -> None:
        """Takes nothing more: what no handler has seen goes back, uncounted."""
        if self._stopping:
            return
        self._stopping = True
        self.subscribe([], now)
        self.publish(now)

    def begin_close(self, now: float, within_s: float = math.inf) -> None:
        """Leaves: what was not finished is released by the coordinator, and counted."""
        self._stopping = True
        self._note_left_out(math.inf)
        expired = self.hands.take_expired()
        if expired:
            self._acks.add(expired, None, now)
        super().begin_close(now, within_s)

    @property
    def is_settled(self) -> bool:
        """Whether the coordinator confirmed every result, and everything that went back."""
        return self._acks.is_empty and not self.hands.has_results

    @property
    def failure(self) -> bool:
        """Whether the coordinator refused this worker; `raise_error` says how."""
        return self._error is not None

    def _wants_stream(self) -> bool:
        running = self.hands.running > 0 and not self._closing and not self._left
        return running or super()._wants_stream()


def _place_of(part: Part) -> str:
    return _place_of_span(part.lease.span.within(part.start, part.stop))


def _place_of_span(span: Span) -> str:
    columns = span.columns
    first, last = columns.offset_at(span.start), columns.offset_at(span.stop - 1)
    offsets = f"offset {first}" if first == last else f"offsets {first}..{last}"
    return f"{columns.topic} [{columns.partition}] {offsets}"
