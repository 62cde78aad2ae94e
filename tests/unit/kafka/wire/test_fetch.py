"""The bytes of Fetch, compared with kio's; and answers that nobody should believe."""

from __future__ import annotations

import io
import random
import struct
import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as by_name_request
from kio.schema.fetch.v12 import response as by_name
from kio.schema.fetch.v13 import request as by_id_request
from kio.schema.fetch.v13 import response as by_id
from kio.serial import entity_reader, entity_writer

from sharecoord.errors import KafkaUnavailableError
from sharecoord.kafka.wire import fetch
from sharecoord.kafka.wire.fetch import Wanted
from tests.unit.kafka.wire.fake_kafka import SECOND, batch

TOPIC_ID = uuid.UUID(int=0x1234)
NAMES: dict[int, tuple[fetch.TopicName, Any, Any, str, Any]] = {
    fetch.BY_NAME: ("örders", by_name_request, by_name, "topic", "örders"),
    fetch.BY_ID: (TOPIC_ID.bytes, by_id_request, by_id, "topic_id", TOPIC_ID),
}
VERSIONS = sorted(NAMES)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_what_it_says(version: int) -> None:
    name, module, _, field, kio_name = NAMES[version]
    many = [Wanted(n, n << 33, 4, 3, 1 << 20) for n in range(200)]
    body = fetch.request(
        version,
        [(name, many)],
        [(name, [1, 2, 300])],
        session=(77, 5),
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=4 << 20,
        committed=True,
        rack="b",
    )
    found, end = entity_reader(module.FetchRequest)(body, 0)
    assert end == len(body)
    assert (found.session_id, found.session_epoch, found.replica_id) == (77, 5, -1)
    assert (found.max_wait, found.min_bytes, found.max_bytes) == (SECOND / 2, 1, 4 << 20)
    assert (found.isolation_level, found.rack_id) == (1, "b")
    (topic,), (forgotten,) = found.topics, found.forgotten_topics_data
    assert getattr(topic, field) == getattr(forgotten, field) == kio_name
    assert list(forgotten.partitions) == [1, 2, 300]
    assert [
        Wanted(
            each.partition,
            each.fetch_offset,
            each.current_leader_epoch,
            each.last_fetched_epoch,
            each.partition_max_bytes,
        )
        for each in topic.partitions
    ] == many
    assert {each.log_start_offset for each in topic.partitions} == {-1}


def answered(version: int, *parts: Any, error: ErrorCode = ErrorCode.none) -> bytes:
    _, _, module, field, kio_name = NAMES[version]
    out = io.BytesIO()
    answer = module.FetchResponse(
        throttle_time=SECOND,
        error_code=error,
        session_id=9,
        responses=(module.FetchableTopicResponse(**{field: kio_name}, partitions=parts),),
    )
    entity_writer(module.FetchResponse)(out, answer)
    return out.getvalue()


def part(version: int, number: int, records: bytes | None, **fields: Any) -> Any:
    module = NAMES[version][2]
    return module.PartitionData(
        partition_index=number,
        error_code=fields.pop("error_code", ErrorCode.none),
        high_watermark=90,
        last_stable_offset=80,
        log_start_offset=10,
        records=records,
        **{"aborted_transactions": None, **fields},
    )


def full(version: int) -> bytes:
    module = NAMES[version][2]
    return answered(
        version,
        part(version, 0, batch(3, 2), preferred_read_replica=4),
        part(
            version,
            1,
            None,
            error_code=ErrorCode.fenced_leader_epoch,
            diverging_epoch=module.EpochEndOffset(epoch=2, end_offset=55),
            current_leader=module.LeaderIdAndEpoch(leader_id=3, leader_epoch=8),
            aborted_transactions=(
                module.AbortedTransaction(producer_id=1 << 40, first_offset=60),
                module.AbortedTransaction(producer_id=2, first_offset=70),
            ),
        ),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_is_read_as_it_was_written(version: int) -> None:
    found = fetch.answer(version, memoryview(full(version)))
    assert (found.throttle_ms, found.error, found.session_id) == (1000, 0, 9)
    first, second = found.found
    assert first.topic == second.topic == NAMES[version][0]
    assert bytes(first.records) == batch(3, 2)
    assert (first.high_watermark, first.last_stable_offset, first.log_start_offset) == (90, 80, 10)
    assert (first.diverging_epoch, first.leader, first.read_at, first.aborted) == (
        None,
        None,
        4,
        [],
    )
    assert (second.partition, second.error, second.read_at) == (1, 74, -1)
    assert (second.diverging_epoch, second.leader) == ((2, 55), (3, 8))
    assert second.aborted == [(1 << 40, 60), (2, 70)]
    assert len(second.records) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_is_cut_or_changed_is_refused_or_read(version: int) -> None:
    whole = full(version)
    for end in range(len(whole) - 1):
        with pytest.raises(KafkaUnavailableError, match="can not be read"):
            fetch.answer(version, memoryview(whole[:end]))
    chance = random.Random(5)
    for _ in range(3000):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            found = fetch.answer(version, memoryview(changed))
        except KafkaUnavailableError:
            continue
        assert all(len(each.records) <= len(changed) for each in found.found)


def test_a_number_without_an_end_is_refused() -> None:
    with pytest.raises(KafkaUnavailableError, match="more than 5 bytes"):
        fetch.answer(12, memoryview(bytes(10) + b"\xff" * 100))


def test_the_reach_of_whole_batches() -> None:
    assert fetch.reach(memoryview(b"")) == (-1, -1, 0)
    two = batch(5, 3, epoch=4) + batch(9, 2, epoch=6, size=20)
    assert fetch.reach(memoryview(two)) == (11, 6, 0)
    assert fetch.reach(memoryview(two[:-1])) == (8, 4, 0)
    assert fetch.reach(memoryview(two[:70])) == (8, 4, 0)
    assert fetch.reach(memoryview(two[:30])) == (-1, -1, 61)
    assert fetch.reach(memoryview(two[:5])) == (-1, -1, 24)
    assert fetch.reach(memoryview(batch(5, 1, magic=1))) == (6, -1, 0)


@pytest.mark.parametrize(
    ("at", "bad"),
    [(8, struct.pack(">i", -5)), (8, struct.pack(">i", 3)), (23, b"\xff\xff\xff\xff"),
     (0, b"\xff" * 8)],
)  # fmt: skip
def test_a_batch_that_is_not_possible_is_refused(at: int, bad: bytes) -> None:
    data = bytearray(batch(5, 3))
    data[at : at + len(bad)] = bad
    with pytest.raises(ValueError, match="the batch at offset"):
        fetch.reach(memoryview(data))
    short = batch(5, 3)[:8] + struct.pack(">i", 20) + batch(5, 3)[12:32]
    with pytest.raises(ValueError, match="impossible length, 20"):
        fetch.reach(memoryview(short))
