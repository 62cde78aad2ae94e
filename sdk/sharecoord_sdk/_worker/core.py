"""The rules of a worker: slots, outcomes, renewals, demand, the end. Sans-IO.

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
from sharecoord_sdk._core.core import ConsumerCore, Notice
from sharecoord_sdk._core.frames import Frame
from sharecoord_sdk._core.outcomes import Reject, Retry
from sharecoord_sdk._core.records import message_at
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .batches import HeldBackError, take_unread
from .demand import Demand
from .failures import (
    LINES_MAX,
    TRACES_MAX,
    WINDOW_S,
    FailureLog,
    FailureRules,
    settlement_of,
    text_of,
)
from .handlers import Handler, order_problem
from .leases import Part, WorkerLeases, extend
from .line import Lease, Settlement
from .options import read_result

# Renewals that fall due within this part of half a lock go out together.
_RENEW_TOGETHER_PART: Final = 0.05
# Seconds between signs of life while a lock may end that is not renewed any more.
_SIGN_S: Final = 1.0
# The settlement of records that no handler saw: they go back, uncounted.
_HAND_BACK: Final = Settlement(RETURN)
# Parts of a refill: any growth of the credit is worth a place in a message that goes out anyway.
_ANY_GROWTH: Final = 1 << 40


class WorkerCore(ConsumerCore):
    """The state of one worker.

    Args:
        config: The consumer's configuration.
        member_id: Made once, kept across reconnects.
        chance: Returns a number in [0, 1), for jitter.
        handlers: By topic.
        concurrency: Most handlers at a time.
        renew_max_s: Seconds for which the locks of one record are renewed.
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
        self.locks: WorkerLeases = WorkerLeases(self._credit, handlers)
        self.demand = Demand(concurrency, batch_max, config.buffer_records)
        self._failures = FailureLog()
        self._failure_rules = FailureRules(chance, self._note_failure)
        self._breakers = [line.breaker for line in self.locks.lines.values() if line.breaker]
        # The time of the last call.
        self._now = 0.0
        self.reports_outcomes = True
        #: Whether nothing more is started.
        self.is_stopping = False
        self._renewals_off = False
        # The earliest renewal; that lease may be done by now.
        self._renew_at = math.inf
        # Until then locks may end that are not renewed any more: signs of life are frequent.
        self._signs_until = 0.0
        self._resize()

    # -- slots --------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Handlers that may be started now."""
        return 0 if self.is_stopping else self._concurrency - self.locks.jobs

    def head(self, now: float) -> Lease | None:
        """The lease of the next handler's records, or None: no free slot, or nothing waits."""
        locks = self.locks
        if self.is_stopping or locks.jobs >= self._concurrency:
            return None
        self._now = now
        lease = locks.head(now)
        if lease is not None:
            if lease.due < self._renew_at:
                self._renew_at = lease.due
            if self._busy_since is None:
                self._busy_since = now
        return lease

    def start_batch(self, lease: Lease, now: float) -> list[Part]:
        parts = self.locks.start_batch(lease, now)
        for part in parts:
            self._renew_at = min(self._renew_at, part.lease.due)
        return parts

    def finish(self, parts: Sequence[Part], result: object, now: float | None = None) -> None:
        """Notes a handler's return value, which may name an outcome for each record of a batch."""
        count = sum(stop - start for _, start, stop in parts)
        errors = read_result(result, count if parts[0].lease.handler.batch else None)
        if errors is None or isinstance(errors, BaseException):
            self.settle(parts, errors, now)
            return
        self.locks.jobs -= 1
        rows = [Part(p.lease, row, row + 1) for p in parts for row in range(p.start, p.stop)]
        unread = take_unread(parts)
        pairs = [pair for pair in zip(rows, errors, strict=True) if pair[0] not in unread]
        parts = self._settle_alone(parts, unread, now)
        if not parts:
            return
        self.locks.settle_each(
            parts, [self._settlement_of(part.lease, part.start, error) for part, error in pairs]
        )
        for part, error in pairs:
            if error is not None:
                self._log_failure([part], error)
        counted = next((error for _, error in pairs if error is not None), None)
        self._tell_breaker(parts, counted, self._now if now is None else now)

    def settle(
        self, parts: Sequence[Part], error: BaseException | None, now: float | None = None
    ) -> None:
        """Settles all records of a call alike by what its handler raised; None = accepted."""
        self.locks.jobs -= 1
        parts = self._settle_alone(parts, take_unread(parts), now)
        if parts:
            self._settle_alike(parts, error, now)

    def _settle_alike(
        self, parts: Sequence[Part], error: BaseException | None, now: float | None
    ) -> None:
        if error is None or not self._failure_rules.differs_by_record(
            parts[0].lease.handler, error
        ):
            self.locks.settle(parts, self._settlement_of(parts[0].lease, parts[0].start, error))
        else:
            rows = [(p.lease, row) for p in parts for row in range(p.start, p.stop)]
            self.locks.settle_each(parts, [self._settlement_of(*row, error) for row in rows])
        if error is not None:
            self._log_failure(parts, error)
        self._tell_breaker(parts, error, self._now if now is None else now)

    def _settlement_of(
        self, lease: Lease, row: int, error: BaseException | None
    ) -> Settlement | None:
        """The settlement of a record whose handler raised; None = accepted."""
        if error is None:
            return None
        message = message_at(lease.columns, row)
        return self._failure_rules.settlement(lease.handler, message, error)

    def _settle_alone(
        self, parts: Sequence[Part], unread: Mapping[Part, BaseException], now: float | None
    ) -> Sequence[Part]:
        """Settles the records that a handler of batches did not see, each as in a call of its own.

        Returns:
            The other parts; without any the call is over.
        """
        if not unread:
            return parts
        seen: list[Part] = []
        for part in (Part(p.lease, row, row + 1) for p in parts for row in range(p.start, p.stop)):
            error = unread.get(part)
            if error is None:
                extend(seen, part.lease, part.start)
                continue
            if isinstance(error, HeldBackError):
                # Unless what it follows was rejected after all, or its lock is lost.
                is_broken = part.lease.queues[part.start].broken
                self.locks.settle([part], _HAND_BACK if is_broken else settlement_of(error))
            else:
                self._settle_alike([part], error, now)
        return seen

    def got_stuck(self, handler: Handler, where: str) -> None:
        """Gives up a plain handler: its slot is taken until it returns."""
        locks = self.locks
        locks.jobs += 1
        locks.stuck += 1
        self._note(
            logging.ERROR,
            f"handler {handler.name} of {where} does not return: its thread and its slot are lost"
            f" until it does; {locks.stuck} of {self._concurrency} slots are lost so",
        )

    def stuck_returned(self) -> None:
        """Frees the slot of a plain handler that was given up."""
        self.locks.stuck -= 1
        self.locks.jobs -= 1

    def peek_lines(self, now: float) -> None:
        """Finds records that may start now, of those that wait for a time."""
        self._now = now
        self.locks.peek_lines(now)

    def _tell_breaker(self, parts: Sequence[Part], error: BaseException | None, now: float) -> None:
        line = parts[0].lease.line
        if line is None or line.breaker is None:
            return
        is_probe = False
        for lease, start, stop in parts:
            if start <= lease.probe < stop:
                lease.probe = -1
                is_probe = True
        text = line.breaker.finished(error, now, is_probe=is_probe)
        if text:
            self._note(logging.WARNING, text)
            self._pause(now)

    def _pause(self, now: float) -> None:
        """Pauses the topics whose breaker is open: assigned partitions, and those with leases."""
        found: set[tuple[str, int]] = set()
        for topic in (each.topic for each in self._breakers if each.state == each.OPEN):
            found |= {(topic, partition) for partition in self.assigned.get(topic, ())}
            found |= {
                (topic, lease.columns.partition)
                for lease in self.locks.leases
                if lease.handler.topic == topic
            }
        self.set_paused(found, now)

    def states(self) -> dict[str, str]:
        """`closed`, `open` or `probing`, by topic."""
        return {each.topic: each.state for each in self._breakers}

    def _log_failure(self, parts: Sequence[Part], error: BaseException) -> None:
        handler = parts[0].lease.handler
        where = ", ".join(_place_of(lease.span.within(*rows)) for lease, *rows in parts)
        what = f"{type(error).__name__}: {text_of(error)}"
        if isinstance(error, Retry | Reject):
            text = f"handler {handler.name} of {where} raised {what}"
            self.notices.append(Notice(logging.DEBUG, text, raised=error))
        else:
            becomes = self._failure_rules.verb_of(handler, error)
            text = f"handler {handler.name} of {where} failed, the record is {becomes}: {what}"
            self._note_failure(handler, text, error)

    def _note_unlogged(self, now: float) -> None:
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
        """Sends results, returns and credit."""
        locks = self.locks
        self._now = now
        pace = self.demand.pace
        if locks.finished:
            idle = not locks.running and not locks.waiting
            pace.finished(locks.finished, now, drained=idle)
        if locks.running or locks.waiting:
            pace.started(now)
        expired = locks.take_expired()
        if expired:
            self._acks.add(expired, None, now)
        self._collect(None, now, accept_rest=False)
        self.flush(now, polling=True)

    def _sign_every_s(self, now: float) -> float:
        every_s = super()._sign_every_s(now)
        return min(every_s, _SIGN_S) if now < self._signs_until else every_s

    def _refill(self) -> types_pb.Credit | None:
        if self.is_stopping:
            return None
        self._resize()
        return self._credit.refill(_ANY_GROWTH)

    def _resize(self) -> None:
        locks = self.locks
        startable = locks.startable
        room = self.demand.room(
            running=locks.running,
            jobs=locks.jobs,
            waiting=startable,
            held=locks.waiting - startable,
        )
        self._credit.room_records = room

    def _join_request(self, now: float) -> service_pb.ConsumeRequest:
        # Everything that is done, and what goes back, goes into the book of what is under way.
        self._acks.add(self.locks.take_expired(), None, now)
        self._collect(None, now, accept_rest=False)
        self._resize()
        return super()._join_request(now)

    def _joined(self, joined: service_pb.Joined, now: float) -> None:
        if joined.lock_duration_ms:
            self.locks.duration_s = joined.lock_duration_ms / 1000
        super()._joined(joined, now)

    def _keep_order(self, ordering: str) -> None:
        """Keeps the group's order, and warns of handlers that keep another one."""
        if ordering in ("", self.ordering):
            return
        super()._keep_order(ordering)
        for handler in self._handlers.values():
            text = order_problem(
                handler, self.config.group_id, ordering, concurrency=self._concurrency
            )
            if text:
                self._note(logging.WARNING, text)

    def _batches(self, frame: Frame, received_at: float) -> None:
        super()._batches(frame, received_at)
        self.demand.pace.started(received_at)

    def _take_assignment(self, assignment: service_pb.Assignment, now: float) -> None:
        super()._take_assignment(assignment, now)
        if any(each.state == each.OPEN for each in self._breakers):
            self._pause(now)

    # -- locks --------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """See `ConsumerCore.tick`; renews locks that are due."""
        super().tick(now)
        self._note_unlogged(now)
        if now >= self._renew_at:
            self._renew(now)
        if now >= self._hand_back_at:
            self._hand_back_due(now)
        due = [each for each in self._breakers if now >= each.probe_at]
        if due and not self.is_stopping:
            for each in due:
                self._note(logging.INFO, each.probe())
            self._pause(now)

    def wake_at(self, now: float) -> float | None:
        wake_at = super().wake_at(now)
        times = [self._renew_at, self._hand_back_at]
        if now < self._signs_until:
            times.append(now + _SIGN_S)
        if self.free:
            opening = [line.opens_at() for line in self.locks.lines.values()]
            opening += [each.probe_at for each in self._breakers]
            times.extend(at for at in opening if at > now)
        if wake_at is not None:
            times.append(wake_at)
        at = min(times)
        return at if at < math.inf else None

    @property
    def _hand_back_at(self) -> float:
        """The time at which waiting records have to go back: beside busy slots, or out of lines."""
        lines_at = self.locks.lines_hand_back_at
        return min(self.locks.hand_back_at, lines_at) if self._is_full else lines_at

    @property
    def _is_full(self) -> bool:
        return self.locks.jobs >= self._concurrency

    def _hand_back_due(self, now: float) -> None:
        """Hands back, uncounted, records that handlers are too busy for.

        A coordinator keeps records from a program that takes no part; a worker whose handlers all
        run for long renews their locks, so it seems to take part.
        """
        if self._is_full:
            self._acks.add(self.locks.hand_back_due(now), None, now)
            self.demand.handed_back()
        self.locks.hand_back_from_lines(now)
        self._acks.add(self.locks.take_expired(), None, now)
        self.flush(now)

    def _renew(self, now: float) -> None:
        half_s = self.locks.duration_s / 2
        soon = now + half_s * _RENEW_TOGETHER_PART
        due = [lease for lease in self.locks.leases if lease.due <= soon]
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
            self.locks.close_head()
        if ranges:
            self._acks.add(ranges, None, now)
            self.flush(now)
        self._renew_at = min((lease.due for lease in self.locks.leases), default=math.inf)

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
        self._signs_until = now + 2 * self.locks.duration_s
        where = ", ".join(map(_place_of, spans))
        self._note(
            logging.WARNING,
            f"handler {lease.handler.name} of {where} still runs; its lock ends, because {why}",
        )
        return False

    def checkpoint_stored(self, columns: Columns, row: int, now: float) -> None:
        """Renews the lock for another `renew_max_s`, because its handler stored a checkpoint."""
        self._renew_at = min(self._renew_at, self.locks.checkpoint_stored(columns, row, now))

    def _answered(self, result: service_pb.AcknowledgeResult, now: float) -> None:
        settlement = self._acks.answered(result, now)
        if settlement.renewals_off:
            self._renewals_off = True
            # Says so of what runs, once per lease.
            self._stop_renewing(settlement.not_renewed, now)
        else:
            for span in settlement.not_renewed:
                self.locks.mark_lost(span)
        renewals = {id(span) for span in (*settlement.renewed, *settlement.not_renewed)}
        for outcome in settlement.outcomes:
            for span in outcome.spans:
                if id(span) not in renewals:
                    self.locks.confirmed(span, is_lost=outcome.error is not None)
            if outcome.error is not None:
                outcome.spans = [span for span in outcome.spans if id(span) not in renewals]
                if outcome.spans:
                    self._report([outcome])

    def _stop_renewing(self, refused: list[Span], now: float) -> None:
        columns = {id(span.columns) for span in refused}
        for lease in self.locks.leases:
            if id(lease.columns) in columns:
                spans = lease.running_spans()
                if spans:
                    self._may_renew(lease, spans, now)
                lease.due = math.inf

    # -- the end ------------------------------------------------------------------------------

    def begin_stop(self, now: float) -> None:
        """Stops taking records: unseen ones go back, uncounted."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self.subscribe([], now)
        self.publish(now)

    def begin_close(self, now: float, within_s: float = math.inf) -> None:
        """Leaves: the coordinator releases unfinished records, and counts them."""
        self.is_stopping = True
        self._note_unlogged(math.inf)
        expired = self.locks.take_expired()
        if expired:
            self._acks.add(expired, None, now)
        super().begin_close(now, within_s)

    @property
    def is_settled(self) -> bool:
        """Whether the coordinator confirmed every result, and everything that went back."""
        return self._acks.is_empty and not self.locks.has_results

    @property
    def failure(self) -> bool:
        """Whether the coordinator refused this worker; `raise_error` says how."""
        return self._error is not None

    def _wants_stream(self) -> bool:
        running = self.locks.running > 0 and not self._closing and not self._left
        return running or super()._wants_stream()


def _place_of(span: Span) -> str:
    columns = span.columns
    first, last = columns.offset_at(span.start), columns.offset_at(span.stop - 1)
    offsets = f"offset {first}" if first == last else f"offsets {first}..{last}"
    return f"{columns.topic} [{columns.partition}] {offsets}"
