"""Partitions are read in order from their leaders, whatever brokers answer."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i64
from structlog.testing import capture_logs

from sharecoord.errors import UnauthorizedError
from sharecoord.kafka.wire import fetch, fetch_source, fetcher
from sharecoord.kafka.wire.cluster import Cluster
from sharecoord.kafka.wire.connection import Endpoint
from sharecoord.kafka.wire.fetcher import Fetcher, Fetching
from sharecoord.testing.virtual_time import virtual
from tests.unit.kafka.wire.fake_kafka import FakeKafka, Log

LONG_S = 5.0


class Sink:
    """Writes down what comes."""

    def __init__(self) -> None:
        self.found: list[fetch.Found] = []
        self.said: list[Any] = []
        self.fetching: Fetching | None = None
        self.at_s: list[float] = []
        self.drained_s: list[float] = []
        self.then: Callable[[fetch.Found], int | None] = lambda found: None
        self._changed = asyncio.Event()

    def _note(self, *what: Any) -> None:
        self.said.append(what)
        self.at_s.append(asyncio.get_running_loop().time())
        self._changed.set()

    def on_fetched(self, found: fetch.Found) -> int | None:
        if self.fetching is not None:
            self.drained_s.append(self.fetching.drained_s)
        answer = self.then(found)
        self.found.append(found)
        self._note("fetched", fetch.reach(found.records).next_offset)
        return answer

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        self._note("diverged", epoch, end_offset)

    def on_out_of_range(self) -> None:
        self._note("out of range")

    def on_gone(self) -> None:
        self._note("gone")

    def on_refused(self, error: UnauthorizedError) -> None:
        self._note("refused", error.message)

    async def until(self, *what: Any, times: int = 1) -> float:
        """Waits until it was told so; returns when."""
        try:
            async with asyncio.timeout(120):
                while len(self._met(what)) < times:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"not {what}, but {self.said}")
        return self._met(what)[0]

    def _met(self, what: Any) -> list[float]:
        """When it was told so; several batches may have come together."""
        return [
            at_s
            for at_s, said in zip(self.at_s, self.said, strict=True)
            if said == what or (said[0] == what[0] == "fetched" and said[1] > what[1])
        ]


class Bench:
    """A cluster in memory, and fetchers that read from it."""

    def __init__(self, patch: pytest.MonkeyPatch, kafka: FakeKafka, **settings: Any) -> None:
        self.kafka = kafka
        self.settings = {"bootstrap.servers": "kafka:9092", **settings}
        self.cluster: Cluster = kafka.cluster(patch, **settings)
        self.fetcher = Fetcher(
            self.cluster, self.settings, committed=bool(settings.get("committed"))
        )

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fetcher.close()
        await self.cluster.close()

    def read(self, partition: int = 0, offset: int = 0, last_epoch: int = -1) -> Sink:
        sink = Sink()
        sink.fetching = self.fetcher.fetch("t", partition, offset, last_epoch, sink)
        return sink

    async def until(self, probe: Callable[[], object]) -> None:
        """Waits on virtual time until something holds."""
        for _ in range(120_000):
            if probe():
                return
            await asyncio.sleep(0.001)
        pytest.fail("it never holds")


def bench(
    *logs: Log, nodes: int = 1, fetch_versions: tuple[int, int] = (4, 17), **settings: Any
) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[..., None]]:
    """A test over one topic, "t", with these partitions; time is virtual."""

    def mark(test: Callable[[Bench], Awaitable[None]]) -> Callable[..., None]:
        def run(monkeypatch: pytest.MonkeyPatch) -> None:
            async def main() -> None:
                kafka = FakeKafka(nodes, fetch_versions=fetch_versions)
                kafka.add("t", *(Log(**vars(each)) for each in logs))
                for log in kafka.topics["t"].logs.values():
                    log.batches = list(log.batches)
                dotted = {name.replace("_", "."): value for name, value in settings.items()}
                async with Bench(monkeypatch, kafka, **dotted) as made:
                    await test(made)

            virtual(main)()

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return mark


def filled(*counts: int, size: int = 0, **fields: Any) -> Log:
    log = Log(**fields)
    for count in counts:
        log.append(count, size)
    return log


def log_of(bench: Bench, partition: int = 0) -> Log:
    return bench.kafka.topics["t"].logs[partition]


def later(bench: Bench, count: int = 1, partition: int = 0, size: int = 0) -> None:
    log_of(bench, partition).append(count, size)
    bench.kafka.notify()


# -- records ------------------------------------------------------------------------------------


@bench(filled(3, 2))
async def test_records_come_in_order_and_new_ones_at_once(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 5)
    later(b, 4)
    await sink.until("fetched", 9)
    assert sink.said == [("fetched", 5), ("fetched", 9)]
    assert sink.fetching is not None
    assert sink.fetching.position == 9


@bench(filled(3))
async def test_the_next_request_is_sent_before_the_sink_sees_records(b: Bench) -> None:
    sink = Sink()
    sent: list[int] = []

    def then(found: fetch.Found) -> None:
        sent.append(len(b.kafka.fetches) + b.fetcher._sources[1].lines[0].sent)

    sink.then = then
    b.fetcher.fetch("t", 0, 0, -1, sink)
    await sink.until("fetched", 3)
    assert sent == [1 + 2]
    await b.until(lambda: len(b.kafka.fetches) == 2)
    assert b.kafka.fetches[1].named == [(0, 3)]


@bench(filled(3, 3))
async def test_a_sink_says_where_to_read_on(b: Bench) -> None:
    sink = Sink()
    sink.then = lambda found: 3 if not sink.said else None
    fetching = b.fetcher.fetch("t", 0, 0, -1, sink)
    await sink.until("fetched", 6, times=2)
    fetching.advance(1, 0)
    await sink.until("fetched", 6, times=3)
    offsets = [offset for asked in b.kafka.fetches for _, offset in asked.named]
    assert offsets == [0, 6, 3, 6, 1, 6][: len(offsets)]


@bench(filled(3, epoch=7))
async def test_epochs_are_sent_along(b: Bench) -> None:
    sink = b.read(last_epoch=6)
    await sink.until("fetched", 3)
    await b.until(lambda: len(b.kafka.fetches) == 2)
    first, second = (asked.request.topics[0].partitions[0] for asked in b.kafka.fetches)
    assert (first.current_leader_epoch, first.last_fetched_epoch) == (7, 6)
    assert (second.current_leader_epoch, second.last_fetched_epoch) == (7, 7)


@bench(filled(1, size=5000), filled(1, size=9000), max_partition_fetch_bytes=1000)
async def test_a_batch_larger_than_the_limit_comes_whole(b: Bench) -> None:
    sinks = [b.read(0), b.read(1)]
    for sink in sinks:
        await sink.until("fetched", 1)
    assert [len(sink.found[0].records) for sink in sinks] == [5061, 9061]


@bench(filled(*[1] * 50, size=900), filled(1, size=9000), max_partition_fetch_bytes=1000)
async def test_a_cut_batch_is_not_held_up_by_another_partition(b: Bench) -> None:
    b.read(0)
    sink = b.read(1)
    await sink.until("fetched", 1)
    assert log_of(b).end > len(b.kafka.fetches)


@bench(filled(1, size=90_000), receive_message_max_bytes=20_000, fetch_max_bytes=10_000)
async def test_a_batch_larger_than_any_answer_is_named(b: Bench) -> None:
    log = log_of(b)
    log.batches[0] = log.batches[0][:8_000]
    with capture_logs() as logs:
        b.read()
        await b.until(lambda: logs)
    assert "kafka.receive.message.max.bytes (20000) takes 19488: raise it" in logs[0]["what"]


@bench(filled(3))
async def test_a_sink_that_fails_gets_the_records_again(b: Bench) -> None:
    sink = Sink()

    def then(found: fetch.Found) -> None:
        if b.kafka.fetches[-1].at_s < 0.1:
            raise RuntimeError("not now")

    sink.then = then
    with capture_logs() as logs:
        b.fetcher.fetch("t", 0, 0, -1, sink)
        assert await sink.until("fetched", 3) >= b.fetcher.options.error_backoff_s
    assert [entry["event"] for entry in logs] == ["records could not be taken; they are read again"]


@bench(filled(3))
async def test_what_is_no_batch_is_named_and_tried_again(b: Bench) -> None:
    log = log_of(b)
    good, log.batches[0] = log.batches[0], log.batches[0][:8] + b"\0\0\0\5" + bytes(60)
    with capture_logs() as logs:
        sink = b.read()
        await b.until(lambda: logs)
    assert (logs[0]["place"], logs[0]["offset"]) == ("t-0", 0)
    assert logs[0]["what"].startswith("CORRUPT_MESSAGE: the batch at offset 0")
    log.batches[0] = good
    await sink.until("fetched", 3)


@bench(filled(1, size=10), filled(1, size=100_000))
async def test_a_small_part_of_an_answer_has_memory_of_its_own(b: Bench) -> None:
    small, large = b.read(0), b.read(1)
    for sink in (small, large):
        await sink.until("fetched", 1)
    assert isinstance(large.found[0].records.obj, bytearray)
    assert memoryview(small.found[0].records.obj).nbytes == 71
    assert b.fetcher.buffered_bytes == 0


@bench(filled(3), filled(4), committed=True)
async def test_committed_records_alone_are_asked_for(b: Bench) -> None:
    log_of(b).stable = 0
    held, free = b.read(0), b.read(1)
    await free.until("fetched", 4)
    assert b.kafka.fetches[0].request.isolation_level == 1
    assert held.said == []
    log_of(b).stable = 3
    b.kafka.notify()
    await held.until("fetched", 3)


# -- sessions -----------------------------------------------------------------------------------


@bench(filled(1), filled(1), filled(1))
async def test_requests_name_what_has_changed(b: Bench) -> None:
    sinks = [b.read(n) for n in range(3)]
    for sink in sinks:
        await sink.until("fetched", 1)
    later(b, partition=1)
    await sinks[1].until("fetched", 2)
    await b.until(lambda: len(b.kafka.fetches) == 3)
    full, all_, one = b.kafka.fetches
    assert (full.request.session_id, full.request.session_epoch) == (0, 0)
    assert sorted(all_.named) == [(0, 1), (1, 1), (2, 1)]
    assert one.named == [(1, 2)]
    assert (all_.request.session_epoch, one.request.session_epoch) == (1, 2)


@bench(filled(1), filled(1))
async def test_a_full_partition_is_forgotten_and_does_not_stall_others(b: Bench) -> None:
    full, other = b.read(0), b.read(1)
    for sink in (full, other):
        await sink.until("fetched", 1)
    assert full.fetching is not None
    full.fetching.want_more(wanted=False)
    later(b, partition=1)
    await other.until("fetched", 2)
    await b.until(lambda: b.kafka.fetches[-1].forgotten == [0])
    later(b, 5)
    later(b, partition=1)
    await other.until("fetched", 3)
    assert full.said == [("fetched", 1)]
    full.fetching.want_more(wanted=True)
    await full.until("fetched", 6)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.unknown_server_error,
    ],
)
def test_another_session_begins_after_an_error(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench(filled(1))
    async def main(b: Bench) -> None:
        sink = b.read()
        await sink.until("fetched", 1)
        b.kafka.error = code
        later(b)
        await sink.until("fetched", 2)
        later(b)
        await sink.until("fetched", 3)
        assert any(asked.request.session_epoch == 0 for asked in b.kafka.fetches[1:])

    main(monkeypatch)


@bench(filled(1), filled(1))
async def test_a_broker_without_room_for_sessions_is_asked_in_full(b: Bench) -> None:
    b.kafka.remembers = False
    sinks = [b.read(n) for n in range(2)]
    for sink in sinks:
        await sink.until("fetched", 1)
    later(b)
    await sinks[0].until("fetched", 2)
    await b.until(lambda: len(b.kafka.fetches) == 3)
    assert all(len(asked.named) == 2 for asked in b.kafka.fetches)
    assert all(asked.request.session_epoch == 0 for asked in b.kafka.fetches)


@bench(filled(1), fetch_versions=(0, 12))
async def test_topics_go_by_name_where_the_broker_knows_no_ids(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 1)
    assert b.kafka.fetches[0].version == fetch.BY_NAME


@bench(filled(1))
async def test_topics_go_by_id(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 1)
    assert b.kafka.fetches[0].version == fetch.BY_ID


@bench(filled(1))
async def test_one_topic_without_an_id_makes_all_go_by_name(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 1)
    b.kafka.add("old", filled(2), has_id=False)
    other = Sink()
    b.fetcher.fetch("old", 0, 0, -1, other)
    await other.until("fetched", 2)
    later(b)
    await sink.until("fetched", 2)
    versions = [asked.version for asked in b.kafka.fetches]
    assert versions[0] == fetch.BY_ID
    assert fetch.BY_NAME in versions
    assert all(b.kafka.fetches[i].request.session_epoch == 0
               for i in (0, versions.index(fetch.BY_NAME)))  # fmt: skip


@bench(filled(1), fetch_versions=(0, 11))
async def test_a_broker_that_is_too_old_is_named(b: Bench) -> None:
    with capture_logs() as logs:
        b.read()
        await b.until(lambda: logs)
    assert "Kafka 2.8 or newer is needed" in logs[0]["why"]


# -- when a wish comes while a poll waits ---------------------------------------------------------


@bench(filled(1), filled(1), fetch_wait_max_ms=int(LONG_S * 1000))
async def test_a_new_partition_does_not_wait_for_a_long_poll(b: Bench) -> None:
    loop = asyncio.get_running_loop()
    old = b.read(0)
    await old.until("fetched", 1)
    await b.until(lambda: len(b.kafka.fetches) == 2)
    began_s = loop.time()
    sink = b.read(1)
    assert await sink.until("fetched", 1) - began_s < 0.02
    later(b, partition=1)
    assert await sink.until("fetched", 2) - loop.time() <= 0
    assert {asked.connection for asked in b.kafka.fetches[:2]} != {b.kafka.fetches[2].connection}


@bench(filled(1), *[filled(1)] * 3, fetch_wait_max_ms=int(LONG_S * 1000))
async def test_wishes_wait_no_longer_than_the_quick_poll(b: Bench) -> None:
    loop = asyncio.get_running_loop()
    await b.read(0).until("fetched", 1)
    await b.until(lambda: len(b.kafka.fetches) == 2)
    for n in range(1, 4):
        began_s = loop.time()
        found_s = await b.read(n).until("fetched", 1)
        assert found_s - began_s < fetch_source.QUICK_WAIT_S + 0.02


@bench(filled(1), filled(1), fetch_wait_max_ms=500)
async def test_what_is_quiet_goes_back_to_one_poll(b: Bench) -> None:
    await b.read(0).until("fetched", 1)
    await b.until(lambda: len(b.kafka.fetches) == 2)
    await b.read(1).until("fetched", 1)
    await asyncio.sleep(2)
    before = len(b.kafka.fetches)
    await asyncio.sleep(5)
    polls = b.kafka.fetches[before:]
    assert 9 <= len(polls) <= 11
    assert len({asked.connection for asked in polls}) == 1


@bench(filled(1), filled(*[1] * 40), fetch_wait_max_ms=int(LONG_S * 1000))
async def test_a_partition_that_is_full_now_and_then_loses_no_time(b: Bench) -> None:
    loop = asyncio.get_running_loop()
    await b.read(0).until("fetched", 1)
    sink = b.read(1)
    assert sink.fetching is not None
    fetching = sink.fetching
    await sink.until("fetched", 40)
    began_s = loop.time()
    for n in range(40):
        fetching.want_more(wanted=False)
        later(b, partition=1)
        await asyncio.sleep(0.01)
        fetching.want_more(wanted=True)
        await sink.until("fetched", 41 + n)
    assert loop.time() - began_s < 40 * (0.01 + fetch_source.QUICK_WAIT_S)


# -- time ---------------------------------------------------------------------------------------


@bench(filled(1))
async def test_drained_is_when_an_empty_answer_was_asked_for(b: Bench) -> None:
    sink = b.read()
    assert sink.fetching is not None
    assert sink.fetching.drained_s == -math.inf
    await sink.until("fetched", 1)
    assert sink.fetching.drained_s == b.kafka.fetches[0].at_s - 0.001
    await b.until(lambda: len(b.kafka.fetches) == 3)
    assert sink.fetching.drained_s == pytest.approx(b.kafka.fetches[1].at_s, abs=0.002)
    later(b)
    await sink.until("fetched", 2)
    # In the call it is the time before the records.
    assert sink.drained_s[-1] == pytest.approx(b.kafka.fetches[1].at_s, abs=0.002)
    assert sink.fetching.asked_s >= b.kafka.fetches[1].at_s


@bench(filled(*[1] * 10, size=1000), max_partition_fetch_bytes=1000)
async def test_a_partition_with_a_backlog_is_not_drained(b: Bench) -> None:
    sink = b.read()
    assert sink.fetching is not None
    await sink.until("fetched", 5)
    assert sink.fetching.drained_s == -math.inf


@bench(filled(1))
async def test_quotas_are_kept(b: Bench) -> None:
    sink = b.read()
    b.kafka.throttle_s = 7.0
    await sink.until("fetched", 1)
    await b.until(lambda: len(b.kafka.fetches) == 2)
    assert b.kafka.fetches[1].at_s - b.kafka.fetches[0].at_s >= 7.0


# -- errors -------------------------------------------------------------------------------------


@bench(filled(3), nodes=2)
async def test_a_new_leader_is_found_by_metadata(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 3)
    log_of(b).leader, log_of(b).epoch = 2, 1
    later(b)
    began_s = asyncio.get_running_loop().time()
    assert await sink.until("fetched", 4) - began_s < 0.5
    assert b.kafka.fetches[-1].node == 2
    assert b.kafka.fetches[-1].request.topics[0].partitions[0].current_leader_epoch == 1


@bench(filled(3), nodes=2)
async def test_a_new_leader_that_the_answer_names_is_asked_at_once(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 3)
    before = len(b.kafka.metadata)
    log = log_of(b)
    log.leader, log.epoch = 2, 1
    named = {"leader_id": i32(2), "leader_epoch": i32(1)}
    log.tags = {"current_leader": ("LeaderIdAndEpoch", named)}
    b.kafka.on_fetch = lambda asked: log.tags.clear() if asked.node == 2 else None
    later(b)
    await sink.until("fetched", 4)
    assert len(b.kafka.metadata) == before


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
    ],
)
def test_metadata_is_asked_for_when_a_broker_knows_better(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench(filled(1))
    async def main(b: Bench) -> None:
        sink = b.read()
        await sink.until("fetched", 1)
        before = len(b.kafka.metadata)
        log_of(b).error = int(code)
        later(b)
        await asyncio.sleep(5)
        assert 3 < len(b.kafka.metadata) - before < 15
        log_of(b).error = 0
        await sink.until("fetched", 2)

    main(monkeypatch)


@pytest.mark.parametrize("code", [ErrorCode.corrupt_message, ErrorCode.unknown_server_error])
def test_other_errors_are_named_once_and_tried_again(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench(filled(1), filled(1))
    async def main(b: Bench) -> None:
        log_of(b).error = int(code)
        with capture_logs() as logs:
            sink, other = b.read(0), b.read(1)
            await other.until("fetched", 1)
            await asyncio.sleep(5)
            assert 8 < len(b.kafka.fetches) < 40
        (entry,) = logs
        assert (entry["what"], entry["place"]) == (code.name.upper(), "t-0")
        log_of(b).error = 0
        await sink.until("fetched", 1)

    main(monkeypatch)


def test_an_error_without_a_name_has_its_number() -> None:
    assert fetch_source.name_of(9_999) == "error 9999"


@bench(filled(1))
async def test_a_refused_topic_is_told_and_asked_for_again(b: Bench) -> None:
    log_of(b).error = int(ErrorCode.topic_authorization_failed)
    sink = b.read()
    await b.until(lambda: len(sink.said) == 2)
    assert "allow its principal READ" in sink.said[0][1]
    log_of(b).error = 0
    await sink.until("fetched", 1)


@bench(filled(1))
async def test_a_topic_that_metadata_refuses_is_told_and_asked_for_again(b: Bench) -> None:
    b.kafka.topics["t"].error = ErrorCode.topic_authorization_failed
    sink = b.read()
    await b.until(lambda: len(sink.said) == 2)
    assert sink.at_s[1] - sink.at_s[0] >= fetcher.REFUSED_AGAIN_S
    b.kafka.topics["t"].error = ErrorCode.none
    await sink.until("fetched", 1)


@bench(filled(5))
async def test_a_position_that_the_log_does_not_have_ends_the_reading(b: Bench) -> None:
    sink = b.read(offset=9)
    await sink.until("out of range")
    assert sink.fetching is not None
    assert sink.fetching.closed
    again = b.read(offset=2)
    await again.until("fetched", 5)


@bench(filled(5, epoch=3))
async def test_a_log_that_was_cut_ends_the_reading(b: Bench) -> None:
    cut = {"epoch": i32(2), "end_offset": i64(4)}
    log_of(b).tags = {"diverging_epoch": ("EpochEndOffset", cut)}
    sink = b.read(offset=5, last_epoch=2)
    await sink.until("diverged", 2, 4)
    assert sink.fetching is not None
    assert sink.fetching.closed


@bench(filled(5))
async def test_a_topic_that_is_deleted_is_gone(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 5)
    del b.kafka.topics["t"]
    b.kafka.notify()
    began_s = asyncio.get_running_loop().time()
    assert fetcher.GONE_AFTER_S <= await sink.until("gone") - began_s < 2


@bench(filled(5))
async def test_a_topic_that_is_made_again_is_gone(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 5)
    b.kafka.topics["t"].topic_id = uuid.uuid4()
    later(b)
    await sink.until("gone")
    assert sink.said == [("fetched", 5), ("gone",)]


@bench(filled(5), topic_metadata_propagation_max_ms=3000)
async def test_a_topic_that_was_never_seen_gets_time(b: Bench) -> None:
    topic = b.kafka.topics.pop("t")
    sink = b.read()
    await asyncio.sleep(2)
    b.kafka.topics["t"] = topic
    await sink.until("fetched", 5)
    other = b.read(7)
    began_s = asyncio.get_running_loop().time()
    assert 3 <= await other.until("gone") - began_s < 5


@bench(filled(5))
async def test_one_metadata_answer_that_lags_takes_no_topic_away(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 5)
    topic = b.kafka.topics.pop("t")
    refreshed = asyncio.create_task(b.cluster.refresh(["t"]))
    await refreshed
    b.kafka.topics["t"] = topic
    later(b)
    await sink.until("fetched", 6)


# -- brokers that are away ------------------------------------------------------------------------


@bench(filled(1), filled(1, leader=2), nodes=2)
async def test_a_broker_that_is_away_does_not_stop_the_others(b: Bench) -> None:
    b.kafka.down.add(b.kafka.nodes[2])
    with capture_logs() as logs:
        away, there = b.read(1), b.read(0)
        for n in range(1, 30):
            await there.until("fetched", n)
            later(b)
            await asyncio.sleep(0.1)
    assert [entry["event"] for entry in logs] == ["broker can not be read"]
    b.kafka.down.clear()
    await away.until("fetched", 1)


@bench(filled(1))
async def test_a_broker_that_comes_back_at_another_address_is_found(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 1)
    old, new = b.kafka.nodes[1], Endpoint("node", 9500)
    b.kafka.nodes[1] = new
    b.kafka.first[old] = 1
    b.kafka.down.add(old)
    later(b)
    with capture_logs():
        await sink.until("fetched", 2)
    assert b.kafka.made[b.kafka.fetches[-1].connection].endpoint == new


@bench(filled(1), filled(1, leader=2), nodes=2)
async def test_a_broker_that_nothing_is_read_from_is_let_go(b: Bench) -> None:
    sink = b.read(1)
    await sink.until("fetched", 1)
    assert sink.fetching is not None
    sink.fetching.close()
    await asyncio.sleep(fetch_source.SOURCE_IDLE_S + 1)
    assert b.fetcher._sources == {}
    assert all(made.closed for made in b.kafka.made if made.number in
               {asked.connection for asked in b.kafka.fetches})  # fmt: skip


# -- replicas (KIP-392) -----------------------------------------------------------------------


@bench(filled(1, read_at=2), nodes=2, client_rack="b", metadata_max_age_ms=20_000)
async def test_the_leaders_advice_is_followed_for_a_while(b: Bench) -> None:
    sink = b.read(last_epoch=0)
    await sink.until("fetched", 1)
    assert [asked.node for asked in b.kafka.fetches[:2]] == [1, 2]
    assert b.kafka.fetches[0].request.rack_id == "b"
    assert b.kafka.fetches[1].request.topics[0].partitions[0].last_fetched_epoch == -1
    before = asyncio.get_running_loop().time()
    await asyncio.sleep(25)
    later(b)
    await sink.until("fetched", 2)
    assert any(asked.node == 1 and asked.at_s > before for asked in b.kafka.fetches)


@bench(filled(5, read_at=2), nodes=2, client_rack="b")
async def test_out_of_range_at_a_follower_is_asked_of_the_leader(b: Bench) -> None:
    log = log_of(b)

    def on_fetch(asked: Any) -> None:
        log.start = 5 if asked.node == 2 else 0
        if asked.node == 1 and any(each.node == 2 for each in b.kafka.fetches):
            log.read_at = -1

    b.kafka.on_fetch = on_fetch
    sink = b.read()
    await sink.until("fetched", 5)
    assert [asked.node for asked in b.kafka.fetches[:3]] == [1, 2, 1]


@bench(filled(1, read_at=2), nodes=2, client_rack="b")
async def test_a_follower_that_is_away_is_left(b: Bench) -> None:
    b.kafka.down.add(b.kafka.nodes[2])
    with capture_logs():
        sink = b.read()
        await b.until(lambda: len(b.kafka.fetches) >= 2)
        log_of(b).read_at = -1
        await sink.until("fetched", 1)


# -- many ---------------------------------------------------------------------------------------


@bench(*[filled(1, leader=1 + n % 3) for n in range(300)], nodes=3)
async def test_many_partitions_share_requests(b: Bench) -> None:
    sinks = [b.read(n) for n in range(300)]
    for sink in sinks:
        await sink.until("fetched", 1)
    assert len(b.kafka.metadata) <= 2
    assert len(b.kafka.fetches) <= 12
    await b.until(lambda: b.kafka.fetches[-1].at_s > 2)
    assert b.kafka.fetches[-1].named == []


@bench(filled(1, leader=-1))
async def test_a_partition_without_a_leader_waits_for_one(b: Bench) -> None:
    sink = b.read()
    await asyncio.sleep(10)
    assert 5 < len(b.kafka.metadata) < 20
    log_of(b).leader = 1
    await sink.until("fetched", 1)


@bench(filled(1))
async def test_closing_ends_a_poll(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 1)
    assert sink.fetching is not None
    sink.fetching.close()
    later(b)
    await asyncio.sleep(3)
    assert sink.said == [("fetched", 1)]
