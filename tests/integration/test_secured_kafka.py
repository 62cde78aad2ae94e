"""The main job on a Kafka that lets nobody in without TLS or a log-in: each way in, each reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from sharecoord_sdk import ShareConsumer

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.certificates import Authority
from tests.integration.test_wire_security import (
    KEY_PASSWORD,
    LISTENERS,
    PASSWORD,
    Cluster,
    broker_settings,
)
from tests.support import poll_until, unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(200)]

VERSIONS = (
    "4.3.1",
    *(pytest.param(each, marks=pytest.mark.long) for each in ("2.8.2", "3.9.1", "4.4.0")),
)
READERS = ("raw", pytest.param("librdkafka", marks=pytest.mark.long))
SAYS = {"raw": "records are read as raw batches", "librdkafka": "records are read by librdkafka"}
RECORDS = 300


@pytest.fixture(scope="module", params=VERSIONS)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A broker of each release with a listener for each way in."""
    ca = Authority(tmp_path_factory.mktemp("certificates"))
    settings = broker_settings(ca, ca.issue("server", password=KEY_PASSWORD))
    with KafkaBroker(request.param, settings=settings, listeners=LISTENERS) as broker:
        client = ca.issue("client")
        yield Cluster(broker, ca, client, client)


@pytest.fixture(scope="module")
def filled(guarded: Cluster) -> str:
    """A topic with records."""
    topics, name = Topics(guarded.broker.bootstrap_servers), unique_name("guarded")
    topics.create(name)
    topics.produce(name, RECORDS)
    return name


@pytest.fixture(scope="module")
def alice(guarded: Cluster) -> None:
    """A user who may log in with SCRAM of both kinds."""
    admin = AdminClient({"bootstrap.servers": guarded.broker.bootstrap_servers})

    def known(kind: ScramMechanism) -> None:
        user = UserScramCredentialUpsertion(
            "alice", ScramCredentialInfo(kind, 4096), PASSWORD.encode(), b"salt"
        )
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result(20)

    known(ScramMechanism.SCRAM_SHA_256)
    known(ScramMechanism.SCRAM_SHA_512)


def everything_comes(
    cluster: Cluster, listener: str, settings: Mapping[str, str], reader: str, topic: str, at: Path
) -> None:
    """A coordinator that knows this way in alone delivers the topic, and finishes it."""
    kafka = {f"kafka.{key}": value for key, value in {**settings, "reader": reader}.items()}
    with CoordinatorProcess(cluster.broker.address(listener), at, settings=kafka) as process:
        consumer = ShareConsumer(
            {"bootstrap.servers": process.address, "group.id": unique_name("g")}
        )
        try:
            consumer.subscribe([topic])
            found = poll_until(consumer, RECORDS)
            assert [message.offset() for message in found] == list(range(RECORDS))
            outcome = consumer.commit_sync(timeout=20.0)
            assert all(error is None for error in outcome.values()), outcome
        finally:
            consumer.close()
        assert SAYS[reader] in process.log_tail()


@pytest.mark.parametrize("reader", READERS)
def test_tls(guarded: Cluster, filled: str, reader: str, tmp_path: Path) -> None:
    everything_comes(guarded, "TLS", guarded.settings("ssl"), reader, filled, tmp_path)


@pytest.mark.parametrize("reader", READERS)
def test_a_certificate_of_ours(guarded: Cluster, filled: str, reader: str, tmp_path: Path) -> None:
    pair = guarded.client
    mutual = guarded.settings(
        "ssl", ssl_certificate_location=pair.certificate, ssl_key_location=pair.key
    )
    everything_comes(guarded, "MUTUAL", mutual, reader, filled, tmp_path)


@pytest.mark.parametrize("reader", READERS)
def test_a_password(guarded: Cluster, filled: str, reader: str, tmp_path: Path) -> None:
    plain = guarded.sasl("sasl_plaintext", "PLAIN", "wonder")
    everything_comes(guarded, "PLAIN", plain, reader, filled, tmp_path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.usefixtures("alice")
def test_a_password_that_is_never_sent(
    guarded: Cluster, filled: str, mechanism: str, reader: str, tmp_path: Path
) -> None:
    scram = guarded.sasl("sasl_ssl", mechanism)
    everything_comes(guarded, "SCRAM", scram, reader, filled, tmp_path)


@pytest.mark.parametrize("reader", READERS)
def test_a_token(guarded: Cluster, filled: str, reader: str, tmp_path: Path) -> None:
    bearer = guarded.settings("sasl_plaintext", sasl_mechanism="OAUTHBEARER")
    unsigned = {
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=alice",
    }
    everything_comes(guarded, "BEARER", {**bearer, **unsigned}, reader, filled, tmp_path)
