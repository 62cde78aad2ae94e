"""No secret of a setting stands in what is printed: reprs, texts, errors, `config show`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url

from sharecoord.cli.main import cli
from sharecoord.config.java_properties import JaasEntry, Property
from sharecoord.config.kafka_keys import LIBRDKAFKA_KEYS, is_secret_kafka_key
from sharecoord.config.kafka_properties import KafkaProperties, read_kafka_config
from sharecoord.config.process import ProcessConfig, load
from sharecoord.config.sources import Raw, Source, read_yaml
from sharecoord.errors import InvalidConfigError, SharecoordError
from sharecoord.events.frames import WriterSettings
from sharecoord.events.pipe_sink import settings_of
from sharecoord.kafka.client import make_admin
from sharecoord.kafka.wire.sasl import OAuthBearer, Plain, Scram
from sharecoord.kafka.wire.security import security_of
from sharecoord.kafka.wire.tokens import Token
from sharecoord.producing.frames import ProducerSettings
from sharecoord.security.principals import Credentials
from sharecoord.store.dialects.mysql import MySqlDialect
from sharecoord.store.dialects.postgres import PostgresDialect

SECRET = "hunter2-planted"
HOME = {"HOME": "/h/u"}
SECRET_KEYS = sorted(filter(is_secret_kafka_key, LIBRDKAFKA_KEYS))
KAFKA = dict.fromkeys(SECRET_KEYS, SECRET)


def everywhere() -> ProcessConfig:
    """A configuration with a secret wherever one can stand."""
    flags: dict[str, object] = {f"kafka.{key}": value for key, value in KAFKA.items()}
    flags["store.url"] = f"postgresql://u:{SECRET}@h/d?sslpassword={SECRET}"
    flags["events.sink"] = "kafka:events"
    return load(None, HOME, flags)


def shown() -> Iterator[object]:
    """Everything that holds a secret, as it would be printed."""
    config = everywhere()
    yield from (config, config.store, config.store.url, str(config.store.url), config.warnings)
    yield from (config.effective(), config.origins)
    yield settings_of(config, "c", log_json=True)
    yield ProducerSettings(kafka=dict(config.kafka), transactional_producers_max=1)
    yield KafkaProperties(KAFKA, dict.fromkeys(KAFKA, 1), ())
    yield from (Raw(SECRET, Source.FLAG), Property("sasl.password", SECRET, 1))
    yield JaasEntry("PlainLoginModule", {"password": SECRET})
    yield from (Plain("u", SECRET), Scram("SCRAM-SHA-256", "u", SECRET), OAuthBearer(SECRET, {}))
    yield from (Token(SECRET, 1.0), Credentials(f"Bearer {SECRET}", SECRET.encode()))
    login = {"sasl.username": "u", "sasl.password": SECRET, "sasl.mechanism": "PLAIN"}
    yield security_of({"security.protocol": "sasl_plaintext", **login})
    for scheme, kind in (("postgresql+psycopg", PostgresDialect), ("mysql+pymysql", MySqlDialect)):
        dialect = kind(make_url(f"{scheme}://u:{SECRET}@h/d?password={SECRET}"))
        yield from (dialect, dialect.where)


def test_nothing_that_holds_a_secret_shows_it() -> None:
    for each in shown():
        assert SECRET not in repr(each), type(each)
        assert SECRET not in str(each), type(each)


def test_the_settings_of_child_processes_are_whole() -> None:
    """What is not shown is still handed over."""
    writer = settings_of(everywhere(), "c", log_json=True)
    assert WriterSettings.read(writer.frame()[4:]) == writer
    assert writer.kafka["sasl.password"] == SECRET


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_config_show_shows_no_secret(form: str, tmp_path: Path) -> None:
    yaml_file, kafka_file = tmp_path / "c.yaml", tmp_path / "k.conf"
    yaml_file.write_text(f"store.url: mysql://u:{SECRET}@h/d\n")
    kafka_file.write_text("".join(f"{key}={SECRET}\n" for key in SECRET_KEYS))
    command = ["config", "show", "--effective", "-o", form]
    files = ["--config", str(yaml_file), "--kafka-config", str(kafka_file)]
    done = CliRunner().invoke(cli, [*command, *files], env=HOME)
    assert done.exit_code == 0, done.output
    assert "sasl.password" in done.output
    assert SECRET not in done.output
    if form == "json":
        found = {row["setting"]: row["value"] for row in json.loads(done.stdout)}
        assert found["store.url"] == "mysql+pymysql://u:***@h/d"


def said(call: Callable[[], object]) -> str:
    """What a call brings out: its result as it would be printed, or its error."""
    try:
        return repr(call())
    except SharecoordError as error:
        return f"{error}{error.metadata}"


SPECIAL = st.text("@/:?#%&=[]. a1", max_size=6)


@given(before=SPECIAL, after=SPECIAL, scheme=st.sampled_from(["postgresql", "mysql", "sqlite", ""]))
def test_no_mistake_in_a_url_brings_out_its_password(before: str, after: str, scheme: str) -> None:
    """Whatever characters stand around the password, and whether the URL is taken or refused."""
    text = f"{scheme}://u:{before}{SECRET}{after}@h/d"

    def loaded() -> object:
        config = load(None, HOME, {"store.url": text})
        # A file's path is no secret.
        return config.store.url.path is None and (config, config.effective(), config.warnings)

    assert SECRET not in said(loaded)


@pytest.mark.parametrize(
    "text",
    [
        f"kafka: {{sasl.password: *{SECRET}}}",
        f"kafka.sasl.password: *{SECRET}",
        f"kafka.sasl.password: !{SECRET}!x",
        f"kafka.sasl.password: &{SECRET} a\nkafka.ssl.key.password: &{SECRET} b",
        f"kafka.sasl.password: [{SECRET}",
        f"kafka.sasl.password: '{SECRET}",
        f"kafka.sasl.password: {SECRET}: x",
        f"kafka.sasl.password: @{SECRET}",
        f"kafka.sasl.password: %{SECRET}",
        f'kafka.sasl.password: "\\{SECRET}"',
        f"kafka.sasl.password: >{SECRET}",
    ],
)
def test_a_password_that_is_no_yaml_is_not_quoted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert SECRET not in said(lambda: read_yaml(path))


@pytest.mark.parametrize(
    "text",
    [
        f"sasl.password {SECRET}",
        f"sasl.password={SECRET}\nsasl.password={SECRET}",
        f"sasl.password=\\u{SECRET}",
        f'sasl.jaas.config=x.PlainLoginModule required password="{SECRET}',
        f"sasl.jaas.config=x.OtherLoginModule required password={SECRET};",
        f"ssl.keystore.key=-----BEGIN PRIVATE KEY-----\nMIIE{SECRET}/+\n-----END PRIVATE KEY-----",
    ],
)
@pytest.mark.parametrize("name", ["k.properties", "k.conf", "k"])
def test_a_broken_file_of_kafka_is_not_quoted(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(f"security.protocol=sasl_ssl\n{text}\n")
    assert SECRET not in said(lambda: read_kafka_config(path))


@pytest.mark.parametrize("address", [f"https://u:{SECRET}@h/token", f"https://h/?token={SECRET}"])
def test_a_url_for_librdkafka_has_no_password(address: str) -> None:
    """librdkafka writes the address of a provider that does not answer into its log."""
    name = "kafka.sasl.oauthbearer.token.endpoint.url"
    with pytest.raises(InvalidConfigError, match=f"^--{name}: {name} has a password") as caught:
        load(None, HOME, {name: address})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_librdkafka_does_not_quote_a_secret_that_it_refuses(key: str) -> None:
    settings = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        key: SECRET,
    }
    assert SECRET not in said(lambda: make_admin(settings))


@pytest.mark.parametrize("text", [f"kafka.sasl.password:{SECRET}", f"={SECRET}"])
def test_a_flag_without_a_value_is_not_quoted(text: str) -> None:
    done = CliRunner().invoke(cli, ["serve", "--set", text])
    assert done.exit_code == 2
    assert SECRET not in done.output
