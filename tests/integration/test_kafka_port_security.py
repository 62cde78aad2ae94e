"""Unmodified share consumers at a Kafka port with TLS, credentials and rules."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import jwt
import pytest
import yaml
from confluent_kafka import KafkaError, ShareConsumer
from cryptography.hazmat.primitives.asymmetric import rsa

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.maven import find_java, kafka_libs
from sharecoord.devenv.processes import free_ports
from sharecoord.devenv.topics import Topics
from sharecoord.security.scram import HASHES, make_verifier
from tests.certificates import Authority, Live, Pair, pem_of, shown_at
from tests.support import KafkaUnderTest, eventually, unique_name

pytestmark = pytest.mark.timeout(240)

WAIT_S = 60
ISSUER, AUDIENCE = "https://issuer.test", "sharecoord"
MECHANISMS = ("PLAIN", *HASHES, "OAUTHBEARER")
RECORDS = 20
REAUTHENTICATION_S = 6
"""librdkafka proves it again after nine tenths of it: a crowded machine needs the rest."""
RULES = """
rules:
  - allow: [consume]
    principals: ["User:worker"]
    resources: ["group:g-*", "topic:t-*"]
  - allow: ["*"]
    principals: ["User:operator"]
    resources: ["group:*"]
  - allow: [consume]
    principals: ["User:other"]
    resources: ["group:g-*"]
"""


class Place:
    """A coordinator whose Kafka port knows its clients."""

    def __init__(self, servers: str, folder: Path, *, with_clients: bool = False) -> None:
        self.folder, self.authority = folder, Authority(folder)
        self.live = Live(folder / "live", self.authority.issue("server"))
        self.port, self._metrics_port = free_ports(2)
        self.address = f"localhost:{self.port}"
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.trail = folder / "audit.jsonl"
        settings: dict[str, object] = {
            "kafka.port.listen": self.address,
            "tls.cert.file": str(self.live.certificate),
            "tls.key.file": str(self.live.key),
            "management.port": self._metrics_port,
            "security.audit.sink": f"file:{self.trail}",
        }
        if with_clients:
            settings["tls.client.ca.file"] = str(self.authority.certificate)
        else:
            settings |= self._credentials()
        self.process = CoordinatorProcess(servers, folder, settings=settings)

    def _credentials(self) -> dict[str, object]:
        entries = [
            {
                "name": name,
                "sha256": hashlib.sha256(secret_of(name).encode()).hexdigest(),
                "scram": [str(make_verifier(each, secret_of(name), b"salt")) for each in HASHES],
            }
            for name in ("worker", "operator", "other")
        ]
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        files = {
            "tokens.yaml": yaml.safe_dump(entries),
            "rules.yaml": RULES,
            "jwks.json": json.dumps({"keys": [{**public, "kid": "k1", "alg": "RS256"}]}),
        }
        for name, text in files.items():
            (self.folder / name).write_text(text)
        return {
            "security.tokens.file": str(self.folder / "tokens.yaml"),
            "security.rules.file": str(self.folder / "rules.yaml"),
            "security.oidc.issuer": ISSUER,
            "security.oidc.audience": AUDIENCE,
            "security.oidc.jwks": str(self.folder / "jwks.json"),
            "kafka.port.connections.max.reauth.ms": REAUTHENTICATION_S * 1000,
        }

    def token(self, name: str, lives_s: float = 600) -> str:
        """A JSON Web Token of a user."""
        now_s = time.time()
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": name, "iat": now_s, "exp": now_s + lives_s}
        return jwt.encode(claims, self._key, "RS256", {"kid": "k1"})

    def figure(self, name: str) -> float | None:
        """A metric by its whole name."""
        with urlopen(f"http://localhost:{self._metrics_port}/metrics", timeout=WAIT_S) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.rpartition(" ")[2])
        return None

    def refusals(self) -> list[tuple[str, str]]:
        """Principals and calls of the refusals in the trail."""
        lines = map(json.loads, self.trail.read_text().splitlines())
        return [(line["principal"], line["call"]) for line in lines if line["outcome"] == "refused"]

    # -- librdkafka ------------------------------------------------------------------------------

    def credentials(self, mechanism: str, name: str, secret: str = "") -> dict[str, Any]:
        """The settings of librdkafka for a mechanism; `secret` in place of the right one."""
        tls = {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.authority.certificate),
            "sasl.mechanisms": mechanism,
        }
        if mechanism != "OAUTHBEARER":
            secret = secret or secret_of(name)
            return {**tls, "sasl.username": name, "sasl.password": secret}
        return {**tls, "oauth_cb": lambda _: (secret or self.token(name), time.time() + 600)}

    def consumer(self, topic: str, group: str, **settings: Any) -> ShareConsumer:
        """librdkafka's share consumer."""
        made = ShareConsumer({"bootstrap.servers": self.address, "group.id": group, **settings})
        made.subscribe([topic])
        return made

    # -- Java ------------------------------------------------------------------------------------

    def java_credentials(self, mechanism: str, name: str, secret: str = "") -> dict[str, str]:
        """The settings of Kafka's Java client for a mechanism."""
        found = {
            **self.java_tls(),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            token = self.folder / "token.jwt"
            token.write_text(self.token(name))
            module = "oauthbearer.OAuthBearerLoginModule required"
            found["sasl.login.callback.handler.class"] = (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            )
            found["sasl.oauthbearer.jwt.retriever.class"] = (
                "org.apache.kafka.common.security.oauthbearer.FileJwtRetriever"
            )
            found["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
        else:
            kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
            module = (
                f'{kind}LoginModule required username="{name}" '
                f'password="{secret or secret_of(name)}"'
            )
        found["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module};"
        return found

    def java_tls(self) -> dict[str, str]:
        """The settings of Kafka's Java client for TLS."""
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
        }

    def console(
        self, topic: str, group: str, settings: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Runs Kafka's own console consumer for ten records."""
        file = self.folder / f"{group}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [
            str(find_java()),
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.folder.as_uri()}/token.jwt",
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={self.folder}/token.jwt",
            *("-cp", f"{kafka_libs('4.3.1')}/*"),
            "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
            *("--bootstrap-server", self.address, "--topic", topic, "--group", group),
            *("--max-messages", "10", "--timeout-ms", "20000"),
            *("--command-config", str(file)),
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def secret_of(name: str) -> str:
    return f"sct_{name}-{'x' * 40}"


@pytest.fixture(scope="module")
def place(
    kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    made = Place(kafka_broker.bootstrap_servers, tmp_path_factory.mktemp("place"))
    with made.process:
        yield made


@pytest.fixture
def group() -> str:
    return unique_name("g-")


@pytest.fixture
def filled(topics: Topics) -> Iterator[str]:
    """A topic with records in it."""
    name = unique_name("t-")
    topics.create(name, partitions=1)
    topics.produce(name, RECORDS)
    yield name
    topics.delete(name)


def all_come(consumer: ShareConsumer, records: int = RECORDS) -> None:
    """Waits for all records of a topic."""
    offsets: set[int] = set()

    def came() -> bool:
        for message in consumer.poll(0.2):
            assert message.error() is None, message.error()
            offsets.add(message.offset() or 0)
        return len(offsets) == records

    eventually(came, WAIT_S, what="all records")


def error_of(consumer: ShareConsumer, errors: list[KafkaError], code: int) -> KafkaError:
    """Waits for an error, which a callback hears or a poll raises."""

    def told() -> bool:
        try:
            for message in consumer.poll(0.2):
                assert message.error() is not None, "a record for somebody who may not have it"
                errors.append(message.error())
        except Exception as error:  # noqa: BLE001 - KafkaException, with the error in it
            errors.append(error.args[0])
        return any(each.code() == code for each in errors)

    eventually(told, WAIT_S, what=f"error {code} among {errors}")
    return next(each for each in errors if each.code() == code)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_gets_its_records(place: Place, filled: str, group: str, mechanism: str) -> None:
    consumer = place.consumer(filled, group, **place.credentials(mechanism, "worker"))
    all_come(consumer)
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafkas_own_consumer_gets_its_records(
    place: Place, filled: str, group: str, mechanism: str
) -> None:
    done = place.console(filled, group, place.java_credentials(mechanism, "worker"))
    assert len([line for line in done.stdout.splitlines() if line.startswith("0000")]) == 10, done


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_secret_is_told_to_librdkafka(
    place: Place, filled: str, group: str, mechanism: str
) -> None:
    errors: list[KafkaError] = []
    settings = place.credentials(mechanism, "worker", secret="guess.a.b")
    consumer = place.consumer(filled, group, **settings, error_cb=errors.append)
    error = error_of(consumer, errors, KafkaError._AUTHENTICATION)
    assert "good here" in str(error) or "JSON Web Token" in str(error)
    consumer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_secret_is_told_to_kafkas_own_consumer(
    place: Place, filled: str, group: str, mechanism: str
) -> None:
    refused_before = len(place.refusals())
    settings = place.java_credentials(mechanism, "worker", "guess")
    done = place.console(filled, group, settings)
    assert "SaslAuthenticationException" in done.stdout + done.stderr
    assert "not good here" in done.stdout + done.stderr
    assert ("User:anonymous", "SaslAuthenticate") in place.refusals()[refused_before:]


def test_a_group_without_a_right(place: Place, filled: str) -> None:
    errors: list[KafkaError] = []
    consumer = place.consumer(
        filled, "others", **place.credentials("PLAIN", "worker"), error_cb=errors.append
    )
    error_of(consumer, errors, KafkaError.GROUP_AUTHORIZATION_FAILED)
    consumer.close()
    done = place.console(filled, "others", place.java_credentials("PLAIN", "worker"))
    assert "GroupAuthorizationException" in done.stdout + done.stderr, done
    assert "User:worker" in {principal for principal, _ in place.refusals()}


def test_a_topic_without_a_right(place: Place, group: str, filled: str) -> None:
    """The group may be consumed, and this topic may not."""
    errors: list[KafkaError] = []
    consumer = place.consumer(
        filled, group, **place.credentials("PLAIN", "other"), error_cb=errors.append
    )
    error_of(consumer, errors, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    consumer.close()
    done = place.console(filled, group, place.java_credentials("PLAIN", "other"))
    assert "TopicAuthorizationException" in done.stdout + done.stderr, done


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_it_is_proven_again_on_the_connections_that_are_there(
    place: Place, filled: str, group: str, topics: Topics, mechanism: str
) -> None:
    """The member stays, no record comes twice, and no connection is made anew (KIP-368)."""
    figures: dict[str, int] = {}

    def stats(text: str) -> None:
        for name, each in json.loads(text)["brokers"].items():
            figures[name] = each["disconnects"]

    more = {"stats_cb": stats, "statistics.interval.ms": 200}
    consumer = place.consumer(filled, group, **place.credentials(mechanism, "worker"), **more)
    offsets: list[int] = []
    begun_s, wanted = time.monotonic(), RECORDS

    def long_enough() -> bool:
        nonlocal wanted
        for message in consumer.poll(0.2):
            assert message.error() is None, message.error()
            offsets.append(message.offset() or 0)
        if len(offsets) < wanted:
            return False
        topics.produce(filled, 5)
        wanted += 5
        return time.monotonic() - begun_s > 2 * REAUTHENTICATION_S

    eventually(long_enough, WAIT_S, what="records over two sessions")
    consumer.close()
    assert len(offsets) == len(set(offsets))
    assert len(figures) >= 2
    assert not any(figures.values()), figures


# -- certificates ---------------------------------------------------------------------------------


@pytest.fixture
def certified(kafka_broker: KafkaUnderTest, tmp_path: Path) -> Iterator[Place]:
    made = Place(kafka_broker.bootstrap_servers, tmp_path, with_clients=True)
    with made.process:
        yield made


def with_pair(place: Place, pair: Pair) -> dict[str, Any]:
    return {
        "security.protocol": "ssl",
        "ssl.ca.location": str(place.authority.certificate),
        "ssl.certificate.location": str(pair.certificate),
        "ssl.key.location": str(pair.key),
    }


def test_client_certificates_and_their_rotation_under_load(
    certified: Place, filled: str, group: str, topics: Topics
) -> None:
    pair = certified.authority.issue("orders", hosts=("URI:spiffe://shop/orders",))
    java = certified.java_tls() | {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pair.together()),
    }
    done = certified.console(filled, f"{group}-java", java)
    assert len([line for line in done.stdout.splitlines() if line.startswith("0000")]) == 10, done
    errors: list[KafkaError] = []
    settings = with_pair(certified, pair) | {"error_cb": errors.append}
    consumer = certified.consumer(filled, group, **settings)
    all_come(consumer)
    newer = certified.authority.issue("newer")
    certified.live.put(newer)

    def goes_on() -> None:
        topics.produce(filled, RECORDS)
        all_come(consumer)

    goes_on()
    eventually(lambda: shown_at(certified.port) == pem_of(newer), WAIT_S, what="the new one")
    goes_on()
    certified.live.certificate.write_text("-----BEGIN NOTHING-----")
    refused = 'sharecoord_file_refused{settings="tls.cert.file, tls.key.file, tls.client.ca.file"}'
    eventually(lambda: certified.figure(refused) == 1, WAIT_S, what="a metric that is red")
    assert shown_at(certified.port) == pem_of(newer)
    goes_on()
    certified.live.put(newer)
    eventually(lambda: certified.figure(refused) == 0, WAIT_S, what="a metric that is green")
    consumer.close()
    assert not errors


def test_who_shows_no_certificate_gets_nothing(certified: Place, filled: str, group: str) -> None:
    settings = {
        "security.protocol": "ssl",
        "ssl.ca.location": str(certified.authority.certificate),
        "log_level": 0,
    }
    consumer = certified.consumer(filled, group, **settings)
    log = certified.folder / "coordinator.log"

    def told() -> bool:
        assert not consumer.poll(0.2)
        return "the client shows no certificate" in log.read_text()

    eventually(told, WAIT_S, what="a line of the log")
    consumer.close()
