"""Secrets are planted in every setting, and looked for in everything that processes wrote."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]
import pytest
import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from sharecoord_sdk import AcknowledgeType, ShareConsumer
from sharecoord_sdk import AdminClient as Operator
from sharecoord_sdk.admin import AdminError

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess, clean_environment
from sharecoord.devenv.databases import execute, make_space
from sharecoord.devenv.topics import Topics
from tests.acceptance.bad_input import CLI, run_cli
from tests.certificates import Authority
from tests.databases import DatabaseUnderTest
from tests.integration.test_wire_security import (
    KEY_PASSWORD,
    LISTENERS,
    Cluster,
    broker_settings,
)
from tests.support import eventually, explicit, unique_name
from tests.unit.kafka.wire.token_endpoint import TokenEndpoint

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

RECORDS = 20
WAIT_S = 60
_TOKEN_LIFE_S = 60


class Plants:
    """Secrets that stand nowhere else, and the places that were searched for them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._words: dict[str, str] = {}

    def secret(self, name: str) -> str:
        """A new secret, with characters that mean something in a URL, in YAML and in JAAS."""
        self._words[name] = uuid.uuid4().hex
        return f'{self._words[name]}@/:?#"%'

    def word(self, name: str) -> str:
        """A new secret of letters and digits alone."""
        self._words[name] = uuid.uuid4().hex
        return self._words[name]

    def is_secret(self, name: str, word: str) -> None:
        """Another text that must not be found."""
        self._words[name] = word

    def in_file(self, secret: str) -> str:
        """A reference to a file that holds it."""
        path = self._folder / f"secret-{uuid.uuid4().hex}"
        path.write_text(f"{secret}\n", encoding="utf-8")
        return f"${{file:{path}}}"

    def check(self, place: str, text: str) -> None:
        """Fails when a secret stands in the text, which must not be empty."""
        assert text, f"{place} was not there to be searched"
        found = [name for name, word in self._words.items() if word in text]
        assert not found, f"{found} in {place}: {_around(text, self._words[found[0]])}"


def _around(text: str, word: str) -> str:
    at = text.index(word)
    return text[max(0, at - 200) : at + 100]


@pytest.fixture
def plants(tmp_path: Path) -> Plants:
    return Plants(tmp_path)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker with a listener for each way in."""
    ca = Authority(tmp_path_factory.mktemp("certificates"))
    settings = broker_settings(ca, ca.issue("server", password=KEY_PASSWORD))
    with KafkaBroker(settings=settings, listeners=LISTENERS) as broker:
        client = ca.issue("client")
        yield Cluster(broker, ca, client, client)


def known_user(cluster: Cluster, name: str, password: str) -> None:
    """Makes a user of Kafka who logs in with SCRAM."""
    admin = AdminClient({"bootstrap.servers": cluster.broker.bootstrap_servers})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = UserScramCredentialUpsertion(name, info, password.encode(), b"salt")
    for done in admin.alter_user_scram_credentials([user]).values():
        done.result(20)


def planted_store(url: str, password: str) -> tuple[str, str]:
    """A role with this password and a database of its own; returns its name and its URL."""
    role = unique_name("planted").replace("-", "_")
    parts = urlsplit(make_space(url, role))
    execute(url, f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{password}'")
    query = f"?{parts.query}" if parts.query else ""
    return role, f"postgresql://{role}:{{}}@{parts.netloc.rpartition('@')[2]}{parts.path}{query}"


def command_lines(pid: int) -> str:
    """The command lines of a process and of all that it started."""
    process = psutil.Process(pid)
    lines = []
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            lines.append(" ".join(each.cmdline()))
    return "\n".join(lines)


def get(url: str, token: str) -> str:
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return str(answer.read().decode("utf-8"))


def raw_messages(servers: str, topic: str) -> str:
    """Everything in partition 0 of a topic: keys, values, headers."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": unique_name("r")})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[str] = []

    def some() -> bool:
        for each in consumer.consume(1000, 0.2):
            assert each.error() is None, each.error()
            found.append(f"{each.key()!r}{each.value()!r}{each.headers()!r}")
        return bool(found)

    try:
        eventually(some, WAIT_S, what=f"messages in {topic}")
    finally:
        consumer.close()
    return "\n".join(found)


class Run:
    """A coordinator with secrets in all settings that take one, at work."""

    def __init__(
        self, cluster: Cluster, database: DatabaseUnderTest, plants: Plants, at: Path
    ) -> None:
        self.cluster, self.database, self.plants, self.at = cluster, database, plants, at
        topics = Topics(cluster.broker.bootstrap_servers)
        self.topic, self.events, self.dead = (unique_name(each) for each in ("t", "events", "dead"))
        for each in (self.topic, self.events, self.dead):
            topics.create(each)
        topics.produce(self.topic, RECORDS)
        self.group = unique_name("g")
        self.role, url = planted_store(database.url, password := plants.secret("store"))
        self.metrics_token = plants.word("token of metrics")
        self.settings = {
            **self._kafka(),
            **self._doors(),
            "store.url": url.format(plants.in_file(password)),
            "log.level": "debug",
            "events.sink": f"kafka:{self.events}",
            "group.errors.deadletterqueue.topic.name": self.dead,
        }
        self.process = CoordinatorProcess(
            cluster.broker.address("SCRAM"), at, settings=self.settings
        )

    def _kafka(self) -> dict[str, object]:
        plants = self.plants
        known_user(self.cluster, "planted", password := plants.secret("sasl"))
        key_password = uuid.uuid4().hex
        plants.is_secret("key password", key_password)
        pair = self.cluster.ca.issue("planted", password=key_password)
        plants.is_secret("key", pair.key.read_text(encoding="ascii").splitlines()[1])
        kafka = self.cluster.settings(
            "sasl_ssl", ssl_certificate_location=pair.certificate, ssl_key_password=key_password
        )
        kafka |= {
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "planted",
            "sasl.password": plants.in_file(password),
            "ssl.key.pem": f"${{file:{pair.key}}}",
            # Says all that librdkafka can say of itself.
            "debug": "all",
            "log_level": "7",
        }
        return {f"kafka.{key}": value for key, value in kafka.items()}

    def _doors(self) -> dict[str, object]:
        """Who may get in, by which secret; `client` is what a worker or an operator shows."""
        pair = self.cluster.ca.issue("coordinator")
        tokens, metrics = self.at / "tokens.yaml", self.at / "metrics-token"
        made = run_cli("tokens", "create", "planted", "--file", str(tokens))
        token = made.out.strip()
        self.plants.is_secret("token of clients", token)
        metrics.write_text(f"{self.metrics_token}\n", encoding="ascii")
        self.client = {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.cluster.ca.certificate),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "planted",
            "sasl.password": token,
        }
        self.client_file = self.at / "client.properties"
        lines = "".join(f"{key}={value}\n" for key, value in self.client.items())
        self.client_file.write_text(lines, encoding="utf-8")
        return {
            "tls.cert.file": str(pair.certificate),
            "tls.key.file": str(pair.key),
            "security.tokens.file": str(tokens),
            "security.audit.sink": f"file:{self.audit}",
            "management.metrics.token.file": str(metrics),
        }

    @property
    def audit(self) -> Path:
        return self.at / "audit.jsonl"

    @property
    def log(self) -> str:
        return (self.at / "coordinator.log").read_text(encoding="utf-8", errors="replace")

    def work(self) -> None:
        """Members come, accept and reject; a dead letter arrives."""
        seen: set[int] = set()
        config = {**explicit(self.process.address, self.group), **self.client}
        with ShareConsumer(config) as consumer:
            consumer.subscribe([self.topic])

            def all_done() -> bool:
                for message in consumer.poll(0.2):
                    seen.add(message.offset() or 0)
                    kind = AcknowledgeType.REJECT if len(seen) % 2 else AcknowledgeType.ACCEPT
                    consumer.acknowledge(message, kind)
                return len(seen) == RECORDS

            eventually(all_done, WAIT_S, what="all records")
            consumer.commit_sync(20)

    def description(self) -> str:
        """What operators' programs are told of the coordinator."""
        with Operator({"bootstrap.servers": self.process.address, **self.client}) as operator:
            described = operator.describe_coordinator()
        assert "postgresql" in described.store
        return repr(described)

    def stranger(self) -> str:
        """What somebody is told who does not know the password, or has an old token."""
        wrong = {**self.client, "sasl.password": self.plants.word("password of a stranger")}
        token = self.plants.word("token of a stranger")
        bearer = {key: value for key, value in self.client.items() if "sasl." not in key}
        bearer_config: dict[str, object] = {
            **bearer,
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token, time.time() + _TOKEN_LIFE_S),
        }
        said = ""
        for config in (wrong, bearer_config):
            with (
                Operator({"bootstrap.servers": self.process.address, **config}) as operator,
                pytest.raises(AdminError) as caught,
            ):
                operator.list_groups()
            said += f"{caught.value}{caught.value!r}"
        return said

    def commands(self) -> Iterator[tuple[str, str]]:
        """What operators' commands print."""
        at = ["--bootstrap-server", self.process.address]
        at += ["--command-config", str(self.client_file)]
        group = ["--group", self.group]
        config = ["--config", str(self.at / "coordinator.yaml"), "--effective"]
        for command in (
            ["groups", "--list", *at],
            ["groups", "--describe", "--members", "--verbose", *group, *at],
            ["groups", "--describe", "--state", *group, *at],
            ["groups", "--describe", "--offsets", "--group", "absent", *at],
            ["records", "list", *group, *at],
            ["dead-letters", "list", *group, *at],
            ["config", "show", *config],
            ["config", "show", "-o", "json", *config],
            ["store", "check", "--config", str(self.at / "coordinator.yaml")],
        ):
            done = run_cli(*command)
            yield " ".join(command), f"{done.out}{done.err}"

    def lose_the_store(self) -> None:
        """The role's password is changed and its connections are cut: it is not let in again."""
        execute(
            self.database.url,
            f"ALTER ROLE {self.role} PASSWORD 'another'",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{self.role}'",
        )


def test_a_full_run_writes_no_secret(
    guarded: Cluster, postgresql: DatabaseUnderTest, plants: Plants, tmp_path: Path
) -> None:
    run = Run(guarded, postgresql, plants, tmp_path)
    with ExitStack() as stack:
        stack.enter_context(run.process)
        run.work()
        plants.check("the dead letters", raw_messages(guarded.broker.bootstrap_servers, run.dead))
        plants.check("the events", raw_messages(guarded.broker.bootstrap_servers, run.events))
        lines = command_lines(run.process._process.pid)
        assert "sharecoord.producing" in lines
        assert "sharecoord.events" in lines
        plants.check("command lines", lines)
        found = re.search(r"health at\s+(http://\S+)/healthz/ready", run.log)
        assert found is not None
        plants.check("/metrics", get(found[1] + "/metrics", run.metrics_token))
        for path in ("/", "/metrics", "/healthz/ready", "/absent"):
            with suppress(urllib.error.HTTPError):
                plants.check(path, get(found[1] + path, plants.word(f"wrong token at {path}")))
        plants.check("the description of the coordinator", run.description())
        plants.check("what a stranger is told", run.stranger())
        for command, said in run.commands():
            plants.check(command, said)
        plants.check("the audit trail", run.audit.read_text(encoding="utf-8"))
        run.lose_the_store()
        eventually(lambda: "password authentication failed" in run.log, WAIT_S, "its loss is said")
        guarded.broker.kill()
        try:
            run.process.stop()
        finally:
            guarded.broker.start()
    # librdkafka has said what it was set to.
    assert "sasl.password" in run.log
    plants.check("the log", run.log)
    plants.check("what the process is configured by", str(run.process._process.argv))


def test_the_processes_of_a_fleet_are_told_in_private(
    postgresql: DatabaseUnderTest, guarded: Cluster, plants: Plants, tmp_path: Path
) -> None:
    """Each has the settings of all, which do not come by its command line."""
    _, url = planted_store(postgresql.url, password := plants.secret("store"))
    settings: dict[str, object] = {
        "store.url": url.format(plants.in_file(password)),
        "kafka.ssl.key.password": plants.secret("key password"),
        "coordinator.mode": "fleet",
        "coordinator.processes": 2,
        "log.level": "debug",
    }
    broker = guarded.broker.bootstrap_servers
    with CoordinatorProcess(broker, tmp_path, settings=settings) as process:
        lines = command_lines(process._process.pid)
        assert lines.count("--multiprocessing-fork") == 2
        plants.check("command lines", lines)
        space = urlsplit(url).query
        for (secret,) in execute(f"{postgresql.url}?{space}", "SELECT secret FROM coordinator"):
            plants.is_secret("what members of the fleet know", secret)
    plants.check("the log", (tmp_path / "coordinator.log").read_text(encoding="utf-8"))


# -- starts that fail -----------------------------------------------------------------------------


def refused_store(_: Cluster, database: DatabaseUnderTest, plants: Plants) -> dict[str, str]:
    _, url = planted_store(database.url, "right")
    return {"store.url": url.format(plants.in_file(plants.secret("wrong store")))}


def refused_password(cluster: Cluster, _: DatabaseUnderTest, plants: Plants) -> dict[str, str]:
    return {
        **_login(cluster, "PLAIN", "sasl_plaintext"),
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": plants.in_file(plants.secret("wrong password")),
    }


def locked_key(cluster: Cluster, _: DatabaseUnderTest, plants: Plants) -> dict[str, str]:
    pair = cluster.ca.issue(unique_name("locked"), password="right")
    plants.is_secret("key", pair.key.read_text(encoding="ascii").splitlines()[1])
    return {
        **_login(cluster, "MUTUAL", "ssl"),
        "kafka.ssl.certificate.location": str(pair.certificate),
        "kafka.ssl.key.pem": f"${{file:{pair.key}}}",
        "kafka.ssl.key.password": plants.in_file(plants.secret("wrong key password")),
    }


def absent_broker(cluster: Cluster, _: DatabaseUnderTest, plants: Plants) -> dict[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    login = refused_password(cluster, _, plants)
    return {**login, "kafka.bootstrap.servers": f"127.0.0.1:{port}"}


def bad_url(_: Cluster, __: DatabaseUnderTest, plants: Plants) -> dict[str, str]:
    return {"store.url": f"postgresql://u:{plants.secret('store')}@h/d"}


def password_of_a_provider(_: Cluster, __: DatabaseUnderTest, plants: Plants) -> dict[str, str]:
    word = uuid.uuid4().hex
    plants.is_secret("password of the address", word)
    return {"kafka.sasl.oauthbearer.token.endpoint.url": f"https://me:{word}@localhost/token"}


def bad_file(_: Cluster, __: DatabaseUnderTest, plants: Plants) -> dict[str, str]:
    return {"kafka.sasl.password": plants.in_file(f"{plants.secret('file')}\0")}


def unknown_value(_: Cluster, __: DatabaseUnderTest, plants: Plants) -> dict[str, str]:
    return {"log.level": plants.in_file(plants.secret("content"))}


def _login(cluster: Cluster, listener: str, protocol: str) -> dict[str, str]:
    found = {f"kafka.{key}": value for key, value in cluster.settings(protocol).items()}
    return {**found, "kafka.bootstrap.servers": cluster.broker.address(listener)}


def _oidc(cluster: Cluster, plants: Plants) -> dict[str, str]:
    return {
        **_login(cluster, "BEARER", "sasl_plaintext"),
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.method": "oidc",
        "kafka.sasl.oauthbearer.client.id": "me",
        "kafka.sasl.oauthbearer.client.secret": plants.in_file(plants.secret("client secret")),
    }


Refused = Callable[[Cluster, DatabaseUnderTest, Plants], dict[str, str]]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (refused_store, "does not accept this user or password"),
        (refused_password, "kafka.sasl.password"),
        (locked_key, "does not open the key"),
        (absent_broker, "no answer from Kafka yet"),
        (bad_url, "store.url="),
        (password_of_a_provider, "has a password in its URL"),
        (bad_file, "zero byte"),
        (unknown_value, "log.level"),
    ],
)
def test_a_start_that_fails_says_no_secret(
    make: Refused,
    says: str,
    guarded: Cluster,
    postgresql: DatabaseUnderTest,
    plants: Plants,
    tmp_path: Path,
) -> None:
    settings = make(guarded, postgresql, plants)
    said = started(guarded, settings, tmp_path, says)
    assert says in said
    plants.check("what it said", said)


def test_a_provider_that_refuses_brings_out_no_secret(
    guarded: Cluster, plants: Plants, tmp_path: Path
) -> None:
    token = uuid.uuid4().hex
    plants.is_secret("token", token)
    with TokenEndpoint() as endpoint:
        endpoint.answer = lambda: (200, {"access_token": token, "expires_in": _TOKEN_LIFE_S})
        address = {"kafka.sasl.oauthbearer.token.endpoint.url": endpoint.url}
        oidc = {**_oidc(guarded, plants), **address}
        said = started(guarded, oidc, tmp_path, "OAUTHBEARER")
        assert endpoint.asked, said
        endpoint.answer = lambda: (401, {"error": "invalid_client"})
        said += started(guarded, oidc, tmp_path, "gave no token")
    plants.check("what it said", said)


def started(cluster: Cluster, settings: Mapping[str, str], at: Path, says: str) -> str:
    """What `serve` writes until it ends, or until it has said so much that `says` is among it."""
    path = at / "c.yaml"
    defaults = {
        "kafka.bootstrap.servers": cluster.broker.bootstrap_servers,
        "store.url": f"sqlite:///{at}/s.db",
        "listen.address": "localhost:0",
        "management.port": 0,
        "log.level": "debug",
        "kafka.debug": "all",
        "kafka.log_level": 7,
    }
    path.write_text(yaml.safe_dump({**defaults, **settings}), encoding="utf-8")
    output = at / unique_name("output")
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", CLI, "serve", "--config", str(path)],
            stdout=file,
            stderr=file,
            env=clean_environment(),
        )
    try:
        eventually(
            lambda: process.poll() is not None or says in output.read_text(errors="replace"),
            WAIT_S,
            what=f'"{says}" is said',
        )
    finally:
        process.kill()
        process.wait()
    return output.read_text(encoding="utf-8", errors="replace")
