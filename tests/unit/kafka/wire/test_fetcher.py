"""Partitions are read in order, in requests that name what has changed."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from sharecoord.kafka.wire import fetch, fetch_source, fetcher
from tests.unit.kafka.wire.fake_kafka import Log
from tests.unit.kafka.wire.fetch_bench import Bench, Sink, bench, filled, later, log_of

LONG_S = 5.0

ROUND_S = 0.001
"""How long the brokers of the bench take to answer."""


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


def working(b: Bench, seconds: float) -> Sink:
    """A sink, and behind it a process that works for so long with what comes."""
    sink = Sink()

    def then(_: fetch.Found) -> None:
        b.kafka.worked_s += seconds

    sink.then = then
    sink.fetching = b.fetcher.fetch("t", 0, 0, -1, sink)
    return sink


@bench(filled(1))
async def test_of_records_that_come_one_by_one_some_come_together(b: Bench) -> None:
    sink = working(b, 0.002)
    for _ in range(100):
        later(b)
        await asyncio.sleep(0.0005)
    await sink.until("fetched", 101)
    # It works for 2 ms, rests for as long, and the broker takes one.
    assert 15 <= len(b.kafka.fetches) <= 20
    assert rounds_s(b) == pytest.approx([0.003] * 9, abs=0.0006)


@bench(filled(1))
async def test_where_many_records_come_together_it_rests_for_longer(b: Bench) -> None:
    working(b, 0.002)
    for _ in range(130):
        later(b, 10)
        await asyncio.sleep(0.0005)
    assert rounds_s(b) == pytest.approx([0.005] * 9, abs=0.0006)


def rounds_s(b: Bench) -> list[float]:
    return [b.at_s - a.at_s for a, b in itertools.pairwise(b.kafka.fetches[2:12])]


@bench(filled(1))
async def test_however_long_it_works_no_record_waits_for_longer_than_a_rest(b: Bench) -> None:
    sink = working(b, 1.0)
    await sink.until("fetched", 1)
    later(b)
    await sink.until("fetched", 2)
    at_s = asyncio.get_running_loop().time()
    later(b)
    rest_s = fetch_source.REST_MAX_S
    assert await sink.until("fetched", 3) - at_s == pytest.approx(rest_s + ROUND_S)


@bench(filled(*[1] * 50, size=900), max_partition_fetch_bytes=1000)
async def test_what_the_log_has_more_is_asked_for_without_a_rest(b: Bench) -> None:
    sink = working(b, 1.0)
    at_s = asyncio.get_running_loop().time()
    assert await sink.until("fetched", 50) - at_s == pytest.approx(51 * ROUND_S)
    assert len(b.kafka.fetches) >= 50


@bench(filled(1))
async def test_after_an_answer_that_was_waited_for_there_is_no_rest(b: Bench) -> None:
    sink = working(b, 1.0)
    await sink.until("fetched", 1)
    for end in (2, 3, 4):
        await asyncio.sleep(0.1)
        at_s = asyncio.get_running_loop().time()
        later(b)
        assert await sink.until("fetched", end) == at_s
        await b.until(lambda end=end: len(b.kafka.fetches) == end + 1)
        assert b.kafka.fetches[-1].at_s == pytest.approx(at_s + ROUND_S)


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
async def test_a_sink_that_closes_and_fails_is_called_no_more(b: Bench) -> None:
    sink = Sink()

    def then(found: fetch.Found) -> None:
        fetching.close()
        raise RuntimeError("gone")

    sink.then = then
    with capture_logs():
        fetching = b.fetcher.fetch("t", 0, 0, -1, sink)
        await b.until(lambda: fetching.closed)
        await asyncio.sleep(10)
    # The second request was on its way.
    assert (sink.found, len(b.kafka.fetches)) == ([], 2)
    assert b.fetcher._sources == {}


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
    assert [len(found.records) for found in held.found] == [0]
    log_of(b).stable = 3
    b.kafka.notify()
    await held.until("fetched", 3)


@bench(
    filled(*[1] * 80, size=900),
    filled(1, size=30_000),
    filled(*[1] * 80, size=900),
    fetch_max_bytes=9_000,
    max_partition_fetch_bytes=4_000,
)
async def test_a_batch_larger_than_an_answer_has_room_beside_others(b: Bench) -> None:
    b.read(0)
    b.read(2)
    large = b.read(1)
    await large.until("fetched", 1)
    assert len(b.kafka.fetches) < 15
    sizes = [asked.request.max_bytes for asked in b.kafka.fetches]
    assert max(sizes) == 9_000 + 30_061


@bench(Log(), filled(3))
async def test_the_end_of_a_log_is_told_and_that_it_moves(b: Bench) -> None:
    empty, full = b.read(0), b.read(1, offset=3)
    for sink in (empty, full):
        await sink.until("fetched", -1)
    assert [sink.found[0].high_watermark for sink in (empty, full)] == [0, 3]
    assert [len(sink.found[0].records) for sink in (empty, full)] == [0, 0]


@bench(filled(3))
async def test_what_a_sink_has_counts_no_more_as_being_received(b: Bench) -> None:
    sink = b.read()
    counted: list[int] = []
    sink.then = lambda _: counted.append(b.cluster.receiving_bytes)
    await sink.until("fetched", 3)
    assert counted == [0]


@bench(filled(1), filled(1))
async def test_a_connection_that_ends_keeps_no_records_back(b: Bench) -> None:
    sink = b.read()

    def end(asked: Any) -> None:
        b.kafka.silent.add(b.kafka.nodes[1])
        b.kafka.down.add(b.kafka.nodes[1])

    b.kafka.on_fetch = end
    assert await sink.until("fetched", 1) < 0.1
    b.kafka.on_fetch = lambda asked: None
    b.kafka.silent.clear()
    b.kafka.down.clear()


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


@bench(filled(1))
async def test_an_answer_at_the_quota_is_no_proof_of_an_end(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 1)
    assert sink.fetching is not None
    await b.until(lambda: len(b.kafka.fetches) == 2)
    before_s = sink.fetching.drained_s
    b.kafka.throttle_s = 3.0
    await b.until(lambda: len(b.kafka.fetches) == 3)
    assert sink.fetching.drained_s == before_s
    await b.until(lambda: len(b.kafka.fetches) == 4)
    assert sink.fetching.drained_s > before_s


@bench(filled(1), filled(1))
async def test_an_error_is_no_proof_of_an_end_and_time_never_goes_back(b: Bench) -> None:
    sink = b.read()
    await sink.until("fetched", 1)
    fetching = sink.fetching
    assert fetching is not None
    await b.until(lambda: len(b.kafka.fetches) == 3)
    known_s = fetching.drained_s
    log_of(b).error = int(ErrorCode.not_leader_or_follower)
    b.kafka.notify()
    await asyncio.sleep(5)
    assert fetching.drained_s == known_s
    log_of(b).error = 0
    await b.until(lambda: fetching.drained_s > known_s)
    known_s = fetching.drained_s
    b.kafka.error = int(ErrorCode.unknown_server_error)
    await b.until(lambda: b.kafka.error == 0)
    assert fetching.drained_s >= known_s


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


@bench(*[filled(1, leader=1 + n) for n in range(40)], nodes=40)
async def test_with_many_brokers_answers_are_smaller(b: Bench) -> None:
    assert b.fetcher.answer_bytes_max == 4 << 20
    for sink in [b.read(n) for n in range(40)]:
        await sink.until("fetched", 1)
    assert b.fetcher.answer_bytes_max == fetcher.UNDER_WAY_BYTES_MAX // 80
    await b.until(lambda: b.kafka.fetches[-1].at_s > 1)
    assert b.kafka.fetches[-1].request.max_bytes == fetcher.UNDER_WAY_BYTES_MAX // 80


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


@bench(filled(1))
async def test_closing_waits_for_no_broker(b: Bench) -> None:
    b.kafka.silent.update(b.kafka.nodes.values())
    b.read()
    await b.until(lambda: b.fetcher._sources)
    await asyncio.sleep(0.01)
    began_s = asyncio.get_running_loop().time()
    await b.fetcher.close()
    await b.cluster.close()
    assert asyncio.get_running_loop().time() == began_s
