"""The cluster: its brokers, and who leads which partition; questions to leaders about offsets.

Metadata v11, ListOffsets v6 and OffsetForLeaderEpoch v4 are spoken by all brokers from 2.8 to 4.4.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v6.response import ListOffsetsResponse
from kio.schema.metadata.v11.response import MetadataResponse, MetadataResponseTopic
from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse

from sharecoord.errors import (
    KafkaUnavailableError,
    OffsetOutOfRangeError,
    SharecoordError,
    UnauthenticatedError,
    UnknownTopicOrPartitionError,
)
from sharecoord.kafka.refusals import refused
from sharecoord.kafka.wire.broker import Broker, BrokerOptions
from sharecoord.kafka.wire.connection import Endpoint
from sharecoord.kafka.wire.keys import Settings
from sharecoord.kafka.wire.options import ClusterOptions
from sharecoord.kafka.wire.requests import (
    epoch_request,
    list_request,
    metadata_request,
    place_of,
    without_doubles,
)
from sharecoord.kafka.wire.security import Security
from sharecoord.ports import FoundOffset, OffsetQuery

log = structlog.get_logger(__name__)

R = TypeVar("R")
Q = TypeVar("Q")

STAGGER_S: Final = 1.0
"""A broker that did not answer for so long is asked beside the next one."""

NO_TOPIC_ID: Final = b""

NO_LEADER: Final = -1

GONE: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.invalid_topic_exception,
    }
)


class Node(NamedTuple):
    """A broker as the metadata has it."""

    endpoint: Endpoint
    rack: str | None


class Leader(NamedTuple):
    """Who leads a partition."""

    node: int
    """-1 = nobody at present."""
    epoch: int


class Topic(NamedTuple):
    """A topic as the metadata has it."""

    topic_id: bytes
    """16 bytes; empty when the cluster has none."""
    error: ErrorCode
    leaders: Mapping[int, Leader]


UNCONFIRMED: Final = Topic(NO_TOPIC_ID, ErrorCode.not_controller, {})
"""A topic of which nobody could tell whether it exists."""


class EpochEnd(NamedTuple):
    """Where an epoch of a partition's leaders ends."""

    leader_epoch: int
    """The asked epoch or, if it has no records, the next lower one that has some; -1 = none."""
    end_offset: int


class _Round(NamedTuple):
    """A question for metadata that is about to be asked."""

    names: set[str]
    asked: asyncio.Task[None]


class Cluster:
    """What is known of a cluster, and the connections to ask it."""

    def __init__(self, settings: Settings, security: Security) -> None:
        """Connects to nobody yet.

        Raises:
            InvalidConfigError: A setting can not be used.
        """
        self.options = ClusterOptions.of(settings)
        self.topics: dict[str, Topic] = {}
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller = NO_LEADER
        """Id of the controller; without ZooKeeper any broker is said to be the one to ask."""
        self._security = security
        self._broker_options = BrokerOptions.of(settings)
        self._brokers: dict[Endpoint, Broker] = {}
        """For questions; those that read have connections of their own."""
        self._reading: WeakSet[Broker] = WeakSet()
        """Connections of those that read."""
        self._answered: Broker | None = None
        """Who answered last: is asked first."""
        self._watched: Counter[str] = Counter()
        self._listeners: dict[Callable[[], None], None] = {}
        self._round: _Round | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._hurry = asyncio.Event()
        """A question has a topic in it that was never asked for: it does not wait."""
        self._spaced_s = 0.0
        self._asked_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # -- metadata -----------------------------------------------------------------------------

    def listen(self, listener: Callable[[], None]) -> Callable[[], object]:
        """Calls `listener` after each change of metadata, until what is returned is called."""
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None)

    def watch(self, topic: str) -> None:
        """Keeps the metadata of a topic fresh, until `unwatch`."""
        self._watched[topic] += 1
        if self._timer is None and not self._closed:
            self._refresh_later()

    def unwatch(self, topic: str) -> None:
        """Ends one `watch`."""
        self._watched[topic] -= 1
        if self._watched[topic] <= 0:
            del self._watched[topic]
            self.topics.pop(topic, None)

    async def refresh(self, topics: Iterable[str] = ()) -> None:
        """Asks for metadata of these topics, in one request with all who ask meanwhile.

        Questions that come one after the other wait between two (`retry.backoff.ms`, doubling to
        `retry.backoff.max.ms`), unless a topic is asked for that is not known.

        Raises:
            KafkaUnavailableError: No broker answers.
            UnauthenticatedError: No broker lets us in.
        """
        if self._round is None:
            task = asyncio.create_task(self._ask(), name="sharecoord-metadata")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            task.add_done_callback(_seen)
            self._round = _Round(set(), task)
        waits = self._round
        waits.names.update(topics)
        if any(name not in self.topics for name in waits.names):
            self._hurry.set()
        await asyncio.shield(waits.asked)

    def learn_nodes(self, nodes: Mapping[int, Node]) -> None:
        """Takes in which brokers there are, as an answer said that was asked for by others."""
        if nodes and nodes != self.nodes:
            self.nodes = dict(nodes)
            self._forget_old_brokers()
            self._tell()

    def learn_leader(self, topic: str, partition: int, leader: Leader) -> bool:
        """Takes in what a broker says of a partition's leader; returns whether that is news."""
        known = self.topics.get(topic)
        if known is None or leader.node not in self.nodes:
            return False
        old = known.leaders.get(partition)
        if old is not None and old.epoch >= leader.epoch:
            return False
        leaders = {**known.leaders, partition: leader}
        self.topics[topic] = known._replace(leaders=leaders)
        return True

    async def _ask(self) -> None:
        async with self._turn:
            await self._wait_between()
            assert self._round is not None, "made before this task"
            names, self._round = self._round.names, None
            self._hurry.clear()
            try:
                answer = await self._any_answer(metadata_request(names), MetadataResponse)
            finally:
                self._asked_s = asyncio.get_running_loop().time()
            self._learn(answer, names)
            self._tell()

    async def _wait_between(self) -> None:
        """Waits while questions follow each other too fast."""
        options = self.options
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_s > 2 * options.retry_max_s:
            self._spaced_s = 0.0
            return
        self._spaced_s = min(options.retry_max_s, max(options.retry_s, 2 * self._spaced_s))
        wait_s = self._asked_s + self._spaced_s * random.uniform(0.8, 1.2) - now_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait_s, 0.0)):
                await self._hurry.wait()

    async def _any_answer(self, request: Any, response: type[R]) -> R:
        """The answer of the broker that is first; one that is slow does not hold up the others."""
        waiting = deque(self.candidates())
        running: dict[asyncio.Task[R], Broker] = {}
        why: BaseException = KafkaUnavailableError("Kafka does not answer", retry_after_ms=500)
        try:
            while waiting or running:
                if waiting:
                    broker = waiting.popleft()
                    running[asyncio.create_task(broker.call(request, response))] = broker
                done, _ = await asyncio.wait(
                    running,
                    timeout=STAGGER_S if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    broker = running.pop(task)
                    error = task.exception()
                    if error is None:
                        self._answered = broker
                        return task.result()
                    if not isinstance(error, KafkaUnavailableError | UnauthenticatedError):
                        raise error
                    why = error
            raise why
        finally:
            for task in running:
                task.cancel()
                task.add_done_callback(_seen)

    def candidates(self) -> list[Broker]:
        """Who may be asked for metadata: who answered last, then the others by chance."""
        nodes = [node.endpoint for node in self.nodes.values()]
        first = [each for each in self.options.servers if each not in nodes]
        random.shuffle(nodes)
        random.shuffle(first)
        found = [self._broker(endpoint) for endpoint in (*nodes, *first)]
        found.sort(key=lambda broker: broker is not self._answered)
        return found

    async def names(self) -> list[str]:
        """All topics that a broker shows us, sorted.

        Raises:
            KafkaUnavailableError: No broker answers.
            UnauthenticatedError: No broker lets us in.
        """
        answer = await self._any_answer(metadata_request(None), MetadataResponse)
        return sorted(
            topic.name
            for topic in answer.topics
            if topic.name is not None and topic.error_code not in GONE
        )

    async def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        """Topics as a broker has them after this call; the question waits for no other.

        A broker that has just started may not have heard of a topic yet. So what the first one does
        not know is asked of the controller, too, before it is said to be unknown.

        Raises:
            KafkaUnavailableError: No broker answers.
            UnauthenticatedError: No broker lets us in.
        """
        names = set(topics)
        found = self._described(
            await self._any_answer(metadata_request(names), MetadataResponse), names
        )
        doubted = {name for name in names if found[name].error in GONE}
        # Some emulations of Kafka have no controller.
        first = next(iter(self.nodes), NO_LEADER)
        node = self.controller if self.controller in self.nodes else first
        if doubted and not self._has_answered(node):
            try:
                broker = self._broker(self._endpoint(node))
                answer = await broker.call(metadata_request(doubted), MetadataResponse)
                found |= self._described(answer, doubted)
            except (KafkaUnavailableError, UnauthenticatedError):
                found |= dict.fromkeys(doubted, UNCONFIRMED)
        return found

    def _has_answered(self, node: int) -> bool:
        found = self.nodes.get(node)
        return found is not None and self._answered is self._brokers.get(found.endpoint)

    def _described(self, answer: MetadataResponse, names: set[str]) -> dict[str, Topic]:
        """The topics of an answer; listeners hear of it when something is new."""
        found = dict.fromkeys(names, UNCONFIRMED)
        if answer.brokers:
            # A broker that knows of none, not of itself, knows nothing yet.
            known = {topic.name: topic for topic in answer.topics if topic.name in names}
            found |= {name: _topic(topic, None) for name, topic in known.items()}
        before = self.nodes, {name: self.topics[name] for name in names & self.topics.keys()}
        self._learn(answer, set(before[1]))
        if before != (self.nodes, {name: self.topics[name] for name in before[1]}):
            self._tell()
        return found

    def _learn(self, answer: MetadataResponse, names: set[str]) -> None:
        if answer.cluster_id is not None:
            self.cluster_id = answer.cluster_id
        if answer.brokers:
            self.nodes = {
                int(each.node_id): Node(Endpoint(each.host, int(each.port)), each.rack)
                for each in answer.brokers
            }
            self.controller = int(answer.controller_id)
        self._forget_old_brokers()
        for topic in answer.topics:
            if topic.name is not None and topic.name in names:
                self.topics[topic.name] = _topic(topic, self.topics.get(topic.name))

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _forget_old_brokers(self) -> None:
        known = {node.endpoint for node in self.nodes.values()} | set(self.options.servers)
        for endpoint in self._brokers.keys() - known:
            self._brokers.pop(endpoint).close()

    def _refresh_later(self) -> None:
        """Asks for all watched topics from time to time, as long as there are some."""
        delay_s = self.options.refresh_s * random.uniform(0.8, 1.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._refresh_now)

    def _refresh_now(self) -> None:
        self._timer = None
        for name in self.topics.keys() - self._watched.keys():
            del self.topics[name]
        if self._watched and not self._closed:
            asyncio.create_task(self.refresh(self._watched)).add_done_callback(_seen)
            self._refresh_later()

    # -- brokers ------------------------------------------------------------------------------

    def connect(self, node: int) -> Broker:
        """A connection of its own to a broker; who asks for it closes it.

        Raises:
            KafkaUnavailableError: The cluster has no such broker, as far as is known.
        """
        broker = self._made(self._endpoint(node))
        self._reading.add(broker)
        return broker

    def shared(self, node: int) -> Broker:
        """The connection to a broker for questions, which all use.

        Raises:
            KafkaUnavailableError: The cluster has no such broker, as far as is known.
        """
        return self._broker(self._endpoint(node))

    @property
    def receiving_bytes(self) -> int:
        """Memory of records that are on their way from brokers."""
        return sum(broker.receiving_bytes for broker in self._reading)

    def _endpoint(self, node: int) -> Endpoint:
        found = self.nodes.get(node)
        if found is None:
            raise KafkaUnavailableError(f"broker {node} is not known", retry_after_ms=500)
        return found.endpoint

    def _broker(self, endpoint: Endpoint) -> Broker:
        if endpoint not in self._brokers:
            self._brokers[endpoint] = self._made(endpoint)
        return self._brokers[endpoint]

    def _made(self, endpoint: Endpoint) -> Broker:
        return Broker(endpoint, self._security, self._broker_options)

    # -- questions to leaders -----------------------------------------------------------------

    async def list_offsets(
        self, queries: Iterable[OffsetQuery], *, committed: bool, timeout_s: float
    ) -> dict[OffsetQuery, FoundOffset | SharecoordError]:
        """The offsets of times and of both ends of logs; each query is answered by itself.

        Raises:
            KafkaUnavailableError: No broker answers a question for metadata.
            UnauthenticatedError: No broker lets us in.
        """

        async def ask(broker: Broker, some: Sequence[tuple[OffsetQuery, int]]) -> dict[Any, Any]:
            found: dict[OffsetQuery, Any] = {}
            for part in without_doubles(some):
                request = list_request(part, committed=committed)
                answer = await broker.call(request, ListOffsetsResponse)
                by_place = {(query.topic, query.partition): query for query, _ in part}
                for topic in answer.topics:
                    for each in topic.partitions:
                        query = by_place.get((topic.name, each.partition_index))
                        if query is not None:
                            spot = FoundOffset(each.offset, each.timestamp, each.leader_epoch)
                            found[query] = each.error_code or spot
            return found

        return await self._ask_leaders(queries, ask, timeout_s)

    async def end_of_epochs(
        self, epochs: Mapping[tuple[str, int], int], *, timeout_s: float
    ) -> dict[tuple[str, int], EpochEnd | SharecoordError]:
        """Where the epochs of these partitions' leaders end; each one is answered by itself.

        Raises:
            KafkaUnavailableError: No broker answers a question for metadata.
            UnauthenticatedError: No broker lets us in.
        """

        async def ask(
            broker: Broker, some: Sequence[tuple[tuple[str, int], int]]
        ) -> dict[Any, Any]:
            request = epoch_request([(place, epoch, epochs[place]) for place, epoch in some])
            answer = await broker.call(request, OffsetForLeaderEpochResponse)
            return {
                (topic.topic, each.partition): each.error_code
                or EpochEnd(each.leader_epoch, each.end_offset)
                for topic in answer.topics
                for each in topic.partitions
            }

        return await self._ask_leaders(epochs, ask, timeout_s)

    async def _ask_leaders(
        self,
        places: Iterable[Q],
        ask: Callable[[Broker, Sequence[tuple[Q, int]]], Awaitable[dict[Q, Any]]],
        timeout_s: float,
    ) -> dict[Q, Any]:
        """Asks the leader of each place; after a change of leaders again, while there is time."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        done: dict[Q, Any] = {}
        left: dict[Q, SharecoordError] = dict.fromkeys(
            places, KafkaUnavailableError("no leader is known", retry_after_ms=500)
        )
        unknown = {place_of(each)[0] for each in left} - self.topics.keys()
        while True:
            if unknown:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline_s):
                        await self.refresh(unknown)
            # A leader that hangs has half of the time: the rest is for the one that follows it.
            ask_until_s = min(deadline_s, loop.time() + timeout_s / 2)
            answers = await self._ask_once(left, ask, ask_until_s)
            for each, answer in answers.items():
                error = _error(each, answer) if isinstance(answer, ErrorCode) else answer
                # Metadata may be old: of a topic that was made again on other brokers.
                is_doubted = answer in GONE and place_of(each)[0] not in unknown
                if is_doubted or isinstance(error, KafkaUnavailableError):
                    left[each] = error
                else:
                    done[each] = error
                    left.pop(each, None)
            if not left or loop.time() >= deadline_s:
                return {**done, **left}
            unknown = {place_of(each)[0] for each in left}

    async def _ask_once(
        self,
        places: Iterable[Q],
        ask: Callable[[Broker, Sequence[tuple[Q, int]]], Awaitable[dict[Q, Any]]],
        deadline_s: float,
    ) -> dict[Q, Any]:
        """The answer of each place's leader, an error of ours, or Kafka's code of one."""
        answers: dict[Q, Any] = {}
        by_node: dict[int, list[tuple[Q, int]]] = {}
        for each in places:
            leader = self._leader(each)
            if isinstance(leader, ErrorCode):
                answers[each] = leader
            else:
                by_node.setdefault(leader.node, []).append((each, leader.epoch))

        async def at(node: int, some: list[tuple[Q, int]]) -> None:
            try:
                async with asyncio.timeout_at(deadline_s):
                    found = await ask(self._broker(self._endpoint(node)), some)
            except TimeoutError:
                late = KafkaUnavailableError(f"broker {node} did not answer", retry_after_ms=500)
                found = {each: late for each, _ in some}
            except (KafkaUnavailableError, UnauthenticatedError) as error:
                found = {each: error for each, _ in some}
            for each, _ in some:
                answers[each] = found.get(each, ErrorCode.unknown_server_error)

        await asyncio.gather(*(at(node, some) for node, some in by_node.items()))
        return answers

    def _leader(self, each: object) -> Leader | ErrorCode:
        name, partition = place_of(each)
        topic = self.topics.get(name)
        if topic is None:
            return ErrorCode.leader_not_available
        if topic.error is not ErrorCode.none:
            return topic.error
        leader = topic.leaders.get(partition)
        if leader is None:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.leader_not_available if leader.node == NO_LEADER else leader

    async def close(self) -> None:
        """Ends all connections for questions."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._asking):
            task.cancel()
            await asyncio.wait([task])
        for broker in self._brokers.values():
            broker.close()


def _topic(found: MetadataResponseTopic, old: Topic | None) -> Topic:
    """A topic of an answer.

    A leader's epoch never goes back: an answer may come from a broker that lags behind the others.
    """
    topic_id = NO_TOPIC_ID if found.topic_id is None else found.topic_id.bytes
    if not any(topic_id):
        topic_id = NO_TOPIC_ID
    leaders = {
        int(each.partition_index): Leader(int(each.leader_id), int(each.leader_epoch))
        for each in found.partitions
    }
    if old is not None and old.topic_id == topic_id and found.error_code is ErrorCode.none:
        for partition, leader in old.leaders.items():
            if partition in leaders and leaders[partition].epoch < leader.epoch:
                leaders[partition] = leader
    return Topic(topic_id, found.error_code, leaders)


def _error(each: object, code: ErrorCode) -> SharecoordError:
    """Kafka's error about a place, as one of ours."""
    topic, partition = place_of(each)
    where = f"{topic}-{partition}"
    if code in GONE:
        return UnknownTopicOrPartitionError(f"Kafka has no partition {where}")
    if code is ErrorCode.topic_authorization_failed:
        return refused(topic)
    if code is ErrorCode.offset_out_of_range:
        return OffsetOutOfRangeError(f"{where} has no such offset")
    return KafkaUnavailableError(
        f"Kafka could not tell about {where}: {code.name}", retry_after_ms=500
    )


def _seen(task: asyncio.Task[Any]) -> None:
    """A failure that nobody waited for is nobody's."""
    if not task.cancelled():
        task.exception()
