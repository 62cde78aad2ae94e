"""The methods that both consumers share; the shells (`_sync`, `_async`) wait and send.

Calls that wait are generators that yield how long to wait at most and are resumed when something
arrived or the time is over. The shells (`_sync`, `_async`) run them, and own stream and threads.
"""

from __future__ import annotations

import math
import os
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, ClassVar, Final, TypeVar

from sharecoord_sdk._proto import share_service_pb2 as service_pb

from . import arguments
from .acks import HOLD_S, RENEW, AckOutcome, CommitTicket, mark_row, mark_rows, unmarkable_row
from .call_guard import CallGuard
from .columns import IN_FLIGHT, LOST, SETTLED, AckDetails, Columns, Span
from .config import ConsumerConfig, read_config
from .core import Arrival, Connection, ConsumerCore
from .credentials import TokenOutcome
from .errors import (
    IllegalStateException,
    KafkaError,
    KafkaException,
)
from .records import (
    AcknowledgeType,
    Message,
    Messages,
    ReceivedMessage,
    Run,
    TopicPartition,
    origin_of,
    read_checkpoint,
)
from .status import StreamFailure

T = TypeVar("T")
#: Yields the longest wait in seconds; returns the result of the call.
Steps = Generator[float, None, T]
AcknowledgementCommitCallback = Callable[
    [dict[TopicPartition, set[int]], KafkaException | None], Any
]

# Timers fire early by as much as the clock's resolution.
_EARLY_S: Final = 0.02
_ACCEPT: Final = AcknowledgeType.ACCEPT


class BaseShareConsumer(CallGuard, ABC):
    """The calls of a share consumer without blocking or awaiting. See `ShareConsumer`."""

    # The longest single wait, so that signals and signs of life are not forgotten.
    _slice_s: ClassVar[float] = 0.2

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if self._core is not None and not self._closed:
            raise RuntimeError(f"{type(self).__name__} already initialized")
        self._config: ConsumerConfig = read_config(args, kwargs)
        self._core = ConsumerCore(self._config, str(uuid.uuid4()), random.random)
        self._callback: AcknowledgementCommitCallback | None = None
        # Whether `_send_held` will be called.
        self._is_held_due = False
        self._open(explicit=self._config.explicit)

    # -- what a shell provides ------------------------------------------------------------------

    @abstractmethod
    def _open_stream(self, connection: Connection) -> None:
        """Opens a stream, in place of the one before; arrivals carry its generation."""

    @abstractmethod
    def _send(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        """Queues messages on the current stream. Never blocks."""

    @abstractmethod
    def _send_held_at(self, at: float) -> None:
        """Calls `_send_held` at a time, and again when that says so, as long as the stream lives.

        Acknowledgements go with the next stream otherwise, which schedules for itself.
        """

    @abstractmethod
    def _fetch_token_at(self, at: float) -> None:
        """Fetches a token at a time, or now, in place of a fetch that was to begin later.

        Calls `_begin_fetch`, and `_token_came` if that says so; neither may keep the consumer.
        """

    @abstractmethod
    def _arrived(self, arrival: Arrival) -> None:
        """Puts something in, as a stream does; from any thread of a sync consumer."""

    @abstractmethod
    def _arrivals(self) -> Iterator[Arrival]:
        """Arrivals so far, without waiting."""

    # -- public, without waiting --------------------------------------------------------------

    def subscription(self) -> list[str]:
        """The topics of the last `subscribe`.

        Raises:
            IllegalStateException: The consumer is closed.
        """
        with self._use() as core:
            return list(core.topics)

    def acknowledge(
        self,
        message: Message | Iterable[Message],
        ack_type: int = _ACCEPT,
        *,
        delay_ms: int = 0,
        reason: str = "",
    ) -> None:
        """Says what happened to records of the last poll (KIP-932, explicit mode only).

        Local; sent by the next `poll`, `commit_sync` or `commit_async`. Until then another call
        for the same record replaces this one.

        Of many records either all are noted or, when this raises, none. The `Messages` of a poll
        cost next to nothing, whatever their number.

        Args:
            message: A message that `poll` returned; or all of them, or any iterable of messages.
            ack_type: An `AcknowledgeType`. RENEW: the lock starts again when it is sent, and the
                record comes back by a later poll, to be acknowledged again.
            delay_ms: RELEASE only: not delivered again before so many milliseconds; 0 leaves it to
                the group's back-off, 1 is at once.
            reason: REJECT and RELEASE only: a text of at most 1024 bytes, kept with the record.

        Raises:
            TypeError: Not a message, or not an integer.
            ValueError: A type that does not exist, coordinates that no record has, or details
                that do not go with the type.
            IllegalStateException: Implicit mode, a record that is not in flight (its offset is
                named), or closed.
        """
        if message.__class__ is ReceivedMessage and ack_type.__class__ is AcknowledgeType:
            # The short way of the common case: one byte per record.
            columns: Any = message._source
            ours = columns.owner is self._quick
            if ours and delay_ms == 0 and not (columns.details or reason):
                states, row = columns.states, message._row
                if states[row] <= RENEW:
                    states[row] = ack_type
                    return
        if isinstance(message, Message) or not isinstance(message, Iterable):
            self._acknowledge(message, ack_type, delay_ms, reason)
        else:
            self._acknowledge_all(message, ack_type, delay_ms, reason)

    def _acknowledge_all(
        self, messages: object, ack_type: object, delay_ms: object, reason: object
    ) -> None:
        self._check_open()
        found = arguments.read_messages(messages)
        kind = arguments.read_integer(ack_type)
        with self._use():
            runs = found._runs(self._token) if isinstance(found, Messages) else None
            if runs is not None:
                details = self._read_details("message", kind, delay_ms, reason)
                for run in runs:
                    row = unmarkable_row(*run)
                    if row is not None:
                        raise self._not_in_flight("message", *run[0].place_at(row))
            else:
                runs, details = self._runs_one_by_one(found, kind, delay_ms, reason)
            for run in runs:
                mark_rows(*run, kind, details)

    def _runs_one_by_one(
        self, messages: Iterable[Message], kind: int, delay_ms: object, reason: object
    ) -> tuple[list[Run], AckDetails]:
        """The rows of messages, checked in their order as `acknowledge` checks each alone."""
        runs: list[Run] = []
        details: AckDetails | None = None
        for message in messages:
            place = message.topic(), message.partition(), message.offset()
            arguments.check_place("message", *place)
            origin = self._origin(message)
            details = details or self._read_details("message", kind, delay_ms, reason)
            if origin is None or unmarkable_row(*origin, origin[1] + 1) is not None:
                raise self._not_in_flight("message", *place)
            columns, row = origin
            if runs and runs[-1][0] is columns and runs[-1][2] == row:
                runs[-1] = columns, runs[-1][1], row + 1
            else:
                runs.append((columns, row, row + 1))
        return runs, details or self._read_details("message", kind, delay_ms, reason)

    def _origin(self, message: Message) -> tuple[Columns, int] | None:
        """The row of a message, if this consumer may acknowledge it."""
        origin = origin_of(message)
        if origin is None or origin[0].owner is not self._token:
            origin = self._find(message.topic(), message.partition(), message.offset())
        return origin

    def _acknowledge(
        self, message: object, ack_type: object, delay_ms: object, reason: object
    ) -> None:
        self._check_open()
        found = arguments.read_message(message)
        kind = arguments.read_integer(ack_type)
        with self._use():
            place = found.topic(), found.partition(), found.offset()
            arguments.check_place("message", *place)
            self._mark("message", place, self._origin(found), kind, delay_ms, reason)

    def acknowledge_offset(
        self,
        topic: str,
        partition: int,
        offset: int,
        ack_type: int = _ACCEPT,
        *,
        delay_ms: int = 0,
        reason: str = "",
    ) -> None:
        """The same as `acknowledge`, for a program that has the coordinates only.

        Raises:
            TypeError: Not a str and integers.
            ValueError: As `acknowledge`.
            IllegalStateException: As `acknowledge`.
        """
        self._check_open()
        place = arguments.read_place(topic, partition, offset)
        kind = arguments.read_integer(ack_type)
        with self._use():
            arguments.check_place("offset", *place)
            self._mark("offset", place, self._find(*place), kind, delay_ms, reason)

    def _find(
        self, topic: str | None, partition: int | None, offset: int | None
    ) -> tuple[Columns, int] | None:
        if self._core is None or topic is None or partition is None or offset is None:
            return None
        return self._core.locks.find(topic, partition, offset)

    def _mark(
        self,
        what: str,
        place: tuple[str | None, int | None, int | None],
        origin: tuple[Columns, int] | None,
        kind: int,
        delay_ms: object,
        reason: object,
    ) -> None:
        details = self._read_details(what, kind, delay_ms, reason)
        if origin is None or not mark_row(*origin, kind, details):
            raise self._not_in_flight(what, *place)

    def _read_details(self, what: str, kind: int, delay_ms: object, reason: object) -> AckDetails:
        """Checks an acknowledgement, whichever its record."""
        if not self._explicit:
            why = "share.acknowledgement.mode is implicit"
            raise IllegalStateException(arguments.bad_state_text(what, why))
        if kind not in AcknowledgeType.__members__.values():
            why = f"{arguments.INVALID_TEXT}: {kind} is no AcknowledgeType"
            raise ValueError(f"Failed to acknowledge {what}: {why}")
        return arguments.check_details(kind, delay_ms, reason)

    def _not_in_flight(
        self, what: str, topic: str | None, partition: int | None, offset: int | None
    ) -> IllegalStateException:
        why = f"the record is not in flight: {topic} [{partition}] offset {offset}"
        return IllegalStateException(arguments.bad_state_text(what, why))

    def set_acknowledgement_commit_callback(
        self, callback: AcknowledgementCommitCallback | None
    ) -> None:
        """Sets who hears of the outcome of acknowledgements.

        `callback(offsets, exception)` is called once per partition and outcome, in the thread
        that calls `poll`, `commit_sync`, `commit_async` or `close`, and what it raises comes out of
        that call, which has done its work: a `poll` before it takes records, a `close` when it is
        over. Every method called inside it raises IllegalStateException (KIP-932).

        Args:
            callback: It also hears of commits that a former one was not told of yet. None drops
                them.

        Raises:
            TypeError: Neither callable nor None.
            IllegalStateException: Closed, or called inside the callback.
        """
        self._check_open()
        if callback is not None and not callable(callback):
            raise TypeError("callback must be callable or None")
        with self._use() as core:
            # Outcomes that have come belong to the former callback; without one they are dropped.
            self._pump(core)
            self._callback = callback
            core.reports_outcomes = callback is not None
            if callback is None:
                core.take_outcomes()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Replaces the credentials of PLAIN, from the next connection on.

        A consumer that was refused, and waits to try again, does so at once.

        Raises:
            TypeError: Not two str.
            ValueError: The user name has a colon, or something can not be sent.
            IllegalStateException: Closed.
        """
        self._check_open()
        arguments.check_texts(username, password)
        if ":" in username:
            # The password begins after the first one (RFC 7617).
            raise ValueError("argument 1 must not have a colon")
        if self._core is not None:
            # From any thread, as with the twin, also while another one polls.
            self._core.set_plain_credentials(username, password, self._now())

    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long a record stays locked, in milliseconds; None before the first join (KIP-932).

        Raises:
            IllegalStateException: Closed.
        """
        with self._use() as core:
            self._pump(core)
            return core.lock_duration_ms

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Stops new records of these partitions until `resume`; what waits of them goes back.

        Raises:
            TypeError: Not a list of TopicPartition.
            ValueError: A negative partition.
            IllegalStateException: Closed.
        """
        self._change_paused(partitions, set.union)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Undoes `pause`.

        Raises:
            TypeError: Not a list of TopicPartition.
            ValueError: A negative partition.
            IllegalStateException: Closed.
        """
        self._change_paused(partitions, set.difference)

    def _change_paused(self, partitions: object, change: Callable[..., set[Any]]) -> None:
        self._check_open()
        named = arguments.read_partitions(partitions)
        with self._use() as core:
            with self._as_a_whole():
                core.set_paused(change(core.paused, named), self._now())
            self._drive(core)

    def commit_async(self) -> None:
        """Sends acknowledgements without waiting; outcomes go to the commit callback.

        Implicit mode accepts the records of the last poll first.

        Raises:
            IllegalStateException: Closed.
        """
        with self._use() as core:
            self._pump(core)
            with self._as_a_whole():
                core.begin_commit_async(self._now())
            self._drive(core)
            self._dispatch(core)

    # -- the steps of the calls that wait -------------------------------------------------------

    def _subscribe_now(self, topics: object) -> None:
        self._check_open()
        names = arguments.read_topics(topics)
        with self._use() as core:
            self._pump(core)
            with self._as_a_whole():
                core.subscribe(names, self._now())
            self._drive(core)

    def _poll_steps(
        self, timeout: object, limit: int | None = None, *, goes_on: bool = False
    ) -> Steps[Messages]:
        """Polls; the shell sets `given` of the hand-out when it returns the records.

        Args:
            timeout: Seconds, as the application gave it.
            limit: Most records; `max.poll.records` by default.
            goes_on: Whether records at hand belong to the poll before: then that one is not over,
                and nothing of it is accepted yet. Without records at hand it is over.
        """
        self._check_open()
        timeout_s = arguments.read_timeout(timeout)
        with self._use() as core:
            deadline = None if timeout_s is None else self._now() + timeout_s
            self._pump(core)
            self._dispatch(core)
            self._begin_poll(core, goes_on=goes_on)
            while True:
                core.raise_error()
                found = self._take(core, limit)
                if found:
                    return found
                if goes_on:
                    goes_on = False
                    self._begin_poll(core, goes_on=False)
                    continue
                if deadline is not None and self._now() >= deadline:
                    return found
                yield self._wait_s(core, deadline)
                self._check_open()
                self._pump(core)
                # Callbacks run before records are taken: what they raise must lose none.
                self._dispatch(core)

    def _begin_poll(self, core: ConsumerCore, *, goes_on: bool) -> None:
        if not goes_on:
            core.check_poll()
        core.check_interval(self._now())
        if not goes_on:
            with self._as_a_whole():
                core.begin_poll(self._now())

    def _take(self, core: ConsumerCore, limit: int | None) -> Messages:
        with self._as_a_whole():
            now = self._now()
            hand_out = core.take(now, self._token, limit)
            core.flush(now, polling=True, may_hold=True)
        self._drive(core)
        return Messages._of(hand_out)

    def _commit_steps(self, timeout: object) -> Steps[dict[TopicPartition, KafkaException | None]]:
        self._check_open()
        timeout_s = arguments.read_timeout(timeout)
        with self._use() as core:
            deadline = None if timeout_s is None else self._now() + timeout_s
            self._pump(core)
            self._dispatch(core)
            core.raise_error()
            with self._as_a_whole():
                ticket = core.begin_commit(self._now())
            yield from self._ticket_steps(core, ticket, deadline)
            return {
                TopicPartition(topic, partition): None if error is None else KafkaException(error)
                for (topic, partition), error in ticket.results.items()
            }

    def _ticket_steps(
        self, core: ConsumerCore, ticket: CommitTicket, deadline: float | None
    ) -> Steps[None]:
        """Waits until the ticket has all its outcomes, or until the deadline."""
        while True:
            with self._as_a_whole():
                core.hand_back_unseen(self._now())
            self._flush(core)
            if ticket.is_done or (deadline is not None and self._now() >= deadline):
                break
            yield self._wait_s(core, deadline)
            self._check_open()
            self._pump(core)
            self._dispatch(core)
            core.raise_error()
        ticket.time_out()

    def _checkpoint_steps(self, message: object, data: object, timeout: object) -> Steps[None]:
        self._check_open()
        found, stored = arguments.read_message(message), read_checkpoint(data)
        timeout_s = arguments.read_timeout(timeout)
        with self._use() as core:
            deadline = None if timeout_s is None else self._now() + timeout_s
            self._pump(core)
            self._dispatch(core)
            core.raise_error()
            columns, row, span = self._in_flight(found)
            ticket = CommitTicket()
            with self._as_a_whole():
                core.send_checkpoint(span, stored, ticket, self._now())
            yield from self._ticket_steps(core, ticket, deadline)
            error = next(iter(ticket.results.values()))
            if error is not None:
                raise KafkaException(error)
            columns.keep_checkpoint(row, stored)

    def _in_flight(self, message: Message) -> tuple[Columns, int, Span]:
        """Finds a record of the last poll that was not acknowledged yet."""
        origin = self._origin(message)
        state = SETTLED if origin is None else origin[0].states[origin[1]]
        if state == LOST:
            raise KafkaException(KafkaError(KafkaError.INVALID_RECORD_STATE))
        span = None if origin is None else origin[0].span_at(origin[1])
        if origin is None or span is None or state != IN_FLIGHT:
            raise IllegalStateException("a checkpoint needs a record in flight, not acknowledged")
        return (*origin, span)

    def _close_steps(self) -> Steps[None]:
        if self._closed or self._core is None:
            return
        raised: Exception | None = None
        with self._use() as core:
            try:
                self._pump(core)
                with self._as_a_whole():
                    core.begin_close(self._now())
                deadline = self._now() + self._config.close_timeout_s
                while True:
                    self._flush(core)
                    try:
                        self._dispatch(core)
                    except Exception as error:  # noqa: BLE001 - of the application's callbacks
                        # Raised once the member has left.
                        raised = raised or error
                        continue
                    if core.is_close_done or self._now() >= deadline:
                        break
                    yield self._wait_s(core, deadline)
                    self._pump(core)
            finally:
                self._closed = True
        if raised is not None:
            raise raised

    # -- inside -------------------------------------------------------------------------------

    def _wait_s(self, core: ConsumerCore, deadline: float | None) -> float:
        now = self._now()
        until = [now + self._slice_s]
        wake_at = core.wake_at(now)
        until.extend(at for at in (deadline, wake_at) if at is not None)
        return max(0.0, min(until) - now)

    def _hand_back_unseen(self) -> None:
        """Hands back records that waited too long; the shell calls it at the scheduled time."""
        with self._guard:
            core = self._core
            if core is None or self._closed or self._is_half_done or os.getpid() != self._pid:
                return
            if self._user is not None:
                # The call under way may take them; its end asks again.
                self._is_hand_back_due = True
                return
            self._pump(core)
            core.hand_back_unseen(self._now())
            requests = core.take_outbox()
            if requests:
                self._send(requests)
            self._schedule_hand_back(core.hand_back_unseen_at)

    def _pump(self, core: ConsumerCore) -> None:
        """Passes arrivals on to the core."""
        with self._as_a_whole():
            for arrival in self._arrivals():
                core.arrived(arrival, self._now())

    def _flush(self, core: ConsumerCore) -> None:
        with self._as_a_whole():
            core.flush(self._now())
        self._drive(core)

    def _drive(self, core: ConsumerCore) -> None:
        """Carries out the core's decisions: opens a stream, sends."""
        with self._as_a_whole():
            now = self._now()
            if self._config.tls is not None:
                self._config.tls.look(now)
            core.tick(now)
            connection = core.connect(now)
            if connection is not None:
                self._connect(core, connection)
            requests = core.take_outbox()
            if requests:
                self._send(requests)
            if core.held_until < math.inf:
                self._schedule_held(core.held_until)
            self._schedule_fetch(core)

    def _schedule_held(self, at: float) -> None:
        with self._guard:
            if not self._is_held_due:
                self._is_held_due = True
                self._send_held_at(at)

    def _send_held(self) -> float:
        """Sends acknowledgements that were held long enough; returns when to call again, or inf.

        The shell calls it at the time that `_send_held_at` was told, in any thread.
        """
        with self._guard:
            core = self._core
            if core is None or self._closed or self._is_half_done or os.getpid() != self._pid:
                self._is_held_due = False
                return math.inf
            now = self._now()
            if now >= core.held_until and self._user is None:
                core.flush(now)
                self._send(core.take_outbox())
            if core.held_until < math.inf:
                # Held since, or somebody is inside a call, whose end may come without a word.
                return max(core.held_until, now + HOLD_S)
            self._is_held_due = False
            return math.inf

    def _connect(self, core: ConsumerCore, connection: Connection) -> None:
        self._is_held_due = False
        try:
            self._open_stream(connection)
        except (OSError, RuntimeError, ValueError) as error:
            # A thread that can not be started now, say, may be startable later.
            failure = StreamFailure("UNAVAILABLE", f"{type(error).__name__}: {error}")
            core.stream_ended(connection.generation, failure, self._now())

    def _schedule_fetch(self, core: ConsumerCore) -> None:
        at = core.fetch_token_at
        if at == math.inf:
            return
        try:
            with self._guard:
                self._fetch_token_at(at)
        except RuntimeError as error:
            # A thread that can not be started now may be startable later.
            core.token_came(OSError(f"no thread to fetch it in: {error}"), self._now())

    def _begin_fetch(self) -> bool:
        """Whether a token is to be fetched now; then somebody else need not."""
        with self._guard:
            core = self._core
            if core is None or self._closed or os.getpid() != self._pid:
                return False
            now = self._now()
            if core.fetch_token_at > now + _EARLY_S or core.credentials.tokens is None:
                self._schedule_fetch(core)
                return False
            core.credentials.tokens.began(now)
            return True

    def _token_came(self, outcome: TokenOutcome) -> None:
        """Takes what a fetch has brought; the shell calls it in any thread of a sync consumer."""
        self._arrived(Arrival(0, outcome, self._now()))
        self._is_token_due = True
        self._show_token()

    def _show_token(self) -> None:
        with self._guard:
            core = self._core
            if core is None or self._closed or self._is_half_done or os.getpid() != self._pid:
                return
            if self._user is not None:
                # The call under way, or its end, sees to it.
                return
            self._is_token_due = False
            self._pump(core)
            # Opens the stream that waits for its token, or shows the token on it.
            self._drive(core)

    def _dispatch(self, core: ConsumerCore) -> None:
        """Logs, and calls the application's callbacks: always in the caller's thread."""
        while core.notices:
            # One notice at a time: an exception of a callback must not hide the later ones.
            notice = core.notices.popleft()
            self._config.logger.log(notice.level, "%s", notice.text, exc_info=notice.raised)
            if notice.error is not None and self._config.error_cb is not None:
                self._config.error_cb(notice.error)
        while core.outcomes:
            self._report(core.outcomes.popleft())

    def _report(self, outcome: AckOutcome) -> None:
        if self._callback is None:
            return
        offsets: dict[TopicPartition, set[int]] = {}
        for span in outcome.spans:
            for place, found in span.sources().items():
                offsets.setdefault(TopicPartition(*place), set()).update(found)
        error = None if outcome.error is None else KafkaException(outcome.error)
        self._in_callback = True
        try:
            self._callback(offsets, error)
        finally:
            self._in_callback = False
