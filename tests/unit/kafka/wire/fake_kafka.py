"""A cluster in memory that answers as brokers do: sessions, long polls, errors that a test sets.

It stands in the place of `Broker`, so tests run on virtual time; requests and answers are bytes,
read and written by kio, which is independent of what is tested.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import struct
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as by_name_request
from kio.schema.fetch.v12 import response as by_name
from kio.schema.fetch.v13 import request as by_id_request
from kio.schema.fetch.v13 import response as by_id
from kio.schema.list_offsets.v6.request import ListOffsetsRequest
from kio.schema.list_offsets.v6.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.metadata.v11.request import MetadataRequest
from kio.schema.metadata.v11.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kio.schema.types import BrokerId
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records

from sharecoord.errors import KafkaUnavailableError
from sharecoord.kafka.wire import fetch_source
from sharecoord.kafka.wire.cluster import Cluster
from sharecoord.kafka.wire.connection import Endpoint
from sharecoord.kafka.wire.security import Security

HEADER = struct.Struct(">qiibIhiqqqhii")
SECOND = timedelta(seconds=1)
OPEN = Security(None, False, None, None)


def batch(base: int, count: int = 1, *, epoch: int = 0, size: int = 0, magic: int = 2) -> bytes:
    """A batch whose records are `size` zero bytes."""
    head = (base, HEADER.size - 12 + size, epoch, magic, 0, 0, count - 1, 0, 0, -1, -1, -1, count)
    return HEADER.pack(*head) + bytes(size)


@dataclass
class Log:
    """A partition: its batches, who leads it, and what a test makes of it."""

    leader: int = 1
    epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0
    stable: int | None = None
    """The last stable offset; None = the end."""
    error: int = 0
    """Said instead of records."""
    tags: dict[str, Any] = field(default_factory=dict)
    """More fields of the answer."""
    read_at: int = -1
    """The replica that the leader tells to read at."""

    def append(self, count: int = 1, size: int = 0, epoch: int | None = None) -> None:
        """One more batch."""
        epoch = self.epoch if epoch is None else epoch
        self.batches.append(batch(self.end, count, epoch=epoch, size=size))
        self.end += count

    def read(self, offset: int, max_bytes: int, *, whole: bool) -> bytes:
        """Batches from the one on that has the offset; cut, unless one must come whole."""
        found = b"".join(
            each for each in self.batches if _last(each) >= offset and _last(each) < self.end
        )
        first = int.from_bytes(found[8:12], "big") + 12 if found else 0
        return found[: max(max_bytes, first if whole else 0)]


def _last(each: bytes) -> int:
    base, *_ = HEADER.unpack_from(each)
    return int(base) + int(HEADER.unpack_from(each)[6])


@dataclass
class FakeTopic:
    """A topic."""

    topic_id: uuid.UUID | None
    logs: dict[int, Log]
    error: ErrorCode = ErrorCode.none


class Asked(NamedTuple):
    """A Fetch request that came."""

    at_s: float
    node: int
    connection: int
    version: int
    request: Any

    @property
    def named(self) -> list[tuple[int, int]]:
        """Partitions and offsets that it names."""
        return [
            (each.partition, each.fetch_offset)
            for topic in self.request.topics
            for each in topic.partitions
        ]

    @property
    def forgotten(self) -> list[int]:
        """Partitions that it takes out of its session."""
        topics = self.request.forgotten_topics_data
        return [number for topic in topics for number in topic.partitions]


@dataclass
class _Session:
    epoch: int
    asked: dict[tuple[Any, int], Any]
    told: dict[tuple[Any, int], tuple[int, int]] = field(default_factory=dict)
    number: int = 0


class FakeKafka:
    """The cluster."""

    def __init__(self, nodes: int = 1, *, fetch_versions: tuple[int, int] = (4, 17)) -> None:
        self.nodes = {n: Endpoint("node", 9000 + n) for n in range(1, nodes + 1)}
        self.first = {Endpoint("kafka", 9092): 1}
        """Addresses of nobody in particular, and who answers there."""
        self.controller = 1
        self.unaware: set[int] = set()
        """Brokers that have not heard of any topic yet."""
        self.blank: set[int] = set()
        """Brokers that have not heard of any broker yet."""
        self.down: set[Endpoint] = set()
        self.silent: set[Endpoint] = set()
        self.topics: dict[str, FakeTopic] = {}
        self.fetch_versions = fetch_versions
        self.fetches: list[Asked] = []
        self.metadata: list[tuple[float, Endpoint, tuple[str, ...]]] = []
        self.throttle_s = 0.0
        self.error = 0
        """Of a whole fetch, said once."""
        self.remembers = True
        """Whether there is room for fetch sessions."""
        self.sessions: dict[int, _Session] = {}
        self.made: list[FakeBroker] = []
        self.worked_s = 0.0
        """How long the process of the reader has worked."""
        self.on_fetch: Callable[[Asked], None] = lambda asked: None
        self._ids = itertools.count(100)
        self._arrived = asyncio.Event()

    def add(self, name: str, *logs: Log, has_id: bool = True) -> FakeTopic:
        """One more topic."""
        found = FakeTopic(uuid.uuid4() if has_id else None, dict(enumerate(logs or (Log(),))))
        self.topics[name] = found
        return found

    def notify(self) -> None:
        """Lets long polls look again."""
        self._arrived.set()
        self._arrived = asyncio.Event()

    def cluster(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Cluster:
        """A cluster object whose brokers are these."""

        def made(_: Cluster, endpoint: Endpoint) -> FakeBroker:
            self.made.append(FakeBroker(self, endpoint, len(self.made)))
            return self.made[-1]

        monkeypatch.setattr(Cluster, "_made", made)
        monkeypatch.setattr(fetch_source, "busy_s", lambda: self.worked_s)
        return Cluster({"bootstrap.servers": "kafka:9092", **settings}, OPEN)

    # -- what brokers answer ------------------------------------------------------------------

    def _answer_metadata(self, request: MetadataRequest, endpoint: Endpoint) -> MetadataResponse:
        names = [str(topic.name) for topic in request.topics or ()]
        self.metadata.append((asyncio.get_running_loop().time(), endpoint, tuple(names)))
        return MetadataResponse(
            throttle_time=0 * SECOND,  # type: ignore[arg-type]
            brokers=tuple(
                MetadataResponseBroker(node_id=BrokerId(n), host=at.host, port=at.port)  # type: ignore[arg-type]
                for n, at in self.nodes.items()
                if self.node_at(endpoint) not in self.blank
            ),
            cluster_id="fake",
            controller_id=BrokerId(self.controller),
            topics=tuple(
                self._metadata_of("" if self.node_at(endpoint) in self.unaware else name, name)
                for name in names
            ),
        )

    def _metadata_of(self, known_as: str, name: str) -> MetadataResponseTopic:
        topic = self.topics.get(known_as)
        if topic is None:
            topic = FakeTopic(None, {}, ErrorCode.unknown_topic_or_partition)
        return MetadataResponseTopic(
            error_code=topic.error,
            name=name,  # type: ignore[arg-type]
            topic_id=topic.topic_id,
            partitions=tuple(
                MetadataResponsePartition(
                    error_code=ErrorCode.none,
                    partition_index=number,  # type: ignore[arg-type]
                    leader_id=BrokerId(log.leader),
                    leader_epoch=log.epoch,  # type: ignore[arg-type]
                )
                for number, log in topic.logs.items()
            ),
        )

    def _answer_list(self, request: ListOffsetsRequest, node: int) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            parts = []
            for each in topic.partitions:
                found = self.topics.get(topic.name)
                log = Log(error=3) if found is None else found.logs[each.partition_index]
                code = ErrorCode.none if log.leader == node else ErrorCode.not_leader_or_follower
                offset = {-2: log.start, -1: log.end}.get(each.timestamp, -1)
                parts.append(
                    ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        error_code=ErrorCode(log.error) or code,
                        offset=offset,  # type: ignore[arg-type]
                        leader_epoch=log.epoch,  # type: ignore[arg-type]
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(parts)))
        return ListOffsetsResponse(throttle_time=0 * SECOND, topics=tuple(topics))  # type: ignore[arg-type]

    def _answer_epochs(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            throttle_time=0 * SECOND,  # type: ignore[arg-type]
            topics=tuple(
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=tuple(
                        EpochEndOffset(
                            error_code=ErrorCode.none,
                            partition=each.partition,
                            leader_epoch=each.leader_epoch,
                            end_offset=self.topics[topic.topic].logs[each.partition].end,  # type: ignore[arg-type]
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    async def answer_fetch(self, broker: FakeBroker, version: int, body: bytes) -> memoryview:
        """Waits as long as there is nothing to say; then says it."""
        module, answers = (by_id_request, by_id) if version == 13 else (by_name_request, by_name)
        request, end = entity_reader(module.FetchRequest)(body, 0)
        assert end == len(body), "nothing stands behind a request"
        loop = asyncio.get_running_loop()
        asked = Asked(loop.time(), broker.node, broker.number, version, request)
        self.fetches.append(asked)
        self.on_fetch(asked)
        code, session = self._session(request, version)
        deadline_s = loop.time() + request.max_wait.total_seconds()
        found: list[tuple[Any, Any]] = []
        while code == 0:
            found = self._found(session, asked, answers)
            size = sum(len(each.records or b"") for _, each in found)
            failed = any(each.error_code or each.diverging_epoch.end_offset >= 0 or
                         each.preferred_read_replica >= 0 for _, each in found)  # fmt: skip
            if size >= request.min_bytes or failed or not session.asked:
                break
            if loop.time() >= deadline_s:
                break
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._arrived.wait()
            except TimeoutError:
                pass
            broker.check()
        for key, each in found:
            # After an error a partition is told of again, even if nothing else has changed.
            high_watermark = -1 if each.error_code else int(each.high_watermark)
            session.told[key] = (high_watermark, int(each.log_start_offset))
        name = "topic_id" if version == 13 else "topic"
        topics: dict[Any, list[Any]] = defaultdict(list)
        for (topic, _), each in found:
            topics[topic].append(each)
        answer = answers.FetchResponse(
            throttle_time=self.throttle_s * SECOND,
            error_code=ErrorCode(code),
            session_id=session.number if code == 0 else 0,
            responses=tuple(
                answers.FetchableTopicResponse(**{name: topic}, partitions=tuple(parts))
                for topic, parts in topics.items()
            ),
        )
        self.throttle_s = 0.0
        out = io.BytesIO()
        entity_writer(answers.FetchResponse)(out, answer)
        return memoryview(bytearray(out.getvalue()))

    def _session(self, request: Any, version: int) -> tuple[int, Any]:
        if self.error:
            code, self.error = self.error, 0
            return code, None
        ids = version == 13
        named = {
            (topic.topic_id if ids else topic.topic, each.partition): each
            for topic in request.topics
            for each in topic.partitions
        }
        if request.session_epoch == 0:
            self.sessions.pop(request.session_id, None)
            session: Any = _Session(1, named)
            session.number = next(self._ids) if self.remembers else 0
            if self.remembers:
                self.sessions[session.number] = session
            return 0, session
        session = self.sessions.get(request.session_id)
        if session is None:
            return int(ErrorCode.fetch_session_id_not_found), None
        if session.epoch != request.session_epoch:
            return int(ErrorCode.invalid_fetch_session_epoch), None
        session.epoch += 1
        for key, each in named.items():
            session.asked[key] = each
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                key = (topic.topic_id if ids else topic.topic, number)
                session.asked.pop(key, None)
                session.told.pop(key, None)
        return 0, session

    def _found(self, session: Any, asked: Asked, answers: Any) -> list[tuple[Any, Any]]:
        left = asked.request.max_bytes
        found = []
        for key, each in session.asked.items():
            one, size = self._partition(key, each, asked, answers, left, bool(found))
            left = max(0, left - size)
            is_new = session.told.get(key) != (one.high_watermark, one.log_start_offset)
            is_loud = one.error_code or one.diverging_epoch.end_offset >= 0
            if size or is_loud or is_new or one.preferred_read_replica >= 0:
                found.append((key, one))
        return found

    def _partition(
        self, key: Any, each: Any, asked: Asked, answers: Any, left: int, any_found: bool
    ) -> tuple[Any, int]:
        topic = self._topic_of(key[0])
        log = None if topic is None else topic.logs.get(key[1])
        tags: dict[str, Any] = {}
        code, records, stable = ErrorCode.none, b"", 0
        if log is None:
            by_ids = asked.version == 13
            code = ErrorCode.unknown_topic_id if by_ids else ErrorCode.unknown_topic_or_partition
            log = Log()
        else:
            tags = log.tags
            stable = log.end if log.stable is None else log.stable
            code = self._code(log, each, asked)
            limit = stable if asked.request.isolation_level else log.end
            is_sent_away = asked.node == log.leader and log.read_at >= 0
            if not code and each.fetch_offset < limit and not tags and not is_sent_away:
                records = log.read(
                    each.fetch_offset, min(left, each.partition_max_bytes), whole=not any_found
                )
        one = answers.PartitionData(
            partition_index=key[1],
            error_code=code,
            high_watermark=log.end,
            last_stable_offset=stable,
            log_start_offset=log.start,
            aborted_transactions=None,
            preferred_read_replica=log.read_at if asked.node == log.leader else -1,
            records=Records(records),  # type: ignore[arg-type]
            **{name: getattr(answers, kind)(**fields) for name, (kind, fields) in tags.items()},
        )
        return one, len(records)

    def _code(self, log: Log, each: Any, asked: Asked) -> ErrorCode:
        if log.error:
            return ErrorCode(log.error)
        if asked.node not in (log.leader, log.read_at):
            return ErrorCode.not_leader_or_follower
        if -1 < each.current_leader_epoch < log.epoch:
            return ErrorCode.fenced_leader_epoch
        if each.current_leader_epoch > log.epoch:
            return ErrorCode.unknown_leader_epoch
        if not log.start <= each.fetch_offset <= log.end:
            return ErrorCode.offset_out_of_range
        return ErrorCode.none

    def _topic_of(self, name: Any) -> FakeTopic | None:
        if isinstance(name, str):
            return self.topics.get(name)
        return next((each for each in self.topics.values() if each.topic_id == name), None)

    def node_at(self, endpoint: Endpoint) -> int:
        """Who listens there."""
        for node, at in self.nodes.items():
            if at == endpoint:
                return node
        return self.first[endpoint]


class FakeBroker:
    """Stands for `Broker`."""

    def __init__(self, kafka: FakeKafka, endpoint: Endpoint, number: int) -> None:
        self.endpoint = endpoint
        self.number = number
        self.closed = False
        self.versions: dict[int, tuple[int, int]] = {}
        self.receiving_bytes = 0
        """Of the last answer, until it is taken in."""
        self._kafka = kafka

    @property
    def node(self) -> int:
        return self._kafka.node_at(self.endpoint)

    def check(self) -> None:
        """Raises when the broker is away."""
        if self.closed or self.endpoint in self._kafka.down:
            raise KafkaUnavailableError(f"can not connect to {self.endpoint}")

    @property
    def is_open(self) -> bool:
        """It is its own connection."""
        return not self.closed and self.endpoint not in self._kafka.down

    async def connected(self) -> FakeBroker:
        if self.endpoint in self._kafka.silent:
            await asyncio.sleep(30)
        self.check()
        self.versions = {1: self._kafka.fetch_versions}
        return self

    async def call(self, request: Any, response: Any, *, timeout_s: float | None = None) -> Any:
        await self.connected()
        await asyncio.sleep(0.001)
        self.check()
        kafka = self._kafka
        if isinstance(request, MetadataRequest):
            return kafka._answer_metadata(request, self.endpoint)
        if isinstance(request, ListOffsetsRequest):
            return kafka._answer_list(request, self.node)
        return kafka._answer_epochs(request)

    async def call_raw(
        self, key: int, version: int, body: bytes, *, timeout_s: float
    ) -> memoryview:
        assert key == 1
        await asyncio.sleep(0.001)
        if self.endpoint in self._kafka.silent:
            await asyncio.sleep(timeout_s)
            raise KafkaUnavailableError(f"{self.endpoint} did not answer a request in time")
        self.check()
        answer = await self._kafka.answer_fetch(self, version, body)
        self.receiving_bytes = len(answer)
        return answer

    def taken(self) -> None:
        """It is its own connection."""
        self.receiving_bytes = 0

    def close(self) -> None:
        self.closed = True
