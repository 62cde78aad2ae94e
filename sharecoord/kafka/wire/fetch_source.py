"""A broker that partitions are read from: what is asked of it, on two connections at most.

`main` carries the long polls. A partition that is wanted while such a poll waits can not be added
to it; it goes to `quick`, whose polls are short, and with the next turn of `main` back to it.

The next request goes out before the sinks see the records of the last answer: what it needs to know
of them stands in the headers of their batches. At the end of the log it waits a little instead, so
that records which come one by one do not make a round each (decision 0055).
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import structlog
from kio.schema.errors import ErrorCode

from sharecoord.errors import KafkaUnavailableError, UnauthenticatedError, UnauthorizedError
from sharecoord.kafka.wire import fetch
from sharecoord.kafka.wire.broker import Broker
from sharecoord.kafka.wire.cluster import NO_LEADER, Cluster
from sharecoord.kafka.wire.connection import Connection
from sharecoord.kafka.wire.fetch import Found, Wanted
from sharecoord.kafka.wire.fetch_session import SESSION_ERRORS, FetchSession, Key
from sharecoord.kafka.wire.options import HEAD_BYTES, FetchOptions

log = structlog.get_logger(__name__)

QUICK_WAIT_S: Final = 0.05
"""Longest poll of `quick`: a partition that is wanted meanwhile waits so long at most."""

THROTTLE_MAX_S: Final = 60.0
"""Longest wait that a broker's quota can ask for at a time (KIP-219)."""

SOURCE_IDLE_S: Final = 10.0
"""A broker that nothing is read from keeps its connections for so long."""

OVERDUE_S: Final = 2.0
"""With an answer late by so much metadata is asked for: a broker that hangs may lead no more, long
before its request has timed out (`socket.timeout.ms`)."""

RESTS: Final = 2
"""At the end of a log a connection rests this many times as long as the process has worked since
records came before: the process works for a third of the time at most."""

RESTS_FOR_FEW: Final = 1
"""The same where few records came: they have a member's full attention, and gain more by coming
soon than by coming together."""

FEW_RECORDS: Final = 16
"""At most so many are few: some thousand in a second come with an answer each."""

REST_MAX_S: Final = 0.005
"""Longest such rest. An answer that took longer to come is followed by none: nothing would be
saved."""

busy_s = time.process_time
"""How long the process has worked, on all its threads."""

LOG_AGAIN_S: Final = 10.0
"""The same error of the same partition or broker is logged once in this time."""


class FetchSink(Protocol):
    """Listener to what is fetched of one partition. Calls come on the loop, in order of offset.

    Every call but `on_fetched` and `on_refused` ends the reading; the handle is closed by then.
    """

    def on_fetched(self, found: Found) -> int | None:
        """Whole batches; the last one may be cut, and stands in the next call as a whole.

        None come with the first answer at a log's end, and when that end moves.

        Returns:
            The offset to read on at, if it is not the one behind the last whole batch.
        """

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        """The log was cut below what was read: it agrees up to the end of this epoch (KIP-595)."""

    def on_out_of_range(self) -> None:
        """The log does not have the position."""

    def on_gone(self) -> None:
        """The partition is unknown, or the topic has another id now."""

    def on_refused(self, error: UnauthorizedError) -> None:
        """Kafka refuses the topic; it is asked for again, and again."""


class Said:
    """What was logged last, and when."""

    def __init__(self) -> None:
        self._what = ""
        self._at_s = -math.inf

    def is_news(self, what: str) -> bool:
        """Whether to log it."""
        now_s = asyncio.get_running_loop().time()
        if what == self._what and now_s - self._at_s < LOG_AGAIN_S:
            return False
        self._what, self._at_s = what, now_s
        return True


class Reads(Protocol):
    """Who reads partitions from brokers, as a broker and a partition see it."""

    cluster: Cluster
    options: FetchOptions
    committed: bool

    @property
    def answer_bytes_max(self) -> int:
        """How much a broker may send at a time."""

    def remove(self, fetching: Fetching) -> None:
        """Reads a partition no more."""

    def tidy(self, source: Source) -> None:
        """Lets go of a broker that nothing is read from."""

    def renew(self, fetchings: Iterable[Fetching]) -> None:
        """Asks for metadata, and reads these partitions on by what it says."""

    def look(self, fetchings: Iterable[Fetching]) -> None:
        """Asks for metadata; these partitions are read on meanwhile."""

    def take(self, fetching: Fetching, found: Found, sent_s: float) -> Callable[[], None] | None:
        """Takes in what a broker says of a partition; returns what is to be told to its sink."""


class Fetching:
    """The handle of one partition that is read."""

    def __init__(
        self,
        fetcher: Reads,
        place: tuple[str, int],
        offset: int,
        last_epoch: int,
        sink: FetchSink,
    ) -> None:
        self.topic, self.partition = place
        self.position = offset
        """What is asked for next: all below it was given to the sink, or is about to be."""
        self.last_epoch = last_epoch
        self.asked_s = -math.inf
        """Loop time of the request that brought what the sink has in hand: the broker read the log
        for it afterwards."""
        self.topic_id: bytes | None = None
        """The topic's id since the partition was first found; empty = the cluster has none."""
        self.sink = sink
        self.closed = False
        self.wanted = True
        self.held = False
        """Whether it waits for a time, or for metadata."""
        self.timer: asyncio.TimerHandle | None = None
        self.leader_epoch = fetch.NO_EPOCH
        self.end = -1
        """Where the records end that the broker would give, as it said last."""
        self.batch_bytes = 0
        """Length of a batch that did not fit into an answer."""
        self.replica = NO_LEADER
        """Where to read by the leader's advice; -1 = at the leader."""
        self.replica_until_s = -math.inf
        self.unknown_since_s: float | None = None
        self.source: Source | None = None
        self.line: Line | None = None
        self.key: Key = (self.topic, self.partition)
        self.asked_in = 0
        """The line's request that asked for this position first."""
        self.reached_end_s = -math.inf
        self.said = Said()
        self._fetcher = fetcher

    @property
    def drained_s(self) -> float:
        """Loop time at which the broker last had nothing more; see `ports.LogReading`."""
        line = self.line
        if line is None or not 0 <= self.end <= self.position or self.asked_in > line.answered:
            return self.reached_end_s
        return max(self.reached_end_s, line.answered_sent_s)

    def want_more(self, *, wanted: bool) -> None:
        """Back-pressure: after False, what was asked for already still comes."""
        if wanted != self.wanted and not self.closed:
            self.wanted = wanted
            self.changed()

    def advance(self, offset: int, last_epoch: int) -> None:
        """Reads on at an offset; `last_epoch` is that of the record before, -1 = not known."""
        if self.closed:
            return
        if offset != self.position:
            self.position, self.batch_bytes = offset, 0
            self.last_epoch = last_epoch
            self.changed()
        elif last_epoch != fetch.NO_EPOCH:
            self.last_epoch = last_epoch

    def close(self) -> None:
        """Stops; the sink is not called again."""
        if not self.closed:
            self._fetcher.remove(self)

    # -- for the fetcher ----------------------------------------------------------------------

    def changed(self) -> None:
        """Lets the broker's next request see what this partition wants now."""
        if self.source is not None:
            self.source.changed[self] = None
            self.source.wake()

    def leave_line(self) -> None:
        """Is asked for no more; what is under way is not taken."""
        if self.line is not None:
            self.reached_end_s = self.drained_s
            self.line.session.drop(self.key)
            self.line = None

    def move(self, source: Source | None) -> None:
        """Is read at another broker from now on."""
        if self.source is not source:
            self.leave_line()
            if self.source is not None:
                self.source.remove(self)
            self.source = source
        if source is not None:
            source.add(self)
        self.changed()

    def hold(self, delay_s: float) -> None:
        """Asks for nothing for a while."""
        if self.closed:
            return
        self.held = True
        if self.timer is not None:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(delay_s, self._resume)

    def release(self) -> None:
        """May be asked for again."""
        self.held = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _resume(self) -> None:
        self.release()
        if self.source is None:
            self._fetcher.renew([self])
        else:
            self.changed()

    def asks_for(self, options: FetchOptions) -> Wanted:
        """What the next request says."""
        return Wanted(
            self.partition,
            self.position,
            self.leader_epoch,
            # A follower may lag behind what was read, which would look like a log that was cut.
            self.last_epoch if self.replica == NO_LEADER else fetch.NO_EPOCH,
            max(options.partition_bytes, self.batch_bytes),
        )


class Line:
    """One connection to a broker, with its session: one request at a time."""

    def __init__(self, source: Source, name: str) -> None:
        self.session: FetchSession[Fetching] = FetchSession()
        self.is_waiting = False
        """Whether a request is under way."""
        self.was_quiet = False
        """Whether the last answer had nothing in it."""
        self.has_more = False
        """Whether the broker had more than it sent with the last answer."""
        self.sent = 0
        self.answered = 0
        """Requests that were sent, and the last one that was answered."""
        self.answered_sent_s = -math.inf
        self._source = source
        self._name = name
        self._sent_s = -math.inf
        self._took_s = math.inf
        """How long the last answer took."""
        self._busy_s = 0.0
        """How long the process had worked when records came before."""
        self.came = 0
        """How many offsets the last answer went on by."""
        self._overdue: asyncio.TimerHandle | None = None
        self._broker: Broker | None = None
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it goes on by itself."""
        return self._task is not None

    def start(self) -> None:
        """Asks, as long as there is something to ask for."""
        self._task = asyncio.create_task(self._run(), name=f"sharecoord-fetch-{self._name}")

    async def _run(self) -> None:
        calls: list[Callable[[], None]] = []
        try:
            while True:
                if self._connection is not None and not self._connection.is_open:
                    # It may take long to be there again: what came before does not wait for it.
                    _tell(calls)
                told = bool(calls)
                if told and (rest_s := self._rest_s()):
                    _tell(calls)
                    await asyncio.sleep(rest_s)
                answer = await self._ask()
                _tell(calls)
                if answer is not None:
                    calls = await self._answer(answer)
                elif not told:
                    break
        except Exception as error:
            log.exception("fetching failed; the broker's partitions start again")
            _tell(calls)
            self._fail(KafkaUnavailableError(f"an error of ours: {error!r}"))
        self._task = None
        self._source.wake()

    def _rest_s(self) -> float:
        """How long to wait before the next request."""
        before_s, self._busy_s = self._busy_s, busy_s()
        if self.has_more or self._took_s >= REST_MAX_S:
            return 0.0
        rests = RESTS_FOR_FEW if self.came <= FEW_RECORDS else RESTS
        return min(rests * (self._busy_s - before_s), REST_MAX_S)

    async def _ask(self) -> asyncio.Task[memoryview] | None:
        """Sends the next request; None = there is nothing to ask for at present."""
        source = self._source
        if not source.has_work(self):
            return None
        try:
            broker = await self._connected()
            version = source.version(broker)
        except (KafkaUnavailableError, UnauthenticatedError) as error:
            self._fail(error)
            return None
        body = source.composed(self, version)
        if body is None:
            return None
        self.is_waiting = True
        self.sent += 1
        loop = asyncio.get_running_loop()
        self._sent_s = loop.time()
        options = source.fetcher.options
        self._overdue = loop.call_later(options.wait_s + OVERDUE_S, self._is_overdue)
        call = broker.call_raw(
            fetch.KEY, version, body, timeout_s=options.timeout_s + options.wait_s
        )
        answer = asyncio.create_task(call, name=f"sharecoord-fetch-{self._name}-answer")
        answer.add_done_callback(_seen)
        # It goes out now, before anything else is done.
        await asyncio.sleep(0)
        return answer

    def _in_time(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _is_overdue(self) -> None:
        source = self._source
        source.fetcher.look(source.fetchings)
        self._overdue = asyncio.get_running_loop().call_later(OVERDUE_S, self._is_overdue)

    async def _connected(self) -> Broker:
        cluster, node = self._source.fetcher.cluster, self._source.node
        known = cluster.nodes.get(node)
        if self._broker is not None and (known is None or known.endpoint != self._broker.endpoint):
            self._broker.close()
            self._broker = None
        if self._broker is None:
            self._broker = cluster.connect(node)
        self._connection = await self._broker.connected()
        return self._broker

    async def _answer(self, call: asyncio.Task[memoryview]) -> list[Callable[[], None]]:
        """Waits for the answer; returns what is to be told to sinks."""
        try:
            found = fetch.answer(self.session.version, await call)
        except (KafkaUnavailableError, UnauthenticatedError) as error:
            self._fail(error)
            return []
        finally:
            call.cancel()
            self._in_time()
            self.is_waiting = False
            if self._connection is not None:
                self._connection.taken()
        self.was_quiet = not found.found
        self._took_s = asyncio.get_running_loop().time() - self._sent_s
        calls = self._source.taken(self, found, self._sent_s)
        if found.error == ErrorCode.none and (found.found or not found.throttle_ms):
            # A broker that is at its quota has not looked (KIP-219).
            self.answered, self.answered_sent_s = self.sent, self._sent_s
        return calls

    def _fail(self, error: KafkaUnavailableError | UnauthenticatedError) -> None:
        self.is_waiting = False
        self.leave()
        self._source.failed(error)

    def leave(self) -> None:
        """Begins another session with the next request."""
        for fetching in self.session.renew():
            fetching.reached_end_s = fetching.drained_s
            fetching.line = None
            self._source.changed[fetching] = None

    async def close(self) -> None:
        """Ends the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._in_time()
        if self._broker is not None:
            self._broker.close()


class Source:
    """A broker that partitions are read from."""

    def __init__(self, fetcher: Reads, node: int) -> None:
        self.fetcher = fetcher
        self.node = node
        self.fetchings: dict[Fetching, None] = {}
        self.changed: dict[Fetching, None] = {}
        """Partitions that want something else than what the last requests said."""
        self._has_ids: bool | None = None
        """Whether all topics have an id; None = to be looked at again."""
        self.large: dict[Fetching, None] = {}
        """Partitions whose next batch did not fit into an answer."""
        self._main = Line(self, f"{node}-main")
        self._quick = Line(self, f"{node}-quick")
        self._resume_at_s = -math.inf
        """Nothing is sent before: the broker is away, or has asked to wait."""
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._session_errors = 0
        self._said = Said()
        self._closed = False

    @property
    def lines(self) -> tuple[Line, Line]:
        """Its two connections."""
        return self._main, self._quick

    def add(self, fetching: Fetching) -> None:
        """Reads a partition; its topic may have another id than before."""
        self.fetchings[fetching] = None
        self._has_ids = None

    def remove(self, fetching: Fetching) -> None:
        """Reads a partition no more."""
        self.fetchings.pop(fetching, None)
        self._has_ids = None
        self.changed.pop(fetching, None)
        self.large.pop(fetching, None)
        if not self.fetchings:
            asyncio.get_running_loop().call_later(SOURCE_IDLE_S, self.fetcher.tidy, self)

    def wake(self) -> None:
        """Asks for what is wanted, on a connection that is free."""
        for line in self.lines:
            if not line.is_running and self.has_work(line):
                line.start()

    def has_work(self, line: Line) -> bool:
        """Whether a request on this connection could ask for something."""
        if self._closed or asyncio.get_running_loop().time() < self._resume_at_s:
            return False
        main, quick = self.lines
        if line is quick:
            return main.is_waiting and (
                bool(quick.session.entries)
                or any(each.line is not main and self._may(each) for each in self.changed)
            )
        if quick.is_waiting:
            # With nothing on either side, `main` waits for `quick`, and takes over what it has.
            return not (main.was_quiet and main.session.entries) and (
                bool(main.session.entries) or any(each.line is not quick for each in self.changed)
            )
        return bool(main.session.entries or quick.session.entries or self.changed)

    def _may(self, fetching: Fetching) -> bool:
        return fetching.wanted and not (fetching.closed or fetching.held)

    def version(self, broker: Broker) -> int:
        """The version of Fetch: by ids if the broker can and all topics have one.

        Raises:
            KafkaUnavailableError: The broker has neither of the versions that are known here.
        """
        low, high = broker.versions.get(fetch.KEY, (0, 0))
        if low <= fetch.BY_ID <= high:
            if self._has_ids is None:
                self._has_ids = all(each.topic_id for each in self.fetchings)
            if self._has_ids:
                return fetch.BY_ID
        if low <= fetch.BY_NAME <= high:
            return fetch.BY_NAME
        raise KafkaUnavailableError(
            f"broker {self.node} has versions {low} to {high} of Fetch, and not {fetch.BY_NAME}:"
            " Kafka 2.8 or newer is needed; kafka.reader=librdkafka may read it"
        )

    def composed(self, line: Line, version: int) -> bytes | None:
        """The next request of a connection; None = nothing is to be asked for on it."""
        main, quick = self.lines
        if line.session.version != version:
            line.session.version = version
            line.leave()
        if line is main and not quick.is_waiting:
            self.changed.update(dict.fromkeys(quick.session.entries.values()))
        self._take_over(line, quick if line is main else main)
        if not line.session.entries or (line is quick and not main.is_waiting):
            return None
        options = self.fetcher.options
        wait_s = options.wait_s if line is main else min(options.wait_s, QUICK_WAIT_S)
        return line.session.request(
            max_wait_ms=round(wait_s * 1000),
            min_bytes=options.min_bytes,
            max_bytes=self._answer_bytes(),
            committed=self.fetcher.committed,
            rack=options.rack,
        )

    def _answer_bytes(self) -> int:
        """How large an answer may be: a batch that did not fit has room beside the others."""
        large = max((each.batch_bytes for each in self.large), default=0)
        fetcher = self.fetcher
        return min(fetcher.answer_bytes_max + large, fetcher.options.answer_bytes_max - HEAD_BYTES)

    def _take_over(self, line: Line, other: Line) -> None:
        """Lets a connection's session have what is wanted and not being asked for on the other."""
        options, session = self.fetcher.options, line.session
        by_id = session.version == fetch.BY_ID
        later: dict[Fetching, None] = {}
        for each in self.changed:
            if each.line is other and other.is_waiting:
                later[each] = None
            elif not self._may(each):
                each.leave_line()
            else:
                if each.line is not line:
                    each.leave_line()
                    each.line = line
                    name = each.topic_id if by_id and each.topic_id else each.topic
                    each.key = (name, each.partition)
                if session.put(each.key, each.asks_for(options), each):
                    each.asked_in = line.sent + 1
        self.changed = later

    def taken(self, line: Line, answer: fetch.Answer, sent_s: float) -> list[Callable[[], None]]:
        """Takes in an answer; returns what is to be told to sinks."""
        if answer.throttle_ms > 0:
            self._pause(min(answer.throttle_ms / 1000, THROTTLE_MAX_S))
        if answer.error != ErrorCode.none:
            self._session_failed(line, answer.error)
            return []
        self._failures = self._session_errors = 0
        session = line.session
        session.answered(answer.session_id)
        calls: list[Callable[[], None]] = []
        line.has_more, line.came = False, 0
        for found in answer.found:
            key = (found.topic, found.partition)
            fetching = session.entries.get(key)
            if fetching is None:
                continue
            self.changed[fetching] = None
            asked = session.asked[key].offset
            if fetching.position == asked:
                if len(found.records):
                    session.to_end(key)
                if (call := self.fetcher.take(fetching, found, sent_s)) is not None:
                    calls.append(call)
                line.has_more |= fetching.position < fetching.end
                line.came += fetching.position - asked
        return calls

    def _session_failed(self, line: Line, code: int) -> None:
        line.leave()
        if code == ErrorCode.fetch_session_id_not_found:
            line.session.forget_id()
        self._session_errors += 1
        if code in (ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id):
            self.fetcher.renew(self.fetchings)
        elif code not in SESSION_ERRORS or self._session_errors > 1:
            if self._said.is_news(name_of(code)):
                log.warning("broker refuses to be read", broker=self.node, code=name_of(code))
            self._pause(self.fetcher.options.error_backoff_s)

    def failed(self, error: KafkaUnavailableError | UnauthenticatedError) -> None:
        """Waits before the next attempt; by then the partitions may be elsewhere."""
        options = self.fetcher.cluster.options
        backoff_s = options.retry_s * 2 ** min(self._failures, 10)
        self._failures += 1
        self._pause(min(backoff_s, options.retry_max_s) * random.uniform(0.8, 1.2))
        if self._said.is_news(error.message):
            log.warning("broker can not be read", broker=self.node, why=error.message)
        self.fetcher.renew(self.fetchings)

    def _pause(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._resume_at_s = max(self._resume_at_s, loop.time() + delay_s)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._resume_at_s, self._resume)

    def _resume(self) -> None:
        self._resume_at_s = -math.inf
        self.wake()

    async def close(self) -> None:
        """Ends its connections."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for line in self.lines:
            await line.close()


def name_of(code: int) -> str:
    """The name of Kafka's error, or its number."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"error {code}"


def _tell(calls: list[Callable[[], None]]) -> None:
    """Tells sinks, each once; one that fails keeps the others from nothing."""
    while calls:
        call = calls.pop(0)
        try:
            call()
        except Exception:
            log.exception("a listener to fetched records failed")


def _seen(task: asyncio.Task[memoryview]) -> None:
    """A failure that nobody waits for any more is nobody's."""
    if not task.cancelled():
        task.exception()
