"""The process's configuration, merged from all sources."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from sharecoord.config.endpoints import EventsSinkKind, StoreKind, TcpAddress, UnixAddress
from sharecoord.config.process import (
    PROCESS_SETTINGS,
    SECTIONS,
    ProcessConfig,
    kafka_port_openness,
    load,
)
from sharecoord.config.process_settings import DEFAULT_STORE, LogFormat, LogLevel, Mode
from sharecoord.config.setting import settings_of
from sharecoord.config.sources import Source, variable_of
from sharecoord.errors import InvalidConfigError

HOME = {"HOME": "/h/u"}


def _load(
    tmp_path: Path,
    text: str = "",
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> ProcessConfig:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, {**HOME, **(environ or {})}, flags or {})


def test_nothing_set_gives_the_documented_defaults() -> None:
    config = load(None, HOME, {})
    assert config.kafka == {"bootstrap.servers": "localhost:9092"}
    assert config.store.url.path == Path("/h/u/.local/state/sharecoord/sharecoord.db")
    assert config.listen.address == TcpAddress("localhost", 7070)
    assert config.memory.limit_bytes == 536_870_912
    assert config.commit.linger_ms == 5
    assert config.commit.oldest_uncommitted_ms == 500
    assert config.commit.pending_max_bytes == 16_777_216
    assert config.limits.stream_unsent_max_bytes == 16_777_216
    assert config.recovery.lock_grace_ms == 10_000
    assert (config.log.level, config.log.format) == (LogLevel.INFO, LogFormat.AUTO)
    assert config.coordinator.mode is Mode.STANDALONE
    assert config.events.sink.kind is EventsSinkKind.OFF
    assert not config.tls.enabled
    assert {row.source for row in config.effective()} == {Source.DEFAULT}


@pytest.mark.parametrize("setting", PROCESS_SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_default_is_legal_and_described(setting) -> None:  # type: ignore[no-untyped-def]
    if setting.default is not DEFAULT_STORE:
        assert setting.parse(setting.render(setting.default)) == setting.default
    assert setting.meaning.endswith(".")


def test_every_setting_lies_in_its_section() -> None:
    for section, section_class in SECTIONS.items():
        for setting in settings_of(section_class).values():
            # Beside the keys of Kafka's clients.
            prefix = section.replace("_", ".") + "."
            assert setting.name.startswith(prefix) or setting.name == "kafka.reader"


def test_flags_win_over_environment_over_kafka_file_over_file(tmp_path: Path) -> None:
    kafka_file = tmp_path / "k.conf"
    kafka_file.write_text("bootstrap.servers=kafka-file:1\nclient.id=kafka-file\nclient.rack=k\n")
    path = tmp_path / "c.yaml"
    path.write_text(
        "kafka: {bootstrap.servers: 'file:1', client.id: file, client.rack: file, debug: file}\n"
        "log.level: error\nmanagement.port: 1\nmanagement.host: file\n"
    )
    environ = {
        "SHARECOORD_KAFKA__BOOTSTRAP_SERVERS": "env:1",
        "SHARECOORD_KAFKA__CLIENT_ID": "env",
        "SHARECOORD_LOG__LEVEL": "warning",
        "SHARECOORD_MANAGEMENT__PORT": "2",
    }
    flags = {"kafka.bootstrap.servers": "flag:1", "log.level": "debug", "management.port": None}
    config = load(path, environ, flags, kafka_config=kafka_file)
    assert config.kafka == {
        "bootstrap.servers": "flag:1",
        "client.id": "env",
        "client.rack": "k",
        "debug": "file",
    }
    assert config.log.level is LogLevel.DEBUG
    assert (config.management.port, config.management.host) == (2, "file")
    rows = {row.key: row for row in config.effective()}
    assert rows["kafka.bootstrap.servers"].source is Source.FLAG
    assert rows["kafka.client.id"][2:] == (Source.ENVIRONMENT, "SHARECOORD_KAFKA__CLIENT_ID")
    assert rows["kafka.client.rack"][2:] == (Source.KAFKA_FILE, f"{kafka_file}:3")
    assert rows["management.host"][2:] == (Source.FILE, f"{path}:4")
    assert rows["log.format"][2:] == (Source.DEFAULT, "")


@pytest.mark.parametrize(
    "text",
    [
        "listen: {address: 'unix:/x', ready.file: r}",
        "listen:\n  address: unix:/x\n  ready:\n    file: r\n",
        "listen.address: unix:/x\nlisten.ready.file: r\n",
    ],
)
def test_sections_may_be_nested_or_dotted(tmp_path: Path, text: str) -> None:
    config = _load(tmp_path, text)
    assert config.listen.address == UnixAddress("/x")
    assert config.listen.ready_file == "r"


def test_values_have_units(tmp_path: Path) -> None:
    config = _load(
        tmp_path, "memory.limit: 1GiB\nrecovery.lock.grace.ms: 1m\ncommit: {linger.ms: 7}"
    )
    assert config.memory.limit_bytes == 1 << 30
    assert config.recovery.lock_grace_ms == 60_000
    assert config.commit.linger_ms == 7


@pytest.mark.parametrize("setting", PROCESS_SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_setting_has_its_variable(setting) -> None:  # type: ignore[no-untyped-def]
    text = setting.render(setting.default)
    if setting.default is DEFAULT_STORE:
        text = "memory:"
    config = load(None, {**HOME, variable_of(setting.name): text}, {})
    assert config.source(setting.name) is Source.ENVIRONMENT


def test_group_defaults_come_from_all_sources(tmp_path: Path) -> None:
    config = _load(
        tmp_path,
        "group:\n  share.record.lock.duration.ms: 1m\n  share.renew.acknowledge.enable: false\n",
        {"SHARECOORD_GROUP__ERRORS_DEADLETTERQUEUE_TOPIC_NAME": "dlq"},
        {"group.share.ordering": "KEY"},
    )
    assert config.group_defaults == {
        "share.record.lock.duration.ms": "60000",
        "share.renew.acknowledge.enable": "false",
        "errors.deadletterqueue.topic.name": "dlq",
        "share.ordering": "key",
    }
    rows = {row.key: row for row in config.effective()}
    assert rows["group.share.record.lock.duration.ms"].value == "60000"
    assert rows["group.share.record.lock.duration.ms"].source is Source.FILE
    assert rows["group.share.delivery.count.limit"][1:3] == ("5", Source.DEFAULT)


def test_kafka_lists_and_numbers_become_texts(tmp_path: Path) -> None:
    config = _load(
        tmp_path,
        "kafka:\n  bootstrap.servers: ['a:1', 'b:2']\n  log_level: 3\n  check.crcs: true\n",
        {"SHARECOORD_KAFKA__LOG_CONNECTION_CLOSE": "false"},
        {"kafka.socket.timeout.ms": 100, "kafka.socket.keepalive.enable": True},
    )
    assert config.kafka == {
        "bootstrap.servers": "a:1,b:2",
        "log_level": "3",
        "check.crcs": "true",
        "log.connection.close": "false",
        "socket.timeout.ms": "100",
        "socket.keepalive.enable": "true",
    }


def test_the_older_name_of_the_brokers_replaces_the_default(tmp_path: Path) -> None:
    config = _load(tmp_path, "kafka.metadata.broker.list: a:1")
    assert config.kafka == {"metadata.broker.list": "a:1"}


def test_secrets_are_masked(tmp_path: Path) -> None:
    config = _load(
        tmp_path,
        "store.url: postgresql://u:hunter2@h/d\n"
        "kafka: {sasl.password: hunter2, ssl.key.pem: hunter2}\n",
    )
    assert config.store.url.kind is StoreKind.POSTGRESQL
    rows = {row.key: row.value for row in config.effective()}
    assert rows["store.url"] == "postgresql+psycopg://u:***@h/d"
    assert rows["kafka.sasl.password"] == "********"
    assert "hunter2" not in str(config.effective())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x: 1", r'c\.yaml:1: unknown setting "x"'),
        ("\nlog:\n  levle: info", r'c\.yaml:3: unknown setting "log\.levle". .*"log\.level"'),
        ("lisen.address: x", r'"listen\.address"'),
        ("group: {share.odering: key}", r'"group\.share\.ordering"'),
        ("kafka.: x", r'c\.yaml:1: unknown setting "kafka\."'),
        ("log.level: info\nlog: {level: debug}", r'c\.yaml:2: "log\.level" is already set at .*:1'),
        ("a: 1\na: 2", r'c\.yaml:2: "a" is already set'),
        ("log.level:", r'c\.yaml:1: "log\.level" has no value'),
        ("log.level: [a, b]", r'c\.yaml:1: log\.level="\[.*one of debug'),
        ("log.level: [[a]]", r"single value or a list"),
        ("log.level: [{a: 1}]", r"single value or a list"),
        ("management.port: true", r"an integer"),
        ("management.port: 8080.5", r"an integer"),
        ("management.enable: 1", r"true or false"),
        ("management.port: 65536", r'c\.yaml:1: management\.port="65536" .*between 0 and 65535'),
        ("memory.limit: 1MiB", r"between 64MiB and 1TiB"),
        ("memory.limit: 512M", r"512MiB \(powers of 1024\)"),
        ("listen: {address: 'x'}", r"HOST:PORT"),
        ("coordinator.id: a b", r"coordinator\.id="),
        ("coordinator.advertised.address: '0.0.0.0:80'", r"others can connect"),
        ("coordinator.advertised.address: 'h:0'", r"others can connect"),
        ("coordinator.peer.address: 'h:0'", r"others can connect"),
        ("coordinator.peer.address: '[::]:7072'", r"others can connect"),
        ("coordinator.peer.address: 'unix:/s'", r"coordinators reach each other over TCP"),
        ("management.host: 'h:1 x'", r"without a port"),
        ("- a", r"c\.yaml:1: the file must hold settings"),
        ("just text", r"c\.yaml:1: the file must hold settings"),
        ("? [a]\n: b", r"c\.yaml:1: the name of a setting"),
        ("log: [x", r"c\.yaml:1: not valid YAML"),
        ("a: &a {b: *a}", r"nested that deep"),
        ("group: {share.delivery.count.limit: 0}", r'c\.yaml:1: share\.delivery\.count\.limit="0"'),
        ("group: {share.retry.backoff.ms: 10m}", r"share\.retry\.backoff\.max\.ms"),
        ("kafka: {auto.offset.reset: latest}", r'c\.yaml:1: the Kafka key "auto\.offset\.reset"'),
        ("kafka: {bootstrap.servers: ''}", r"c\.yaml:1: kafka\.bootstrap\.servers"),
    ],
)  # fmt: skip
def test_mistakes_in_the_file_are_named_with_their_line(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(InvalidConfigError, match=problem):
        _load(tmp_path, text)


def test_a_tag_constructs_nothing(tmp_path: Path) -> None:
    flag = tmp_path / "called"
    text = f"log.level: !!python/object/apply:pathlib.Path.touch [{flag}]"
    with pytest.raises(InvalidConfigError, match=r"log\.level="):
        _load(tmp_path, text)
    assert not flag.exists()


def test_a_yaml_error_does_not_quote_the_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"c\.yaml:2") as caught:
        _load(tmp_path, "kafka:\n  sasl.password: [hunter2: x: y\n")
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xfa"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidConfigError, match=r"cannot read the configuration .*c\.yaml"):
        load(path, HOME, {})


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("SHARECOORD_LISTEN__ADRESS", "SHARECOORD_LISTEN__ADDRESS"),
        ("SHARECOORD_LISTEN_ADDRESS", "SHARECOORD_LISTEN__ADDRESS"),
        ("SHARECOORD_BOOTSTRAP_SERVERS", "SHARECOORD_BOOTSTRAP_SERVER"),
        ("SHARECOORD_GROUP__SHARE_ODERING", "SHARECOORD_GROUP__SHARE_ORDERING"),
        ("SHARECOORD_MANAGEMENT_PORT", "SHARECOORD_MANAGEMENT__PORT"),
        ("SHARECOORD_KAFKA__BOOTSTRAP__SERVERS", "SHARECOORD_KAFKA__BOOTSTRAP_SERVERS"),
        ("SHARECOORD_KAFKA__", "SHARECOORD_"),
        ("SHARECOORD_KAFKA___DEBUG", "SHARECOORD_"),
    ],
)
def test_unknown_variables_are_refused(variable: str, near: str) -> None:
    with pytest.raises(InvalidConfigError, match=f'"{variable}". Did you mean "{near}'):
        load(None, {**HOME, variable: "80"}, {})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SHARECOORD_BOOTSTRAP_SERVER", "localhost:7070"),
        ("SHARECOORD_TEST_KAFKA", "localhost:9092"),
        ("SHARECOORD_CACHE", "/tmp"),
        ("SHARECOORD_SERVICE_HOST", "10.0.0.1"),
        ("SHARECOORD_SERVICE_PORT_GRPC", "7070"),
        ("SHARECOORD_PORT", "tcp://10.0.0.1:7070"),
        ("SHARECOORD_PORT_7070_TCP_ADDR", "10.0.0.1"),
        ("SHARECOORD_MANAGEMENT_PORT", "tcp://10.0.0.1:7071"),
        ("OTHER__X", "1"),
    ],
)
def test_variables_of_others_are_left_alone(variable: str, text: str) -> None:
    assert load(None, {**HOME, variable: text}, {}).origins == {}


def test_a_bad_variable_and_a_bad_flag_are_named() -> None:
    with pytest.raises(InvalidConfigError, match=r"^SHARECOORD_LOG__LEVEL: log\.level="):
        load(None, {**HOME, "SHARECOORD_LOG__LEVEL": "loud"}, {})
    with pytest.raises(InvalidConfigError, match=r"^--log\.level: log\.level="):
        load(None, HOME, {"log.level": "loud"})
    with pytest.raises(InvalidConfigError, match=r"^--kafka\.client\.id: .*not dict"):
        load(None, HOME, {"kafka.client.id": {}})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tls.cert.file": "c"}, r"tls\.cert\.file is set and tls\.key\.file is not"),
        ({"tls.key.file": "c"}, r"tls\.key\.file is set and tls\.cert\.file is not"),
        ({"tls.client.ca.file": "c"}, r"without TLS"),
        ({"coordinator.mode": "fleet"}, r"a SQLite file.*postgresql://"),
        ({"coordinator.mode": "fleet", "store.url": "memory:"}, r"memory.*postgresql://"),
        ({"coordinator.processes": 2}, r"Set coordinator\.mode to fleet"),
        (
            {
                "coordinator.processes": 2,
                "coordinator.mode": "fleet",
                "store.url": "mysql://h/d",
                "listen.address": "unix:/x",
            },
            r"needs a TCP port",
        ),
        ({"management.tls.cert.file": "c"}, r"management\.tls\.key\.file one is set"),
        ({"management.tls.key.file": "k"}, r"management\.tls\.key\.file one is set"),
        ({"management.tls.client.ca.file": "a"}, r"client\.ca\.file is set without TLS"),
        ({"coordinator.lease.timeout.ms": "1999"}, r"at least twice"),
        ({"memory.read.stop.ratio": 0.96}, r"must not exceed memory\.acquire\.stop\.ratio"),
        ({"memory.cache.max.bytes": "512MiB"}, r"smaller than memory\.limit"),
        ({"commit.pending.max.bytes": "1GiB"}, r"smaller than memory\.limit"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(InvalidConfigError, match=problem):
        load(None, HOME, settings)


def test_a_fleet_on_one_machine() -> None:
    flags = {
        "coordinator.processes": 4,
        "coordinator.mode": "fleet",
        "store.url": "postgresql://h/d",
        "coordinator.advertised.address": "h:1",
        "tls.cert.file": "c",
        "tls.key.file": "k",
        "tls.client.ca.file": "a",
    }
    config = load(None, HOME, flags)
    assert config.coordinator.processes == 4
    assert config.coordinator.advertised_address == TcpAddress("h", 1)
    assert config.tls.enabled
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "known_by",
    [
        {"tls.cert.file": "c", "tls.key.file": "k", "tls.client.ca.file": "a"},
        {"security.tokens.file": "t"},
        {
            "security.oidc.issuer": "https://i",
            "security.oidc.audience": "a",
            "security.oidc.jwks": "https://i/keys",
        },
    ],
)
def test_clients_are_known_by_certificates_tokens_or_oidc(known_by: dict[str, object]) -> None:
    assert load(None, HOME, known_by).knows_clients
    assert not load(None, HOME, {"tls.cert.file": "c", "tls.key.file": "k"}).knows_clients


def test_a_small_memory_limit_needs_no_other_setting() -> None:
    config = load(None, HOME, {"memory.limit": "64MiB"})
    assert config.memory.cache_max_bytes == 16 << 20


def test_warnings_of_the_kafka_file_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.properties"
    path.write_text("bootstrap.servers=a:1\nmax.poll.records=5\n")
    config = load(None, HOME, {}, kafka_config=path)
    assert config.kafka == {"bootstrap.servers": "a:1"}
    assert len(config.warnings) == 1
    assert "max.poll.records" in config.warnings[0]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"kafka.port.listen": "localhost:1,localhost:2", "kafka.port.advertised": "a:1"},
            "advertised has 1 addresses and kafka.port.listen has 2",
        ),
        (
            {"kafka.port.listen": "localhost:1,localhost:2", "kafka.port.passthrough": True},
            "kafka.port.passthrough=true goes with one address",
        ),
        (
            {"kafka.port.listen": "", "kafka.port.passthrough": True},
            "kafka.port.passthrough=true goes with one address",
        ),
        (
            {"kafka.port.listen": "localhost:0", "kafka.port.passthrough": True},
            "with port 0 in kafka.port.listen",
        ),
        (
            {
                "kafka.port.listen": "localhost:1",
                "kafka.port.passthrough": True,
                "coordinator.processes": 2,
                "coordinator.mode": "fleet",
                "store.url": "postgresql://localhost/x",
            },
            "goes with coordinator.processes=1",
        ),
        ({"kafka.port.advertised": "0.0.0.0:9092"}, "real hosts and real ports"),
        (
            {"kafka.port.listen": "[::]:9092", "listen.insecure": True},
            "all interfaces.*Set kafka.port.advertised",
        ),
        ({"kafka.port.listen": "localhost"}, "HOST:PORT with a port.*localhost:7070\\. The"),
        ({"kafka.port.listen": "0.0.0.0:9092"}, "there is no TLS.*; nothing tells who connects"),
        (
            {"kafka.port.listen": "0.0.0.0:9092", "security.tokens.file": "tokens.yaml"},
            "kafka.port.listen.*there is no TLS.*; or listen on localhost; or accept it",
        ),
        (
            {
                "kafka.port.listen": "0.0.0.0:9092",
                "tls.cert.file": "cert.pem",
                "tls.key.file": "key.pem",
            },
            "nothing tells who connects",
        ),
        ({"kafka.port.listen": "unix:/tmp/s"}, "Kafka's clients connect over TCP"),
    ],
)
def test_a_kafka_port_that_would_serve_unchecked_is_refused(
    more: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        load(None, {}, {"kafka.port.listen": "localhost:9092", **more})


@pytest.mark.parametrize(
    "more",
    [
        {"listen.insecure": True},
        {"tls.cert.file": "c", "tls.key.file": "k", "security.tokens.file": "tokens.yaml"},
        {"tls.cert.file": "c", "tls.key.file": "k", "tls.client.ca.file": "ca.pem"},
    ],
)
def test_a_kafka_port_for_others_is_served_with_tls_and_known_clients(
    more: dict[str, object],
) -> None:
    port = {"kafka.port.listen": "0.0.0.0:9092", "kafka.port.advertised": "sidecar:9092"}
    config = load(None, {}, {**port, **more})
    assert bool(kafka_port_openness(config)) == config.listen.insecure


def test_a_kafka_port_for_this_machine_is_served() -> None:
    addresses = "localhost:9092,[::1]:9093"
    config = load(None, {}, {"kafka.port.listen": addresses})
    assert ",".join(map(str, config.kafka_port.listen)) == addresses
    assert "port.listen" not in config.kafka
