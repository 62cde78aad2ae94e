"""Reads partitions: one position each, in order, from whichever broker has them at the time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from kio.schema.errors import ErrorCode

from sharecoord.errors import KafkaUnavailableError, UnauthenticatedError
from sharecoord.kafka.refusals import refused
from sharecoord.kafka.wire import fetch
from sharecoord.kafka.wire.cluster import GONE, NO_LEADER, Cluster, Leader, Topic
from sharecoord.kafka.wire.fetch import Found
from sharecoord.kafka.wire.fetch_source import Fetching as Fetching
from sharecoord.kafka.wire.fetch_source import FetchSink as FetchSink
from sharecoord.kafka.wire.fetch_source import Said, Source, name_of
from sharecoord.kafka.wire.keys import Settings
from sharecoord.kafka.wire.options import HEAD_BYTES, FetchOptions

log = structlog.get_logger(__name__)

UNDER_WAY_BYTES_MAX: Final = 64 << 20
"""What all answers under way to one fetcher may have together: with many brokers, answers are
smaller. A batch that is larger than an answer may be comes nevertheless, alone."""

ANSWER_BYTES_LEAST: Final = 64 << 10
"""No answer is asked to be smaller than this, however many brokers there are."""

GONE_AFTER_S: Final = 0.25
"""A topic that was read is gone when metadata has said so for so long: one answer may come from a
broker that lags behind."""

REFUSED_AGAIN_S: Final = 1.0
"""How often a topic is asked for that Kafka refuses."""

STALE: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    }
)
"""Metadata, ours or the broker's, is not of today: it is asked for before the next attempt."""


class Fetcher:
    """Reads partitions of a cluster, on connections of its own: one position per partition."""

    def __init__(self, cluster: Cluster, settings: Settings, *, committed: bool) -> None:
        """Reads nothing yet.

        Args:
            cluster: Whose partitions are read.
            settings: librdkafka's.
            committed: Whether only records below the last stable offset come (read_committed).

        Raises:
            InvalidConfigError: A setting can not be used.
        """
        self.cluster = cluster
        self.options = FetchOptions.of(settings)
        self.committed = committed
        self.buffered_bytes = 0
        """Bytes that were fetched, and that no sink has taken yet."""
        self._fetchings: dict[tuple[str, int], Fetching] = {}
        self._sources: dict[int, Source] = {}
        self._stale: dict[Fetching, None] = {}
        """Partitions that wait for metadata."""
        self._renewing: asyncio.Task[None] | None = None
        self._looking: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._said = Said()
        self._unlisten = cluster.listen(self._on_metadata)

    def fetch(
        self, topic: str, partition: int, offset: int, last_epoch: int, sink: FetchSink
    ) -> Fetching:
        """Reads a partition from `offset` on, until closed.

        Args:
            topic: The topic's name.
            partition: The partition's number; none that is read by this fetcher already.
            offset: Where to begin.
            last_epoch: Leader epoch of the record before; -1 = not known, nothing is compared.
            sink: Takes the records.
        """
        place = (topic, partition)
        assert place not in self._fetchings, f"{topic}-{partition} is read by this fetcher already"
        fetching = self._fetchings[place] = Fetching(self, place, offset, last_epoch, sink)
        self.cluster.watch(topic)
        self._route(fetching)
        return fetching

    @property
    def answer_bytes_max(self) -> int:
        """How much a broker may send at a time; with many brokers less."""
        share = UNDER_WAY_BYTES_MAX // max(1, 2 * len(self._sources))
        return min(self.options.max_bytes, max(share, ANSWER_BYTES_LEAST))

    async def close(self) -> None:
        """Stops every read, and ends the connections."""
        self._unlisten()
        for fetching in list(self._fetchings.values()):
            fetching.close()
        if self._renewing is not None:
            self._looking.add(self._renewing)
        for task in self._looking:
            task.cancel()
        sources, self._sources = self._sources, {}
        for source in sources.values():
            await source.close()
        if left := self._closing | self._looking:
            await asyncio.wait(left)

    # -- for partitions and brokers -----------------------------------------------------------

    def remove(self, fetching: Fetching) -> None:
        """Reads a partition no more."""
        fetching.closed = True
        if fetching.timer is not None:
            fetching.timer.cancel()
        self._stale.pop(fetching, None)
        fetching.leave_line()
        if fetching.source is not None:
            fetching.source.remove(fetching)
        del self._fetchings[fetching.topic, fetching.partition]
        self.cluster.unwatch(fetching.topic)

    def tidy(self, source: Source) -> None:
        """Lets go of a broker that nothing is read from."""
        if not source.fetchings and self._sources.get(source.node) is source:
            del self._sources[source.node]
            task = asyncio.create_task(source.close(), name="sharecoord-fetch-close")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def renew(self, fetchings: Iterable[Fetching]) -> None:
        """Asks for metadata, and reads these partitions on by what it says."""
        for fetching in fetchings:
            if not fetching.closed:
                fetching.held = True
                fetching.replica = NO_LEADER
                self._stale[fetching] = None
        if self._renewing is None and self._stale:
            self._renewing = asyncio.create_task(self._renew(), name="sharecoord-fetch-renew")

    def look(self, fetchings: Iterable[Fetching]) -> None:
        """Asks for metadata; these partitions are read on meanwhile."""
        look = self._look({fetching.topic for fetching in fetchings})
        task = asyncio.create_task(look, name="sharecoord-fetch-look")
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _look(self, topics: set[str]) -> None:
        with contextlib.suppress(KafkaUnavailableError, UnauthenticatedError):
            await self.cluster.refresh(topics)

    def take(self, fetching: Fetching, found: Found, sent_s: float) -> Callable[[], None] | None:
        """Takes in what a broker says of a partition; returns what is to be told to its sink."""
        if found.error != ErrorCode.none:
            fetching.reached_end_s, fetching.end = fetching.drained_s, -1
            return self._refusal(fetching, found)
        if found.diverging_epoch is not None:
            epoch, end_offset = found.diverging_epoch
            return self._last_call(fetching, lambda s: s.on_diverged(epoch, end_offset))
        self._heed_advice(fetching, found.read_at)
        has_stable = self.committed and found.last_stable_offset >= 0
        fetching.end = found.last_stable_offset if has_stable else found.high_watermark
        before = fetching.position, fetching.last_epoch
        if not len(found.records):
            return lambda: self._pass_on(fetching, found, sent_s, before)
        try:
            reach = fetch.reach(found.records)
            if 0 <= reach.next_offset <= fetching.position:
                raise ValueError(f"the records end before {fetching.position}, which was asked for")
        except ValueError as error:
            self._back_off(fetching, f"CORRUPT_MESSAGE: {error}")
            return None
        if reach.next_offset < 0:
            self._enlarge(fetching, reach.wanted_bytes)
            return None
        fetching.position, fetching.last_epoch = reach.next_offset, reach.last_epoch
        if fetching.batch_bytes:
            fetching.batch_bytes = 0
            if fetching.source is not None:
                fetching.source.large.pop(fetching, None)
        found = _alone(found)
        self.buffered_bytes += len(found.records)
        return lambda: self._pass_on(fetching, found, sent_s, before)

    # -- records ------------------------------------------------------------------------------

    def _pass_on(
        self, fetching: Fetching, found: Found, sent_s: float, before: tuple[int, int]
    ) -> None:
        self.buffered_bytes -= len(found.records)
        if fetching.closed:
            return
        fetching.asked_s = sent_s
        expected = fetching.position
        try:
            offset = fetching.sink.on_fetched(found)
        except Exception:
            log.exception("records could not be taken; they are read again", place=_name(fetching))
            fetching.advance(*before)
            fetching.hold(self.options.error_backoff_s)
            return
        if offset is not None and offset != expected:
            fetching.advance(offset, fetch.NO_EPOCH)
        if fetching.position >= fetching.end >= 0:
            fetching.reached_end_s = max(fetching.reached_end_s, sent_s)

    def _enlarge(self, fetching: Fetching, wanted_bytes: int) -> None:
        """Asks for as much as the first batch needs that came cut."""
        most = self.options.answer_bytes_max - HEAD_BYTES
        if wanted_bytes > most:
            self._back_off(
                fetching,
                f"a batch of {wanted_bytes} bytes; kafka.receive.message.max.bytes"
                f" ({self.options.answer_bytes_max}) takes {most}: raise it",
            )
        # Twice as much if not even its length came.
        fetching.batch_bytes = min(most, max(wanted_bytes, 2 * fetching.batch_bytes))
        if fetching.source is not None:
            fetching.source.large[fetching] = None

    # -- errors -------------------------------------------------------------------------------

    def _refusal(self, fetching: Fetching, found: Found) -> Callable[[], None] | None:
        """What follows from an error of a partition."""
        code = found.error
        if code == ErrorCode.offset_out_of_range:
            if fetching.replica == NO_LEADER:
                return self._last_call(fetching, lambda s: s.on_out_of_range())
            # A follower may lag behind, or have less: the leader knows (KIP-392).
            fetching.replica = NO_LEADER
            self._route(fetching)
        elif code == ErrorCode.topic_authorization_failed:
            return self._refused(fetching)
        elif code in STALE:
            place = (fetching.topic, fetching.partition)
            news = found.leader is not None and self.cluster.learn_leader(
                *place, Leader(*found.leader)
            )
            if news:
                fetching.replica = NO_LEADER
                self._route(fetching)
            else:
                log.debug("partition to be found anew", place=_name(fetching), code=name_of(code))
                self.renew([fetching])
        else:
            self._back_off(fetching, name_of(code))
        return None

    def _back_off(self, fetching: Fetching, what: str) -> None:
        if fetching.said.is_news(what):
            log.warning(
                "partition can not be read; trying again",
                place=_name(fetching),
                offset=fetching.position,
                what=what,
            )
        fetching.hold(self.options.error_backoff_s)

    def _refused(self, fetching: Fetching) -> Callable[[], None]:
        fetching.hold(max(self.options.error_backoff_s, REFUSED_AGAIN_S))
        error = refused(fetching.topic)

        def tell() -> None:
            if not fetching.closed:
                fetching.sink.on_refused(error)

        return tell

    def _last_call(
        self, fetching: Fetching, tell: Callable[[FetchSink], None]
    ) -> Callable[[], None]:
        """The reading ends, and its sink is told why."""
        fetching.held = True

        def end() -> None:
            if not fetching.closed:
                fetching.close()
                tell(fetching.sink)

        return end

    # -- where partitions are -----------------------------------------------------------------

    async def _renew(self) -> None:
        """Asks for metadata as long as partitions wait for it."""
        while self._stale:
            stale = list(self._stale)
            try:
                await self.cluster.refresh({fetching.topic for fetching in stale})
            except (KafkaUnavailableError, UnauthenticatedError) as error:
                if self._said.is_news(error.message):
                    log.warning("no metadata of Kafka; trying again", why=error.message)
                await asyncio.sleep(self.cluster.options.retry_s)
                continue
            except Exception:
                log.exception("metadata could not be asked for; trying again")
                await asyncio.sleep(self.cluster.options.retry_max_s)
                continue
            for fetching in stale:
                if self._stale.pop(fetching, 0) is None:
                    fetching.release()
                    self._route(fetching)
        self._renewing = None

    def _on_metadata(self) -> None:
        for fetching in list(self._fetchings.values()):
            if fetching not in self._stale and not fetching.held:
                self._route(fetching)

    def _route(self, fetching: Fetching) -> None:
        """Reads a partition where the metadata has it, or finds out where that is."""
        topic = self.cluster.topics.get(fetching.topic)
        if topic is None:
            self.renew([fetching])
        elif topic.error is ErrorCode.topic_authorization_failed:
            fetching.move(None)
            asyncio.get_running_loop().call_soon(self._refused(fetching))
        elif not _has(topic, fetching):
            self._unknown(fetching)
        else:
            leader = topic.leaders.get(fetching.partition, Leader(NO_LEADER, fetch.NO_EPOCH))
            fetching.unknown_since_s = None
            if topic.error is ErrorCode.none:
                fetching.topic_id = topic.topic_id
            self._go_to(fetching, leader)

    def _go_to(self, fetching: Fetching, leader: Leader) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= fetching.replica_until_s or fetching.replica not in self.cluster.nodes:
            fetching.replica = NO_LEADER
        node = leader.node if fetching.replica == NO_LEADER else fetching.replica
        if node not in self.cluster.nodes:
            fetching.move(None)
            self.renew([fetching])
            return
        fetching.leader_epoch = leader.epoch
        if node not in self._sources:
            self._sources[node] = Source(self, node)
        fetching.move(self._sources[node])

    def _heed_advice(self, fetching: Fetching, node: int) -> None:
        """Reads at the replica that the leader names (KIP-392), for a while."""
        if node in (NO_LEADER, fetching.replica):
            return
        if node not in self.cluster.nodes:
            self.renew([fetching])
            return
        loop = asyncio.get_running_loop()
        fetching.replica = node
        fetching.replica_until_s = loop.time() + self.options.replica_age_s
        loop.call_at(fetching.replica_until_s, self._advice_ended, fetching)
        self._route(fetching)

    def _advice_ended(self, fetching: Fetching) -> None:
        if not (fetching.closed or fetching.held or fetching.replica == NO_LEADER):
            self._route(fetching)

    def _unknown(self, fetching: Fetching) -> None:
        """Waits: a new topic is not known to all brokers at once; one that was known is gone."""
        loop = asyncio.get_running_loop()
        if fetching.unknown_since_s is None:
            fetching.unknown_since_s = loop.time()
        seen = fetching.topic_id is not None
        grace_s = GONE_AFTER_S if seen else self.options.propagation_s
        fetching.move(None)
        if loop.time() - fetching.unknown_since_s >= grace_s:
            loop.call_soon(self._last_call(fetching, lambda s: s.on_gone()))
        else:
            self.renew([fetching])


def _has(topic: Topic, fetching: Fetching) -> bool:
    """Whether the topic is there, is the one that it was, and has the partition."""
    if topic.error is not ErrorCode.none:
        return topic.error not in GONE
    # A cluster that is being upgraded has no ids yet.
    is_same = not (fetching.topic_id and topic.topic_id) or fetching.topic_id == topic.topic_id
    return is_same and fetching.partition in topic.leaders


def _name(fetching: Fetching) -> str:
    return f"{fetching.topic}-{fetching.partition}"


def _alone(found: Found) -> Found:
    """Records in memory of their own, if they are the smaller part of an answer.

    A view would keep all of the answer as long as these records are kept.
    """
    records = found.records
    if 2 * len(records) >= len(records.obj):  # type: ignore[arg-type]
        return found
    # The records are the last field; `_replace` takes four times as long.
    return Found(*found[:-1], memoryview(bytes(records)))
