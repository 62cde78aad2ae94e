"""Who wants something else than share groups at the Kafka port hears what docs/wire.md says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.maven import find_java, kafka_libs
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.topics import Topics
from tests.conftest import TopicFactory
from tests.support import KafkaUnderTest, eventually

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
PROGRAM = ROOT / "tests" / "java" / "WrongClients.java"
TOPIC = "parcels"
"""What the page calls the topic."""

WAIT_S = 60

pytestmark = pytest.mark.timeout(300)


def told_by_the_page(client: str) -> dict[str, str]:
    """By what the client does: what it is told."""
    rows = re.findall(rf"^\| {client} \| (.+) \| `(.+)` \|$", PAGE, re.MULTILINE)
    return {re.sub(r" \(.*\)", "", did).replace("`", ""): told for did, told in rows}


@pytest.fixture(scope="module")
def port(kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a coordinator's Kafka port."""
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    settings = {"kafka.port.listen": address, "security.audit.sink": "off"}
    folder = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(kafka_broker.bootstrap_servers, folder, settings=settings):
        yield address


@pytest.fixture
def filled(topic: TopicFactory, topics: Topics) -> str:
    name = topic()
    topics.produce(name, 1)
    return name


class Fatal:
    """Takes what confluent_kafka raises for a fatal error: at times no exception of Python."""

    said = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: Any, _trace: object) -> bool:
        self.said = str((error.args[0] if isinstance(error, KafkaException) else error).str())
        return True


def test_librdkafkas_clients(port: str, filled: str) -> None:
    place = {"bootstrap.servers": port, "log_level": 0}

    def produces() -> str:
        errors: list[KafkaError] = []
        producer = Producer(place)
        producer.produce(filled, b"v", on_delivery=lambda error, _: errors.append(error))
        producer.flush(WAIT_S)
        return str(errors[0].str())

    def produces_once() -> str:
        producer = Producer({**place, "enable.idempotence": True})
        producer.produce(filled, b"v")
        with Fatal() as fatal:
            producer.flush(WAIT_S)
        return fatal.said

    def begins() -> str:
        producer = Producer({**place, "transactional.id": "x"})
        return said_by(lambda: producer.init_transactions(WAIT_S))

    def makes() -> str:
        admin = AdminClient(place)
        (made,) = admin.create_topics([NewTopic("never", 1, 1)]).values()
        told = said_by(lambda: made.result(WAIT_S))
        del admin  # What it was asked for ends with it.
        return told

    heard = {
        "produces": produces(),
        "produces with enable.idempotence=true": produces_once(),
        "begins with transactions": begins(),
        "subscribes as a plain consumer": consumed(place, lambda c: c.subscribe([filled])),
        "reads an assigned partition": consumed(
            place, lambda c: c.assign([TopicPartition(filled, 0, 0)])
        ),
        "makes a topic": makes(),
    }
    assert heard == told_by_the_page(r"librdkafka 2\.16\.1")


def said_by(attempt: Callable[[], object]) -> str:
    with pytest.raises(KafkaException) as raised:
        attempt()
    return str(raised.value.args[0].str())


def consumed(place: dict[str, Any], begin: Callable[[Consumer], object]) -> str:
    """The first error that a plain consumer is told."""
    consumer = Consumer({**place, "group.id": "plain"})
    begin(consumer)
    said: list[str] = []

    def something() -> bool:
        message = consumer.poll(0.2)
        error = None if message is None else message.error()
        said.extend([] if error is None else [error.str()])
        return bool(said)

    eventually(something, WAIT_S, what="an error")
    consumer.close()
    return said[0]


def test_javas_clients(port: str, filled: str) -> None:
    java = [str(find_java()), "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", f"{kafka_libs()}/*"]
    done = subprocess.run(
        [*java, str(PROGRAM), port, filled],
        capture_output=True,
        text=True,
        check=True,
        timeout=4 * WAIT_S,
    )
    lines = [line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line]
    heard = {did: told.replace(filled, TOPIC) for did, told in lines}
    assert heard == told_by_the_page(r"Java 4\.3\.1")
