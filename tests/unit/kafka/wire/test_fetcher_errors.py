"""What brokers refuse, leaders that change, brokers that are away: reading goes on, or ends."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i64
from structlog.testing import capture_logs

from sharecoord.kafka.wire import fetch_source, fetcher
from sharecoord.kafka.wire.connection import Endpoint
from tests.unit.kafka.wire.fetch_bench import Bench, bench, filled, later, log_of

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


@bench(filled(1), filled(1, leader=2), nodes=2, socket_timeout_ms=60_000)
async def test_a_broker_that_does_not_answer_is_left_in_time(b: Bench) -> None:
    sinks = [b.read(n) for n in range(2)]
    for sink in sinks:
        await sink.until("fetched", 1)
    b.kafka.silent.add(b.kafka.nodes[2])
    log = log_of(b, 1)
    log.leader, log.epoch = 1, 1
    began_s = asyncio.get_running_loop().time()
    with capture_logs():
        for n in range(2):
            later(b, partition=n)
        assert await sinks[0].until("fetched", 2) - began_s < 0.1
        assert await sinks[1].until("fetched", 2) - began_s < 5


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
