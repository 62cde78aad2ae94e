"""Requests that no client sends: the Kafka port answers them with the codes of Kafka's broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.topics import Topics
from tests.conftest import TopicFactory
from tests.differential.requests_by_hand import ACKNOWLEDGE, Ack, Answer, Hand, connected
from tests.support import KafkaUnderTest, eventually_async

ACCEPT, RENEW = 1, 4
RECORDS = 20
SHORT = {"max_wait": timedelta(milliseconds=50)}
NO_FETCH: dict[str, Any] = {
    "max_wait": timedelta(0),
    "min_bytes": 0,
    "max_bytes": 0,
    "max_records": 0,
    "batch_size": 0,
}
WRONG: dict[str, tuple[Ack, ...]] = {
    "no type": ((0, 0, []),),
    "more types than offsets": ((0, 1, [ACCEPT] * 3),),
    "fewer types than offsets": ((0, 2, [ACCEPT] * 2),),
    "last before first": ((2, 1, [ACCEPT]),),
    "unknown type": ((0, 0, [5]),),
    "negative type": ((0, 0, [-1]),),
    "renewal that is not announced": ((0, 0, [RENEW]),),
    "descending": ((2, 3, [ACCEPT]), (0, 1, [ACCEPT])),
    "overlapping": ((0, 2, [ACCEPT]), (2, 3, [ACCEPT])),
    "twice": ((0, 0, [ACCEPT]), (0, 0, [ACCEPT])),
    "partly never fetched": ((0, 30, [ACCEPT]),),
    "never fetched": ((30, 31, [ACCEPT]),),
    "negative offsets": ((-5, -3, [ACCEPT]),),
    "partly negative offsets": ((-5, 0, [ACCEPT]),),
    "nothing": (),
}


@pytest.fixture(scope="module")
def port(kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a coordinator's Kafka port."""
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    settings = {"kafka.port.listen": address, "security.audit.sink": "off"}
    folder = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(kafka_broker.bootstrap_servers, folder, settings=settings):
        yield address


async def both(
    kafka_broker: KafkaUnderTest,
    port: str,
    topics: Topics,
    topic: str,
    script: Callable[[Hand], Awaitable[dict[str, object]]],
) -> dict[str, object]:
    """What a script is answered by a broker, which is what the port answers too."""
    found = []
    for address in (kafka_broker.bootstrap_servers, port):
        hand = await connected(address, topic)
        if address != port:
            topics.set_group_config(hand.group, {"share.auto.offset.reset": "earliest"})
        try:
            found.append(await script(hand))
        finally:
            await hand.client.close()
    kafka, ours = found
    assert ours == kafka
    return kafka


async def acknowledgements(hand: Hand) -> dict[str, object]:
    await hand.join()
    found: dict[str, object] = {
        "at the opening": await hand.fetch((0, 0, [ACCEPT])),
        "without a session": await hand.acknowledge((0, 0, [ACCEPT]), share_session_epoch=5),
        "to open a session": await hand.acknowledge((0, 0, [ACCEPT])),
        "open": await records(hand),
    }
    for name, said in WRONG.items():
        found[name] = await hand.acknowledge(*said)
        found[f"{name}, with a fetch"] = without_records(await hand.fetch(*said, **NO_FETCH))
    found["renewal and fetch"] = await hand.fetch((1, 1, [RENEW]), is_renew_ack=True)
    for name in NO_FETCH:
        usual = {"max_wait": SHORT["max_wait"]}.get(name, 1)
        given = NO_FETCH | {name: usual}
        found[f"renewal and {name}"] = await hand.fetch((1, 1, [RENEW]), is_renew_ack=True, **given)
    found["renewal"] = await hand.acknowledge((1, 1, [RENEW]), is_renew_ack=True)
    found["renewal of old"] = await hand.acknowledge((1, 1, [RENEW]), version=1)
    found["announced"] = await hand.acknowledge((1, 1, [ACCEPT]), is_renew_ack=True)
    found["finished"] = await hand.acknowledge((1, 1, [ACCEPT]))
    found["partly finished"] = await hand.acknowledge((0, 2, [ACCEPT]))
    found["the first two"] = await hand.acknowledge((0, 0, [ACCEPT]), (2, 2, [ACCEPT]))
    found["below the start"] = await hand.acknowledge((0, 1, [ACCEPT]))
    found["across the start"] = await hand.acknowledge((1, 3, [ACCEPT]))
    found["another partition"] = await hand.acknowledge((0, 0, [ACCEPT]), partition=7)
    unknown = hand.topics(ACKNOWLEDGE, [(0, 0, [ACCEPT])], topic_id=UUID(int=77))
    found["another topic"] = await hand.acknowledge(topics=unknown)
    return found


async def records(hand: Hand) -> list[tuple[int, int, int]]:
    """Fetches until records come: a share-partition may be loading yet."""
    found: list[tuple[int, int, int]] = []

    async def came() -> bool:
        answer = await hand.fetch()
        found.extend(answer.acquired)
        return bool(found)

    await eventually_async(came, 30, "records")
    return found


def without_records(answer: Answer) -> Answer:
    """Without the records: how many come at once is chance."""
    return answer._replace(acquired=[])


async def test_acknowledgements_get_the_codes_of_a_broker(
    kafka_broker: KafkaUnderTest, port: str, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    topics.produce(name, RECORDS, one_record_batches=True)
    found = await both(kafka_broker, port, topics, name, acknowledgements)
    assert found["never fetched"] == Answer(0, {("topic", 0): (0, 42)})
    assert found["twice"] == Answer(0, {("topic", 0): (0, 121)})


async def sessions(hand: Hand) -> dict[str, object]:
    await hand.join()
    found: dict[str, object] = {
        "unknown mode": await hand.fetch(share_acquire_mode=7),
        "no records": await hand.fetch(max_records=-1),
        "no bytes": await hand.fetch(max_bytes=0),
        "open": await records(hand),
        "another partition": without_records(
            await hand.fetch((0, 0, [ACCEPT]), partition=7, **SHORT)
        ),
    }
    for epoch in (hand.epoch + 1, hand.epoch - 1, -2):
        found[f"epoch {epoch}"] = await hand.fetch(share_session_epoch=epoch)
        found[f"epoch {epoch}, words"] = await hand.acknowledge(
            share_session_epoch=epoch, topics=()
        )
    for name, given in {
        "no group": {"group_id": None},
        "no member": {"member_id": None},
        "an empty member": {"member_id": ""},
        "a long member": {"member_id": "x" * 37},
    }.items():
        found[name] = await hand.fetch(**given)
        found[f"{name}, words"] = await hand.acknowledge(topics=(), **given)
    found["opened"] = without_records(await hand.fetch())
    hand.epoch = 0
    found["opened again"] = without_records(await hand.fetch())
    found["held before"] = await hand.acknowledge((0, 0, [ACCEPT]))
    for name in ("closed", "closed twice"):
        found[name] = await hand.fetch(share_session_epoch=-1, topics=())
        found[f"{name}, words"] = await hand.acknowledge(share_session_epoch=-1, topics=())
    return found


async def test_sessions_get_the_codes_of_a_broker(
    kafka_broker: KafkaUnderTest, port: str, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    topics.produce(name, RECORDS, one_record_batches=True)
    found = await both(kafka_broker, port, topics, name, sessions)
    assert found["another partition"] == Answer(0, {("topic", 7): (3, 3)})
    assert found["closed twice"] == Answer(122)


async def heartbeats(hand: Hand) -> dict[str, object]:
    await hand.join()
    asked: dict[str, tuple[int, dict[str, Any]]] = {
        "no group": (0, {"group_id": ""}),
        "no member": (0, {"member_id": ""}),
        "a long member": (0, {"member_id": "x" * 37}),
        "no topics": (0, {"subscribed_topic_names": None}),
        "empty topics": (0, {"subscribed_topic_names": ()}),
        "an empty rack": (0, {"rack_id": ""}),
        "below all epochs": (-2, {}),
        "above all epochs": (999, {}),
        "a stranger": (3, {"member_id": str(uuid4())}),
        "a stranger leaves": (-1, {"member_id": str(uuid4())}),
        "leaves": (-1, {}),
        "leaves twice": (-1, {}),
        "after all": (1, {}),
    }
    found: dict[str, object] = {}
    for name, (epoch, given) in asked.items():
        found[name] = (await hand.heartbeat(epoch, **given)).error_code.value
    return found


async def test_heartbeats_get_the_codes_of_a_broker(
    kafka_broker: KafkaUnderTest, port: str, topics: Topics, topic: TopicFactory
) -> None:
    found = await both(kafka_broker, port, topics, topic(), heartbeats)
    assert (found["above all epochs"], found["leaves twice"]) == (110, 25)
