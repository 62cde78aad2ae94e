"""The rules of one consumer: messages and calls in, actions out.

No threads, no clock, no grpc: `now` is passed in (monotonic seconds), what to send is taken out.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk._version import PROTOCOL_VERSION, __version__

from . import whole
from .acks import HOLD_AT_HAND, RENEW, AckBook, AckOutcome, AckRange, CommitTicket
from .columns import Columns, HandOut, PartitionKey, Span
from .config import ConsumerConfig, is_unix
from .config_table import POLL_RECORDS_MAX
from .credentials import BearerToken, Credentials, TokenOutcome, metadata_of, token_error
from .credit import StreamCredit
from .errors import IllegalStateException, KafkaError, KafkaException
from .frames import Frame
from .held import taken_ranges
from .link import Link, Phase
from .lock_book import LockBook
from .notices import newly_refused, starts_at_end
from .order import KEY, PARTITION, Turns
from .status import StreamFailure, describe

_ACQUIRE_MODES: Final = {
    "fair": types_pb.ACQUIRE_MODE_FAIR,
    "batch_optimized": types_pb.ACQUIRE_MODE_BATCH_OPTIMIZED,
    "record_limit": types_pb.ACQUIRE_MODE_RECORD_LIMIT,
}
# A join stays below 4 MiB, the most that a coordinator takes by default, and gets smaller when one
# takes less. (128 KiB is the least that `limits.request.max.bytes` can be.)
_JOIN_BYTES: Final = 4 * 1024 * 1024 - 1024
_JOIN_BYTES_LEAST: Final = 48 * 1024
# A poll that grants no credit says that the application is alive: ten times while the coordinator
# waits for it (max.poll.interval.ms), at least each half minute. Ten thousand members that wait for
# records cost the coordinator next to nothing so.
_POLLED_PARTS: Final = 10
_POLLED_EVERY_MAX_S: Final = 30.0
# How long a leave waits for the answers to acknowledgements, half of what a close may take at
# most: a partition moves within it, and supervisors kill no sooner than after ten seconds.
_LEAVE_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Connection:
    """A stream to open: where, as which generation, and what to send first."""

    address: str
    generation: int
    requests: list[service_pb.ConsumeRequest]
    #: The value of the header; "" = without.
    authorization: str = field(default="", repr=False)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers of the call."""
        return metadata_of(self.authorization)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to log, and to hand to `error_cb` when it has an error."""

    level: int
    text: str
    error: KafkaError | None = None
    #: The exception of the application's code; its traceback is logged.
    raised: BaseException | None = None


class Arrival(NamedTuple):
    """A message that a stream brought, or the stream's end; or a token, of no stream."""

    generation: int
    content: Frame | StreamFailure | TokenOutcome
    received_at: float

    @property
    def hand_back_unseen_at(self) -> float:
        """The time to hand back its records, if they still wait then; inf without records."""
        if not isinstance(self.content, Frame) or not self.content.whole:
            return math.inf
        batches = self.content.response.batches
        left_ms = min(bounds.lock_remaining_ms for batch in batches for bounds in batch.ranges)
        return self.received_at + left_ms / 1000 * LockBook.hand_back_part


class ConsumerCore:
    """The state of one share consumer.

    Args:
        config: The consumer's configuration.
        member_id: Made once, kept across reconnects.
        chance: Returns a number in [0, 1), for jitter.
    """

    def __init__(self, config: ConsumerConfig, member_id: str, chance: Callable[[], float]) -> None:
        self.config = config
        self.member_id = member_id
        self._holder = (config.group_id, member_id)
        self._asked_records = min(config.max_poll_records, POLL_RECORDS_MAX)
        self.link = Link(
            config.addresses,
            backoff_s=config.reconnect_backoff_s,
            backoff_max_s=config.reconnect_backoff_max_s,
            connect_timeout_s=config.connect_timeout_s,
            chance=chance,
        )
        self.credentials = Credentials(config.sasl, config.reconnect_backoff_s)
        self._credit = StreamCredit(config.buffer_records, config.buffer_bytes)
        self.locks = LockBook(self._credit)
        self._acks = AckBook(config.api_timeout_s)
        self.topics: list[str] = []
        self._join_topics: list[str] = []
        #: Partitions that get no new records.
        self.paused: set[tuple[str, int]] = set()
        #: The group's `share.ordering`, as it was said last; "" = not yet.
        self.ordering = ""
        #: The partitions of each topic, as the coordinator named them last.
        self.assigned: dict[str, list[int]] = {}
        # Topics of which was said that the group starts at their end, or that they are refused.
        self._told_new, self._told_refused = set[str](), set[str]()
        self.lock_duration_ms: int | None = None
        self._error: KafkaError | None = None
        #: To be logged, and reported to `error_cb`.
        self.notices: deque[Notice] = deque()
        #: Outcomes of acknowledgements, for the application's callback.
        self.outcomes: deque[AckOutcome] = deque()
        #: Whether somebody wants to hear of outcomes.
        self.reports_outcomes = False
        self._outbox: list[service_pb.ConsumeRequest] = []
        self._polled_every_s = min(
            _POLLED_EVERY_MAX_S, config.max_poll_interval_ms / 1000 / _POLLED_PARTS
        )
        #: When acknowledgements that are held must be sent; inf = none are.
        self.held_until = math.inf
        # When the coordinator last heard from a poll.
        self._polled_at = 0.0
        # Whether the coordinator waits for a poll: a lock ended, or it was told that nobody polls.
        self._is_waited_for = False
        #: When the application was last inside a poll, or subscribed.
        self.called_at = 0.0
        # When the application got records while it had none; None = it has none.
        self._busy_since: float | None = None
        self._busy_s = 0.0
        self._drain_until: float | None = None
        self._drain_addresses: list[str] = []
        self._join_bytes = _JOIN_BYTES
        self._closing = False
        self._leave_by = 0.0
        self._leave_sent = False
        self._left = False

    # -- what the application does ------------------------------------------------------------

    def subscribe(self, topics: Sequence[str], now: float) -> None:
        """Replaces the topics. What was acknowledged goes out; what waited goes back."""
        if list(topics) == self.topics:
            return
        self.topics = list(topics)
        self.called_at = now
        if topics:
            self._join_topics = self.topics
        if self.config.explicit:
            self._collect(None, now, accept_rest=False)
        wanted = set(topics)
        self._give_back(lambda key: key.served not in wanted, now)
        if self.link.is_up:
            self._send_with_acks(
                service_pb.ConsumeRequest(subscription=service_pb.Subscription(topics=self.topics)),
                now,
            )

    def set_paused(self, paused: set[tuple[str, int]], now: float) -> None:
        """Replaces the partitions that get no new records. What waited of them goes back."""
        self.paused = paused
        self._give_back(self._is_paused, now)
        if self.link.is_up:
            self._send_with_acks(service_pb.ConsumeRequest(paused=self._paused_partitions()), now)

    def check_poll(self) -> None:
        """Refuses a poll that is not allowed now (KIP-932, 3.6).

        Raises:
            IllegalStateException: Not subscribed, or (explicit mode) records of the last poll
                were not acknowledged. Nothing is lost: acknowledge them and poll again.
            KafkaException: The coordinator refused this consumer.
        """
        self.raise_error()
        if not self.topics:
            raise IllegalStateException("Consumer is not subscribed to any topics")
        if self.config.explicit and self.locks.has_unacknowledged():
            raise IllegalStateException(
                "All records of the last poll must be acknowledged before the next poll in"
                " explicit acknowledgement mode"
            )

    def check_interval(self, now: float) -> None:
        """Tells a program, once, that it has not polled for `max.poll.interval.ms`.

        The coordinator has taken its member out of the group then, and the next poll joins again.

        Raises:
            KafkaException: _MAX_POLL_EXCEEDED.
        """
        interval_ms = self.config.max_poll_interval_ms
        over_ms = (now - self.called_at) * 1000 - interval_ms
        self.called_at = now
        if over_ms > 0 and any(self.assigned.values()):
            text = (
                f"Application maximum poll interval ({interval_ms}ms) exceeded by {over_ms:.0f}ms"
            )
            raise KafkaException(KafkaError(KafkaError._MAX_POLL_EXCEEDED, text))

    def begin_poll(self, now: float) -> None:
        """Accepts the records of the last poll in implicit mode (KIP-932, 3.6)."""
        self._collect(None, now, accept_rest=not self.config.explicit)

    def begin_commit_async(self, now: float) -> None:
        """Queues acknowledgements as `begin_commit` does, for a program that does not wait."""
        self._collect(None, now, accept_rest=not self.config.explicit)
        self.flush(now, may_hold=True)

    def begin_commit(self, now: float) -> CommitTicket:
        """Queues acknowledgements for a commit; implicit mode accepts the last poll's records."""
        ticket = CommitTicket()
        self._collect(ticket, now, accept_rest=not self.config.explicit)
        self.flush(now)
        return ticket

    def send_checkpoint(self, span: Span, data: bytes, ticket: CommitTicket, now: float) -> None:
        """Sends a checkpoint of one record, which stays with the application."""
        self._acks.drop_checkpoints(span)
        self._acks.add([AckRange(span, RENEW, checkpoint=data)], ticket, now)
        self.flush(now)

    def take(self, now: float, owner: object, limit: int | None = None) -> HandOut:
        """Hands out records, at most `max.poll.records`, or `limit`."""
        self.called_at = now
        turns = None
        if self.ordering in (KEY, PARTITION):
            back = (*self._acks.going_back(), *self.locks.failed_returns(now))
            turns = Turns(self.ordering, back, one_each=self.config.explicit)
            if self.config.explicit:
                # The poll may go on: records that it gave may still be released.
                for span in self.locks.in_flight:
                    turns.hold_back(span)
        most = self.config.max_poll_records if limit is None else limit
        hand_out, expired = self.locks.take(most, now, owner, turns)
        if expired:
            self._acks.add(expired, None, now)
        if hand_out.spans and self._busy_since is None:
            self._busy_since = now
        return hand_out

    def flush(self, now: float, *, polling: bool = False, may_hold: bool = False) -> None:
        """Sends due acknowledgements, and in a poll credit or a sign of life.

        With `may_hold` nothing is sent yet while acknowledgements wait for more (`held_until`).

        Nothing follows a leave: the coordinator ends the stream, and a message that meets its end
        makes an error of it.
        """
        self.held_until = math.inf
        if not self.link.is_up or self._leave_sent:
            return
        if may_hold and (until := self._may_hold_until(now)) > now:
            self.held_until = until
            return
        request = service_pb.ConsumeRequest()
        if polling:
            # A coordinator that goes down is promised nothing more.
            credit = None if self._is_draining else self._refill()
            if credit is not None:
                request.credit.CopyFrom(credit)
                self._polled_at = now
            elif self._is_waited_for or now - self._polled_at >= self._sign_every_s(now):
                request.polled = True
                self._polled_at = now
            self._is_waited_for = False
        self._send_with_acks(request, now)

    def _may_hold_until(self, now: float) -> float:
        """The time until which acknowledgements may be held; -inf = send them.

        Only while so much is at hand that the program is kept busy: nothing comes later for it.
        """
        is_busy = self._credit.buffered_records >= HOLD_AT_HAND
        if not is_busy or self._is_waited_for or self._is_draining or self._closing:
            return -math.inf
        return self._acks.held_until(now)

    @property
    def hand_back_unseen_at(self) -> float:
        """The time at which `hand_back_unseen` has something to do."""
        return self.locks.hand_back_at if self.link.is_up else math.inf

    def hand_back_unseen(self, now: float) -> None:
        """Hands back, uncounted, records that the application has not polled in half of their lock.

        The coordinator sends nothing more before the next poll.
        """
        if now < self.hand_back_unseen_at or self._leave_sent:
            return
        self._acks.add(self.locks.hand_back_due(now), None, now)
        self._is_waited_for = True
        self._send_with_acks(service_pb.ConsumeRequest(not_polling=True), now)

    def _refill(self) -> types_pb.Credit | None:
        return self._credit.refill()

    def _sign_every_s(self, now: float) -> float:
        """Seconds for which a poll with nothing to say may keep silent."""
        return self._polled_every_s

    def begin_close(self, now: float, within_s: float = math.inf) -> None:
        """Starts to leave (KIP-932): acknowledged records are sent, unseen ones go back.

        In implicit mode the records of the last poll are not accepted; the coordinator releases
        them, as it does what was not acknowledged in explicit mode.

        The leave itself follows when every acknowledgement has its answer: one that finds no owner,
        because coordinators are replaced at the same moment, is repeated while there are locks.
        `within_s` is the longest time that the caller waits for the end.
        """
        self._closing = True
        within_s = min(within_s, self.config.close_timeout_s)
        self._leave_by = now + min(_LEAVE_WAIT_S, within_s / 2)
        if self.config.explicit:
            self._collect(None, now, accept_rest=False)
        if self.link.is_up:
            self._give_back(lambda _: True, now)
            self._leave_if_settled(now)
            self.flush(now)

    @property
    def is_close_done(self) -> bool:
        """Whether a longer wait would change nothing."""
        if self._left or self._error is not None:
            return True
        waits_for_leave = self.link.is_up and self._leave_sent
        return not waits_for_leave and not self._acks.has_application_acks()

    def raise_error(self) -> None:
        """Raises, once, the KafkaException for what the coordinator refused."""
        error, self._error = self._error, None
        if error is not None:
            raise KafkaException(error)

    def _collect(self, ticket: CommitTicket | None, now: float, *, accept_rest: bool) -> None:
        ranges, lost = self.locks.collect(accept_rest=accept_rest)
        if self._busy_since is not None:
            self._busy_s += now - self._busy_since
            self._busy_since = now if self.locks.has_unacknowledged() else None
        if ranges:
            self._acks.add(ranges, ticket, now)
        for span in lost:
            error = KafkaError(KafkaError.INVALID_RECORD_STATE)
            self._report([AckOutcome(span.columns.key, [span], error)])
            if ticket is not None:
                ticket.note(span.sources(), error)

    def _give_back(self, unwanted: Callable[[PartitionKey], bool], now: float) -> None:
        back = self.locks.give_back(unwanted)
        if back:
            self._acks.add(back, None, now)

    # -- what comes in -------------------------------------------------------------------------

    def arrived(self, arrival: Arrival, now: float) -> None:
        """Reads what a stream, or a fetch of a token, has brought."""
        content = arrival.content
        if isinstance(content, Frame):
            self.received(arrival.generation, content, arrival.received_at)
        elif isinstance(content, StreamFailure):
            self.stream_ended(arrival.generation, content, now)
        else:
            self.token_came(content, now)

    def received(
        self,
        generation: int,
        frame: Frame,
        received_at: float,
    ) -> None:
        """Reads one message. An older stream's messages are ignored: its locks were compared."""
        if generation != self.link.generation:
            return
        # One look at all fields: most messages have one.
        said: dict[str, Any] = {field.name: value for field, value in frame.response.ListFields()}
        if "joined" in said:
            self._joined(said["joined"], received_at)
        if "batches" in said:
            self._batches(frame, received_at)
        for notice in said.get("taken_back", ()):
            self.locks.lose(taken_ranges(notice))
            ended = notice.reason == service_pb.TAKEN_BACK_REASON_LOCK_ENDED
            self._is_waited_for = self._is_waited_for or ended
        for result in said.get("results", ()):
            self._answered(result, received_at)
        if "assignment" in said:
            self._take_assignment(said["assignment"], received_at)
        for warning in said.get("lock_warnings", ()):
            place = f"{warning.partition.topic} [{warning.partition.partition}]"
            offsets = f"{warning.first_offset}..{warning.last_offset}"
            left = f"{warning.lock_remaining_ms} ms"
            self._note(logging.DEBUG, f"locks on {place} {offsets} end in {left}")
        if "drain" in said:
            self._draining(said["drain"], received_at)
        self._left = self._left or "left" in said

    def _take_assignment(self, assignment: service_pb.Assignment, now: float) -> None:
        self.assigned = {each.topic: list(each.partitions) for each in assignment.topics}
        self._keep_order(assignment.ordering)
        if assignment.unknown_topics:
            names = ", ".join(assignment.unknown_topics)
            self._note(logging.WARNING, f"topics that do not exist (yet): {names}")
        for topic in assignment.starts_at_end:
            if topic not in self._told_new:
                self._told_new.add(topic)
                text = starts_at_end(self.config.group_id, topic, self.link.address)
                self._note(logging.WARNING, text)
        for error in newly_refused(assignment.refused_topics, self._told_refused):
            self._note(logging.WARNING, error.str(), error)

    def _keep_order(self, ordering: str) -> None:
        self.ordering = ordering or self.ordering

    def _joined(self, joined: service_pb.Joined, now: float) -> None:
        self.link.joined(now)
        self.credentials.joined()
        self.lock_duration_ms = joined.lock_duration_ms
        self._keep_order(joined.ordering)
        if joined.lost:
            self.locks.lose(joined.lost)
        server = f"{joined.coordinator_id} (version {joined.server_version})"
        self._note(logging.DEBUG, f"joined coordinator {server} at {self.link.address}")

    def _batches(self, frame: Frame, received_at: float) -> None:
        unwanted = False
        for batch, contents in zip(frame.response.batches, frame.whole, strict=True):
            key = PartitionKey.of(batch.partition)
            problem = _problem_of_whole(batch) if contents else _problem_of(batch)
            if problem:
                text = f"malformed batch of {key.topic} [{key.partition}]: {problem}"
                self._error = KafkaError(KafkaError._BAD_MSG, text)
                continue
            columns = Columns(batch, key, received_at, contents)
            columns.holder = self._holder
            self.locks.receive(columns)
            unwanted = unwanted or self._is_unwanted(key)
        if unwanted:
            # The batch was on its way when the subscription changed, or when the drain began.
            self._give_back(self._is_unwanted, received_at)

    def _is_unwanted(self, key: PartitionKey) -> bool:
        going = self._closing or self._is_draining
        return going or self._is_paused(key) or key.served not in self.topics

    def _is_paused(self, key: PartitionKey) -> bool:
        """Whether a paused partition covers this one; redriven records may be of any partition."""
        topic, partition = key.home
        if partition < 0:
            return any(each == topic for each, _ in self.paused)
        return key.home in self.paused

    def _answered(self, result: service_pb.AcknowledgeResult, now: float) -> None:
        settlement = self._acks.answered(result, now)
        self.locks.settle_renewals(settlement.renewed, settlement.not_renewed)
        self.locks.keep_failed_returns(settlement.failed_returns, now)
        self._report(settlement.outcomes)
        self._leave_if_settled(now)

    def _draining(self, notice: service_pb.DrainNotice, received_at: float) -> None:
        """Prepares for the coordinator's drain: unseen records go back now, uncounted (design 9).

        Records that the application has stay with it: their locks move with their partitions,
        and the next coordinator sees them in the lock book.
        """
        self._drain_until = received_at + notice.grace_ms / 1000
        self._drain_addresses = list(filter(self._may_show_to, notice.addresses))
        self._give_back(lambda _: True, received_at)
        where = ", ".join(self._drain_addresses) or "the same address"
        text = f"coordinator {self.link.address} goes down; joining again at {where}"
        self._note(logging.DEBUG, text)

    @property
    def _is_draining(self) -> bool:
        return self._drain_until is not None

    def stream_ended(self, generation: int, failure: StreamFailure, now: float) -> None:
        """The stream broke or was ended; the locks stay, a new stream shows them (identity)."""
        if generation != self.link.generation or not self.link.is_up:
            return
        address, was_joined = self.link.address, self.link.phase is Phase.JOINED
        if not was_joined and failure.code == "RESOURCE_EXHAUSTED" and not failure.reason:
            # The join itself is more than this coordinator takes (limits.request.max.bytes).
            self._join_bytes = max(_JOIN_BYTES_LEAST, self._join_bytes // 2)
        was_draining, leave_sent = self._is_draining, self._leave_sent
        again = failure.is_unauthenticated and self.credentials.refused(now, was_joined=was_joined)
        error = self.link.failed(failure, now, again=again)
        self._without_stream()
        self._left = self._left or (leave_sent and not self._acks.has_application_acks())
        if was_draining and self._drain_addresses:
            # The coordinator went before the answers came, but said where to go.
            self.link.redirect(self._drain_addresses, now)
        if error is not None:
            self._error = error
        elif was_joined and not self._left and not was_draining:
            text = f"{describe(failure, address)}; joining again"
            self._note(logging.WARNING, text)

    def join_anew(self, now: float) -> None:
        """Ends the stream, because an exception has left a call half done.

        The coordinator takes back as unseen what the next join's lock book does not show, and
        acknowledgements that may not have been sent are sent again: so nothing is lost.
        """
        self.locks.recount(self._acks.ranges())
        if self.link.is_up:
            self._without_stream()
            self.link.redirect([], now)

    # -- credentials ---------------------------------------------------------------------------

    def set_plain_credentials(self, username: str, password: str, now: float) -> None:
        """Replaces user and password, from the next stream on."""
        self.credentials.set_plain(username, password)
        self.link.hurry(now)

    @property
    def fetch_token_at(self) -> float:
        """When the shell is to fetch a token; inf = it need not."""
        tokens = self.credentials.tokens
        return math.inf if tokens is None or not self._wants_stream() else tokens.fetch_at

    def token_came(self, outcome: TokenOutcome, now: float) -> None:
        """Notes how a fetch has ended. Without any token its failure is the next poll's error."""
        tokens = self.credentials.tokens
        if tokens is None:
            return
        tokens.ended(outcome, now)
        if isinstance(outcome, BearerToken):
            return
        error = token_error(outcome)
        holds = tokens.text(now) is not None
        if holds or error.retriable():
            what = "the old one serves until it ends" if holds else "another one is asked for"
            self._note(logging.WARNING, f"{error.str()}; {what}", error)
        else:
            self._error = error

    def show_new_token(self, now: float) -> None:
        """Shows the stream a token that came since it was opened, before the former one ends."""
        if self.link.is_up and not self._leave_sent and (new := self.credentials.take_new(now)):
            self._outbox.append(service_pb.ConsumeRequest(authorization=new))

    def _tell_slow_token(self, now: float) -> None:
        tokens = self.credentials.tokens
        assert tokens is not None
        waited_s = tokens.slow_since(now, self.config.connect_timeout_s)
        if waited_s is not None:
            text = f"no token: oauth_cb, or the identity provider, is at it for {waited_s:.0f} s"
            error = KafkaError(KafkaError._AUTHENTICATION, text, retriable=True)
            self._note(logging.ERROR, text, error)

    def _may_show_to(self, address: str) -> bool:
        """Whether credentials, if there are some, may go to an address that a coordinator names."""
        config = self.config
        return config.sasl is None or config.tls is not None or is_unix(address)

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Carries out what is due by time alone."""
        if self.link.give_up_opening(now):
            self._without_stream()
        self._drain(now)
        self._leave_if_settled(now)
        if not self._wants_stream():
            return
        if self.credentials.tokens is not None:
            self.show_new_token(now)
            self._tell_slow_token(now)
        # Without a token there is another cause, which is told.
        if self.credentials.header(now) is not None and (error := self.link.notice(now)):
            self._note(logging.ERROR, error.str(), error)

    def _drain(self, now: float) -> None:
        """Leaves a draining coordinator once everything was answered, or the time to wait is over.

        A closing consumer goes nowhere: its leave is carried out here, or the stream ends.
        """
        if self._drain_until is None or self._closing:
            return
        if now >= self._drain_until or self._acks.is_empty:
            self._without_stream()
            self.link.redirect(self._drain_addresses, now)

    def _without_stream(self) -> None:
        """Forgets the stream: nothing more comes on it, and what was sent may not have arrived."""
        self._drain_until = None
        self._acks.stream_lost()
        self._leave_sent = False

    def wake_at(self, now: float) -> float | None:
        """The next time at which `tick`, `connect` or `flush` has something to do, or None."""
        times = [self._drain_until]
        if self._wants_stream():
            times.append(self.link.wake_at())
        if self.link.is_up:
            times.append(self._acks.wake_at())
        if self._closing:
            times.append(self._leave_by)
        due = [at for at in times if at is not None and at > now]
        return min(due, default=None)

    def connect(self, now: float) -> Connection | None:
        """The stream to open now, or None."""
        if not self._wants_stream() or not self.link.may_open(now):
            return None
        authorization = self.credentials.header(now)
        if authorization is None:
            # The token that is fetched opens the stream.
            return None
        address = self.link.open(now)
        self.credentials.opened(authorization)
        self._outbox.clear()
        self._outbox.append(self._join_request(now))
        self._polled_at = now
        self._is_waited_for = False
        if not self.topics:
            # A join needs a topic; this member wants none any more, only to say its last word.
            nothing = service_pb.Subscription()
            self._outbox.append(service_pb.ConsumeRequest(subscription=nothing))
        self._leave_if_settled(now)
        self.flush(now)
        return Connection(address, self.link.generation, self.take_outbox(), authorization)

    def _join_request(self, now: float) -> service_pb.ConsumeRequest:
        config = self.config
        request = service_pb.ConsumeRequest()
        if self.paused:
            request.paused.CopyFrom(self._paused_partitions())
        request.join.CopyFrom(
            service_pb.Join(
                group_id=config.group_id,
                member_id=self.member_id,
                client_id=config.client_id,
                topics=self.topics or self._join_topics,
                acquire_mode=_ACQUIRE_MODES[config.acquire_mode],
                # 0 = not given: the coordinator learns how much this member works off.
                max_poll_records=self._asked_records if config.max_poll_given else 0,
                max_poll_interval_ms=config.max_poll_interval_ms,
                sdk_version=__version__,
                protocol_version=PROTOCOL_VERSION,
                rack_id=config.rack_id,
                join_number=self.link.generation,
                opens=whole.compressions() if config.record_batches else (),  # type: ignore[arg-type]
            )
        )
        room = self._join_bytes - request.ByteSize()
        book, left_out = self.locks.show(self._acks.ranges(), room)
        request.join.lock_book.extend(book)
        if left_out:
            text = f"{left_out} locks found no room in the join; their records come again"
            self._note(logging.WARNING, text)
        # Last, because records that the book had no room for left the buffer.
        request.join.credit.CopyFrom(self._credit.restart())
        return request

    def _wants_stream(self) -> bool:
        if self._left:
            return False
        return bool(self.topics and not self._closing) or self._acks.has_application_acks()

    # -- what goes out ------------------------------------------------------------------------

    def take_outbox(self) -> list[service_pb.ConsumeRequest]:
        out, self._outbox = self._outbox, []
        return out

    def take_outcomes(self) -> list[AckOutcome]:
        """Outcomes since the last call."""
        out = list(self.outcomes)
        self.outcomes.clear()
        return out

    def _leave_if_settled(self, now: float) -> None:
        if not self._closing or self._leave_sent or not self.link.is_up:
            return
        if not self._acks.has_application_acks() or now >= self._leave_by:
            self._leave(now)

    def _leave(self, now: float) -> None:
        self._leave_sent = True
        request = service_pb.ConsumeRequest(leave=True)
        held = self.locks.show_seen(self._acks.ranges(), self._join_bytes)
        if held is not None:
            # Deliveries on their way to this consumer go back uncounted.
            request.lock_book.held.extend(held)
            request.lock_book.SetInParent()
        self._send_with_acks(request, now)

    def _send_with_acks(self, last: service_pb.ConsumeRequest, now: float) -> None:
        """Sends all due acknowledgements; the last message carries `last` as well."""
        requests: list[service_pb.ConsumeRequest] = []
        while (due := self._acks.take(now)) is not None:
            requests.append(due)
        if requests:
            requests[-1].busy_us = round(self._busy_s * 1e6)
            self._busy_s = 0.0
            requests[-1].MergeFrom(last)
        elif last.ListFields():
            requests.append(last)
        self._outbox.extend(requests)

    def _paused_partitions(self) -> service_pb.PausedPartitions:
        return service_pb.PausedPartitions(
            partitions=[
                types_pb.TopicPartition(topic=topic, partition=partition)
                for topic, partition in sorted(self.paused)
            ]
        )

    def _report(self, outcomes: list[AckOutcome]) -> None:
        if self.reports_outcomes:
            self.outcomes.extend(outcomes)

    def _note(self, level: int, text: str, error: KafkaError | None = None) -> None:
        self.notices.append(Notice(level, text, error))


def _problem_of(batch: types_pb.RecordBatch) -> str:
    """Says which column has not an entry for each record; "" = none."""
    count, values = batch.record_count, len(batch.values)
    if not count or values != count:
        return f"{count} records, {values} values"
    for name, entries in (
        ("keys", len(batch.keys)),
        ("timestamps", len(batch.timestamps_ms)),
        ("offset deltas", len(batch.offset_deltas)),
    ):
        if entries not in (0, count):
            return f"{count} records, {entries} {name}"
    return ""


def _problem_of_whole(batch: types_pb.RecordBatch) -> str:
    """The same of whole batches, before anything is made for each of their records."""
    count, deltas = batch.record_count, len(batch.offset_deltas)
    if not 0 < count <= whole.RECORDS_MAX:
        return f"{count} records; at most {whole.RECORDS_MAX} come in one message"
    if deltas not in (0, count):
        return f"{count} records, {deltas} offset deltas"
    ranges = sum(max(0, each.last_offset - each.first_offset + 1) for each in batch.ranges)
    if not deltas and (ranges != count or batch.ranges[0].first_offset != batch.base_offset):
        return f"{count} records, {ranges} offsets in ranges"
    return "" if whole.HAS_BATCHES else "whole batches, which this member did not ask for"
