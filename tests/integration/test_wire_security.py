"""A connection of our own to a real broker: TLS, SASL, and log-in again under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kio.schema.metadata.v4.request import MetadataRequest
from kio.schema.metadata.v4.response import MetadataResponse

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.errors import DevenvError
from sharecoord.errors import KafkaUnavailableError, SharecoordError, UnauthenticatedError
from sharecoord.kafka.wire.broker import Broker, BrokerOptions
from sharecoord.kafka.wire.connection import Endpoint
from sharecoord.kafka.wire.security import Security, security_of
from sharecoord.kafka.wire.tokens import unsecured
from sharecoord.ports import LATEST, OffsetQuery
from tests.certificates import Authority, Pair
from tests.contract.catalogs import asking
from tests.unit.kafka.wire.token_endpoint import TokenEndpoint

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(100)]

PASSWORD = "wönder, = ª"
LISTENERS = {
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "PLAIN": "SASL_PLAINTEXT",
    "SCRAM": "SASL_SSL",
    "BEARER": "SASL_PLAINTEXT",
    "SHORT": "SASL_SSL",
}
KEY_PASSWORD = "s3cret"
SESSION_S = 3.0
_MODULES = "org.apache.kafka.common.security"


def listener(name: str, **settings: str) -> dict[str, str]:
    return {
        f"listener.name.{name.lower()}.{key.replace('_', '.')}": value
        for key, value in settings.items()
    }


def broker_settings(ca: Authority, server: Pair) -> dict[str, str]:
    plain = f'{_MODULES}.plain.PlainLoginModule required user_alice="wonder";'
    scram = f"{_MODULES}.scram.ScramLoginModule required;"
    bearer = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required"
    tls = {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(server.together()),
        # Kafka 2.8 takes encrypted keys alone.
        "ssl_key_password": KEY_PASSWORD,
    }
    clients = {"ssl_truststore_type": "PEM", "ssl_truststore_location": str(ca.certificate)}
    found = {
        **listener("TLS", **tls),
        **listener("MUTUAL", **tls, **clients, ssl_client_auth="required"),
        **listener("PLAIN", sasl_enabled_mechanisms="PLAIN", plain_sasl_jaas_config=plain),
        **listener("SCRAM", sasl_enabled_mechanisms="SCRAM-SHA-256,SCRAM-SHA-512", **tls),
        **listener("SHORT", sasl_enabled_mechanisms="PLAIN", plain_sasl_jaas_config=plain, **tls),
        **listener("SHORT", connections_max_reauth_ms=str(int(SESSION_S * 1000))),
        **listener(
            "BEARER",
            sasl_enabled_mechanisms="OAUTHBEARER",
            oauthbearer_sasl_jaas_config=f'{bearer} unsecuredLoginStringClaim_sub="broker";',
        ),
    }
    for mechanism in ("scram-sha-256", "scram-sha-512"):
        found[f"listener.name.scram.{mechanism}.sasl.jaas.config"] = scram
    return found


class Cluster:
    """A broker with a listener for each way in."""

    def __init__(self, broker: KafkaBroker, ca: Authority, client: Pair, stranger: Pair) -> None:
        self.broker, self.ca, self.client, self.stranger = broker, ca, client, stranger

    def settings(self, protocol: str, **more: str | Path) -> dict[str, str]:
        trusted = {"ssl_ca_location": self.ca.certificate, **more}
        named = {key.replace("_", "."): str(value) for key, value in trusted.items()}
        return {"security.protocol": protocol, **named}

    def sasl(self, protocol: str, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
        names = {"sasl_mechanism": mechanism, "sasl_username": "alice", "sasl_password": password}
        return self.settings(protocol, **names)

    def endpoint(self, name: str) -> Endpoint:
        address = self.broker.address(name) if name else self.broker.bootstrap_servers
        host, _, port = address.rpartition(":")
        return Endpoint(host, int(port))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("certificates")
    ca = Authority(folder)
    stranger = Authority(folder, "stranger").issue("client")
    settings = broker_settings(ca, ca.issue("server", password=KEY_PASSWORD))
    with KafkaBroker(settings=settings, listeners=LISTENERS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        kinds = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        wanted = [
            UserScramCredentialUpsertion(
                "alice", ScramCredentialInfo(kind, 4096), PASSWORD.encode(), b"salt"
            )
            for kind in kinds
        ]
        for each in wanted:
            for done in admin.alter_user_scram_credentials([each]).values():
                done.result(20)
        yield Cluster(broker, ca, ca.issue("client"), stranger)


@asynccontextmanager
async def linked(endpoint: Endpoint, security: Security) -> AsyncIterator[Broker]:
    broker = Broker(endpoint, security, BrokerOptions(backoff_s=0.0))
    try:
        yield broker
    finally:
        broker.close()
        security.close()
        await asyncio.sleep(0)


async def ask(broker: Broker) -> MetadataResponse:
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    return await broker.call(request, MetadataResponse, timeout_s=20.0)


async def works(cluster: Cluster, name: str, settings: Mapping[str, str]) -> None:
    async with linked(cluster.endpoint(name), security_of(settings)) as broker:
        answer = await ask(broker)
        assert [each.node_id for each in answer.brokers] == [1]
        assert broker.versions[1][1] >= 12


async def refused(cluster: Cluster, name: str, settings: Mapping[str, str]) -> SharecoordError:
    async with linked(cluster.endpoint(name), security_of(settings)) as broker:
        with pytest.raises(SharecoordError) as caught:
            await ask(broker)
        return caught.value


def test_a_listener_has_a_name_and_a_port(cluster: Cluster) -> None:
    addresses = {cluster.broker.address(name) for name in LISTENERS}
    assert len(addresses) == len(LISTENERS)
    with pytest.raises(DevenvError, match="no listener OTHER; it has TLS, MUTUAL"):
        cluster.broker.address("OTHER")
    with pytest.raises(DevenvError, match="call start"):
        KafkaBroker(listeners=LISTENERS).address("TLS")


# -- ways in --------------------------------------------------------------------------------------


async def test_plaintext_and_tls(cluster: Cluster) -> None:
    await works(cluster, "", {})
    await works(cluster, "TLS", cluster.settings("ssl"))


async def test_the_way_in_is_that_of_questions_about_topics_and_offsets(cluster: Cluster) -> None:
    settings = cluster.sasl("sasl_ssl", "SCRAM-SHA-512")
    named = {key.replace(".", "_"): value for key, value in settings.items()}
    async with asking("wire", cluster.broker.address("SCRAM"), **named) as catalog:
        assert len(await catalog.cluster_id()) == 22
        assert await catalog.look("nowhere") is None
        assert await catalog.offsets([OffsetQuery("nowhere", 0, LATEST)]) == {}
    named["sasl_password"] = "wrong"
    async with asking("wire", cluster.broker.address("SCRAM"), **named) as catalog:
        with pytest.raises(KafkaUnavailableError, match=r"check kafka\.sasl\.username"):
            await catalog.cluster_id()


async def test_a_certificate_of_ours(cluster: Cluster) -> None:
    pair = cluster.client
    files = {"ssl_certificate_location": pair.certificate, "ssl_key_location": pair.key}
    await works(cluster, "MUTUAL", cluster.settings("ssl", **files))
    texts = {
        "ssl.certificate.pem": pair.certificate.read_text(),
        "ssl.key.pem": pair.key.read_text(),
    }
    await works(cluster, "MUTUAL", {**cluster.settings("ssl"), **texts})


async def test_names_and_passwords(cluster: Cluster) -> None:
    await works(cluster, "PLAIN", cluster.sasl("sasl_plaintext", "PLAIN", "wonder"))
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        await works(cluster, "SCRAM", cluster.sasl("sasl_ssl", mechanism))


async def test_tokens(cluster: Cluster) -> None:
    bearer = cluster.settings("sasl_plaintext", sasl_mechanism="OAUTHBEARER")
    unsigned = {
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=alice lifeSeconds=60 extension_team=red",
    }
    await works(cluster, "BEARER", {**bearer, **unsigned})
    token = (await unsecured("principal=alice lifeSeconds=60")()).text
    with TokenEndpoint() as endpoint:
        endpoint.answer = lambda: (200, {"access_token": token, "expires_in": 60})
        oidc = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "s3cret",
            "sasl.oauthbearer.token.endpoint.url": endpoint.url,
        }
        await works(cluster, "BEARER", {**bearer, **oidc})
        assert len(endpoint.asked) == 1
        endpoint.answer = lambda: (200, {"access_token": "no.token", "expires_in": 60})
        error = await refused(cluster, "BEARER", {**bearer, **oidc})
    assert isinstance(error, UnauthenticatedError)
    assert "refused OAUTHBEARER" in str(error)
    assert "invalid_token" in str(error)


# -- ways that are none ---------------------------------------------------------------------------

Settings = Callable[[Cluster], Mapping[str, Any]]


def _stranger(cluster: Cluster) -> Mapping[str, Any]:
    pair = cluster.stranger
    files = {"ssl_certificate_location": pair.certificate, "ssl_key_location": pair.key}
    return cluster.settings("ssl", **files)


@pytest.mark.parametrize(
    ("name", "settings", "kind", "said"),
    [
        (
            "PLAIN",
            lambda c: c.sasl("sasl_plaintext", "PLAIN", "no"),
            UnauthenticatedError,
            "refused PLAIN for the user alice: Authentication failed",
        ),
        (
            "SCRAM",
            lambda c: c.sasl("sasl_ssl", "SCRAM-SHA-256", "no"),
            UnauthenticatedError,
            "refused SCRAM-SHA-256 for the user alice: Authentication failed",
        ),
        (
            "PLAIN",
            lambda c: c.sasl("sasl_plaintext", "SCRAM-SHA-256"),
            UnauthenticatedError,
            "does not take kafka.sasl.mechanism=SCRAM-SHA-256; it takes PLAIN",
        ),
        (
            "",
            lambda c: c.sasl("sasl_plaintext", "PLAIN"),
            UnauthenticatedError,
            "has no log-in: set kafka.security.protocol=plaintext",
        ),
        (
            "PLAIN",
            lambda c: {},
            KafkaUnavailableError,
            "wants a log-in: set kafka.security.protocol=sasl_plaintext",
        ),
        (
            "TLS",
            lambda c: {},
            KafkaUnavailableError,
            "set kafka.security.protocol=ssl",
        ),
        (
            "",
            lambda c: c.settings("ssl"),
            KafkaUnavailableError,
            "kafka.security.protocol=plaintext",
        ),
        (
            "MUTUAL",
            lambda c: c.settings("ssl"),
            UnauthenticatedError,
            "wants a certificate of ours",
        ),
        ("MUTUAL", _stranger, UnauthenticatedError, "to the broker's ssl.truststore"),
        (
            "TLS",
            lambda c: c.settings("ssl", ssl_ca_location=c.stranger.certificate),
            UnauthenticatedError,
            "set kafka.ssl.ca.location",
        ),
    ],
)
async def test_what_is_wrong_is_named_with_the_setting(
    cluster: Cluster, name: str, settings: Settings, kind: type[SharecoordError], said: str
) -> None:
    error = await refused(cluster, name, settings(cluster))
    assert said in str(error)
    assert type(error) is kind


# -- log-in again ---------------------------------------------------------------------------------


async def test_sessions_are_renewed_under_load_and_no_request_is_lost(cluster: Cluster) -> None:
    security = security_of(cluster.sasl("sasl_ssl", "PLAIN", "wonder"))
    async with linked(cluster.endpoint("SHORT"), security) as broker:
        connection = await broker.connected()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 2 * SESSION_S

        async def load() -> int:
            count = 0
            while loop.time() < end_s:
                await ask(broker)
                count += 1
            return count

        counts = await asyncio.gather(*(load() for _ in range(4)))
        assert await broker.connected() is connection
        assert min(counts) > 10


# -- other releases -------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("version", ["2.8.2", "3.9.1", "4.4.0"])
async def test_other_releases_let_us_in(tmp_path: Path, version: str) -> None:
    ca = Authority(tmp_path)
    pair = ca.issue("server", password=KEY_PASSWORD)
    names = ("TLS", "PLAIN", "BEARER", "SHORT")
    started = KafkaBroker(
        version,
        settings=broker_settings(ca, pair),
        listeners={name: LISTENERS[name] for name in names},
    )
    with started as broker:
        cluster = Cluster(broker, ca, pair, pair)
        await works(cluster, "", {})
        await works(cluster, "TLS", cluster.settings("ssl"))
        await works(cluster, "PLAIN", cluster.sasl("sasl_plaintext", "PLAIN", "wonder"))
        bearer = cluster.settings("sasl_plaintext", sasl_mechanism="OAUTHBEARER")
        security = security_of(bearer, unsecured("principal=alice"))
        async with linked(cluster.endpoint("BEARER"), security) as found:
            await ask(found)
        await test_sessions_are_renewed_under_load_and_no_request_is_lost(cluster)
