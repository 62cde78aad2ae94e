"""`${file:PATH}` and `${env:NAME}` in settings, wherever they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sharecoord.analytics.places import TopicPlace, place_of
from sharecoord.cli.options import Connection
from sharecoord.config.kafka_properties import read_kafka_config
from sharecoord.config.process import ProcessConfig, load
from sharecoord.config.references import FILE_BYTES_MAX, resolve
from sharecoord.errors import InvalidConfigError

SECRET = "hunter2-planted"
HOME = {"HOME": "/h/u"}


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a", "a"),
        (b"a\n", "a"),
        (b"a\r\n", "a"),
        (b"a\n\n", "a\n"),
        (b" a b \n", " a b "),
        (b"a\nb\n", "a\nb"),
        ("ä\n".encode(), "ä"),
    ],
)
def test_a_file_is_read_without_its_last_line_end(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    assert resolve(f"${{file:{path}}}", {}, name="x") == expected


def test_what_a_reference_brings_is_not_searched_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("${env:A}")
    assert resolve(f"${{file:{path}}}-${{env:B}}", {"A": "a", "B": "${env:A}"}, name="x") == (
        "${env:A}-${env:A}"
    )


@pytest.mark.parametrize("text", ["", "$", "${", "${A}", "${vault:a}", "${file}", "$(env:A)"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert resolve(text, {"A": "a"}, name="x") == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://u:${env:P}@h/d", "postgresql://u:p%40%2F%3Aq@h/d"),
        ("postgresql://${env:P}:${env:P}@h/d", "postgresql://p%40%2F%3Aq:p%40%2F%3Aq@h/d"),
        ("postgresql://u:p@${env:H}/d", "postgresql://u:p@[::1]:5432/d"),
        ("postgresql://${env:H}/d", "postgresql://[::1]:5432/d"),
        ("${env:P}@h", "p@/:q@h"),
    ],
)
def test_passwords_of_urls_are_encoded_and_hosts_are_not(text: str, expected: str) -> None:
    assert resolve(text, {"P": "p@/:q", "H": "[::1]:5432"}, name="x") == expected


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read \\(No such file or directory\\)"),
        (b"", "the file is empty"),
        (b"\n", "the file is empty"),
        (SECRET.encode() + b"\0", "has a zero byte"),
        (SECRET.encode() + b"\xff", "is not UTF-8"),
        (SECRET.encode() * FILE_BYTES_MAX, f"more than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_a_bad_file_is_named_and_not_quoted(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidConfigError, match=problem) as caught:
        resolve(f"${{file:{path}}}", {}, name="kafka.sasl.password", where="c.yaml:3")
    message = caught.value.message
    assert message.startswith(f"c.yaml:3: kafka.sasl.password refers to ${{file:{path}}}, and ")
    assert SECRET not in message
    assert caught.value.metadata == {"key": "kafka.sasl.password"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${file:}", "no file is named"),
        ("${file:/}", "Is a directory"),
        ("${file:/a\0b}", "zero byte"),
        ("${env:}", "is not set"),
        ("${env:NO}", "is not set"),
        ("${env:EMPTY}", "is empty"),
        ("${file:/no/x.properties:key}", "with the value alone"),
    ],
)
def test_other_bad_references_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"^x refers to .*{problem}"):
        resolve(text, {"EMPTY": ""}, name="x")


def test_a_file_that_never_ends_is_not_read_to_its_end() -> None:
    with pytest.raises(InvalidConfigError, match="more than"):
        resolve("${file:/dev/zero}", {}, name="x")


# -- in the sources of settings -------------------------------------------------------------------

GROUP_TOPIC = "group.errors.deadletterqueue.topic.name"
NAMES = {
    "kafka.sasl.password": lambda config: config.kafka["sasl.password"],
    "store.url": lambda config: config.store.url.url,
    "coordinator.id": lambda config: config.coordinator.id,
    GROUP_TOPIC: lambda config: config.group_defaults[GROUP_TOPIC.removeprefix("group.")],
}


def _by_yaml(tmp_path: Path, name: str, text: str) -> ProcessConfig:
    path = tmp_path / "c.yaml"
    path.write_text(f"{name}: '{text}'\n")
    return load(path, HOME, {})


def _by_variable(_: Path, name: str, text: str) -> ProcessConfig:
    section, _, key = name.partition(".")
    variable = f"SHARECOORD_{section.upper()}__{key.upper().replace('.', '_')}"
    return load(None, {**HOME, variable: text}, {})


def _by_flag(_: Path, name: str, text: str) -> ProcessConfig:
    return load(None, HOME, {name: text})


@pytest.mark.parametrize("source", [_by_yaml, _by_variable, _by_flag])
@pytest.mark.parametrize("name", NAMES)
def test_a_reference_may_stand_in_every_setting_of_every_source(
    source: Callable[[Path, str, str], ProcessConfig], name: str, tmp_path: Path, secret_file: Path
) -> None:
    reference = f"${{file:{secret_file}}}"
    text = f"postgresql://u:{reference}@h/d" if name == "store.url" else reference
    config = source(tmp_path, name, text)
    assert SECRET in NAMES[name](config)
    (row,) = (row for row in config.effective() if row.key == name)
    assert row.value == text
    assert (SECRET in repr(config)) == (name in ("coordinator.id", GROUP_TOPIC))
    assert config.warnings == ()


@pytest.mark.parametrize("suffix", ["conf", "properties"])
def test_a_reference_may_stand_in_a_file_of_kafka(
    tmp_path: Path, secret_file: Path, suffix: str
) -> None:
    path = tmp_path / f"client.{suffix}"
    path.write_text(
        "sasl.mechanism=PLAIN\n"
        + (
            "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="u" password="${{file:{secret_file}}}";\n'
            if suffix == "properties"
            else f"sasl.password=${{file:{secret_file}}}\n"
        )
    )
    config = load(None, HOME, {}, kafka_config=path)
    assert config.kafka["sasl.password"] == SECRET
    rows = {row.key: row.value for row in config.effective()}
    assert rows["kafka.sasl.password"] == f"${{file:{secret_file}}}"
    assert read_kafka_config(path, {}).properties["sasl.password"] == SECRET


def test_parts_of_a_list_may_be_references(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("kafka.bootstrap.servers: ['${env:A}:1', 'b:2']\n")
    config = load(path, {**HOME, "A": "a"}, {})
    assert config.kafka["bootstrap.servers"] == "a:1,b:2"


@pytest.mark.parametrize(
    "name", ["store.url", "management.port", "log.level", "group.share.delivery.count.limit"]
)
def test_an_error_about_a_content_does_not_quote_it(
    tmp_path: Path, secret_file: Path, name: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        _by_yaml(tmp_path, name, f"${{file:{secret_file}}}")
    assert SECRET not in f"{caught.value}{caught.value.metadata}"
    assert f'="${{file:{secret_file}}}"' in caught.value.message


def test_a_missing_file_names_the_line(tmp_path: Path) -> None:
    problem = r"c\.yaml:1: kafka\.sasl\.password refers to \$\{file:/no\}"
    with pytest.raises(InvalidConfigError, match=problem):
        _by_yaml(tmp_path, "kafka.sasl.password", "${file:/no}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("store.url", f"postgresql://u:{SECRET}@h/d"),
        ("store.url", f"postgresql://h/d?password={SECRET}"),
        ("kafka.sasl.password", SECRET),
        ("kafka.ssl.key.pem", SECRET),
    ],
)
def test_a_secret_on_the_command_line_is_warned_of(name: str, text: str) -> None:
    (warning,) = load(None, HOME, {name: text}).warnings
    assert warning.startswith(f"{name} is given on the command line")
    assert SECRET not in warning


def test_a_reference_may_stand_in_the_file_of_a_command(tmp_path: Path, secret_file: Path) -> None:
    """Of an operator's command, and of the jobs that read events from Kafka."""
    path = tmp_path / "client.properties"
    path.write_text(f"security.protocol=sasl_ssl\nsasl.password=${{file:{secret_file}}}\n")
    connection = Connection(
        bootstrap_server="h:1",
        command_config=path,
        ca_file=None,
        cert_file=None,
        key_file=None,
        token_file=None,
    )
    assert connection.settings()["sasl.password"] == SECRET
    place = place_of("kafka:events", kafka_config=path)
    assert isinstance(place, TopicPlace)
    assert place.settings["sasl.password"] == SECRET
